"""Trees: the binomial one of textbooks, and the pipelined one that NCCL builds.

Binomial: reduce to the root, then broadcast, one whole-buffer transfer a rank at a time: `2 log2 N (latency + S/B)`
for N a power of two. Against the ring it wins below `S* = latency B ((N-1) - log2 N) / (log2 N - (N-1)/N)`.

NCCL's: a chain inside each node, a binary tree between the nodes' leaders, in slices, and a second, mirrored tree
for the other half of the bytes, so that each cable carries S in each direction: about `S/B` for a bandwidth B a
direction (twice that on a switch, where a device of the chain has one port to two neighbours), with `2 (G - 1)` steps
inside a node of G and `2 log2(nodes)` between (NCCL tuning.cc).

Not modelled: NCCL's split tree, in which a node's leader is two GPUs.
"""

from collections.abc import Sequence

from simulator.backend import PLAIN_PROTOCOL, Protocol
from simulator.collectives.ring import in_slices, split
from simulator.engine import Engine
from simulator.verbs import Handle, Program, fire, isend, recv, send, wait


def binomial_all_reduce(engine: Engine, members: Sequence[int], nbytes: int, *, kind: str = "all_reduce",
                        protocol: Protocol = PLAIN_PROTOCOL) -> list[Program]:  # fmt: skip
    """Reduce to the first member in log2 N rounds, then broadcast in as many."""
    n = len(members)
    fraction = protocol.bandwidth_fraction
    rounds = [1 << power for power in range((n - 1).bit_length())]
    up = {}
    for distance in rounds:
        for index in range(distance, n, 2 * distance):
            up[index] = engine.channel(members[index], members[index - distance], kind, bandwidth_fraction=fraction)
    down = {index: engine.channel(members[index - (index & -index)], members[index], kind, bandwidth_fraction=fraction)
            for index in range(1, n)}  # fmt: skip

    def member(index: int) -> Program:
        mask = 1 << members[index]
        extra = protocol.base_s
        parent_round = index & -index if index else 1 << n.bit_length()
        for distance in rounds:
            if distance >= parent_round:
                break
            if index + distance < n:
                message = yield recv(up[index + distance])
                mask |= message.contributions
        if index:
            yield send(up[index], nbytes, contributions=mask, extra_latency_s=extra + protocol.step_s)
            message = yield recv(down[index])
            mask = message.contributions
        for distance in reversed(rounds):
            if distance < parent_round and index + distance < n:
                yield send(down[index + distance], nbytes, contributions=mask, extra_latency_s=protocol.step_s)

    return [member(index) for index in range(n)]


def binomial_broadcast(engine: Engine, members: Sequence[int], nbytes: int, *, kind: str,
                       protocol: Protocol = PLAIN_PROTOCOL) -> list[Program]:  # fmt: skip
    """From the first member, whole buffers, in ceil(log2 N) rounds. Gloo's broadcast."""
    n = len(members)
    fraction = protocol.bandwidth_fraction
    down = {index: engine.channel(members[index - (index & -index)], members[index], kind, bandwidth_fraction=fraction)
            for index in range(1, n)}  # fmt: skip

    def member(index: int) -> Program:
        if index:
            yield recv(down[index])
        span = index & -index if index else 1 << (n - 1).bit_length()
        while span > 1:
            span //= 2
            if index + span < n:
                yield send(down[index + span], nbytes, contributions=1 << members[0], extra_latency_s=protocol.step_s)

    return [member(index) for index in range(n)]


def tree_all_reduce(engine: Engine, nodes: Sequence[Sequence[int]], nbytes: int, *, element_bytes: int = 4,
                    slice_bytes: int | None = None, kind: str = "all_reduce",
                    protocol: Protocol = PLAIN_PROTOCOL) -> dict[int, list[Program]]:  # fmt: skip
    """For each device its programs (two trees, each up and down), to run side by side."""
    halves = split(nbytes, 2, element_bytes)
    mirrored = [list(reversed(node)) for node in reversed(nodes)]
    programs: dict[int, list[Program]] = {member: [] for node in nodes for member in node}
    first_chunk = 0
    for half, order in ((halves[0], [list(node) for node in nodes]), (halves[1], mirrored)):
        if half:
            sizes = in_slices(half, slice_bytes or half, element_bytes)
            for device, program in _one_tree(engine, order, sizes, kind, protocol, first_chunk):
                programs[device].append(program)
            first_chunk += len(sizes)
    return programs


def _one_tree(engine: Engine, nodes: Sequence[Sequence[int]], sizes: Sequence[int], kind: str,
              protocol: Protocol, first_chunk: int) -> list[tuple[int, Program]]:  # fmt: skip
    parent: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for position, device in enumerate(node[1:], 1):
            parent[device] = node[position - 1]
        if index:
            parent[node[0]] = nodes[(index - 1) // 2][0]
    devices = [device for node in nodes for device in node]
    children: dict[int, list[int]] = {device: [] for device in devices}
    for child, above in parent.items():
        children[above].append(child)
    fraction = protocol.bandwidth_fraction
    up = {d: engine.channel(d, p, kind, bandwidth_fraction=fraction) for d, p in parent.items()}
    down = {d: engine.channel(p, d, kind, bandwidth_fraction=fraction) for d, p in parent.items()}
    summed = [Handle("the sum at the tree's root") for _ in sizes]
    everyone = sum(1 << device for device in devices)

    def extra(number: int, leaf: bool) -> float:
        return (0.0 if number else protocol.step_s) + (protocol.base_s if leaf and not number else 0.0)

    def rise(device: int) -> Program:
        sent: Handle | None = None
        for number, nbytes in enumerate(sizes):
            mask = 1 << device
            for child in children[device]:
                message = yield recv(up[child])
                mask |= message.contributions
            if device in parent:
                sent = yield isend(up[device], nbytes, chunk=first_chunk + number, contributions=mask,
                                   extra_latency_s=extra(number, not children[device]))  # fmt: skip
            else:
                yield fire(summed[number])
        if sent is not None:
            yield wait(sent)

    def fall(device: int) -> Program:
        sent: list[Handle] = []
        for number, nbytes in enumerate(sizes):
            if device in parent:
                yield recv(down[device])
            else:
                yield wait(summed[number])
            for child in children[device]:
                handle = yield isend(down[child], nbytes, chunk=first_chunk + number, contributions=everyone,
                                     extra_latency_s=extra(number, False))  # fmt: skip
                sent.append(handle)
        yield wait(*sent)

    return [(device, build(device)) for device in devices for build in (rise, fall)]
