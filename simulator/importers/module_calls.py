"""Calling a module that somebody else wrote: its inputs, its outputs, its errors, and leaving it as it was.

torch is imported when first needed, never before, so that the simulator runs without it.

Not modelled: outputs inside objects that are neither tuples, lists nor mappings; inputs not split along dimension 0.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, require
from simulator.model import Parameter

if TYPE_CHECKING:
    from torch import Tensor

Loss = Callable[[Any], "Tensor"]
"""From whatever the module returns to the scalar that the backward starts from."""


def torch(submodule: str = "") -> Any:
    """torch, or torch.<submodule>. Raises InputError where it is not installed."""
    try:
        return importlib.import_module(f"torch.{submodule}" if submodule else "torch")
    except ImportError as error:
        raise InputError("torch is not installed; reading an nn.Module needs it. Run: pip install torch.") from error


def check(module: Any, example_input: Any) -> int:
    """The example's batch size. Raises InputError for a module or an input that cannot be described."""
    nn = torch("nn")
    require(isinstance(module, nn.Module), f"module is a {type(module).__name__}", "an nn.Module is needed",
            "Pass the module itself, not its class or its output")  # fmt: skip
    require(not isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)),
            f"module is a {type(module).__name__}", "the simulator adds the parallelism itself",
            "Pass module.module")  # fmt: skip
    parameters = list(module.parameters())
    require(not any(isinstance(p, nn.parameter.UninitializedParameter) for p in parameters),
            f"{type(module).__name__} has a lazy parameter", "shapes must be known",
            "Run one forward first")  # fmt: skip
    require(any(p.requires_grad for p in parameters), f"{type(module).__name__} has no parameter with requires_grad",
            "there is no gradient to exchange", "Give a module that is trained")  # fmt: skip
    sizes = [tuple(tensor.shape) for tensor in tensors(example_input)]
    require(bool(sizes), f"example_input is a {type(example_input).__name__} without a tensor", "the forward needs one",
            "Give a tensor, a tuple of positional or a dict of keyword arguments")  # fmt: skip
    same = all(sizes) and len({size[0] for size in sizes}) == 1 and sizes[0][0] > 0
    require(same, f"example_input has tensors of shape {', '.join(map(str, sizes))}",
            "the first dimension of each is the batch, the same in all and not 0",
            "Add it, for example with tensor.unsqueeze(0)")  # fmt: skip
    return int(sizes[0][0])


def tensors(value: Any) -> Iterator[Any]:
    """Every tensor in nested tuples, lists and mappings (a Hugging Face output is one), in order."""
    if isinstance(value, torch().Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(item)


def resized(value: Any, batch: int) -> Any:
    """The input with its samples repeated, or cut off, to a batch of that size."""
    if isinstance(value, torch().Tensor):
        return value.detach()[torch().arange(batch, device=value.device) % len(value)]
    if isinstance(value, Mapping):
        return {key: resized(item, batch) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        items = [resized(item, batch) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def forward(module: Any, inputs: Any) -> Any:
    """What the module returns. Raises InputError around whatever it raises."""
    try:
        if isinstance(inputs, Mapping):
            return module(**inputs)
        return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
    except Exception as error:
        raise InputError(
            f"{type(module).__name__}'s forward fails on the example input ({type(error).__name__}: {error}). "
            "Call the module on it yourself, at batches 2 and 4, and pass the input with which that works."
        ) from error


def scalar(output: Any, loss: Loss | None) -> Any:
    """The number that the backward starts from. Raises InputError if the output offers none."""
    if loss is not None:
        value = loss(output)
        good = isinstance(value, torch().Tensor) and value.numel() == 1 and value.requires_grad
        shape = tuple(getattr(value, "shape", ()))
        require(good, f"loss returned a {type(value).__name__} of shape {shape}",
                "one number that depends on the parameters is needed",
                "Let it return the mean, for example")  # fmt: skip
        return value
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [own] if isinstance(own, torch().Tensor) else [item for item in tensors(output) if item.requires_grad]
    require(bool(found), f"the forward returned a {type(output).__name__}",
            "a tensor that depends on the parameters is needed, alone or in tuples, lists and dicts",
            "Return one, or pass loss=, a function from the output to a scalar")  # fmt: skip
    return torch().stack([item.sum() for item in found]).sum() if len(found) > 1 else found[0].sum()


def backward(value: Any) -> None:
    """Run the backward. Raises InputError around whatever it raises."""
    try:
        value.backward()
    except Exception as error:
        raise InputError(
            f"the backward fails ({type(error).__name__}: {error}). Call backward() on the loss yourself to see where."
        ) from error


def step(module: Any, inputs: Any, loss: Loss | None) -> None:
    """Forward, loss and backward, with no gradient left over from before."""
    clear_gradients(module)
    backward(scalar(forward(module, inputs), loss))


def clear_gradients(module: Any) -> None:
    """As zero_grad(): a gradient that is there already would be added to, by one more kernel."""
    for parameter in module.parameters():
        parameter.grad = None


def named_parameters(module: Any) -> tuple[dict[str, Parameter], dict[str, Any]]:
    """Every name of every parameter; and each tensor once, under its first name. Both in registration order."""
    table: dict[str, Parameter] = {}
    first: dict[int, str] = {}
    unique: dict[str, Any] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        tied_to = first.get(id(tensor))
        table[name] = Parameter(name, tuple(tensor.shape), dtype(tensor), tensor.requires_grad, tied_to)
        if tied_to is None:
            first[id(tensor)] = name
            unique[name] = tensor
    return table, unique


def dtype(tensor: Any) -> str:
    """torch's name of the dtype, without "torch."."""
    return str(tensor.dtype).removeprefix("torch.")


def storage(tensor: Any) -> int | None:
    """What identifies the memory behind a tensor, on any device (data_ptr is 0 on meta); None for a sparse one."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch().strided else None


def nbytes(tensor: Any) -> int:
    """Bytes that reading the tensor once moves; an expanded one is no larger than the memory behind it."""
    size: int = tensor.numel() * tensor.element_size()
    return size if storage(tensor) is None else min(size, tensor.untyped_storage().nbytes())


@contextmanager
def modules_begin(module: Any, begin: Callable[[str], None]) -> Iterator[None]:
    """Call `begin` with the name of each module that owns parameters, whenever it is called."""
    with ExitStack() as stack:
        for name, part in module.named_modules():
            if any(True for _ in part.parameters(recurse=False)):
                shown = name or type(part).__name__
                stack.callback(part.register_forward_pre_hook(lambda *_, shown=shown: begin(shown)).remove)
        yield


@contextmanager
def untouched(module: Any) -> Iterator[None]:
    """Put gradients, buffers and the random state back afterwards."""
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = sorted({p.device.index for p, _ in gradients if p.device.type == "cuda"})
    try:
        with torch("random").fork_rng(devices=devices):
            yield
    finally:
        with torch().no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
