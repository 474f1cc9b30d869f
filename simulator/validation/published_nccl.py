"""NCCL's all-reduce: inside a published table, and on another machine or another number of GPUs.

Inside: each table's even rows in order of size are fitted with three lines, its odd rows tested
(`simulator.importers.nccl_fit`). A last odd row lies outside the fitted sizes and counts all the same.

Elsewhere: `FIXED` names the one table of each family that fixed its constants, its largest row the part of a link that
NCCL reaches, its smallest by how much a step is slower than NCCL's own figure. Every other table of the family is
predicted: by the presets' library on the presets' cluster, or on equal nodes with the NICs that the authors state (12
GB/s per 100 Gb/s). Up to 16 GPUs step by step, above by the library's closed form. Sizes are the tables' own.

Not modelled: SHARP in the network, NCCL's use of fewer channels for small messages, tuner plugins.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

from simulator.backend import Backend
from simulator.cluster import Cluster
from simulator.importers.nccl_fit import fit_model, halves
from simulator.importers.nccl_tables import Row, Table
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.validation.published_machines import Nodes, all_reduce_s, closed_form_s, cluster_of, library, lines_of
from simulator.validation.published_rows import (
    FITTED,
    INTERPOLATED,
    PREDICTED,
    Family,
    Left,
    Prediction,
    published,
    shared,
)  # fmt: skip

A100, H100, V100 = 300e9, 450e9, 6 * 25.78e9
PORT_100G = 12e9
MOST_STEPS = 16
SMALL = 1 << 20

FIXED = {
    "A100, NVSwitch": "a100_azure_n8", "V100, cube mesh": "v100x8_nvlink_hybridmesh",
    "H100, NVSwitch": "h100x4_nvlink_1node", "RTX 2080 Ti, host memory": "2080tix2_pcie3_shm",
    "RTX 4090, host memory": "4090_pcie_shm_k8s_4gpu", "GH200, NVLink": "gh200x4node_slingshot_n1",
    "H100, NICs unknown": "h100_ib_n10_g1", "A100, Slingshot": "a100x4node_slingshot_n2_ofi",
    "A100, Slingshot, TCP": "a100x4node_slingshot_n2_tcp",
}  # fmt: skip
"""By family the table that fixed it. Those of the first five fixed the presets; the others are fitted here."""
PRESET = {
    "a100_azure_n8": "A100, NVSwitch", "a100_azure_n2": "A100, NVSwitch",
    "a100x8_nvswitch_1node_partial": "A100, NVSwitch", "v100x8_nvlink_hybridmesh": "V100, cube mesh",
    "h100x4_nvlink_1node": "H100, NVSwitch", "h100x4_nvlink_snellius_1node": "H100, NVSwitch",
    "h100x8_p5_1node": "H100, NVSwitch", "4090x8_pcie4_p2p": "RTX 4090, peer access",
    "4090x4_pcie4_p2p": "RTX 4090, peer access", "2080tix2_pcie3_shm": "RTX 2080 Ti, host memory",
    "2node_tcp_10gbe": "10 Gb/s TCP",
}  # fmt: skip
"""Tables of tests/data/published/nccl.json, on the presets' clusters."""
NODES: dict[str, tuple[str, Nodes]] = {
    "a100_azure_n16": ("A100, InfiniBand", Nodes("A100", A100, 8, 2, 8, 2 * PORT_100G)),
    "a100_azure_n64": ("A100, InfiniBand", Nodes("A100", A100, 8, 8, 8, 2 * PORT_100G)),
    "a100x16_ib_2node_partial": ("A100, InfiniBand", Nodes("A100", A100, 8, 2, 8, 2 * PORT_100G)),
    "a100x8_dgx_ib_n2": ("A100, InfiniBand", Nodes("A100", A100, 8, 2, 8, 2 * PORT_100G)),
    "a100x16_oci_roce_partial": ("A100, Ethernet", Nodes("A100", A100, 8, 2, 8, 2 * PORT_100G)),
    "a100x16_p4d_efa_2node_eks": ("A100, Ethernet", Nodes("A100", A100, 8, 2, 4, PORT_100G)),
    "v100x2_p3dn_efa_2node_1gpu": ("V100, Ethernet", Nodes("V100", V100, 1, 2, 1, PORT_100G)),
    "h100x8_ib_snellius_2node": ("H100, InfiniBand", Nodes("H100", H100, 4, 2, 4, 4 * PORT_100G)),
    "h200x8_nvswitch_1node": ("H200, NVSwitch", Nodes("H100", H100, multicast=True)),
    "b200x8_nvswitch_1node": ("B200, NVSwitch", Nodes("H100", 2 * H100, multicast=True)),
    "gh200x4node_slingshot_n1": ("GH200, NVLink", Nodes("GH200", H100, 4)),
    **{f"gh200x4node_slingshot_n{n}": ("GH200, Slingshot", Nodes("GH200", H100, 4, n, 4, 2 * PORT_100G))
       for n in (4, 8, 64)},
    "h100_ib_n10_g1": ("H100, NICs unknown", Nodes("H100", H100, 1, 10, 1, PORT_100G)),
    "h100_ib_n10_g2": ("H100, NICs unknown", Nodes("H100", H100, 2, 10, 2, PORT_100G)),
    "h100_ib_n10_g8": ("H100, NICs unknown", Nodes("H100", H100, 8, 10, 8, PORT_100G)),
    "a100x4node_slingshot_n2_ofi": ("A100, Slingshot", Nodes("A100", A100, 4, 2, 2, 2 * PORT_100G)),
    "a100x4node_slingshot_n256_ofi": ("A100, Slingshot", Nodes("A100", A100, 4, 256, 2, 2 * PORT_100G)),
    "a100x4node_slingshot_n2_tcp": ("A100, Slingshot, TCP", Nodes("A100", A100, 4, 2, 2, 2 * PORT_100G)),
    "a100x4node_slingshot_n128_tcp": ("A100, Slingshot, TCP", Nodes("A100", A100, 4, 128, 2, 2 * PORT_100G)),
}  # fmt: skip
"""By table the family and the nodes, as the authors state them. H200 and B200 take the H100's constants."""
TAKEN = {"4090x6_pcie4_p2p_single": ("RTX 4090, peer access", "8x4090-pcie4", 6),
         "4090_pcie_shm_k8s_4gpu": ("RTX 4090, host memory", "4x4090-nopeer", 4),
         "4090_pcie_shm_docker_2gpu": ("RTX 4090, host memory", "4x4090-nopeer", 2)}  # fmt: skip
"""Further tables on the presets' clusters: family, cluster, GPUs."""
ELSEWHERE = ("other machines, networks and numbers of GPUs by the constants of one table a family: a check that it "
             "does not get worse; the aim is 0.05 above 1 MiB and 0.10 below")  # fmt: skip
INSIDE = {
    "gh200x4node": "times jump and fall again between 16 KiB and 32 MiB: no rising line meets both sides",
    "a100x4node": "times jump and fall again between two sizes: no rising line meets both sides",
    "a100_azure_n64": "1 KiB takes four times what its neighbours take",
    "a100_azure_n16": "the change of protocols falls between two rows",
    "h100x8_ib": "16 KiB takes four times what its neighbours take",
    "h100x8_p5": "small messages jitter by a quarter from row to row, and a change of protocols falls between two",
    "b200": "times are of bandwidths with two decimals, and a change of protocols falls between two rows",
    "2node_tcp": "seven rows, four of them to fit on",
    "l40sx2": "the change of protocols falls between two rows",
}  # fmt: skip
CAUSES = {
    "A100, NVSwitch": "on two GPUs NCCL uses few channels under 64 MiB; channels are not modelled",
    "H100, NVSwitch": "one process for 4 GPUs takes 17 us for a byte; the table that fixed the family has no small row",
    "RTX 4090, peer access": "the preset has a second socket for the last four; small ones change protocols earlier",
    "RTX 4090, host memory": "what a copy through host memory costs to begin is not modelled",
    "10 Gb/s TCP": "a socket's round trip is 45 us there, and the preset's Ethernet has twice that",
    "A100, InfiniBand": "small messages differ by twice among machines; perhaps the tree begins at another size",
    "A100, Ethernet": "EFA takes 250 us for the least message, ten times what InfiniBand does",
    "A100, Slingshot, TCP": "sockets: a step of many bytes costs more than one of few, long before the line is full",
    "A100, Slingshot": "perhaps 256 nodes take another algorithm than two, on which the fit is",
    "B200, NVSwitch": "no message takes less than 38 us there: torch's call is timed, not the kernel",
    "H200, NVSwitch": "no message takes less than 38 us there: torch's call is timed, not the kernel",
    "GH200, NVLink": "the least messages are faster than NCCL's own figure for a step allows",
    "GH200, Slingshot": "times jump and fall again between 16 KiB and 32 MiB",
    "H100, NICs unknown": "the table that fixed the family has no row under 32 MiB",
    "H100, InfiniBand": "156 of the 192 GB/s are reached that the rule of 12 GB/s per 100 Gb/s gives",
    "V100, Ethernet": "four channels over EFA reach 2.6 of 12.5 GB/s; channels are not modelled",
}  # fmt: skip
NOT_EXPRESSED = {
    "h100x96_ib_sharp_partial": "interpolated only: the network's switches add (SHARP), which is not modelled",
    "l40sx2_2node_1gpu": "interpolated only: it is not clear which network the messages took",
    "t4x2_g4dn_efa_2node": "interpolated only: the NIC's rate is not stated",
}  # fmt: skip


@cache
def tables() -> dict[str, dict[str, Any]]:
    """All tables by id, each with ranks and rows."""
    more = {name.removeprefix("nccl_"): entry for name, entry in published("nccl")["sets"].items()}
    return {**shared("nccl")["tables"], **more}


def families() -> list[Family]:
    """Inside a table, above 1 MiB and up to it; then elsewhere."""
    inside = list(_inside())
    wholes = {name: entry["rows"] for name, entry in tables().items()}
    left = tuple(Left(name, len(wholes[name]), reason) for name, reason in NOT_EXPRESSED.items())
    few = tuple(Left(name, len(rows), "not interpolated: too few rows to fit on half of them")
                for name, rows in wholes.items() if not _fits(rows))  # fmt: skip
    elsewhere = list(_elsewhere())
    fixed = "; ".join(f"{family} by {name}" for family, name in FIXED.items())
    fit = "each table's even rows fix its own three lines"
    return [
        Family("NCCL in a table, above 1 MiB", tuple(row for large, row in inside if large),
               {INTERPOLATED: 0.05}, "the aim; three lines miss a switch between protocols", left=few, fit=fit,
               causes=INSIDE),
        Family("NCCL in a table, to 1 MiB", tuple(row for large, row in inside if not large),
               {INTERPOLATED: 0.10}, "the aim; small times jitter by a tenth", fit=fit, causes=INSIDE),
        Family("NCCL elsewhere, above 1 MiB", tuple(row for large, row in elsewhere if large), {PREDICTED: 0.25},
               ELSEWHERE, left=left, fit=fixed, causes=CAUSES),
        Family("NCCL elsewhere, to 1 MiB", tuple(row for large, row in elsewhere if not large), {PREDICTED: 0.35},
               ELSEWHERE, fit=fixed, causes=CAUSES),
    ]  # fmt: skip


def _fits(rows: list[list[float]]) -> bool:
    return len({row[0] for row in sorted(rows)[::2]}) > 1


def _inside() -> Iterator[tuple[bool, Prediction]]:
    """Whether a row is above 1 MiB, and the row."""
    for name, entry in tables().items():
        if not _fits(entry["rows"]):
            continue
        rows = tuple(Row(int(size), us * 1e-6, size / us * 1e6) for size, us in entry["rows"])
        table = Table("all_reduce", entry["ranks"], rows)
        model = fit_model(table)
        for how, part in zip((FITTED, INTERPOLATED), halves(table), strict=True):
            for row in part:
                simulated = model.seconds(row.size_bytes, extrapolate=True)
                yield row.size_bytes > SMALL, _row(name, name, row.size_bytes, how, simulated, row.time_s)


def _row(group: str, name: str, nbytes: float, how: str, simulated: float, measured: float) -> Prediction:
    return Prediction(group, f"{name}, {nbytes:.0f} B", how, simulated, measured, name)


def _elsewhere() -> Iterator[tuple[bool, Prediction]]:
    for name, entry in tables().items():
        found = _machine(name)
        if found is None:
            continue
        family, seconds = found
        how = FITTED if name in FIXED.values() else PREDICTED
        for nbytes, us in entry["rows"]:
            yield nbytes > SMALL, _row(family, name, nbytes, how, seconds(nbytes), us * 1e-6)


def _machine(name: str) -> tuple[str, Callable[[int], float]] | None:
    """The family of a table, and the seconds of a message on its machine."""
    if name in PRESET:
        entry = tables()[name]
        cluster = load_cluster(entry["cluster"]).take(entry["ranks"])
        cluster = replace(cluster, multicast=cluster.multicast and entry["ranks"] == 8)
        return PRESET[name], _stepwise(cluster, backend_for(cluster))
    if name in TAKEN:
        family, preset, ranks = TAKEN[name]
        cluster = load_cluster(preset).take(ranks)
        return family, _stepwise(cluster, backend_for(cluster))
    if name not in NODES:
        return None
    family, spec = NODES[name]
    backend = library(spec, *_constants(family))
    spec = replace(spec, nic_bytes_per_s=_nic(family) or spec.nic_bytes_per_s)
    if spec.ranks <= MOST_STEPS:
        return family, _stepwise(cluster_of(spec), backend)
    found = lines_of(spec, backend)
    return family, lambda nbytes: closed_form_s(found, nbytes)


def _stepwise(cluster: Cluster, backend: Backend) -> Callable[[int], float]:
    return lambda nbytes: all_reduce_s(cluster, backend, nbytes)


@cache
def _nic(family: str) -> float | None:
    """Where no NIC's rate is printed: the bus bandwidth of the largest row of the table that fixes the family."""
    if family != "H100, NICs unknown":
        return None
    ranks, (nbytes, us) = tables()[FIXED[family]]["ranks"], max(tables()[FIXED[family]]["rows"])
    return float(2 * (ranks - 1) / ranks * nbytes / (us * 1e-6))


@cache
def _constants(family: str) -> tuple[float, float | None]:
    """For a family that is fitted here, by the ends of its table: the part reached of a link, more seconds a step."""
    name = FIXED.get(family)
    if name not in NODES or _nic(family):
        return 1.0, None
    rows, spec = sorted(tables()[name]["rows"]), NODES[name][1]

    def seconds(row: list[float], reached: float, slower_s: float) -> float:
        return closed_form_s(lines_of(spec, library(spec, reached, slower_s)), int(row[0]))

    def reach(slower_s: float) -> float:
        return _solve(lambda reached: seconds(rows[-1], reached, slower_s), rows[-1][1] * 1e-6, 0.01, 0.999)

    def slower(reached: float) -> float:
        return _solve(lambda slower_s: -seconds(rows[0], reached, slower_s), -rows[0][1] * 1e-6, 0.0, 1e-3)

    reached, slower_s = 0.5, 0.0
    for _ in range(3):
        reached = reach(slower_s)
        slower_s = slower(reached)
    return reached, slower_s


def _solve(falling: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a falling function reaches a value; an end where it does not."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return (low + high) / 2
