"""What a model costs on no particular device: parameters, the order of its gradients, and per layer the work.

Work is counted in FLOPs and in bytes that kernels read and write, so that one recording serves every device: a
device turns both into seconds (`roofline`), or seconds measured elsewhere are divided over the layers in proportion.

    FLOPs(batch) = batch * flops_per_sample           bytes(batch) = batch * bytes_per_sample + weight_bytes

A layer is the stretch of the forward that begins with a module that owns parameters and ends where the next begins;
operations without parameters (ReLU, pooling, a residual sum) belong to the layer before them. Its parameters are
those whose gradient is ready when its backward ends, in ready order: a tied tensor belongs to the first layer that
uses it, whose backward is the last, so that GPT-2's lm_head is a layer without parameters.
Recorded by `simulator.importers.module.describe`; the files in `models/` by `simulator.presets.record`.

Not modelled: FLOPs outside matrix products, convolutions and attention (such kernels are bound by their bytes);
work that grows faster than the batch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from simulator.errors import InputError, require, unknown, whole
from simulator.model import Cost, Layer, ModelProfile, Parameter

MODELS = Path(__file__).with_name("models")
MODEL_NAMES = tuple(sorted(path.stem for path in MODELS.glob("*.json")))


@dataclass(frozen=True)
class LayerFacts:
    """The work of one layer. A weight's bytes do not grow with the batch; everything else does."""

    name: str
    parameters: tuple[str, ...] = ()
    forward_flops_per_sample: int = 0
    backward_flops_per_sample: int = 0
    forward_bytes_per_sample: int = 0
    backward_bytes_per_sample: int = 0
    forward_weight_bytes: int = 0
    backward_weight_bytes: int = 0
    forward_kernels: int = 0
    backward_kernels: int = 0
    activation_bytes_per_sample: int = 0
    """Bytes of the storages kept for the backward, each once; without parameters, buffers and the model's input."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", tuple(self.parameters))
        for field in fields(self)[2:]:
            whole(getattr(self, field.name), f"{field.name} of layer {self.name!r}")

    @property
    def weight_bytes(self) -> int:
        """Bytes moved in a step, forward and backward, whatever the batch."""
        return self.forward_weight_bytes + self.backward_weight_bytes

    def forward_bytes(self, batch: int) -> int:
        """Bytes that the forward's kernels read and write."""
        return batch * self.forward_bytes_per_sample + self.forward_weight_bytes

    def backward_bytes(self, batch: int) -> int:
        """Bytes that the backward's kernels read and write."""
        return batch * self.backward_bytes_per_sample + self.backward_weight_bytes


@dataclass(frozen=True)
class ModelFacts:
    """A model without a device. `profile` makes a ModelProfile of it, given each layer's seconds."""

    name: str
    parameters: tuple[Parameter, ...]
    layers: tuple[LayerFacts, ...]
    """In forward order; the backward runs them in reverse."""
    ready_order: tuple[str, ...] = ()
    """Names in the order in which gradients became ready. Empty: the layers' order, which on one device is the same."""
    buffers: tuple[Parameter, ...] = ()
    input_bytes_per_sample: int = 0
    output_bytes_per_sample: int = 0
    loss: LayerFacts = LayerFacts("loss")
    """What follows the module's output: the loss outside the module, forward and backward."""
    tokens_per_sample: int = 1
    unused: tuple[str, ...] = ()
    """Parameters with requires_grad whose gradient never came; they stand in the last layer."""
    source: str = ""

    def __post_init__(self) -> None:
        require(bool(self.layers), f"model {self.name!r} has no layer", "at least one layer is needed", "Add a layer")
        if not self.ready_order:
            order = tuple(name for layer in reversed(self.layers) for name in layer.parameters)
            object.__setattr__(self, "ready_order", order)

    @cached_property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        return sum(parameter.nbytes for parameter in self.parameters if parameter.tied_to is None)

    @property
    def activation_bytes_per_sample(self) -> int:
        """Bytes kept from the forward for the backward, the loss's included."""
        return sum(layer.activation_bytes_per_sample for layer in (*self.layers, self.loss))

    def profile(
        self, forward: Sequence[Cost], backward: Sequence[Cost], *, device: str, loss: Cost | None = None,
        forward_host_s: Sequence[float] = (), backward_host_s: Sequence[float] = (), precision: str = "fp32",
        source: str = "",
    ) -> ModelProfile:  # fmt: skip
        """These facts with each layer's seconds on a named device. No host seconds given: the host costs nothing."""
        count = len(self.layers)
        for given, what in ((forward, "forward"), (backward, "backward"),
                            (forward_host_s or (0.0,) * count, "forward_host_s"),
                            (backward_host_s or (0.0,) * count, "backward_host_s")):  # fmt: skip
            require(len(given) == count, f"{what} has {len(given)} entries", f"{self.name} has {count} layers",
                    "Give one entry a layer, in forward order")  # fmt: skip
        layers = tuple(
            Layer(layer.name, layer.parameters, forward[i], backward[i],
                  forward_host_s[i] if forward_host_s else 0.0, backward_host_s[i] if backward_host_s else 0.0,
                  layer.activation_bytes_per_sample)
            for i, layer in enumerate(self.layers)
        )  # fmt: skip
        return ModelProfile(
            self.name, self.parameters, layers, self.ready_order, self.buffers, self.input_bytes_per_sample,
            self.output_bytes_per_sample, loss or Cost(), device, precision, source or self.source,
        )  # fmt: skip


_NUMBERS = tuple(field.name for field in fields(LayerFacts)[2:])
_PARAMETER = tuple(field.name for field in fields(Parameter))
_PLAIN = ("name", "source", "tokens_per_sample", "input_bytes_per_sample", "output_bytes_per_sample")


def to_json(facts: ModelFacts) -> str:
    """One parameter and one layer a line, so that a changed model reads as changed lines."""
    layer_order = tuple(name for layer in reversed(facts.layers) for name in layer.parameters)
    head: dict[str, object] = {key: getattr(facts, key) for key in _PLAIN}
    head["unused"] = facts.unused
    head["ready_order"] = () if facts.ready_order == layer_order else facts.ready_order
    head["columns"] = {"parameters": _PARAMETER, "layers": ("name", "parameters", *_NUMBERS)}
    tables = {
        "parameters": [_parameter_row(parameter) for parameter in facts.parameters],
        "buffers": [_parameter_row(buffer) for buffer in facts.buffers],
        "layers": [_layer_row(layer) for layer in facts.layers],
        "loss": [_layer_row(facts.loss)],
    }
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in tables.items():
        lines.append(f"{json.dumps(key)}: [" + ",".join(f"\n  {json.dumps(row)}" for row in rows) + "]")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def from_json(text: str, where: str = "the text") -> ModelFacts:
    """The inverse of `to_json`. Raises InputError that names the place."""
    try:
        data = json.loads(text)
        columns = data["columns"]
        parameters, buffers = (
            tuple(_parameter(dict(zip(columns["parameters"], row, strict=False))) for row in data[key])
            for key in ("parameters", "buffers")
        )
        layers, loss = (
            tuple(LayerFacts(**dict(zip(columns["layers"], row, strict=True))) for row in data[key])
            for key in ("layers", "loss")
        )
        return ModelFacts(
            parameters=parameters, layers=layers, loss=loss[0], buffers=buffers, unused=tuple(data["unused"]),
            ready_order=tuple(data["ready_order"]), **{key: data[key] for key in _PLAIN},
        )  # fmt: skip
    except InputError:
        raise
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(
            f"{where}: no model facts ({type(error).__name__}: {error}). "
            "Write the file with simulator.presets.facts.to_json."
        ) from error


def load_facts(name: str) -> ModelFacts:
    """The recorded facts of a preset model, one of MODEL_NAMES. Raises InputError for any other name."""
    if name not in MODEL_NAMES:
        raise unknown("model", name, MODEL_NAMES)
    return from_json((MODELS / f"{name}.json").read_text(encoding="utf-8"), f"models/{name}.json")


def _parameter_row(parameter: Parameter) -> list[object]:
    row: list[object] = [getattr(parameter, key) for key in _PARAMETER]
    defaults: list[object] = [None, None, "float32", True, None, False]
    while len(row) > 2 and row[-1] == defaults[len(row) - 1]:
        row.pop()
    return row


def _layer_row(layer: LayerFacts) -> list[object]:
    return [layer.name, layer.parameters, *(getattr(layer, key) for key in _NUMBERS)]


def _parameter(row: Mapping[str, Any]) -> Parameter:
    return Parameter(**row)
