"""The bars of a timeline figure: one path for all bars of a kind in a row, and names where there is room for them.

Ten thousand spans draw in a fraction of a second this way, and an SVG of them stays small. A bar much narrower than a
pixel takes its part of the pixel's colour and no more.

Not modelled: nothing; see `simulator.views.gantt`.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from simulator.trace import COMMUNICATION
from simulator.views.canvas import PIXELS_PER_INCH, SMALL, pattern, put_text, quiet_hatch, text_width_in
from simulator.views.rows import Bar, Row
from simulator.views.style import STYLES, Theme, kind_name

_SEEN_PX = 0.5
"""A bar of this width can be made out."""
_JOINED_PX = 14.0
"""Bars of one kind less than this apart may share a name."""

WORDS = {
    "en": {
        "time": "time in {unit}", "rest": "{devices} not drawn", "for": "waits for {kind}",
        "nothing": "nothing recorded", "lost": "never finished", "bucket": "{kind} (number: bucket)",
        "many": "devices {first} to {last}",
        "one": "device {first}", "stuck": "Never finished: rank {rank} ({resource}) waits for {what}.",
        "unverified": "Not verified: ",
    },
    "zh": {
        "time": "时间（{unit}）", "rest": "未画出 {devices}", "for": "等待 {kind}", "nothing": "没有记录",
        "lost": "没有结束", "bucket": "{kind}（数字：bucket 编号）", "many": "{first} 到 {last} 号卡",
        "one": "{first} 号卡", "stuck": "没有结束：rank {rank}（{resource}）在等 {what}。", "unverified": "未经验证：",
    },
}  # fmt: skip


class Line(NamedTuple):
    """A row with its place, in pixels from the top."""

    run: int
    row: Row
    top: float
    height: float


class _Stretch(NamedTuple):
    """Bars of one kind with no more than small gaps between them."""

    kind: str
    start: float
    end: float
    busy: float
    bars: int


class Painter:
    """Draws rows and remembers which kinds can be seen, and which of them a bar names."""

    def __init__(self, axes: Axes, theme: Theme, language: str, factor: float, inches_per_unit: float) -> None:
        self.axes, self.theme, self.language, self.factor = axes, theme, language, factor
        self.inches_per_unit = inches_per_unit
        self.widest: dict[str, float] = {}
        """The longest bar of each kind, in inches."""
        self.named: set[str] = set()
        self.numbered: set[str] = set()

    def row(self, line: Line) -> None:
        """Bars, waits and their names."""
        row = line.row
        lane = line.height / row.lane_count
        boxes: dict[str, list[tuple[float, float, float, float]]] = {}
        for bar, number in self._joined(row):
            boxes.setdefault(bar.kind, []).append((bar.start_s, bar.end_s, line.top + number * lane, lane))
        for wait in row.waits:
            boxes.setdefault("wait", []).append((wait.start_s, wait.end_s, line.top, line.height))
        if row.lane_count == 1:
            self._underlay(line)
        for kind in STYLES:
            if kind in boxes:
                self._boxes(boxes[kind], kind, row.role, f"{line.run}-{row.device}-{row.role}-{row.peer or ''}-{kind}")
        self._separators(line, lane)
        if row.lane_count == 1 and line.height >= 14:
            self._names(line)
        plate = {"facecolor": self.theme.background, "edgecolor": "none", "pad": 1.5}
        for bar, number in zip(row.bars, row.lanes):
            if not bar.finished:
                put_text(self.axes, bar.end_s / self.factor, line.top + (number + 0.5) * lane,
                         WORDS[self.language]["lost"] + " ", size=SMALL, colour=self.theme.text, ha="right",
                         va="center", fontweight="bold", bbox=plate, zorder=4)  # fmt: skip

    def _joined(self, row: Row) -> list[tuple[Bar, int]]:
        """Bars of one kind that touch become one: edges between them would shimmer."""
        found: list[tuple[Bar, int]] = []
        last: dict[int, int] = {}
        for bar, lane in zip(row.bars, row.lanes):
            if bar.kind == "wait" and row.role == "compute":
                continue
            index = last.get(lane)
            before = found[index][0] if index is not None else None
            if index is not None and before is not None and before.kind == bar.kind and before.end_s == bar.start_s:
                found[index] = before._replace(end_s=bar.end_s), lane
            else:
                last[lane] = len(found)
                found.append((bar, lane))
        return found

    def _boxes(self, boxes: list[tuple[float, float, float, float]], kind: str, role: str, gid: str) -> None:
        widest = max(self._inches(start, end) for start, end, _, _ in boxes)
        self.widest[kind] = max(widest, self.widest.get(kind, 0.0))
        if role == "host" and kind == "host":
            self.named.add(kind)
        drawn = self._path(boxes, zorder=1.5 if kind == "wait" else 2, gid=gid, **pattern(kind, self.theme))
        quiet_hatch(drawn)

    def _path(self, boxes: Sequence[tuple[float, float, float, float]], **look: Any) -> PathPatch:
        """All boxes (start, end, top, height) as one path."""
        spans = np.array(boxes)
        left, right = spans[:, 0] / self.factor, spans[:, 1] / self.factor
        top, bottom = spans[:, 2], spans[:, 2] + spans[:, 3]
        corners = np.stack([left, top, right, top, right, bottom, left, bottom, left, top], axis=1).reshape(-1, 2)
        codes = np.tile([Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY], len(boxes))
        drawn = PathPatch(Path(corners, codes), **look)
        drawn.set_snap(False)  # snapping would blow a bar of a tenth of a pixel up to a whole one, or drop it
        self.axes.add_artist(drawn)
        return drawn

    def _underlay(self, line: Line) -> None:
        """A box under each stretch of bars less than a pixel apart, lest the background shimmer through their edges."""
        boxes: dict[str, list[tuple[float, float, float, float]]] = {}
        for stretch in self._stretches(line.row, near_px=1.0, buckets=True):
            if stretch.bars > 1:
                boxes.setdefault(stretch.kind, []).append((stretch.start, stretch.end, line.top, line.height))
        for kind, found in boxes.items():
            self._path(found, facecolor=self.theme.colour(kind), linewidth=0, zorder=1.2)

    def _separators(self, line: Line, lane: float) -> None:
        """Thin gaps between collectives and pieces, each of which is an event of its own."""
        marks = [
            [(bar.start_s / self.factor, line.top + (number + part) * lane) for part in (0, 1)]
            for bar, number in zip(line.row.bars, line.row.lanes)
            if bar.kind in COMMUNICATION and self._inches(bar.start_s, bar.end_s) > 0.04
        ]
        if marks:
            self.axes.add_collection(LineCollection(marks, colors=self.theme.background, linewidths=0.8, zorder=2.5),
                                     autolim=False)  # fmt: skip

    def _inches(self, start_s: float, end_s: float) -> float:
        return (end_s - start_s) / self.factor * self.inches_per_unit

    def _names(self, line: Line) -> None:
        """The name of each stretch of one kind, where it fits; numbers on buckets; what a long wait is for."""
        for bar in line.row.bars:
            if bar.bucket is not None and line.row.role != "compute":
                name = f"{kind_name(bar.kind, self.language)} {bar.bucket}"
                if self._write(line, bar.start_s, bar.end_s, name, bar.kind):
                    self.named.add(bar.kind)
                elif self._write(line, bar.start_s, bar.end_s, str(bar.bucket), bar.kind):
                    self.numbered.add(bar.kind)
        for kind, start, end, busy, _ in self._stretches(line.row):
            sparse = busy < 0.95 * (end - start)
            if self._write(line, start, end, kind_name(kind, self.language), kind, boxed=sparse):
                self.named.add(kind)
        for wait in line.row.waits:
            plain = kind_name("wait", self.language)
            longer = [] if wait.kind is None else [
                WORDS[self.language]["for"].format(kind=kind_name(wait.kind, self.language))
            ]  # fmt: skip
            if any(self._write(line, wait.start_s, wait.end_s, text, "wait") for text in (*longer, plain)):
                self.named.add("wait")

    def _stretches(self, row: Row, near_px: float = _JOINED_PX, *, buckets: bool = False) -> list[_Stretch]:
        """Where one kind fills most of the time, small gaps and other kinds between its bars included."""
        near = near_px / PIXELS_PER_INCH
        current: dict[str, _Stretch] = {}
        found: list[_Stretch] = []
        for bar in row.bars:
            if bar.kind == "wait" or (bar.bucket is not None and row.role != "compute" and not buckets):
                continue
            fresh = _Stretch(bar.kind, bar.start_s, bar.start_s, 0.0, 0)
            now = current.get(bar.kind, fresh)
            if self._inches(now.end, bar.start_s) >= near:
                found.append(now)
                now = fresh
            busy = now.busy + bar.end_s - bar.start_s
            current[bar.kind] = now._replace(end=bar.end_s, busy=busy, bars=now.bars + 1)
        found += current.values()
        return [stretch for stretch in found if stretch.busy > 0.5 * (stretch.end - stretch.start)]

    def _write(self, line: Line, start: float, end: float, text: str, kind: str, *, boxed: bool = False) -> bool:
        """Text in the middle of a stretch of time, if that is long enough. Whether it was."""
        if self._inches(start, end) < text_width_in(text, SMALL) + 0.06:
            return False
        colour = self.theme.muted if kind == "wait" else self.theme.on(kind)
        plate = {"facecolor": self.theme.colour(kind), "edgecolor": "none", "pad": 1.0}
        put_text(self.axes, (start + end) / 2 / self.factor, line.top + line.height / 2, text, size=SMALL,
                 colour=colour, ha="center", va="center_baseline", zorder=4,
                 bbox=plate if STYLES[kind].hatch or boxed else None)  # fmt: skip
        return True

    def legend(self) -> list[tuple[str, dict[str, Any]]]:
        """Names and looks of the kinds that can be seen and that no bar names."""
        entries = []
        for kind in STYLES:
            if self.widest.get(kind, 0.0) * PIXELS_PER_INCH >= _SEEN_PX and kind not in self.named:
                name = kind_name(kind, self.language)
                text = WORDS[self.language]["bucket"].format(kind=name) if kind in self.numbered else name
                entries.append((text, pattern(kind, self.theme)))
        return entries
