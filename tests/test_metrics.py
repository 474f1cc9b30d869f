"""The numbers of a trace, on traces small enough to do by hand."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.backend import PLAIN
from simulator.buckets import BucketOptions
from simulator.intervals import difference, length, union
from simulator.metrics import Metrics, algbw, busbw
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Host, Scenario
from simulator.simulate import simulate
from simulator.trace import LinkFact, Trace
from tests.samples import layers_of, star

FREE = Host(device_memory_bytes_per_s=1e30)


def span(number: int, kind: str, device: int, start: float, end: float | None, cause: int | None = None) -> tuple:
    return number, kind, kind, device, device, "compute", start, end, 0, None, None, None, None, cause, "", 0, None


def transfer(number: int, kind: str, source: int, target: int, issue: float, end: float | None, nbytes: int,
             route: tuple[int, ...] = (0,)) -> tuple:  # fmt: skip
    return number, kind, source, target, route, issue, issue, end, nbytes, None, None, None, None, None, None


def trace_of(spans: Sequence[tuple], transfers: Sequence[tuple] = (), memory: Sequence[tuple] = (),
             devices: int = 2) -> Trace:  # fmt: skip
    names = tuple(f"gpu{device}" for device in range(devices))
    links = (LinkFact("a->b", "a", "b", 10.0, 0.0, ""), LinkFact("b->c", "b", "c", 10.0, 0.0, ""))
    ends = [row[7] for row in (*spans, *transfers) if row[7] is not None]
    return Trace(names, links, spans, transfers, memory, end_s=max(ends, default=0.0))


def test_compute_is_that_of_the_device_that_computes_longest_and_overlaps_count_once() -> None:
    metrics = Metrics(trace_of([span(1, "forward", 0, 0.0, 2.0), span(2, "backward", 0, 1.0, 4.0),
                                span(3, "forward", 1, 0.0, 3.5), span(4, "host", 1, 0.0, 9.0)]))  # fmt: skip
    assert metrics.compute_s == 4.0
    assert metrics.step_s == 9.0


def test_communication_is_spans_and_transfers_of_the_busiest_device() -> None:
    copies = [transfer(2, "copy", 0, 1, 2.0, 5.0, 10), transfer(3, "copy", -1, 1, 0.0, 1.0, 10)]
    metrics = Metrics(trace_of([span(1, "all_reduce", 0, 1.0, 3.0)], copies))
    assert metrics.communication_intervals == [[(1.0, 5.0)], [(0.0, 1.0), (2.0, 5.0)]]
    assert (metrics.busiest_device, metrics.comm_s) == (0, 4.0)


def test_overlap_is_the_part_of_communication_during_which_the_device_computes() -> None:
    metrics = Metrics(trace_of([span(1, "backward", 0, 0.0, 3.0), span(2, "all_reduce", 0, 1.0, 5.0)]))
    assert metrics.overlap == (3.0 - 1.0) / 4.0
    assert metrics.exposed_comm_s == 5.0 - 3.0


def test_without_communication_nothing_overlaps_and_nothing_is_exposed() -> None:
    metrics = Metrics(trace_of([span(1, "forward", 0, 0.0, 3.0)]))
    assert (metrics.comm_s, metrics.overlap, metrics.exposed_comm_s) == (0.0, 0.0, 0.0)


def test_waiting_for_others_transfers_is_exposed_communication() -> None:
    """Device 0 sends nothing itself, but its compute waits for what the others reduce."""
    rows = [span(1, "forward", 0, 0.0, 1.0), span(2, "reduce", 1, 1.0, 4.0, 1), span(3, "backward", 0, 4.0, 5.0, 2)]
    metrics = Metrics(trace_of(rows))
    assert metrics.waits_for_transfers(0) == [(1.0, 4.0)]


def test_bytes_by_kind_device_and_link() -> None:
    rows = [transfer(1, "scatter", 0, 1, 0.0, 1.0, 100, (0, 1)), transfer(2, "gather", 1, 0, 1.0, 2.0, 40, (1,)),
            transfer(3, "gather", 1, 0, 1.0, None, 7), transfer(4, "input", -1, 0, 0.0, 1.0, 5, ())]  # fmt: skip
    metrics = Metrics(trace_of([], rows))
    assert metrics.bytes_by_kind == {
        "scatter": {"sent": [100, 0], "received": [0, 100]},
        "gather": {"sent": [0, 40], "received": [40, 0]},
        "input": {"sent": [0, 0], "received": [5, 0]},
    }
    assert (metrics.bytes_by_device("sent"), metrics.bytes_by_device("received")) == ([100, 40], [45, 100])
    assert metrics.bytes_by_link == [100, 140]


def test_peak_memory_is_the_fullest_moment_and_the_context_stands_apart() -> None:
    changes = [(0.0, 0, "context", 1000), (0.0, 0, "parameters", 10), (1.0, 0, "activations", 30),
               (2.0, 0, "activations", -30), (2.0, 0, "gradients", 25), (0.0, 1, "parameters", 3)]  # fmt: skip
    metrics = Metrics(trace_of([], memory=changes))
    assert metrics.peak_memory_bytes == [40, 3]
    assert metrics.context_bytes == [1000, 0]
    assert metrics.peak_memory[0] == {"context": 1000, "parameters": 10, "activations": 30}


def test_bus_bandwidth_is_what_each_link_of_a_ring_would_carry() -> None:
    """nccl-tests' PERFORMANCE.md: busbw = algbw * 2 (n - 1) / n."""
    assert algbw(1_000_000, 1e-3) == 1e9
    assert busbw(1_000_000, 1e-3, 4) == pytest.approx(1e9 * 2 * 3 / 4)
    assert busbw(1_000_000, 1e-3, 1) == 0.0


def test_a_plain_rings_bus_bandwidth_is_the_links() -> None:
    n, nbytes, bandwidth = 4, 4_000_000, 12.5e9
    trace = simulate(Scenario(layers_of([nbytes], 0.0, 0.0), star(n, bandwidth), DistributedDataParallel(), PLAIN, 1,
                              host=FREE, optimizer=OPTIMIZERS["none"]))  # fmt: skip
    assert busbw(nbytes, Metrics(trace).comm_s, n) == pytest.approx(bandwidth, rel=1e-12)


def test_hidden_and_exposed_communication_make_up_all_of_it() -> None:
    model = layers_of([4_000_000] * 4, 1e-3, 1e-3)
    options = BucketOptions(bucket_cap_mb=0)
    metrics = Metrics(simulate(Scenario(model, star(4, 4e9), DistributedDataParallel(options), PLAIN, 1, host=FREE,
                                        optimizer=OPTIMIZERS["none"])))  # fmt: skip
    assert 0.0 < metrics.overlap < 1.0
    assert metrics.exposed_comm_s == pytest.approx(metrics.comm_s * (1 - metrics.overlap), rel=1e-9)
    assert metrics.step_s == pytest.approx(metrics.compute_s + metrics.exposed_comm_s, rel=1e-9)


def test_data_parallel_hides_nothing() -> None:
    model = layers_of([4_000_000] * 4, 1e-3, 1e-3, input_bytes=1000, output_bytes=10)
    metrics = Metrics(simulate(Scenario(model, star(4, 4e9), DataParallel("peer_copy"), PLAIN, 2, host=FREE)))
    assert metrics.overlap == 0.0
    assert metrics.step_s == pytest.approx(metrics.compute_s + metrics.exposed_comm_s, rel=1e-9)


# ---- intervals


SETS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)
"""Of whole numbers, so that a set of times is a set of unit cells."""


def cells(intervals) -> set[int]:
    return {cell for start, end in intervals for cell in range(int(start), int(end))}


@given(SETS, SETS)
def test_intervals_are_sets_of_time(these, those) -> None:
    assert cells(union(these)) == cells(these)
    assert cells(difference(these, those)) == cells(these) - cells(those)
    assert length(these) == len(cells(these))


@given(SETS, SETS)
def test_results_are_sorted_and_disjoint(these, those) -> None:
    for found in (union(these), difference(these, those)):
        assert all(start < end for start, end in found)
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(found))
    assert all(earlier[1] < later[0] for earlier, later in pairwise(union(these)))
