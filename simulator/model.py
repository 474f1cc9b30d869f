"""What is trained: parameters in registration order, and layers with what each costs.

A ModelProfile is device-independent facts (shapes, the recorded order in which gradients become ready) plus the
times of each layer on one named device: `fixed_s + batch * per_sample_s`, forward and backward, and the seconds
for which a host thread is busy launching the layer's kernels. A layer that the device finishes sooner than the
host can launch is bound by the host: small batches on a fast GPU are.

Not modelled: kernels inside a layer one by one; times that depend on the values.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from simulator.errors import InputError, number, require, unknown, whole

DTYPE_BYTES = {
    "float64": 8, "int64": 8, "complex64": 8, "float32": 4, "int32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line ends, signs that turn the direction of writing, and halves of a sign (surrogates)."""


def in_words(value: object) -> str:
    """What sort of value it is, for a message: a number, text, a list, ..."""
    if value is None:
        return "nothing (null)"
    for kinds, words in (((bool,), "true or false"), ((int, float), "a number"), ((str,), "text"),
                         ((list, tuple), "a list"), ((dict,), "an object")):  # fmt: skip
        if isinstance(value, kinds):
            return words
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def printable(value: object, what: str) -> str:
    """Text that a terminal and a file can take: no control characters, no lone surrogates. Raises InputError."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {in_words(value)}: text is needed. Put it in quotes.")
    bad = None if value.isprintable() else _UNPRINTABLE.search(value)
    if bad:
        raise InputError(f"{what} holds {bad[0]!a}: control characters and lone surrogates cannot be printed. "
                         "Remove it.")  # fmt: skip
    return value


def _flag(value: object, what: str) -> None:
    require(isinstance(value, bool), f"{what} is {in_words(value)}", "true or false is needed", "Correct it")


def _items(value: object, what: str, of: str, kind: type | None = None) -> tuple[Any, ...]:
    """A tuple of what is no text; each item of the kind, if one is given. Raises InputError."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InputError(f"{what} is {in_words(value)}: a tuple of {of} is needed. Write one as (x,), none as ().")
    items = tuple(value)
    for item in items if kind else ():
        require(isinstance(item, kind or object), f"{what} holds {in_words(item)}", f"it is a tuple of {of}",
                "Correct that entry")  # fmt: skip
    return items


def check_ties(parameters: Sequence["Parameter"]) -> None:
    """Names occur once, and a tie leads to an earlier tensor of the same shape and dtype. Raises InputError."""
    known: dict[str, Parameter] = {}
    for parameter in parameters:
        given = f"parameter {parameter.name!r}"
        require(parameter.name not in known, given, "a name must not occur twice, names are unique",
                "Rename one of them")  # fmt: skip
        if parameter.tied_to is not None:
            first = known.get(parameter.tied_to)
            if first is None or first.tied_to is not None:
                raise InputError(
                    f"{given} is tied to {parameter.tied_to!r}: that must be the name of an earlier entry that is not "
                    "tied itself. Name the entry under which the tensor was registered first."
                )
            require((first.shape, first.dtype) == (parameter.shape, parameter.dtype),
                    f"{given} is tied to {parameter.tied_to!r}", "one tensor has one shape and one dtype",
                    "Make both entries agree")  # fmt: skip
        known[parameter.name] = parameter


def check_ready_order(order: Sequence[str], trained: Set[str], what: str) -> None:
    """The order lists each trained parameter exactly once. Raises InputError that says how it does not."""
    counts = Counter(order)
    for does, odd in (("invents", counts.keys() - trained), ("misses", trained - counts.keys()),
                      ("repeats", {name for name, count in counts.items() if count > 1})):  # fmt: skip
        require(not odd, f"{what} {does} {', '.join(map(repr, sorted(odd)[:3]))}",
                "it lists each trained parameter exactly once", "Correct it, or leave it out")  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """One tensor of a module, as `named_parameters()` gives it. Raises InputError on a bad shape or dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    requires_grad: bool = True
    tied_to: str | None = None
    """The name under which the same tensor was registered first, if it was."""
    sparse: bool = False
    """Whether its gradient is sparse (nn.Embedding(sparse=True))."""

    def __post_init__(self) -> None:
        printable(self.name, "a parameter's name")
        object.__setattr__(self, "shape", _items(self.shape, f"shape of parameter {self.name!r}", "sizes"))
        for size in self.shape:
            whole(size, f"a dimension of parameter {self.name!r}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPE_BYTES:
            raise unknown("dtype", self.dtype, DTYPE_BYTES)
        _flag(self.requires_grad, f"requires_grad of parameter {self.name!r}")
        _flag(self.sparse, f"sparse of parameter {self.name!r}")
        if self.tied_to is not None:
            printable(self.tied_to, f"tied_to of parameter {self.name!r}")
        whole(self.nbytes, f"bytes of parameter {self.name!r}")

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Cost:
    """Seconds as a line over the batch: fixed_s + batch * per_sample_s."""

    fixed_s: float = 0.0
    per_sample_s: float = 0.0

    def __post_init__(self) -> None:
        number(self.fixed_s, "fixed_s")
        number(self.per_sample_s, "per_sample_s")

    def at(self, batch: int) -> float:
        """Seconds for a batch of that many samples; nothing runs for an empty batch."""
        return self.fixed_s + batch * self.per_sample_s if batch else 0.0


@dataclass(frozen=True)
class Layer:
    """A stretch of the forward pass, and its backward, as one span each on the device's compute stream."""

    name: str
    parameters: tuple[str, ...] = ()
    """Names of the parameters whose gradient is ready when this layer's backward ends, in ready order."""
    forward: Cost = Cost()
    backward: Cost = Cost()
    forward_host_s: float = 0.0
    """Seconds of one host thread to launch the forward's kernels; the same for every batch size."""
    backward_host_s: float = 0.0
    activation_bytes_per_sample: int = 0
    """Bytes kept from the forward until this layer's backward has run."""

    def __post_init__(self) -> None:
        where = f"of layer {printable(self.name, 'the name of a layer')!r}"
        object.__setattr__(self, "parameters", _items(self.parameters, f"parameters {where}", "names", str))
        _items((self.forward, self.backward), f"forward or backward {where}", "Cost", Cost)
        number(self.forward_host_s, f"forward_host_s of layer {self.name!r}")
        number(self.backward_host_s, f"backward_host_s of layer {self.name!r}")
        whole(self.activation_bytes_per_sample, f"activation_bytes_per_sample of layer {self.name!r}")


@dataclass(frozen=True)
class ModelProfile:
    """A model on one named device. Raises InputError when names do not match or a size is impossible."""

    name: str
    parameters: tuple[Parameter, ...]
    layers: tuple[Layer, ...]
    """In forward order; the backward runs them in reverse."""
    ready_order: tuple[str, ...] = ()
    """Names in the order in which gradients become ready in a real backward. Empty: the layers' order."""
    buffers: tuple[Parameter, ...] = ()
    input_bytes_per_sample: int = 0
    output_bytes_per_sample: int = 0
    loss: Cost = Cost()
    device: str = ""
    precision: str = "fp32"
    source: str = ""

    def __post_init__(self) -> None:
        where = f"of model {printable(self.name, 'the name of a model')!r}"
        for name, of, kind in (("parameters", "Parameter", Parameter), ("layers", "Layer", Layer),
                               ("ready_order", "names", str), ("buffers", "Parameter", Parameter)):  # fmt: skip
            object.__setattr__(self, name, _items(getattr(self, name), f"{name} {where}", of, kind))
        _items((self.loss,), f"loss {where}", "Cost", Cost)
        for name in ("device", "precision", "source"):
            printable(getattr(self, name), f"{name} {where}")
        require(bool(self.layers), f"model {self.name!r} has no layer", "at least one layer is needed", "Add a layer")
        check_ties(self.parameters)
        trained = {parameter.name for parameter in self.trained_parameters}
        owned = [name for layer in self.layers for name in layer.parameters]
        if len(owned) != len(set(owned)) or set(owned) != trained:
            odd = sorted(trained.symmetric_difference(owned)) or sorted({n for n in owned if owned.count(n) > 1})
            raise InputError(
                f"model {self.name!r}: {', '.join(map(repr, odd[:3]))} must belong to exactly one layer and be trained. "
                "List every parameter with requires_grad and without tied_to once in the layers."
            )
        if not self.ready_order:
            order = tuple(name for layer in reversed(self.layers) for name in layer.parameters)
            object.__setattr__(self, "ready_order", order)
        check_ready_order(self.ready_order, trained, f"ready_order {where}")
        for value, name in ((self.input_bytes_per_sample, "input_bytes_per_sample"),
                            (self.output_bytes_per_sample, "output_bytes_per_sample")):  # fmt: skip
            whole(value, f"{name} of model {self.name!r}")

    @cached_property
    def trained_parameters(self) -> tuple[Parameter, ...]:
        """Those that get a gradient, each tied tensor once, in registration order."""
        return tuple(p for p in self.parameters if p.requires_grad and p.tied_to is None)

    @cached_property
    def unique_parameters(self) -> tuple[Parameter, ...]:
        """All tensors that exist, each tied one once."""
        return tuple(p for p in self.parameters if p.tied_to is None)

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, tied ones once."""
        return sum(parameter.nbytes for parameter in self.unique_parameters)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one gradient of every trained parameter."""
        return sum(parameter.nbytes for parameter in self.trained_parameters)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.nbytes for buffer in self.buffers)

    @property
    def activation_bytes_per_sample(self) -> int:
        """Bytes kept from the forward for the backward, per sample."""
        return sum(layer.activation_bytes_per_sample for layer in self.layers)

    def compute_s(self, batch: int) -> float:
        """Seconds of device work for forward, loss and backward of one batch, were the device never to wait."""
        return sum(layer.forward.at(batch) + layer.backward.at(batch) for layer in self.layers) + self.loss.at(batch)
