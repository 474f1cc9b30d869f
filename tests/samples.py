"""Small models, clusters and programs for the tests, and readings of a trace that several of them need."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from simulator.cluster import Cluster, Device, Link, Route
from simulator.engine import Engine
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.facts import load_facts
from simulator.trace import Trace, Transfer
from simulator.verbs import Program


@dataclass(frozen=True)
class Wires:
    """Devices and links without a graph: every channel brings its own route."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]

    def route(self, source: int, target: int) -> Route:
        raise AssertionError("give the channel its route")

    @staticmethod
    def of(bandwidths: Iterable[float], devices: int = 2) -> "Wires":
        """One link for each bandwidth, without latency of its own."""
        links = tuple(Link(f"wire{index}", "", bandwidth) for index, bandwidth in enumerate(bandwidths))
        return Wires(tuple(Device(f"gpu{index}") for index in range(devices)), links)

    def path(self, links: Sequence[int], latency_s: float = 0.0) -> Route:
        """The route over these links."""
        return Route(tuple(links), latency_s, min(self.links[index].bandwidth_bytes_per_s for index in links))


def star(n: int, bandwidth: float, latency_s: float = 0.0, *, memory_bytes: int = 0) -> Cluster:
    """Devices on one switch, full duplex; the latency is that of a whole path."""
    links = []
    for index in range(n):
        links += [Link(f"gpu{index}", "switch", bandwidth, latency_s / 2),
                  Link("switch", f"gpu{index}", bandwidth, latency_s / 2)]  # fmt: skip
    return Cluster("star", tuple(Device(f"gpu{index}", memory_bytes=memory_bytes) for index in range(n)), tuple(links))


def loop(bandwidths: Sequence[float], latencies: Sequence[float]) -> Cluster:
    """Device r has a link of its own to r + 1, and the way back round goes through no device but a slow switch."""
    n = len(bandwidths)
    links = [Link(f"gpu{r}", f"gpu{(r + 1) % n}", bandwidths[r], latencies[r], "ring") for r in range(n)]
    slow = min(bandwidths) / 1e6
    for r in range(n):
        links += [Link(f"gpu{r}", "switch", slow), Link("switch", f"gpu{r}", slow)]
    return Cluster("loop", tuple(Device(f"gpu{r}") for r in range(n)), tuple(links))


def run(cluster: Cluster | Wires, build: Callable[[Engine], Sequence[Program]], starts: Sequence[float] = ()) -> Trace:
    """Run one program a device and return the trace. `build` gets the engine to make channels on."""
    engine = Engine(cluster)
    for rank, program in enumerate(build(engine)):
        engine.start(program, name=f"rank {rank}", rank=rank, device=rank, resource="host",
                     at_s=starts[rank] if starts else 0.0)  # fmt: skip
    return engine.run()


def rate_steps(transfer: Transfer) -> list[tuple[float, float, float]]:
    """A transfer's rate as (from, to, bytes per second)."""
    assert transfer.end_s is not None
    if transfer.rates is None:
        if transfer.end_s == transfer.start_s:
            return []
        return [(transfer.start_s, transfer.end_s, transfer.nbytes / (transfer.end_s - transfer.start_s))]
    times = [time for time, _ in transfer.rates] + [transfer.end_s]
    return [(start, end, rate) for start, end, (_, rate) in zip(times, times[1:], transfer.rates) if end > start]


def replay(transfers: Sequence[Transfer], members: Sequence[int],
           parts: Callable[[int], Iterable[int]] = lambda chunk: (chunk,)) -> dict[tuple[int, int], int]:  # fmt: skip
    """What each (device, chunk) sums after the transfers of one all-reduce, as a mask of ranks.

    Asserts that nobody sends what it does not hold yet, and that no rank is ever added twice. `parts` says which
    pieces a chunk is made of, where an algorithm sends both whole chunks and parts of them.
    """
    everyone = sum(1 << member for member in members)
    chunks = {part for t in transfers for part in parts(t.chunk or 0)}
    held = {(member, part): 1 << member for member in members for part in chunks}
    events = [(t.end_s, 0, t.id, t) for t in transfers] + [(t.issue_s, 1, t.id, t) for t in transfers]
    for _, issued, _, t in sorted(events):
        assert t.contributions is not None
        for part in parts(t.chunk or 0):
            if issued:
                assert t.contributions & ~held.get((t.source, part), 0) == 0, f"{t} sends what it does not hold"
            elif t.contributions == everyone:
                held[t.target, part] = everyone
            else:
                assert held.get((t.target, part), 0) & t.contributions == 0, f"{t} adds a rank twice"
                held[t.target, part] = held.get((t.target, part), 0) | t.contributions
    return {place: mask for place, mask in held.items() if place[0] >= 0}


def layers_of(gradients: Sequence[int], forward_s: float, backward_s: float, *, host_s: float = 0.0,
              activation_bytes: int = 0, dtype_bytes: int = 4, output_bytes: int = 0, input_bytes: int = 0,
              buffers: Sequence[int] = ()) -> ModelProfile:  # fmt: skip
    """A model of one parameter a layer with gradients of these many bytes; every layer takes the same time."""
    assert dtype_bytes == 4
    parameters = tuple(Parameter(f"p{i}", (nbytes // 4,)) for i, nbytes in enumerate(gradients))
    layers = tuple(
        Layer(f"layer {i}", (p.name,), Cost(forward_s), Cost(backward_s), host_s, host_s, activation_bytes)
        for i, p in enumerate(parameters)
    )
    return ModelProfile(
        "layers", parameters, layers, buffers=tuple(Parameter(f"b{i}", (n // 4,)) for i, n in enumerate(buffers)),
        input_bytes_per_sample=input_bytes, output_bytes_per_sample=output_bytes,
    )  # fmt: skip


def preset(name: str, step_s: float = 0.03, *, host_s: float = 0.0) -> ModelProfile:
    """A preset's shapes and ready order with simple costs: forward a third, backward two thirds of step_s."""
    facts = load_facts(name)
    count = len(facts.layers)
    return facts.profile([Cost(step_s / 3 / count)] * count, [Cost(step_s * 2 / 3 / count)] * count, device="even",
                         forward_host_s=[host_s] * count, backward_host_s=[host_s] * count)  # fmt: skip
