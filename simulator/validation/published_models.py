"""A model of which only counts are known, with a step of one GPU that somebody published.

The step is divided over fifty equal layers, a third forward, two thirds backward, and the parameters over the tensors
in equal parts; an embedding that the forward begins with is a tensor of its own size, whose gradient comes last.
Kernels are counted as in the recorded model of its kind: ResNet-50 has 227 for 161 tensors in its forward, BERT-base
182 for 199. A preset model keeps its recorded layers, scaled until the step is met.

Gradients are fp32: apex and autocast keep them so.

Not modelled: which layer holds how much, except in preset models; the casts of mixed precision; the
broadcast of buffers, 0.2 MB of ResNet-50.
"""

from dataclasses import replace

from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.machines import load_machine
from simulator.presets.models import MODELS, load_model

LAYERS = 50
KERNELS = {"convolutions": 227 / 161, "matrix products": 182 / 199}
"""Of a forward, for each parameter tensor."""
MOST_HOST = 0.9
"""Part of a published step that the host's launches may take: its machine was fast enough for that step."""


def counted(name: str, counts: tuple[int, int, str, int], device: str, batch: int, step_s: float,
            like_batch: int | None = None) -> ModelProfile:  # fmt: skip
    """A profile whose device needs `step_s` for a batch. counts: tensors, parameters, kind, embedding's elements.

    like_batch: the batch that the published step had, where it is another; then the device's time is proportional to
    the batch, and the host's launches are not.
    """
    device_s = step_s * batch / (like_batch or batch)
    if name in MODELS:
        return _scaled(load_model(name, device), batch, device_s, step_s)
    tensors, elements, kind, embedding = counts
    machine = load_machine(device)
    forward_s, backward_s = machine.forward_launch_s * KERNELS[kind] * tensors, machine.backward_launch_s * tensors
    slack = min(1.0, MOST_HOST * step_s / (forward_s + backward_s))
    parameters = _parameters(tensors, elements, embedding)
    bounds = [len(parameters) * index // LAYERS for index in range(LAYERS + 1)]
    forward, backward = (Cost(0.0, device_s * part / 3 / LAYERS / batch) for part in (1, 2))
    layers = tuple(
        Layer(f"layer {index}", tuple(p.name for p in parameters[bounds[index] : bounds[index + 1]]), forward, backward,
              forward_s * slack / LAYERS, backward_s * slack / LAYERS)
        for index in range(LAYERS)
    )  # fmt: skip
    return ModelProfile(name, parameters, layers, device=device)


def _parameters(tensors: int, elements: int, embedding: int) -> tuple[Parameter, ...]:
    rest = tensors - bool(embedding)
    size, more = divmod(elements - embedding, rest)
    found = [Parameter(f"p{index}", (size + (index < more),)) for index in range(rest)]
    return (*((Parameter("embedding", (embedding,)),) if embedding else ()), *found)


def _scaled(profile: ModelProfile, batch: int, device_s: float, step_s: float) -> ModelProfile:
    """The profile with its device's seconds at that batch scaled to `device_s`; the host's as the step allows."""
    factor = device_s / profile.compute_s(batch)
    host_s = sum(layer.forward_host_s + layer.backward_host_s for layer in profile.layers)
    slack = min(1.0, MOST_HOST * step_s / host_s) if host_s else 1.0

    def times(cost: Cost) -> Cost:
        return Cost(cost.fixed_s * factor, cost.per_sample_s * factor)

    layers = tuple(
        replace(layer, forward=times(layer.forward), backward=times(layer.backward),
                forward_host_s=layer.forward_host_s * slack, backward_host_s=layer.backward_host_s * slack)
        for layer in profile.layers
    )  # fmt: skip
    return replace(profile, layers=layers, loss=times(profile.loss), buffers=())
