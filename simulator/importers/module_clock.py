"""Timing one training step layer by layer, with a mark wherever a layer begins.

A mark reads the host's clock and, on CUDA, records an event on the current stream. Reading the autograd number at
which a layer begins (`module_recorder`) takes a few microseconds; it happens between two marks and is in no layer.

Not modelled: more than one stream; what the marks themselves cost, about a microsecond on a CPU.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.errors import require
from simulator.importers import module_calls as calls
from simulator.importers.module_calls import Loss
from simulator.importers.module_recorder import Graph, sequence_number


@dataclass(frozen=True)
class Mark:
    """A moment, on the host and (CUDA only) in the device's stream."""

    host_s: float
    event: Any = None


@dataclass(frozen=True)
class LayerTimes:
    """Seconds of each layer's forward, then each layer's backward, then the loss."""

    device: tuple[float, ...]
    host: tuple[float, ...]


class Clock:
    """The time on a device: the host's own for a CPU, events on the current stream for CUDA."""

    def __init__(self, device: Any) -> None:
        require(device.type in ("cpu", "cuda"), f"the module is on device {device}", "times come from cpu or cuda",
                "Move the module and its input there")  # fmt: skip
        self.cuda = device.type == "cuda"
        torch = calls.torch()
        self.name = torch.cuda.get_device_name(device) if self.cuda else f"CPU, {torch.get_num_threads()} threads"
        self.hold_s = 0.0
        """How long `hold` keeps the device busy: longer than the host takes to launch what follows."""

    def mark(self) -> Mark:
        """Now."""
        event = None
        if self.cuda:
            event = calls.torch("cuda").Event(enable_timing=True)
            event.record()
        return Mark(time.perf_counter(), event)

    def seconds(self, begin: Mark, end: Mark) -> float:
        """Device seconds between two marks; waits for the second."""
        if begin.event is None:
            return end.host_s - begin.host_s
        end.event.synchronize()
        return float(begin.event.elapsed_time(end.event)) / 1e3

    def hold(self) -> None:
        """Let launches queue up behind a sleeping device, so that it then runs them without a gap."""
        if self.cuda:
            calls.torch("cuda").synchronize()
            calls.torch("cuda")._sleep(int(self.hold_s * 2e9))  # in cycles, of at most about 2 GHz

    def whole_step(self, step: Callable[[], None]) -> float:
        """Seconds of a step from the outside, until the device is done."""
        wait = calls.torch("cuda").synchronize if self.cuda else lambda: None
        wait()
        start = time.perf_counter()
        step()
        wait()
        return time.perf_counter() - start


def time_step(
    module: Any, inputs: Any, loss: Loss | None, order: Sequence[int], count: int, clock: Clock, *, hold: bool
) -> LayerTimes:
    """Forward, loss and backward; order: the layer of each module with parameters, as they are called."""
    spans: list[tuple[int, Mark, Mark]] = []
    upcoming = iter(order)
    starts = [sequence_number()] * (count + 1)
    slot = 0
    begin: Mark

    def enter(following: int) -> None:
        nonlocal slot, begin
        if following != slot:
            spans.append((slot, begin, clock.mark()))
            slot = following
            if following <= count:  # not in the backward
                starts[following:] = [sequence_number()] * (count + 1 - following)
            begin = clock.mark()

    calls.clear_gradients(module)
    if hold:
        clock.hold()
    begin = clock.mark()
    with calls.modules_begin(module, lambda _: enter(next(upcoming, slot))):
        output = calls.forward(module, inputs)
    enter(count)
    value = calls.scalar(output, loss)
    spans.append((slot, begin, clock.mark()))
    for layer, node in Graph(value, starts).first_nodes.items():
        node.register_prehook(lambda _, following=2 * count + 1 - layer: enter(following))
    if hold:
        clock.hold()
    slot, begin = count + 1, clock.mark()
    calls.backward(value)
    spans.append((slot, begin, clock.mark()))
    # Slots in the order in which they run: forward 0 to count - 1, loss, its backward, backward count - 1 to 0.
    device, host = [0.0] * (2 * count + 2), [0.0] * (2 * count + 2)
    for index, opened, closed in spans:
        device[index] += clock.seconds(opened, closed)
        host[index] += closed.host_s - opened.host_s
    return LayerTimes(_by_layer(device, count), _by_layer(host, count))


def _by_layer(slots: Sequence[float], count: int) -> tuple[float, ...]:
    return (*slots[:count], *slots[: count + 1 : -1], slots[count] + slots[count + 1])
