"""DistributedDataParallel's step: bytes to the byte, buckets in order, the queue of all-reduces beside the backward."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backend import PLAIN, Backend, gloo
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster
from simulator.compare import compare
from simulator.metrics import Metrics
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Host, Scenario
from simulator.simulate import simulate
from simulator.trace import Span, Trace
from tests.samples import layers_of, preset, star

RESNET18_BYTES = 46_758_048
FREE = Host(device_memory_bytes_per_s=1e30)
DEFAULT = DistributedDataParallel()
BY_TENSOR = DistributedDataParallel(BucketOptions(bucket_cap_mb=0))
EXACT = 1e-12


def step(model: ModelProfile, strategy: DistributedDataParallel = DEFAULT, *, cluster: Cluster | None = None,
         backend: Backend = PLAIN, **options) -> Trace:  # fmt: skip
    """One step on a star of four with free host and copies, unless the options say otherwise."""
    options = {"host": FREE, "optimizer": OPTIMIZERS["none"], "batch_per_device": 1, **options}
    return simulate(Scenario(model, cluster or star(4, 16e9), strategy, backend, **options))


def reduces(trace: Trace, rank: int = 0) -> list[Span]:
    """The all-reduces of gradients on one rank, in order of launch."""
    mine = [span for span in trace.spans if span.kind == "all_reduce" and span.rank == rank]
    return sorted((span for span in mine if span.bucket is not None), key=lambda span: (span.iteration, span.seq))


def sizes(trace: Trace, iteration: int) -> list[int | None]:
    return [span.nbytes for span in reduces(trace) if span.iteration == iteration]


# ---- bytes


def test_every_rank_of_resnet18_sends_twice_three_quarters_of_the_gradients() -> None:
    trace = step(preset("resnet18"))
    sent = Metrics(trace).bytes_by_kind["all_reduce"]["sent"]
    rounding = 4 * 4 * len(reduces(trace))
    for nbytes in sent:
        assert abs(nbytes - 2 * 3 / 4 * RESNET18_BYTES) <= rounding
    assert sum(sent) == 2 * 3 * RESNET18_BYTES


def test_interview_70_mb_a_rank() -> None:
    sent = Metrics(step(preset("resnet18"))).bytes_by_kind["all_reduce"]["sent"]
    assert sent[1] == pytest.approx(70.1e6, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "first", "steady"),
    [
        (BucketOptions(), [RESNET18_BYTES], [2_052_000, 28_852_224, 15_853_824]),
        (BucketOptions(bucket_cap_mb=25), [RESNET18_BYTES], [30_904_224, 15_853_824]),
        (BucketOptions(bucket_cap_mb=35), [RESNET18_BYTES], [37_988_256, 8_769_792]),
        (BucketOptions(find_unused_parameters=True), [11_497_376, 33_744_896, 1_515_776],
         [11_497_376, 33_744_896, 1_515_776]),
    ],
)  # fmt: skip
def test_resnet18s_buckets_are_those_that_a_hook_saw_in_torch(options, first, steady) -> None:
    trace = step(preset("resnet18"), DistributedDataParallel(options), iterations=(0, 1, 2))
    assert [sizes(trace, iteration) for iteration in range(3)] == [first, steady, steady]


def test_a_static_graph_rebuilds_one_iteration_later() -> None:
    trace = step(preset("resnet18"), DistributedDataParallel(BucketOptions(static_graph=True)), iterations=(0, 1, 2))
    assert [len(sizes(trace, iteration)) for iteration in range(3)] == [1, 1, 3]


def test_vgg16_has_a_bucket_of_411_million_bytes() -> None:
    assert 411_058_176 in sizes(step(preset("vgg16")), 3)


def test_buffers_come_from_rank_0_before_the_forward() -> None:
    model = preset("resnet18")
    trace = step(model)
    by_kind = Metrics(trace).bytes_by_kind["broadcast"]
    assert by_kind["received"] == [0, *[model.buffer_bytes] * 3]
    for rank in range(1, 4):
        synced = max(t.end_s for t in trace.transfers if t.kind == "broadcast" and t.target == rank)
        assert min(span.start_s for span in trace.spans if span.kind == "forward" and span.rank == rank) >= synced
    quiet = step(model, DistributedDataParallel(forward_sync_buffers=False))
    assert "broadcast" not in Metrics(quiet).bytes_by_kind


def test_the_rebuild_broadcasts_the_new_order_once() -> None:
    model = layers_of([400] * 3, 1e-3, 1e-3)
    trace = step(model, iterations=(0, 1, 2))
    told = [span for span in trace.spans if span.kind == "broadcast" and span.rank == 0]
    assert [(span.name, span.iteration, span.nbytes) for span in told] == [
        ("broadcast bucket order", 1, 4 * (3 + 1)), ("broadcast bucket sizes", 1, 4 * 1)]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "iterations"),
    [(BucketOptions(find_unused_parameters=True), [0, 1, 2]), (BucketOptions(static_graph=True), [0]),
     (BucketOptions(), [])],
)  # fmt: skip
def test_the_bitmap_of_used_parameters_travels_when_torch_needs_it(options, iterations) -> None:
    model = preset("resnet18")
    trace = step(model, DistributedDataParallel(options), iterations=(0, 1, 2))
    found = [span for span in trace.spans if "bitmap" in span.name and span.kind == "all_reduce" and span.rank == 0]
    assert [span.iteration for span in found] == iterations
    assert all(span.nbytes == 4 * len(model.trained_parameters) for span in found)


def test_the_constructor_sends_rank_0s_state_once() -> None:
    model = preset("resnet18")
    trace = step(model, construction=True, iterations=(0, 1))
    state = [span for span in trace.spans if span.name.startswith("construction: state") and span.rank == 0]
    assert sum(span.nbytes or 0 for span in state) == RESNET18_BYTES + model.buffer_bytes
    first = min(span.start_s for span in trace.spans if span.kind == "forward")
    assert max(span.end_s or 0.0 for span in trace.spans if span.name.startswith("construction")) <= first


# ---- the queue


def queue_model(ready: list[float], nbytes: list[int], ranks: int, bandwidth: float) -> list[float]:
    """c_i = max(c_(i-1), ready_i) + 2 (M-1)/M S_i/B: one all-reduce at a time, in order."""
    ends: list[float] = []
    for at, size in zip(ready, nbytes):
        ends.append(max(ends[-1] if ends else 0.0, at) + 2 * (ranks - 1) / ranks * size / bandwidth)
    return ends


@given(
    st.lists(st.tuples(st.integers(1, 2000), st.floats(0, 5e-3)), min_size=1, max_size=8), st.integers(2, 6),
    st.floats(1e8, 1e11), st.floats(0, 0.02),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_each_bucket_ends_as_the_queue_model_says(layers, ranks: int, bandwidth: float, forward_s: float) -> None:
    """Every layer a bucket of its own, whose bytes divide by the ranks."""
    parameters = tuple(Parameter(f"p{i}", (ranks * size * 50,)) for i, (size, _) in enumerate(layers))
    model = ModelProfile("queue", parameters, tuple(
        Layer(f"layer {i}", (p.name,), Cost(forward_s if i == 0 else 0.0), Cost(seconds))
        for i, (p, (_, seconds)) in enumerate(zip(parameters, layers))))  # fmt: skip
    trace = step(model, BY_TENSOR, cluster=star(ranks, bandwidth))
    ready, at = [], forward_s
    for _, seconds in reversed(layers):
        at += seconds
        ready.append(at)
    expected = queue_model(ready, [p.nbytes for p in reversed(parameters)], ranks, bandwidth)
    for rank in range(ranks):
        assert [span.end_s for span in reduces(trace, rank)] == pytest.approx(expected, rel=1e-9)
    assert trace.end_s == pytest.approx(max(expected[-1], at), rel=1e-9)


@pytest.mark.parametrize(("buckets", "total_s"), [(1, 14.07e-3), (4, 14.28e-3), (25, 15.75e-3), (100, 21.0e-3)])
def test_interview_more_buckets_cost_more_latencies(buckets: int, total_s: float) -> None:
    n, nbytes, bandwidth, latency = 8, 100_000_000, 12.5e9, 5e-6
    trace = step(layers_of([nbytes // buckets] * buckets, 0.0, 0.0), BY_TENSOR, cluster=star(n, bandwidth, latency))
    assert trace.end_s == pytest.approx(2 * (n - 1) * (buckets * latency + nbytes / (n * bandwidth)), rel=EXACT)
    assert trace.end_s == pytest.approx(total_s, rel=1e-3)


@pytest.mark.parametrize(("each_s", "end_s", "exposed_s", "overlap"),
                         [(15e-3, 115e-3, 15e-3, 0.75), (40e-3, 185e-3, 85e-3, 75 / 160)])  # fmt: skip
def test_interview_exposed_time_of_four_buckets(each_s: float, end_s: float, exposed_s: float, overlap: float) -> None:
    """Ready at 25, 50, 75 and 100 ms of a backward of 100."""
    bandwidth = 1e9
    nbytes = round(each_s * bandwidth / (2 * 3 / 4)) // 16 * 16
    metrics = Metrics(step(layers_of([nbytes] * 4, 0.0, 25e-3), BY_TENSOR, cluster=star(4, bandwidth)))
    assert metrics.step_s == pytest.approx(end_s, rel=1e-6)
    assert metrics.exposed_comm_s == pytest.approx(exposed_s, rel=1e-6)
    assert metrics.overlap == pytest.approx(overlap, rel=1e-6)


def test_interview_200_ms_of_compute_and_50_exposed_are_80_percent() -> None:
    bandwidth, n = 1e9, 8
    nbytes = round(50e-3 * bandwidth / (2 * 7 / 8)) // 32 * 32
    model = layers_of([nbytes], 0.0, 200e-3)
    base = Scenario(model, star(n, bandwidth), DistributedDataParallel(), PLAIN, 1, host=FREE,
                    optimizer=OPTIMIZERS["none"])  # fmt: skip
    speedup = compare(base, (DistributedDataParallel(),)).speedup("DistributedDataParallel")
    assert speedup == pytest.approx(6.4, rel=1e-6)
    assert speedup / n == pytest.approx(0.8, rel=1e-6)


# ---- order


def test_in_iteration_0_nothing_overlaps() -> None:
    trace = step(preset("resnet18"), iterations=(0,))
    for rank in range(4):
        (bucket,) = reduces(trace, rank)
        assert bucket.start_s == backward_end(trace, rank)
    assert Metrics(trace).overlap == 0.0


def backward_end(trace: Trace, rank: int = 0) -> float:
    return max(span.end_s for span in trace.spans if span.kind == "backward" and span.rank == rank)


def test_in_a_steady_iteration_communication_hides_behind_the_backward() -> None:
    trace = step(preset("resnet18"), cluster=star(4, 100e9))
    assert reduces(trace)[0].start_s < backward_end(trace)
    assert Metrics(trace).overlap > 0.3


def test_a_bucket_waits_for_those_before_it_even_when_it_is_full() -> None:
    """The ready order was recorded otherwise than this backward runs: bucket 0 holds what comes last."""
    model = replace(layers_of([4000] * 3, 0.0, 1.0), ready_order=("p0", "p1", "p2"))
    trace = step(model, BY_TENSOR)
    assert [span.bucket for span in reduces(trace)] == [0, 1, 2]
    assert all(span.start_s >= 3.0 for span in reduces(trace))


def test_a_bucket_is_launched_when_its_last_gradient_is_in() -> None:
    trace = step(layers_of([1 << 20, 30 << 20, 4000], 0.0, 1.0), iterations=(1,), cluster=star(4, 1e12))
    launches = [(span.nbytes, span.start_s) for span in reduces(trace)]
    assert launches == [((30 << 20) + 4000, pytest.approx(2.0)), (1 << 20, pytest.approx(3.0))]


def test_every_rank_launches_the_same_collectives_with_the_same_numbers() -> None:
    trace = step(preset("resnet18"), DistributedDataParallel(BucketOptions(find_unused_parameters=True)))
    by_rank = [[(s.name, s.seq, s.group) for s in trace.spans if s.rank == rank and s.seq is not None]
               for rank in range(4)]  # fmt: skip
    assert len({tuple(sorted(calls)) for calls in by_rank}) == 1
    assert sorted(seq for _, seq, _ in by_rank[0]) == list(range(len(by_rank[0])))


def test_everyone_waits_for_a_straggler() -> None:
    model = layers_of([4_000_000], 0.0, 10e-3)
    even, one_slow = step(model), step(model, speed=(1.0, 1.0, 0.5, 1.0))
    assert one_slow.end_s - even.end_s == pytest.approx(10e-3, rel=1e-9)


def test_a_serial_library_starts_after_the_whole_backward() -> None:
    trace = step(preset("resnet18"), backend=replace(PLAIN, serial=True))
    for rank in range(4):
        assert min(span.start_s for span in reduces(trace, rank)) == backward_end(trace, rank)
        assert len(reduces(trace, rank)) == 3


def test_nccl_runs_one_collective_of_a_group_at_a_time_and_gloo_two() -> None:
    model = layers_of([40_000_000] * 4, 0.0, 1e-6)
    one = reduces(step(model, BY_TENSOR))
    two = reduces(step(model, BY_TENSOR, backend=gloo(0.0)))
    assert all(later.start_s >= earlier.end_s for earlier, later in pairwise(one))
    assert two[1].start_s < two[0].end_s <= two[2].start_s
    assert {span.resource for span in two} == {"communication", "communication 2"}


def test_launching_a_collective_costs_host_time() -> None:
    model = layers_of([400] * 5, 0.0, 0.0)
    backend = Backend(launch_s=1e-3)
    trace = step(model, DistributedDataParallel(BucketOptions(bucket_cap_mb=0)), backend=backend, cluster=star(4, 1e30))
    assert trace.end_s == pytest.approx(5 * 1e-3)


def test_hooks_cost_host_time_per_gradient() -> None:
    trace = step(layers_of([400] * 5, 0.0, 0.0), host=replace(FREE, hook_s=2e-3), cluster=star(4, 1e30))
    assert trace.end_s == pytest.approx(5 * 2e-3)


def test_every_rank_runs_the_optimizer_after_its_copies_back() -> None:
    trace = step(preset("resnet18"), optimizer=OPTIMIZERS["adam"], host=Host())
    for rank in range(4):
        mine = [span for span in trace.spans if span.rank == rank]
        (optimizer,) = [span for span in mine if span.kind == "optimizer"]
        assert optimizer.end_s - optimizer.start_s == pytest.approx(7 * RESNET18_BYTES / 800e9)
        assert optimizer.start_s >= max(span.end_s for span in mine if span.name.startswith("copy bucket"))


# ---- copies and memory


def test_gradients_are_copied_into_buckets_and_back_unless_they_live_there() -> None:
    model = layers_of([4_000_000] * 2, 0.0, 0.0)
    host = replace(FREE, device_memory_bytes_per_s=1e9)

    def copied(strategy: DistributedDataParallel) -> tuple[int, int]:
        found = [span for span in step(model, strategy, host=host).spans if span.kind == "copy" and span.rank == 0]
        return (sum(span.nbytes or 0 for span in found if "into buckets" in span.name),
                sum(span.nbytes or 0 for span in found if span.name.endswith("back")))  # fmt: skip

    assert copied(DistributedDataParallel()) == (8_000_000, 8_000_000)
    assert copied(DistributedDataParallel(gradient_as_bucket_view=True)) == (8_000_000, 0)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg16"])
def test_gradient_as_bucket_view_saves_exactly_the_gradients_at_the_peak(name: str) -> None:
    model = preset(name)

    def peak(view: bool) -> list[int]:
        strategy = DistributedDataParallel(gradient_as_bucket_view=view)
        # One activation byte a layer too little to matter: the peak is in the optimizer, when all gradients are there.
        slim = replace(model, layers=tuple(replace(layer, activation_bytes_per_sample=0) for layer in model.layers))
        return Metrics(step(slim, strategy, iterations=(0, 1, 2), cluster=star(2, 16e9))).peak_memory_bytes

    assert [with_copy - without for with_copy, without in zip(peak(False), peak(True))] == [model.gradient_bytes] * 2


def test_a_ranks_memory_by_category() -> None:
    model = preset("resnet18")
    trace = step(model, optimizer=OPTIMIZERS["momentum"], host=replace(FREE, context_bytes=500), batch_per_device=4)
    held: dict[str, int] = {}
    most: dict[str, int] = {}
    for change in trace.memory:
        if change.device == 2:
            held[change.category] = held.get(change.category, 0) + change.nbytes
            most[change.category] = max(most.get(change.category, 0), held[change.category])
    assert most == {
        "context": 500, "parameters": RESNET18_BYTES, "buffers": model.buffer_bytes, "optimizer_state": RESNET18_BYTES,
        "buckets": RESNET18_BYTES, "gradients": RESNET18_BYTES, "inputs": 4 * model.input_bytes_per_sample,
        "outputs": 2 * 4 * model.output_bytes_per_sample, "activations": 4 * model.activation_bytes_per_sample,
    }  # fmt: skip
    assert Metrics(trace).context_bytes[2] == 500


def test_all_ranks_hold_the_same() -> None:
    peak = Metrics(step(preset("resnet18"), optimizer=OPTIMIZERS["adam"], iterations=(0, 1))).peak_memory_bytes
    assert len(set(peak)) == 1


# ---- against DataParallel


def test_data_parallels_fullest_device_holds_more_than_any_of_ddps_without_its_bucket_copy() -> None:
    model = preset("gpt2-128")
    base = Scenario(model, star(4, 16e9), DistributedDataParallel(), PLAIN, 8, host=FREE)
    found = compare(base, (DataParallel(), DistributedDataParallel(gradient_as_bucket_view=True)))
    parallel = found.runs["DataParallel"].metrics.peak_memory_bytes
    distributed = found.runs["DistributedDataParallel"].metrics.peak_memory_bytes
    assert max(parallel) == parallel[0] > max(distributed)
