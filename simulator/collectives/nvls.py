"""All-reduce by the switch (NVLink SHARP): the switch adds what all GPUs hold and multicasts the sum.

Each GPU owns 1/N of the buffer. The switch pulls that part from all N GPUs, adds, and gives the owner the sum; the
owner sends it once and the switch copies it to all. So each GPU's link carries S + S/N out and as much in, against
2 (N-1)/N S for the ring: at N = 8, 1.125 S against 1.75 S. The bus bandwidth that nccl-tests prints, which assumes
the ring's bytes, may then exceed the link's. Slices overlap the two phases.

A transfer to or from the switch has -1 as its other end. Not modelled: the switch's own buffers and its arithmetic.
"""

from collections.abc import Sequence

from simulator.backend import PLAIN_PROTOCOL, Protocol
from simulator.cluster import Route
from simulator.collectives.ring import in_slices, split
from simulator.engine import Engine
from simulator.network import Channel
from simulator.verbs import Handle, Program, fire, isend, send, wait

SWITCH = -1


class _Port:
    """One GPU's two directions to the switch."""

    def __init__(self, engine: Engine, device: int, other: int, kind: str, protocol: Protocol) -> None:
        up = engine.cluster.route(device, other).links[0]
        down = engine.cluster.route(other, device).links[-1]
        self.up = [self._channel(engine, device, SWITCH, up, kind, protocol) for _ in range(2)]
        self.down = [self._channel(engine, SWITCH, device, down, kind, protocol) for _ in range(2)]

    @staticmethod
    def _channel(engine: Engine, source: int, target: int, link: int, kind: str, protocol: Protocol) -> Channel:
        fact = engine.cluster.links[link]
        route = Route((link,), fact.latency_s, fact.bandwidth_bytes_per_s)
        return engine.channel(source, target, kind, route=route, bandwidth_fraction=protocol.bandwidth_fraction)


def nvls_all_reduce(engine: Engine, members: Sequence[int], nbytes: int, *, element_bytes: int = 4, slice_bytes: int | None = None,
                    kind: str = "all_reduce",
                    protocol: Protocol = PLAIN_PROTOCOL) -> dict[int, list[Program]]:  # fmt: skip
    """For each device its programs, to run side by side."""
    n = len(members)
    if n == 1:
        return {members[0]: []}
    sizes = in_slices(nbytes, slice_bytes or max(1, nbytes), element_bytes) or [0]
    ports = {d: _Port(engine, d, members[i - 1], kind, protocol) for i, d in enumerate(members)}
    everyone = sum(1 << device for device in members)
    pulled = [{d: Handle(f"rank {d}'s part at the switch") for d in members} for _ in sizes]
    spread = [{d: Handle(f"rank {d}'s sum at the switch") for d in members} for _ in sizes]

    def contribute(device: int) -> Program:
        for number, nbytes in enumerate(sizes):
            yield send(ports[device].up[0], nbytes, chunk=number, contributions=1 << device,
                       extra_latency_s=0.0 if number else protocol.base_s + protocol.step_s)  # fmt: skip
            yield fire(pulled[number][device])

    def own(index: int) -> Program:
        device = members[index]
        for number, nbytes in enumerate(sizes):
            part = split(nbytes, n, element_bytes)[index]
            yield wait(*pulled[number].values())
            yield send(ports[device].down[0], part, chunk=number, contributions=everyone)
            yield send(ports[device].up[1], part, chunk=number, contributions=everyone)
            yield fire(spread[number][device])

    def receive(device: int) -> Program:
        sent: list[Handle] = []
        for number, nbytes in enumerate(sizes):
            yield wait(*spread[number].values())
            sent.append((yield isend(ports[device].down[1], nbytes, chunk=number, contributions=everyone)))
        yield wait(*sent)

    return {d: [contribute(d), own(i), receive(d)] for i, d in enumerate(members)}
