"""The one event log: what ran where and when, what moved over which links, what memory each device held.

A simulated, a learner's, a measured and an imported run are all of this one type, and no view asks which. The
recorder appends plain tuples; a Trace gives named, immutable values when read. What a source cannot know is listed
in `covers`, so that a view says "not recorded" instead of drawing nothing.

Not modelled: nothing here computes; a Trace is data.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from simulator.errors import InputError, parse_json

KINDS = ("input", "forward", "loss", "backward", "optimizer", "all_reduce", "broadcast", "replicate", "reduce",
         "scatter", "gather", "copy", "host", "wait")  # fmt: skip
"""Kinds of work. One colour each, everywhere."""

COMMUNICATION = frozenset({"all_reduce", "broadcast", "replicate", "reduce", "scatter", "gather", "input"})
COMPUTE = frozenset({"forward", "loss", "backward", "optimizer", "copy"})

MEMORY_CATEGORIES = ("parameters", "buffers", "optimizer_state", "replicas", "gradients", "buckets", "flat_pieces",
                     "activations", "inputs", "outputs", "context")  # fmt: skip
"""`context` (CUDA context and library buffers) is what nvidia-smi shows and torch.cuda.memory_allocated does not."""


class Span(NamedTuple):
    """One piece of work on one resource. `end_s` is None when it never finished."""

    id: int
    name: str
    kind: str
    rank: int
    device: int
    resource: str
    start_s: float
    end_s: float | None
    iteration: int | None
    bucket: int | None
    group: str | None
    seq: int | None
    nbytes: int | None
    cause: int | None
    """The span or transfer whose end let this one start: the last of all that it waited for."""
    torch_function: str
    micro_step: int = 0
    wire_bytes: int | None = None


class Transfer(NamedTuple):
    """Bytes that moved from one device to another. It is issued, waits the latency, flows, and ends."""

    id: int
    kind: str
    source: int
    target: int
    route: tuple[int, ...]
    """Indices into the trace's links."""
    issue_s: float
    start_s: float
    end_s: float | None
    nbytes: int
    chunk: int | None
    contributions: int | None
    """Bit mask of the ranks whose values the chunk sums."""
    span: int | None
    """The span of the collective that it belongs to, on the sending side."""
    cause: int | None
    values: Any = None
    rates: tuple[tuple[float, float], ...] | None = None
    """(time, bytes per second) whenever the rate changed; None: one rate from start to end."""


class MemoryChange(NamedTuple):
    """Bytes that a device gained (or lost, if negative) in one category."""

    time_s: float
    device: int
    category: str
    nbytes: int


class LinkFact(NamedTuple):
    """A link as the trace knows it."""

    name: str
    source: str
    target: str
    bandwidth_bytes_per_s: float
    latency_s: float
    kind: str


@dataclass(frozen=True)
class Waiting:
    """Who still waits at the end of a run that did not finish, and for what."""

    rank: int
    resource: str
    waits_for: str


@dataclass(frozen=True)
class Trace:
    """A finished, immutable history. Build it through `simulate`, `run`, a measurement or an importer."""

    devices: tuple[str, ...]
    links: tuple[LinkFact, ...] = ()
    raw_spans: Sequence[tuple[Any, ...]] = ()
    raw_transfers: Sequence[tuple[Any, ...]] = ()
    raw_memory: Sequence[tuple[Any, ...]] = ()
    source: str = "simulated"
    """simulated, measured or imported."""
    provenance: str = ""
    waiting: tuple[Waiting, ...] = ()
    covers: frozenset[str] = frozenset({"links", "memory", "values", "ranks"})
    unverified: tuple[str, ...] = ()
    """Parts of the model that were read in source and never run on several GPUs, in words."""
    clock_offset_s: tuple[float, ...] = field(default=())
    end_s: float = 0.0

    @property
    def outcome(self) -> str:
        """finished or deadlocked."""
        return "deadlocked" if self.waiting else "finished"

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """All spans in the order of their start."""
        return tuple(map(Span._make, sorted(self.raw_spans, key=lambda span: (span[6], span[0]))))

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All transfers in the order of their issue."""
        return tuple(map(Transfer._make, sorted(self.raw_transfers, key=lambda t: (t[5], t[0]))))

    @cached_property
    def memory(self) -> tuple[MemoryChange, ...]:
        """All changes of memory in time order."""
        return tuple(map(MemoryChange._make, self.raw_memory))

    @cached_property
    def by_id(self) -> dict[int, Span | Transfer]:
        """Spans and transfers by their common id."""
        found: dict[int, Span | Transfer] = {span.id: span for span in self.spans}
        found.update((transfer.id, transfer) for transfer in self.transfers)
        return found

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trace):
            return NotImplemented
        mine = (self.devices, self.links, self.spans, self.transfers, self.memory, self.waiting, self.end_s)
        theirs = (other.devices, other.links, other.spans, other.transfers, other.memory, other.waiting, other.end_s)
        return mine == theirs

    # Equal traces are compared by all they hold; the typing stubs know no class that says so of itself.
    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> str:
        """The whole trace as JSON; floats round-trip exactly."""
        return json.dumps({
            "devices": self.devices, "links": self.links, "spans": self.spans, "transfers": self.transfers,
            "memory": self.memory, "source": self.source, "provenance": self.provenance,
            "waiting": [[w.rank, w.resource, w.waits_for] for w in self.waiting], "covers": sorted(self.covers),
            "unverified": self.unverified, "clock_offset_s": self.clock_offset_s, "end_s": self.end_s,
        }, allow_nan=False)  # fmt: skip

    @staticmethod
    def from_json(text: str) -> "Trace":
        """The trace that `to_json` wrote. Raises InputError when the text is damaged."""
        data = parse_json(text, "trace")
        try:
            transfers = [
                (*row[:4], tuple(row[4]), *row[5:13], _as_tuples(row[13]), _as_tuples(row[14]))
                for row in data["transfers"]
            ]
            trace = Trace(
                tuple(data["devices"]), tuple(LinkFact._make(link) for link in data["links"]),
                [tuple(row) for row in data["spans"]], transfers, [tuple(row) for row in data["memory"]],
                data["source"], data["provenance"], tuple(Waiting(*row) for row in data["waiting"]),
                frozenset(data["covers"]), tuple(data["unverified"]), tuple(data["clock_offset_s"]), data["end_s"],
            )  # fmt: skip
            _check(trace)
            return trace
        except (KeyError, TypeError, IndexError, ValueError) as problem:
            raise InputError(f"trace: {problem!r}. A trace file is what Trace.to_json wrote. Write it again.") from None


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def _check(trace: Trace) -> None:
    """Every row has its fields, times are in order, every device and link exists. Raises ValueError or TypeError."""
    devices, links = range(len(trace.devices)), range(len(trace.links))
    for span in trace.spans:
        if span.device not in devices or not span.start_s <= (span.start_s if span.end_s is None else span.end_s):
            raise ValueError(f"span {span.id} has no such device or ends before it starts")
    for transfer in trace.transfers:
        end = transfer.start_s if transfer.end_s is None else transfer.end_s
        ends = [device for device in (transfer.source, transfer.target) if device != -1 and device not in devices]
        if ends or any(link not in links for link in transfer.route) or not transfer.issue_s <= transfer.start_s <= end:
            raise ValueError(f"transfer {transfer.id} has no such device or link, or ends before it starts")
    if any(change.device not in devices or change.nbytes != int(change.nbytes) for change in trace.memory):
        raise ValueError("a memory change has no such device or no whole number of bytes")
    if not max((span.end_s or 0.0 for span in trace.spans), default=0.0) <= trace.end_s:
        raise ValueError("end_s is before the last span's end")
