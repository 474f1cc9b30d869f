"""A real DDP step with the time of everything in it. Runs in worker processes.

Hooks note the time when a layer's forward begins, when its backward begins (on the first node of autograd that it made),
when each gradient is ready, when the Reducer hands a full bucket to its communication hook, and when that bucket's
all-reduce has ended. The clock is the machine's monotonic one, which is the same for all processes.

Not modelled: what the hooks themselves cost, some microseconds a layer; that a bucket which waits for one of gloo's two
threads is not on its way yet.
"""

import time
from typing import Any

from simulator.importers import module_calls as calls
from simulator.importers.module_recorder import Graph, sequence_number
from simulator.validation import modules
from simulator.validation.process import Me
from simulator.validation.records import BucketTimes, Run, Step

torch, distributed = calls.torch(), calls.torch("distributed")
DistributedDataParallel = calls.torch("nn.parallel").DistributedDataParallel


class Recorder:
    """Trains a module under DDP and notes the moments of every step."""

    def __init__(self, me: Me, module: Any, ddp: dict[str, Any]) -> None:
        self.world_size = me.world_size
        self.module = module
        self.names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.steps: list[Step] = []
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._ready)
        self.ddp = DistributedDataParallel(module, **ddp)
        self.ddp.register_comm_hook(None, self._communication_hook())
        self.optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], 1e-6)

    def step(self, inputs: Any) -> None:
        """One iteration."""
        self.optimizer.zero_grad()
        distributed.barrier()
        step = Step(time.perf_counter())
        self.steps.append(step)
        starts: list[int] = []

        def begin(name: str) -> None:
            starts.append(sequence_number())
            step.layers.append((name, time.perf_counter()))

        with calls.modules_begin(self.module, begin):
            output = self.ddp(inputs)
        starts.append(sequence_number())
        step.forward_end = time.perf_counter()
        value = output.float().pow(2).mean()
        for layer, node in Graph(value, starts).first_nodes.items():
            node.register_prehook(lambda _, layer=layer: step.backwards.append((layer, time.perf_counter())))
        step.backward_begin = time.perf_counter()
        value.backward()
        step.backward_end = time.perf_counter()
        self.optimizer.step()
        step.end = time.perf_counter()

    def _ready(self, parameter: Any) -> None:
        self.steps[-1].ready[self.names[id(parameter)]] = time.perf_counter()

    def _communication_hook(self) -> Any:
        def hook(_: None, bucket: Any) -> Any:
            flat = bucket.buffer()
            times = BucketTimes(bucket.index(), flat.numel() * flat.element_size(),
                                tuple(self.names[id(p)] for p in bucket.parameters()), time.perf_counter())  # fmt: skip
            self.steps[-1].buckets.append(times)
            work = distributed.all_reduce(flat.div_(self.world_size), async_op=True)

            def done(future: Any) -> Any:
                times.reduced = time.perf_counter()
                return future.value()[0]

            return work.get_future().then(done)

        hook.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return hook


def run(me: Me, what: Run) -> list[Step]:
    """All iterations."""
    torch.manual_seed(0)
    module = modules.build(what.module, seed=0) if what.module else modules.chain(what.widths)
    recorder = Recorder(me, module, dict(what.ddp))
    inputs = modules.batch(me.rank, what.rows, modules.INPUT_WIDTH if what.module else what.widths[0])
    for _ in range(what.iterations):
        recorder.step(inputs)
    return recorder.steps
