"""Models by name on a device by name: recorded facts, and seconds scaled until one published step is met.

    seconds of a layer = slowness * roofline(layer, batch)           (simulator.presets.roofline)
    slowness           = published seconds of the device / the sum of all layers' rooflines at that batch

The published step fixes one number, `slowness`; every other batch, and every other published row of that model and
device, is predicted. Rows that fix and rows that are predicted stand side by side in CALIBRATION, and
tests/test_published_presets.py prints predicted against published. Where a model has no row on a device, its slowness
elsewhere counts, in proportion to a model that has rows on both; else the median of the models of its class there
(convolutions, or matrix products only), or elsewhere; `source` says which. A layer's seconds are the line through its
rooflines at batch 1 and at the calibrating batch.

The host pays `forward_launch_s` a kernel and `backward_launch_s` a parameter tensor: see `simulator.presets.machines`.
Published rows of one model on one device differ by a fifth and more: fp32 ResNet-50 on a V100 from 330 to 402
images/s, by software, memory layout and clock.

Not modelled: kernels too small to fill a device (small batches come out too fast unless the host is slower), the
speed of other memory layouts, tokens per sample other than the recorded ones.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from statistics import median

from simulator.errors import InputError, require
from simulator.model import Cost, ModelProfile, Parameter
from simulator.presets.calibration import CALIBRATION, Calibration, Row
from simulator.presets.facts import MODEL_NAMES, LayerFacts, ModelFacts, load_facts
from simulator.presets.machines import MACHINES, Machine, load_machine
from simulator.presets.roofline import layer_shares
from simulator.scenario import OPTIMIZERS

__all__ = ["CALIBRATION", "MODELS", "Calibration", "Row", "Slowness", "load_model", "slowness_of"]

MODELS = MODEL_NAMES
Key = tuple[str, str, str]
"""Model, device kind, precision."""
HALF = {"amp", "bf16"}
"""Precisions in which kernels move half the recorded bytes."""


@dataclass(frozen=True)
class Slowness:
    """By how much a device is slower than its roofline for one model, and where that is from."""

    value: float
    batch: int
    source: str
    calibrated: bool
    """False: no published row; the median of others."""


def load_model(name: str, device_kind: str, *, precision: str = "fp32") -> ModelProfile:
    """The preset on that device. Raises InputError, with the known names, for an unknown model, device or precision."""
    load_facts_once(name)
    load_machine(device_kind)
    return _load(name, device_kind, precision)


@lru_cache(maxsize=64)
def _load(name: str, device_kind: str, precision: str) -> ModelProfile:
    facts, machine = load_facts_once(name), MACHINES[device_kind]
    slowness = slowness_of(name, device_kind, precision=precision)
    one, many = _rooflines(facts, machine, precision, 1), _rooflines(facts, machine, precision, slowness.batch)
    costs = [tuple(_line(a, b, slowness) for a, b in zip(at_one, at_many, strict=True))
             for at_one, at_many in zip(one, many, strict=True)]  # fmt: skip
    (loss_forward, loss_backward), layers = costs[-1], costs[:-1]
    forward_host, backward_host = _host_seconds(facts, machine)
    return facts.profile(
        [forward for forward, _ in layers], [backward for _, backward in layers], device=device_kind,
        loss=Cost(loss_forward.fixed_s + loss_backward.fixed_s, loss_forward.per_sample_s + loss_backward.per_sample_s),
        forward_host_s=forward_host, backward_host_s=backward_host, precision=precision,
        source=f"{facts.source}; {slowness.source}; host: {machine.source}",
    )  # fmt: skip


def _host_seconds(facts: ModelFacts, machine: Machine) -> tuple[list[float], list[float]]:
    """Seconds of the host for each layer's forward and backward."""
    trained = {parameter.name for parameter in _trained(facts)}
    gradients = [len(trained.intersection(layer.parameters)) for layer in facts.layers]
    return ([layer.forward_kernels * machine.forward_launch_s for layer in facts.layers],
            [count * machine.backward_launch_s for count in gradients])  # fmt: skip


def _trained(facts: ModelFacts) -> list[Parameter]:
    return [parameter for parameter in facts.parameters if parameter.requires_grad and parameter.tied_to is None]


@lru_cache(maxsize=32)
def load_facts_once(name: str) -> ModelFacts:
    """`load_facts`, read once."""
    return load_facts(name)


def slowness_of(name: str, device_kind: str, *, precision: str = "fp32") -> Slowness:
    """The slowness of a model on a device: from its published row, or the median of the nearest others."""
    load_facts_once(name)
    _peak(load_machine(device_kind), load_facts_once(name), precision)
    if (name, device_kind, precision) in CALIBRATION:
        return _calibrated(name, device_kind, precision)
    relatives = _relatives(name, device_kind, precision)
    what, values = next(found for found in relatives if found[1])
    value = median(slowness.value for slowness in values)
    batch = int(median(slowness.batch for slowness in values))
    return Slowness(value, batch, f"no published row of {name} on {device_kind} in {precision}: {value:.2f} times the "
                    f"roofline, the median of {what} ({len(values)})", calibrated=False)  # fmt: skip


def _relatives(name: str, device_kind: str, precision: str) -> list[tuple[str, list[Slowness]]]:
    """Calibrated models, from the nearest to the farthest; the first list that is not empty counts."""
    kind = _class(load_facts_once(name))
    alike = [key for key in CALIBRATION if _class(load_facts_once(key[0])) == kind]
    same = [key for key in alike if key[2] == precision]
    there = [key for key in same if key[1] == device_kind]
    family = [key for key in same if _family(key[0]) == _family(name)]
    lists = [
        (f"{_family(name)} there", [key for key in family if key[1] == device_kind]),
        (f"models of {kind} there", there),
        (f"{_family(name)} elsewhere", family),
        (f"models of {kind} elsewhere", same),
        (f"models of {kind} in any precision", alike),
    ]
    known = [(what, [_calibrated(*key) for key in keys]) for what, keys in lists]
    what = f"{_family(name)} elsewhere, in proportion to models known here and there"
    return [known[0], (what, _in_proportion(family, there)), *known[1:]]


def _in_proportion(family: list[Key], there: list[Key]) -> list[Slowness]:
    """The family's slowness elsewhere, times how much slower a model of both devices is here."""
    found = []
    for model, device, precision in family:
        for reference, here, _ in there:
            both = (reference, device, precision)
            if both in CALIBRATION and _has_tf32(device) == _has_tf32(here):
                mine, ratio = _calibrated(model, device, precision), _calibrated(reference, here, precision).value
                found.append(Slowness(mine.value * ratio / _calibrated(*both).value, mine.batch, "", calibrated=False))
    return found


def _family(name: str) -> str:
    """gpt2 and gpt2-512 are one family."""
    return re.sub(r"-\d+$", "", name)


def _has_tf32(device_kind: str) -> bool:
    return "tf32" in MACHINES[device_kind].peak_flops_per_s


def _class(facts: ModelFacts) -> str:
    return "convolutions" if any(len(parameter.shape) > 2 for parameter in facts.parameters) else "matrix products"


def _peak(machine: Machine, facts: ModelFacts, precision: str) -> float:
    """FLOP/s of the precision; fp32 convolutions use TF32 where there is one, as torch does by default."""
    peaks = machine.peak_flops_per_s
    if precision not in peaks:
        raise InputError(f"precision {precision!r} on {machine.kind}: it has {', '.join(peaks)}. Use one of them.")
    if precision == "fp32" and _class(facts) == "convolutions":
        return peaks.get("tf32", peaks["fp32"])
    return peaks[precision]


def _rooflines(facts: ModelFacts, machine: Machine, precision: str, batch: int) -> list[tuple[float, float]]:
    """(forward_s, backward_s) of each layer and, last, of the loss, on a device that reaches its peaks."""
    memory = machine.memory_bytes_per_s * (2 if precision in HALF else 1)
    peak = _peak(machine, facts, precision)
    loss: LayerFacts = facts.loss
    return [*layer_shares(facts, peak, memory, batch),
            (loss.forward_bytes(batch) / memory, loss.backward_bytes(batch) / memory)]  # fmt: skip


def _line(at_one: float, at_many: float, slowness: Slowness) -> Cost:
    """The line through both batches. A roofline is convex in the batch, so that it never begins below zero."""
    if slowness.batch == 1:
        return Cost(0.0, at_one * slowness.value)
    slope = (at_many - at_one) / (slowness.batch - 1)
    return Cost(max(0.0, at_one - slope) * slowness.value, slope * slowness.value)


@lru_cache(maxsize=64)
def _calibrated(name: str, device_kind: str, precision: str) -> Slowness:
    """The slowness at which a step of one device takes the published seconds.

    The step is the host that launches and the device that follows, as in `simulator.training`: a convex function of the
    slowness, made of straight pieces, so that Newton's steps from above end on the answer.
    """
    facts, machine = load_facts_once(name), load_machine(device_kind)
    row = CALIBRATION[name, device_kind, precision].row
    rooflines = [(forward * row.work, backward * row.work)
                 for forward, backward in _rooflines(facts, machine, precision, row.batch)]  # fmt: skip
    optimizer_s = (OPTIMIZERS[row.optimizer].moved_copies * sum(parameter.nbytes for parameter in _trained(facts))
                   / machine.host.device_memory_bytes_per_s)  # fmt: skip
    wanted = row.step_s(facts.tokens_per_sample) - row.inputs_s - optimizer_s
    value = wanted / sum(map(sum, rooflines))
    for _ in range(100):
        step_s, slope = _step(facts, machine, rooflines, value)
        if step_s - wanted < 1e-12 or not slope:
            break
        value -= (step_s - wanted) / slope
    require(value > 0, f"{row.text} on {device_kind}", f"the host alone takes longer for {name}",
            "Calibrate on a row that the device bounds")  # fmt: skip
    return Slowness(value, row.batch, f"{value:.2f} times the roofline, so that {row.text} is met", calibrated=True)


def _step(
    facts: ModelFacts, machine: Machine, rooflines: list[tuple[float, float]], slowness: float
) -> tuple[float, float]:
    """Seconds of a step before the optimizer, and how they grow with the slowness."""
    hosts = _host_seconds(facts, machine)
    forward = [(host, weight) for host, (weight, _) in zip(hosts[0], rooflines[:-1], strict=True)]
    backward = [(host, weight) for host, (_, weight) in zip(hosts[1], rooflines[:-1], strict=True)]
    launched = done = slope = 0.0
    for host, weight in (*forward, (0.0, sum(rooflines[-1])), *reversed(backward), (machine.host.step_s, 0.0)):
        launched += host
        if launched > done:
            done, slope = launched, 0.0
        done, slope = done + slowness * weight, slope + weight
    return done, slope
