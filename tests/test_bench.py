"""What the benchmark measures is what it says, and costs no more events than it has to. Counts and ratios, no times."""

import pytest

from simulator.collectives.vectorised import ring_times
from simulator.engine import Engine
from simulator.simulate import simulate
from simulator.trace import Trace
from tests import bench, laws


def run_counting(engine: Engine) -> tuple[Trace, int, int]:
    """The trace, how many events went on the calendar, how often rates were solved."""
    network = engine._network
    settle, solved = network.settle, []

    def counted(now: float) -> None:
        solved.append(now)
        settle(now)

    network.settle = counted  # type: ignore[method-assign]
    trace = engine.run()
    return trace, next(engine._serial) - 1, len(solved)


@pytest.mark.parametrize("n", [8, 64])
def test_a_ring_on_its_own_links_costs_one_event_a_transfer_and_no_solve(n: int) -> None:
    trace, events, solves = run_counting(bench.ring_engine(bench.ring_platform(n)))
    assert len(trace.raw_transfers) == 2 * n * (n - 1)
    assert events == len(trace.raw_transfers) + n
    assert solves == 0


def test_the_benchmarks_ring_is_the_vectorised_one() -> None:
    n = 64
    trace = bench.ring_engine(bench.ring_platform(n)).run()
    ends = ring_times([bench.BYTES // n] * n, [0.0] * n, [5e-6] * n, [12.5e9] * n)
    assert trace.end_s == max(ends)
    laws.no_link_is_overloaded(trace)


def test_ranks_that_share_nics_are_solved_once_an_instant() -> None:
    n = 64
    trace, _, solves = run_counting(bench.ring_engine(bench.nic_platform(), bench.random_starts(n)))
    assert len(trace.raw_transfers) == 2 * n * (n - 1)
    instants = {time for t in trace.transfers for time in (t.start_s, t.end_s)}
    assert solves <= len(instants)
    laws.no_link_is_overloaded(trace)


def test_the_contention_case_has_800_flows_and_keeps_its_links_full() -> None:
    trace, _, solves = run_counting(bench.contention_engine())
    assert len(trace.raw_transfers) == 8 * 50 * 2
    assert trace.outcome == "finished"
    laws.no_link_is_overloaded(trace)
    instants = {time for t in trace.transfers for time in (t.start_s, t.end_s)}
    assert solves <= len(instants)
    # Four GPUs' gradients cross the sockets; the last is pulled after the last was pushed.
    crossing = 4 * 50 * 2_000_000 / 16e9
    assert trace.end_s >= 0.4e-3 + crossing
    assert trace.end_s >= 50 * 0.4e-3


def test_resnet50_on_8_devices_keeps_every_layer_and_transfer() -> None:
    parallel, distributed = (simulate(scenario) for scenario in bench.resnet50_steps())
    for trace in (parallel, distributed):
        layers = [span for span in trace.spans if span.kind in ("forward", "backward")]
        assert len(layers) == 8 * 2 * len(bench.resnet50_steps()[0].model.layers)
        laws.check(trace)


def test_a_transfer_costs_at_most_forty_heap_steps() -> None:
    """About ten on an idle machine; the least of a few runs, because other work only ever adds."""
    index_s = min(bench.machine_ns(20_000) for _ in range(5)) * 1e-9
    platform = bench.ring_platform(64)
    seconds = min(bench.engine_s(lambda: bench.ring_engine(platform), 1)[0] for _ in range(5))
    assert seconds / (2 * 64 * 63) < 40 * index_s
