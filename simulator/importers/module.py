"""What an nn.Module costs, read off one real forward and backward of it.

`describe` records facts that no device changes: parameters, the order in which gradients become ready, and per layer
the FLOPs, the bytes that kernels read and write, the number of kernels and the bytes kept for the backward
(`simulator.presets.facts` says what a layer is, `module_recorder` how each is seen). Two batch sizes separate what
grows with the batch from what does not. `profile` measures the same layers' seconds on the machine at hand and draws
a line through two batch sizes.

Not modelled: torch.compile's fused kernels; work that is not a line in the batch size; several streams or devices.
"""

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from simulator.errors import require, whole
from simulator.importers import module_calls as calls
from simulator.importers.module_calls import Loss
from simulator.importers.module_clock import Clock, LayerTimes, time_step
from simulator.importers.module_recorder import Recorder, Stretch
from simulator.model import Cost, ModelProfile, Parameter
from simulator.presets.facts import LayerFacts, ModelFacts

if TYPE_CHECKING:
    from torch import nn


def describe(
    module: "nn.Module", example_input: Any, *, name: str, loss: Loss | None = None, source: str = "",
    batches: tuple[int, int] = (2, 4), allow_unused: bool = False,
) -> ModelFacts:  # fmt: skip
    """Facts of a module from one forward and backward at each of two batch sizes; the module is left as it was.

    example_input: a tensor, a tuple of positional or a dict of keyword arguments (for one argument that is itself a
    tuple or a dict: a tuple around it). Every tensor in it is split along its first dimension, as DataParallel does.
    Module and input on the meta device give the same facts, without the memory and the time.
    loss: from what the module returns to a scalar, counted apart from the layers; without it the backward starts from
    the output's own `loss` if it has one, else from the sum of its tensors.
    Raises InputError, also for a parameter whose gradient never comes, unless allow_unused.
    """
    return _describe(module, example_input, name, loss, source, batches, allow_unused)[0]


def profile(
    module: "nn.Module", example_input: Any, *, name: str = "", loss: Loss | None = None, repeats: int = 10,
    warmup: int = 3, batches: tuple[int, int] | None = None, precision: str = "fp32",
) -> ModelProfile:  # fmt: skip
    """Measure each layer's seconds where the module's parameters are: medians over `repeats` steps a batch size.

    Batch sizes: the example's own and a quarter of it, at least 4 and 2. On a CPU the host is the device, so
    launching costs nothing apart. On CUDA the device is held busy first, so that events time its work and not its
    waiting for the host, and the host's launch seconds come from steps without that; the tests run on a CPU only.
    `source` of the result says how the sum of the layers compares with a whole step that was not looked into.
    """
    whole(repeats, "repeats", minimum=1)
    whole(warmup, "warmup", minimum=1)
    size = calls.check(module, example_input)
    low, high = batches or (max(2, size // 4), max(4, size))
    name = name or type(module).__name__
    facts, order = _describe(module, example_input, name, loss, "", (low, high), False)
    count = len(facts.layers)
    torch = calls.torch()
    clock = Clock(next(module.parameters()).device)
    inputs = {batch: calls.resized(example_input, batch) for batch in (low, high)}
    runs: dict[int, list[LayerTimes]] = {low: [], high: []}
    hosts: list[LayerTimes] = []
    steps: list[float] = []
    with calls.untouched(module), torch.enable_grad():
        for turn in range(warmup + repeats):
            if turn == warmup:
                runs, hosts, steps = {low: [], high: []}, [], []
            if clock.cuda:
                hosts.append(time_step(module, inputs[low], loss, order, count, clock, hold=False))
                clock.hold_s = 1.5 * sum(hosts[-1].host)
            # The batch sizes take turns, so that a machine that slows down does not bend the line between them.
            for batch in runs:
                runs[batch].append(time_step(module, inputs[batch], loss, order, count, clock, hold=True))
            steps.append(clock.whole_step(partial(calls.step, module, inputs[high], loss)))
    seconds = [_medians([times.device for times in runs[batch]]) for batch in (low, high)]
    lines = [line(low, few, high, many) for few, many in zip(*seconds, strict=True)]
    host = _medians([times.host for times in hosts]) if hosts else [0.0] * len(lines)
    total = sum(max(cost.at(high), floor) for cost, floor in zip(lines, host, strict=True))
    source = (
        f"measured on {clock.name} with torch {torch.__version__}, batches {low} and {high}, medians of {repeats}; "
        f"the layers sum to {total / statistics.median(steps):.2f} of the whole step"
    )
    return facts.profile(
        lines[:count], lines[count : 2 * count], device=clock.name, loss=lines[2 * count], precision=precision,
        forward_host_s=host[:count], backward_host_s=host[count : 2 * count], source=source,
    )  # fmt: skip


def line(few: int, few_s: float, many: int, many_s: float) -> Cost:
    """The line through two measured times, or the nearest to them that is nowhere negative."""
    slope = (many_s - few_s) / (many - few)
    if slope < 0:
        return Cost((few_s + many_s) / 2, 0.0)
    if few_s - few * slope < 0:
        return Cost(0.0, (few * few_s + many * many_s) / (few**2 + many**2))
    return Cost(few_s - few * slope, slope)


def _describe(
    module: "nn.Module", example_input: Any, name: str, loss: Loss | None, source: str, batches: tuple[int, int],
    allow_unused: bool,
) -> tuple[ModelFacts, list[int]]:  # fmt: skip
    """The facts, and the layer that each module with parameters belongs to, in the order in which they are called."""
    torch = calls.torch()
    calls.check(module, example_input)
    low, high = (whole(batch, "a batch size", minimum=1) for batch in batches)
    require(low < high, f"batches = {batches}", "two different sizes, the smaller first", "Give for example (2, 4)")
    with calls.untouched(module), torch.enable_grad():
        first, second = (Recorder(module, calls.resized(example_input, batch), loss) for batch in (low, high))
    names = [stretch.name for stretch in second.stretches]
    require(names == [stretch.name for stretch in first.stretches], f"{name} at batch {low} and at batch {high}",
            "other modules run", "Give a module whose forward takes the same path for every batch")  # fmt: skip
    trained = [parameter.name for parameter in second.parameters.values()
               if parameter.requires_grad and parameter.tied_to is None]  # fmt: skip
    unused = tuple(key for key in trained if key not in second.ready)
    require(allow_unused or not unused, f"{name}: no gradient comes for {', '.join(unused[:5])}",
            "every parameter with requires_grad must take part in the loss, or DDP waits for it",
            "Set requires_grad = False, or pass allow_unused=True, and find_unused_parameters=True to DDP")  # fmt: skip
    owned: list[list[str]] = [[] for _ in names]
    for key in (*second.ready, *unused):
        owned[second.owner.get(key, 0)].append(key)
    *layers, after = (
        _layer(few, many, low, high, tuple(own))
        for few, many, own in zip(first.stretches, second.stretches, owned, strict=True)
    )
    facts = ModelFacts(
        name=name, parameters=tuple(second.parameters.values()), layers=tuple(layers),
        ready_order=(*second.ready, *unused),
        buffers=tuple(Parameter(key, tuple(b.shape), calls.dtype(b), False) for key, b in module.named_buffers()),
        input_bytes_per_sample=second.input_bytes // high, output_bytes_per_sample=second.output_bytes // high,
        loss=after, unused=unused,
        source=source or f"recorded with torch {torch.__version__} at batches {low} and {high}",
    )  # fmt: skip
    return facts, second.calls


def _layer(few: Stretch, many: Stretch, low: int, high: int, parameters: tuple[str, ...]) -> LayerFacts:
    def split(small: int, large: int) -> tuple[int, int]:
        slope = max(0, round((large - small) / (high - low)))
        return slope, max(0, small - low * slope)

    forward_bytes, forward_weight_bytes = split(few.forward.nbytes, many.forward.nbytes)
    backward_bytes, backward_weight_bytes = split(few.backward.nbytes, many.backward.nbytes)
    return LayerFacts(
        name=many.name, parameters=parameters,
        forward_flops_per_sample=split(few.forward.flops, many.forward.flops)[0],
        backward_flops_per_sample=split(few.backward.flops, many.backward.flops)[0],
        forward_bytes_per_sample=forward_bytes, backward_bytes_per_sample=backward_bytes,
        forward_weight_bytes=forward_weight_bytes, backward_weight_bytes=backward_weight_bytes,
        forward_kernels=many.forward.kernels, backward_kernels=many.backward.kernels,
        activation_bytes_per_sample=split(few.saved_bytes, many.saved_bytes)[0],
    )  # fmt: skip


def _medians(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.median(column) for column in zip(*rows, strict=True)]
