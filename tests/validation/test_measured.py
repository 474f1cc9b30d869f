"""A measured run is a Trace: its spans say what the hooks saw, the laws hold, and every view shows it."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.trace import Span, Trace
from simulator.validation import measured
from simulator.validation.launch import Workers
from simulator.validation.records import BucketTimes, Run, Step
from simulator.views.chrome_trace import chrome_trace
from simulator.views.text import timeline
from tests import laws

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")


def known_step(begin: float) -> Step:
    """Two layers, two buckets that overlap, and a wait; one unit is a second."""
    return Step(
        begin, [("first", begin + 1), ("second", begin + 2)], forward_end=begin + 4, backward_begin=begin + 5,
        backwards=[(2, begin + 5), (1, begin + 6), (0, begin + 9)],
        ready={"second.weight": begin + 8, "first.weight": begin + 11},
        buckets=[BucketTimes(0, 400, ("second.weight",), begin + 8.5, begin + 13),
                 BucketTimes(1, 800, ("first.weight",), begin + 11.5, begin + 15)],
        backward_end=begin + 16, end=begin + 17,
    )  # fmt: skip


def found_in(trace: Trace, rank: int = 0) -> dict[str, tuple[float, float | None]]:
    return {span.name: (span.start_s, span.end_s) for span in trace.spans if span.rank == rank}


def test_moments_become_spans() -> None:
    trace = measured.as_trace([[known_step(100.0)], [known_step(100.5)]], (0,), provenance="made up")
    assert found_in(trace) == {
        "before the forward": (0, 1), "first": (1, 2), "second": (2, 4), "loss": (4, 5), "loss backward": (5, 6),
        "second backward": (6, 8), "copy second into buckets": (8, 9), "first backward": (9, 11),
        "copy first into buckets": (11, 11.5), "wait for the buckets": (11.5, 15), "copy the buckets back": (15, 16),
        "optimizer": (16, 17), "all_reduce bucket 0": (8.5, 13), "all_reduce bucket 1": (11.5, 15),
    }  # fmt: skip
    assert found_in(trace, 1)["first"] == (1.5, 2.5)
    assert (trace.source, trace.covers, trace.end_s, trace.outcome) == (
        "measured",
        frozenset({"ranks"}),
        17.5,
        "finished",
    )
    reduces = [span for span in trace.spans if span.kind == "all_reduce" and span.rank == 0]
    assert [(s.resource, s.bucket, s.nbytes, s.seq) for s in reduces] == [
        ("communication", 0, 400, 0), ("communication 2", 1, 800, 1)]  # fmt: skip
    back = next(span for span in trace.spans if span.name == "copy the buckets back" and span.rank == 0)
    assert back.cause == reduces[1].id, "the wait was for the last bucket"
    laws.check(trace)


def test_the_text_timeline_shows_all_kinds_of_a_measured_step() -> None:
    text = timeline(measured.as_trace([[known_step(100.0)], [known_step(100.5)]], (0,)))
    for shown in ("f forward", "l loss", "b backward", "c copy", "A all-reduce", "o optimizer", ". waiting"):
        assert shown in text
    assert "device 0 compute" in text and "A0" in text


def test_a_bucket_that_is_there_in_time_is_not_waited_for() -> None:
    step = known_step(0.0)
    for bucket in step.buckets:
        bucket.reduced = bucket.ready + 0.0
    trace = measured.as_trace([[step]], (0,))
    assert "wait for the buckets" not in found_in(trace)
    laws.check(trace)


def test_only_iterations_that_were_measured_can_be_shown() -> None:
    with pytest.raises(InputError, match="1 were measured"):
        measured.as_trace([[known_step(0.0)]], (1,))


def test_several_iterations_lie_one_after_the_other() -> None:
    trace = measured.as_trace([[known_step(3.0), known_step(23.0)]], (0, 1))
    assert {span.iteration for span in trace.spans} == {0, 1} and trace.end_s == 37.0
    laws.check(trace)


RUNS = {
    "chain": Run((96,) * 6, 16, (("bucket_cap_mb", 0.03),)),
    "convolutions": Run((), 8, (("bucket_cap_mb", 0.0015),), module="convolutions"),
    "unused": Run((), 8, (("bucket_cap_mb", 0.0005), ("find_unused_parameters", True)), module="unused"),
}


@pytest.fixture(scope="module")
def real(workers: Workers) -> Iterator[dict[str, tuple[list[Step], ...]]]:
    """Real runs, measured once for all tests."""
    yield {name: measured.measure(workers, run) for name, run in RUNS.items()}


def of_rank(trace: Trace, rank: int, kind: str) -> list[Span]:
    return [span for span in trace.spans if (span.rank, span.kind) == (rank, kind)]


@needs_torch
@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("iteration", [0, 1, 4])
def test_a_real_step_keeps_the_laws_and_its_order(
    real: dict[str, tuple[list[Step], ...]], name: str, iteration: int
) -> None:
    trace = measured.as_trace(real[name], (iteration,))
    laws.check(trace)
    assert Trace.from_json(trace.to_json()) == trace
    for rank in range(2):
        step = real[name][rank][iteration]
        forwards, backwards = of_rank(trace, rank, "forward"), of_rank(trace, rank, "backward")
        assert [span.name for span in forwards] == [layer for layer, _ in step.layers]
        assert [span.name for span in backwards] == [
            "loss backward", *(f"{span.name} backward" for span in reversed(forwards))]  # fmt: skip
        reduces = of_rank(trace, rank, "all_reduce")
        assert [span.bucket for span in reduces] == list(range(len(step.buckets)))
        for bucket in step.buckets:
            assert all(step.ready[name] <= bucket.ready for name in bucket.parameters if name in step.ready)
            assert bucket.ready < bucket.reduced <= step.backward_end
        compute = [span for span in trace.spans if span.rank == rank and span.resource == "compute"]
        assert all(a.end_s == b.start_s for a, b in zip(compute, compute[1:])), "no gap"


@needs_torch
def test_the_first_iteration_has_one_bucket_and_later_ones_overlap(real: dict[str, tuple[list[Step], ...]]) -> None:
    counts = [len(step.buckets) for step in real["chain"][0]]
    assert counts == [1, 5, 5, 5, 5]
    first, steady = (measured.as_trace(real["chain"], (iteration,)) for iteration in (0, 4))
    total = sum(bucket.nbytes for bucket in real["chain"][0][0].buckets)
    for trace, buckets in ((first, 1), (steady, 5)):
        assert sum(bucket.nbytes for bucket in Metrics(trace).buckets) == total == 5 * (96 * 96 + 96) * 4
        assert len(Metrics(trace).buckets) == buckets
    for rank in range(2):
        last_backward = max(span.end_s or 0.0 for span in of_rank(first, rank, "backward"))
        assert of_rank(first, rank, "all_reduce")[0].start_s >= last_backward, "iteration 0 overlaps with nothing"
        last_backward = max(span.end_s or 0.0 for span in of_rank(steady, rank, "backward"))
        assert of_rank(steady, rank, "all_reduce")[0].start_s < last_backward


@needs_torch
def test_every_view_shows_a_measured_run(real: dict[str, tuple[list[Step], ...]], tmp_path: Path) -> None:
    trace = measured.as_trace(real["chain"], (4,))
    text = timeline(trace)
    assert "device 0 compute" in text and "comm" in text
    assert Metrics(trace).step_s == trace.end_s and Metrics(trace).critical_path
    events = chrome_trace(trace)["traceEvents"]
    assert {event["name"] for event in events} >= {span.name for span in trace.spans if span.kind == "forward"}
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from simulator.views.gantt import timeline_figure
    from simulator.views.save import save_figure

    save_figure(timeline_figure([("measured", trace)]), tmp_path / "step.svg")
    assert "<svg" in (tmp_path / "step.svg").read_text()
