"""The machine as a picture: devices in a row, the switches and hosts that join them above, NVSwitches below.

A link is two lines, one a direction, as wide as the root of its bandwidth. At a time `t` of a trace the part of that
width that carries bytes is filled with the colour of the work that they belong to, with an arrow for its direction, and
each device is filled with the kind of work that it does.

Not modelled: what a protocol adds to the bytes on the wire; the fill shows what is carried.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch
from numpy.typing import NDArray

from simulator.errors import number
from simulator.trace import Trace
from simulator.units import percent, rate, seconds
from simulator.views.canvas import (
    LEGEND_ROW_IN,
    MARGIN_IN,
    NORMAL,
    SMALL,
    bare,
    legend_rows,
    new_figure,
    note_lines,
    notes_height_in,
    pattern,
    put_legend,
    put_notes,
    put_text,
    put_title,
    title_height_in,
    title_lines,
)
from simulator.views.layout import Machine, device_label, node_positions
from simulator.views.rows import rows_of
from simulator.views.save import drawable, drawn_language, font_families
from simulator.views.style import STYLES, Theme, kind_name, theme_of

COLUMN_IN, LAYER_IN, BOX_IN = 0.86, 0.85, (0.7, 0.3)
WIDEST_PT, NARROWEST_PT = 7.0, 1.2
MOST_NUMBERS = 6
"""Links in use carry their utilisation as a number when they are this few."""

_WORDS = {
    "en": {"at": "t = {time}", "unknown": "Links not recorded."},
    "zh": {"at": "t = {time}", "unknown": "没有记录链路。"},
}  # fmt: skip


class _Curve(NamedTuple):
    """The line of one direction of a link."""

    link: int
    points: NDArray[np.float64]
    width_pt: float


def link_rates(trace: Trace, time_s: float) -> dict[int, dict[str, float]]:
    """For each link in use at that time the bytes per second that it carries, by kind of work."""
    found: dict[int, dict[str, float]] = {}
    for transfer in trace.transfers:
        end = math.inf if transfer.end_s is None else transfer.end_s
        if not transfer.start_s <= time_s < end:
            continue
        speed = 0.0 if transfer.end_s is None else transfer.nbytes / (end - transfer.start_s)
        for since, bytes_per_s in transfer.rates or ():
            if since <= time_s:
                speed = bytes_per_s
        for link in transfer.route:
            carried = found.setdefault(link, {})
            carried[transfer.kind] = carried.get(transfer.kind, 0.0) + speed
    return found


def topology_figure(machine: Machine, t: float | None = None, *, title: str = "", theme: str = "light",
                    language: str = "en") -> Figure:  # fmt: skip
    """The graph of a Cluster or of a Trace; of a Trace at time `t` (seconds) also what it does then.

    Raises InputError for a time that is no number and for an unknown theme or language.
    """
    look, language = theme_of(theme), drawn_language(language)
    words = _WORDS[language]
    trace = machine if isinstance(machine, Trace) and t is not None else None
    time = number(t, "t") if t is not None else 0.0
    places = node_positions(machine)
    left, right = (pick(column for column, _ in places.values()) for pick in (min, max))
    low, high = (pick(layer for _, layer in places.values()) for pick in (min, max))
    arcs = _arc_depth(machine, places)
    width_in = max(6.0, (right - left + 1) * COLUMN_IN + 2 * MARGIN_IN)
    notes = note_lines([words["unknown"]] if trace and "links" not in trace.covers else [], width_in)
    heading = title_lines(title, width_in)
    classes = sorted({(link.bandwidth_bytes_per_s, link.kind) for link in machine.links}, reverse=True)
    rows = legend_rows([f"{kind} {rate(speed)}" for speed, kind in classes], width_in - 2 * MARGIN_IN)
    top = title_height_in(heading) + 0.1
    bottom = (len(rows) + (trace is not None)) * LEGEND_ROW_IN + notes_height_in(notes)
    plot_in = (high - low) * LAYER_IN + arcs + 2 * BOX_IN[1]
    height_in = top + plot_in + bottom
    figure = new_figure(width_in, height_in, look)
    put_title(figure, heading, look)
    axes = figure.add_axes((0, bottom / height_in, 1, plot_in / height_in))
    bare(axes, look)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_xlim(0, width_in)
    axes.set_ylim(0, plot_in)
    margin = (width_in - (right - left) * COLUMN_IN) / 2
    inches = {name: (margin + (column - left) * COLUMN_IN, BOX_IN[1] + arcs + (layer - low) * LAYER_IN)
              for name, (column, layer) in places.items()}  # fmt: skip
    curves = _curves(machine, places, inches)
    used = _draw_links(axes, machine, curves, link_rates(trace, time) if trace else {}, look)
    busy = _draw_nodes(axes, machine, inches, trace, time, look)
    if t is not None:
        put_text(axes, width_in - MARGIN_IN, plot_in - 0.02, words["at"].format(time=seconds(time)), colour=look.text,
                 ha="right", va="top", fontweight="bold")  # fmt: skip
    entries = [(kind_name(kind, language), pattern(kind, look)) for kind in STYLES if kind in used | busy]
    put_legend(figure, entries, look, MARGIN_IN, bottom - len(rows) * LEGEND_ROW_IN)
    _bandwidth_legend(figure, classes, rows, look, bottom, _widest_pt(machine))
    put_notes(figure, notes, look)
    return figure


def _width_pt(bandwidth: float, most: float, widest: float) -> float:
    return max(NARROWEST_PT, widest * math.sqrt(bandwidth / most))


def _widest_pt(machine: Machine) -> float:
    """Thinner lines where many devices are joined directly: their arcs cross."""
    devices = {device_label(device) for device in machine.devices}
    direct = sum(link.source in devices and link.target in devices for link in machine.links)
    return WIDEST_PT if direct <= 8 else WIDEST_PT / 2


def _arc_depth(machine: Machine, places: Mapping[str, tuple[float, float]]) -> float:
    """Room below the devices for links that join them directly, in inches."""
    spans = [abs(places[link.source][0] - places[link.target][0]) for link in machine.links
             if places[link.source][1] == places[link.target][1] == 0]  # fmt: skip
    return _depth(max(spans)) / 2 if spans else 0.0


def _depth(columns: float) -> float:
    """How far an arc over that many columns bends, in inches."""
    return 0.3 + 0.42 * columns


def _curves(machine: Machine, places: Mapping[str, tuple[float, float]],
            inches: Mapping[str, tuple[float, float]]) -> list[_Curve]:  # fmt: skip
    """One line a link; the two directions of a cable lie beside each other."""
    classes = [link.bandwidth_bytes_per_s for link in machine.links]
    widest = _widest_pt(machine)
    steps = np.linspace(0.0, 1.0, 25)[:, None]
    found = []
    for index, link in enumerate(machine.links):
        first, second = sorted((link.source, link.target))
        a, b = np.array(inches[first]), np.array(inches[second])
        flat = places[first][1] == places[second][1]
        across = abs(places[first][0] - places[second][0])
        between = any(layer == places[first][1] and min(a[0], b[0]) < inches[name][0] < max(a[0], b[0])
                      for name, (_, layer) in places.items())  # fmt: skip
        down = flat and places[first][1] == 0
        bend = np.array([0.0, -_depth(across) if down else _depth(across) / 2 if flat and between else 0.0])
        points = a * (1 - steps) + b * steps + 2 * bend * steps * (1 - steps)
        slope = np.gradient(points, axis=0)
        normal = np.stack([-slope[:, 1], slope[:, 0]], axis=1) / np.maximum(np.hypot(*slope.T), 1e-12)[:, None]
        width = _width_pt(link.bandwidth_bytes_per_s, max(classes), widest)
        side = 1 if link.source == first else -1
        found.append(_Curve(index, points + side * normal * (width / 2 + 0.6) / 72, width))
    return found


def _draw_links(axes: Axes, machine: Machine, curves: Sequence[_Curve], rates: Mapping[int, Mapping[str, float]],
                theme: Theme) -> set[str]:  # fmt: skip
    """All links quietly, and on those in use the part that carries bytes. Returns the kinds of work on them."""
    used: set[str] = set()
    for curve in curves:
        axes.plot(*curve.points.T, color=theme.waiting, linewidth=curve.width_pt, solid_capstyle="butt", zorder=1,
                  gid=f"link-{curve.link}", alpha=0.55)  # fmt: skip
        carried = {kind: speed for kind, speed in rates.get(curve.link, {}).items() if speed > 0}
        if not carried:
            continue
        part = min(1.0, sum(carried.values()) / machine.links[curve.link].bandwidth_bytes_per_s)
        kind = max(carried, key=lambda name: (carried[name], name))
        used.add(kind)
        axes.plot(*curve.points.T, color=theme.colour(kind), linewidth=max(0.8, curve.width_pt * part), zorder=2,
                  solid_capstyle="butt", gid=f"used-{curve.link}")  # fmt: skip
        tip, tail = curve.points[13], curve.points[12]
        if machine.links[curve.link].source > machine.links[curve.link].target:
            tip, tail = tail, tip
        axes.annotate("", tip, tail, zorder=2.5, arrowprops={
            "arrowstyle": "-|>,head_width=0.22,head_length=0.4", "color": theme.on(kind), "linewidth": 0.0,
            "shrinkA": 0.0, "shrinkB": 0.0})  # fmt: skip
        if len(rates) <= MOST_NUMBERS:
            x, y = curve.points[8 if machine.links[curve.link].source < machine.links[curve.link].target else 16]
            plate = {"facecolor": theme.background, "edgecolor": "none", "pad": 0.8}
            put_text(axes, x, y, percent(round(part, 3)), size=SMALL - 1, colour=theme.text, ha="center", va="center",
                     bbox=plate, zorder=3)  # fmt: skip
    return used


def _draw_nodes(axes: Axes, machine: Machine, inches: Mapping[str, tuple[float, float]], trace: Trace | None,
                time: float, theme: Theme) -> set[str]:  # fmt: skip
    """Boxes with names; devices filled with what they do. Returns the kinds of work on them."""
    devices = [device_label(device) for device in machine.devices]
    doing = {} if trace is None else _doing(trace, time)
    for name, (x, y) in inches.items():
        kind = doing.get(devices.index(name)) if name in devices else None
        fill = theme.background if kind is None else theme.colour(kind)
        width, height = BOX_IN
        axes.add_patch(FancyBboxPatch((x - width / 2, y - height / 2), width, height, gid=f"node-{name}",
                                      boxstyle="round,pad=0,rounding_size=0.06", facecolor=fill, zorder=4,
                                      edgecolor=theme.text if name in devices else theme.muted,
                                      linewidth=1.2 if name in devices else 0.8))  # fmt: skip
        ink = theme.text if name in devices else theme.muted
        put_text(axes, x, y, name, size=SMALL, colour=ink if kind is None else theme.on(kind), ha="center",
                 va="center_baseline", zorder=5, fontweight="bold" if name in devices else "normal")  # fmt: skip
    return set(doing.values())


def _doing(trace: Trace, time: float) -> dict[int, str]:
    """What each device's compute row shows at that time, waiting left out."""
    found = {}
    for row in rows_of(trace) if trace.spans else ():
        if row.role == "compute":
            for bar in row.bars:
                if bar.start_s <= time < bar.end_s and bar.kind != "wait":
                    found[row.device] = bar.kind
    return found


def _bandwidth_legend(figure: Figure, classes: Sequence[tuple[float, str]], rows: Sequence[Sequence[int]],
                      theme: Theme, top_in: float, widest: float) -> None:  # fmt: skip
    """Which width is which bandwidth."""
    width, height = figure.get_size_inches()
    most = max((speed for speed, _ in classes), default=1.0)
    for line, row in enumerate(rows if classes else ()):
        handles = [Line2D([], [], color=theme.waiting, linewidth=_width_pt(classes[index][0], most, widest),
                          label=drawable(f"{classes[index][1]} {rate(classes[index][0])}".strip()))
                   for index in row]  # fmt: skip
        place = MARGIN_IN / width, (top_in - line * LEGEND_ROW_IN) / height
        figure.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, borderpad=0,
                      borderaxespad=0, bbox_to_anchor=place, handlelength=1.6, columnspacing=1.4,
                      labelcolor=theme.muted, prop={"family": font_families(), "size": NORMAL})  # fmt: skip
