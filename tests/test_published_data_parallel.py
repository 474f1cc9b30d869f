"""DataParallel's step times of 32 torchvision models on two machines, against a published table.

Fitted: `forward_s`, `replicate_copy_s`, `reduce_tensor_s` and `backward_contention` of both machines' Host, on the even
models (sorted names) at 2 and 4 GPUs, forward only and training together; `replicate_tensor_s` is of another source.
Predicted: the odd models, and 3 GPUs. The step at 1 GPU is each model's input: it gives the seconds of its layers.

A model's profile is built from its counts and its two measured steps at 1 GPU. Whether the host or the device sets
their pace is not printed; a host's launches cost at most a line over the number of tensors (LINES of published_dp, the
even models that the host bounds): a step above it is the device's, a step below it the host's. The device's seconds of a
host-bound model are not known and taken as half; a tenth or nine tenths change the fit's mean error by 0.0004 at most.
Batch normalisation counts its batches in training: 227 kernels in ResNet-50's forward instead of 174.

Run with -s to see the errors.
"""

import json
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simulator.compare import compare
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import host_for
from simulator.presets.models import load_model
from simulator.scenario import OPTIMIZERS, DataParallel, Scenario
from simulator.simulate import simulate
from simulator.validation.published_dp import profile
from simulator.verdict import cause

DATA: dict[str, Any] = json.loads((Path(__file__).with_name("data") / "published" / "dpweak.json").read_text())
MODELS = sorted(DATA["models"])
COLUMN = {name: index for index, name in enumerate(DATA["columns"])}
MACHINES = ("4xA100", "4x2080Ti-pcie")
BATCH = 12


def published(machine: str, phase: str, model: str, gpus: int) -> float:
    """Seconds of a step."""
    return float(DATA["models"][model][COLUMN[f"{machine} {phase}"]][gpus - 1]) * 1e-3


@cache
def simulated(machine: str, phase: str, model: str, gpus: int) -> float:
    """Seconds of a step, by the simulator."""
    cluster = load_cluster(machine).take(gpus)
    scenario = Scenario(profile(machine, phase, model), cluster, DataParallel(), backend_for(cluster), BATCH,
                        optimizer=OPTIMIZERS["none"], host=host_for(cluster), inputs="host")  # fmt: skip
    trace = simulate(scenario)
    if phase == "train":
        return trace.end_s
    return max(span.end_s or 0.0 for span in trace.spans if span.kind in ("forward", "gather"))


def errors(machine: str, phase: str, gpus: int, models: list[str]) -> list[float]:
    return [simulated(machine, phase, m, gpus) / published(machine, phase, m, gpus) - 1 for m in models]


BOUNDS = {
    # machine, phase, GPUs: median and largest |error| of the even models (fitted at 2 and 4), then of the odd ones
    ("4xA100", "train", 2): (0.03, 0.08, 0.04, 0.12), ("4xA100", "train", 3): (0.05, 0.12, 0.10, 0.19),
    ("4xA100", "train", 4): (0.03, 0.13, 0.08, 0.23),
    ("4xA100", "forward_only", 2): (0.05, 0.20, 0.06, 0.13), ("4xA100", "forward_only", 3): (0.09, 0.16, 0.13, 0.20),
    ("4xA100", "forward_only", 4): (0.09, 0.20, 0.12, 0.24),
    ("4x2080Ti-pcie", "train", 2): (0.05, 0.09, 0.06, 0.09), ("4x2080Ti-pcie", "train", 4): (0.10, 0.19, 0.10, 0.23),
    ("4x2080Ti-pcie", "forward_only", 2): (0.08, 0.23, 0.08, 0.33),
    ("4x2080Ti-pcie", "forward_only", 4): (0.08, 0.17, 0.05, 0.15),
    # Three of these GPUs take longer than four whenever a model is large (see the test below): not modelled.
    ("4x2080Ti-pcie", "train", 3): (0.10, 0.50, 0.15, 0.50),
    ("4x2080Ti-pcie", "forward_only", 3): (0.10, 0.58, 0.12, 0.58),
}  # fmt: skip


@pytest.mark.parametrize(("machine", "phase", "gpus"), BOUNDS)
def test_step_times_stay_within_their_bounds(machine: str, phase: str, gpus: int) -> None:
    even, odd = errors(machine, phase, gpus, MODELS[::2]), errors(machine, phase, gpus, MODELS[1::2])
    found = (median(map(abs, even)), max(map(abs, even)), median(map(abs, odd)), max(map(abs, odd)))
    how = "predicted" if gpus == 3 else "fitted"
    print(f"{machine:14s} {phase:13s} {gpus} GPUs: even models ({how}) median {found[0]:.3f} largest {found[1]:.3f}; "
          f"odd models (predicted) median {found[2]:.3f} largest {found[3]:.3f}")  # fmt: skip
    for value, bound in zip(found, BOUNDS[machine, phase, gpus], strict=True):
        assert value < bound


def test_one_gpu_is_met_because_it_is_the_input() -> None:
    for machine in MACHINES:
        assert max(map(abs, errors(machine, "train", 1, MODELS))) < 0.035


ORDERED = {("4xA100", "train"): (1.12, 0.93), ("4xA100", "forward_only"): (1.20, 0.87),
           ("4x2080Ti-pcie", "train"): (1.40, 0.92), ("4x2080Ti-pcie", "forward_only"): (1.20, 0.91)}  # fmt: skip
"""At 4 GPUs: every pair of models whose published times differ by more than this factor is ordered as published;
Kendall's tau over all 496 pairs is above this. The errors alone would allow any order within a factor of 1.5. The pair
that needs 1.40: ResNet-152 comes out 17 % slow, DenseNet-169 14 % fast."""


@pytest.mark.parametrize(("machine", "phase"), ORDERED)
def test_models_come_out_in_the_published_order_on_four_gpus(machine: str, phase: str) -> None:
    factor, least_tau = ORDERED[machine, phase]
    real = {model: published(machine, phase, model, 4) for model in MODELS}
    ours = {model: simulated(machine, phase, model, 4) for model in MODELS}
    alone = {model: published(machine, phase, model, 1) for model in MODELS}
    wrong = [(a, b) for a, b in combinations(MODELS, 2) if (real[a] - real[b]) * (ours[a] - ours[b]) <= 0]
    pairs = len(MODELS) * (len(MODELS) - 1) // 2
    tau = 1 - 2 * len(wrong) / pairs
    by_one_gpu = 1 - 2 * sum((real[a] - real[b]) * (alone[a] - alone[b]) <= 0
                             for a, b in combinations(MODELS, 2)) / pairs  # fmt: skip
    widest = max(wrong, key=lambda pair: abs(real[pair[0]] / real[pair[1]] - 1))
    print(f"{machine} {phase}: tau {tau:.3f} ({len(wrong)} of {pairs} pairs wrong; the order at 1 GPU would give "
          f"{by_one_gpu:.3f}); widest wrong pair {widest} {real[widest[0]] * 1e3:.0f} and "
          f"{real[widest[1]] * 1e3:.0f} ms")  # fmt: skip
    assert tau > least_tau > by_one_gpu
    assert all(max(real[a] / real[b], real[b] / real[a]) < factor for a, b in wrong)


def test_three_2080_ti_are_slower_than_four_for_large_models_which_nothing_here_explains() -> None:
    machine = "4x2080Ti-pcie"
    large = [model for model in MODELS if DATA["models"][model][COLUMN["parameter_bytes"]] > 250e6]
    for model in large:
        assert published(machine, "train", model, 3) > published(machine, "train", model, 4)
        assert simulated(machine, "train", model, 3) < simulated(machine, "train", model, 4)
    small = [model for model in MODELS if DATA["models"][model][COLUMN["parameter_bytes"]] < 100e6]
    assert max(map(abs, errors(machine, "train", 3, small))) < 0.26


@pytest.mark.parametrize(("model", "one", "four"),
                         [("vgg16", 27.7, 43.5), ("resnet50", 36.0, 103.3), ("densenet121", 74.4, 231.4)])  # fmt: skip
def test_presets_on_four_a100_take_the_published_steps(model: str, one: float, four: float) -> None:
    # vgg16's step at 1 GPU fixed its preset, densenet121 is one of those that fixed the host; the rest is predicted.
    comparison = preset("4xA100", model)
    single, parallel = comparison.single.step_s * 1e3, comparison.runs["DataParallel"].step_s * 1e3
    print(f"{model}: 1 GPU {single:.1f} ms (published {one}), 4 GPUs {parallel:.1f} ms (published {four})")
    assert single == pytest.approx(one, rel=0.10)
    assert parallel == pytest.approx(four, rel=0.15)


def preset(cluster_name: str, model: str) -> Any:
    """Both strategies of a preset model as the table's authors ran it."""
    cluster = load_cluster(cluster_name)
    return compare(Scenario(load_model(model, "A100"), cluster, DataParallel(), backend_for(cluster), BATCH,
                            optimizer=OPTIMIZERS["none"], host=host_for(cluster), inputs="host"))  # fmt: skip


def test_on_nvlink_data_parallel_hurts_vgg16_less_than_resnet50_and_on_pcie_more() -> None:
    growth: dict[tuple[str, str], float] = {}
    why: dict[tuple[str, str], str] = {}
    for cluster in ("4xA100", "4xA100-pcie3"):
        for model in ("vgg16", "resnet50", "densenet121"):
            comparison = preset(cluster, model)
            growth[cluster, model] = comparison.runs["DataParallel"].step_s / comparison.single.step_s
            why[cluster, model] = cause(comparison, "DataParallel")
            print(f"{cluster:13s} {model:12s} {growth[cluster, model]:.2f} times one GPU's step: {why[cluster, model]}")
    real = {model: published("4xA100", "train", model, 4) / published("4xA100", "train", model, 1)
            for model in ("vgg16", "resnet50")}  # fmt: skip
    assert real["vgg16"] < 1.6 < 2.8 < real["resnet50"]
    assert growth["4xA100", "vgg16"] < 1.6 < 2.8 < growth["4xA100", "resnet50"]
    assert why["4xA100", "resnet50"] == why["4xA100", "densenet121"] == "python thread"
    assert growth["4xA100-pcie3", "vgg16"] > growth["4xA100-pcie3", "resnet50"]
    assert why["4xA100-pcie3", "vgg16"] == "GPU 0's link"
    assert why["4xA100-pcie3", "resnet50"] == "python thread"
