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
from heapq import heappop, heappush
from itertools import count
from typing import Any

from simulator.cluster import Platform, Route
from simulator.errors import InputError, number
from simulator.events import END, RELEASE, RESUME, START, Event
from simulator.host import busy, release
from simulator.network import Channel, Flow, Network
from simulator.recorder import Recorder
from simulator.streams import Streams
from simulator.trace import Trace
from simulator.verbs import (
    BUSY,
    FIRE,
    ISEND,
    LAUNCH,
    MEMORY,
    RECV,
    SEND,
    SEND_RECV,
    SPAWN,
    WAIT,
    Actor,
    Handle,
    Program,
    Work,
)


class Engine:
    """One run. `start` programs, then `run`; everything that happens is recorded in the Trace."""

    def __init__(self, cluster: Platform, *, compute_slowdown: float = 0.0) -> None:
        self.cluster = cluster
        self.now = 0.0
        self.record = Recorder()
        self._actors: list[Actor] = []
        self._calendar: list[Event] = []
        self._serial = count(1)
        bandwidths = tuple(link.bandwidth_bytes_per_s for link in cluster.links)
        self._network = Network(bandwidths, self._calendar, self._serial)
        self._streams = Streams(self, len(cluster.devices), compute_slowdown)

    def channel(self, source: int, target: int, kind: str, *, bandwidth_fraction: float = 1.0,
                route: Route | None = None) -> Channel:  # fmt: skip
        """A FIFO from one device to another, by index. The fraction is what it reaches of the route.

        A route of one's own (to host memory, or only up to the switch) may be given; -1 then stands for what is
        no device.
        """
        if bandwidth_fraction != 1.0:
            number(bandwidth_fraction, "bandwidth_fraction", exclusive=True)
        if route is None:
            route = self.cluster.route(source, target)
        links = tuple(self._network.links[index] for index in route.links)
        return Channel(source, target, kind, links, route.links, route.latency_s, route.bandwidth_bytes_per_s,
                       bandwidth_fraction)  # fmt: skip

    def start(self, program: Program, *, name: str, rank: int, device: int, resource: str,
              at_s: float = 0.0) -> Actor:  # fmt: skip
        """Let a program begin on a host thread at a time."""
        return self._begin(Actor(program, name, rank, device, resource), number(at_s, "at_s"))

    def _begin(self, actor: Actor, at_s: float) -> Actor:
        self._actors.append(actor)
        self.push(at_s, RESUME, actor, 0)
        return actor

    def run(self, *, provenance: str = "", unverified: tuple[str, ...] = ()) -> Trace:
        """Handle events until none is left. Garbage collection rests meanwhile: nothing here is cyclic garbage."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._handle_all()
        finally:
            if collecting:
                gc.enable()
        self._note_who_waits()
        return self.record.trace(self.cluster, self.now, provenance=provenance, unverified=unverified)

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
            elif code == RESUME:
                self.now = now
                self._step(item, item.result)
            elif code == RELEASE:
                self.now = now
                self._step(release(self, item), None)
            elif item.version == version:
                self.now = now
                self._streams.finish(item, item.id)
            if changed and (not calendar or calendar[0][0] > self.now):
                network.settle(self.now)

    def push(self, time: float, code: int, item: Any, version: int) -> None:
        """Put an event on the calendar."""
        heappush(self._calendar, (time, next(self._serial), code, item, version))

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
                if code == LAUNCH:
                    value = verb[1]
                    self._streams.launch(value, actor.cause)
                elif code == BUSY:
                    busy(self, actor, verb)
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
                    _, out, nbytes, chunk, contributions, values, extra = verb
                    actor.pending = 1
                    actor.result = None
                    actor.waits_for = out
                    self._issue(Flow(out, nbytes, chunk, contributions, values, extra, actor.span, actor), actor.cause)
                    return
                elif code == ISEND:
                    _, out, nbytes, chunk, contributions, values, extra = verb
                    value = Handle("a send to end")
                    self._issue(Flow(out, nbytes, chunk, contributions, values, extra, actor.span, value), actor.cause)
                elif code == FIRE:
                    self.done(verb[1], actor.cause)
                    value = None
                elif code == SPAWN:
                    value = self._spawn(actor, verb)
                elif code == MEMORY:
                    self.record.memory.append((self.now, verb[1], verb[2], verb[3]))
                    value = None
                else:
                    raise InputError(
                        f"program {actor.name!r} yielded {verb!r}: a program yields verbs. "
                        "Use those of simulator.verbs, and `yield from` for a program in a program."
                    )
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
        return self._begin(child, self.now)

    def run_work(self, work: Work, cause: int | None) -> None:
        """Let the program of a piece of work begin now."""
        assert work.program is not None
        actor = Actor(work.program, work.name, work.rank, work.stream.device, work.stream.name)
        actor.cause = cause
        actor.span = work.id
        actor.work = work
        self._begin(actor, self.now)

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

    def _read(self, channel: Channel, actor: Actor) -> None:
        if channel.reader is not None:
            raise InputError(
                f"programs {channel.reader.name!r} and {actor.name!r} both wait for {channel}: a channel has one "
                "reader at a time. Give each its own channel."
            )
        channel.reader = actor

    def _issue(self, flow: Flow, cause: int | None) -> None:
        flow.id = self.record.next_id()
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
        self.record.transfers.append((number, channel.kind, channel.source, channel.target, channel.route, flow.issue,
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

    def _note_who_waits(self) -> None:
        for actor in self._actors:
            if not actor.done:
                self.record.stuck(actor.rank, actor.resource, actor.waits_for)
                if actor.work is not None:
                    self.record.work(actor.work, None)
        for work in self._streams.stuck():
            self.record.stuck(work.rank, work.stream.name, work.after)
