"""What an nn.Module costs, read off one real forward and backward of it.

`describe` records facts that no device changes: a dispatch mode sees every operation below autograd (its FLOPs, the
bytes it reads and writes, whether it launches a kernel at all: a view does not), saved-tensor hooks see what is kept
for the backward, and a post-accumulate hook on each parameter sees when its gradient is ready. Everything is
attributed to layers (`simulator.presets.facts` says what a layer is). In the backward that needs one observation:
autograd numbers its nodes as the forward creates them and runs them from the highest number down, so the numbers at
which the layers began tell whose node is running. Two batch sizes separate what grows with the batch from what does
not. `profile` measures the same layers' seconds on the machine at hand.

Counted as a CUDA device would run it, also on a CPU: dropout as one kernel with a mask of one byte an element, a
convolution's backward as one kernel per gradient asked for.

Not modelled: torch.compile's fused kernels; work that is not a line in the batch size; several streams or devices.
"""

import statistics
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from simulator.errors import InputError, require, whole
from simulator.model import Cost, ModelProfile, Parameter
from simulator.presets.facts import LayerFacts, ModelFacts

if TYPE_CHECKING:
    from torch import Tensor, nn

Loss = Callable[[Any], "Tensor"]
"""From whatever the module returns to the scalar that the backward starts from."""

_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense"}


def describe(module: "nn.Module", example_input: Any, *, name: str, loss: Loss | None = None, source: str = "",
             batches: tuple[int, int] = (2, 4), allow_unused: bool = False) -> ModelFacts:  # fmt: skip
    """Facts of a module from one forward and backward at each of two batch sizes; the module is left as it was.

    example_input: a tensor, a tuple of positional or a dict of keyword arguments; every tensor in it is split along
    its first dimension, as DataParallel does. Without `loss`, the backward starts from the output's own loss if it
    has one, else from the sum of its tensors. Raises InputError, also for a parameter that gets no gradient unless
    `allow_unused`.
    """
    return _describe(module, example_input, name, loss, source, batches, allow_unused)[0]


def profile(module: "nn.Module", example_input: Any, *, name: str = "", loss: Loss | None = None, repeats: int = 10,
            warmup: int = 3, batches: tuple[int, int] | None = None, precision: str = "fp32") -> ModelProfile:  # fmt: skip
    """Measure each layer's seconds where the module's parameters are; medians of `repeats` steps per batch size.

    Batch sizes: the example's own and a quarter of it, at least 2 and 4. On CUDA the device is kept busy first, so
    that events time its work and not its waiting for the host, and the host's launch seconds are taken from steps
    without that; on a CPU the host is the device and they are 0. `source` says how the sum of the layers compares
    with the whole step, measured without looking inside. This project's tests run it on a CPU only.
    """
    torch = _torch()
    whole(repeats, "repeats", minimum=1)
    whole(warmup, "warmup")
    size = _check(module, example_input)
    low, high = batches or (max(2, size // 4), max(4, size))
    name = name or type(module).__name__
    facts, calls = _describe(module, example_input, name, loss, "", (low, high), False)
    clock = _Clock(next(module.parameters()).device)
    runs: dict[int, list[_Times]] = {low: [], high: []}
    hosts: list[_Times] = []
    steps: list[float] = []
    with _untouched(module), torch.enable_grad():
        for turn in range(warmup + repeats):
            # The batch sizes take turns, so that a machine that slows down does not bend the line between them.
            for batch, times in runs.items():
                inputs = _resized(example_input, batch)
                one = _timed(module, inputs, loss, calls, len(facts.layers), clock, hold=True)
                times.extend([one] if turn >= warmup else [])
            if turn >= warmup:
                steps.append(clock.whole_step(lambda: _step(module, inputs, loss)))
                if clock.cuda:
                    inputs = _resized(example_input, low)
                    hosts.append(_timed(module, inputs, loss, calls, len(facts.layers), clock, hold=False))
    seconds = {batch: _median(times) for batch, times in runs.items()}
    lines = [_line(low, a, high, b) for a, b in zip(seconds[low], seconds[high], strict=True)]
    host = _median(hosts, host=True) if hosts else [0.0] * len(lines)
    count = len(facts.layers)
    total = sum(max(line.at(high), floor) for line, floor in zip(lines, host, strict=True))
    source = (
        f"measured on {clock.name}, torch {torch.__version__}, batches {low} and {high}, medians of {repeats} steps; "
        f"the layers sum to {total / statistics.median(steps):.2f} of the whole step"
    )
    return facts.profile(
        lines[:count], lines[count : 2 * count], device=clock.name, loss=lines[2 * count], precision=precision,
        forward_host_s=host[:count], backward_host_s=host[count : 2 * count], source=source,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- what is recorded


@dataclass
class _Work:
    flops: int = 0
    nbytes: int = 0
    kernels: int = 0


@dataclass
class _Stretch:
    """A layer while it is being recorded."""

    name: str
    start: int
    """The autograd sequence number at which it began."""
    forward: _Work = field(default_factory=_Work)
    backward: _Work = field(default_factory=_Work)
    saved_bytes: int = 0


def _describe(module: "nn.Module", example_input: Any, name: str, loss: Loss | None, source: str,
              batches: tuple[int, int], allow_unused: bool) -> tuple[ModelFacts, list[int]]:  # fmt: skip
    torch = _torch()
    _check(module, example_input)
    low, high = (whole(batch, "a batch size", minimum=1) for batch in batches)
    require(low < high, f"batches = {batches}", "two different sizes, the smaller first", "Give for example (2, 4)")
    with _untouched(module), torch.enable_grad():
        first, second = (_Recorder(module, _resized(example_input, batch), loss) for batch in (low, high))
    names = [stretch.name for stretch in second.stretches]
    require(names == [stretch.name for stretch in first.stretches], f"{name} at batch {low} and at batch {high}",
            "other modules run", "Give a module whose forward takes the same path for every batch")  # fmt: skip
    trained = {key: p for key, p in second.parameters.items() if p.requires_grad and p.tied_to is None}
    unused = tuple(key for key in trained if key not in second.ready)
    require(allow_unused or not unused, f"{name}: no gradient comes for {', '.join(unused[:5])}",
            "every parameter with requires_grad must take part in the loss (DDP would wait for it)",
            "Set requires_grad = False, or pass allow_unused=True and find_unused_parameters=True to DDP")  # fmt: skip
    owned: list[list[str]] = [[] for _ in names]
    for key in (*unused, *second.ready):
        owned[second.owner.get(key, len(names) - 2)].append(key)
    layers = [
        _layer(a, b, low, high, tuple(own)) for a, b, own in zip(first.stretches, second.stretches, owned, strict=True)
    ]
    row = second.batch
    facts = ModelFacts(
        name, tuple(second.parameters.values()), tuple(layers[:-1]), (*unused, *second.ready),
        tuple(Parameter(key, tuple(b.shape), _dtype(b), False) for key, b in module.named_buffers()),
        second.input_bytes // row, second.output_bytes // row, layers[-1], unused=unused,
        source=source or f"recorded with torch {torch.__version__}, batches {low} and {high}",
    )  # fmt: skip
    return facts, second.calls


def _layer(low: _Stretch, high: _Stretch, few: int, many: int, parameters: tuple[str, ...]) -> LayerFacts:
    def split(small: int, large: int) -> tuple[int, int]:
        slope = max(0, round((large - small) / (many - few)))
        return slope, max(0, small - few * slope)

    forward_bytes, forward_weight = split(low.forward.nbytes, high.forward.nbytes)
    backward_bytes, backward_weight = split(low.backward.nbytes, high.backward.nbytes)
    return LayerFacts(
        high.name, parameters,
        split(low.forward.flops, high.forward.flops)[0], split(low.backward.flops, high.backward.flops)[0],
        forward_bytes, backward_bytes, forward_weight, backward_weight,
        high.forward.kernels, high.backward.kernels, split(low.saved_bytes, high.saved_bytes)[0],
    )  # fmt: skip


class _Recorder:
    """One forward and backward, watched. Afterwards its fields hold what was seen; the last stretch is the loss."""

    def __init__(self, module: "nn.Module", inputs: Any, loss: Loss | None) -> None:
        torch = _torch()
        self.parameters: dict[str, Parameter] = {}
        self.ready: list[str] = []
        self.calls: list[int] = []
        """The layer that was running once the n-th module with parameters had begun."""
        self.input_bytes = sum(_nbytes(tensor) for tensor in _tensors(inputs))
        self.batch = len(next(_tensors(inputs)))
        self.stretches: list[_Stretch] = []
        self._in_forward = True
        self._paused = False
        tensors = _name_parameters(module, self.parameters)
        self._kept = {_storage(t) for t in (*module.parameters(), *module.buffers(), *_tensors(inputs))}
        with ExitStack() as stack:
            for key, parameter in tensors.items():
                parameter.grad = None  # a gradient that is there already would be added to, by one more kernel
                if parameter.requires_grad:
                    hook = parameter.register_post_accumulate_grad_hook(lambda p, key=key: self._arrived(key, p))
                    stack.callback(hook.remove)
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor))
            stack.enter_context(_as_on_cuda())
            stack.enter_context(_watched(self._operation))
            self.begin("")
            with _modules_begin(module, self.begin):
                output = _forward(module, inputs)
            self.stretches[0].name = self.stretches[0].name or type(module).__name__
            self.output_bytes = sum(_nbytes(tensor) for tensor in _tensors(output))
            self.stretches.append(_Stretch("loss", self._sequence()))
            self._work = self.stretches[-1].forward
            start = _loss(output, loss)
            graph = _Graph(start, [stretch.start for stretch in self.stretches])
            self._in_forward = False
            for layer, node in graph.first_nodes.items():
                node.register_prehook(lambda _, layer=layer: self._enter(layer))
            self._work = self.stretches[-1].backward
            _backward(start)
        owner = {key: graph.owner.get(id(tensor)) for key, tensor in tensors.items()}
        hidden = [key for key in self.ready if owner[key] is None]
        require(not hidden, f"the gradient of {', '.join(hidden[:3])}", "came from outside the recorded graph",
                "Checkpoint with use_reentrant=False")  # fmt: skip
        # A parameter that the loss alone uses (weight decay written by hand) is ready before the last layer begins.
        self.owner = {key: min(layer, len(self.stretches) - 2) for key, layer in owner.items() if layer is not None}

    def begin(self, name: str) -> None:
        """A module with parameters begins: a new stretch, unless nothing has happened in the one before."""
        if not self._in_forward:
            return  # a checkpointed forward runs again inside the backward
        if not self.stretches or (self.stretches[-1].name and self.stretches[-1].forward.kernels):
            self.stretches.append(_Stretch("", self._sequence()))
        self._work = self.stretches[-1].forward
        if name:
            again = sum(stretch.name.split("#")[0] == name for stretch in self.stretches)
            self.stretches[-1].name = f"{name}#{again + 1}" if again else name
            self.calls.append(len(self.stretches) - 1)

    def _enter(self, layer: int) -> None:
        self._work = self.stretches[layer].backward

    def _sequence(self) -> int:
        self._paused = True
        number = _sequence_number()
        self._paused = False
        return number

    def _arrived(self, key: str, parameter: "Tensor") -> None:
        self.ready.append(key)
        if parameter.grad is not None and parameter.grad.is_sparse:
            self.parameters[key] = replace(self.parameters[key], sparse=True)

    def _save(self, tensor: "Tensor") -> "Tensor":
        key = _storage(tensor)
        if key is not None and key not in self._kept:
            self._kept.add(key)
            self.stretches[-1].saved_bytes += tensor.untyped_storage().nbytes()
        return tensor

    def _operation(self, operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        if not self._paused:
            flops, nbytes, kernels = _cost(operation, args, kwargs, out)
            self._work.flops += flops
            self._work.nbytes += nbytes
            self._work.kernels += kernels


class _Graph:
    """The autograd graph behind a loss, cut into layers by the sequence numbers at which they began."""

    def __init__(self, loss: "Tensor", starts: Sequence[int]) -> None:
        self.owner: dict[int, int] = {}
        """id of a parameter: the first layer that uses it, whose backward is the last to add to its gradient."""
        self.first_nodes: dict[int, Any] = {}
        """Layer: the node that its backward begins with."""
        stack, seen = [loss.grad_fn], {loss.grad_fn}
        while stack:
            node: Any = stack.pop()
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


def _cost(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> tuple[int, int, int]:
    """FLOPs, bytes and kernels of one operation below autograd."""
    inputs, outputs = [*_tensors(args), *_tensors(kwargs)], [*_tensors(out)]
    packet = operation.overloadpacket
    name = packet.__name__
    if not outputs or name in _NO_KERNEL:
        return 0, 0, 0
    known = {_storage(tensor) for tensor in inputs}
    if not operation._schema.is_mutable and all(_storage(tensor) in known for tensor in outputs):
        return 0, 0, 0  # a view
    nbytes = sum(map(_nbytes, inputs)) + sum(map(_nbytes, outputs))
    kernels = 1
    if name == "embedding":  # reads the rows asked for, not the table
        nbytes = _nbytes(inputs[1]) + 2 * _nbytes(outputs[0])
    elif name == "convolution_backward":
        gradient, value, weight = map(_nbytes, args[:3])
        reads = [reads for reads, wanted in zip((weight, value, 0), args[-1], strict=True) if wanted]
        kernels, nbytes = len(reads), len(reads) * gradient + sum(reads) + sum(map(_nbytes, outputs))
    return _flops(packet, args, kwargs, out), nbytes, kernels


def _flops(packet: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    from torch.utils import flop_counter

    name = packet.__name__
    # The CPU's fused attention is not in torch's registry; it does the work of CUDA's.
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return int(flop_counter.sdpa_flop_count(*(tensor.shape for tensor in args[:3])))
    if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return int(flop_counter.sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4])))
    formula = flop_counter.flop_registry.get(packet)
    return int(formula(*args, **kwargs, out_val=out)) if formula else 0


# ------------------------------------------------------------------------------------------------ what is timed


@dataclass
class _Mark:
    host_s: float
    event: Any = None


@dataclass
class _Times:
    """Seconds of each layer's forward, then each layer's backward, then the loss; as device and as host time."""

    device: list[float]
    host: list[float]


class _Clock:
    """The time on a device: the host's own for a CPU, events on the current stream for CUDA."""

    def __init__(self, device: Any) -> None:
        torch = _torch()
        require(device.type in ("cpu", "cuda"), f"the module is on device {device}", "times come from cpu or cuda",
                "Move the module and its input there")  # fmt: skip
        self.cuda = device.type == "cuda"
        self.name = torch.cuda.get_device_name(device) if self.cuda else f"CPU, {torch.get_num_threads()} threads"
        self._cycles = 0

    def mark(self) -> _Mark:
        event = None
        if self.cuda:
            event = _torch().cuda.Event(enable_timing=True)
            event.record()
        return _Mark(time.perf_counter(), event)

    def seconds(self, begin: _Mark, end: _Mark) -> float:
        """Device seconds between two marks."""
        if begin.event is None:
            return end.host_s - begin.host_s
        end.event.synchronize()
        return float(begin.event.elapsed_time(end.event)) / 1e3

    def hold(self) -> None:
        """Let the device sleep for as long as the host needed last time, so that launches queue up behind it."""
        if self.cuda:
            _torch().cuda.synchronize()
            _torch().cuda._sleep(self._cycles)

    def held(self, host_s: float) -> None:
        """Note how long the host takes to launch, in device cycles at 2 GHz with half as much to spare."""
        self._cycles = max(self._cycles, int(1.5 * host_s * 2e9))

    def whole_step(self, step: Callable[[], None]) -> float:
        """Seconds of a step from the outside, until the device is done."""
        sync = _torch().cuda.synchronize if self.cuda else lambda: None
        sync()
        start = time.perf_counter()
        step()
        sync()
        return time.perf_counter() - start


def _timed(module: "nn.Module", inputs: Any, loss: Loss | None, calls: Sequence[int], count: int, clock: _Clock, *,
           hold: bool) -> _Times:  # fmt: skip
    """One step with a mark wherever a layer begins."""
    spans: list[tuple[int, _Mark, _Mark]] = []
    starts = [_sequence_number()] * (count + 1)
    entered = iter(calls)
    slot = 0
    begin: _Mark

    def enter(following: int, forward: bool) -> None:
        nonlocal slot, begin
        if following == slot:
            return
        spans.append((slot, begin, clock.mark()))
        slot = following
        if forward:
            starts[following] = _sequence_number()
        begin = clock.mark()

    for parameter in module.parameters():
        parameter.grad = None
    if hold:
        clock.hold()
    began = begin = clock.mark()
    with _modules_begin(module, lambda _: enter(next(entered, slot), True)):
        output = _forward(module, inputs)
    enter(count, True)
    start = _loss(output, loss)
    spans.append((2 * count, begin, clock.mark()))
    clock.held(time.perf_counter() - began.host_s)
    for layer, node in _Graph(start, starts).first_nodes.items():
        if layer < count:
            node.register_prehook(lambda _, layer=layer: enter(count + layer, False))
    if hold:
        clock.hold()
    slot, begin = 2 * count, clock.mark()
    began = begin
    _backward(start)
    spans.append((slot, begin, clock.mark()))
    clock.held(time.perf_counter() - began.host_s)
    times = _Times([0.0] * (2 * count + 1), [0.0] * (2 * count + 1))
    for index, opened, closed in spans:
        times.device[index] += clock.seconds(opened, closed)
        times.host[index] += closed.host_s - opened.host_s
    return times


def _step(module: "nn.Module", inputs: Any, loss: Loss | None) -> None:
    for parameter in module.parameters():
        parameter.grad = None
    _backward(_loss(_forward(module, inputs), loss))


def _median(times: Sequence[_Times], host: bool = False) -> list[float]:
    rows = [one.host if host else one.device for one in times]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def _line(few: int, low_s: float, many: int, high_s: float) -> Cost:
    """The line through two measured times, or the nearest to them with no negative part."""
    slope = (high_s - low_s) / (many - few)
    if slope < 0:
        return Cost((low_s + high_s) / 2, 0.0)
    if low_s - few * slope < 0:
        return Cost(0.0, (few * low_s + many * high_s) / (few * few + many * many))
    return Cost(low_s - few * slope, slope)


# ------------------------------------------------------------------------------------------ torch, at arm's length


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InputError("torch is not installed: reading an nn.Module needs it. Run: pip install torch.") from error
    return torch


def _check(module: Any, example_input: Any) -> int:
    """The example's batch size. Raises InputError for what cannot be described."""
    torch = _torch()
    require(isinstance(module, torch.nn.Module), f"module is a {type(module).__name__}", "an nn.Module is needed",
            "Pass the module itself, not its class or its output")  # fmt: skip
    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    require(not isinstance(module, parallel), f"module is a {type(module).__name__}",
            "the simulator adds the parallelism itself", "Pass module.module")  # fmt: skip
    parameters = list(module.parameters())
    lazy = any(isinstance(p, torch.nn.parameter.UninitializedParameter) for p in parameters)
    require(not lazy, "a lazy module has no shapes yet", "shapes are needed", "Run one forward first")
    require(any(p.requires_grad for p in parameters), f"{type(module).__name__} has no parameter with requires_grad",
            "there is no gradient to exchange", "Give a module that is trained")  # fmt: skip
    sizes = [tuple(tensor.shape) for tensor in _tensors(example_input)]
    require(bool(sizes), f"example_input is a {type(example_input).__name__} without a tensor", "the forward needs one",
            "Give a tensor, a tuple of positional or a dict of keyword arguments")  # fmt: skip
    same = all(sizes) and len({size[0] for size in sizes if size}) == 1 and sizes[0][0] > 0
    require(same, f"example_input has tensors of shape {', '.join(map(str, sizes))}",
            "the first dimension of each is the batch, the same in all and not 0",
            "Add it, for example with tensor.unsqueeze(0)")  # fmt: skip
    return int(sizes[0][0])


def _tensors(value: Any) -> "Iterator[Tensor]":
    """Every tensor in nested tuples, lists and dicts (a Hugging Face output is a dict), in order."""
    if isinstance(value, _torch().Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)


def _resized(value: Any, batch: int) -> Any:
    """The input with its samples repeated, or cut off, to a batch of that size."""
    torch = _torch()
    if isinstance(value, torch.Tensor):
        return value.detach()[torch.arange(batch, device=value.device) % len(value)]
    if isinstance(value, Mapping):
        return {key: _resized(item, batch) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_resized(item, batch) for item in value)
    return value


def _forward(module: "nn.Module", inputs: Any) -> Any:
    try:
        if isinstance(inputs, Mapping):
            return module(**inputs)
        return module(*inputs) if isinstance(inputs, (tuple, list)) else module(inputs)
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(module).__name__}'s forward fails on the example input ({type(error).__name__}: {error}). "
            "Call module(example_input) yourself, and give describe or profile the input that works."
        ) from error


def _loss(output: Any, loss: Loss | None) -> "Tensor":
    torch = _torch()
    if loss is not None:
        scalar = loss(output)
        good = isinstance(scalar, torch.Tensor) and scalar.numel() == 1 and scalar.requires_grad
        require(good, f"loss returned {type(scalar).__name__} {tuple(getattr(scalar, 'shape', ()))}",
                "one number that depends on the parameters is needed", "Let it return the mean, for example")  # fmt: skip
        return scalar.reshape(()) if scalar.dim() else scalar
    own = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    found = [own] if isinstance(own, torch.Tensor) else [tensor for tensor in _tensors(output) if tensor.requires_grad]
    require(bool(found), f"the forward returned {type(output).__name__}",
            "a tensor that depends on the parameters is needed, alone or inside tuples, lists and dicts",
            "Return one, or pass loss=, a function from the output to a scalar")  # fmt: skip
    return torch.stack([tensor.sum() for tensor in found]).sum() if len(found) > 1 else found[0].sum()


def _backward(loss: "Tensor") -> None:
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InputError(
            f"the backward fails ({type(error).__name__}: {error}). Call loss.backward() yourself to see where."
        ) from error


def _sequence_number() -> int:
    """The number that autograd gives the node it makes next, found by making one."""
    torch = _torch()
    with torch.enable_grad():
        return int(torch.zeros((), requires_grad=True).clone().grad_fn._sequence_nr())


def _storage(tensor: "Tensor") -> int | None:
    """What identifies the memory behind a tensor; nothing for a sparse one."""
    return tensor.untyped_storage()._cdata if tensor.layout == _torch().strided else None


def _nbytes(tensor: "Tensor") -> int:
    size = tensor.numel() * tensor.element_size()
    return min(size, tensor.untyped_storage().nbytes()) if _storage(tensor) is not None else size


def _dtype(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name_parameters(module: "nn.Module", table: dict[str, Parameter]) -> "dict[str, Tensor]":
    """Fill the table with every name of every parameter; returns each tensor once, under its first name."""
    first: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, tensor in module.named_parameters(remove_duplicate=False):
        tied_to = first.get(id(tensor))
        table[name] = Parameter(name, tuple(tensor.shape), _dtype(tensor), tensor.requires_grad, tied_to)
        if tied_to is None:
            first[id(tensor)] = name
            tensors[name] = tensor
    return tensors


@contextmanager
def _modules_begin(module: "nn.Module", begin: Callable[[str], None]) -> Iterator[None]:
    """Call begin with the name of each module that owns a parameter, whenever it is called."""
    with ExitStack() as stack:
        for name, part in module.named_modules():
            if any(True for _ in part.parameters(recurse=False)):
                shown = name or type(part).__name__
                hook = part.register_forward_pre_hook(lambda *_, shown=shown: begin(shown))
                stack.callback(hook.remove)
        yield


@contextmanager
def _untouched(module: "nn.Module") -> Iterator[None]:
    """Put gradients, buffers and the random state back afterwards."""
    torch = _torch()
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    devices = sorted({p.device.index for p, _ in gradients if p.device.type == "cuda"})
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _watched(seen: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None]) -> AbstractContextManager[Any]:
    """While entered, every operation that reaches the dispatcher below autograd is shown to `seen`."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = operation(*args, **(kwargs or {}))
            seen(operation, args, kwargs or {}, out)
            return out

    return Watch()


def _as_on_cuda() -> AbstractContextManager[Any]:
    """While entered, dropout is the fused operation that CUDA uses; a CPU builds it from four."""
    import torch
    from torch.overrides import TorchFunctionMode

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if training and 0 < p < 1 and not inplace:
            return torch.native_dropout(input, p, True)[0]
        return torch.nn.functional.dropout(input, p, training, inplace)

    class AsOnCuda(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            called = dropout if function is torch.nn.functional.dropout else function
            return called(*args, **(kwargs or {}))

    return AsOnCuda()
