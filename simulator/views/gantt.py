"""Several runs above each other on one time axis: who works when, who waits, and for what.

Every device has its rows (host threads, compute, communication), every kind of work its colour and pattern, and a
compute row shows waiting in a quiet hatch with what it waits for. Bars carry their names where there is room, and
all-reduces their bucket's number; only kinds that no bar names stand in the legend. Above four devices the first two
and the last are drawn, and the figure says so.

Not modelled: nothing; bars of one kind that touch are drawn as one.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from simulator.errors import require
from simulator.trace import Trace
from simulator.units import seconds, time_unit
from simulator.views.bars import WORDS, Line, Painter
from simulator.views.canvas import (
    LEGEND_ROW_IN,
    MARGIN_IN,
    NORMAL,
    PIXELS_PER_INCH,
    SMALL,
    bare,
    legend_rows,
    new_figure,
    note_lines,
    notes_height_in,
    put_legend,
    put_notes,
    put_text,
    put_title,
    title_height_in,
    title_lines,
)
from simulator.views.notes import in_language
from simulator.views.rows import chosen_devices, device_name, last_moment, longest_moment, row_name, rows_of
from simulator.views.save import drawn_language, font_families
from simulator.views.style import Theme, kind_name, theme_of

MOST_DEVICES = 4
LABELS_IN = 1.7
RIGHT_IN = 0.75
HEIGHTS = {"host": 12.0, "compute": 24.0, "communication": 24.0, "link": 14.0}
ROW_GAP, DEVICE_GAP, HEADING, RUN_GAP, AXIS_IN = 2.0, 9.0, 26.0, 16.0, 0.5


class _Place(NamedTuple):
    """Where rows, headings and remarks stand, and how high the whole is."""

    lines: list[Line]
    headings: list[tuple[float, float]]
    """Top and bottom of each run."""
    names: list[tuple[float, int]]
    remarks: list[tuple[float, str]]
    height: float


def timeline_figure(traces: Sequence[tuple[str, Trace]], *, title: str = "", theme: str = "light", language: str = "en",
                    devices: Iterable[int] | None = None, width_in: float = 11.0) -> Figure:  # fmt: skip
    """All runs, each with its label, on one axis from 0 to the end of the longest.

    Raises InputError without a run, and for an unknown device, theme or language.
    """
    require(bool(traces), "no trace", "a timeline needs one", "Give [(label, trace)]")
    look, language = theme_of(theme), drawn_language(language)
    words = WORDS[language]
    place = _place([trace for _, trace in traces], devices, words)
    longest = longest_moment(trace for _, trace in traces)
    factor, unit = time_unit(longest)
    heading = title_lines(title, width_in)
    notes = note_lines(_notes(traces, language), width_in)
    legend_in = _legend_height_in(place, language, width_in - LABELS_IN - MARGIN_IN)
    top, bottom = title_height_in(heading) + 0.08, AXIS_IN + legend_in + notes_height_in(notes)
    height_in = top + bottom + place.height / PIXELS_PER_INCH
    figure = new_figure(width_in, height_in, look)
    put_title(figure, heading, look)
    plot_in = width_in - LABELS_IN - RIGHT_IN
    axes = figure.add_axes((LABELS_IN / width_in, bottom / height_in, plot_in / width_in,
                            place.height / PIXELS_PER_INCH / height_in))  # fmt: skip
    _axis(axes, longest / factor, place.height, words["time"].format(unit=unit), look)
    painter = Painter(axes, look, language, factor, plot_in / (longest / factor))
    for line in place.lines:
        painter.row(line)
    _write_names(axes, place, traces, look, language, painter)
    put_legend(figure, painter.legend(), look, LABELS_IN, bottom - AXIS_IN)
    put_notes(figure, notes, look)
    return figure


def drawn_devices(trace: Trace, devices: Iterable[int] | None = None) -> tuple[int, ...]:
    """The devices asked for, else all of up to four, else the first two and the last."""
    chosen = chosen_devices(trace, devices)
    return chosen if devices is not None or len(chosen) <= MOST_DEVICES else (*chosen[:2], chosen[-1])


def _place(traces: Sequence[Trace], devices: Iterable[int] | None, words: dict[str, str]) -> _Place:
    asked = None if devices is None else tuple(devices)
    lines: list[Line] = []
    headings, names, remarks = [], [], []
    y = 0.0
    for run, trace in enumerate(traces):
        top = y
        y += HEADING
        chosen = drawn_devices(trace, asked)
        rows = rows_of(trace, chosen)
        for number, device in enumerate(chosen):
            names.append((y, device))
            for row in (row for row in rows if row.device == device):
                height = HEIGHTS[row.role] * (1 if row.lane_count == 1 else 0.6 * row.lane_count)
                lines.append(Line(run, row, y, height))
                y += height + ROW_GAP
            y += DEVICE_GAP - ROW_GAP
            following = chosen[number + 1] if number + 1 < len(chosen) else device + 1
            if asked is None and following > device + 1:
                key = "one" if following == device + 2 else "many"
                left = words[key].format(first=device + 1, last=following - 1)
                remarks.append((y + 2, words["rest"].format(devices=left)))
                y += 14 + DEVICE_GAP
        if not rows:
            remarks.append((y, words["nothing"]))
            y += 18
        headings.append((top, y - DEVICE_GAP / 2))
        y += RUN_GAP
    return _Place(lines, headings, names, remarks, max(y - RUN_GAP, 1.0))


def _axis(axes: Axes, longest: float, height: float, label: str, theme: Theme) -> None:
    bare(axes, theme)
    axes.set_xlim(0, longest)
    axes.set_ylim(height, 0)
    axes.set_yticks([])
    axes.locator_params(axis="x", nbins=10, min_n_ticks=4)
    axes.grid(axis="x", color=theme.line, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    axes.set_xlabel(label, fontsize=NORMAL, color=theme.muted, fontfamily=font_families(), loc="left")


def _write_names(axes: Axes, place: _Place, traces: Sequence[tuple[str, Trace]], theme: Theme, language: str,
                 painter: Painter) -> None:  # fmt: skip
    """Runs, devices and rows at the left; where each run ends."""
    left = axes.get_yaxis_transform()

    def inches(value: float) -> float:
        """From the left edge of the figure, as a part of the axes' width."""
        return (value - LABELS_IN) / (painter.inches_per_unit * axes.get_xlim()[1])

    for (label, trace), (top, bottom) in zip(traces, place.headings):
        put_text(axes, inches(MARGIN_IN), top + HEADING / 2, label, size=NORMAL + 1.5, colour=theme.text, va="center",
                 fontweight="bold", transform=left)  # fmt: skip
        end = last_moment(trace)
        x = end / painter.factor
        axes.plot([x, x], [top + 5, bottom], color=theme.text, linewidth=1.0, zorder=3, clip_on=False)
        put_text(axes, x, top + HEADING / 2 - 2, f" {seconds(end)}", size=NORMAL, colour=theme.text, va="center",
                 fontweight="bold")  # fmt: skip
    for line in place.lines:
        put_text(axes, inches(LABELS_IN - 0.08), line.top + line.height / 2, row_name(line.row, language), size=SMALL,
                 colour=theme.muted, ha="right", va="center", transform=left)  # fmt: skip
    for y, device in place.names:
        first = next((line for line in place.lines if line.top == y), None)
        if first is not None:
            put_text(axes, inches(MARGIN_IN), y + first.height / 2, device_name(device, language), size=NORMAL,
                     colour=theme.text, va="center", transform=left)  # fmt: skip
    for y, remark in place.remarks:
        put_text(axes, inches(MARGIN_IN), y + 6, remark, size=SMALL, colour=theme.muted, va="center", transform=left)


def _legend_height_in(place: _Place, language: str, width_in: float) -> float:
    """Room for a legend of every kind that is drawn; most will have their name in a bar."""
    kinds = {bar.kind for line in place.lines for bar in line.row.bars} | {"wait"}
    return len(legend_rows([kind_name(kind, language) for kind in kinds], width_in)) * LEGEND_ROW_IN


def _notes(traces: Sequence[tuple[str, Trace]], language: str) -> list[str]:
    """Who never came, and what was never run."""
    words = WORDS[language]
    stuck = [words["stuck"].format(rank=lost.rank, resource=lost.resource, what=lost.waits_for)
             for _, trace in traces for lost in trace.waiting[:MOST_DEVICES]]  # fmt: skip
    unverified = dict.fromkeys(note for _, trace in traces for note in trace.unverified)
    return stuck + [words["unverified"] + in_language(note, language) for note in unverified]
