"""The machine: devices, switches, host bridges and NICs, joined by directed links with a bandwidth and a latency.

A transfer between two devices takes one route: the path with the least `sum(1 / bandwidth)` that passes through no
other device (a GPU does not forward a peer copy). Its latency is the sum along the path, its bandwidth the least
of it; both are computed once, here. A link is one-way: a full-duplex cable is two links.

Not modelled: adaptive routing, packets, a device's copy engines.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from simulator.errors import InputError, number, require, whole

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True)
class Device:
    """One GPU (or a CPU that trains). `memory_bytes` 0 means not known."""

    name: str
    kind: str = ""
    memory_bytes: int = 0
    node: int = 0

    def __post_init__(self) -> None:
        whole(self.memory_bytes, f"memory_bytes of device {self.name!r}")
        whole(self.node, f"node of device {self.name!r}")


@dataclass(frozen=True)
class Link:
    """One direction of a cable, a bus or a network port. Raises InputError on a bandwidth of zero."""

    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    kind: str = ""

    def __post_init__(self) -> None:
        edge = f"of link {self.source}->{self.target}"
        bandwidth = number(self.bandwidth_bytes_per_s, f"bandwidth_bytes_per_s {edge}", exclusive=True)
        object.__setattr__(self, "bandwidth_bytes_per_s", bandwidth)
        object.__setattr__(self, "latency_s", number(self.latency_s, f"latency_s {edge}"))

    @property
    def name(self) -> str:
        """`source->target`, and the kind where two links join the same pair."""
        return f"{self.source}->{self.target}" + (f" ({self.kind})" if self.kind else "")


@dataclass(frozen=True)
class Route:
    """The links of one transfer, by index, with their summed latency and least bandwidth."""

    links: tuple[int, ...]
    latency_s: float
    bandwidth_bytes_per_s: float


class Platform(Protocol):
    """What the engine needs of a cluster."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices."""

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, in the order that a route's indices mean."""

    def route(self, source: int, target: int) -> Route:
        """The route between two devices, by index."""


@dataclass(frozen=True)
class Ring:
    """One channel of a collective library: an order of all devices and the share of the bytes that it carries."""

    order: tuple[int, ...]
    share: float = 1.0

    def __post_init__(self) -> None:
        number(self.share, "share of a ring", exclusive=True)


@dataclass(frozen=True)
class Cluster:
    """Devices and links. Raises InputError when there is no device, a name repeats or two devices are not joined."""

    name: str
    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    rings: tuple[Ring, ...] = ()
    """The channels that the library builds here. Empty: one ring in device order."""
    multicast: bool = False
    """Whether the switch adds and multicasts (NVLink SHARP: NVSwitch of the third generation and later)."""
    hosts: tuple[str, ...] = ()
    """For each device the node that stands for host memory near it. Empty: not known."""
    copy_fraction: float = 1.0
    """What one device-to-device copy reaches of its route (less than 1 when it is staged through host memory)."""
    source: str = ""
    _routes: dict[tuple[int, int], Route] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(bool(self.devices), f"cluster {self.name!r} has 0 devices", "at least one is needed", "Add a device")
        names = [device.name for device in self.devices]
        require(len(set(names)) == len(names), f"cluster {self.name!r} repeats a device name", "names are unique",
                "Rename a device")  # fmt: skip
        links = [link.name for link in self.links]
        require(len(set(links)) == len(links), f"cluster {self.name!r} joins a pair of nodes twice by the same kind",
                "links of one pair differ in kind", "Give one link their summed bandwidth")  # fmt: skip
        if not self.rings:
            object.__setattr__(self, "rings", (Ring(tuple(range(len(self.devices)))),))
        for ring in self.rings:
            require(sorted(ring.order) == list(range(len(self.devices))),
                    f"ring {ring.order} of cluster {self.name!r}", "a ring visits every device once",
                    f"List the {len(self.devices)} device indices once each")  # fmt: skip
        total = sum(ring.share for ring in self.rings)
        require(abs(total - 1.0) < 1e-12, f"ring shares of cluster {self.name!r} sum to {total:g}",
                "shares sum to 1", "Rescale them")  # fmt: skip
        require(not self.hosts or len(self.hosts) == len(self.devices),
                f"{len(self.hosts)} hosts of cluster {self.name!r}", "one name a device",
                f"Give {len(self.devices)} names")  # fmt: skip
        fraction = number(self.copy_fraction, "copy_fraction", exclusive=True)
        require(fraction <= 1.0, f"copy_fraction {fraction:g}", "a copy reaches at most its route", "Use 1 or less")
        everyone = set(names)
        for device in self.devices:
            lost = sorted(everyone - self._reached(device.name))
            if lost:
                raise InputError(
                    f"cluster {self.name!r}: no path from {device.name} to {lost[0]}. Every device must reach every other "
                    "without passing through a third. Add links, or a switch that joins them."
                )

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def nodes(self) -> int:
        """Number of machines."""
        return len({device.node for device in self.devices})

    @cached_property
    def graph(self) -> "networkx.MultiDiGraph[str]":
        """The cluster as a networkx graph; edges carry `index`, `bandwidth_bytes_per_s`, `latency_s`, `kind`."""
        import networkx

        graph: networkx.MultiDiGraph[str] = networkx.MultiDiGraph()
        graph.add_nodes_from(device.name for device in self.devices)
        for index, link in enumerate(self.links):
            graph.add_edge(link.source, link.target, index=index, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                           latency_s=link.latency_s, kind=link.kind)  # fmt: skip
        return graph

    def route(self, source: int, target: int) -> Route:
        """The route between two devices, by index. Raises InputError when no path joins them."""
        found = self._routes.get((source, target))
        if found is None:
            for index in (source, target):
                require(0 <= index < len(self.devices), f"device index {index} of cluster {self.name!r}",
                        f"it has {len(self.devices)} devices", "Use 0 to one less")  # fmt: skip
            found = self._routes[source, target] = self._find(source, target)
        return found

    def endpoint_route(self, source: str, target: str) -> Route:
        """The route between any two nodes by name, a host for instance. Raises InputError when none joins them."""
        path = self._least_path(source, target)
        if path is None:
            raise InputError(
                f"cluster {self.name!r}: no path from {source} to {target}. Every device must reach every other "
                "without passing through a third. Add links, or a switch that joins them."
            )
        return Route(path, sum(self.links[i].latency_s for i in path),
                     min((self.links[i].bandwidth_bytes_per_s for i in path), default=float("inf")))  # fmt: skip

    def _find(self, source: int, target: int) -> Route:
        if source == target:
            return Route((), 0.0, float("inf"))
        return self.endpoint_route(self.devices[source].name, self.devices[target].name)

    def _reached(self, source: str) -> set[str]:
        """Every node that a device reaches without passing through another device."""
        barred = {device.name for device in self.devices}
        found, frontier = {source}, [source]
        for node in frontier:
            if node == source or node not in barred:
                for index in self._outgoing.get(node, ()):
                    target = self.links[index].target
                    if target not in found:
                        found.add(target)
                        frontier.append(target)
        return found

    @cached_property
    def _outgoing(self) -> dict[str, list[int]]:
        outgoing: dict[str, list[int]] = {}
        for index, link in enumerate(self.links):
            outgoing.setdefault(link.source, []).append(index)
        return outgoing

    def _least_path(self, source: str, target: str) -> tuple[int, ...] | None:
        """Dijkstra over 1 / bandwidth. Our own dozen lines: importing networkx would cost more than a simulation."""
        import heapq

        barred = {device.name for device in self.devices} - {source, target}
        heap: list[tuple[float, int, str, tuple[int, ...]]] = [(0.0, 0, source, ())]
        done: set[str] = set()
        serial = 0
        while heap:
            cost, _, node, path = heapq.heappop(heap)
            if node == target:
                return path
            if node in done:
                continue
            done.add(node)
            for index in self._outgoing.get(node, ()):
                link = self.links[index]
                if link.target not in done and link.target not in barred:
                    serial += 1
                    heapq.heappush(heap, (cost + 1.0 / link.bandwidth_bytes_per_s, serial, link.target, (*path, index)))
        return None

    def take(self, count: int) -> "Cluster":
        """The first `count` devices of this cluster, with rings that skip the others."""
        whole(count, "number of devices", minimum=1)
        require(count <= len(self.devices), f"{count} ranks on cluster {self.name!r}",
                f"it has {len(self.devices)} devices", f"Ask for {len(self.devices)} or fewer")  # fmt: skip
        if count == len(self.devices):
            return self
        rings = tuple(Ring(tuple(i for i in ring.order if i < count), ring.share) for ring in self.rings)
        gone = {device.name for device in self.devices[count:]}
        links = tuple(link for link in self.links if link.source not in gone and link.target not in gone)
        return replace(self, name=f"{self.name}[:{count}]", devices=self.devices[:count], links=links, rings=rings,
                       multicast=self.multicast and count > 1, hosts=self.hosts[:count])  # fmt: skip
