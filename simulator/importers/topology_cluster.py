"""A TopologyMatrix into a Cluster: a class names what a transfer crosses, so that the classes of all pairs give a tree.

Devices that are PIX share a switch, PXB a switch above those, PHB a host bridge, NODE a CPU; SYS joins the CPUs. NICs
count too: two GPUs with NVLinks between them show the PCIe switch that they share only through the NIC beside it.
NV# is that many links between two GPUs, unless a GPU would then need more links than it has: then it is an NVSwitch,
and each GPU has # links to it.

A class has no bandwidth. What is put on it here are the presets' figures for the device's kind, and `source` says which
of them are rules: the same PIX is 12 GB/s on PCIe 3 with peer access and 5.7 without (case of two RTX 2080 Ti). Peer
access is therefore taken only from `topo -p2p` in the same text or from the caller; otherwise all copies go
through the host.

Channels: where the best ring is all NVLink, rings are taken one after another until the links are used up.

Not modelled: a copy staged through the host beside NVLinks (copy_fraction is one number); NVLinks to a CPU.
"""

from collections.abc import Sequence

from simulator.cluster import Cluster, Device, Link, Ring
from simulator.errors import number, require
from simulator.importers.topology_matrix import Affinity, TopologyMatrix, badness, best_ring, nvlinks
from simulator.presets.clusters import (
    MEMORY,
    NO_PEER_COPY,
    NVLINK2,
    NVLINK_LATENCY,
    PCIE3,
    PCIE4,
    PCIE_LATENCY,
    QPI,
    both_ways,
)

NVLINKS: dict[str, tuple[int, float, str]] = {
    "P100": (4, 20e9, "vendor figure"),
    "V100": (6, NVLINK2, "nvidia-smi nvlink -s"),
    "TITAN-RTX": (2, NVLINK2, "nvidia-smi nvlink -s"),
    "2080Ti": (2, NVLINK2, "nvidia-smi nvlink -s"),
    "A100": (12, 300e9 / 12, "vendor figure"),
    "H100": (18, 450e9 / 18, "vendor figure"),
    "H200": (18, 450e9 / 18, "vendor figure"),
    "B200": (18, 900e9 / 18, "vendor figure"),
}
"""By kind of device: how many NVLinks it has, bytes a second of one in one direction, and where that is from."""
UNKNOWN_NVLINKS = (18, 300e9 / 12, "as on an A100, for want of the device's kind")
PCIE_KINDS = {"P100": 3, "V100": 3, "TITAN-RTX": 3, "2080Ti": 3, "A100": 4, "4090": 4, "H100": 4, "H200": 4, "B200": 4}
"""PCIe generation; what has 5 gets the presets' figure for 4, the least that it reaches."""
STAGED_COPY = {"4090": 19e9 / PCIE4}
"""What one copy through the host reaches of PCIe, where it was measured (19 GB/s); elsewhere as on two RTX 2080 Ti."""
MEASURED_WITHOUT_PEERS = ("2080Ti", "TITAN-RTX")
"""Kinds whose backend comes from tables without peer access: their links stay PCIe's. Elsewhere the backend would reach
the whole link, so that the links themselves carry only what a staged copy does; copies from the host suffer with them."""
MULTICAST = ("H100", "H200", "B200")


def class_rule(link: str, device_kind: str = "") -> tuple[float, str]:
    """Bytes a second of one direction of a link class, and where the figure comes from."""
    if count := nvlinks(link):
        _, each, source = NVLINKS.get(device_kind, UNKNOWN_NVLINKS)
        return count * each, f"{count} x {each / 1e9:g} GB/s ({source})"
    generation = PCIE_KINDS.get(device_kind, 3)
    pcie = PCIE4 if generation == 4 else PCIE3
    if link == "SYS":
        return min(QPI, pcie), f"the lesser of PCIe and {QPI / 1e9:g} GB/s of a socket link: a rule, not measured here"
    known = "" if device_kind in PCIE_KINDS else ", for want of the device's kind"
    return pcie, f"{pcie / 1e9:g} GB/s (PCIe {generation} x16{known}): a rule, not measured here"


def to_cluster(matrix: TopologyMatrix, device_kind: str = "", *, name: str = "imported", peer_access: bool | None = None,
               pcie_bytes_per_s: float | None = None) -> Cluster:  # fmt: skip
    """The machine of a matrix with the presets' figures. Raises InputError on an incomplete matrix.

    device_kind: as in the presets (V100, A100, ...); decides NVLink and PCIe figures, memory and, later, the backend.
    peer_access: whether GPUs copy to each other directly over PCIe; left out, what `topo -p2p` in the text says, else no.
    pcie_bytes_per_s: measured on this machine, instead of the rule.
    """
    incomplete = matrix.incomplete
    require(not incomplete, incomplete.split(": a ring")[0], "a cluster needs every pair of GPUs",
            "Paste the whole matrix, or complete it by symmetry (complete=True)")  # fmt: skip
    n = len(matrix.gpus)
    peers = matrix.peer_access if peer_access is None else peer_access
    links: list[Link] = []
    switched = is_switched(matrix, device_kind)
    each = class_rule("NV1", device_kind)[0]
    for a, b in [] if switched else matrix.gpu_pairs:
        if count := nvlinks(matrix.link(a, b)):
            links += both_ways(f"gpu{a}", f"gpu{b}", count * each, NVLINK_LATENCY, f"nvlink x{count}")
    if switched:
        for a in range(n):
            count = max(nvlinks(matrix.link(a, b)) for b in range(n) if b != a)
            if count:
                links += both_ways(f"gpu{a}", "nvswitch0", count * each, NVLINK_LATENCY / 2, "nvlink")
    staged = not links and n > 1 and not peers
    reached = STAGED_COPY.get(device_kind, NO_PEER_COPY) if staged else 1.0
    pcie = class_rule("PIX", device_kind)[0]
    if pcie_bytes_per_s is not None:
        pcie = number(pcie_bytes_per_s, "pcie_bytes_per_s", exclusive=True)
    by_backend = device_kind in MEASURED_WITHOUT_PEERS
    tree, hosts = _tree(matrix, pcie if by_backend else pcie * reached, direct=staged)
    return Cluster(
        name, tuple(Device(f"gpu{a}", device_kind, MEMORY.get(device_kind, 0)) for a in range(n)),
        (*links, *tree), _rings(matrix, switched), multicast=switched and device_kind in MULTICAST, hosts=hosts,
        copy_fraction=reached if by_backend else 1.0, source=_source(matrix, device_kind, peers, reached, pcie_bytes_per_s),
    )  # fmt: skip


def is_switched(matrix: TopologyMatrix, device_kind: str = "") -> bool:
    """Whether NVLinks go to a switch: direct ones would need more of them than a GPU has."""
    most = NVLINKS.get(device_kind, UNKNOWN_NVLINKS)[0]
    n = len(matrix.gpus)
    return any(sum(nvlinks(matrix.link(a, b)) for b in range(n) if b != a) > most for a in range(n))


def _groups(matrix: TopologyMatrix, level: str) -> list[int]:
    """For each device the first one that it reaches over links of that class or better."""
    size = len(matrix.names)
    first = list(range(size))

    def join(a: int, b: int) -> None:
        low, high = sorted((first[a], first[b]))
        first[:] = [low if group == high else group for group in first]

    known = {(a, b): link for a in range(size) for b in range(a) if (link := matrix.link(a, b)) and not nvlinks(link)}
    for (a, b), link in known.items():
        if badness(link) <= badness(level):
            join(a, b)
    if level == "NODE":
        # NVLinks hide the classes beneath. The affinity columns join what no pair says is apart, and a GPU of which
        # nothing at all is known is put on the first CPU.
        silent = Affinity()
        where = [matrix.affinity[a] if matrix.affinity else silent for a in range(len(matrix.gpus))]
        for a, b in matrix.gpu_pairs:
            same = where[a] != silent and (where[a].cpus, where[a].numa) == (where[b].cpus, where[b].numa)
            if same and nvlinks(matrix.link(a, b)) and not _apart(first, a, b, known):
                join(a, b)
        for a, place in enumerate(where):
            if place == silent and not any(a in pair for pair in known):
                join(0, a)
    return first


def _apart(first: Sequence[int], a: int, b: int, known: dict[tuple[int, int], str]) -> bool:
    """Whether some pair says that the groups of two devices are on different NUMA nodes."""
    return any(link == "SYS" and {first[x], first[y]} == {first[a], first[b]} for (x, y), link in known.items())


def _tree(matrix: TopologyMatrix, pcie: float, *, direct: bool) -> tuple[list[Link], tuple[str, ...]]:
    """PCIe links from the devices up to the CPUs, and each GPU's CPU. direct: GPUs hang on the CPU, past the switches."""
    n = len(matrix.gpus)
    tops = [f"gpu{a}" for a in range(n)] + [f"nic{a}" for a in range(len(matrix.nics))]
    links: list[Link] = []
    counts = {"switch": 0, "bridge": 0, "cpu": 0}
    cpus = _groups(matrix, "NODE")
    for level, kind in (("PIX", "switch"), ("PXB", "switch"), ("PHB", "bridge"), ("NODE", "cpu")):
        groups = _groups(matrix, level)
        for group in sorted(set(groups)):
            members = [device for device, first in enumerate(groups) if first == group]
            if direct and kind != "cpu":
                members = [device for device in members if device >= n]
            children = list(dict.fromkeys(tops[device] for device in members))
            alone = len(members) == cpus.count(cpus[members[0]]) if members else True
            if kind != "cpu" and (len(children) < 2 or (kind == "bridge" and alone)):
                continue  # a bridge that all of a CPU's devices share is the CPU
            node = f"{kind}{counts[kind]}"
            counts[kind] += 1
            for child in children:
                links += both_ways(child, node, pcie, PCIE_LATENCY / 2, "pcie")
            for device in members:
                tops[device] = node
    for one in range(counts["cpu"]):
        for other in range(one + 1, counts["cpu"]):
            links += both_ways(f"cpu{one}", f"cpu{other}", QPI, PCIE_LATENCY / 2, "socket")
    return links, tuple(tops[:n])


def _rings(matrix: TopologyMatrix, switched: bool) -> tuple[Ring, ...]:
    """The channels: over NVLinks as many rings as there are links for, in both directions; else the best ring alone."""
    best = matrix.best_ring
    if best is None or len(best) < 3:
        return ()
    if switched or not nvlinks(matrix.worst_link):
        return () if best == tuple(range(len(best))) else (Ring(best),)
    found = max(_use_up(matrix, whole=True), _use_up(matrix, whole=False), key=lambda rings: sum(rings.values()))
    total = sum(found.values())
    return tuple(Ring(order, count / total / 2) for ring, count in found.items() for order in (ring, _back(ring)))


def _back(ring: Sequence[int]) -> tuple[int, ...]:
    return (ring[0], *reversed(ring[1:]))


def _use_up(matrix: TopologyMatrix, *, whole: bool) -> dict[tuple[int, ...], int]:
    """Rings over the NVLinks that are left, and how many links each takes: all of its worst pair's, or one at a time.

    All at once finds the two disjoint rings of a hybrid cube mesh, one at a time the three of four GPUs that are all
    joined; neither is best everywhere.
    """
    left = {pair: nvlinks(matrix.link(*pair)) for pair in matrix.gpu_pairs}
    found: dict[tuple[int, ...], int] = {}

    def cost(a: int, b: int) -> int:
        return -left[min(a, b), max(a, b)]

    while (ring := best_ring(len(matrix.gpus), cost)) is not None:
        edges = [(min(pair), max(pair)) for pair in zip(ring, ring[1:] + ring[:1], strict=True)]
        least = min(left[edge] for edge in edges)
        if least == 0:
            break
        taken = least if whole else 1
        for edge in edges:
            left[edge] -= taken
        found[ring] = found.get(ring, 0) + taken
    return found


def _source(matrix: TopologyMatrix, kind: str, peers: bool | None, reached: float, pcie: float | None) -> str:
    said = [f"{link}: {class_rule(link, kind)[1]}" for link in sorted(matrix.pair_classes, key=badness)]
    if pcie is not None:
        said.append(f"PCIe links at {pcie / 1e9:g} GB/s as given")
    if reached < 1.0:
        why = "not allowed" if peers is False else "not known, and a link class does not imply it"
        like = f"measured for a {kind}" if kind in STAGED_COPY else "as on two RTX 2080 Ti"
        said.append(f"peer access {why}: copies go through the host at {reached:.3g} of the link, {like}")
    return "; ".join(["nvidia-smi topo -m", *said])
