"""A table of collective times, and what makes its two bandwidths: nccl-tests' algbw and busbw.

algbw is size over time. busbw is algbw times a factor of the collective and the number of ranks n, so that it compares
with a link: `2 (n - 1) / n` for all_reduce, `(n - 1) / n` for all_gather, reduce_scatter, alltoall, gather and scatter,
1 for broadcast, reduce and sendrecv (nccl-tests doc/PERFORMANCE.md). Both are computed here from size and time, which
have more digits than the printed columns; a printed busbw that is off by more than 2 % and its own rounding is flagged.

The factor turned around gives the number of ranks of a paste that does not say it: every printed busbw holds n within
an interval, and `Avg bus bandwidth`, which is printed with six digits, narrows it where all rows are in the paste.

Not modelled: algorithms that send other bytes than the factor counts (trees, NVLink SHARP).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, inf
from typing import NamedTuple

SHARING = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
"""Collectives whose `count` column is one rank's share of the size."""
PLAIN = ("broadcast", "reduce", "sendrecv")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce", "sendrecv", "gather",
               "scatter")  # fmt: skip
UNKNOWN = "unknown"
TOLERANCE = 0.02


def bus_factor(collective: str, nranks: int) -> float | None:
    """busbw over algbw. None for a collective without one."""
    if collective == "all_reduce":
        return 2 * (nranks - 1) / nranks
    if collective in SHARING:
        return (nranks - 1) / nranks
    return 1.0 if collective in PLAIN else None


def ring_steps(collective: str, nranks: int) -> int:
    """How many steps a ring (or chain) takes for it."""
    return 2 * (nranks - 1) if collective == "all_reduce" else 1 if collective == "sendrecv" else nranks - 1


class Values(NamedTuple):
    """What a row prints of one run; `half` is half a unit of the last digit."""

    time_s: float
    time_half_s: float
    busbw: float | None
    busbw_half: float


@dataclass(frozen=True)
class RawRow:
    """A row as printed, before the number of ranks is known. Both runs where the row has them."""

    size_bytes: int
    values: Values
    other: Values | None = None
    share: float | None = None
    """Size over bytes of the count column: 1, or the number of ranks."""
    reduces: bool | None = None
    root: int | None = None
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One size: bytes and seconds, and busbw computed from them (None where the factor is not known)."""

    size_bytes: int
    time_s: float
    busbw_bytes_per_s: float | None
    printed_busbw_bytes_per_s: float | None = None
    flag: str = ""
    """What is wrong with what was printed; empty for nearly every row."""

    @property
    def algbw_bytes_per_s(self) -> float:
        """Size over time."""
        return self.size_bytes / self.time_s


@dataclass(frozen=True)
class Table:
    """The rows of one collective on one number of ranks, in the order in which they were printed."""

    collective: str
    nranks: int | None
    rows: tuple[Row, ...]
    tool: str = "nccl"
    notes: tuple[str, ...] = ()

    @property
    def flagged(self) -> tuple[Row, ...]:
        """Rows whose printed busbw is not size over time times the factor."""
        return tuple(row for row in self.rows if row.flag)


def finished(raw: Sequence[RawRow], collective: str, nranks: int | None, notes: Sequence[str]) -> Table:
    """Rows with their busbw; flags what was printed otherwise."""
    factor = None if nranks is None else bus_factor(collective, nranks)
    rows = []
    for row in raw:
        seconds, half, printed, printed_half = row.values
        busbw, flag = printed, ""
        if factor is not None:
            busbw = row.size_bytes / seconds * factor
            rounding = printed_half + busbw * half / seconds
            if printed is not None and abs(printed - busbw) > TOLERANCE * busbw + rounding:
                flag = f"prints busbw {printed / 1e9:g} GB/s, but size / time x {factor:.4g} is {busbw / 1e9:.4g}"
        rows.append(Row(row.size_bytes, seconds, busbw, printed, flag))
    return Table(collective, nranks, tuple(rows), notes=tuple(notes))


def ranks_between(collective: str, rows: Sequence[RawRow], average: float | None) -> tuple[int, int] | None:
    """The least and the greatest number of ranks that explain every printed busbw. None: nothing can be said.

    average: the printed `Avg bus bandwidth` in bytes a second; used where it fits the rows, so that all are there.
    """
    if collective != "all_reduce" and collective not in SHARING:
        return None
    low, high = 0.0, inf
    speeds, roundings = [], []
    for row in rows:
        for seconds, half, busbw, busbw_half in (row.values, *([row.other] if row.other else [])):
            speed = row.size_bytes / seconds
            speeds.append(speed)
            roundings.append(half / seconds)
            if busbw and speed and busbw_half < 0.05 * busbw and half < seconds:
                low = max(low, (busbw - busbw_half) * (seconds - half) / row.size_bytes)
                high = min(high, (busbw + busbw_half) * (seconds + half) / row.size_bytes)
    mean = sum(speeds) / len(speeds) if speeds else 0.0
    if average and mean:
        error = 5e-6 + max(roundings)
        narrow = max(low, average * (1 - error) / mean), min(high, average * (1 + error) / mean)
        if narrow[0] <= narrow[1] and _count(collective, *narrow):
            low, high = narrow
    return _count(collective, low, high) if low and high < inf else None


def _count(collective: str, low: float, high: float) -> tuple[int, int] | None:
    """Whole numbers of ranks whose factor lies between; None for none or more than a machine has."""
    limit = 2.0 if collective == "all_reduce" else 1.0
    if low > high or high >= limit:
        return None
    least, most = ceil(limit / (limit - low) - 1e-9), floor(limit / (limit - high) + 1e-9)
    return (least, most) if 1 <= least <= most <= 1_000_000 else None
