"""Preset models on one device against published steps: the row that fixed each, and the rows that it predicts.

Run with -s to see the table. Published rows of one model on one device differ among themselves: fp32 ResNet-50 on a
V100 from 330 to 402 images/s (the row that fixes the preset is the slowest), in mixed precision by twice, because some
programs lay images out channels last and some do not.
"""

import json
from pathlib import Path
from statistics import median

import pytest

from simulator.cluster import Cluster, Device
from simulator.errors import InputError
from simulator.model import ModelProfile
from simulator.presets.calibration import CALIBRATION, Row
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.presets.facts import load_facts
from simulator.presets.machines import MACHINES, host_for, machine_for
from simulator.presets.models import MODELS, load_model, slowness_of
from simulator.scenario import OPTIMIZERS, Scenario, SingleDevice
from simulator.simulate import simulate

HOME = {"V100": "8xV100-dgx1", "A100": "4xA100", "H100": "8xH100", "2080Ti": "4x2080Ti-pcie", "TITAN-RTX":
        "2xTITAN-RTX-nvlink"}  # fmt: skip
DPWEAK = json.loads((Path(__file__).with_name("data") / "published" / "dpweak.json").read_text())
MIXED = {"amp", "bf16"}


def step_s(profile: ModelProfile, kind: str, batch: int, optimizer: str, inputs: str = "device") -> float:
    """A simulated step on one device of that kind."""
    cluster = load_cluster(HOME[kind]).take(1)
    return simulate(Scenario(profile, cluster, SingleDevice(), batch_per_device=batch, optimizer=OPTIMIZERS[optimizer],
                             host=host_for(cluster), inputs=inputs)).end_s  # fmt: skip


def error(name: str, kind: str, precision: str, row: Row) -> float:
    """Simulated over published, less one. Where the published sample is longer, the published step is shortened."""
    published = row.step_s(load_facts(name).tokens_per_sample) / row.work
    inputs = "host" if row.inputs_s else "device"
    return step_s(load_model(name, kind, precision=precision), kind, row.batch, row.optimizer, inputs) / published - 1


@pytest.mark.parametrize(("name", "kind", "precision"), CALIBRATION)
def test_the_row_that_fixes_a_preset_is_met(name: str, kind: str, precision: str) -> None:
    row = CALIBRATION[name, kind, precision].row
    # Where the sample differs, launches are too many for the shortened step.
    assert error(name, kind, precision, row) == pytest.approx(0, abs=0.005 if row.work == 1 else 0.06)
    assert row.source in load_model(name, kind, precision=precision).source


def test_predicted_rows_are_within_their_bounds() -> None:
    errors: dict[bool, list[float]] = {False: [], True: []}
    for (name, kind, precision), calibration in CALIBRATION.items():
        print(f"{name} {kind} {precision}: fixed by {calibration.row.text}; "
              f"{slowness_of(name, kind, precision=precision).value:.2f} times the roofline")  # fmt: skip
        for row in calibration.predicts:
            found = error(name, kind, precision, row)
            errors[precision in MIXED].append(found)
            print(f"    predicts {row.text}: step {found:+.1%}")
    single, mixed = errors[False], errors[True]
    assert median(map(abs, single)) < 0.12
    assert max(map(abs, single)) < 0.25
    # DeepLearningExamples' NGC 21.03 rows are channels last: 1.4 and 2.0 times as fast as the rows that fix.
    assert sorted(map(abs, mixed))[: len(mixed) // 2][-1] < 0.02
    assert max(map(abs, mixed)) < 1.1


@pytest.mark.parametrize(
    ("name", "kind", "bound"),
    [("resnet18", "A100", 0.17), ("resnet50", "A100", 0.08), ("densenet121", "A100", 0.08),
     ("resnet18", "2080Ti", 0.16), ("resnet50", "2080Ti", 0.23), ("densenet121", "2080Ti", 0.05)],
)  # fmt: skip
def test_small_batches_are_bound_by_the_host_and_predicted(name: str, kind: str, bound: float) -> None:
    # densenet121 is among the even models that fixed the launches; its device seconds, and all else, are predicted.
    column = DPWEAK["columns"].index(f"{'4xA100' if kind == 'A100' else '4x2080Ti-pcie'} train")
    published = DPWEAK["models"][name][column][0] * 1e-3
    profile = load_model(name, kind)
    found = step_s(profile, kind, 12, "none", "host")
    host = sum(layer.forward_host_s + layer.backward_host_s for layer in profile.layers)
    print(f"{name} {kind} batch 12: {found * 1e3:.1f} ms, published {published * 1e3:.1f} "
          f"({found / published - 1:+.1%}); host {host * 1e3:.1f} ms")  # fmt: skip
    assert abs(found / published - 1) < bound
    if kind == "A100":
        assert host > profile.compute_s(12)


@pytest.mark.parametrize("kind", MACHINES)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_loads_on_every_device_and_says_where_its_seconds_are_from(name: str, kind: str) -> None:
    for precision in MACHINES[kind].peak_flops_per_s:
        profile = load_model(name, kind, precision=precision)
        slowness = slowness_of(name, kind, precision=precision)
        assert slowness.calibrated == ((name, kind, precision) in CALIBRATION)
        assert slowness.calibrated or "no published row" in profile.source
        assert 0.5 < slowness.value < 5
        assert profile.compute_s(1) > 0
        assert profile.device == kind
        seconds = [profile.compute_s(batch) for batch in (1, 2, 4, 8, 64, 512)]
        assert seconds == sorted(seconds)


def test_each_preset_of_a_real_network_spends_about_twice_as_long_backward_as_forward() -> None:
    for name in ("resnet50", "vgg16", "densenet121", "bert-base", "gpt2"):
        layers = load_model(name, "V100").layers
        forward, backward = sum(each.forward.at(32) for each in layers), sum(each.backward.at(32) for each in layers)
        assert 1.4 < backward / forward < 2.4


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"model 'resnet5O' is not known. Did you mean 'resnet50'"):
        load_model("resnet5O", "V100")
    with pytest.raises(InputError, match=r"device kind 'V10' is not known. Did you mean 'V100'"):
        load_model("resnet50", "V10")
    with pytest.raises(InputError, match=r"precision 'tf32' on V100: it has fp32, amp. Use one of them."):
        load_model("resnet50", "V100", precision="tf32")


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_has_a_known_machine(name: str) -> None:
    machine = machine_for(load_cluster(name))
    assert machine.known
    assert machine.source
    assert host_for(load_cluster(name)) == machine.host


def test_unknown_hardware_gets_a_host_that_costs_nothing_and_says_so() -> None:
    machine = machine_for(Cluster("mine", (Device("gpu0", "B300"),)))
    assert not machine.known
    assert "unknown hardware (B300)" in machine.host.source
    assert machine.host.replicate_copy_s == machine.host.hook_s == machine.host.forward_s == 0
