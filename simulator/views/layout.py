"""Where the nodes of a machine stand: in layers by their distance from the devices.

Devices are layer 0, what they hang on (PCIe switches) is 1, hosts are 2; NICs stand above the hosts and the network
above them; a switch that only NVLinks reach stands below the devices. Within a layer a node stands over the middle of
its neighbours in the layers before it: networkx' multipartite layout, with the columns moved.

Not modelled: crossings; no order is searched that has fewer.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol


class Machine(Protocol):
    """A Cluster or a Trace: both name their devices and links."""

    @property
    def devices(self) -> Sequence[Any]:
        """Names, or values with a name."""

    @property
    def links(self) -> Sequence[Any]:
        """Values with source, target, bandwidth_bytes_per_s and kind."""


def device_label(device: Any) -> str:
    """A device's name, whether it is a name or has one."""
    return str(getattr(device, "name", device))


def node_layers(machine: Machine) -> dict[str, int]:
    """The layer of every node: 0 for devices, their distance for what joins them, -1 for NVSwitches."""
    devices = [device_label(device) for device in machine.devices]
    joined: dict[str, dict[str, str]] = {name: {} for name in devices}
    for link in machine.links:
        joined.setdefault(link.source, {})[link.target] = link.kind
        joined.setdefault(link.target, {})[link.source] = link.kind
    layers = dict.fromkeys(devices, 0)
    below = {name for name, near in joined.items() if name not in layers and near
             and all(kind.startswith("nvlink") for kind in near.values())}  # fmt: skip
    edge, distance = devices, 0
    while edge:
        distance += 1
        edge = [near for name in edge for near in joined[name] if near not in layers and near not in below]
        layers.update(dict.fromkeys(edge, distance))
    nics = {name for name in layers if name.startswith("nic")}
    for name, layer in layers.items():  # a NIC hangs on a PCIe switch as a host does; it stands above the hosts
        if name in nics or (nics and layer > 2):
            layers[name] = layer + 1
    return {**layers, **dict.fromkeys((name for name in joined if name in below), -1),
            **{name: 1 for name in joined if name not in layers and name not in below}}  # fmt: skip


def node_positions(machine: Machine) -> dict[str, tuple[float, float]]:
    """Column and layer of every node; columns are one apart or more within a layer."""
    import networkx

    layers = node_layers(machine)
    graph = networkx.Graph()
    graph.add_nodes_from(layers)
    graph.add_edges_from((link.source, link.target) for link in machine.links)
    by_layer = {layer: [name for name in layers if layers[name] == layer] for layer in sorted(set(layers.values()))}
    start = networkx.multipartite_layout(graph, subset_key=by_layer, align="horizontal")
    columns: dict[str, float] = {}
    column = 0.0
    for index, name in enumerate(by_layer[0]):
        node = getattr(machine.devices[index], "node", 0)
        column += 0.0 if index == 0 else 1.0 if node == getattr(machine.devices[index - 1], "node", 0) else 1.5
        columns[name] = column
    for layer in sorted((layer for layer in by_layer if layer != 0), key=abs):
        means = {}
        for name in by_layer[layer]:
            near = [columns[other] for other in graph[name] if other in columns and layers[other] != layer]
            means[name] = sum(near) / len(near) if near else float(start[name][0])
        columns.update(_spread(means))
    return {name: (columns[name], float(layers[name])) for name in layers}


def _spread(means: dict[str, float]) -> dict[str, float]:
    """Columns as near to the wanted ones as a distance of one allows, around the same middle."""
    order = sorted(means, key=lambda name: means[name])
    found: dict[str, float] = {}
    last = -math.inf
    for name in order:
        found[name] = last = max(means[name], last + 1.0)
    shift = (sum(means.values()) - sum(found.values())) / max(len(found), 1)
    return {name: column + shift for name, column in found.items()}
