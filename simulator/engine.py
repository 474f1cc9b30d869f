"""The discrete-event engine: programs against a clock, with three resources and no more.

A **program** is a generator that yields verbs. It runs on a host thread, or as one piece of work on a stream. A
**stream** does its work in order. A **host thread** is busy for stated times, if need be under a lock that others
want too (Python's GIL). A **link** shares its bandwidth (`simulator.network`). The engine knows no collective and no
strategy: a ring, DataParallel's step and a learner's own program are written with the same verbs.

Time is a float64 of seconds. Events of equal time are handled in the order of their making. Every span and every
transfer records its cause: the one thing, of all that it waited for, that came last. Following causes back from the
last event is the critical path, without a gap.

Not modelled: a stream's limited queue depth, kernels that run side by side on one stream, preemption.
"""

import gc
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any, Protocol

from simulator.cluster import Device, Link, Route
from simulator.network import Channel, Flow, LinkState, Network
from simulator.trace import LinkFact, Trace, Waiting

Program = Generator[tuple[Any, ...], Any, Any]

BUSY, LAUNCH, WAIT, SEND, ISEND, RECV, SEND_RECV, SPAWN, FIRE, MEMORY = range(10)
_START, _END, _RESUME, _COMPUTED = range(4)


class Platform(Protocol):
    """What the engine needs of a cluster."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """All devices."""

    @property
    def links(self) -> tuple[Link, ...]:
        """All links, in the order that a route's indices mean."""

    def route(self, source: int, target: int) -> Route:
        """The route between two devices, by index."""


class Handle:
    """Something that will be done: a piece of work, a program, a send, a signal."""

    __slots__ = ("cause", "done", "name", "waiters")

    def __init__(self, name: str = "signal") -> None:
        self.name = name
        self.done = False
        self.cause: int | None = None
        """Once done: the id of the span or transfer whose end made it so."""
        self.waiters: list[Actor | Work] = []


class Work(Handle):
    """A piece of work for a stream: `seconds` of a device's time, or a program that runs until it returns."""

    __slots__ = ("after", "allocates", "blockers", "bucket", "frees", "group", "id", "iteration", "kind", "lane",
                 "nbytes", "program", "rank", "rate", "remaining", "seconds", "seq", "since", "start", "stream",
                 "torch_function", "version")  # fmt: skip

    def __init__(self, stream: "Stream", name: str, kind: str, seconds: float = 0.0, *, program: Program | None = None,
                 after: Iterable[Handle] = (), iteration: int | None = None, bucket: int | None = None,
                 group: str | None = None, seq: int | None = None, nbytes: int | None = None,
                 allocates: Sequence[tuple[str, int]] = (), frees: Sequence[tuple[str, int]] = (),
                 torch_function: str = "", rank: int | None = None) -> None:  # fmt: skip
        super().__init__(name)
        self.stream = stream
        self.kind = kind
        self.seconds = seconds
        self.program = program
        self.after = after
        self.iteration = iteration
        self.bucket = bucket
        self.group = group
        self.seq = seq
        self.nbytes = nbytes
        self.allocates = allocates
        self.frees = frees
        self.torch_function = torch_function
        self.rank = stream.rank if rank is None else rank
        self.blockers = 0
        self.version = 0


class Stream:
    """An in-order queue of work on a device. `width` pieces may run at once (gloo's two worker threads)."""

    __slots__ = ("device", "lanes", "name", "queue", "rank", "running")

    def __init__(self, name: str, device: int, rank: int, width: int = 1) -> None:
        self.name = name
        self.device = device
        self.rank = rank
        self.queue: deque[Work] = deque()
        self.running: dict[Work, None] = {}
        self.lanes = list(range(width))


class Lock:
    """What one host thread at a time may hold; the others wait in the order in which they came."""

    __slots__ = ("holder", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: Actor | None = None
        self.waiting: deque[tuple[Actor, tuple[Any, ...]]] = deque()


class Actor(Handle):
    """A program in progress."""

    __slots__ = ("device", "pending", "program", "rank", "resource", "result", "span", "waits_for", "work")

    def __init__(self, program: Program, name: str, rank: int, device: int, resource: str) -> None:
        super().__init__(name)
        self.program = program
        self.rank = rank
        self.device = device
        self.resource = resource
        self.pending = 0
        self.result: Any = None
        self.span: int | None = None
        self.work: Work | None = None
        self.waits_for: Any = ""


class Engine:
    """One run. `start` programs, then `run`; everything that happens is recorded in the Trace."""

    def __init__(self, cluster: Platform, *, compute_slowdown: float = 0.0) -> None:
        self.cluster = cluster
        self.now = 0.0
        self._heap: list[tuple[float, int, int, Any, int]] = []
        self._serial = 0
        self._next_id = 0
        self._network = Network(tuple(link.bandwidth_bytes_per_s for link in cluster.links), self._schedule_end)
        self._spans: list[tuple[Any, ...]] = []
        self._transfers: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self._actors: list[Actor] = []
        self._slowdown = compute_slowdown
        self._communicating = [0] * len(cluster.devices)
        self._computing: list[dict[Work, None]] = [{} for _ in cluster.devices]

    # ---- building

    def channel(self, source: int, target: int, kind: str, *, bandwidth_fraction: float = 1.0,
                route: Route | None = None) -> Channel:  # fmt: skip
        """A FIFO from one device to another, by index. The fraction is what it reaches of the route.

        A route of one's own (to host memory, or only up to the switch) may be given; -1 then stands for what is
        no device.
        """
        if route is None:
            route = self.cluster.route(source, target)
        links = tuple(self._network.links[index] for index in route.links)
        return Channel(source, target, kind, links, route.links, route.latency_s, route.bandwidth_bytes_per_s,
                       bandwidth_fraction)  # fmt: skip

    def start(self, program: Program, *, name: str, rank: int, device: int, resource: str,
              at_s: float = 0.0) -> Actor:  # fmt: skip
        """Let a program begin on a host thread at a time."""
        actor = Actor(program, name, rank, device, resource)
        self._actors.append(actor)
        self._push(at_s, _RESUME, actor, 0)
        return actor

    # ---- running

    def run(self, *, provenance: str = "", unverified: tuple[str, ...] = ()) -> Trace:
        """Handle events until none is left. Garbage collection rests meanwhile: nothing here is cyclic garbage."""
        heap = self._heap
        network = self._network
        changed = network.changed
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._handle_all(heap, network, changed)
        finally:
            if collecting:
                gc.enable()
        return self._trace(provenance, unverified)

    def _handle_all(self, heap: list[tuple[float, int, int, Any, int]], network: Network,
                    changed: dict[LinkState, None]) -> None:  # fmt: skip
        while heap:
            now, _, code, item, version = heappop(heap)
            self.now = now
            if code == _START:
                network.begin(item, now)
            elif code == _END:
                if item.version == version:
                    self._arrive(item, now)
            elif code == _RESUME:
                self._step(item, item.result)
            elif item.version == version:
                self._finish_work(item, item.id)
            if changed and (not heap or heap[0][0] > now):
                network.settle(now)

    def _push(self, time: float, code: int, item: Any, version: int) -> None:
        self._serial += 1
        heappush(self._heap, (time, self._serial, code, item, version))

    def _schedule_end(self, time: float, flow: Flow) -> None:
        self._serial += 1
        heappush(self._heap, (time, self._serial, _END, flow, flow.version))

    def _id(self) -> int:
        self._next_id += 1
        return self._next_id

    # ---- programs

    def _step(self, actor: Actor, value: Any) -> None:
        """Let a program run until it has to wait."""
        send = actor.program.send
        try:
            while True:
                verb = send(value)
                code = verb[0]
                if code == SEND_RECV:
                    _, out, nbytes, chunk, contributions, values, extra, source = verb
                    self._issue(Flow(out, nbytes, chunk, contributions, values, extra, actor.span, actor), actor.cause)
                    if source.arrived:
                        actor.pending = 1
                        actor.result = source.arrived.popleft()
                    else:
                        actor.pending = 2
                        source.reader = actor
                    actor.waits_for = source
                    return
                elif code == LAUNCH:
                    self._launch(verb[1], actor.cause)
                    value = verb[1]
                elif code == BUSY:
                    self._busy(actor, verb)
                    return
                elif code == WAIT:
                    if self._wait(actor, verb[1]):
                        return
                    value = None
                elif code == RECV:
                    source = verb[1]
                    if not source.arrived:
                        actor.pending = 1
                        source.reader = actor
                        actor.waits_for = source
                        return
                    value = source.arrived.popleft()
                elif code == SEND:
                    actor.pending = 1
                    actor.result = None
                    actor.waits_for = verb[1]
                    self._issue(Flow(*verb[1:7], actor.span, actor), actor.cause)
                    return
                elif code == ISEND:
                    value = Handle("send")
                    self._issue(Flow(*verb[1:7], actor.span, value), actor.cause)
                elif code == FIRE:
                    self._done(verb[1], actor.cause)
                    value = None
                elif code == SPAWN:
                    value = self._spawn(actor, verb)
                elif code == MEMORY:
                    self._memory.append((self.now, verb[1], verb[2], verb[3]))
                    value = None
                else:
                    raise AssertionError(f"unknown verb {verb!r}")
        except StopIteration as finished:
            actor.result = finished.value
            if actor.work is not None:
                self._finish_work(actor.work, actor.cause)
            self._done(actor, actor.cause)

    def _spawn(self, parent: Actor, verb: tuple[Any, ...]) -> Actor:
        _, program, name, device, resource = verb
        child = Actor(program, name, parent.rank, device, resource)
        child.cause = parent.cause
        child.span = parent.span
        self._actors.append(child)
        self._push(self.now, _RESUME, child, 0)
        return child

    def _busy(self, actor: Actor, verb: tuple[Any, ...]) -> None:
        lock = verb[4]
        if lock is not None:
            if lock.holder is not None:
                lock.waiting.append((actor, verb))
                actor.waits_for = lock.name
                return
            lock.holder = actor
        self._occupy(actor, verb, actor.cause)

    def _occupy(self, actor: Actor, verb: tuple[Any, ...], cause: int | None) -> None:
        """The thread works for `seconds`; the end of that is an event."""
        _, seconds, name, kind, lock, iteration, torch_function = verb
        number = self._id()
        end = self.now + seconds
        self._spans.append((number, name, kind, actor.rank, actor.device, actor.resource, self.now, end, iteration,
                            None, None, None, None, cause, torch_function, 0, None))  # fmt: skip
        actor.cause = number
        actor.result = None
        if lock is None:
            self._push(end, _RESUME, actor, 0)
        else:
            release = Actor(self._release(lock, actor, number), "release", actor.rank, actor.device, actor.resource)
            self._push(end, _RESUME, release, 0)

    def _release(self, lock: Lock, actor: Actor, cause: int) -> Program:
        lock.holder = None
        if lock.waiting:
            other, verb = lock.waiting.popleft()
            lock.holder = other
            self._occupy(other, verb, cause)
        self._step(actor, None)
        return
        yield ()

    def _wait(self, actor: Actor, handles: Iterable[Handle]) -> bool:
        """Whether the actor has to wait for some of the handles."""
        actor.pending = 0
        for handle in handles:
            if not handle.done:
                handle.waiters.append(actor)
                actor.pending += 1
                actor.waits_for = handle
        actor.result = None
        return actor.pending > 0

    def _done(self, handle: Handle, cause: int | None) -> None:
        handle.done = True
        handle.cause = cause
        waiters, handle.waiters = handle.waiters, []
        for waiter in waiters:
            if isinstance(waiter, Work):
                waiter.blockers -= 1
                if not waiter.blockers:
                    self._start_next(waiter.stream, cause)
            else:
                self._wake(waiter, cause)

    def _wake(self, actor: Actor, cause: int | None) -> None:
        actor.pending -= 1
        if not actor.pending:
            actor.cause = cause
            self._step(actor, actor.result)

    # ---- transfers

    def _issue(self, flow: Flow, cause: int | None) -> None:
        self._next_id += 1
        flow.id = self._next_id
        channel = flow.channel
        if channel.busy:
            channel.queue.append(flow)
        else:
            channel.busy = True
            self._depart(flow, cause)

    def _depart(self, flow: Flow, cause: int | None) -> None:
        flow.cause = cause
        now = flow.issue = self.now
        latency = flow.channel.latency + flow.extra
        if latency:
            self._serial += 1
            heappush(self._heap, (now + latency, self._serial, _START, flow, 0))
        else:
            self._network.begin(flow, now)

    def _arrive(self, flow: Flow, now: float) -> None:
        self._network.finish(flow)
        channel = flow.channel
        number = flow.id
        rates = flow.rates
        self._transfers.append((number, channel.kind, channel.source, channel.target, channel.route, flow.issue,
                                flow.start, now, flow.nbytes, flow.chunk, flow.contributions, flow.span, flow.cause,
                                flow.values, rates and tuple(rates)))  # fmt: skip
        if channel.queue:
            self._depart(channel.queue.popleft(), number)
        else:
            channel.busy = False
        reader = channel.reader
        if reader is None:
            channel.arrived.append(flow)
        else:
            channel.reader = None
            reader.result = flow
        sender = flow.sender
        if sender.__class__ is Actor:
            sender.pending -= 1
            if not sender.pending:
                sender.cause = number
                self._step(sender, sender.result)
        elif sender is not None:
            self._done(sender, number)
        if reader is not None:
            reader.pending -= 1
            if not reader.pending:
                reader.cause = number
                self._step(reader, flow)

    # ---- streams

    def _launch(self, work: Work, cause: int | None) -> None:
        for handle in work.after:
            if not handle.done:
                handle.waiters.append(work)
                work.blockers += 1
        work.after = ()
        work.stream.queue.append(work)
        self._start_next(work.stream, cause)

    def _start_next(self, stream: Stream, cause: int | None) -> None:
        """Start what stands first in the queue, if it waits for nothing and a lane is free."""
        while stream.queue and stream.lanes and not stream.queue[0].blockers:
            self._start_work(stream.queue.popleft(), cause)

    def _start_work(self, work: Work, cause: int | None) -> None:
        stream = work.stream
        stream.running[work] = None
        work.lane = stream.lanes.pop(0)
        work.id = self._id()
        work.start = self.now
        work.cause = cause
        for category, nbytes in work.allocates:
            self._memory.append((self.now, stream.device, category, nbytes))
        if work.program is not None:
            actor = Actor(work.program, work.name, work.rank, stream.device, stream.name)
            actor.cause = cause
            actor.span = work.id
            actor.work = work
            self._actors.append(actor)
            if self._slowdown:
                self._set_communicating(stream.device, 1)
            self._push(self.now, _RESUME, actor, 0)
        elif self._slowdown:
            self._computing[stream.device][work] = None
            work.remaining = work.seconds
            work.since = self.now
            work.rate = 1.0 - self._slowdown if self._communicating[stream.device] else 1.0
            self._push(self.now + work.remaining / work.rate, _COMPUTED, work, work.version)
        else:
            self._push(self.now + work.seconds, _COMPUTED, work, 0)

    def _set_communicating(self, device: int, change: int) -> None:
        """Compute runs slower while a collective runs on its device: its end moves when that changes."""
        before = self._communicating[device] > 0
        self._communicating[device] += change
        if (self._communicating[device] > 0) != before:
            for work in self._computing[device]:
                work.remaining = max(0.0, work.remaining - work.rate * (self.now - work.since))
                work.since = self.now
                work.rate = 1.0 if before else 1.0 - self._slowdown
                work.version += 1
                self._push(self.now + work.remaining / work.rate, _COMPUTED, work, work.version)

    def _finish_work(self, work: Work, cause: int | None) -> None:
        """`cause` is the work itself, or the last transfer of its program: who waits follows that."""
        stream = work.stream
        del stream.running[work]
        stream.lanes.append(work.lane)
        stream.lanes.sort()
        for category, nbytes in work.frees:
            self._memory.append((self.now, stream.device, category, -nbytes))
        if self._slowdown:
            if work.program is not None:
                self._set_communicating(stream.device, -1)
            else:
                del self._computing[stream.device][work]
        self._record(work, self.now)
        self._done(work, cause)
        self._start_next(stream, cause)

    def _record(self, work: Work, end: float | None) -> None:
        stream = work.stream
        resource = stream.name if work.lane == 0 else f"{stream.name} {work.lane + 1}"
        self._spans.append((work.id, work.name, work.kind, work.rank, stream.device, resource, work.start, end,
                            work.iteration, work.bucket, work.group, work.seq, work.nbytes, work.cause,
                            work.torch_function, 0, None))  # fmt: skip

    # ---- the end

    def _trace(self, provenance: str, unverified: tuple[str, ...]) -> Trace:
        waiting = []
        for actor in self._actors:
            if not actor.done:
                waiting.append(Waiting(actor.rank, actor.resource, _name(actor.waits_for)))
                if actor.work is not None:
                    self._record(actor.work, None)
        names = [device.name for device in self.cluster.devices]
        links = tuple(LinkFact(link.name, link.source, link.target, link.bandwidth_bytes_per_s, link.latency_s,
                               link.kind) for link in self.cluster.links)  # fmt: skip
        return Trace(tuple(names), links, self._spans, self._transfers, self._memory,
                     provenance=provenance, waiting=tuple(waiting), unverified=unverified, end_s=self.now)  # fmt: skip


def _name(awaited: Any) -> str:
    if isinstance(awaited, Channel):
        return f"a message from {awaited.source} to {awaited.target}"
    if isinstance(awaited, Handle):
        return awaited.name
    return str(awaited) or "nothing it named"


# ---- verbs, as programs write them


def busy(seconds: float, name: str, kind: str = "host", *, lock: Lock | None = None, iteration: int | None = None,
         torch_function: str = "") -> tuple[Any, ...]:  # fmt: skip
    """The host thread works for that many seconds, holding the lock if one is given."""
    return BUSY, seconds, name, kind, lock, iteration, torch_function


def launch(work: Work) -> tuple[Any, ...]:
    """Put work at the end of its stream; gives back the work, to wait for."""
    return LAUNCH, work


def wait(*handles: Handle) -> tuple[Any, ...]:
    """Go on when all of them are done."""
    return WAIT, handles


def send(channel: Channel, nbytes: int, *, chunk: int | None = None, contributions: int | None = None,
         values: Any = None, extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send and go on when the bytes have arrived."""
    return SEND, channel, nbytes, chunk, contributions, values, extra_latency_s


def isend(channel: Channel, nbytes: int, *, chunk: int | None = None, contributions: int | None = None,
          values: Any = None, extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send and go on at once; gives back a handle. Sends of one channel leave one after the other."""
    return ISEND, channel, nbytes, chunk, contributions, values, extra_latency_s


def recv(channel: Channel) -> tuple[Any, ...]:
    """Wait for the next message: a value with `nbytes`, `chunk`, `contributions` and `values`."""
    return RECV, channel


def send_recv(out: Channel, nbytes: int, source: Channel, *, chunk: int | None = None,
              contributions: int | None = None, values: Any = None,
              extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send to one neighbour and receive from another; go on when both are done. Gives back the message."""
    return SEND_RECV, out, nbytes, chunk, contributions, values, extra_latency_s, source


def spawn(program: Program, name: str, device: int, resource: str) -> tuple[Any, ...]:
    """Start another host thread; gives back its handle."""
    return SPAWN, program, name, device, resource


def fire(handle: Handle) -> tuple[Any, ...]:
    """Mark a signal as done."""
    return FIRE, handle


def memory(device: int, category: str, nbytes: int) -> tuple[Any, ...]:
    """A device gains (or loses) bytes of a category now."""
    return MEMORY, device, category, nbytes

