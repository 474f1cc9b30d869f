"""How fast the simulator is, beside what others reach: `make bench`, or `python -m tests.bench`.

Times are CPU seconds of this process, the median of several runs. The figures of others, and our aims, are from one
machine (2 cores of an AMD EPYC, Python 3.11), on which replacing the head of a heap of 64 tuples takes 177 ns. The
same loop is timed here, and the last column divides by it: what the figure would be on that machine.

What is simulated: every ring is step by step, with a trace of every transfer and the contributions that it carries, on
the engine that also runs DataParallel and shared links.
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace

from simulator.cluster import Device, Link, Route
from simulator.collectives.ring import ring_all_reduce, split
from simulator.engine import Engine
from simulator.presets.build import build_scenario
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario
from simulator.simulate import simulate
from simulator.trace import Trace
from simulator.verbs import Handle, Program, busy, fire, send, wait

REFERENCE_NS = 177
BYTES = 100_000_000


def machine_ns(steps: int = 100_000) -> float:
    """Nanoseconds to replace the head of a heap of 64 tuples, in plain Python."""
    heap = [(float(number), number) for number in range(64)]
    heapify(heap)
    start = time.process_time()
    for _ in range(steps):
        head = heap[0]
        heapreplace(heap, (head[0] + 1.5, head[1]))
    return (time.process_time() - start) / steps * 1e9


@dataclass(frozen=True)
class Platform:
    """Devices and links with a rule for routes; no graph to search."""

    devices: tuple[Device, ...]
    links: tuple[Link, ...]
    rule: Callable[[int, int], tuple[int, ...]]

    def route(self, source: int, target: int) -> Route:
        """The route by the rule."""
        path = self.rule(source, target)
        return Route(path, sum(self.links[index].latency_s for index in path),
                     min(self.links[index].bandwidth_bytes_per_s for index in path))  # fmt: skip


def gpus(n: int) -> tuple[Device, ...]:
    """Devices by number."""
    return tuple(Device(f"gpu{index}") for index in range(n))


def ring_platform(n: int) -> Platform:
    """Each rank has a link of its own to the next one."""
    links = tuple(Link(f"gpu{r}", f"gpu{(r + 1) % n}", 12.5e9, 5e-6) for r in range(n))
    return Platform(gpus(n), links, lambda source, target: (source,))


def nic_platform(n: int = 64, nics: int = 8) -> Platform:
    """Ranks round-robin over nodes with one NIC each, so that every step of a ring crosses two of them."""
    links = [Link(f"nic{nic}", "out", 12.5e9, 2.5e-6) for nic in range(nics)]
    links += [Link("in", f"nic{nic}", 12.5e9, 2.5e-6) for nic in range(nics)]
    return Platform(gpus(n), tuple(links), lambda source, target: (source % nics, nics + target % nics))


def ring_engine(platform: Platform, starts: Sequence[float] = ()) -> Engine:
    """An engine with one ring all-reduce ready to run."""
    n = len(platform.devices)
    engine = Engine(platform)
    for rank, program in enumerate(ring_all_reduce(engine, range(n), split(BYTES, n, 4))):
        engine.start(program, name="ring", rank=rank, device=rank, resource="host",
                     at_s=starts[rank] if starts else 0.0)  # fmt: skip
    return engine


def random_starts(n: int, spread_s: float = 200e-6) -> list[float]:
    """The same every time."""
    source = random.Random(1)
    return [source.uniform(0, spread_s) for _ in range(n)]


def contention_engine(layers: int = 50, nbytes: int = 2_000_000, every_s: float = 0.4e-3) -> Engine:
    """8 GPUs push each gradient to the host when it is ready and pull it back when all 8 have come.

    Two GPUs share a PCIe switch, four a socket, 12.5 GB/s; the host's memory is at the first socket, 16 GB/s from
    the second. A GPU pushes one gradient at a time and pulls one at a time.
    """
    names: dict[tuple[str, str], int] = {}
    links: list[Link] = []

    def cable(a: str, b: str, bandwidth: float) -> None:
        for source, target in ((a, b), (b, a)):
            names[source, target] = len(links)
            links.append(Link(source, target, bandwidth))

    for g in range(8):
        cable(f"gpu{g}", f"switch{g // 2}", 12.5e9)
    for s in range(4):
        cable(f"switch{s}", f"cpu{s // 2}", 12.5e9)
    cable("cpu0", "cpu1", 16e9)

    def up(g: int) -> list[str]:
        return [f"gpu{g}", f"switch{g // 2}", f"cpu{g // 4}", *(["cpu0"] if g >= 4 else [])]

    def rule(source: int, target: int) -> tuple[int, ...]:
        path = up(source) if target < 0 else up(target)[::-1]
        return tuple(names[edge] for edge in zip(path, path[1:], strict=False))

    platform = Platform(gpus(8), tuple(links), rule)
    engine = Engine(platform)
    ready = [[Handle(f"gradient {k}") for k in range(layers)] for _ in range(8)]
    pushed = [[Handle(f"push {k}") for k in range(layers)] for _ in range(8)]

    def backward(g: int) -> Program:
        for k in range(layers):
            yield busy(every_s, f"layer {k}")
            yield fire(ready[g][k])

    def push(g: int) -> Program:
        channel = engine.channel(g, -1, "push", route=platform.route(g, -1))
        for k in range(layers):
            yield wait(ready[g][k])
            yield send(channel, nbytes)
            yield fire(pushed[g][k])

    def pull(g: int) -> Program:
        channel = engine.channel(-1, g, "pull", route=platform.route(-1, g))
        for k in range(layers):
            yield wait(*(handles[k] for handles in pushed))
            yield send(channel, nbytes)

    for g in range(8):
        for program, resource in ((backward(g), "compute"), (push(g), "push"), (pull(g), "pull")):
            engine.start(program, name=resource, rank=g, device=g, resource=resource)
    return engine


def resnet50_steps(cluster: str = "8xV100-pcie") -> tuple[Scenario, Scenario]:
    """One steady step of each strategy on eight devices."""
    scenario = build_scenario("resnet50", cluster, strategy=DataParallel())
    return scenario, build_scenario("resnet50", cluster, strategy=DistributedDataParallel())


def cpu_s(action: Callable[[], object], runs: int) -> float:
    """Median CPU seconds of an action."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        action()
        times.append(time.process_time() - start)
    return statistics.median(times)


def engine_s(build: Callable[[], Engine], runs: int) -> tuple[float, Trace]:
    """Median CPU seconds of a run without its preparation, and the last trace."""
    times = []
    for _ in range(runs):
        engine = build()
        start = time.process_time()
        trace = engine.run()
        times.append(time.process_time() - start)
    return statistics.median(times), trace


def import_s(runs: int = 5) -> float:
    """Median wall seconds of a fresh process that imports what a simulation needs, less one that imports nothing."""

    def wall(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        return time.perf_counter() - start

    code = "import simulator.presets.build, simulator.compare"
    return statistics.median(wall(code) - wall("pass") for _ in range(runs))


def main() -> None:
    """Print the table."""
    index = statistics.median(machine_ns() for _ in range(9))
    slower = index / REFERENCE_NS
    print(f"machine index: {index:.0f} ns a heap step (reference {REFERENCE_NS} ns): {slower:.2f} times as long\n")
    print(f"{'':46}{'here':>10}{'aim':>10}{'scaled':>10}   others")

    def row(what: str, value: float, unit: str, aim: str, others: str = "", *, rate: bool = False) -> None:
        scaled = value * slower if rate else value / slower
        print(f"{what:46}{f'{value:.0f} {unit}':>10}{aim:>10}{f'{scaled:.0f} {unit}':>10}   {others}")

    for cluster in ("8xV100-pcie", "8xV100-dgx1"):
        steps = resnet50_steps(cluster)
        seconds = sum(cpu_s(lambda step=step: simulate(step), 7) for step in steps)  # type: ignore[misc]
        row(f"ResNet-50, {cluster}, both strategies", seconds * 1e3, "ms", "< 50 ms", "TrioSim, DDP alone: 580 ms")
    for n, runs, aim, others in (
        (8, 21, "", "SimPy 190, lean 680; SimGrid 100 to 230; ASTRA-sim 650 to 770"),
        (64, 11, "> 400 k/s", "SimPy 180, lean 610; SimGrid 500 to 700; ASTRA-sim 1430 to 1920"),
        (512, 3, "> 250 k/s", "SimPy 155, lean 540; SimGrid 560 to 600; ASTRA-sim 1260 to 1870"),
    ):
        platform = ring_platform(n)
        seconds, trace = engine_s(lambda p=platform: ring_engine(p), runs)  # type: ignore[misc]
        row(f"ring all-reduce of {n} ranks, transfers", len(trace.raw_transfers) / seconds / 1e3, "k/s", aim, others,
            rate=True)  # fmt: skip
    starts = random_starts(64)
    seconds, trace = engine_s(lambda: ring_engine(nic_platform(), starts), 5)
    row("64 ranks over 8 NICs, random starts, transfers", len(trace.raw_transfers) / seconds / 1e3, "k/s", "> 40 k/s",
        "SimPy with a NIC resource: 103 (FIFO, not fair)", rate=True)  # fmt: skip
    seconds, trace = engine_s(contention_engine, 9)
    row(
        f"8 GPUs push and pull on PCIe, {len(trace.raw_transfers)} flows",
        seconds * 1e3,
        "ms",
        "< 20 ms",
        "SimGrid: 14 ms",
    )
    row(
        "import what a simulation needs (wall)", import_s() * 1e3, "ms", "< 300 ms", "numpy 70 to 160 ms, torch 1400 ms"
    )


if __name__ == "__main__":
    main()
