"""The ring: reduce-scatter, all-gather, and the pipelined chain for broadcast and reduce.

All-reduce of S bytes over N ranks cuts S into N chunks. In reduce-scatter step s rank r sends chunk (r - s) mod N to
its right neighbour and adds what comes from the left to its own; after N - 1 steps rank r holds chunk (r + 1) mod N
complete. All-gather passes the complete chunks round in N - 1 more steps. Time with equal links and starts:
`2 (N-1) (latency + S / (N B))`; bytes sent per rank: `2 (N-1)/N S`, which no algorithm without help from the switch
can beat (Patarasuk and Yuan 2009).

A rank's send s leaves when its send s - 1 has ended and the chunk that it forwards has arrived; step 0 waits until
the right neighbour has joined. Every message carries the bit mask of the ranks that its chunk sums, and in teaching
runs the numbers.

Not modelled: the time of the addition itself.
"""

from collections.abc import Sequence
from typing import Any

from simulator.backend import PLAIN_PROTOCOL, Protocol
from simulator.engine import Engine
from simulator.network import Channel
from simulator.verbs import FIRE, SEND_RECV, WAIT, Handle, Program, isend, recv, wait

Values = list[Any]


def split(nbytes: int, parts: int, element_bytes: int = 1) -> list[int]:
    """Bytes of each part: split by element, the first `elements mod parts` one element larger."""
    elements, rest = divmod(nbytes, element_bytes)
    size, larger = divmod(elements, parts)
    sizes = [(size + (index < larger)) * element_bytes for index in range(parts)]
    sizes[0] += rest
    return sizes


def in_slices(nbytes: int, slice_bytes: int, element_bytes: int = 1) -> list[int]:
    """A pipeline's slices: whole ones of that many bytes, rounded up to elements, and what is left as the last.

    Equal parts instead would make a message that just needs one slice more travel faster than a smaller one.
    """
    size = -(-slice_bytes // element_bytes) * element_bytes
    return [size] * (nbytes // size) + ([nbytes % size] if nbytes % size else [])


def ring_channels(engine: Engine, order: Sequence[int], kind: str, protocol: Protocol, *,
                  closed: bool = True) -> list[Channel]:  # fmt: skip
    """Channel i leads from member i of the order to the next one, and from the last to the first if closed."""
    edges = len(order) if closed else len(order) - 1
    return [
        engine.channel(order[index], order[(index + 1) % len(order)], kind,
                       bandwidth_fraction=protocol.bandwidth_fraction)
        for index in range(edges)
    ]  # fmt: skip


class _Ring:
    """What the members of one ring share."""

    def __init__(self, engine: Engine, order: Sequence[int], kind: str, protocol: Protocol, first_chunk: int = 0):
        self.size = len(order)
        self.first_chunk = first_chunk
        self.channels = ring_channels(engine, order, kind, protocol) if self.size > 1 else []
        self.joined = [Handle(f"rank {member} to join {kind}") for member in order]
        self.protocol = protocol

    def reduce_scatter(self, index: int, sizes: Sequence[int], masks: list[int], held: Values | None) -> Program:
        """The program of one member; on return chunk (index + 1) mod N of `masks` and `held` is complete."""
        n, step_s, first = self.size, self.protocol.step_s, self.first_chunk
        if n == 1:
            return
        out, source = self.channels[index], self.channels[index - 1]
        yield FIRE, self.joined[index]
        yield WAIT, (self.joined[(index + 1) % n],)
        extra = self.protocol.base_s + step_s
        chunk = index
        for _ in range(n - 1):
            value = held and held[chunk]
            message = yield (SEND_RECV, out, sizes[chunk], first + chunk, masks[chunk], value, extra, source)
            chunk = (chunk or n) - 1
            masks[chunk] |= message.contributions
            if held is not None:
                held[chunk] = _add(message.values, held[chunk])
            extra = step_s

    def all_gather(self, index: int, sizes: Sequence[int], masks: list[int], held: Values | None) -> Program:
        """The program of one member, which holds chunk (index + 1) mod N complete."""
        n, step_s, first = self.size, self.protocol.step_s, self.first_chunk
        if n == 1:
            return
        out, source = self.channels[index], self.channels[index - 1]
        chunk = (index + 1) % n
        for _ in range(n - 1):
            value = held and held[chunk]
            message = yield (SEND_RECV, out, sizes[chunk], first + chunk, masks[chunk], value, step_s, source)
            chunk = (chunk or n) - 1
            masks[chunk] = message.contributions
            if held is not None:
                held[chunk] = message.values


def _add(incoming: Any, own: Any) -> Any:
    """What came plus one's own, in this order: numbers element by element."""
    return tuple(a + b for a, b in zip(incoming, own, strict=True))


def ring_all_reduce(engine: Engine, order: Sequence[int], sizes: Sequence[int], *, kind: str = "all_reduce",
                    protocol: Protocol = PLAIN_PROTOCOL, first_chunk: int = 0,
                    values: Sequence[Values] | None = None) -> list[Program]:  # fmt: skip
    """One program a member, in ring order. `values[i][c]` is chunk c of member i; the programs return theirs.

    `first_chunk` is the number of chunk 0 where several rings divide one message.
    """
    ring = _Ring(engine, order, kind, protocol, first_chunk)

    def member(index: int) -> Program:
        masks = [1 << order[index]] * ring.size
        held = None if values is None else [tuple(chunk) for chunk in values[index]]
        yield from ring.reduce_scatter(index, sizes, masks, held)
        yield from ring.all_gather(index, sizes, masks, held)
        return held

    return [member(index) for index in range(ring.size)]


def ring_all_gather(engine: Engine, order: Sequence[int], sizes: Sequence[int], *, kind: str,
                    protocol: Protocol = PLAIN_PROTOCOL) -> list[Program]:  # fmt: skip
    """Member i contributes chunk (i + 1) mod N of the sizes; after N - 1 steps every member has all."""
    ring = _Ring(engine, order, kind, protocol)

    def member(index: int) -> Program:
        yield FIRE, ring.joined[index]
        yield WAIT, (ring.joined[(index + 1) % ring.size],)
        yield from ring.all_gather(index, sizes, [1 << order[index]] * ring.size, None)

    return [member(index) for index in range(ring.size)]


def hierarchical_all_reduce(engine: Engine, groups: Sequence[Sequence[int]], nbytes: int, *, element_bytes: int = 4,
                            kind: str = "all_reduce",
                            protocol: Protocol = PLAIN_PROTOCOL) -> list[Program]:  # fmt: skip
    """Reduce-scatter inside each group, all-reduce of each chunk across groups, all-gather inside.

    All groups have the same number G of members; only S/G bytes a member cross between groups. Programs come in the
    order of the groups' members. Chunks 0 to G - 1 are those inside; the parts of chunk c that cross follow them.
    """
    size = len(groups[0])
    sizes = split(nbytes, size, element_bytes)
    inside = [_Ring(engine, group, kind, protocol) for group in groups]
    across = [_Ring(engine, [group[index] for group in groups], kind, protocol, size + (index + 1) % size * len(groups))
              for index in range(size)]  # fmt: skip

    def member(g: int, index: int) -> Program:
        masks = [1 << groups[g][index]] * size
        yield from inside[g].reduce_scatter(index, sizes, masks, None)
        own = (index + 1) % size
        parts = split(sizes[own], len(groups), element_bytes)
        crossing = [masks[own]] * len(groups)
        yield from across[index].reduce_scatter(g, parts, crossing, None)
        yield from across[index].all_gather(g, parts, crossing, None)
        masks[own] = crossing[0]
        yield from inside[g].all_gather(index, sizes, masks, None)

    return [member(g, index) for g in range(len(groups)) for index in range(size)]


def chain(engine: Engine, order: Sequence[int], slices: Sequence[int], *, kind: str, reduces: bool,
          protocol: Protocol = PLAIN_PROTOCOL, first_chunk: int = 0) -> list[Program]:  # fmt: skip
    """Slice after slice along the order: a broadcast from its first member, or a reduce to its last.

    About `(slices + N - 2) / slices * S / B`: a pipeline, so that S is on every link of it at once.
    """
    channels = ring_channels(engine, order, kind, protocol, closed=False)
    joined = [Handle(f"rank {member} to join {kind}") for member in order]
    last = len(order) - 1

    def member(index: int) -> Program:
        yield FIRE, joined[index]
        if index < last:
            yield WAIT, (joined[index + 1],)
        sent: Handle | None = None
        for number, nbytes in enumerate(slices):
            contributions = 1 << order[index if reduces else 0]
            if index:
                message = yield recv(channels[index - 1])
                contributions = contributions | message.contributions if reduces else message.contributions
            if index < last:
                extra = (0.0 if number else protocol.step_s) + (0.0 if number or index else protocol.base_s)
                sent = yield isend(channels[index], nbytes, chunk=first_chunk + number, contributions=contributions,
                                   extra_latency_s=extra)  # fmt: skip
        if sent is not None:
            yield wait(sent)

    return [member(index) for index in range(len(order))]
