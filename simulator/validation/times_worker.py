"""Calibration and measurement on real ranks, in turns. Runs in worker processes.

A round does everything once: all-reduces by size, plain steps without DDP (layer by layer, and as a whole), plain steps
with an all-reduce underway, and DDP steps under each bucket cap. The next round does it again, so that a machine that
slows down slows all of it, and so that two rounds say how far two measurements of the same thing lie apart.

Not modelled: CUDA; models that are not a chain of layers.
"""

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from simulator.importers.module import describe
from simulator.importers.module_clock import Clock, time_step
from simulator.presets.facts import to_json
from simulator.validation.modules import chain
from simulator.validation.process import Me
from simulator.validation.records import Plan, Round, TimesRecord


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
        self.buffers = {size: torch.zeros(size // 4) for size in sorted((*plan.sizes, *plan.held_out))}
        self.gradients = [torch.zeros_like(p) for p in self.module.parameters()]
        self.flat = torch.zeros(sum(g.numel() for g in self.gradients))
        self.optimizer = torch.optim.SGD(self.module.parameters(), 1e-6)
        self.wrapped: dict[float, Any] = {}
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


def run(me: Me, plan: Plan) -> TimesRecord:
    """All rounds."""
    session = _Session(me, plan)
    record = TimesRecord(torch.__version__, session.facts)
    for number in range(plan.rounds):
        record.rounds.append(session.round())
        me.tell((number + 1) / plan.rounds)
    return record


def nothing(_: Me, __: None) -> None:
    """To start the processes."""
