"""A table of times by size into a model of the library: the lower envelope of up to three lines, as NCCL has protocols.

A line is `constant + bytes * factor / (fraction * link)`. Which rows belong to which line is tried out: the rows in
order of size are cut into one, two or three stretches, a line with no negative constant is fitted to each (relative
errors), and the time is the least of the lines. Every line rises with size, so that their least does too. Three
lines, because NCCL has three protocols; fewer where the rows do not carry them (two a line and one more), or where a
line is nowhere the least.

Every second row is fitted on, in order of size; the others test (`error_by_size_class`). The least and the greatest
size that were fitted bound the model: outside them `seconds` is an InputError, unless it is asked to extrapolate.

One table has one number of ranks, so it fixes only the sum `base + steps * step` of a line. All of it goes to the
steps, unless the caller knows the base. Likewise it fixes only the product `fraction * link`: the link is what the
steepest stretch reaches, unless the caller names it.

Not modelled: times that fall as size grows (several published tables have such a row); other numbers of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from statistics import median
from typing import TYPE_CHECKING

from simulator.backend import Backend, Protocol
from simulator.cluster import Cluster, Device, Link
from simulator.errors import InputError, number, require, whole
from simulator.importers.nccl_tables import Row, Table, bus_factor, ring_steps

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

    Numbers = NDArray[float64]

MOST_LINES = 3
MOST_CUTS = 40
"""Long tables are cut at so many places only; a cut between two neighbours of a finer sweep makes no difference."""
SIZE_CLASSES = {"to 32 KiB": 32 << 10, "to 1 MiB": 1 << 20, "to 64 MiB": 64 << 20, "above": 1 << 62}
OUTSIDE = "outside"


@dataclass(frozen=True)
class SizeModel:
    """Seconds of one collective by size, on the number of ranks and between the sizes that were measured."""

    collective: str
    nranks: int
    link_bytes_per_s: float
    lines: tuple[Protocol, ...]
    smallest_bytes: int
    largest_bytes: int
    tool: str = "nccl"

    def seconds(self, nbytes: int, *, extrapolate: bool = False) -> float:
        """Time of a message. Raises InputError outside the fitted sizes unless extrapolate."""
        whole(nbytes, "nbytes")
        require(extrapolate or self.smallest_bytes <= nbytes <= self.largest_bytes, f"{self.collective} of {nbytes} bytes",
                f"the table that was fitted holds {self.smallest_bytes} to {self.largest_bytes}",
                "Measure that size, or ask for extrapolate=True and say so")  # fmt: skip
        factor = bus_factor(self.collective, self.nranks) or 0.0
        steps = ring_steps(self.collective, self.nranks)
        return min(line.base_s + steps * line.step_s + nbytes * factor / (line.bandwidth_fraction * self.link_bytes_per_s)
                   for line in self.lines)  # fmt: skip


@dataclass(frozen=True)
class SizeError:
    """Relative errors of a model at the rows of one size class."""

    rows: int
    median: float
    worst: float


@dataclass(frozen=True)
class FittedBackend:
    """A backend, the models that it is made of, and the machine that it holds for."""

    backend: Backend
    models: tuple[SizeModel, ...]

    def cluster(self, device_kind: str = "") -> Cluster:
        """As many devices as were measured on one switch, each with the link that the models speak of, no latency."""
        model = self.models[0]
        devices = tuple(Device(f"gpu{rank}", device_kind) for rank in range(model.nranks))
        ends = [(device.name, "switch0") for device in devices]
        links = tuple(Link(a, b, model.link_bytes_per_s, 0.0, "measured")
                      for end in ends for a, b in (end, end[::-1]))  # fmt: skip
        return Cluster("measured", devices, links, source=self.backend.source)


def halves(table: Table) -> tuple[list[Row], list[Row]]:
    """The even and the odd rows of a table in order of size: to fit on, and to test on."""
    ordered = sorted(table.rows, key=lambda row: (row.size_bytes, row.time_s))
    return ordered[::2], ordered[1::2]


def fit_model(table: Table, *, link_bytes_per_s: float | None = None, base_s: float = 0.0, latency_s: float = 0.0,
              most_lines: int = MOST_LINES) -> SizeModel:  # fmt: skip
    """The model of one table, fitted on its even rows. Raises InputError where a table cannot carry one.

    link_bytes_per_s: what the library's rings could reach there (summed over its channels); none of the lines exceeds
    it. base_s: the part of a line's constant that does not grow with the steps. latency_s: of a step's links, which the
    cluster already has.
    """
    import numpy as np

    nranks, factor = _ranks_and_factor(table)
    rows, _ = halves(table)
    require(len({row.size_bytes for row in rows}) > 1, f"a table of {len(table.rows)} rows",
            "two sizes among its even rows are needed for a line", "Measure more sizes")  # fmt: skip
    whole(most_lines, "most_lines", minimum=1)
    sizes = np.array([row.size_bytes for row in rows], dtype=np.float64)
    times = np.array([row.time_s for row in rows], dtype=np.float64)
    fastest = factor * float((sizes / times).max())
    if link_bytes_per_s is None:
        slope = _envelope(sizes, times, 0.0, min(most_lines, MOST_LINES))[-1][1]
        link = max(factor / slope, fastest) if slope > 0 else fastest
    else:
        link = number(link_bytes_per_s, "link_bytes_per_s", exclusive=True)
        require(fastest <= 1.02 * link, f"a link of {link / 1e9:g} GB/s", f"the table reaches {fastest / 1e9:.4g}",
                "Name the bandwidth of all channels together")  # fmt: skip
    fixed, latency = number(base_s, "base_s"), number(latency_s, "latency_s")
    steps = ring_steps(table.collective, nranks)
    lines = []
    found = _envelope(sizes, times, factor / link, min(most_lines, MOST_LINES))
    for index, (constant, slope) in enumerate(found, 1):
        base = min(fixed, constant)
        lines.append(Protocol(f"line {index} of {len(found)}", base, max(0.0, (constant - base) / steps - latency),
                              min(1.0, factor / link / slope)))  # fmt: skip
    return SizeModel(table.collective, nranks, link, tuple(lines), int(sizes.min()), int(sizes.max()), table.tool)


def fit_backend(*tables: Table, link_bytes_per_s: float | None = None, base_s: float = 0.0, latency_s: float = 0.0,
                launch_s: float = 0.0) -> FittedBackend:  # fmt: skip
    """A backend of an all_reduce table and, if given, one of broadcast or reduce, on the same ranks and link.

    Raises InputError without an all_reduce table, for two tables of one kind and for tables of different ranks.
    """
    kinds = [table.collective for table in tables]
    require(kinds.count("all_reduce") == 1, f"tables of {', '.join(kinds) or 'nothing'}",
            "exactly one all_reduce table is needed", "Choose one")  # fmt: skip
    chains = [table for table in tables if table.collective in ("broadcast", "reduce")]
    require(len(chains) + 1 == len(tables) and len(chains) < 2, f"tables of {', '.join(kinds)}",
            "beside all_reduce one of broadcast or reduce can be used", "Leave the others out")  # fmt: skip
    require(len({table.nranks for table in tables}) == 1, "tables of different numbers of ranks",
            "a backend is fitted on one machine", "Fit them apart")  # fmt: skip
    ring = fit_model(
        tables[kinds.index("all_reduce")], link_bytes_per_s=link_bytes_per_s, base_s=base_s, latency_s=latency_s
    )
    models = [ring]
    for table in chains:
        models.append(fit_model(table, link_bytes_per_s=ring.link_bytes_per_s, base_s=base_s, latency_s=latency_s))
    lines = ring.lines
    source = (f"fitted on every second row of {' and '.join(kinds)}, {ring.nranks} ranks, {ring.smallest_bytes} to "
              f"{ring.largest_bytes} bytes; link {ring.link_bytes_per_s / 1e9:.4g} GB/s")  # fmt: skip
    gloo = ring.tool == "gloo"
    backend = Backend(ring.tool, "ring", lines, lines, lines, models[1].lines if chains else (),
                      concurrent_collectives=2 if gloo else 1, launch_s=launch_s, blocks_host=gloo, source=source)  # fmt: skip
    return FittedBackend(backend, tuple(models))


def error_by_size_class(model: SizeModel, table: Table, *, fitted: bool = False) -> dict[str, SizeError]:
    """Errors at the odd rows, which were not fitted (or at the even ones, if fitted), by size class.

    Sizes outside the model's are a class of their own: there the model is extrapolated.
    """
    require((model.collective, model.nranks) == (table.collective, table.nranks),
            f"a model of {model.collective} on {model.nranks} ranks for a table of {table.collective} on {table.nranks}",
            "a model holds for its own collective and ranks", "Fit that table")  # fmt: skip
    errors: dict[str, list[float]] = {}
    for row in halves(table)[0 if fitted else 1]:
        inside = model.smallest_bytes <= row.size_bytes <= model.largest_bytes
        size = (
            next((name for name, most in SIZE_CLASSES.items() if row.size_bytes <= most), "above")
            if inside
            else OUTSIDE
        )
        error = model.seconds(row.size_bytes, extrapolate=True) / row.time_s - 1
        errors.setdefault(size, []).append(error)
    return {name: SizeError(len(found), median(map(abs, found)), max(found, key=abs))
            for name in (*SIZE_CLASSES, OUTSIDE) if (found := errors.get(name))}  # fmt: skip


def _ranks_and_factor(table: Table) -> tuple[int, float]:
    factor = None if table.nranks is None else bus_factor(table.collective, table.nranks)
    if table.nranks is None or table.nranks < 2 or not factor:
        ranks = "an unknown number of" if table.nranks is None else table.nranks
        raise InputError(f"a table of {table.collective} on {ranks} ranks: its bytes on the wire are not known. Name the "
                         "collective and the number of ranks (two or more).")  # fmt: skip
    return table.nranks, factor


Line = tuple[float, float]
"""Constant and slope: seconds, and seconds a byte."""


def _envelope(sizes: "Numbers", times: "Numbers", least: float, most_lines: int) -> list[Line]:
    """The lines whose lower envelope explains the rows best, from the smallest sizes to the largest; slopes >= least."""
    n = len(sizes)
    places: Sequence[int] = range(2, n - 1)
    if len(places) > MOST_CUTS:
        places = [2 + round(k * (n - 4) / (MOST_CUTS - 1)) for k in range(MOST_CUTS)]
    cache: dict[tuple[int, int], Line] = {}
    best: tuple[float, list[Line]] = (inf, [])
    for count in range(1, most_lines + 1):
        if n < 2 * count + (count > 1):
            break
        for cuts in combinations(places, count - 1):
            ends = [0, *cuts, n]
            if any(b - a < 2 for a, b in zip(ends, ends[1:])):
                continue
            lines = []
            for stretch in zip(ends, ends[1:]):
                if stretch not in cache:
                    part = slice(*stretch)
                    cache[stretch] = _line(sizes[part], times[part], least)
                lines.append(cache[stretch])
            best = min(best, (_misfit(sizes, times, lines), lines))
    return _used(sizes, best[1])


def _line(sizes: "Numbers", times: "Numbers", least: float) -> Line:
    """Constant >= 0 and slope >= least that minimise the sum of squared relative errors."""
    w, x = 1.0 / times, sizes / times
    ww, wx, xx, w1, x1 = (float(value) for value in (w @ w, w @ x, x @ x, w.sum(), x.sum()))
    candidates = [(0.0, max(least, x1 / xx)) if xx else (w1 / ww, least), (max(0.0, (w1 - least * wx) / ww), least)]
    determinant = ww * xx - wx * wx
    if determinant > 1e-12 * ww * xx:
        constant, slope = (w1 * xx - x1 * wx) / determinant, (x1 * ww - w1 * wx) / determinant
        if constant >= 0 and slope >= least:
            candidates.append((constant, slope))
    return min(candidates, key=lambda line: float((((line[0] * w + line[1] * x) - 1.0) ** 2).sum()))


def _misfit(sizes: "Numbers", times: "Numbers", lines: Sequence[Line]) -> float:
    import numpy as np

    predicted = np.min([constant + slope * sizes for constant, slope in lines], axis=0)
    return float((((predicted - times) / times) ** 2).sum())


def _used(sizes: "Numbers", lines: Sequence[Line]) -> list[Line]:
    """The lines that are the least somewhere, in the order of the sizes at which they are."""
    import numpy as np

    which = np.argmin([constant + slope * sizes for constant, slope in lines], axis=0)
    return [lines[index] for index in dict.fromkeys(int(index) for index in which)]
