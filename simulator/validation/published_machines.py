"""Clusters of many equal nodes, what the library's closed form says of them, and two ranks that stand for all.

Nodes are stars: each GPU on its node's switch by one port, and NICs beside the GPUs, all on one network. NCCL's rings
enter a node by one NIC and leave it by the one before, so that each direction of each NIC carries one of them.

`lines` asks the library for the time of an all-reduce by each algorithm and protocol: a constant and seconds a byte.
The library takes the cheapest, so time over size is the lower envelope. All nodes being equal, no link of more than
eight nodes is busier than the busiest of eight; only steps are more: 2 (N - 1) of a ring, of a tree twice its depth.

`two_ranks` is a pair of GPUs whose all-reduce takes exactly those lines. Ranks of DistributedDataParallel that do the
same work at the same time are all alike, so that two of them show the step of a thousand.

Links have no latency of their own: NCCL's figures for a step contain the wire. `library` mixes its figures for a step
within a node and across as each algorithm crosses: a ring once a node, a tree once a level of nodes.

Not modelled: the order of nodes in a job, congestion in the network, SHARP in its switches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from simulator.backend import Backend, Protocol, nccl
from simulator.cluster import Cluster, Device, Link, Ring
from simulator.collectives.communicator import Communicator
from simulator.engine import Engine
from simulator.presets.backends import REACH, backend_for

MOST_NODES = 8
"""A larger cluster's lines follow from one of that many nodes."""
PROBE_BYTES = 1 << 30


@dataclass(frozen=True)
class Nodes:
    """Equal nodes. Bandwidths are a direction's: a GPU's port on the switch, and one NIC."""

    kind: str
    port_bytes_per_s: float
    gpus: int = 8
    nodes: int = 1
    nics: int = 1
    nic_bytes_per_s: float = 12e9
    multicast: bool = False

    @property
    def ranks(self) -> int:
        """GPUs of all nodes."""
        return self.gpus * self.nodes


@lru_cache(maxsize=64)
def cluster_of(spec: Nodes) -> Cluster:
    """The nodes as a cluster."""
    devices, links = [], []
    for rank in range(spec.ranks):
        node, local = divmod(rank, spec.gpus)
        devices.append(Device(f"gpu{rank}", spec.kind, 0, node))
        links += _both(f"gpu{rank}", f"nvswitch{node}", spec.port_bytes_per_s, 0.0, "nvlink")
        if spec.nodes > 1:
            beside = f"nic{node}.{local * spec.nics // spec.gpus}"
            links += _both(f"gpu{rank}", beside, spec.nic_bytes_per_s, 0.0, "pcie")
    for node in range(spec.nodes if spec.nodes > 1 else 0):
        for nic in range(spec.nics):
            links += _both(f"nic{node}.{nic}", "network", spec.nic_bytes_per_s, 0.0, "network")
    channels = spec.nics if spec.nodes > 1 else 1
    rings = []
    for channel in range(channels):
        first = channel * spec.gpus // channels
        order = [node * spec.gpus + (first + step) % spec.gpus
                 for node in range(spec.nodes) for step in range(spec.gpus)]  # fmt: skip
        rings.append(Ring(tuple(order), 1 / channels))
    name = f"{spec.nodes} x {spec.gpus} {spec.kind}"
    return Cluster(name, tuple(devices), tuple(links), tuple(rings), spec.multicast and spec.nodes == 1)


def _both(a: str, b: str, bandwidth: float, latency: float, kind: str) -> list[Link]:
    return [Link(a, b, bandwidth, latency, kind), Link(b, a, bandwidth, latency, kind)]


def library(spec: Nodes, reached: float = 1.0, slower_s: float | None = None) -> Backend:
    """NCCL on the nodes: inside one node of a known kind the presets' library, else tuning.cc's figures.

    slower_s: what a step takes beyond them; if it is not given, as the presets have it for that kind of GPU.
    """
    if slower_s is None:
        if spec.nodes == 1:
            return backend_for(cluster_of(spec))
        slower_s = REACH[spec.kind, "nvlink"].slower_s if (spec.kind, "nvlink") in REACH else 0.0
    levels = (spec.nodes - 1).bit_length()
    ring = 1 / spec.gpus if spec.nodes > 1 else 0.0
    tree = levels / (spec.gpus - 1 + levels)
    rings, trees = (nccl(reached, network=crossing, slower_s=slower_s) for crossing in (ring, tree))
    return replace(rings, tree_protocols=trees.tree_protocols)


@dataclass(frozen=True)
class Line:
    """Seconds of an all-reduce by one algorithm and protocol: constant, and a byte."""

    name: str
    constant_s: float
    per_byte_s: float

    def seconds(self, nbytes: int) -> float:
        """At that size."""
        return self.constant_s + nbytes * self.per_byte_s


def lines(cluster: Cluster, backend: Backend, nodes: int | None = None) -> tuple[Line, ...]:
    """Every line of the library. nodes: as many of these nodes, instead of the cluster's own number."""
    found = []
    ranks, known = cluster.world_size, cluster.nodes
    gpus, wanted = ranks // known, nodes or known
    many = gpus * wanted
    for algorithm in ("ring", "tree", *(("nvls",) if cluster.multicast else ())):
        for protocol in getattr(backend, f"{algorithm}_protocols"):
            one = (protocol,)
            alone = replace(backend, algorithm=algorithm, ring_protocols=one, tree_protocols=one, nvls_protocols=one)
            library = Communicator(cluster, alone)
            start, end = (library.choose(nbytes).estimate_s for nbytes in (0, PROBE_BYTES))
            steps = many_steps = 1.0
            bytes_more = 1.0
            if algorithm == "ring":
                steps, many_steps = ranks - 1.0, many - 1.0
                bytes_more = (many - 1) / many * ranks / (ranks - 1)
            elif algorithm == "tree":
                steps, many_steps = (gpus - 1.0 + (count - 1).bit_length() for count in (known, wanted))
            constant = protocol.base_s + (start - protocol.base_s) * many_steps / (steps or 1.0)
            found.append(Line(f"{algorithm} {protocol.name}", constant, (end - start) / PROBE_BYTES * bytes_more))
    return tuple(found)


def lines_of(spec: Nodes, backend: Backend | None = None) -> tuple[Line, ...]:
    """The lines of that many nodes, by the presets' library unless another is given."""
    cluster = cluster_of(replace(spec, nodes=min(spec.nodes, MOST_NODES)))
    return lines(cluster, backend or library(spec), spec.nodes)


def closed_form_s(found: Sequence[Line], nbytes: int) -> float:
    """The library's choice: the least line."""
    return min(line.seconds(nbytes) for line in found)


def all_reduce_s(cluster: Cluster, backend: Backend, nbytes: int) -> float:
    """One all-reduce alone, simulated step by step."""
    engine = Engine(cluster)
    for device, program in enumerate(Communicator(cluster, backend).all_reduce(engine, nbytes)):
        engine.start(program, name=f"rank {device}", rank=device, device=device, resource="host")
    return max(transfer.end_s or 0.0 for transfer in engine.run().transfers)


def two_ranks(kind: str, found: Sequence[Line], like: Backend) -> tuple[Cluster, Backend]:
    """Two GPUs whose all-reduce of any size takes the least of these lines; all else of the library as `like`."""
    link = 1 / min(line.per_byte_s for line in found)
    cluster = Cluster("two of many", tuple(Device(f"gpu{rank}", kind) for rank in range(2)),
                      tuple(_both("gpu0", "gpu1", link, 0.0, "all links")))  # fmt: skip
    protocols = tuple(Protocol(line.name, line.constant_s, 0.0, min(1.0, 1 / line.per_byte_s / link)) for line in found)
    return cluster, replace(like, algorithm="ring", ring_protocols=protocols, tree_protocols=protocols,
                            nvls_protocols=protocols, chain_protocols=protocols)  # fmt: skip
