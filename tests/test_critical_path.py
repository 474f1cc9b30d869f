"""The critical path: a chain of causes without a gap, from the start of the step to its end."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings

from simulator.backend import PLAIN
from simulator.buckets import BucketOptions
from simulator.critical_path import critical_path, seconds_by_cause, walk_back
from simulator.engine import Engine
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Host, Scenario
from simulator.simulate import simulate
from simulator.trace import Trace
from simulator.verbs import busy, recv, send
from tests.samples import layers_of, preset, run, star
from tests.test_laws import HOST, scenarios

FREE = Host(device_memory_bytes_per_s=1e30)


def is_gapless(trace: Trace) -> bool:
    pieces = critical_path(trace)
    if trace.end_s == 0:
        return pieces == []
    return (pieces[0].start_s, pieces[-1].end_s) == (0.0, trace.end_s) and all(
        earlier.end_s == later.start_s for earlier, later in pairwise(pieces)
    )


@given(scenarios())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_the_path_has_no_gap_from_0_to_the_end_of_any_run(scenario: Scenario) -> None:
    trace = simulate(scenario)
    assert is_gapless(trace)
    assert sum(seconds_by_cause(critical_path(trace)).values()) == pytest.approx(trace.end_s, rel=1e-9)


@pytest.mark.parametrize("strategy", [DataParallel(), DataParallel("peer_copy"), DistributedDataParallel()])
@pytest.mark.parametrize("cluster", ["8xV100-dgx1", "4xA100", "8xH100", "2x2080Ti-pcie"])
def test_the_path_has_no_gap_on_presets(cluster: str, strategy) -> None:
    machine = load_cluster(cluster)
    model = preset("resnet50", host_s=2e-5)
    assert is_gapless(simulate(Scenario(model, machine, strategy, backend_for(machine), host=HOST, iterations=(0, 3))))


def names(trace: Trace) -> list[str]:
    return [piece.name for piece in critical_path(trace)]


def test_a_step_bound_by_compute_waits_for_compute() -> None:
    """The first layer's bucket, ready last, is too small to show."""
    model = layers_of([16, 16_000], 0.0, 1.0)
    trace = simulate(Scenario(model, star(2, 1e9), DistributedDataParallel(BucketOptions(bucket_cap_mb=0)), PLAIN, 1,
                              host=FREE, optimizer=OPTIMIZERS["none"]))  # fmt: skip
    assert names(trace) == ["layer 1 backward", "layer 0 backward", "all_reduce bucket 1"]
    assert seconds_by_cause(critical_path(trace))["communication"] == pytest.approx(16 / 1e9)


def test_a_step_bound_by_communication_waits_for_the_buckets_in_turn() -> None:
    model = layers_of([8_000_000] * 3, 0.0, 1e-4)
    trace = simulate(Scenario(model, star(2, 1e9), DistributedDataParallel(BucketOptions(bucket_cap_mb=0)), PLAIN, 1,
                              host=FREE, optimizer=OPTIMIZERS["none"]))  # fmt: skip
    assert names(trace) == ["layer 2 backward", "all_reduce bucket 0", "all_reduce bucket 1", "all_reduce bucket 2"]
    assert seconds_by_cause(critical_path(trace)) == pytest.approx(
        {"compute": 1e-4, "communication": 3 * 8e-3, "host": 0.0}
    )


def test_a_step_bound_by_launches_waits_for_the_host() -> None:
    model = layers_of([400] * 4, 0.0, 0.0, host_s=1e-3)
    trace = simulate(Scenario(model, star(2, 1e30), DataParallel(), PLAIN, 1, host=FREE, optimizer=OPTIMIZERS["none"]))
    assert seconds_by_cause(critical_path(trace)) == pytest.approx(
        {"compute": 0.0, "communication": 0.0, "host": 2 * 4 * 1e-3 + 4 * 1e-3}
    )


def test_the_path_of_a_program_that_only_sends_is_its_transfers() -> None:
    def ring(engine: Engine):
        there, back = engine.channel(0, 1, "scatter"), engine.channel(1, 0, "gather")

        def first():
            yield send(there, 1000)

        def second():
            yield recv(there)
            yield send(back, 2000)

        return [first(), second()]

    trace = run(star(2, 1000.0), ring)
    assert [(piece.device, piece.name, piece.start_s, piece.end_s) for piece in critical_path(trace)] == [
        (1, "scatter", 0.0, 1.0), (0, "gather", 1.0, 3.0)]  # fmt: skip


def test_the_path_back_to_a_time_leaves_out_what_ended_before() -> None:
    def program():
        for number in range(4):
            yield busy(1.0, f"work {number}")

    trace = run(star(1, 1.0), lambda engine: [program()])
    assert [piece.name for piece in walk_back(trace, trace.spans[2].id, 1.0)] == ["work 1", "work 2"]
    assert walk_back(trace, None, 0.0) == []


def test_an_empty_trace_has_no_path() -> None:
    assert critical_path(Trace(("gpu0",))) == []


def test_a_trace_without_causes_gives_its_last_span() -> None:
    """Measured traces may know no causes."""
    row = (1, "forward", "forward", 0, 0, "compute", 0.5, 2.0, 0, None, None, None, None, None, "", 0, None)
    trace = Trace(("gpu0",), raw_spans=[row], source="measured", end_s=2.0)
    assert [(piece.name, piece.start_s, piece.end_s) for piece in critical_path(trace)] == [("forward", 0.5, 2.0)]
