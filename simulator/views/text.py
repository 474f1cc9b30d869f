"""A timeline in characters: one line a row, one letter a kind, readable in a terminal, an issue or a chat.

A column stands for a stretch of time and shows the kind that takes most of it. What loses is carried to the next
column as long as it goes on there, so work that fills a third of a stretch gets a third of its columns; and a kind that
would get none keeps the column in which it is longest. A device's compute row shows waiting as dots, other rows leave
it blank. A device that does the same as one above it, never more than a column earlier or later, is named and not
repeated. An all-reduce carries its bucket's number.

Not modelled: kinds that share a column; look at the figure or the Chrome trace.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby

from simulator.errors import require, whole
from simulator.trace import Trace
from simulator.units import time_unit
from simulator.views.notes import in_language
from simulator.views.rows import SHORTEST_S, Row, chosen_devices, device_name, row_name, rows_of, window
from simulator.views.style import STYLES, THEMES, check_language, kind_name, rgb
from simulator.views.words import columns, pad, wrap

MOST_DEVICES = 8
"""Devices that differ from all above them are drawn up to this many."""
_KEPT = 0.1
"""The part of a column that a kind must fill somewhere to be kept although another kind fills more."""

_ORDER = {kind: number for number, kind in enumerate([*STYLES, ""])}
Shares = list[dict[str, float]]
"""For each column, the part of it that each kind takes."""

_WORDS = {
    "en": {"like": "{devices} like {model}", "more": "{count} more devices not drawn", "nothing": "Nothing recorded.",
           "never": "Never finished: rank {rank} ({resource}) waits for {what}.", "bucket": "{letter}0: bucket 0",
           "unverified": "Not verified: ", "lost": "! never finished", "others": "{count} more wait."},
    "zh": {"like": "{devices}与 {model}相同", "more": "另有 {count} 张卡未画出", "nothing": "没有记录。",
           "never": "没有结束：rank {rank}（{resource}）在等 {what}。", "bucket": "{letter}0：bucket 0",
           "unverified": "未经验证：", "lost": "! 没有结束", "others": "另有 {count} 个在等。"},
}  # fmt: skip


def timeline(trace: Trace, *, width: int = 80, colour: bool = False, start_s: float | None = None,
             end_s: float | None = None, devices: Iterable[int] | None = None, language: str = "en",
             unverified: bool = True) -> str:  # fmt: skip
    """The timeline; no line is wider than `width` columns. Raises InputError on a bad width, window or device.

    `unverified`: whether the parts of the model that were never run on several GPUs are named below it.
    """
    require(whole(width, "width") >= 40, f"width {width}", "a timeline needs 40 columns", "Use 40 or more")
    words = _WORDS[check_language(language)]
    chosen = chosen_devices(trace, devices)
    start, end = window(trace, start_s, end_s)
    rows = rows_of(trace, chosen)
    if not rows or end - start < SHORTEST_S:
        return words["nothing"]
    names = {(row.device, index): row_name(row, language) for index, row in enumerate(rows)}
    first = max(columns(device_name(row.device, language)) for row in rows)
    gutter = first + 1 + max(map(columns, names.values())) + 1
    cells = width - gutter
    lines = _ruler(start, end, cells, gutter)
    drawn: dict[int, list[list[str]]] = {}
    shares_of: dict[int, list[Shares]] = {}
    alike: dict[int, list[int]] = {}
    numbered: set[str] = set()
    left = 0
    for device, group in groupby(enumerate(rows), key=lambda item: item[1].device):
        mine = list(group)
        shares = [_shares(row, start, end, cells) for _, row in mine]
        roles = [names[device, index] for index, _ in mine]
        twin = next((other for other, theirs in shares_of.items() if _alike(shares, theirs)), None)
        if twin is not None:
            alike.setdefault(twin, []).append(device)
        elif len(drawn) == MOST_DEVICES:
            left += 1
        else:
            shares_of[device] = shares
            drawn[device] = [_cells(row, share, start) for (_, row), share in zip(mine, shares)]
            for number, (role, line, (_, row)) in enumerate(zip(roles, drawn[device], mine)):
                label = pad(device_name(device, language) if number == 0 else "", first)
                letters, kinds = _numbered(row, line, start, end)
                numbered |= kinds
                text = _paint(letters, line, colour)
                lines.append(f"{label} {pad(role, gutter - first - 2)} {text}".rstrip())
    for twin, others in alike.items():
        lines += wrap(words["like"].format(devices=_listed(others, language), model=device_name(twin, language)), width)
    if left:
        lines.append(words["more"].format(count=left))
    seen = {kind for found in drawn.values() for line in found for kind in line}
    lines += _legend(seen, numbered, width, language, colour)
    lines += _notes(trace, language, width, unverified)
    return "\n".join(lines)


def table(rows: Sequence[Sequence[object]], header: Sequence[str], *, right: Iterable[int] | None = None) -> str:
    """Aligned columns under a header and a rule. Columns of numbers, or those in `right`, are right-aligned.

    Wide (CJK) characters count as two columns. Raises InputError when a row has another length than the header.
    """
    body = [[str(cell) for cell in row] for row in rows]
    for row in body:
        require(len(row) == len(header), f"a row of {len(row)} cells", f"the header has {len(header)}",
                "Give every row one cell a column")  # fmt: skip
    flush = set(right) if right is not None else {
        column for column in range(len(header)) if body and all(_numeric(row[column]) for row in body)
    }  # fmt: skip
    widths = [max(columns(line[column]) for line in [list(header), *body]) for column in range(len(header))]
    lines = [list(header), ["-" * width for width in widths], *body]
    return "\n".join(
        "  ".join(pad(cell, width, right=column in flush) for column, (cell, width) in enumerate(zip(line, widths)))
        .rstrip() for line in lines
    )  # fmt: skip


def _numeric(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "+-<≥" and any(c.isdigit() for c in cell))


def _ruler(start: float, end: float, cells: int, gutter: int) -> list[str]:
    """Two lines: numbers with the unit before them, and a mark under the first digit of each."""
    factor, unit = time_unit(end)
    numbers, marks = [" "] * cells, ["-"] * cells
    step = _nice_step((end - start) / factor, cells)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    tick = math.ceil(start / factor / step - 1e-9)
    while (column := math.floor((tick * step * factor - start) / (end - start) * cells + 0.5)) < cells:
        text = f"{tick * step:.{digits}f}"
        marks[column] = "|"
        if column + len(text) <= cells:
            numbers[column : column + len(text)] = text
        tick += 1
    return [f"{unit:>{gutter - 1}} {''.join(numbers).rstrip()}", f"{'':{gutter}}{''.join(marks)}"]


def _nice_step(span: float, cells: int) -> float:
    """The least 1, 2 or 5 times a power of ten that leaves eight columns or more between ticks."""
    least = span / max(1, cells // 8)
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * (1 - 1e-9))


def _shares(row: Row, start: float, end: float, count: int) -> Shares:
    """The part of each column that each kind takes."""
    size = (end - start) / count
    shares: Shares = [{} for _ in range(count)]
    bars = [(bar.start_s, bar.end_s, bar.kind) for bar in row.bars if bar.kind != "wait" or row.role != "compute"]
    for since, until, kind in [*bars, *((wait.start_s, wait.end_s, "wait") for wait in row.waits)]:
        since, until = max(since, start), min(until, end)
        if until <= since:
            continue
        for column in range(int((since - start) / size), min(count - 1, int((until - start) / size)) + 1):
            part = min(until, start + (column + 1) * size) - max(since, start + column * size)
            if part > 0:
                shares[column][kind] = shares[column].get(kind, 0.0) + part / size
    return shares


def _cells(row: Row, shares: Shares, start: float) -> list[str]:
    """The kind that each column shows, "" for none; "!" at the end of a row with work that never finished."""
    owed: dict[str, float] = {}
    found = []
    for share in shares:
        present = {**share, "": 1 - sum(share.values())}
        owed = {kind: owed.get(kind, 0.0) + part for kind, part in present.items() if part > 1e-9}
        shown = max(owed, key=lambda kind: (owed[kind], -_ORDER[kind]))
        owed[shown] -= 1
        found.append(shown)
    for kind in STYLES:
        longest = max(range(len(shares)), key=lambda column: shares[column].get(kind, 0.0))
        if kind != "wait" and kind not in found and shares[longest].get(kind, 0.0) >= _KEPT:
            found[longest] = kind
    if any(not bar.finished and bar.end_s > start for bar in row.bars):
        found[-1] = "!"
    return found


def _numbered(row: Row, cells: list[str], start: float, end: float) -> tuple[list[str], set[str]]:
    """Letters, with the bucket's number after the first letter of its bar; the kinds that got a number."""
    kinds: set[str] = set()
    letters = ["!" if kind == "!" else STYLES[kind].letter if kind else " " for kind in cells]
    size = (end - start) / len(cells)
    for bar in row.bars:
        if bar.bucket is None or row.role == "compute":
            continue
        first, last = math.ceil((bar.start_s - start) / size - 0.5), math.floor((bar.end_s - start) / size - 0.5)
        text = str(bar.bucket)
        inside = first >= 0 and first + len(text) <= min(last, len(cells) - 1)
        if inside and all(kind == bar.kind for kind in cells[first : first + len(text) + 1]):
            letters[first + 1 : first + 1 + len(text)] = text
            kinds.add(bar.kind)
    return letters, kinds


def _paint(letters: list[str], cells: list[str], colour: bool) -> str:
    """The row's text; in colour each run of a kind gets that kind's fill."""
    if not colour:
        return "".join(letters).rstrip()
    parts = []
    for kind, run in groupby(zip(cells, letters), key=lambda item: item[0]):
        text = "".join(letter for _, letter in run)
        parts.append(_coloured(text, kind) if kind in STYLES and kind != "wait" else text)
    return "".join(parts)


def _coloured(text: str, kind: str) -> str:
    """Ink on the kind's fill, in 24-bit colour."""
    theme = THEMES["light"]
    ink, fill = (";".join(str(round(c * 255)) for c in rgb(found)) for found in (theme.on(kind), theme.colour(kind)))
    return f"\x1b[38;2;{ink};48;2;{fill}m{text}\x1b[0m"


def _alike(mine: list[Shares], theirs: list[Shares]) -> bool:
    """Whether no kind of work is ever ahead by more than a column in any row."""
    if len(mine) != len(theirs):
        return False
    for one, other in zip(mine, theirs):
        ahead: dict[str, float] = {}
        for left, right in zip(one, other):
            for kind in {**left, **right}:
                ahead[kind] = ahead.get(kind, 0.0) + left.get(kind, 0.0) - right.get(kind, 0.0)
                if abs(ahead[kind]) > 1:
                    return False
    return True


def _listed(devices: Sequence[int], language: str) -> str:
    """`devices 1 to 7`, `device 3`, `devices 1, 3 and 5`."""
    if len(devices) == 1:
        return device_name(devices[0], language)
    ends = devices[0], devices[-1]
    if len(devices) > 2 and devices == list(range(ends[0], ends[1] + 1)):
        return f"{ends[0]} 到 {ends[1]} 号卡" if language == "zh" else f"devices {ends[0]} to {ends[1]}"
    if language == "zh":
        return "、".join(map(str, devices)) + " 号卡"
    return f"devices {', '.join(map(str, devices[:-1]))} and {devices[-1]}"


def _legend(seen: set[str], numbered: set[str], width: int, language: str, colour: bool) -> list[str]:
    """`f forward  b backward ...`, only kinds that can be seen."""
    parts = [(kind, f"{style.letter} {kind_name(kind, language)}") for kind, style in STYLES.items() if kind in seen]
    parts += [("", _WORDS[language]["bucket"].format(letter=STYLES[kind].letter)) for kind in sorted(numbered)]
    if "!" in seen:
        parts.append(("", _WORDS[language]["lost"]))
    lines: list[list[tuple[str, str]]] = [[]]
    for part in parts:
        if sum(columns(text) + 2 for _, text in [*lines[-1], part]) - 2 > width:
            lines.append([])
        lines[-1].append(part)
    return ["  ".join(_coloured(text[0], kind) + text[1:] if colour and kind not in ("", "wait") else text
                      for kind, text in line) for line in lines]  # fmt: skip


def _notes(trace: Trace, language: str, width: int, unverified: bool) -> list[str]:
    """Who never came, and what was never run."""
    lines, words = [], _WORDS[language]
    for lost in trace.waiting[:MOST_DEVICES]:
        lines += wrap(words["never"].format(rank=lost.rank, resource=lost.resource, what=lost.waits_for), width)
    if len(trace.waiting) > MOST_DEVICES:
        lines.append(words["others"].format(count=len(trace.waiting) - MOST_DEVICES))
    for note in trace.unverified if unverified else ():
        lines += wrap(words["unverified"] + in_language(note, language), width)
    return lines
