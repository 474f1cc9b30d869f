"""`python -m simulator topology FILE`: what a machine's link matrix says, as JSON and as text of 80 columns.

The file is the output of `nvidia-smi topo -m` (`topology_parse`) or NCCL's topology XML (`topology_xml`); what a class
means and which ring is best is in `topology_matrix`, the machine for the simulator in `topology_cluster`.

Not modelled: nothing is guessed here; an incomplete matrix is shown as it is, and only `complete` fills it.
"""

import textwrap
from pathlib import Path
from typing import Any

from simulator.importers.text_file import read_text
from simulator.importers.topology_cluster import class_rule, to_cluster
from simulator.importers.topology_matrix import Affinity, TopologyMatrix, badness, nvlinks
from simulator.importers.topology_parse import parse_matrix
from simulator.importers.topology_xml import parse_topology_xml
from simulator.presets.clusters import NO_PEER_COPY, PCIE3

__all__ = ["Affinity", "TopologyMatrix", "describe", "parse_topology", "read_topology", "read_topology_xml", "to_cluster",
           "topology_json", "topology_text"]  # fmt: skip
WIDTH = 80
MEANINGS = {
    "NV": "bonded NVLinks", "PIX": "one PCIe switch", "PXB": "several PCIe switches, no host bridge",
    "PHB": "a PCIe host bridge, usually the CPU", "NODE": "two host bridges of one NUMA node",
    "SYS": "the link between NUMA nodes",
}  # fmt: skip
PEER = {
    None: "not stated here (`nvidia-smi topo -p2p r` says), and no link class implies it.",
    True: "allowed.",
    False: f"not supported: a copy goes through the host, at {NO_PEER_COPY * PCIE3 / 1e9:.3g} GB/s on two RTX 2080 Ti.",
}


def read_topology(path: str | Path, *, complete: bool = False) -> TopologyMatrix:
    """The matrix in a file. complete: fill missing rows by symmetry. Raises InputError on damaged or foreign text."""
    return parse_topology(read_text(path), str(path), complete=complete)


def parse_topology(text: str, where: str = "the text", *, complete: bool = False) -> TopologyMatrix:
    """The matrix in a text, of `nvidia-smi topo -m` or NCCL's XML; `where` names it in messages."""
    xml = text.lstrip().startswith("<") and "<system" in text
    matrix = parse_topology_xml(text, where) if xml else parse_matrix(text, where)
    return matrix.completed() if complete else matrix


def read_topology_xml(path: str | Path) -> TopologyMatrix:
    """The matrix of a file that NCCL_TOPO_DUMP_FILE wrote. Raises InputError on another file."""
    return parse_topology_xml(read_text(path), str(path))


def describe(path: str | Path, *, complete: bool = False) -> dict[str, Any]:
    """What the matrix in a file says, ready for JSON."""
    return _describe(read_topology(path, complete=complete), Path(path).name)


def topology_json(path: str | Path, *, complete: bool = False) -> dict[str, Any]:
    """What `topology --json` prints: counts, classes, every pair, the best ring where there is one."""
    return describe(path, complete=complete)


def _describe(matrix: TopologyMatrix, file: str) -> dict[str, Any]:
    names = matrix.names
    found: dict[str, Any] = {
        "file": file,
        "gpus": len(matrix.gpus),
        "nics": len(matrix.nics),
        "rows_present": len(matrix.rows),
        "gpu_pair_classes": matrix.pair_classes,
        "asymmetric_cells": matrix.asymmetric_cells,
        "names": list(names),
        "links": {
            f"{names[a]}-{names[b]}": matrix.link(a, b) for a in range(len(names)) for b in range(a + 1, len(names))
        },
        "nearest_nics": {name: list(matrix.nearest_nics(gpu)) for gpu, name in enumerate(matrix.gpus)},
        "peer_access": matrix.peer_access,
        "missing_rows": list(matrix.missing_rows),
        "notes": [*([matrix.incomplete] if matrix.incomplete else []), *matrix.notes],
    }
    ring = matrix.best_ring
    if ring is not None:
        found["best_ring"], found["best_ring_worst_link"] = list(ring), matrix.worst_link
        if len(ring) > 2:  # two GPUs have one link, and it is the worst
            found["best_ring_links"] = list(matrix.ring_links)
    return found


def topology_text(path: str | Path, *, complete: bool = False) -> str:
    """The same for a person: the matrix, what its classes mean, the nearest NICs, the best ring with its worst link."""
    matrix = read_topology(path, complete=complete)
    sizes = (
        f"{len(names)} {what}{'s' if len(names) != 1 else ''}"
        for names, what in ((matrix.gpus, "GPU"), (matrix.nics, "NIC"))
    )
    lines = _wrap(f"{', '.join(sizes)}; the text has {len(matrix.rows)} of {len(matrix.names)} rows")
    lines += ["", *_table(matrix), ""]
    counts = ", ".join(f"{count} x {link}" for link, count in matrix.pair_classes.items())
    lines += _wrap(f"Pairs of GPUs: {counts or 'none'}")
    for link in sorted(matrix.pair_classes, key=badness):
        most = "" if nvlinks(link) else "at most "
        lines += _wrap(f"  {link}: {MEANINGS['NV' if nvlinks(link) else link]}; {most}{class_rule(link)[1]}", "    ")
    if any(not nvlinks(link) for link in matrix.pair_classes):
        lines += _wrap(f"  Peer access over PCIe: {PEER[matrix.peer_access]}", "    ")
    lines += _nics(matrix)
    ring = matrix.best_ring
    if ring is not None:
        lines += ["", *_wrap(f"Best ring: {' - '.join(matrix.gpus[gpu] for gpu in (*ring, ring[0]))}", "  ")]
        along = f"; along it {', '.join(matrix.ring_links)}" if len(ring) > 2 else ""
        lines += _wrap(f"  Its worst link: {matrix.worst_link}{along}", "  ")
    elif len(matrix.gpus) > 1 and not matrix.missing_rows:
        lines += ["", *_wrap(f"No ring: {len(matrix.gpus)} GPUs are more than are searched.")]
    notes = [*([matrix.incomplete] if matrix.incomplete else []), *matrix.notes]
    return "\n".join([*lines, *(line for note in notes for line in ["", *_wrap(f"Note: {note}.", "  ")])])


def _wrap(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _table(matrix: TopologyMatrix) -> list[str]:
    """The rows that the text has, in blocks of as many columns as fit; `-` where nothing is known."""
    names = [name if len(name) <= 12 else name[:9] + "..." for name in matrix.names]
    rows = [a for a, name in enumerate(matrix.names) if name in matrix.rows]
    first = max(map(len, names)) + 2
    lines: list[str] = []
    block: list[int] = []
    for column in range(len(names) + 1):
        widths = [max(5, len(names[other]) + 1) for other in block]
        full = column == len(names) or first + sum(widths) + max(5, len(names[column]) + 1) > WIDTH
        if full and block:
            lines += [""] * bool(lines)
            lines.append(" " * first + "".join(names[b].ljust(width) for b, width in zip(block, widths)).rstrip())
            for a in rows:
                cells = ("X" if a == b else matrix.link(a, b) or "-" for b in block)
                lines.append(f"{names[a]:{first}}" + "".join(map(str.ljust, cells, widths)).rstrip())
            block = []
        block.append(column)
    return lines


def _nics(matrix: TopologyMatrix) -> list[str]:
    """For each GPU the nearest NICs; GPUs with the same ones on one line."""
    devices = dict(zip(matrix.nics, matrix.nic_devices)) if matrix.nic_devices else {}
    near: dict[tuple[str, ...], list[str]] = {}
    for gpu, name in enumerate(matrix.gpus):
        near.setdefault(matrix.nearest_nics(gpu), []).append(name)
    lines: list[str] = []
    for nics, gpus in near.items():
        if nics:
            link = matrix.link(matrix.gpus.index(gpus[0]), len(matrix.gpus) + matrix.nics.index(nics[0]))
            shown = ", ".join(f"{nic} ({devices[nic]})" if devices.get(nic) else nic for nic in nics)
            lines += _wrap(f"Nearest NIC of {', '.join(gpus)}: {shown}; {link}", "  ")
    return lines
