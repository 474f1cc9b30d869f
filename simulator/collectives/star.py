"""Everything through one device, or through all of them as servers: the parameter-server picture.

A star moves (N - 1) S in and (N - 1) S out of its centre: `2 (N-1) S / B`, which is N times the ring's time. With
the S bytes sharded over N servers, one beside each rank, each server's link carries only its share:
`2 (N-1)/N S / B`, as the ring, in two steps instead of 2 (N - 1).

Not modelled: the server's time for the addition.
"""

from collections.abc import Sequence

from simulator.backend import PLAIN_PROTOCOL, Protocol
from simulator.collectives.ring import split
from simulator.engine import Engine
from simulator.verbs import Handle, Program, isend, recv, wait


def fan_out(engine: Engine, root: int, sizes: dict[int, int], *, kind: str, in_turn: bool = True,
            fraction: float = 1.0) -> Program:  # fmt: skip
    """The root's program: one copy to each target, one after the other or all at once. Broadcast and scatter."""
    return _copies(engine, [(root, target, nbytes) for target, nbytes in sizes.items()], kind, in_turn, fraction)


def fan_in(engine: Engine, root: int, sizes: dict[int, int], *, kind: str, in_turn: bool = True,
           fraction: float = 1.0) -> Program:  # fmt: skip
    """One copy from each source to the root, one after the other or all at once. Gather and reduce."""
    return _copies(engine, [(source, root, nbytes) for source, nbytes in sizes.items()], kind, in_turn, fraction)


def _copies(
    engine: Engine, copies: Sequence[tuple[int, int, int]], kind: str, in_turn: bool, fraction: float
) -> Program:
    sent: list[Handle] = []
    for source, target, nbytes in copies:
        channel = engine.channel(source, target, kind, bandwidth_fraction=fraction)
        handle = yield isend(channel, nbytes, contributions=1 << source)
        if in_turn:
            yield wait(handle)
        sent.append(handle)
    yield wait(*sent)


def parameter_server(engine: Engine, members: Sequence[int], nbytes: int, *, servers: Sequence[int],
                     element_bytes: int = 4, kind: str = "all_reduce",
                     protocol: Protocol = PLAIN_PROTOCOL) -> list[Program]:  # fmt: skip
    """All-reduce by servers: each member pushes every server its shard, waits, and pulls the sums.

    `servers` are members too: one of them is the central server, all of them the sharded one. Programs come in
    the members' order. All pushes start together, and each server answers when it has every member's push.
    """
    shards = split(nbytes, len(servers), element_bytes)
    fraction = protocol.bandwidth_fraction
    push = {(m, s): engine.channel(m, s, kind, bandwidth_fraction=fraction) for m in members for s in servers if m != s}
    pull = {(s, m): engine.channel(s, m, kind, bandwidth_fraction=fraction) for m in members for s in servers if m != s}

    def member(rank: int) -> Program:
        sent = []
        for shard, server in enumerate(servers):
            if server != rank:
                sent.append((yield isend(push[rank, server], shards[shard], chunk=shard, contributions=1 << rank,
                                         extra_latency_s=protocol.base_s + protocol.step_s)))  # fmt: skip
        if rank in servers:
            others = [member for member in members if member != rank]
            mask = 1 << rank
            for other in others:
                message = yield recv(push[other, rank])
                mask |= message.contributions
            shard = servers.index(rank)
            for other in others:
                handle = yield isend(pull[rank, other], shards[shard], chunk=shard, contributions=mask,
                                     extra_latency_s=protocol.step_s)  # fmt: skip
                sent.append(handle)
        for server in servers:
            if server != rank:
                yield recv(pull[server, rank])
        yield wait(*sent)

    return [member(rank) for rank in members]
