"""Watching one forward and backward: which layer each operation, saved tensor and gradient belongs to.

A dispatch mode sees every operation below autograd: its FLOPs, the bytes it reads and writes, and whether it launches
a kernel at all (a view does not). Saved-tensor hooks see what is kept for the backward; a post-accumulate hook on
each parameter sees when its gradient is ready. In the forward, the running layer is the module that began last. In
the backward one observation tells it: autograd numbers its nodes as the forward makes them and, on one device, runs
them from the highest number down, so the numbers at which the layers began cut the backward into the same layers.

Counted as CUDA would run it, also on a CPU: dropout is one kernel whose mask has one byte an element, a convolution's
backward one kernel for each gradient asked for.

Not modelled: that a device's library may split an operation over more kernels, or read an input twice.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from simulator.errors import require
from simulator.importers import module_calls as calls
from simulator.importers.module_calls import Loss, nbytes, storage, tensors

_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}


@dataclass
class Work:
    """What one direction of a layer did."""

    flops: int = 0
    nbytes: int = 0
    kernels: int = 0


@dataclass
class Stretch:
    """A layer while it is being recorded."""

    name: str
    start: int
    """The number of the first autograd node that it makes."""
    forward: Work = field(default_factory=Work)
    backward: Work = field(default_factory=Work)
    saved_bytes: int = 0


class Recorder:
    """One forward and backward, run and watched when it is made; the fields then hold what was seen."""

    def __init__(self, module: Any, inputs: Any, loss: Loss | None) -> None:
        self.parameters, unique = calls.named_parameters(module)
        self.stretches = [Stretch("", sequence_number())]
        """The layers in forward order, and last what follows the module's output."""
        self.ready: list[str] = []
        self.calls: list[int] = []
        """The layer that ran once the n-th module with parameters had begun."""
        self.input_bytes = sum(map(nbytes, tensors(inputs)))
        self._work: Work | None = self.stretches[0].forward
        self._kept = {storage(t) for t in (*module.parameters(), *module.buffers(), *tensors(inputs))}
        calls.clear_gradients(module)
        with ExitStack() as stack:
            for name, tensor in unique.items():
                if tensor.requires_grad:
                    hook = tensor.register_post_accumulate_grad_hook(lambda t, name=name: self._arrived(name, t))
                    stack.callback(hook.remove)
            stack.enter_context(calls.torch("autograd.graph").saved_tensors_hooks(self._save, lambda tensor: tensor))
            stack.enter_context(_as_on_cuda())
            stack.enter_context(_watched(self._operation))
            with calls.modules_begin(module, self._begin):
                output = calls.forward(module, inputs)
            self.stretches[0].name = self.stretches[0].name or type(module).__name__
            self.output_bytes = sum(map(nbytes, tensors(output)))
            self._open("loss")
            value = calls.scalar(output, loss)
            graph = Graph(value, [stretch.start for stretch in self.stretches])
            for layer, node in graph.first_nodes.items():
                node.register_prehook(lambda _, work=self.stretches[layer].backward: self._enter(work))
            self._enter(self.stretches[-1].backward)
            calls.backward(value)
        owner = {name: graph.owner.get(id(tensor)) for name, tensor in unique.items()}
        hidden = [name for name in self.ready if owner[name] is None]
        require(not hidden, f"the gradient of {', '.join(hidden[:3])}", "came from outside the recorded graph",
                "Checkpoint with use_reentrant=False")  # fmt: skip
        # What the loss alone uses (a penalty on weights, say) is ready before the last layer's backward begins.
        self.owner = {name: min(layer, len(self.stretches) - 2) for name, layer in owner.items() if layer is not None}

    def _begin(self, name: str) -> None:
        last = self.stretches[-1]
        again = sum(stretch.name.split("#")[0] == name for stretch in self.stretches)
        shown = f"{name}#{again + 1}" if again else name
        if last.name and last.forward.kernels:
            self._open(shown)
        else:  # what runs before the first module joins it; a module that only calls others gives way to them
            last.name = shown
        self.calls.append(len(self.stretches) - 1)

    def _open(self, name: str) -> None:
        self._work = None  # the operation that reads the number is not the module's
        self.stretches.append(Stretch(name, sequence_number()))
        self._enter(self.stretches[-1].forward)

    def _enter(self, work: Work) -> None:
        self._work = work

    def _arrived(self, name: str, tensor: Any) -> None:
        self.ready.append(name)
        if tensor.grad is not None and tensor.grad.is_sparse:
            self.parameters[name] = replace(self.parameters[name], sparse=True)

    def _save(self, tensor: Any) -> Any:
        key = storage(tensor)
        if key is not None and key not in self._kept:
            self._kept.add(key)
            self.stretches[-1].saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _operation(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if self._work is not None:
            flops, moved, kernels = _cost(operation, args, kwargs, out)
            self._work.flops += flops
            self._work.nbytes += moved
            self._work.kernels += kernels


class Graph:
    """The autograd graph behind a loss, cut into layers by the numbers of the first node of each."""

    def __init__(self, value: Any, starts: Sequence[int]) -> None:
        self.owner: dict[int, int] = {}
        """id of a parameter: the first layer that uses it, whose backward is the last to add to its gradient."""
        self.first_nodes: dict[int, Any] = {}
        """Layer: the node that its backward begins with."""
        stack, seen = [value.grad_fn], {value.grad_fn}
        while stack:
            node = stack.pop()
            layer = max(0, bisect_right(starts, node._sequence_nr()) - 1)
            best = self.first_nodes.get(layer)
            if best is None or best._sequence_nr() < node._sequence_nr():
                self.first_nodes[layer] = node
            for following, _ in node.next_functions:
                if hasattr(following, "variable"):
                    key = id(following.variable)
                    self.owner[key] = min(layer, self.owner.get(key, layer))
                elif following is not None and following not in seen:
                    seen.add(following)
                    stack.append(following)


def sequence_number() -> int:
    """The number of the next node that autograd makes, or one less: read off a node made for it."""
    with calls.torch().enable_grad():
        return int(calls.torch().zeros((), requires_grad=True).clone().grad_fn._sequence_nr())


def _cost(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, int, int]:
    """FLOPs, bytes and kernels of one operation below autograd."""
    read, written = [*tensors(args), *tensors(kwargs)], [*tensors(out)]
    name = operation.overloadpacket.__name__
    if not written or name in _NO_KERNEL:
        return 0, 0, 0
    known = {storage(tensor) for tensor in read}
    if not operation._schema.is_mutable and all(storage(tensor) in known for tensor in written):
        return 0, 0, 0  # a view
    moved, kernels = sum(map(nbytes, read)) + sum(map(nbytes, written)), 1
    if name == "embedding":  # reads the rows asked for, not the table
        moved = nbytes(read[1]) + 2 * nbytes(written[0])
    elif name == "convolution_backward":
        gradient, value, weight = map(nbytes, args[:3])
        others = [other for other, wanted in zip((weight, value, 0), args[-1], strict=True) if wanted]
        moved, kernels = len(others) * gradient + sum(others) + sum(map(nbytes, written)), len(others)
    return _flops(operation.overloadpacket, args, kwargs, out), moved, kernels


def _flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    counter = calls.torch("utils.flop_counter")
    # The CPU's fused attention is missing from torch's table; it does the work of CUDA's.
    if packet.__name__ == "_scaled_dot_product_flash_attention_for_cpu":
        return int(counter.sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if packet.__name__ == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return int(counter.sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    formula = counter.flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula else 0


def _watched(seen: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> AbstractContextManager[Any]:
    """While entered, every operation that reaches the dispatcher below autograd is shown to `seen`."""

    def dispatch(mode: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        seen(operation, args, kwargs or {}, out)
        return out

    base = calls.torch("utils._python_dispatch").TorchDispatchMode
    watch: AbstractContextManager[Any] = type("Watch", (base,), {"__torch_dispatch__": dispatch})()
    return watch


def _as_on_cuda() -> AbstractContextManager[Any]:
    """While entered, dropout is the one operation that CUDA uses; a CPU would build it from several."""
    torch = calls.torch()
    plain = torch.nn.functional.dropout

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and 0 < p < 1 and not inplace:
            return torch.native_dropout(input, p, True)[0]
        return plain(input, p, training, inplace)

    def function(mode: Any, called: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (dropout if called is plain else called)(*args, **(kwargs or {}))

    base = calls.torch("overrides").TorchFunctionMode
    replaced: AbstractContextManager[Any] = type("AsOnCuda", (base,), {"__torch_function__": function})()
    return replaced
