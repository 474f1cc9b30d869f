"""The discrete-event engine: programs against a clock, with three resources and no more.

A **program** is a generator that yields verbs (`simulator.verbs`). It runs on a host thread, or as one piece of work
on a stream. A **stream** does its work in order (`simulator.streams`). A **host thread** is busy for stated times, if
need be under a lock that others want too (Python's GIL). A **link** shares its bandwidth (`simulator.network`). The
engine knows no collective and no strategy: a ring, DataParallel's step and a learner's own program are written with
the same verbs.

Time is a float64 of seconds. Events of equal time are handled in the order of their making. Every span and every
transfer records its cause: the one thing, of all that it waited for, that came last. Following causes back from the
last event is the critical path, without a gap.

Not modelled: host threads that compete for cores.
"""

import gc
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Protocol

from simulator.cluster import Device, Link, Route
from simulator.errors import InputError, number
from simulator.network import END, START, Channel, Event, Flow, Network
from simulator.streams import Streams, span_row
from simulator.trace import LinkFact, Trace, Waiting
from simulator.verbs import (
    BUSY, FIRE, ISEND, LAUNCH, MEMORY, RECV, SEND, SEND_RECV, SPAWN, WAIT, Handle, Lock, Program, Work,
)  # fmt: skip

_RESUME, _RELEASE = 2, 4
_FOREVER = float("inf")


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
        self.waits_for: Channel | Lock | tuple[Handle, ...] = ()


class Engine:
    """One run. `start` programs, then `run`; everything that happens is recorded in the Trace."""

    def __init__(self, cluster: Platform, *, compute_slowdown: float = 0.0) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.spans: list[tuple[Any, ...]] = []
        self.memory: list[tuple[Any, ...]] = []
        self._transfers: list[tuple[Any, ...]] = []
        self._actors: list[Actor] = []
        self._calendar: list[Event] = []
        self._serial = count(1)
        self.next_id = count(1).__next__
        self._network = Network(tuple(link.bandwidth_bytes_per_s for link in cluster.links), self._calendar, self._serial)
        self._streams = Streams(self, len(cluster.devices), compute_slowdown)

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
        self.push(number(at_s, "at_s"), _RESUME, actor, 0)
        return actor

    # ---- running

    def run(self, *, provenance: str = "", unverified: tuple[str, ...] = ()) -> Trace:
        """Handle events until none is left. Garbage collection rests meanwhile: nothing here is cyclic garbage."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._handle_all()
        finally:
            if collecting:
                gc.enable()
        return self._trace(provenance, unverified)

    def _handle_all(self) -> None:
        """An event that is void does not move time."""
        calendar, network = self._calendar, self._network
        changed = network.changed
        while calendar:
            now, _, code, item, version = heappop(calendar)
            if code == END:
                if item.version == version:
                    self.now = now
                    self._arrive(item, now)
            elif code == START:
                self.now = now
                network.begin(item, now)
            elif code == _RESUME:
                self.now = now
                self._step(item, item.result)
            elif code == _RELEASE:
                self.now = now
                self._release(item)
            elif item.version == version:
                self.now = now
                self._streams.finish(item, item.id)
            if changed and (not calendar or calendar[0][0] > self.now):
                network.settle(self.now)

    def push(self, time: float, code: int, item: Any, version: int) -> None:
        """Put an event on the calendar."""
        heappush(self._calendar, (time, next(self._serial), code, item, version))

    # ---- programs

    def _step(self, actor: Actor, value: Any) -> None:
        """Let a program run until it has to wait."""
        resume = actor.program.send
        try:
            while True:
                verb = resume(value)
                code = verb[0] if verb.__class__ is tuple and verb else None
                if code == SEND_RECV:
                    _, out, nbytes, chunk, contributions, values, extra, source = verb
                    self._issue(Flow(out, nbytes, chunk, contributions, values, extra, actor.span, actor), actor.cause)
                    if source.arrived:
                        actor.pending = 1
                        actor.result = source.arrived.popleft()
                    else:
                        actor.pending = 2
                        self._read(source, actor)
                    actor.waits_for = source
                    return
                elif code == LAUNCH:
                    value = verb[1]
                    self._streams.launch(value, actor.cause)
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
                        self._read(source, actor)
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
                    value = Handle("a send to end")
                    self._issue(Flow(*verb[1:7], actor.span, value), actor.cause)
                elif code == FIRE:
                    self.done(verb[1], actor.cause)
                    value = None
                elif code == SPAWN:
                    value = self._spawn(actor, verb)
                elif code == MEMORY:
                    self.memory.append((self.now, verb[1], verb[2], verb[3]))
                    value = None
                else:
                    raise InputError(f"program {actor.name!r} yielded {verb!r}: a program yields verbs. "
                                     "Use those of simulator.verbs, and `yield from` for a program in a program.")  # fmt: skip
        except StopIteration as finished:
            actor.result = finished.value
            if actor.work is not None:
                self._streams.finish(actor.work, actor.cause)
            self.done(actor, actor.cause)

    def _spawn(self, parent: Actor, verb: tuple[Any, ...]) -> Actor:
        _, program, name, device, resource = verb
        child = Actor(program, name, parent.rank, device, resource)
        child.cause = parent.cause
        child.span = parent.span
        self._actors.append(child)
        self.push(self.now, _RESUME, child, 0)
        return child

    def run_work(self, work: Work, cause: int | None) -> None:
        """Let the program of a piece of work begin now."""
        assert work.program is not None
        actor = Actor(work.program, work.name, work.rank, work.stream.device, work.stream.name)
        actor.cause = cause
        actor.span = work.id
        actor.work = work
        self._actors.append(actor)
        self.push(self.now, _RESUME, actor, 0)

    def _busy(self, actor: Actor, verb: tuple[Any, ...]) -> None:
        if not 0.0 <= verb[1] < _FOREVER:
            number(verb[1], f"seconds of {verb[2]!r}")
        lock = verb[4]
        if lock is not None:
            if lock.holder is not None:
                lock.waiting.append((actor, verb))
                actor.waits_for = lock
                return
            lock.holder = actor
        self._occupy(actor, verb, actor.cause)

    def _occupy(self, actor: Actor, verb: tuple[Any, ...], cause: int | None) -> None:
        """The thread works for `seconds`; the end of that is an event."""
        _, seconds, name, kind, lock, iteration, torch_function = verb
        number = self.next_id()
        end = self.now + seconds
        self.spans.append((number, name, kind, actor.rank, actor.device, actor.resource, self.now, end, iteration,
                           None, None, None, None, cause, torch_function, 0, None))  # fmt: skip
        actor.cause = number
        actor.result = None
        if lock is None:
            self.push(end, _RESUME, actor, 0)
        else:
            self.push(end, _RELEASE, lock, 0)

    def _release(self, lock: Lock) -> None:
        """The holder is done: the next one gets the lock, then the holder's program goes on."""
        actor = lock.holder
        assert actor is not None
        lock.holder = None
        if lock.waiting:
            other, verb = lock.waiting.popleft()
            lock.holder = other
            self._occupy(other, verb, actor.cause)
        self._step(actor, None)

    def _wait(self, actor: Actor, handles: tuple[Handle, ...]) -> bool:
        """Whether the actor has to wait for some of the handles."""
        pending = 0
        for handle in handles:
            if not handle.done:
                handle.waiters.append(actor)
                pending += 1
        if pending:
            actor.pending = pending
            actor.waits_for = handles
            actor.result = None
        return pending > 0

    def done(self, handle: Handle, cause: int | None) -> None:
        """A handle is done: whoever waits for it and nothing else goes on."""
        handle.done = True
        handle.cause = cause
        waiters = handle.waiters
        if waiters:
            handle.waiters = []
            for waiter in waiters:
                if isinstance(waiter, Work):
                    waiter.blockers -= 1
                    if not waiter.blockers:
                        self._streams.start_next(waiter.stream, cause)
                else:
                    waiter.pending -= 1
                    if not waiter.pending:
                        waiter.cause = cause
                        self._step(waiter, waiter.result)

    # ---- transfers

    def _read(self, channel: Channel, actor: Actor) -> None:
        if channel.reader is not None:
            raise InputError(f"programs {channel.reader.name!r} and {actor.name!r} both receive from the channel from "
                             f"{channel.source} to {channel.target}: a channel has one reader at a time. "
                             "Give each its own channel.")  # fmt: skip
        channel.reader = actor

    def _issue(self, flow: Flow, cause: int | None) -> None:
        flow.id = self.next_id()
        channel = flow.channel
        if channel.busy:
            channel.queue.append(flow)
        else:
            channel.busy = True
            flow.cause = cause
            self._network.depart(flow, self.now)

    def _arrive(self, flow: Flow, now: float) -> None:
        self._network.finish(flow)
        channel = flow.channel
        number = flow.id
        rates = flow.rates
        self._transfers.append((number, channel.kind, channel.source, channel.target, channel.route, flow.issue,
                                flow.start, now, flow.nbytes, flow.chunk, flow.contributions, flow.span, flow.cause,
                                flow.values, rates and tuple(rates)))  # fmt: skip
        if channel.queue:
            following = channel.queue.popleft()
            following.cause = number
            self._network.depart(following, now)
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
            self.done(sender, number)
        if reader is not None:
            reader.pending -= 1
            if not reader.pending:
                reader.cause = number
                self._step(reader, flow)

    # ---- the end

    def _trace(self, provenance: str, unverified: tuple[str, ...]) -> Trace:
        waiting = []
        for actor in self._actors:
            if not actor.done:
                waiting.append(Waiting(actor.rank, actor.resource, _name(actor.waits_for)))
                if actor.work is not None:
                    self.spans.append(span_row(actor.work, None))
        waiting += [Waiting(work.rank, work.stream.name, _name(tuple(work.after))) for work in self._streams.stuck()]
        names = tuple(device.name for device in self.cluster.devices)
        links = tuple(LinkFact(link.name, link.source, link.target, link.bandwidth_bytes_per_s, link.latency_s,
                               link.kind) for link in self.cluster.links)  # fmt: skip
        return Trace(names, links, self.spans, self._transfers, self.memory,
                     provenance=provenance, waiting=tuple(waiting), unverified=unverified, end_s=self.now)  # fmt: skip


def _name(awaited: Channel | Lock | Iterable[Handle]) -> str:
    if isinstance(awaited, Channel):
        return f"a message from {awaited.source} to {awaited.target}"
    if isinstance(awaited, Lock):
        return awaited.name
    return ", ".join(handle.name for handle in awaited if not handle.done)
