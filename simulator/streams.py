"""In-order work on a device: starts when it stands first and waits for nothing, slows while a collective runs.

A device's compute loses a fraction of its speed while a collective runs there (the two share memory bandwidth and
multiprocessors). So a piece of work is like a flow: seconds that remain, a rate of 1 or less, and an end that moves
only when the rate does.

Not modelled: a stream's limited queue depth, kernels that run side by side on one stream, preemption.
"""

from typing import TYPE_CHECKING

from simulator.errors import number
from simulator.events import COMPUTED
from simulator.verbs import Stream, Work

if TYPE_CHECKING:
    from simulator.engine import Engine


class Streams:
    """All streams of a run."""

    __slots__ = ("communicating", "computing", "engine", "slowdown", "used")

    def __init__(self, engine: "Engine", devices: int, slowdown: float) -> None:
        self.engine = engine
        self.slowdown = slowdown
        self.communicating = [0] * devices
        self.computing: list[dict[Work, None]] = [{} for _ in range(devices)]
        self.used: dict[Stream, None] = {}

    def launch(self, work: Work, cause: int | None) -> None:
        """Put work at the end of its stream."""
        stream = work.stream
        work.after = tuple(work.after)
        for handle in work.after:
            if not handle.done:
                handle.waiters.append(work)
                work.blockers += 1
        if not stream.queue:
            self.used[stream] = None
        stream.queue.append(work)
        self.start_next(stream, cause)

    def start_next(self, stream: Stream, cause: int | None) -> None:
        """Start what stands first in the queue, if it waits for nothing and a lane is free."""
        queue, lanes = stream.queue, stream.lanes
        while queue and lanes and not queue[0].blockers:
            self._start(queue.popleft(), cause)

    def _start(self, work: Work, cause: int | None) -> None:
        engine, device = self.engine, work.stream.device
        now = engine.now
        work.lane = work.stream.lanes.pop(0)
        work.id = engine.record.next_id()
        work.start = now
        work.cause = cause
        for category, nbytes in work.allocates:
            engine.record.memory.append((now, device, category, nbytes))
        if work.program is not None:
            if self.slowdown:
                self._set_communicating(device, 1)
            engine.run_work(work, cause)
        elif self.slowdown:
            self.computing[device][work] = None
            work.remaining = number(work.seconds, f"seconds of {work.name!r}")
            work.since = now
            work.rate = 1.0 - self.slowdown if self.communicating[device] else 1.0
            engine.push(now + work.remaining / work.rate, COMPUTED, work, work.version)
        else:
            engine.push(now + number(work.seconds, f"seconds of {work.name!r}"), COMPUTED, work, 0)

    def _set_communicating(self, device: int, change: int) -> None:
        """A collective starts or ends: the ends of what computes on its device move."""
        before = self.communicating[device] > 0
        self.communicating[device] += change
        if (self.communicating[device] > 0) != before:
            now = self.engine.now
            for work in self.computing[device]:
                work.remaining = max(0.0, work.remaining - work.rate * (now - work.since))
                work.since = now
                work.rate = 1.0 if before else 1.0 - self.slowdown
                work.version += 1
                self.engine.push(now + work.remaining / work.rate, COMPUTED, work, work.version)

    def finish(self, work: Work, cause: int | None) -> None:
        """`cause` is the work itself, or the last transfer of its program: who waits follows that."""
        engine, stream = self.engine, work.stream
        stream.lanes.append(work.lane)
        stream.lanes.sort()
        for category, nbytes in work.frees:
            engine.record.memory.append((engine.now, stream.device, category, -nbytes))
        if self.slowdown:
            if work.program is not None:
                self._set_communicating(stream.device, -1)
            else:
                del self.computing[stream.device][work]
        engine.record.work(work, engine.now)
        engine.done(work, cause)
        self.start_next(stream, cause)

    def stuck(self) -> list[Work]:
        """At the end of a run: what stands first in its stream and will never start."""
        return [stream.queue[0] for stream in self.used if stream.queue]
