"""Transfers that share links: max-min fairness, solved only when something changes.

A transfer issued at t waits the latency of its route without using bandwidth, then flows over every link of the
route at once. Alone it ends at `(t + latency_s) + nbytes / bandwidth`: two additions and one division, in this
order, so that a vectorised ring gives the same bits. When transfers meet on a link, each gets its max-min fair
rate: the tightest link is divided equally among its flows, those are fixed, the rest is divided again
(progressive filling; Bertsekas and Gallager, Data Networks, section 6.5.2). A protocol that reaches only a fraction of
a link (flags between the data, for instance) takes 1 / fraction bytes of the link for each byte that it carries: what
is shared is the wire.

A flow's remaining bytes and end change only when its own rate does. All starts and ends of one instant come before
one solve. Flows and links are walked in the order in which they came, never by address, so that runs repeat.

Most transfers never meet another. One that finds all its links idle when it is issued is *express*: its end is put on
the calendar at once, and only if a flow begins on one of its links meanwhile does it turn into an ordinary one, with
the start and the end that it would have had anyway.

Not modelled: packets, TCP's unfairness, protocol overhead (a backend's fractions stand for it).
"""

from collections import deque
from collections.abc import Iterator
from heapq import heappush
from typing import TYPE_CHECKING, Any

from simulator.events import END, START, Event

if TYPE_CHECKING:
    from simulator.verbs import Actor, Handle


class LinkState:
    """A link in use: its bandwidth, and the flows on it in the order in which they came or one express flow."""

    __slots__ = ("bandwidth", "express", "flows")

    def __init__(self, bandwidth: float) -> None:
        self.bandwidth = bandwidth
        self.express: Flow | None = None
        self.flows: dict[Flow, None] = {}


class Channel:
    """A FIFO between two ranks: its messages leave one at a time, in the order of the sends."""

    __slots__ = ("arrived", "bandwidth", "busy", "fraction", "kind", "latency", "links", "queue", "reader", "route",
                 "source", "target")  # fmt: skip

    def __init__(self, source: int, target: int, kind: str, links: tuple[LinkState, ...], route: tuple[int, ...],
                 latency: float, bandwidth: float, fraction: float) -> None:  # fmt: skip
        self.source = source
        self.target = target
        self.kind = kind
        self.links = links
        self.route = route
        self.latency = latency
        self.bandwidth = bandwidth if fraction == 1.0 else bandwidth * fraction
        self.fraction = fraction
        self.busy = False
        self.queue: deque[Flow] = deque()
        self.arrived: deque[Flow] = deque()
        self.reader: Actor | None = None

    def __str__(self) -> str:
        return f"a message from {self.source} to {self.target}"


class Flow:
    """One transfer while it lives; then the message that the receiver gets."""

    __slots__ = ("cause", "channel", "chunk", "contributions", "extra", "id", "issue", "nbytes", "rate", "rates",
                 "remaining", "sender", "since", "span", "start", "values", "version")  # fmt: skip
    id: int
    cause: int | None
    issue: float
    start: float
    since: float
    rate: float
    remaining: float

    def __init__(self, channel: Channel, nbytes: int, chunk: int | None, contributions: int | None,
                 values: Any, extra: float, span: int | None, sender: "Actor | Handle | None") -> None:  # fmt: skip
        self.channel = channel
        self.nbytes = nbytes
        self.chunk = chunk
        self.contributions = contributions
        self.values = values
        self.extra = extra
        self.span = span
        self.sender = sender
        self.version = 0
        self.rates: list[tuple[float, float]] | None = None


class Network:
    """The links of a cluster and the flows on them. Its events go on the engine's calendar."""

    def __init__(self, bandwidths: tuple[float, ...], calendar: list[Event], serial: Iterator[int]) -> None:
        self.links = tuple(LinkState(bandwidth) for bandwidth in bandwidths)
        self.calendar = calendar
        self.serial = serial
        self.changed: dict[LinkState, None] = {}
        """Links whose flows changed in this instant and that need a solve."""

    def depart(self, flow: Flow, now: float) -> None:
        """A flow is issued: first the latency, then the links."""
        channel = flow.channel
        flow.issue = now
        start = flow.start = now + (channel.latency + flow.extra)
        for link in channel.links:
            if link.flows or link.express is not None:
                if start > now:
                    heappush(self.calendar, (start, next(self.serial), START, flow, 0))
                else:
                    self.begin(flow, now)
                return
        for link in channel.links:
            link.express = flow
        heappush(self.calendar, (start + flow.nbytes / channel.bandwidth, next(self.serial), END, flow, 0))

    def begin(self, flow: Flow, now: float) -> None:
        """A flow joins the links of its route."""
        channel = flow.channel
        flow.since = now
        flow.remaining = flow.nbytes
        alone = True
        for link in channel.links:
            if link.express is not None:
                self._make_ordinary(link.express, now)
            if link.flows:
                alone = False
                self.changed[link] = None
            link.flows[flow] = None
        if alone:
            flow.rate = channel.bandwidth
            end = now + flow.nbytes / channel.bandwidth
            heappush(self.calendar, (end, next(self.serial), END, flow, flow.version))
        else:
            flow.rate = 0.0

    def _make_ordinary(self, flow: Flow, now: float) -> None:
        """An express flow has met another: it flows since its start, or will start when its latency is over."""
        links = flow.channel.links
        for link in links:
            link.express = None
        if flow.start > now:
            flow.version += 1
            heappush(self.calendar, (flow.start, next(self.serial), START, flow, flow.version))
        else:
            for link in links:
                link.flows[flow] = None
            flow.since = flow.start
            flow.remaining = flow.nbytes
            flow.rate = flow.channel.bandwidth

    def finish(self, flow: Flow) -> None:
        """A flow leaves its links; those that keep others need a solve."""
        links = flow.channel.links
        if links and links[0].express is flow:
            for link in links:
                link.express = None
            return
        changed = self.changed
        for link in links:
            flows = link.flows
            del flows[flow]
            if flows:
                changed[link] = None
            elif link in changed:
                del changed[link]

    def settle(self, now: float) -> None:
        """Give every flow of the touched components its max-min fair rate; put the ends that moved on the calendar."""
        count = {link: len(link.flows) for link in self.changed}
        self.changed.clear()
        flows: dict[Flow, None] = {}
        frontier = list(count)
        for link in frontier:
            for flow in link.flows:
                if flow not in flows:
                    flows[flow] = None
                    for other in flow.channel.links:
                        if other not in count:
                            count[other] = len(other.flows)
                            frontier.append(other)
        calendar, serial = self.calendar, self.serial
        for flow, rate in max_min_rates(flows, count).items():
            if rate != flow.rate:
                if flow.rates is None:
                    flow.rates = [(flow.start, flow.rate)] if flow.rate and flow.start != now else []
                flow.rates.append((now, rate))
                if flow.since != now:
                    left = flow.remaining - flow.rate * (now - flow.since)
                    flow.remaining = left if left > 0.0 else 0.0
                    flow.since = now
                flow.rate = rate
                flow.version += 1
                heappush(calendar, (now + flow.remaining / rate, next(serial), END, flow, flow.version))


def max_min_rates(flows: dict[Flow, None], count: dict[LinkState, int]) -> dict[Flow, float]:
    """Progressive filling. `count` holds the number of flows on each of their links and is consumed."""
    residual = {link: link.bandwidth for link in count}
    rates: dict[Flow, float] = {}
    left = len(flows)
    while left:
        share = float("inf")
        for link, users in count.items():
            fair = residual[link] / users
            if fair < share:
                share = fair
                tightest = link
        filled = [flow for flow in tightest.flows if flow not in rates]
        left -= len(filled)
        for flow in filled:
            fraction = flow.channel.fraction
            rates[flow] = share if fraction == 1.0 else share * fraction
        if not left:
            break
        for flow in filled:
            for link in flow.channel.links:
                users = count[link] - 1
                if users:
                    count[link] = users
                    rest = residual[link] - share
                    residual[link] = rest if rest > 0.0 else 0.0
                else:
                    del count[link]
    return rates
