"""NCCL's topology file (NCCL_TOPO_DUMP_FILE) into a TopologyMatrix: a tree of CPUs, PCIe bridges, GPUs and NICs.

Two devices under one bridge are PIX, under several PXB, under one CPU PHB, else SYS. NVLinks name the bus of their other
end: a GPU (then the pair is NV#), an NVSwitch (class 0x0680: all GPUs on switches reach each other with as many links as
the weaker of two has), or something that is not in the file, because a container or a virtual machine shows only a part
of the machine. Such links are listed as dangling, and what can be known is read without them.

Not modelled: link widths and speeds (a matrix has classes only), NVLinks to a CPU, C2C.
"""

import io
from collections import Counter
from dataclasses import dataclass, field
from xml.etree import ElementTree

from simulator.errors import InputError, require
from simulator.importers.text_file import shortened
from simulator.importers.topology_matrix import Affinity, TopologyMatrix, listed, nvlinks

DEEPEST = 64
SWITCH_CLASS = "0x0680"
_NEXT = "Dump the file again with NCCL_TOPO_DUMP_FILE"


@dataclass
class _Device:
    """A GPU or NIC: its bus, the bridges above it from the root down, and for GPUs the NVLinks by target."""

    name: str
    bus: str
    cpu: str
    above: tuple[str, ...]
    numa: str = ""
    nvlinks: Counter[str] = field(default_factory=Counter)
    switches: int = 0
    unseen: bool = False
    """Whether an NVLink leads to a switch that the file does not show."""


def parse_topology_xml(text: str, where: str) -> TopologyMatrix:
    """The devices of the tree and the link class of each pair. Raises InputError on a file that is not NCCL's."""
    # Entities are not needed here, and a file of a few bytes can expand to gigabytes with them.
    require("<!DOCTYPE" not in text and "<!ENTITY" not in text, f"{where} declares entities", "NCCL writes none", _NEXT)
    gpus, nics = _read_tree(text, where)
    require(bool(gpus), f"{where} has no gpu element", "a topology has at least one", _NEXT)
    gpus.sort(key=lambda gpu: int(gpu.name[3:]))
    names = [device.name for device in gpus + nics]
    require(len(set(names)) == len(names), f"{where} names a device twice", "the `dev` of a gpu is unique", _NEXT)
    buses = {gpu.bus: gpu.name for gpu in gpus}
    dangling = tuple((gpu.name, target, count) for gpu in gpus for target, count in sorted(gpu.nvlinks.items())
                     if count and target not in buses)  # fmt: skip
    notes = []
    if dangling:
        targets = sorted({target for _, target, _ in dangling})
        notes.append(f"{sum(count for *_, count in dangling)} NVLinks lead to {len(targets)} devices outside the file "
                     f"({', '.join(targets)}): left out")  # fmt: skip
    unseen = [gpu.name for gpu in gpus if gpu.unseen]
    if unseen:
        notes.append(f"{listed(unseen)}: an NVSwitch that this file does not show (target -1, as in virtual machines)")
    devices = gpus + nics
    cells = tuple(tuple(None if a is b else _link(a, b) for b in devices) for a in devices)
    return TopologyMatrix(
        tuple(names[: len(gpus)]), tuple(names[len(gpus) :]), cells, tuple(names),
        tuple(Affinity(numa=gpu.numa) for gpu in gpus),
        dangling=dangling, notes=tuple(notes),
    )  # fmt: skip


def _read_tree(text: str, where: str) -> tuple[list[_Device], list[_Device]]:
    """GPUs and NICs in the order of the file. A loop over events: a deep file must not overflow a recursion."""
    gpus: list[_Device] = []
    nics: list[_Device] = []
    path: list[ElementTree.Element] = []
    try:
        for event, element in ElementTree.iterparse(io.BytesIO(text.encode()), ("start", "end")):
            if event == "end":
                path.pop()
                element.clear()
                continue
            require(len(path) < DEEPEST, f"{where} nests {DEEPEST} elements", "NCCL's trees are flat", _NEXT)
            require(bool(path) or element.tag == "system", f"{where} begins with {shortened(element.tag)}",
                    "NCCL's topology begins with `system`", _NEXT)  # fmt: skip
            _take(element, path, gpus, nics, where)
            path.append(element)
    except (ElementTree.ParseError, UnicodeEncodeError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        raise InputError(f"{where}: {problem}. Whole XML is needed. {_NEXT}.") from None
    return gpus, nics


def _take(element: ElementTree.Element, path: list[ElementTree.Element], gpus: list[_Device], nics: list[_Device],
          where: str) -> None:  # fmt: skip
    """Remember the element if it is a device or an NVLink; `path` are the elements around it."""
    tag = element.tag
    if tag == "gpu":
        gpus.append(_device(f"GPU{_whole(element.get('dev', str(len(gpus))), 'dev', where)}", path))
    elif tag == "net":
        nics.append(_device(element.get("name") or f"net{len(nics)}", path))
    elif tag == "nvlink":
        require(bool(gpus) and path[-1].tag == "gpu", f"{where}: an nvlink outside a gpu", "it belongs to one", _NEXT)
        count = _whole(element.get("count", "1"), "count", where)
        target = element.get("target", "").lower()
        if element.get("tclass", "").startswith(SWITCH_CLASS):
            gpus[-1].switches += count
            gpus[-1].unseen |= target in ("-1", "")
        else:
            gpus[-1].nvlinks[target] += count


def _device(name: str, path: list[ElementTree.Element]) -> _Device:
    buses = [element.get("busid", "").lower() for element in path if element.tag == "pci"]
    cpu = next((element for element in path if element.tag == "cpu"), None)
    numa = "" if cpu is None else cpu.get("numaid", "")
    return _Device(name, buses[-1] if buses else "", numa, tuple(buses[:-1]), numa)


def _whole(value: str, name: str, where: str) -> int:
    require(value.isascii() and value.isdigit() and len(value) < 5, f"{where}: {name} = {shortened(value)}",
            "a small whole number is needed", _NEXT)  # fmt: skip
    return int(value)


def _link(a: _Device, b: _Device) -> str:
    """NVLinks where there are any, else what the path through the tree crosses."""
    direct = max(a.nvlinks[b.bus], b.nvlinks[a.bus]) if a.bus and b.bus else 0
    links = direct + min(a.switches, b.switches)
    if nvlinks(f"NV{links}"):
        return f"NV{links}"
    if a.cpu != b.cpu:
        return "SYS"
    shared = 0
    while shared < min(len(a.above), len(b.above)) and a.above[shared] == b.above[shared]:
        shared += 1
    if shared == 0:
        return "PIX" if a.bus and a.bus == b.bus else "PHB"
    return "PIX" if len(a.above) == len(b.above) == shared else "PXB"
