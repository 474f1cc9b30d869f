"""The collective library on a cluster by name: NCCL with what it reaches there, gloo on a CPU.

A family is a kind of device and what its ring crosses: NVLink, PCIe or the network between nodes. For each, `REACH`
has the part of the link's bandwidth that NCCL's Simple protocol reaches (bus bandwidth of a published nccl-tests table
over the link), the cap of LL (tuning.cc) and, from the table's smallest messages, by how much a step is slower than
NCCL's own figures. Those are of tuning.cc, less what the cluster's links already add. tests/test_published_nccl.py
prints the error against each table by size, and says which rows fixed a number.

Across nodes the clusters' NICs already carry what NCCL reaches of a port (12 GB/s per 100 Gb/s), so that 1.0 of them is
reached. Gloo copies and adds on the CPU while no byte of that message moves: a byte takes 1 / wire + 0.78 ns, fixed by
0.63 of 1.22 GB/s on 10 Gb/s (BinhangYuan/tc_cluster_setting), which predicts 1 and 40 Gb/s to 6 % (pytorch/gloo#21).

Not modelled: drivers that switch peer access off, rings that NCCL fails to find, congestion by others.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from simulator.backend import PLAIN, Backend, gloo, nccl
from simulator.cluster import Cluster
from simulator.errors import unknown

LIBRARIES = ("nccl", "gloo", "plain")
GLOO_S_PER_BYTE = 1 / 0.627e9 - 1 / 1.22e9
"""What gloo adds to the wire's seconds per byte: one 64 MiB message over 10 Gb/s in 107 ms, by NCCL in 55."""


@dataclass(frozen=True)
class Reach:
    """What NCCL reaches of a family's links."""

    simple: float
    source: str
    ll: float | None = None
    chain: float | None = None
    """For broadcast and reduce, where they reach another part than the all-reduce."""
    slower_s: float = 0.0


_DGX1 = 6 * 25.78e9
REACH: dict[tuple[str, str], Reach] = {
    ("V100", "nvlink"): Reach(
        0.86, "8 x V100-SXM2, hybrid cube mesh, NCCL 2.4, 8 B to 128 MiB: bus bandwidth 129 GB/s and rising of 154.7",
        39e9 / _DGX1, slower_s=2.4e-6),
    ("A100", "nvlink"): Reach(
        0.77, "8 x A100-SXM4 on NVSwitch, NetX-lab/Echo nccl_8.log (MIT): bus bandwidth 231 of 300 GB/s at 1 GiB",
        87.7e9 / 300e9, slower_s=1.25e-6),
    ("H100", "nvlink"): Reach(
        0.815, "4 x H100 on NVSwitch without NVLS, xxrjun/nccl-tests-cluster (Apache-2.0): 367 of 450 GB/s; with NVLS "
        "algbw 275 GB/s on 8 (NVIDIA/nccl#1455)", 141e9 / 450e9),
    ("TITAN-RTX", "nvlink"): Reach(
        0.60, "2 x TITAN RTX, NVLink 2 bridge: fitted on GPT-2's DDP step of 128 tokens (transformers#9371)"),
    ("4090", "pcie"): Reach(
        1.0, "8 x RTX 4090, PCIe 4, peer access by a modified driver: 20.6 GB/s over two sockets, 25.3 over one"),
    ("A100", "pcie"): Reach(
        0.84, "A100 PCIe 4 box: 20.9 GB/s on 2 and 20.8 on 4 GPUs (MooreThreads/SimuMax a100_pcie.json, fitted there)"),
    ("2080Ti", "staged"): Reach(
        4.0 / 12, "2 x RTX 2080 Ti without peer access: all-reduce 4.00, broadcast 11.1 GB/s (nccl-tests in a rented "
        "container, Anthony-Hoo's notes of 2025)",
        chain=11.1 / 12, slower_s=1e-6),
    ("TITAN-RTX", "staged"): Reach(
        0.42, "2 x TITAN RTX, NCCL_P2P_DISABLE=1: fitted on GPT-2's DDP step of 128 tokens "
        "(huggingface/transformers#9371); broadcast as on the RTX 2080 Ti", chain=11.1 / 12),
    ("4090", "staged"): Reach(
        2.59 / 25, "4 x RTX 4090 without peer access, in a container: 2.59 GB/s (kalavai-net/kalavai-client, Apache-2.0)"),
    ("V100", "pcie"): Reach(0.84, "no table; as the A100 PCIe box: 20.9 of 25 GB/s"),
}  # fmt: skip
NETWORK = Reach(1.0, "12 GB/s per 100 Gb/s port, which the cluster's NICs carry (NVIDIA/nccl-tests#119, #290)")


def backend_for(cluster: Cluster, *, algorithm: str = "auto", serial: bool = False, name: str | None = None) -> Backend:
    """The library on that cluster. Unknown hardware gets the plain backend, and its `source` says so."""
    if name is not None and name not in LIBRARIES:
        raise unknown("library", name, LIBRARIES)
    kinds = sorted({device.kind for device in cluster.devices})
    if name == "plain":
        return replace(PLAIN, algorithm=algorithm, serial=serial)
    if name == "gloo" or (name is None and kinds == ["CPU"]):
        return replace(_gloo(cluster), serial=serial)
    if cluster.world_size == 1:
        return nccl(algorithm=algorithm, serial=serial, source="one device: nothing to communicate")
    reach, link = reach_of(cluster)
    if reach is None:
        what = f"unknown hardware ({' and '.join(kind or 'unnamed' for kind in kinds)}, {link})"
        return replace(PLAIN, algorithm=algorithm, serial=serial, source=f"{what}: no overhead, the full bandwidth")
    crossing, wire_s = _ring_steps(cluster)
    return nccl(reach.simple, ll_reached=reach.ll, chain_reached=reach.chain, algorithm=algorithm,
                link="pcie" if link in ("pcie", "staged") else "nvlink", network=crossing, wire_s=wire_s, slower_s=reach.slower_s,
                serial=serial, source=reach.source)  # fmt: skip


def reach_of(cluster: Cluster) -> tuple[Reach | None, str]:
    """What NCCL reaches there, and what its rings cross: nvlink, pcie, staged (pcie, but by way of host memory) or network."""
    crossed = {kind.split(" ")[0] for kinds in _edges(cluster) for kind in kinds}
    link = next((kind for kind in ("network", "loopback", "pcie") if kind in crossed), "nvlink")
    if link == "pcie" and cluster.copy_fraction < 1:
        link = "staged"
    kinds = {device.kind for device in cluster.devices}
    if len(kinds) != 1:
        return None, link
    kind = kinds.pop()
    if link == "network":
        return (NETWORK if any(known == kind for known, _ in REACH) else None), link
    return REACH.get((kind, link)), link


def _gloo(cluster: Cluster) -> Backend:
    """A CPU's loopback as the cluster has it; on a network what gloo reaches of the slowest port."""
    if cluster.nodes == 1:
        return gloo(source="gloo over loopback: the cluster's own measured bandwidth")
    slowest = min(link.bandwidth_bytes_per_s for link in cluster.links if link.kind == "network")
    return gloo(reached=1 / (1 + GLOO_S_PER_BYTE * slowest),
                source="gloo over TCP: 0.78 ns a byte beside the wire (BinhangYuan/tc_cluster_setting)")  # fmt: skip


def _edges(cluster: Cluster) -> Iterable[list[str]]:
    """For each edge of each ring the kinds of its links."""
    for ring in cluster.rings:
        for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True):
            yield [cluster.links[index].kind for index in cluster.route(a, b).links]


def _ring_steps(cluster: Cluster) -> tuple[float, float]:
    """The part of the ring's steps that crosses nodes, and the least wire latency of a step."""
    edges = list(_edges(cluster))
    crossing = sum("network" in kinds for kinds in edges) / len(edges)
    latencies = [cluster.route(a, b).latency_s for ring in cluster.rings
                 for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True)]  # fmt: skip
    return crossing, min(latencies)
