"""Calibration and measurement on real ranks, in turns. Runs in worker processes.

A round does everything once: all-reduces by size, steps without DDP (layer by layer, and as a whole), the same with an
all-reduce beside them, and DDP steps under each bucket cap. The next round does it again, so that a machine that slows
down slows all of it, and so that two rounds say how far two measurements of the same thing lie apart.

Each is a block of repeats without a pause, of which the mean counts: means of parts add up to the mean of the whole,
medians do not when now and then another program takes a core. A process that pauses would also be favoured by the
system's scheduler.

Not modelled: CUDA; models that are not a chain of layers.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from simulator.importers import module_calls as calls
from simulator.importers.module import describe
from simulator.importers.module_clock import Clock, time_step
from simulator.presets.facts import to_json
from simulator.validation.modules import chain
from simulator.validation.process import Me
from simulator.validation.records import Plan, Round, TimesRecord

torch, distributed = calls.torch(), calls.torch("distributed")
DistributedDataParallel = calls.torch("nn.parallel").DistributedDataParallel


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

    def compute(self) -> None:
        """Forward, loss and backward without DDP."""
        self.optimizer.zero_grad()
        self.module(self.inputs).pow(2).mean().backward()

    def ddp_step(self, cap: float) -> None:
        """One iteration under DDP."""
        ddp, optimizer = self.wrapped[cap]
        optimizer.zero_grad()
        ddp(self.inputs).pow(2).mean().backward()
        optimizer.step()

    def copy(self) -> None:
        """As the Reducer does: times 1/N into the bucket, and a copy back."""
        parts = [
            part.view_as(g) for part, g in zip(self.flat.split([g.numel() for g in self.gradients]), self.gradients)
        ]
        for gradient, part in zip(self.gradients, parts):
            torch.mul(gradient, 0.5, out=part)
        for gradient, part in zip(self.gradients, parts):
            gradient.copy_(part)

    def reduce(self) -> None:
        """All gradients' bytes."""
        distributed.all_reduce(self.flat)

    def both(self) -> None:
        """Compute with an all-reduce beside it."""
        work = distributed.all_reduce(self.flat, async_op=True)
        self.compute()
        work.wait()

    def layer_times(self) -> list[float]:
        """One step, layer by layer."""
        times = time_step(self.module, self.inputs, lambda out: out.pow(2).mean(), range(self.layers), self.layers,
                          self.clock, hold=False)  # fmt: skip
        return list(times.device)

    def round(self) -> Round:
        """Everything once."""
        steps = self.plan.steps
        found = Round(barrier=_block(distributed.barrier, 3 * steps))
        for size, buffer in self.buffers.items():
            found.all_reduce[size] = _block(partial(distributed.all_reduce, buffer), 3 * steps)
        found.layers = [sum(slot) / steps for slot in zip(*(self.layer_times() for _ in range(steps)))]
        found.compute = _block(_and_wait(self.compute), steps)
        found.reduce = _block(self.reduce, steps)
        found.both = _block(self.both, steps)
        found.copies = _block(_and_wait(self.copy), steps)
        found.optimizer = _block(_and_wait(self.optimizer.step), steps)
        for cap in self.plan.caps_mb:
            found.ddp[cap] = _block(partial(self.ddp_step, cap), steps)
        return found


def _and_wait(work: Callable[[], Any]) -> Callable[[], None]:
    """With a barrier behind, so that every repeat waits for the slower rank, as a DDP step does."""

    def both() -> None:
        work()
        distributed.barrier()

    return both


def _block(work: Callable[[], Any], repeats: int) -> float:
    """Seconds of one of so many repeats without a pause; one more, before them, does not count."""
    work()
    distributed.barrier()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


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
