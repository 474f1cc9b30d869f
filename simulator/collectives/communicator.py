"""The library's choice: which algorithm and protocol a call of so many bytes takes on this cluster, then its programs.

For every candidate the closed form `base + steps * step + bytes over the busiest link / what it reaches` is
evaluated and the cheapest taken, as NCCL does. The choice is an estimate; the time that counts comes from the engine,
where the chosen algorithm meets whatever else is on the links.

A message is divided over the cluster's rings (channels) by their shares, and each ring runs beside the others.

Not modelled: NCCL's own measured corrections for the tree (a factor by size in tuning.cc).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from simulator.backend import Backend, Protocol
from simulator.cluster import Cluster, Ring
from simulator.collectives.nvls import nvls_all_reduce
from simulator.collectives.ring import chain, in_slices, ring_all_gather, ring_all_reduce, split
from simulator.collectives.tree import binomial_broadcast, tree_all_reduce
from simulator.engine import Engine
from simulator.verbs import Handle, Program, spawn, wait

CHAIN_SLICES = 512 * 1024, 128
TREE_SLICES = 64 * 1024, 32
NVLS_SLICES = 64 * 1024, 64
"""Bytes of a pipeline's slice, and the greatest number of slices, above which they grow. NCCL's are 64 to 512 KiB, by
protocol, without a greatest number; ours keeps a trace readable and costs a chain `(N - 2)` slices' time."""


@dataclass(frozen=True)
class Choice:
    """What a call will use, and the closed form's estimate of its seconds."""

    algorithm: str
    protocol: Protocol
    estimate_s: float


def slice_bytes(nbytes: int, limits: tuple[int, int]) -> int:
    """How large a pipeline's slices are."""
    least, most = limits
    return max(least, -(-nbytes // most))


@dataclass(frozen=True)
class Communicator:
    """A backend on a cluster."""

    cluster: Cluster
    backend: Backend

    @cached_property
    def _nodes(self) -> list[list[int]]:
        nodes: dict[int, list[int]] = {}
        for index, device in enumerate(self.cluster.devices):
            nodes.setdefault(device.node, []).append(index)
        return list(nodes.values())

    def _seconds_per_byte(self, edges: Sequence[tuple[int, int, float]]) -> float:
        """Seconds that the busiest link needs per byte of the message, given what share each edge carries."""
        load: dict[int, float] = {}
        for source, target, share in edges:
            for link in self.cluster.route(source, target).links:
                load[link] = load.get(link, 0.0) + share
        links = self.cluster.links
        return max((share / links[link].bandwidth_bytes_per_s for link, share in load.items()), default=0.0)

    def _latency(self, edges: Sequence[tuple[int, int, float]]) -> float:
        return max((self.cluster.route(source, target).latency_s for source, target, _ in edges), default=0.0)

    @cached_property
    def _ring_edges(self) -> list[tuple[int, int, float]]:
        return [(a, b, ring.share) for ring in self.cluster.rings
                for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True)]  # fmt: skip

    @cached_property
    def _tree_edges(self) -> list[tuple[int, int, float]]:
        edges = []
        for nodes in (self._nodes, [list(reversed(node)) for node in reversed(self._nodes)]):
            pairs = [(node[i - 1], node[i]) for node in nodes for i in range(1, len(node))]
            pairs += [(nodes[(i - 1) // 2][0], nodes[i][0]) for i in range(1, len(nodes))]
            edges += [(a, b, 0.5) for a, b in pairs] + [(b, a, 0.5) for a, b in pairs]
        return edges

    @cached_property
    def _costs(self) -> dict[str, tuple[int, float, float]]:
        """Per algorithm: steps, latency of a step, seconds per byte at the full bandwidth."""
        n = self.cluster.world_size
        ring, tree = self._ring_edges, self._tree_edges
        depth = 2 * (max(map(len, self._nodes)) - 1 + (len(self._nodes) - 1).bit_length())
        costs = {
            "ring": (2 * (n - 1), self._latency(ring), 2 * (n - 1) / n * self._seconds_per_byte(ring)),
            "tree": (depth, self._latency(tree), self._seconds_per_byte(tree)),
        }
        if self.cluster.multicast:
            ports = [self.cluster.route(device, (device - 1) % n).links[0] for device in range(n)]
            up = min(self.cluster.links[port].bandwidth_bytes_per_s for port in ports)
            costs["nvls"] = 4, self._latency(ring) / 2, (1 + 1 / n) / up
        return costs

    def choose(self, nbytes: int) -> Choice:
        """The cheapest algorithm and protocol for an all-reduce of that many bytes."""
        wanted = self.backend.algorithm
        costs = self._costs
        if wanted == "nvls" and "nvls" not in costs:
            wanted = "ring"
        names = list(costs) if wanted == "auto" else [wanted]
        protocols = {"ring": self.backend.ring_protocols, "tree": self.backend.tree_protocols,
                     "nvls": self.backend.nvls_protocols}  # fmt: skip
        best: Choice | None = None
        for name in names:
            steps, latency, per_byte = costs[name]
            for protocol in protocols[name]:
                seconds = (protocol.base_s + steps * (protocol.step_s + latency)
                           + nbytes * per_byte / protocol.bandwidth_fraction)  # fmt: skip
                if best is None or seconds < best.estimate_s:
                    best = Choice(name, protocol, seconds)
        assert best is not None
        return best

    def all_reduce(self, engine: Engine, nbytes: int, *, element_bytes: int = 4,
                   choice: Choice | None = None) -> list[Program]:  # fmt: skip
        """One program a device; all of them together are the all-reduce."""
        n = self.cluster.world_size
        if n == 1 or nbytes == 0:
            return [iter_nothing() for _ in range(n)]
        choice = choice or self.choose(nbytes)
        programs: dict[int, list[Program]] = {device: [] for device in range(n)}
        if choice.algorithm == "ring":
            for number, (ring, share) in enumerate(self._shares(nbytes, element_bytes)):
                members = ring_all_reduce(engine, ring.order, split(share, n, element_bytes), protocol=choice.protocol,
                                          first_chunk=number * n)  # fmt: skip
                for device, program in zip(ring.order, members, strict=True):
                    programs[device].append(program)
        elif choice.algorithm == "tree":
            size = slice_bytes(nbytes // 2, TREE_SLICES)
            programs = tree_all_reduce(engine, self._nodes, nbytes, element_bytes=element_bytes, slice_bytes=size,
                                       protocol=choice.protocol)  # fmt: skip
        else:
            size = n * slice_bytes(nbytes // n, NVLS_SLICES)
            programs = nvls_all_reduce(engine, range(n), nbytes, element_bytes=element_bytes, slice_bytes=size,
                                       protocol=choice.protocol)  # fmt: skip
        return [beside(programs[device], device) for device in range(n)]

    def all_gather(self, engine: Engine, nbytes: int, *, kind: str) -> dict[int, Program]:
        """Every device contributes that many bytes; along the first ring: one program a device."""
        order = self.cluster.rings[0].order
        protocol = self._chain_protocol(nbytes, len(order))
        sizes = [nbytes] * len(order)
        return dict(zip(order, ring_all_gather(engine, order, sizes, kind=kind, protocol=protocol), strict=True))

    def broadcast(self, engine: Engine, nbytes: int, *, kind: str, members: Sequence[int] | None = None,
                  root: int = 0) -> dict[int, Program]:  # fmt: skip
        """From the root along every ring (gloo: down a binomial tree): one program a member."""
        if self.backend.name == "gloo":
            chosen = range(self.cluster.world_size) if members is None else members
            order = [root, *(member for member in chosen if member != root)]
            protocol = self.backend.ring_protocols[0]
            found = binomial_broadcast(engine, order, nbytes, kind=kind, protocol=protocol)
            return dict(zip(order, found, strict=True))
        return self._chains(engine, nbytes, kind, members, root, reduces=False)

    def reduce(self, engine: Engine, nbytes: int, *, kind: str, members: Sequence[int] | None = None,
               root: int = 0) -> dict[int, Program]:  # fmt: skip
        """Onto the root along every ring: one program a member."""
        return self._chains(engine, nbytes, kind, members, root, reduces=True)

    def _chains(self, engine: Engine, nbytes: int, kind: str, members: Sequence[int] | None, root: int, *,
                reduces: bool) -> dict[int, Program]:  # fmt: skip
        chosen = list(range(self.cluster.world_size) if members is None else members)
        programs: dict[int, list[Program]] = {device: [] for device in chosen}
        protocol = self._chain_protocol(nbytes, len(chosen))
        first_chunk = 0
        for ring, share in self._shares(nbytes, 4):
            start = ring.order.index(root)
            order = [device for device in (*ring.order[start:], *ring.order[:start]) if device in programs]
            if reduces:
                order = [*order[1:], root]
            sizes = in_slices(share, slice_bytes(share, CHAIN_SLICES), 4)
            stages = chain(engine, order, sizes, kind=kind, reduces=reduces, protocol=protocol, first_chunk=first_chunk)
            for device, program in zip(order, stages, strict=True):
                programs[device].append(program)
            first_chunk += len(sizes)
        return {device: beside(found, device) for device, found in programs.items()}

    def _chain_protocol(self, nbytes: int, n: int) -> Protocol:
        per_byte = self._seconds_per_byte(self._ring_edges)
        protocols = self.backend.chain_protocols or self.backend.ring_protocols
        return min(protocols, key=lambda p: p.base_s + (n - 1) * p.step_s
                   + nbytes * per_byte / p.bandwidth_fraction)  # fmt: skip

    def _shares(self, nbytes: int, element_bytes: int) -> list[tuple[Ring, int]]:
        """The bytes of each ring: whole elements, the last ring takes what is left."""
        left = nbytes
        shares = []
        for ring in self.cluster.rings[:-1]:
            part = min(left, int(nbytes * ring.share) // element_bytes * element_bytes)
            shares.append((ring, part))
            left -= part
        shares.append((self.cluster.rings[-1], left))
        return [(ring, part) for ring, part in shares if part]


def iter_nothing() -> Program:
    """A program that is done at once."""
    return
    yield ()


def beside(programs: list[Program], device: int) -> Program:
    """One program that runs several side by side."""
    if len(programs) == 1:
        return programs[0]
    return _beside(programs, device)


def _beside(programs: list[Program], device: int) -> Program:
    started: list[Handle] = []
    for number, program in enumerate(programs):
        started.append((yield spawn(program, f"channel {number}", device, f"channel {number}")))
    yield wait(*started)
