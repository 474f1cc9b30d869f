"""What lies in each device's memory over time, by category, stacked; one panel a run and device, all on one scale.

`torch.cuda.memory_allocated` is the height of the stack without the CUDA context; nvidia-smi shows the context as well.
So the context is drawn on top, hatched and apart. The line of the device's capacity is drawn where it is in sight, else
the panel says how much of it the peak takes. Bands carry their names where they are thick enough; the legend has the
rest.

Not modelled: what an allocator reserves and does not use; changes that cancel within one instant.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from simulator.errors import number, require
from simulator.trace import MEMORY_CATEGORIES, Trace
from simulator.units import byte_unit, nbytes, percent, time_unit
from simulator.views.canvas import (
    LEGEND_ROW_IN,
    MARGIN_IN,
    NORMAL,
    SMALL,
    bare,
    legend_rows,
    new_figure,
    put_legend,
    put_text,
    put_title,
    quiet_hatch,
    text_width_in,
    title_height_in,
    title_lines,
)
from simulator.views.rows import chosen_devices, device_name, last_moment, longest_moment
from simulator.views.save import drawn_language, font_families
from simulator.views.style import Theme, memory_name, theme_of

PANEL_IN, GAP_IN, ROW_IN, AXIS_IN, LEFT_IN = 1.75, 0.35, 0.62, 0.55, 0.75
_NEAR = 2.2
"""The capacity line is drawn where the capacity is at most this many times the highest peak."""

_WORDS = {
    "en": {
        "time": "time in {unit}", "peak": "peak {peak}", "of": "{part} of {capacity}",
        "capacity": "capacity {capacity}", "unknown": "memory not recorded",
        "context": "{name} (only nvidia-smi shows it)",
    },
    "zh": {
        "time": "时间（{unit}）", "peak": "峰值 {peak}", "of": "占 {capacity} 的 {part}",
        "capacity": "显存容量 {capacity}", "unknown": "没有记录显存", "context": "{name}（只有 nvidia-smi 显示）",
    },
}  # fmt: skip


class Steps(NamedTuple):
    """Bytes of each category from each moment on, until the next."""

    times_s: NDArray[np.float64]
    held: dict[str, NDArray[np.int64]]

    def total(self, *, context: bool = True) -> NDArray[np.int64]:
        """Bytes of all categories together."""
        found = [held for category, held in self.held.items() if context or category != "context"]
        return sum(found, start=np.zeros(len(self.times_s), dtype=np.int64))


def memory_steps(trace: Trace, device: int) -> Steps:
    """The device's memory as step functions, from 0 to the end of the trace."""
    mine = [change for change in trace.memory if change.device == device]
    moments = sorted({0.0, last_moment(trace), *(change.time_s for change in mine)})
    index = {moment: number for number, moment in enumerate(moments)}
    order = [*MEMORY_CATEGORIES, *sorted({c.category for c in mine} - set(MEMORY_CATEGORIES))]
    held = {category: np.zeros(len(moments), dtype=np.int64) for category in order}
    for change in mine:
        held[change.category][index[change.time_s]] += change.nbytes
    return Steps(np.array(moments), {category: np.cumsum(steps) for category, steps in held.items() if steps.any()})


def memory_figure(traces: Sequence[tuple[str, Trace]], *, title: str = "", theme: str = "light", language: str = "en",
                  devices: Iterable[int] | None = None, capacity_bytes: float | None = None,
                  width_in: float = 11.0) -> Figure:  # fmt: skip
    """A row of panels for each run, a column for each device (0 and 1, if not said otherwise).

    `capacity_bytes` of a device, 0 or None if not known. Raises InputError without a run, and for an unknown device,
    theme or language.
    """
    require(bool(traces), "no trace", "a memory figure needs one", "Give [(label, trace)]")
    look, language = theme_of(theme), drawn_language(language)
    capacity = 0.0 if capacity_bytes is None else number(capacity_bytes, "capacity_bytes")
    asked = None if devices is None else tuple(devices)
    chosen = [chosen_devices(t, range(min(2, len(t.devices))) if asked is None else asked) for _, t in traces]
    steps = [[memory_steps(trace, device) for device in mine] for (_, trace), mine in zip(traces, chosen)]
    peaks = [int(found.total().max(initial=0)) for row in steps for found in row]
    highest = max(max(peaks, default=0), 1)
    if highest * _NEAR >= capacity:
        highest = max(highest, int(capacity))
    longest = longest_moment(trace for _, trace in traces)
    heading = title_lines(title, width_in)
    seen = {category for row in steps for found in row for category in found.held}
    names = [c.replace("context", "context (only nvidia-smi shows it)") for c in seen]
    legend_in = len(legend_rows(names, width_in - LEFT_IN - MARGIN_IN)) * LEGEND_ROW_IN
    top, bottom = title_height_in(heading) + 0.05, AXIS_IN + legend_in + MARGIN_IN / 2
    height_in = top + bottom + len(traces) * (PANEL_IN + ROW_IN)
    figure = new_figure(width_in, height_in, look)
    put_title(figure, heading, look)
    columns = max(map(len, chosen))
    panel_in = (width_in - LEFT_IN - MARGIN_IN - (columns - 1) * GAP_IN) / max(columns, 1)
    painter = _Painter(look, language, longest, highest, capacity, panel_in)
    for row, (label, trace) in enumerate(traces):
        for column, (device, found) in enumerate(zip(chosen[row], steps[row])):
            left, low = LEFT_IN + column * (panel_in + GAP_IN), bottom + (len(traces) - 1 - row) * (PANEL_IN + ROW_IN)
            axes = figure.add_axes((left / width_in, low / height_in, panel_in / width_in, PANEL_IN / height_in))
            axes.set_gid(f"memory-{row}-{device}")
            painter.panel(axes, found if "memory" in trace.covers else None, device, first=column == 0,
                          last=row == len(traces) - 1, label=label if column == 0 else "")  # fmt: skip
    put_legend(figure, painter.legend(), look, LEFT_IN, bottom - AXIS_IN)
    return figure


class _Painter:
    """Draws panels of one scale and remembers which bands have no name in them."""

    def __init__(self, theme: Theme, language: str, longest: float, highest: int, capacity: float,
                 panel_in: float) -> None:  # fmt: skip
        self.theme, self.language, self.words = theme, language, _WORDS[language]
        self.capacity, self.panel_in, self.top = capacity, panel_in, highest * 1.12
        self.end = longest
        self.time, self.time_name = time_unit(longest)
        self.bytes, self.byte_name = byte_unit(highest)
        self.drawn: dict[str, None] = {}
        self.named: set[str] = set()

    def panel(self, axes: Axes, steps: Steps | None, device: int, *, first: bool, last: bool, label: str) -> None:
        """One device of one run."""
        bare(axes, self.theme)
        axes.set_xlim(0, self.end / self.time)
        axes.set_ylim(0, self.top / self.bytes)
        axes.locator_params(axis="y", nbins=5)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(axis="y", color=self.theme.line, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.tick_params(labelbottom=last, labelleft=first)
        if last:
            axes.set_xlabel(self.words["time"].format(unit=self.time_name), fontsize=NORMAL, color=self.theme.muted,
                            fontfamily=font_families(), loc="left")  # fmt: skip
        if first:
            axes.set_ylabel(self.byte_name, fontsize=NORMAL, color=self.theme.muted)
        name = device_name(device, self.language)
        if steps is None or not steps.held:
            put_text(axes, 0.5, 0.5, self.words["unknown"], colour=self.theme.muted, ha="center",
                     transform=axes.transAxes)  # fmt: skip
        else:
            self._bands(axes, steps)
            name += "   " + self._peak(steps)
            self._capacity(axes, first)
        put_text(axes, 0, 1.04, name, colour=self.theme.text, transform=axes.transAxes)
        if label:
            put_text(axes, 0, 1.17, label, size=NORMAL + 1.5, colour=self.theme.text, fontweight="bold",
                     transform=axes.transAxes)  # fmt: skip

    def _peak(self, steps: Steps) -> str:
        """The highest moment without context, and what it and the context take of the capacity."""
        text = self.words["peak"].format(peak=nbytes(int(steps.total(context=False).max())))
        if self.capacity:
            part = percent(int(steps.total().max()) / self.capacity)
            text += "   " + self.words["of"].format(part=part, capacity=nbytes(self.capacity))
        return text

    def _bands(self, axes: Axes, steps: Steps) -> None:
        x = steps.times_s / self.time
        low = np.zeros(len(x))
        for category, held in steps.held.items():
            high = low + held / self.bytes
            apart = category == "context"
            band = axes.fill_between(x, low, high, step="post", gid=category, **self.entry(category)[1])
            quiet_hatch(band)
            if apart:
                axes.step(x, low, where="post", color=self.theme.text, linewidth=0.8)
            self.drawn[category] = None
            self._name(axes, category, x, low, high)
            low = high

    def _name(self, axes: Axes, category: str, x: NDArray[np.float64], low: NDArray[np.float64],
              high: NDArray[np.float64]) -> None:  # fmt: skip
        """The band's name where a box of its size fits inside, if there is such a place."""
        text = memory_name(category, self.language) if category in MEMORY_CATEGORIES else category
        wide = (text_width_in(text, SMALL) + 0.08) / self.panel_in * self.end / self.time
        tall = (SMALL * 1.3 / 72) / PANEL_IN * self.top / self.bytes
        best: tuple[float, float, float] | None = None
        for start in np.flatnonzero(high - low >= tall):
            stop = start
            floor, ceiling = low[start], high[start]
            while stop + 1 < len(x) and x[stop] < x[start] + wide:
                floor, ceiling = max(floor, low[stop]), min(ceiling, high[stop])
                stop += 1
            if x[stop] >= x[start] + wide and ceiling - floor >= tall and (best is None or ceiling - floor > best[0]):
                best = ceiling - floor, x[start] + wide / 2, (ceiling + floor) / 2
        if best is not None:
            ink = self.theme.muted if category == "context" else self.theme.ink_on(self.theme.memory(category))
            plate = {"facecolor": self.theme.memory(category), "edgecolor": "none", "pad": 1.0}
            put_text(axes, best[1], best[2], text, size=SMALL, colour=ink, ha="center", va="center_baseline",
                     bbox=plate if category == "context" else None)  # fmt: skip
            self.named.add(category)

    def _capacity(self, axes: Axes, first: bool) -> None:
        if 0 < self.capacity <= self.top:
            axes.axhline(self.capacity / self.bytes, color=self.theme.text, linewidth=1.2, linestyle=(0, (4, 2)),
                         gid="capacity")  # fmt: skip
            if first:
                text = self.words["capacity"].format(capacity=nbytes(self.capacity))
                box = {"facecolor": self.theme.background, "edgecolor": "none", "pad": 1.5, "alpha": 0.8}
                put_text(axes, 0.99 * self.end / self.time, self.capacity / self.bytes, text, size=SMALL,
                         colour=self.theme.text, ha="right", va="center", bbox=box)  # fmt: skip

    def legend(self) -> list[tuple[str, dict[str, Any]]]:
        """Bands without a name in them, and what the context is."""
        order = [*MEMORY_CATEGORIES, *self.drawn]
        missing = [c for c in self.drawn if c not in self.named or c == "context"]
        return [self.entry(category) for category in sorted(missing, key=order.index)]

    def entry(self, category: str) -> tuple[str, dict[str, Any]]:
        """Name and look of a category in the legend."""
        text = memory_name(category, self.language) if category in MEMORY_CATEGORIES else category
        look = {"facecolor": self.theme.memory(category), "linewidth": 0.0, "edgecolor": self.theme.waiting}
        if category == "context":
            return self.words["context"].format(name=text), {**look, "hatch": "////"}
        return text, look
