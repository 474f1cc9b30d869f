"""Published runs of whole steps: DistributedDataParallel on 1 to 16 V100, GPT-2 on two TITAN RTX, replicate's cost.

Each test says which row fixed what. Run with -s to see predicted beside published.
"""

from dataclasses import replace
from functools import cache

import pytest

from simulator.cluster import Cluster
from simulator.metrics import Metrics
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import MACHINES, host_for
from simulator.presets.models import load_model
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Scenario, SingleDevice, Strategy
from simulator.simulate import simulate
from simulator.trace import Trace
from simulator.validation.published_dp import pieces


def run(profile: ModelProfile, cluster: Cluster, strategy: Strategy, batch: int, optimizer: str = "momentum", *,
        serial: bool = False, set_to_none: bool = True) -> Trace:  # fmt: skip
    """One steady step with the presets' library and host."""
    return simulate(Scenario(profile, cluster, strategy, backend_for(cluster, serial=serial), batch,
                             optimizer=OPTIMIZERS[optimizer], host=host_for(cluster),
                             set_to_none=set_to_none))  # fmt: skip


# ---- pytorch/pytorch benchmarks/distributed/ddp/README.md, torch 1.4, batch 32 a GPU, seconds a step
WEAK_SCALING = {
    "resnet50": (0.097, 0.100, 0.103, 0.103, 0.104, 0.104), "resnet101": (0.162, 0.171, 0.176, 0.176, 0.179, 0.179),
    "resnext50_32x4d": (0.145, 0.147, 0.153, 0.153, 0.157, 0.157),
    "resnext101_32x8d": (0.415, 0.425, 0.438, 0.439, 0.447, 0.450),
}  # fmt: skip
"""Without DDP, then with it on 1, 2, 4, 8 and 16 GPUs. The first number fixes the model; the others are predicted."""
GPUS = (1, 2, 4, 8, 16)


@cache
def bare(name: str) -> ModelProfile:
    """resnet50 is the preset; the others are their counts and a third of the step forward, in 50 equal layers."""
    if name == "resnet50":
        return load_model(name, "V100")
    parameters, buffers = pieces(name)
    nbytes = 4 * sum(parameter.numel for parameter in parameters)
    device = MACHINES["V100"].host.device_memory_bytes_per_s
    step = WEAK_SCALING[name][0] - OPTIMIZERS["momentum"].moved_copies * nbytes / device
    bounds = [len(parameters) * index // 50 for index in range(51)]
    forward, backward = Cost(0.0, step / 3 / 50 / 32), Cost(0.0, step * 2 / 3 / 50 / 32)
    layers = tuple(Layer(f"layer {index}", tuple(p.name for p in parameters[bounds[index] : bounds[index + 1]]),
                         forward, backward) for index in range(50))  # fmt: skip
    return ModelProfile(name, parameters, layers, (), buffers, 3 * 224 * 224 * 4, 4000)


@cache
def weak_scaling(name: str) -> list[float]:
    """Simulated seconds: without DDP, then with it on 1, 2, 4, 8 and 16 GPUs."""
    node, pair = load_cluster("8xV100-dgx1"), load_cluster("2x8xV100-dgx1")
    clusters = [pair if gpus == 16 else node.take(gpus) for gpus in GPUS]
    return [run(bare(name), node.take(1), SingleDevice(), 32).end_s,
            *(run(bare(name), cluster, DistributedDataParallel(), 32).end_s for cluster in clusters)]  # fmt: skip


@pytest.mark.parametrize("name", WEAK_SCALING)
def test_weak_scaling_on_1_to_16_v100_is_flat_and_near_the_published_steps(name: str) -> None:
    published, ours = WEAK_SCALING[name], weak_scaling(name)
    errors = [mine / real - 1 for mine, real in zip(ours, published, strict=True)]
    print(name, ", ".join(f"{mine * 1e3:.1f} ({error:+.1%})" for mine, error in zip(ours, errors, strict=True)))
    assert abs(errors[0]) < 0.01, "the row that fixes the model"
    # ResNet-50's wrapper row fixes the kernel per gradient (Host.bucket_kernel_s). What is left has one sign: from 2
    # GPUs on the published step takes 2 to 4 % more than on one, and the overlapped all-reduce is free in the simulator.
    assert abs(errors[1]) < (0.005 if name == "resnet50" else 0.02)
    assert all(-0.065 < error < 0.01 for error in errors[2:])
    assert all(mine > ours[0] for mine in ours[1:]), "never free"
    assert ours[4] < 1.01 * ours[2], "flat after 2 GPUs"
    assert abs(ours[5] / ours[4] - 1) < 0.02, "16 GPUs as 8"


def test_weak_scaling_keeps_the_order_of_models() -> None:
    for column in range(6):
        real = sorted(WEAK_SCALING, key=lambda name: WEAK_SCALING[name][column])
        assert real == sorted(WEAK_SCALING, key=lambda name: weak_scaling(name)[column])


# ---- huggingface/transformers#9371, GPT-2 small, batch 4 a GPU, milliseconds a step
BLOCKS = (128, 256, 512)
PUBLISHED_GPT2 = {"1 GPU": (48.9, 76.1, 145.2), "DP": (83.2, 113.1, 188.2), "DDP": (67.7, 93.5, 161.8),
                  "DDP without peer access": (150.1, 177.1, 246.0)}  # fmt: skip


def gpt2(row: str, block: int, *, serial: bool = True, loss_inside: bool = True) -> float:
    """Milliseconds of a step."""
    cluster = load_cluster("2xTITAN-RTX-pcie" if row.endswith("access") else "2xTITAN-RTX-nvlink")
    strategy: Strategy = DistributedDataParallel()
    if row == "1 GPU":
        cluster, strategy = cluster.take(1), SingleDevice()
    elif row == "DP":
        strategy = DataParallel(loss_inside=loss_inside)
    return run(load_model(f"gpt2-{block}", "TITAN-RTX"), cluster, strategy, 4, "adam", serial=serial).end_s * 1e3


@pytest.mark.parametrize("index", range(3))
def test_gpt2_on_two_titan_rtx_without_overlap_comes_out_as_published(index: int) -> None:
    """The 1-GPU rows fix compute; the DDP rows of block 128 fix both bandwidths; all else is predicted.

    Hugging Face's Trainer has the loss computed inside the module: one number a replica is gathered for the backward.
    It gathers the logits too, without a gradient, which the simulator's `loss_inside` does not: 3 to 9 ms too few.
    With the loss outside they would travel twice: the second number printed.
    """
    block = BLOCKS[index]
    ours = {row: gpt2(row, block) for row in PUBLISHED_GPT2}
    for row, mine in ours.items():
        fixed = row == "1 GPU" or (block == 128 and row.startswith("DDP"))
        print(f"block {block} {row}: {mine:.1f} ms, published {PUBLISHED_GPT2[row][index]} "
              f"({mine / PUBLISHED_GPT2[row][index] - 1:+.1%}, {'fixed' if fixed else 'predicted'})")  # fmt: skip
        assert mine == pytest.approx(PUBLISHED_GPT2[row][index], rel=0.25 if row == "DP" else 0.10)
    outside = gpt2("DP", block, loss_inside=False)
    print(f"    DP with the loss outside the module: {outside:.1f} ms")
    assert outside == pytest.approx(PUBLISHED_GPT2["DP"][index], rel=0.25)
    assert ours["1 GPU"] < ours["DDP"] < ours["DP"] < ours["DDP without peer access"]
    if block < 512:
        assert 2 * ours["1 GPU"] < ours["DDP without peer access"], "two GPUs deliver less than one"


def test_gpt2_without_peer_access_pays_the_same_100_ms_at_every_block() -> None:
    for index, block in enumerate(BLOCKS):
        penalty = gpt2("DDP without peer access", block) - gpt2("1 GPU", block)
        assert penalty == pytest.approx((101.2, 101.0, 100.8)[index], rel=0.05)


def test_perfect_overlap_gets_block_512_wrong() -> None:
    errors = {}
    for row in ("DDP", "DDP without peer access"):
        for index, block in enumerate(BLOCKS):
            errors[row, block] = gpt2(row, block, serial=False) / PUBLISHED_GPT2[row][index] - 1
            print(f"perfect overlap, block {block} {row}: {errors[row, block]:+.1%}")
    assert errors["DDP without peer access", 512] < -0.20


def test_gpt2_at_1024_tokens_is_predicted_within_ten_percent() -> None:
    # The documentation's own run, 200 steps: 102 s on 1 GPU (fixes compute), DP 110.6, DDP 101.9, without NVLink 131.4.
    profile = load_model("gpt2", "TITAN-RTX")
    nvlink, pcie = load_cluster("2xTITAN-RTX-nvlink"), load_cluster("2xTITAN-RTX-pcie")
    rows: list[tuple[str, Cluster, Strategy, float]] = [
        ("DP", nvlink, DataParallel(loss_inside=True), 110.5948), ("DDP", nvlink, DistributedDataParallel(), 101.9003),
        ("DDP without peer access", pcie, DistributedDataParallel(), 131.4367)]  # fmt: skip
    for row, cluster, strategy, seconds in rows:
        ours = run(profile, cluster, strategy, 4, "adam", serial=True).end_s
        print(f"block 1024 {row}: {ours * 1e3:.0f} ms, published {seconds * 5:.0f} ({ours * 200 / seconds - 1:+.1%})")
        assert ours == pytest.approx(seconds / 200, rel=0.10)


# ---- pytorch/pytorch#41954
@pytest.mark.parametrize("name", ["resnet50", "gpt2-128"])
def test_gradient_as_bucket_view_saves_the_bytes_of_the_gradients(name: str) -> None:
    profile, cluster = load_model(name, "V100"), load_cluster("8xV100-dgx1")
    traces = {view: run(profile, cluster, DistributedDataParallel(gradient_as_bucket_view=view), 4)
              for view in (False, True)}  # fmt: skip
    for device in range(8):
        most, left = {}, {}
        for view, trace in traces.items():
            held = {"gradients": 0, "buckets": 0}
            most[view] = 0
            for change in trace.memory:
                if change.device == device and change.category in held:
                    held[change.category] += change.nbytes
                    most[view] = max(most[view], sum(held.values()))
            left[view] = held
        assert most[False] - most[True] == profile.gradient_bytes
        assert left[False] == {"gradients": profile.gradient_bytes, "buckets": profile.gradient_bytes}
        assert left[True] == {"gradients": 0, "buckets": profile.gradient_bytes}
    saved = peak_saved(profile, cluster, set_to_none=True)
    # With set_to_none, today's default, gradients do not exist yet while the activations are at their largest.
    print(f"{name}: peak falls by {saved[0] / 1e6:.0f} MB, gradients {profile.gradient_bytes / 1e6:.0f} MB")
    assert all(0 <= value <= profile.gradient_bytes for value in saved)
    # The published peaks kept gradients from step to step: a ResNet of 97 MB fell by 101 MB, all of it.
    assert peak_saved(profile, cluster, set_to_none=False) == [profile.gradient_bytes] * 8


def peak_saved(profile: ModelProfile, cluster: Cluster, *, set_to_none: bool) -> list[int]:
    """For each device what gradient_as_bucket_view takes off the peak."""
    peaks = [Metrics(run(profile, cluster, DistributedDataParallel(gradient_as_bucket_view=view), 4,
                         set_to_none=set_to_none)).peak_memory_bytes for view in (False, True)]  # fmt: skip
    return [plain - view for plain, view in zip(*peaks, strict=True)]


# ---- pytorch/pytorch#3930, #3917
def replicate(parameters: tuple[Parameter, ...], gpus: int = 2) -> tuple[float, float]:
    """Seconds until every device has the parameters, and until the replicas' modules are built."""
    profile = ModelProfile("tiny", parameters, (Layer("all", tuple(p.name for p in parameters)),))
    trace = run(profile, load_cluster("4xV100-pcie").take(gpus), DataParallel(), 8, "none")
    spans = [span for span in trace.spans if span.end_s is not None]
    start = min(span.start_s for span in spans if span.name == "flatten parameters and buffers")
    sent = max(span.end_s or 0.0 for span in spans if span.kind == "replicate")
    built = max(span.end_s or 0.0 for span in spans if span.name == "build the replicas")
    return sent - start, built - start


def test_three_thousand_small_tensors_take_30_ms_longer_to_broadcast_than_one_of_their_bytes() -> None:
    # 34 ms against 4 ms: the row that fixes replicate_tensor_s. The 4 ms are predicted.
    many = replicate(tuple(Parameter(f"p{index}", (3500,)) for index in range(3000)))
    one = replicate((Parameter("p", (3000 * 3500,)),))
    print(f"broadcast of 3000 tensors {many[0] * 1e3:.1f} ms, of one {one[0] * 1e3:.1f} ms; with the replicas' modules "
          f"{many[1] * 1e3:.1f} and {one[1] * 1e3:.1f} ms")  # fmt: skip
    assert many[0] - one[0] == pytest.approx(30e-3, rel=0.30)
    assert one[0] == pytest.approx(4e-3, rel=0.30)


def test_resnet_1001_replicates_in_about_180_ms() -> None:
    # 333 blocks of 3 convolutions and 3 normalisations with 2 parameters and 2 buffers each: 5000 tensors, "up to" 180.
    tensors = 333 * 3 * (1 + 2 + 2)
    host = host_for(load_cluster("4xV100-pcie"))
    seconds = [tensors * (host.replicate_tensor_s + gpus * host.replicate_copy_s) for gpus in (2, 4)]
    print(f"ResNet-1001: {seconds[0] * 1e3:.0f} ms on 2 GPUs, {seconds[1] * 1e3:.0f} on 4")
    assert seconds[0] == pytest.approx(0.180, rel=0.30)


def test_distributed_data_parallel_replicates_nothing() -> None:
    many = tuple(Parameter(f"p{index}", (3500,)) for index in range(3000))
    profile = ModelProfile("tiny", many, (Layer("all", tuple(p.name for p in many)),))
    trace = run(replace(profile, name="many"), load_cluster("2xV100-pcie"), DistributedDataParallel(), 8, "none")
    assert not [span for span in trace.spans if span.kind == "replicate"]
