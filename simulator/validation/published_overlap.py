"""Four ways to send the same gradients, on two GPUs: after the backward or during it, one by one or together.

One all-reduce a parameter is a bucket cap of 0, one for all a cap without end; after the backward is a library that
overlaps nothing (`serial`). The models are the course's transformers: 9 tensors a block (four of attention, three of
SwiGLU, two norms), an embedding, a head, a last norm.

Stated: model, batch, sequence, and for the smaller model the forward and the backward of one GPU. The GPUs and their
link are not, so they are fitted: for each batch and sequence the row of one all-reduce a parameter after the backward
gives the computing (step less waiting); the first flat all-reduce gives the link; the first overlapped step gives by
how much computing slows while an all-reduce runs, for both machines. All other steps are predicted.

Not modelled: an optimizer that launches a kernel a tensor; the flat copy's own time where a program concatenates.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from simulator.backend import nccl
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster, Device, Link
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.machines import MACHINES
from simulator.scenario import OPTIMIZERS, DistributedDataParallel, Host, Scenario
from simulator.simulate import simulate
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction, left_of, published

KIND = "A100"
"""Its host and memory: the authors' kernels are an A100's or an H100's."""
CAUSES = {
    "one flat after backward": "1.96 s beside 0.88 and 1.14 of its neighbours: one run of the source, not explained"
}
NO_COPIES = Host(device_memory_bytes_per_s=1e18)
"""Hand-written programs send gradients where they lie."""
WITHOUT_END = 1e6
SECONDS = {"s": 1.0, "ms": 1e-3}
STEP = "step_time"
FIXES = "DDP_per_parameter_after_backward"
FLAT = "DDP_one_flat_after_backward"
WAYS = {FIXES: (0.0, True), FLAT: (WITHOUT_END, True), "DDP_per_parameter_overlap": (0.0, False)}
"""Bucket cap in MiB, and whether the all-reduces wait for the end of the backward."""

ALONE = "comp_gpt_sizes_a100_or_h100"
SLOWS = ("ovl_damek_xl_ddp_variants", "DDP_per_parameter_overlap", 2, 128, 0)
"""The row that fixes the slowing: source, way, batch, sequence, cap."""
Key = tuple[str, int, int, float, str]
"""Way, batch, sequence, cap in MB, metric."""


@dataclass(frozen=True)
class Shape:
    """A transformer of the course."""

    name: str
    width: int
    blocks: int
    inner: int
    words: int = 10_000


SHAPES = {"ovl_damek_xl_ddp_variants": Shape("XL, 2.0 billion", 1600, 48, 6400),
          "ovl_a100x2_xl_ddp_variants": Shape("3.4 billion", 2560, 32, 10240)}  # fmt: skip


def families() -> list[Family]:
    """One family; its groups are the ways."""
    return [Family("Overlap variants, steps", tuple(_rows()), {PREDICTED: 0.10}, "the aim", inputs=len(_alone()) * 2,
                   left=left_of("overlap"),
                   fit="computing by one all-reduce a parameter after the backward, the link by one flat all-reduce, "
                   "the slowing by one overlapped step", causes=CAUSES)]  # fmt: skip


def _rows() -> Iterator[Prediction]:
    slowed = slowdown()
    for source, shape in SHAPES.items():
        known = _seconds(source)
        first = next(key for key in known if key[0] == FLAT and key[4] != STEP)
        for key, real in known.items():
            mode, batch, sequence, cap, metric = key
            what = "step" if metric == STEP else "waiting"
            total, waiting = _simulated(source, mode, batch, sequence, cap, slowed)
            fixes = mode == FIXES or key == first or (source, key) == (SLOWS[0], (*SLOWS[1:], STEP))
            said = f"{shape.name}, batch {batch}" + (f", {sequence} tokens" if sequence else "")
            label = mode.removeprefix("DDP_").replace("_", " ")
            yield Prediction(f"{label}, {what}", f"{said}, {label}" + (f" {cap} MB" if cap else "") + f", {what}",
                             FITTED if fixes else PREDICTED, total if metric == STEP else waiting, real, source)  # fmt: skip


def _seconds(source: str) -> dict[Key, float]:
    return {tuple(row[:5]): row[5] * SECONDS[row[6]] for row in published("overlap")["sets"][source]["rows"]}


@cache
def _alone() -> dict[int, tuple[float, float]]:
    """By sequence the forward and the backward of 4 of them on one GPU of the first machine."""
    known = _seconds(ALONE)
    found = {}
    for sequence in sorted({key[2] for key in known}):
        forward = known["forward_time", 4, sequence, 0, "alone"]
        found[sequence] = forward, known["forward_backward_time", 4, sequence, 0, "alone"] - forward
    return found


def slowdown() -> float:
    """The part of its speed that computing loses while an all-reduce runs, by the row SLOWS."""
    source, *row = SLOWS
    key: Any = (*row, STEP)
    wanted = _seconds(source)[key]
    low, high = 0.0, 0.95
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if _simulated(*SLOWS, middle)[0] < wanted else (low, middle)
    return (low + high) / 2


def _simulated(source: str, mode: str, batch: int, sequence: int, cap: float, slowed: float) -> tuple[float, float]:
    """Seconds of a step, and of it what two GPUs take longer than one computes."""
    shape, known = SHAPES[source], _seconds(source)
    computing = known[FIXES, batch, sequence, 0, STEP] - next(
        value for key, value in known.items() if key[:3] == (FIXES, batch, sequence) and key[4] != STEP)  # fmt: skip
    link = shape_bytes(shape) / next(value for key, value in known.items() if key[0] == FLAT and key[4] != STEP)
    forward, backward = computing / 3, computing * 2 / 3
    if source == SLOWS[0]:  # as many tokens as 4 of a shorter sequence have; fewer take as long as the least
        tokens = max(min(_alone()), batch * sequence // 4)
        forward, backward = _alone()[tokens]
    else:
        optimizer = OPTIMIZERS["adam"].moved_copies * shape_bytes(shape) / MACHINES[KIND].host.device_memory_bytes_per_s
        forward, backward = forward - optimizer / 3, backward - optimizer * 2 / 3
    rest = max(0.0, computing - forward - backward)
    way = WAYS.get(mode, (float(cap), False))
    total = rest + step_s(shape, forward, backward, link, *way, 0.0 if way[1] else slowed)
    return total, total - computing


@cache
def shape_bytes(shape: Shape) -> int:
    """Of all gradients, in fp32."""
    return profile(shape, 1.0, 1.0).gradient_bytes


@cache
def profile(shape: Shape, forward_s: float, backward_s: float) -> ModelProfile:
    """The model, whose blocks share the forward and the backward."""
    d, words, inner = shape.width, shape.words, shape.inner
    block = [(d,), *[(d, d)] * 4, (d,), (inner, d), (d, inner), (inner, d)]
    parameters, layers = [Parameter("embedding", (words, d))], [Layer("embedding", ("embedding",))]
    forward, backward = Cost(forward_s / shape.blocks), Cost(backward_s / shape.blocks)
    for index in range(shape.blocks):
        made = [Parameter(f"block {index}.{number}", size) for number, size in enumerate(block)]
        parameters += made
        layers.append(Layer(f"block {index}", tuple(p.name for p in reversed(made)), forward, backward))
    parameters += [Parameter("norm", (d,)), Parameter("head", (words, d))]
    layers.append(Layer("head", ("head", "norm")))
    return ModelProfile(shape.name, tuple(parameters), tuple(layers), device=KIND)


@cache
def step_s(shape: Shape, forward_s: float, backward_s: float, link: float, cap_mb: float, after: bool,
           slowed: float) -> float:  # fmt: skip
    """Seconds of a step without its optimizer."""
    ends = ("gpu0", "gpu1"), ("gpu1", "gpu0")
    cluster = Cluster("two GPUs", (Device("gpu0", KIND), Device("gpu1", KIND)),
                      tuple(Link(a, b, link, 0.0, "pcie") for a, b in ends))  # fmt: skip
    backend = nccl(link="pcie", serial=after, compute_slowdown=slowed)
    strategy = DistributedDataParallel(BucketOptions(bucket_cap_mb=cap_mb))
    return simulate(Scenario(profile(shape, forward_s, backward_s), cluster, strategy, backend, 1,
                             optimizer=OPTIMIZERS["none"], host=NO_COPIES)).end_s  # fmt: skip
