"""What the engine writes down while it runs: plain tuples, in the order in which things ended or changed.

Not modelled: nothing; reading is the Trace's business.
"""

from collections.abc import Iterable
from itertools import count
from typing import Any

from simulator.cluster import Platform
from simulator.trace import LinkFact, Trace, Waiting
from simulator.verbs import Handle, Lock, Work


class Recorder:
    """Spans, transfers and memory changes of one run. Spans and transfers share one sequence of ids."""

    __slots__ = ("memory", "next_id", "spans", "transfers", "waiting")

    def __init__(self) -> None:
        self.spans: list[tuple[Any, ...]] = []
        self.transfers: list[tuple[Any, ...]] = []
        self.memory: list[tuple[Any, ...]] = []
        self.waiting: list[Waiting] = []
        self.next_id = count(1).__next__

    def work(self, work: Work, end: float | None) -> None:
        """A piece of work has ended, or never will."""
        stream = work.stream
        resource = stream.name if work.lane == 0 else f"{stream.name} {work.lane + 1}"
        self.spans.append((work.id, work.name, work.kind, work.rank, stream.device, resource, work.start, end,
                           work.iteration, work.bucket, work.group, work.seq, work.nbytes, work.cause,
                           work.torch_function, 0, None))  # fmt: skip

    def stuck(self, rank: int, resource: str, awaited: object) -> None:
        """At the end of a run: something still waits for a channel, a lock or handles."""
        if isinstance(awaited, tuple):
            name = ", ".join(handle.name for handle in awaited if isinstance(handle, Handle) and not handle.done)
        else:
            name = awaited.name if isinstance(awaited, Lock) else str(awaited)
        self.waiting.append(Waiting(rank, resource, name))

    def trace(self, platform: Platform, end_s: float, *, provenance: str, unverified: Iterable[str]) -> Trace:
        """The finished history."""
        devices = tuple(device.name for device in platform.devices)
        links = tuple(
            LinkFact(link.name, link.source, link.target, link.bandwidth_bytes_per_s, link.latency_s, link.kind)
            for link in platform.links
        )
        return Trace(devices, links, self.spans, self.transfers, self.memory, provenance=provenance,
                     waiting=tuple(self.waiting), unverified=tuple(unverified), end_s=end_s)  # fmt: skip
