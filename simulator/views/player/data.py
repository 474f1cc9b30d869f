"""Traces as the bytes that the drawing in the browser reads: columns of whole nanoseconds, and every word it shows.

One entry of `what` is a name, a kind, a torch function, bytes and a bucket; thousands of spans share a few hundred of
them. A lane lists, for its spans in time order, the gap before each (`s`), its length (`d`), its entry (`w`) and its
cause (`c`): how many spans further up in the panel, over all of its lanes, the one stands that let it start; 0 is none.
Spans of no length are left out, and a cause that is one of them is replaced by its own. Where spans of a lane
overlap, as two collectives of gloo do, the lane is repeated.

What one Python process runs under its GIL is one lane (`python`), whatever device it launches for: that it is one, and
full, is the lesson. All other host threads of a device never run at the same time and share its `host` lane.

Not modelled: transfers link by link; they stand behind the spans of their collectives.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.trace import KINDS, MEMORY_CATEGORIES, Span, Trace, Transfer
from simulator.views.style import MEMORY_STYLES, STYLES, THEMES, kind_name, memory_name, palette

HERE = Path(__file__).parent
SCRIPTS = ("trace.js", "theme.js", "paint.js", "memory.js", "layout.js", "choice.js", "pointer.js", "timeline.js")
NS = 1e9
_ID, _SPAN, _CAUSE = (Transfer._fields.index(name) for name in ("id", "span", "cause"))
ROLES = ("python", "host", "compute", "communication")


@dataclass(frozen=True, eq=False)
class Panel:
    """One run to draw."""

    key: str
    title: str
    trace: Trace
    group: str = ""
    """A heading above; neighbours with the same one share it."""
    spoken: str = ""
    """What the moment's sentence calls the run; empty is the title."""
    mark: str = ""
    """A caveat beside the title."""
    result: str = ""
    """What stands beside the title once the run is over."""
    factor: str = ""
    """The one number of the run, large."""
    alone_s: float | None = None
    """One device's own step, drawn as a mark."""
    memory_limits: Sequence[int] = ()
    """Bytes of each device's memory; 0 is not known."""


@dataclass(frozen=True)
class Look:
    """How the drawing begins."""

    shown: tuple[int, ...] = (0, 1, -1)
    """Devices whose lanes are open; negative ones count from the end."""
    roles: tuple[str, ...] = ROLES
    """Lanes that are drawn."""
    memory: bool = True
    autoplay: bool = False
    """Play once, from the start, when a run is seen for the first time (never against a wish for less motion)."""


def script() -> str:
    """The one JavaScript module of the drawing."""
    return "\n".join((HERE / name).read_text(encoding="utf-8") for name in SCRIPTS)


def style_sheet() -> str:
    """Its CSS."""
    return (HERE / "timeline.css").read_text(encoding="utf-8")


def timeline_data(panels: Sequence[Panel], *, language: str, words: Mapping[str, str], look: Look = Look(),
                  rename: Callable[[str], str] = str) -> bytes:  # fmt: skip
    """The JSON that `timeline.js` reads. `words` are its texts; `rename` gives a span's name in the language."""
    table = _Table(rename)
    drawn = [_panel(panel, table) for panel in panels]
    runs = _json({"kinds": KINDS, "categories": MEMORY_CATEGORIES, "what": table.columns(), "panels": drawn})
    head = _json({
        "language": language, "words": dict(words), "palette": palette_data(language), "same": _digest(runs),
        "look": {"shown": look.shown, "roles": look.roles, "memory": look.memory, "autoplay": look.autoplay},
    })  # fmt: skip
    body = f"{head[1:-1]},{runs[1:]}"
    return f'{{"v":"{_digest(body)}",{body}'.encode()


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def palette_data(language: str) -> dict[str, Any]:
    """Colours of both themes and names of kinds and memory categories, in the order of `KINDS` and the categories."""
    both = {name: palette(name) for name in THEMES}
    colours = ("text", "muted", "line", "waiting", "background")
    return {
        "kinds": [{"name": kind_name(kind, language), "letter": both["light"][kind]["letter"],
                   **{name: {key: both[name][kind][key] for key in ("fill", "ink")} for name in THEMES}}
                  for kind in KINDS],
        "categories": [{"name": memory_name(category, language), "kind": KINDS.index(MEMORY_STYLES[category].kind)}
                       for category in MEMORY_CATEGORIES],
        "order": [KINDS.index(kind) for kind in STYLES if kind != "wait"],
        "themes": {name: {key: getattr(theme, key) for key in colours} for name, theme in THEMES.items()},
    }  # fmt: skip


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(), digest_size=6).hexdigest()


class _Table:
    """The entries of `what`, each once."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.rename = rename
        self.rows: dict[tuple[str, str, str, int | None, int | None], int] = {}

    def columns(self) -> dict[str, list[Any]]:
        functions = list(dict.fromkeys(row[2] for row in self.rows))
        numbers = {name: number for number, name in enumerate(functions)}
        kinds = {kind: number for number, kind in enumerate(KINDS)}
        return {
            "name": [self.rename(row[0]) for row in self.rows],
            "kind": [kinds.get(row[1], kinds["host"]) for row in self.rows],
            "function": [numbers[row[2]] for row in self.rows],
            "functions": functions,
            "bytes": [-1 if row[3] is None else row[3] for row in self.rows],
            "bucket": [-1 if row[4] is None else row[4] for row in self.rows],
        }


def _panel(panel: Panel, table: _Table) -> dict[str, Any]:
    trace = panel.trace
    lanes = _lanes(trace)
    order = (span.id for _, _, spans in lanes for span in spans)
    number = {identity: position for position, identity in enumerate(order)}
    nearest = _causes(trace, number)
    return {
        "key": panel.key, "title": panel.title, "group": panel.group, "spoken": panel.spoken or panel.title,
        "mark": panel.mark, "result": panel.result, "factor": panel.factor,
        "alone": None if panel.alone_s is None else round(panel.alone_s * NS),
        "end": round(trace.end_s * NS), "devices": len(trace.devices),
        "lanes": [{"device": device, "role": role, **_columns(trace, spans, number, nearest, table)}
                  for device, role, spans in lanes],
        "unfinished": [f"{waiting.resource} {waiting.waits_for}" for waiting in trace.waiting],
        "memory": _memory(trace) if "memory" in trace.covers else [],
        "limits": list(panel.memory_limits),
    }  # fmt: skip


def _columns(trace: Trace, spans: Sequence[Span], number: Mapping[int, int],
             nearest: Callable[[int, int], int | None], table: _Table) -> dict[str, list[int]]:  # fmt: skip
    """Gaps, lengths, entries and causes of a lane."""
    gaps, lengths, entries, causes = [], [], [], []
    rows, now = table.rows, 0
    for span in spans:
        (identity, name, kind, _, _, _, start_s, end_s, _, bucket, _, _, nbytes, cause, function, _, _) = span
        start = round(start_s * NS)
        end = round((trace.end_s if end_s is None else end_s) * NS)
        gaps.append(start - now)
        lengths.append(end - start)
        now = end
        entries.append(rows.setdefault((name, kind, function, nbytes, bucket), len(rows)))
        found = number.get(cause) if cause is not None else None
        if found is None and cause is not None:
            found = nearest(cause, identity)
        causes.append(0 if found is None else number[identity] - found)
    return {"s": gaps, "d": lengths, "w": entries, "c": causes}


def role_of(span: Span) -> str:
    """Which lane of its device a span stands in."""
    resource = span.resource
    if resource.startswith("python"):
        return "python"
    if resource.startswith(("compute", "communication")):
        return resource.split()[0]
    return "host"


def _lanes(trace: Trace) -> list[tuple[int, str, list[Span]]]:
    found: dict[tuple[int, int], list[list[Span]]] = {}
    roles: dict[str, str] = {}
    for span in trace.spans:
        start, end = span[6], span[7]
        if end is not None and end <= start:
            continue
        role = roles.get(span[5])
        if role is None:
            role = roles[span[5]] = role_of(span)
        rows = found.setdefault((-1 if role == "python" else span[4], ROLES.index(role)), [])
        for row in rows:
            last = row[-1][7]
            if last is not None and last <= start + 1e-12:
                row.append(span)
                break
        else:
            rows.append([span])
    return [(device, ROLES[role], row) for (device, role), rows in sorted(found.items()) for row in rows]


def _causes(trace: Trace, shown: Mapping[int, int]) -> Callable[[int, int], int | None]:
    """The nearest cause that is drawn: behind a transfer stands its collective, behind a mark what it waited for."""
    marks = {span.id: span.cause for span in trace.spans if span.id not in shown}
    transfers = {row[_ID]: (row[_SPAN], row[_CAUSE]) for row in trace.raw_transfers}

    def nearest(cause: int, effect: int) -> int | None:
        wanted: int | None = cause
        while wanted is not None:
            if wanted in shown and wanted != effect:
                return shown[wanted]
            if wanted in transfers:
                owner, before = transfers[wanted]
                wanted = owner if owner is not None and owner != effect else before
            else:
                wanted = marks.get(wanted)
        return None

    return nearest


def _memory(trace: Trace) -> list[dict[str, list[int]]]:
    """For each device its changes: nanoseconds since the last one, category, bytes; one per instant and category."""
    return [_changes(changes) for changes in _by_device(trace)]


def _by_device(trace: Trace) -> list[dict[tuple[int, int], int]]:
    found: list[dict[tuple[int, int], int]] = [{} for _ in trace.devices]
    categories = {category: number for number, category in enumerate(MEMORY_CATEGORIES)}
    for change in trace.memory:
        key = round(change.time_s * NS), categories[change.category]
        found[change.device][key] = found[change.device].get(key, 0) + change.nbytes
    return found


def _changes(changes: Mapping[tuple[int, int], int]) -> dict[str, list[int]]:
    kept = [(time, category, nbytes) for (time, category), nbytes in sorted(changes.items()) if nbytes]
    times = [time for time, _, _ in kept]
    return {"t": _differences(times), "k": [row[1] for row in kept], "b": [row[2] for row in kept]}


def _differences(values: Iterable[int]) -> list[int]:
    before, found = 0, []
    for value in values:
        found.append(value - before)
        before = value
    return found
