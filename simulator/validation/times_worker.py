"""Calibration and measurement on real ranks, in turns. Runs in worker processes.

A round does everything once: all-reduces by size, plain steps without DDP (layer by layer, and as a whole), plain steps
with an all-reduce underway, and DDP steps under each bucket cap. The next round does it again, so that a machine that
slows down slows all of it, and so that two rounds say how far two measurements of the same thing lie apart.

Not modelled: CUDA; models that are not a chain of layers.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from simulator.buckets import MIB
from simulator.importers.module import describe
from simulator.importers.module_clock import Clock, time_step
from simulator.presets.facts import to_json
from simulator.validation.process import Me


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    widths: tuple[int, ...]
    """Of the model's Linear layers, ReLU between them."""
    rows: int
    caps_mb: tuple[float, ...]
    """DDP's bucket caps in MiB; none of their steps is used to calibrate."""
    sizes: tuple[int, ...]
    """Bytes of the all-reduces."""
    rounds: int
    steps: int
    """Of each kind in a round."""


@dataclass
class Round:
    """Seconds on one rank; of repeated things one number a repeat."""

    all_reduce: dict[int, list[float]] = field(default_factory=dict)
    layers: list[list[float]] = field(default_factory=list)
    """Per step: each layer's forward, each layer's backward, the loss."""
    plain: list[float] = field(default_factory=list)
    """Forward, loss, backward."""
    optimizer: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    """All gradients into flat memory and back."""
    busy_alone: list[float] = field(default_factory=list)
    busy_both: list[float] = field(default_factory=list)
    """A plain step, without and with an all-reduce of `probe_bytes` that starts with it, until both have ended."""
    reduce_alone: list[float] = field(default_factory=list)
    ddp: dict[float, list[float]] = field(default_factory=dict)


@dataclass
class Record:
    """What one rank measured."""

    facts: str
    probe_bytes: int
    rounds: list[Round] = field(default_factory=list)
    torch_version: str = torch.__version__


def chain(widths: tuple[int, ...]) -> Any:
    """Linear layers with ReLU between them."""
    parts: list[Any] = []
    for before, after in zip(widths, widths[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


class _Session:
    """Everything that stays from round to round."""

    def __init__(self, me: Me, plan: Plan) -> None:
        torch.manual_seed(0)
        self.me, self.plan = me, plan
        self.module = chain(plan.widths)
        self.layers = len(plan.widths) - 1
        self.inputs = torch.randn(plan.rows, plan.widths[0])
        self.clock = Clock(torch.device("cpu"))
        self.facts = to_json(describe(self.module, self.inputs, name="chain"))
        self.buffers = {size: torch.zeros(size // 4) for size in plan.sizes}
        self.gradients = [torch.zeros_like(p) for p in self.module.parameters()]
        self.flat = torch.zeros(sum(g.numel() for g in self.gradients))
        self.optimizer = torch.optim.SGD(self.module.parameters(), 1e-6)
        self.wrapped = {}
        for cap in plan.caps_mb:
            torch.manual_seed(0)
            ddp = DistributedDataParallel(chain(plan.widths), bucket_cap_mb=cap)
            self.wrapped[cap] = ddp, torch.optim.SGD(ddp.parameters(), 1e-6)
            for _ in range(3):  # the buckets are rebuilt in the second
                self.ddp_step(cap)

    def forward_backward(self) -> None:
        self.module(self.inputs).pow(2).mean().backward()

    def ddp_step(self, cap: float) -> None:
        ddp, optimizer = self.wrapped[cap]
        optimizer.zero_grad()
        ddp(self.inputs).pow(2).mean().backward()
        optimizer.step()

    def copy(self) -> None:
        """As the Reducer does: times 1/N into the bucket, and a copy back."""
        place = 0
        for gradient in self.gradients:
            part = self.flat[place : place + gradient.numel()].view_as(gradient)
            torch.mul(gradient, 0.5, out=part)
            place += gradient.numel()
        place = 0
        for gradient in self.gradients:
            gradient.copy_(self.flat[place : place + gradient.numel()].view_as(gradient))
            place += gradient.numel()

    def both(self) -> None:
        """A plain step with an all-reduce underway."""
        work = distributed.all_reduce(self.flat, async_op=True)
        self.forward_backward()
        work.wait()

    def round(self) -> Round:
        plan, found = self.plan, Round()
        for size, buffer in self.buffers.items():
            found.all_reduce[size] = _times(lambda buffer=buffer: distributed.all_reduce(buffer), 3 * plan.steps)
        for _ in range(plan.steps):
            distributed.barrier()
            times = time_step(self.module, self.inputs, lambda out: out.pow(2).mean(), range(self.layers), self.layers,
                              self.clock, hold=False)  # fmt: skip
            found.layers.append(list(times.device))
            found.plain += _times(self.forward_backward, 1, self.optimizer.zero_grad)
            found.optimizer += _times(self.optimizer.step, 1)
            found.copies += _times(self.copy, 1)
            found.busy_alone += _times(self.forward_backward, 1, self.optimizer.zero_grad)
            found.busy_both += _times(self.both, 1, self.optimizer.zero_grad)
            found.reduce_alone += _times(lambda: distributed.all_reduce(self.flat), 1)
        for cap in plan.caps_mb:
            found.ddp[cap] = []
        for cap in plan.caps_mb:
            self.ddp_step(cap)
            found.ddp[cap] += _times(lambda cap=cap: self.ddp_step(cap), plan.steps, apart=False)
        return found


def _times(work: Callable[[], Any], repeats: int, before: Callable[[], Any] | None = None, *,
           apart: bool = True) -> list[float]:  # fmt: skip
    """Seconds of each repeat; all ranks begin together."""
    found = []
    distributed.barrier()
    for _ in range(repeats):
        if before is not None:
            before()
        if apart:
            distributed.barrier()
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def run(me: Me, plan: Plan) -> Record:
    """All rounds."""
    session = _Session(me, plan)
    record = Record(session.facts, session.flat.numel() * 4)
    for number in range(plan.rounds):
        record.rounds.append(session.round())
        me.tell((number + 1) / plan.rounds)
    return record
