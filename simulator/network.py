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

Not modelled: packets, TCP's unfairness, protocol overhead (a backend's fractions stand for it).
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulator.engine import Actor, Handle


class LinkState:
    """A link in use: its bandwidth and the flows on it, in the order in which they came."""

    __slots__ = ("bandwidth", "flows", "index")

    def __init__(self, index: int, bandwidth: float) -> None:
        self.index = index
        self.bandwidth = bandwidth
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


class Flow:
    """One transfer while it lives."""

    __slots__ = ("cause", "channel", "chunk", "contributions", "extra", "id", "issue", "nbytes", "rate", "rates", "remaining",
                 "sender", "since", "span", "start", "values", "version")  # fmt: skip

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
    """The links of a cluster and the flows on them. `schedule_end(time, flow)` is how it speaks to the engine."""

    def __init__(self, bandwidths: tuple[float, ...], schedule_end: Callable[[float, Flow], None]) -> None:
        self.links = tuple(LinkState(index, bandwidth) for index, bandwidth in enumerate(bandwidths))
        self.schedule_end = schedule_end
        self.changed: dict[LinkState, None] = {}
        """Links whose flows changed in this instant and that need a solve."""

    def begin(self, flow: Flow, now: float) -> None:
        """A flow joins the links of its route."""
        flow.start = flow.since = now
        flow.remaining = flow.nbytes
        channel = flow.channel
        alone = True
        for link in channel.links:
            if link.flows:
                alone = False
                self.changed[link] = None
            link.flows[flow] = None
        if alone:
            flow.rate = channel.bandwidth
            self.schedule_end(now + flow.nbytes / channel.bandwidth, flow)
        else:
            flow.rate = 0.0

    def finish(self, flow: Flow) -> None:
        """A flow leaves its links; those that keep others need a solve."""
        changed = self.changed
        for link in flow.channel.links:
            flows = link.flows
            del flows[flow]
            if flows:
                changed[link] = None
            elif link in changed:
                del changed[link]

    def settle(self, now: float) -> None:
        """Give every flow of the touched components its max-min fair rate; schedule the ends that moved."""
        seen: dict[Flow, None] = {}
        count: dict[LinkState, int] = {}
        frontier = list(self.changed)
        self.changed.clear()
        for link in frontier:
            count[link] = len(link.flows)
        for link in frontier:
            for flow in link.flows:
                if flow not in seen:
                    seen[flow] = None
                    for other in flow.channel.links:
                        if other not in count:
                            count[other] = len(other.flows)
                            frontier.append(other)
        for flow, rate in max_min_rates(seen, count).items():
            if rate != flow.rate:
                self._rerate(flow, rate, now)

    def _rerate(self, flow: Flow, rate: float, now: float) -> None:
        if flow.rates is None:
            flow.rates = [] if flow.rate == 0.0 else [(flow.start, flow.rate)]
        flow.rates.append((now, rate))
        if flow.since != now:
            flow.remaining = max(0.0, flow.remaining - flow.rate * (now - flow.since))
            flow.since = now
        flow.rate = rate
        flow.version += 1
        self.schedule_end(now + flow.remaining / rate, flow)


def max_min_rates(flows: dict[Flow, None], count: dict[LinkState, int]) -> dict[Flow, float]:
    """Progressive filling. `count` holds the number of flows on each of their links and is consumed."""
    residual = {link: link.bandwidth for link in count}
    rates: dict[Flow, float] = {}
    total = len(flows)
    while len(rates) < total:
        tightest = None
        share = float("inf")
        for link, users in count.items():
            if users:
                fair = residual[link] / users
                if fair < share:
                    share = fair
                    tightest = link
        assert tightest is not None, "a flow that shares has a link"
        for flow in [flow for flow in tightest.flows if flow not in rates]:
            channel = flow.channel
            rates[flow] = share if channel.fraction == 1.0 else share * channel.fraction
            for link in channel.links:
                users = count[link] - 1
                if users:
                    count[link] = users
                    left = residual[link] - share
                    residual[link] = left if left > 0.0 else 0.0
                else:
                    del count[link]
    return rates
