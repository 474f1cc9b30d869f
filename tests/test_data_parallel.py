"""DataParallel's step: bytes to the byte, torch's chunk rule, what adds up under the GIL, what overlaps (nothing)."""

from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.backend import PLAIN
from simulator.compare import compare
from simulator.metrics import Metrics
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.pieces import broadcast_pieces, reduce_pieces
from simulator.scenario import OPTIMIZERS, DataParallel, Host, Scenario, chunk_rows
from simulator.simulate import simulate
from simulator.trace import Span, Trace
from tests.samples import layers_of, preset, star

RESNET18_BYTES = 46_758_048
FREE = Host(device_memory_bytes_per_s=1e30)
EXACT = 1e-12


def step(model: ModelProfile, strategy: DataParallel, *, devices: int = 4, bandwidth: float = 16e9,
         latency: float = 0.0, **options) -> Trace:  # fmt: skip
    """One step on a star with a plain library and free host and copies, unless the options say otherwise."""
    options = {"host": FREE, "optimizer": OPTIMIZERS["none"], "batch_per_device": 1, **options}
    return simulate(Scenario(model, star(devices, bandwidth, latency), strategy, PLAIN, **options))


def spans(trace: Trace, kind: str, name: str = "") -> list[Span]:
    return [span for span in trace.spans if span.kind == kind and name in span.name]


# ---- bytes


def test_resnet18_through_gpu_0_by_peer_copy() -> None:
    by_kind = Metrics(step(preset("resnet18"), DataParallel("peer_copy"))).bytes_by_kind
    assert by_kind["replicate"]["sent"] == [3 * RESNET18_BYTES, 0, 0, 0]
    assert by_kind["replicate"]["received"] == [0, *[RESNET18_BYTES] * 3]
    assert by_kind["reduce"]["sent"] == [0, *[RESNET18_BYTES] * 3]
    assert by_kind["reduce"]["received"] == [3 * RESNET18_BYTES, 0, 0, 0]


def test_interview_280_mb_of_parameters_and_gradients_pass_gpu_0s_link() -> None:
    by_kind = Metrics(step(preset("resnet18"), DataParallel("peer_copy"))).bytes_by_kind
    through = by_kind["replicate"]["sent"][0] + by_kind["reduce"]["received"][0]
    assert through == pytest.approx(280.5e6, rel=1e-3)


def test_resnet18_along_nccls_chain_leaves_each_device_once() -> None:
    by_kind = Metrics(step(preset("resnet18"), DataParallel("nccl"))).bytes_by_kind
    assert by_kind["replicate"]["sent"] == [*[RESNET18_BYTES] * 3, 0]
    assert by_kind["reduce"]["received"] == [RESNET18_BYTES, 0, *[RESNET18_BYTES] * 2]
    assert sum(by_kind["reduce"]["sent"]) == 3 * RESNET18_BYTES


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_parameters_and_buffers_travel_again_on_every_forward(transport: str) -> None:
    model = preset("resnet18")
    trace = step(model, DataParallel(transport), iterations=(0, 1, 2))
    by_kind = Metrics(trace).bytes_by_kind
    assert by_kind["replicate"]["received"][1] == 3 * RESNET18_BYTES
    assert by_kind["broadcast"]["received"][1] == 3 * model.buffer_bytes


@pytest.mark.parametrize(("name", "out", "back"), [("resnet50", 9, 13), ("gpt2", 25, 38)])
def test_a_model_travels_in_flat_pieces_one_after_the_other(name: str, out: int, back: int) -> None:
    model = preset(name)
    assert (len(broadcast_pieces(model.unique_parameters)), len(reduce_pieces(model.unique_parameters))) == (out, back)
    trace = step(model, DataParallel("nccl"), devices=2)
    for kind, count in (("replicate", out), ("reduce", back)):
        for device in range(2):
            found = [span for span in spans(trace, kind) if span.device == device]
            assert len(found) == count
            assert all(later.start_s >= earlier.end_s for earlier, later in pairwise(found))


def test_inputs_outputs_and_their_gradients_go_through_the_output_device() -> None:
    model = layers_of([400] * 2, 1e-3, 1e-3, input_bytes=100, output_bytes=7)
    by_kind = Metrics(step(model, DataParallel(), batch_per_device=2)).bytes_by_kind
    assert by_kind["scatter"]["sent"] == [3 * 2 * (100 + 7), 0, 0, 0]
    assert by_kind["gather"]["received"] == [3 * 2 * 7, 0, 0, 0]


def test_with_the_loss_inside_one_number_a_replica_is_gathered() -> None:
    model = layers_of([400] * 2, 1e-3, 1e-3, input_bytes=100, output_bytes=7)
    trace = step(model, DataParallel(loss_inside=True), batch_per_device=2)
    by_kind = Metrics(trace).bytes_by_kind
    assert by_kind["scatter"]["sent"] == [3 * 2 * 100, 0, 0, 0]
    assert by_kind["gather"]["received"] == [3 * 4, 0, 0, 0]
    assert [span.device for span in spans(trace, "loss")] == [0, 1, 2, 3]


def test_another_output_device_gathers_and_computes_the_loss_there() -> None:
    model = replace(layers_of([400] * 2, 1e-3, 1e-3, input_bytes=100, output_bytes=7), loss=Cost(1e-3))
    trace = step(model, DataParallel(output_device=2), batch_per_device=2)
    by_kind = Metrics(trace).bytes_by_kind
    assert by_kind["gather"]["received"] == [0, 0, 3 * 2 * 7, 0]
    assert by_kind["scatter"]["sent"] == [3 * 2 * 100, 0, 3 * 2 * 7, 0]
    assert [span.device for span in spans(trace, "loss")] == [2]
    assert [span.device for span in spans(trace, "optimizer")] == [0]


# ---- rows


@pytest.mark.parametrize(
    ("rows", "devices", "expected"),
    [(30, 4, (8, 8, 8, 6)), (9, 4, (3, 3, 3, 0)), (7, 4, (2, 2, 2, 1)), (1, 4, (1, 0, 0, 0)), (32, 4, (8, 8, 8, 8)),
     (5, 1, (5,)), (4, 3, (2, 2, 0)), (6, 4, (2, 2, 2, 0))],
)  # fmt: skip
def test_rows_are_divided_as_torch_chunk_does(rows: int, devices: int, expected: tuple[int, ...]) -> None:
    assert chunk_rows(rows, devices) == expected


def test_a_device_without_rows_does_nothing_and_gets_nothing() -> None:
    trace = step(preset("resnet18"), DataParallel("peer_copy"), global_batch=9)
    assert {span.device for span in trace.spans} == {0, 1, 2}
    assert {t.target for t in trace.transfers} == {0, 1, 2}
    assert Metrics(trace).bytes_by_kind["replicate"]["sent"] == [2 * RESNET18_BYTES, 0, 0, 0]
    assert Metrics(trace).peak_memory_bytes[3] == 0


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_one_row_runs_on_one_device(transport: str) -> None:
    trace = step(preset("resnet18"), DataParallel(transport), global_batch=1)
    assert trace.transfers == ()
    assert {span.device for span in trace.spans} == {0}


def test_on_one_device_data_parallel_is_the_module_itself() -> None:
    model = preset("resnet18", host_s=1e-4)
    trace = step(model, DataParallel(), devices=1)
    # The device waits for the first launch only; the later ones are ahead of it.
    assert trace.end_s == pytest.approx(1e-4 + model.compute_s(1), rel=EXACT)
    assert not spans(trace, "replicate")


# ---- time


def test_copies_through_gpu_0_go_one_at_a_time() -> None:
    n, nbytes, bandwidth, latency = 4, 16_000_000, 16e9, 1e-6
    trace = step(layers_of([nbytes], 0.0, 0.0), DataParallel("peer_copy"), bandwidth=bandwidth, latency=latency)
    # Parameters out and gradients in; and inputs, outputs and their gradients, which are empty here.
    assert trace.end_s == pytest.approx((n - 1) * (2 * (latency + nbytes / bandwidth) + 3 * latency), rel=EXACT)
    ordered = sorted(trace.transfers, key=lambda t: t.issue_s)
    assert all(later.issue_s >= earlier.end_s for earlier, later in pairwise(ordered))


def test_160_mb_on_4_gpus_at_16_gb_per_s_take_60_ms() -> None:
    trace = step(layers_of([160_000_000], 0.0, 0.0), DataParallel("peer_copy"))
    assert trace.end_s == pytest.approx(60e-3, rel=EXACT)


def test_a_copy_reaches_only_the_clusters_fraction_of_its_route() -> None:
    cluster = replace(star(2, 1e9), copy_fraction=0.5)
    model = layers_of([1_000_000], 0.0, 0.0)
    trace = simulate(Scenario(model, cluster, DataParallel("peer_copy"), host=FREE, optimizer=OPTIMIZERS["none"]))
    assert trace.end_s == pytest.approx(2 * 1_000_000 / (0.5 * 1e9), rel=EXACT)


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_nothing_overlaps_the_reduce(transport: str) -> None:
    """Broadcast's backward is one autograd node: it begins when the last gradient of the last replica is there."""
    trace = step(preset("resnet18"), DataParallel(transport))
    computed = max(span.end_s for span in spans(trace, "backward"))
    assert min(span.start_s for span in spans(trace, "reduce")) >= computed
    assert min(t.issue_s for t in trace.transfers if t.kind == "reduce") >= computed
    reduced = max(t.end_s for t in trace.transfers if t.kind == "reduce")
    assert min(span.start_s for span in spans(trace, "optimizer")) >= reduced
    assert Metrics(trace).overlap == 0.0


@pytest.mark.parametrize("slow", range(4))
def test_gpu_0_has_no_sum_before_the_slowest_replica_has_its_gradients(slow: int) -> None:
    speed = tuple(0.5 if device == slow else 1.0 for device in range(4))
    for transport in ("nccl", "peer_copy"):
        trace = step(preset("resnet18"), DataParallel(transport), speed=speed)
        computed = max(span.end_s for span in spans(trace, "backward"))
        assert min(t.end_s for t in trace.transfers if t.kind == "reduce" and t.target == 0) >= computed


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_no_replica_computes_before_its_parameters_have_come(transport: str) -> None:
    trace = step(preset("resnet18"), DataParallel(transport))
    for device in range(1, 4):
        arrived = max(t.end_s for t in trace.transfers if t.kind == "replicate" and t.target == device)
        assert min(span.start_s for span in spans(trace, "forward") if span.device == device) >= arrived


def test_the_forwards_launches_add_up_over_the_replicas_and_the_backwards_do_not() -> None:
    layers, host_s = 10, 1e-3
    trace = step(layers_of([400] * layers, 0.0, 0.0, host_s=host_s), DataParallel(), bandwidth=1e30)
    forward = [span for span in trace.spans if span.resource.startswith("python thread")]
    backward = [span for span in trace.spans if span.resource.startswith("autograd thread")]
    assert max(s.end_s for s in forward) - min(s.start_s for s in forward) == pytest.approx(4 * layers * host_s)
    assert max(s.end_s for s in backward) - min(s.start_s for s in backward) == pytest.approx(layers * host_s)
    assert trace.end_s == pytest.approx((4 + 1) * layers * host_s)


def test_backward_threads_slow_each_other_by_the_hosts_contention() -> None:
    layers, host_s = 10, 1e-3
    host = replace(FREE, backward_contention=0.2)
    trace = step(layers_of([400] * layers, 0.0, 0.0, host_s=host_s), DataParallel(), bandwidth=1e30, host=host)
    assert trace.end_s == pytest.approx(4 * layers * host_s + layers * host_s * (1 + 3 * 0.2))


def test_replicating_costs_host_time_per_tensor_and_replica() -> None:
    tensors = 10 + 2
    model = layers_of([400] * 10, 0.0, 0.0, buffers=[40, 40])
    host = replace(FREE, replicate_tensor_s=1e-3, replicate_copy_s=1e-4, reduce_tensor_s=1e-5, forward_s=0.5)
    trace = step(model, DataParallel(), bandwidth=1e30, host=host)
    # Gradients are of the ten parameters only.
    assert trace.end_s == pytest.approx(0.5 + tensors * (1e-3 + 4 * 1e-4) + 10 * 4 * 1e-5)


def test_interview_a_fixed_batch_on_4_gpus_may_be_no_faster_than_on_one() -> None:
    """100 ms of compute; replicate and reduce 60 ms, scatter and gather 15 ms: 25 + 75 = 100 ms."""
    bandwidth, rows = 16e9, 32
    one_copy_s = 60e-3 / 2 / 3
    parameter = Parameter("weight", (round(one_copy_s * bandwidth) // 4,))
    layer = Layer("layer", ("weight",), Cost(0.0, 40e-3 / rows), Cost(0.0, 60e-3 / rows))
    # Three replicas get their inputs and the gradients of their outputs, and give their outputs: a third each.
    per_row = round(15e-3 / 3 / 3 * bandwidth / (rows // 4))
    model = ModelProfile("one layer", (parameter,), (layer,), input_bytes_per_sample=per_row,
                         output_bytes_per_sample=per_row)  # fmt: skip
    base = Scenario(model, star(4, bandwidth), DataParallel(), PLAIN, host=FREE, optimizer=OPTIMIZERS["none"],
                    global_batch=rows)  # fmt: skip
    found = compare(base, (DataParallel("peer_copy"),))
    assert found.single_whole_batch.step_s == pytest.approx(100e-3, rel=EXACT)
    assert found.runs["DataParallel"].step_s == pytest.approx(25e-3 + 75e-3, rel=1e-6)
    assert found.speedup_same_global_batch("DataParallel") == pytest.approx(1.0, rel=1e-6)


# ---- memory


def test_interview_logits_of_gpt2_gathered_on_gpu_0() -> None:
    logits = 1024 * 50257 * 4
    model = layers_of([400], 1e-3, 1e-3, output_bytes=logits)
    outside = step(model, DataParallel(), batch_per_device=8)
    assert max(change.nbytes for change in outside.memory if change.device == 0) == 32 * logits
    assert 32 * logits == pytest.approx(6.59e9, rel=1e-3)
    inside = step(model, DataParallel(loss_inside=True), batch_per_device=8)
    assert max(change.nbytes for change in inside.memory) == 8 * logits


@pytest.mark.parametrize("transport", ["nccl", "peer_copy"])
def test_replicas_come_with_the_forward_and_go_with_the_backward(transport: str) -> None:
    model = preset("resnet18")
    trace = step(model, DataParallel(transport), optimizer=OPTIMIZERS["adam"])
    peaks = Metrics(trace).peak_memory
    assert peaks[0]["parameters"] == RESNET18_BYTES
    assert peaks[0]["optimizer_state"] == 2 * RESNET18_BYTES
    assert "replicas" not in peaks[0]
    for device in range(1, 4):
        held = [change for change in trace.memory if (change.device, change.category) == (device, "replicas")]
        assert sum(change.nbytes for change in held if change.nbytes > 0) == RESNET18_BYTES + model.buffer_bytes
        assert sum(change.nbytes for change in held) == 0
        assert "parameters" not in peaks[device]
        assert "optimizer_state" not in peaks[device]


def test_gpu_0_is_the_fullest() -> None:
    trace = step(preset("resnet18"), DataParallel(), optimizer=OPTIMIZERS["adam"], iterations=(0, 1))
    peak = Metrics(trace).peak_memory_bytes
    assert peak[0] == max(peak)
    assert peak[0] > peak[1] == peak[2] == peak[3]


# ---- what was never run


def test_only_the_transport_that_never_ran_on_several_gpus_is_marked() -> None:
    model = preset("mlp-small")
    assert "never run on several GPUs" in step(model, DataParallel("nccl")).unverified[0]
    assert step(model, DataParallel("peer_copy")).unverified == ()
    assert step(model, DataParallel("nccl"), devices=1).unverified == ()
