"""Which link joins each pair of a machine's devices, as `nvidia-smi topo -m` names it, and the best ring through the GPUs.

A link class says what a transfer crosses: NV# (# bonded NVLinks), PIX (one PCIe switch), PXB (several), PHB (a PCIe
host bridge, usually the CPU), NODE (two host bridges of a NUMA node), SYS (the link between NUMA nodes), best first.

A ring is as fast as its worst link, so of two rings the better is the one whose worst link is better; where they are
equal, the one with fewer such links, then the one whose next worst is better, and so on. Among equal rings the first
in order is taken, from GPU 0 on; the other direction of the same ring is later in order, so that the second device is
smaller than the last. The sum of `(n + 1) ** (how bad)` over a ring's links orders rings in just this way, and the
least sum over all rings is found by dynamic programming over sets of GPUs (Held and Karp 1962): `2^n n^2` steps instead
of `(n - 1)! / 2` rings.

Not modelled: whether peer access is allowed (PIX does not imply it), links that a ring shares with another channel.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from simulator.errors import InputError, require

PCIE_CLASSES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Best first; any NVLink is better, more of them better still."""
MOST_RING_GPUS = 16
"""The largest machine that `nvidia-smi topo -m` shows; a ring through more is not searched."""
_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})", re.ASCII)


def nvlinks(link: str | None) -> int:
    """The number of NVLinks of a class, 0 for the others."""
    found = _NVLINK.fullmatch(link or "")
    return int(found[1]) if found else 0


def is_link(word: str) -> bool:
    """Whether the word is a link class."""
    return word in PCIE_CLASSES or nvlinks(word) > 0


def badness(link: str) -> int:
    """Orders link classes; smaller is better."""
    return -nvlinks(link) if nvlinks(link) else 1 + PCIE_CLASSES.index(link)


@dataclass(frozen=True)
class Affinity:
    """What the columns after the links say of a GPU, as printed; empty where they say nothing."""

    cpus: str = ""
    numa: str = ""
    gpu_numa_id: str = ""


@dataclass(frozen=True)
class TopologyMatrix:
    """GPUs, NICs and the link class of each pair. Raises InputError on a shape that no machine prints."""

    gpus: tuple[str, ...]
    nics: tuple[str, ...] = ()
    cells: tuple[tuple[str | None, ...], ...] = ()
    """One row a device, GPUs first; None where the text says nothing, and on the diagonal."""
    rows: tuple[str, ...] = ()
    """The devices whose row the text has."""
    affinity: tuple[Affinity, ...] = ()
    """One a GPU."""
    nic_devices: tuple[str, ...] = ()
    """What the NIC legend calls each NIC; empty without a legend."""
    peer_access: bool | None = None
    """What `nvidia-smi topo -p2p` says, where the text has it. None: not known; a link class does not imply it."""
    dangling: tuple[tuple[str, str, int], ...] = ()
    """NVLinks that leave the file: GPU, where they lead, how many."""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = self.gpus + self.nics
        require(bool(self.gpus), "a topology without a GPU", "at least one is needed", "Give the whole matrix")
        require(len(set(names)) == len(names), f"the devices {', '.join(names)}", "names are unique", "Rename one")
        square = len(self.cells) == len(names) and all(len(row) == len(names) for row in self.cells)
        require(square, f"{len(self.cells)} rows of links for {len(names)} devices", "one row and column a device",
                "Fill what is not known with None")  # fmt: skip
        wrong = [cell for row in self.cells for cell in row if cell is not None and not is_link(cell)]
        require(not wrong, f"link class {wrong[:1]}", f"known are NV# and {', '.join(PCIE_CLASSES)}", "Correct it")
        for name, given, wanted in (("affinity", len(self.affinity), len(self.gpus)),
                                    ("nic_devices", len(self.nic_devices), len(self.nics))):  # fmt: skip
            require(given in (0, wanted), f"{given} entries of {name}", "none, or one a device", f"Give {wanted}")

    @property
    def names(self) -> tuple[str, ...]:
        """All devices, GPUs first, in the order of the cells."""
        return self.gpus + self.nics

    def link(self, a: int, b: int) -> str | None:
        """The link class of two devices by index; the worse one where the two cells disagree."""
        found = [cell for cell in (self.cells[a][b], self.cells[b][a]) if cell is not None]
        return max(found, key=badness, default=None)

    @property
    def gpu_pairs(self) -> list[tuple[int, int]]:
        """All pairs of GPUs, by index."""
        n = len(self.gpus)
        return [(a, b) for a in range(n) for b in range(a + 1, n)]

    @property
    def pair_classes(self) -> dict[str, int]:
        """How many pairs of GPUs have each link class, in the order in which the matrix names them."""
        counts: dict[str, int] = {}
        for a, b in self.gpu_pairs:
            if link := self.link(a, b):
                counts[link] = counts.get(link, 0) + 1
        return counts

    @property
    def asymmetric_cells(self) -> int:
        """Pairs of devices whose two cells disagree."""
        n = len(self.names)
        return sum(self.cells[a][b] != self.cells[b][a] for a in range(n) for b in range(a + 1, n)
                   if self.cells[a][b] is not None and self.cells[b][a] is not None)  # fmt: skip

    @property
    def missing_rows(self) -> tuple[str, ...]:
        """The GPUs without a row, or with a row that ends before the last GPU."""
        n = len(self.gpus)
        return tuple(name for a, name in enumerate(self.gpus)
                     if name not in self.rows or any(self.cells[a][b] is None for b in range(n) if b != a))  # fmt: skip

    @property
    def incomplete(self) -> str:
        """What is missing and what to do about it; empty for a complete matrix. (Rows of NICs may be missing.)"""
        missing = self.missing_rows
        if not missing:
            return ""
        return (f"the rows of {listed(missing)} are missing or cut ({len(missing)} of {len(self.gpus)} GPUs): a ring needs "
                "every pair of GPUs. Paste the whole matrix, or complete it by symmetry (complete=True)")  # fmt: skip

    def completed(self) -> "TopologyMatrix":
        """This matrix with the missing rows filled from the columns, and what neither says from the other pairs.

        That last step needs all known pairs of GPUs to have one link class. Raises InputError where they differ.
        """
        if not self.missing_rows:
            return self
        unknown = [pair for pair in self.gpu_pairs if self.link(*pair) is None]
        classes = list(self.pair_classes)
        if unknown and len(classes) != 1:
            known = f"are {', '.join(classes)}" if classes else "are none"
            raise InputError(
                f"{self.incomplete.split(': a ring')[0]}, and the known pairs {known}: only a machine whose pairs are all "
                "alike can be completed by symmetry. Paste the whole matrix."
            )
        cells = [list(row) for row in self.cells]
        for a, row in enumerate(cells):
            for b in range(len(row)):
                if a != b and row[b] is None:
                    row[b] = self.cells[b][a]
        for a, b in unknown:
            cells[a][b] = cells[b][a] = classes[0]
        filled = f"completed by symmetry: the rows of {listed(self.missing_rows)}"
        if unknown:
            filled += f"; {len(unknown)} pairs that no row states are taken to be {classes[0]} as all others are"
        rows = tuple(name for name in self.names if name in self.gpus or name in self.rows)
        return replace(self, cells=tuple(map(tuple, cells)), rows=rows, notes=(*self.notes, filled))

    def nearest_nics(self, gpu: int) -> tuple[str, ...]:
        """The NICs with the best link to that GPU, by name; none where no link is known."""
        links = {name: link for index, name in enumerate(self.nics) if (link := self.link(gpu, len(self.gpus) + index))}
        best = min(map(badness, links.values()), default=0)
        return tuple(name for name, link in links.items() if badness(link) == best)

    @cached_property
    def best_ring(self) -> tuple[int, ...] | None:
        """The best ring by index of GPU. None for one GPU, an incomplete matrix, and more GPUs than are searched."""
        n = len(self.gpus)
        if n == 1 or self.missing_rows:
            return None
        return best_ring(n, lambda a, b: badness(self.link(a, b) or "SYS"))

    @property
    def ring_links(self) -> tuple[str, ...]:
        """The link classes along the best ring, from GPU 0 around to it; for two GPUs both directions of their link."""
        ring = self.best_ring or ()
        return tuple(self.link(a, b) or "" for a, b in zip(ring, ring[1:] + ring[:1], strict=True))

    @property
    def worst_link(self) -> str | None:
        """The worst link class of the best ring."""
        return max(self.ring_links, key=badness, default=None)


def listed(names: Sequence[str]) -> str:
    """`GPU5 to GPU15` for a run of names with consecutive numbers, else all of them."""
    numbers = [int(name[3:]) for name in names if re.fullmatch(r"GPU[0-9]{1,6}", name)]
    if len(numbers) == len(names) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{names[0]} to {names[-1]}"
    return ", ".join(names)


def best_ring(n: int, cost: Callable[[int, int], int]) -> tuple[int, ...] | None:
    """The ring over 0 to n - 1 whose link costs, sorted from the worst, are least; the first in order among equals.

    cost: symmetric, only its order counts. None where n exceeds what is searched and the links differ.
    """
    levels = {level: number for number, level in enumerate(sorted({cost(a, b) for a in range(n) for b in range(a)}))}
    if n <= 3 or len(levels) == 1:
        return tuple(range(n))
    if n > MOST_RING_GPUS:
        return None
    return _least_ring(n, [[(n + 1) ** levels[cost(a, b)] if a != b else 0 for b in range(n)] for a in range(n)])


def _least_ring(n: int, weight: list[list[int]]) -> tuple[int, ...]:
    """Of the rings with the least sum of weights the first in order."""
    import numpy as np

    exact = n * max(map(max, weight)) < 2**63  # with more levels than 64 bits can tell apart, Python's own integers
    costs = np.array(weight, dtype=np.int64 if exact else object)
    # left[rest][at]: the least cost from `at` through all of the set `rest` (bit k: GPU k + 1) and back to GPU 0.
    left = np.zeros((1 << (n - 1), n), dtype=costs.dtype)
    left[0] = costs[:, 0]
    members = [np.array([k for k in range(n - 1) if rest >> k & 1], dtype=np.int64) for rest in range(1 << (n - 1))]
    for rest in range(1, 1 << (n - 1)):
        inside = members[rest]
        left[rest] = (costs[:, inside + 1] + left[rest ^ (1 << inside), inside + 1]).min(axis=1)
    ring, rest = [0], (1 << (n - 1)) - 1
    while rest:
        at = ring[-1]
        here = next(
            int(k) for k in members[rest] if costs[at, k + 1] + left[rest ^ (1 << int(k)), k + 1] == left[rest, at]
        )
        ring.append(here + 1)
        rest ^= 1 << here
    return tuple(ring)
