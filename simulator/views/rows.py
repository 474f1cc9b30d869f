"""From spans to rows: what every timeline draws, in one order, each span in exactly one row.

A device has up to three rows: its host threads, its compute, its communication. Streams and threads of a device that
play one part share its row (they are drawn beside each other where they run at once). DataParallel's Python threads
belong to one process and share one lock, so they are one row, of that process's first device. A trace of nothing but
transfers has a row for each pair of devices instead.

Waiting is what is left of a compute row: the time in which the device computes nothing and moves nothing itself. What
ended a wait is the cause of the work after it, so a wait says what it was for.

Not modelled: how busy a device is while it computes.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from simulator.errors import InputError, require
from simulator.intervals import difference, union
from simulator.trace import COMMUNICATION, Span, Trace, Transfer

SHORTEST_S = 1e-12
"""A picture of less time than this shows nothing."""
ROLES = ("host", "compute", "communication", "link")


class Bar(NamedTuple):
    """One span as a timeline draws it. Never finished: it lasts to the end of the picture."""

    start_s: float
    end_s: float
    kind: str
    bucket: int | None
    name: str
    finished: bool


class Wait(NamedTuple):
    """A gap in a compute row; `kind` is what its end waited for, if the trace tells."""

    start_s: float
    end_s: float
    kind: str | None


@dataclass(frozen=True)
class Row:
    """One line of a timeline: bars in the order of their start, each in a lane so that none covers another."""

    device: int
    role: str
    resources: tuple[str, ...]
    bars: tuple[Bar, ...]
    lanes: tuple[int, ...]
    waits: tuple[Wait, ...] = ()
    peer: int | None = None
    """For a row of transfers: where they go."""

    @property
    def lane_count(self) -> int:
        """How many bars run at once at most."""
        return max(self.lanes, default=0) + 1


def last_moment(trace: Trace) -> float:
    """The end of the picture: the trace's end, or the last end of anything in it."""
    ends = [span.end_s for span in trace.spans if span.end_s is not None]
    ends += [transfer.end_s for transfer in trace.transfers if transfer.end_s is not None]
    return max([trace.end_s, *ends, *(span.start_s for span in trace.spans)], default=0.0)


def longest_moment(traces: Iterable[Trace]) -> float:
    """The end of the axis that all of them share; a microsecond if nothing takes time."""
    longest = max(map(last_moment, traces), default=0.0)
    return longest if longest >= SHORTEST_S else 1e-6


def chosen_devices(trace: Trace, devices: Iterable[int] | None) -> tuple[int, ...]:
    """The devices asked for, or all. Raises InputError for one that the trace does not have."""
    if devices is None:
        return tuple(range(len(trace.devices)))
    found = tuple(dict.fromkeys(devices))
    for device in found:
        require(device in range(len(trace.devices)), f"device {device!r}",
                f"the trace has {len(trace.devices)} devices", f"Use 0 to {len(trace.devices) - 1}")  # fmt: skip
    return found


def window(trace: Trace, start_s: float | None, end_s: float | None) -> tuple[float, float]:
    """From when to when to draw. Raises InputError when that is empty or no number."""
    start = 0.0 if start_s is None else float(start_s)
    end = last_moment(trace) if end_s is None else float(end_s)
    if not (math.isfinite(start) and math.isfinite(end)) or (start >= end and (start_s, end_s) != (None, None)):
        raise InputError(f"time window {start:g} s to {end:g} s: it must be finite, and its start before its end. "
                         f"The trace lasts {last_moment(trace):g} s.")  # fmt: skip
    return start, end


def role_of(resource: str, kinds: Iterable[str]) -> str:
    """What a resource does: by its name where it is one of ours, else by the work on it."""
    for role in ("compute", "communication"):
        if resource.startswith(role):
            return role
    found = set(kinds) - {"wait"}
    if found <= {"host"}:
        return "host"
    return "communication" if found <= COMMUNICATION else "compute"


def rows_of(trace: Trace, devices: Iterable[int] | None = None) -> tuple[Row, ...]:
    """All rows of the devices, device by device."""
    chosen = chosen_devices(trace, devices)
    end = last_moment(trace)
    if not trace.spans:
        return _transfer_rows(trace, chosen)
    kinds: dict[tuple[int, str], set[str]] = {}
    first: dict[int, int] = {}
    for span in trace.spans:
        kinds.setdefault((span.device, span.resource), set()).add(span.kind)
        first[span.rank] = min(span.device, first.get(span.rank, span.device))
    roles = {key: role_of(key[1], found) for key, found in kinds.items()}
    gathered: dict[tuple[int, str], list[Span]] = {(device, "compute"): [] for device in chosen}
    for span in trace.spans:
        role = roles[span.device, span.resource]
        device = first[span.rank] if role == "host" and span.resource.startswith("python") else span.device
        gathered.setdefault((device, role), []).append(span)
    order = {role: number for number, role in enumerate(ROLES)}
    place = {device: number for number, device in enumerate(chosen)}
    wanted = sorted((key for key in gathered if key[0] in place), key=lambda key: (place[key[0]], order[key[1]]))
    return tuple(_row(trace, device, role, gathered[device, role], end) for device, role in wanted)


def _row(trace: Trace, device: int, role: str, spans: Sequence[Span], end: float) -> Row:
    bars = tuple(
        Bar(span.start_s, end if span.end_s is None else span.end_s, span.kind, span.bucket, span.name,
            span.end_s is not None)
        for span in spans if span.end_s is None or span.end_s > span.start_s
    )  # fmt: skip
    row = Row(device, role, tuple(dict.fromkeys(span.resource for span in spans)), bars, lanes(bars))
    return replace(row, waits=tuple(_waits(trace, row, spans, end))) if role == "compute" else row


def lanes(bars: Sequence[Bar]) -> tuple[int, ...]:
    """The first lane that is free when a bar starts. Bars come in the order of their start."""
    free: list[float] = []
    found = []
    for bar in bars:
        lane = next((number for number, until in enumerate(free) if until <= bar.start_s), len(free))
        if lane == len(free):
            free.append(0.0)
        free[lane] = bar.end_s
        found.append(lane)
    return tuple(found)


def _waits(trace: Trace, row: Row, spans: Sequence[Span], end: float) -> Iterator[Wait]:
    """The gaps between the bars, each with the kind of what ended it. Spans of kind "wait" are gaps too."""
    busy = [(bar.start_s, bar.end_s) for bar in row.bars if bar.kind != "wait"]
    starts: dict[float, Span] = {}
    for span in spans:
        if span.kind != "wait":
            starts.setdefault(span.start_s, span)
    for start, stop in difference([(0.0, end)], union(busy)):
        yield Wait(start, stop, _awaited(trace, starts.get(stop)))


def _awaited(trace: Trace, span: Span | None) -> str | None:
    """The kind of what let the span start, looking through spans that took no time."""
    cause = None if span is None else span.cause
    while cause is not None:
        found: Span | Transfer | None = trace.by_id.get(cause)
        if found is None:
            return None
        if isinstance(found, Transfer) or found.end_s is None or found.end_s > found.start_s:
            return found.kind
        cause = found.cause
    return None


def _transfer_rows(trace: Trace, devices: Sequence[int]) -> tuple[Row, ...]:
    """One row for each pair of devices between which something moved."""
    end = last_moment(trace)
    pairs: dict[tuple[int, int], list[Bar]] = {}
    for transfer in sorted(trace.transfers, key=lambda t: (t.start_s, t.id)):
        stop = end if transfer.end_s is None else transfer.end_s
        if stop > transfer.start_s and (transfer.source in devices or transfer.target in devices):
            name = transfer.kind if transfer.chunk is None else f"{transfer.kind} chunk {transfer.chunk}"
            pairs.setdefault((transfer.source, transfer.target), []).append(
                Bar(transfer.start_s, stop, transfer.kind, None, name, transfer.end_s is not None)
            )
    return tuple(Row(source, "link", (f"{source} -> {target}",), tuple(bars), lanes(bars), peer=target)
                 for (source, target), bars in sorted(pairs.items()))  # fmt: skip


def busy_seconds(rows: Iterable[Row]) -> dict[str, float]:
    """Seconds of bars by kind, waiting included: what a timeline of these rows shows."""
    found: dict[str, float] = {}
    for row in rows:
        for bar in row.bars:
            if bar.kind != "wait" or row.role != "compute":
                found[bar.kind] = found.get(bar.kind, 0.0) + bar.end_s - bar.start_s
        if row.waits:
            found["wait"] = found.get("wait", 0.0) + sum(wait.end_s - wait.start_s for wait in row.waits)
    return found


_ROLE_NAMES = {
    "host": {"en": "host", "zh": "主机线程"},
    "compute": {"en": "compute", "zh": "计算"},
    "communication": {"en": "comm", "zh": "通信"},
    "python": {"en": "Python", "zh": "Python 线程"},
    "autograd": {"en": "autograd", "zh": "autograd 线程"},
}


def row_name(row: Row, language: str = "en") -> str:
    """What stands before the row."""
    if row.role == "link":
        return f"-> {row.peer}"
    for owner in ("python", "autograd"):
        if row.role == "host" and row.resources and row.resources[0].startswith(owner):
            return _ROLE_NAMES[owner][language]
    return _ROLE_NAMES[row.role][language]


def device_name(device: int, language: str = "en") -> str:
    """`device 0`, or 0 号卡; -1 is host memory."""
    if device < 0:
        return "主机" if language == "zh" else "host"
    return f"{device} 号卡" if language == "zh" else f"device {device}"
