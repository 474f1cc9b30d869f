"""DistributedDataParallel's iteration, one process a device, in torch's order.

Buffers travel from rank 0 before the forward. In the backward each gradient's hook copies it into its bucket
(divided by the number of ranks); when the last one of a bucket is in, and all buckets before it have gone, the
bucket's all-reduce is put on the communication stream while the backward goes on. At the end the buckets are waited
for in order and copied back; then every rank runs its optimizer. The buckets come from `simulator.buckets`: in
iteration 0 there is one for each dtype, and nothing overlaps.

With `gradient_as_bucket_view` the gradients live in the buckets: the copy back and one copy of all gradients in
memory go, the copy in stays (with zero_grad(set_to_none=True), torch's default).

Sources: torch/nn/parallel/distributed.py (forward, _pre_forward, _sync_buffers), reducer.cpp (mark_variable_ready,
mark_bucket_ready, finalize_backward).

Not modelled: the collectives that torch issues even for one rank; communication hooks, join, no_sync, SyncBatchNorm,
mixed_precision; host threads of unequal speed; the copies of outputs that find_unused_parameters makes.
"""

from dataclasses import dataclass, field

from simulator.buckets import Bucket, buckets_at, rebuild_iteration
from simulator.collectives.communicator import Communicator
from simulator.engine import Engine
from simulator.model import DTYPE_BYTES
from simulator.pieces import construction_broadcast_buckets
from simulator.scenario import DistributedDataParallel, Scenario
from simulator.training import Device
from simulator.verbs import Handle, Program, Stream, Work, busy, launch, memory, wait


def start_distributed_data_parallel(engine: Engine, scenario: Scenario, communicator: Communicator) -> None:
    """Start one program a rank on the engine."""
    rounds = {iteration: _Round.of(engine, scenario, communicator, iteration) for iteration in scenario.iterations}
    width = scenario.backend.concurrent_collectives
    constructor = (
        _constructor(engine, scenario, communicator) if scenario.construction and scenario.world_size > 1 else []
    )
    for rank in range(scenario.world_size):
        program = _Rank(engine, scenario, rank, Stream("communication", rank, rank, width)).train(constructor, rounds)
        engine.start(program, name=f"rank {rank}", rank=rank, device=rank, resource="host")


Collective = tuple[str, int, dict[int, Program]]
"""Name, bytes, a program for each rank."""


def _constructor(engine: Engine, scenario: Scenario, communicator: Communicator) -> list[Collective]:
    """What DistributedDataParallel.__init__ sends: two checks of the parameters, then rank 0's state in flat pieces."""
    model = scenario.model
    shapes = 8 * sum(2 * len(parameter.shape) for parameter in model.trained_parameters)
    pieces = construction_broadcast_buckets((*model.unique_parameters, *model.buffers))
    calls: list[Collective] = [("number of parameters", 8, communicator.all_gather(engine, 8, kind="broadcast"))]
    sizes = [("sizes and strides", shapes)]
    sizes += [(f"state, piece {number}", piece.nbytes) for number, piece in enumerate(pieces)]
    calls += [
        (name, nbytes, communicator.broadcast(engine, nbytes, kind="broadcast")) for name, nbytes in sizes if nbytes
    ]
    return calls


@dataclass(frozen=True)
class _Round:
    """One iteration: its buckets, and its collectives as one program for each rank."""

    buckets: tuple[Bucket, ...]
    reduces: list[list[Program]]
    broadcasts: list[Collective]
    bitmap: list[Program]

    @staticmethod
    def of(engine: Engine, scenario: Scenario, communicator: Communicator, iteration: int) -> "_Round":
        strategy, model = scenario.strategy, scenario.model
        assert isinstance(strategy, DistributedDataParallel)
        options = strategy.buckets
        buckets = buckets_at(model.parameters, model.ready_order, options, iteration)
        reduces = [communicator.all_reduce(engine, bucket.nbytes, element_bytes=DTYPE_BYTES[bucket.dtype])
                   for bucket in buckets]  # fmt: skip
        sizes: dict[str, int] = {}
        tensors = len(model.trained_parameters)
        if rebuild_iteration(options) == iteration:
            sizes = {"bucket order": 4 * (tensors + 1), "bucket sizes": 4 * len(buckets)}
        if strategy.forward_sync_buffers:
            for buffer in model.buffers:
                name = f"buffers ({buffer.dtype})"
                sizes[name] = sizes.get(name, 0) + buffer.nbytes
        broadcasts = [(name, nbytes, communicator.broadcast(engine, nbytes, kind="broadcast"))
                      for name, nbytes in sizes.items() if nbytes]  # fmt: skip
        walks = options.find_unused_parameters and not options.static_graph
        bitmap = (
            communicator.all_reduce(engine, 4 * tensors) if walks or (options.static_graph and iteration == 0) else []
        )
        return _Round(buckets, reduces, broadcasts if scenario.world_size > 1 else [], bitmap)


@dataclass
class _Rank:
    """One process."""

    engine: Engine
    scenario: Scenario
    rank: int
    stream: Stream
    seq: int = 0
    device: Device = field(init=False)

    def __post_init__(self) -> None:
        self.device = Device(self.engine, self.scenario, self.rank)

    @property
    def strategy(self) -> DistributedDataParallel:
        strategy = self.scenario.strategy
        assert isinstance(strategy, DistributedDataParallel)
        return strategy

    def train(self, constructor: list[Collective], rounds: dict[int, _Round]) -> Program:
        yield from self.device.reserve(gradients=not self.strategy.gradient_as_bucket_view)
        yield memory(self.rank, "buckets", self.scenario.model.gradient_bytes)
        sent: list[Work] = []
        for name, nbytes, programs in constructor:
            sent.append((yield from self.collective(f"construction: {name}", "broadcast", programs[self.rank], nbytes,
                                                    None, "DistributedDataParallel.__init__")))  # fmt: skip
        yield wait(*sent)
        for iteration, this in rounds.items():
            yield from self.iteration(iteration, this)

    def iteration(self, iteration: int, this: _Round) -> Program:
        model, device = self.scenario.model, self.device
        rows = self.scenario.rows[self.rank]
        yield from device.zero_grad()
        yield from device.inputs(rows, iteration)
        synced: list[Work] = []
        for name, nbytes, programs in this.broadcasts:
            synced.append((yield from self.collective(f"broadcast {name}", "broadcast", programs[self.rank], nbytes,
                                                      iteration, "DistributedDataParallel._pre_forward")))  # fmt: skip
        if self.scenario.backend.blocks_host:
            yield wait(*synced)
        yield from device.forward(rows, iteration, after=synced)
        yield from device.outputs(rows)
        yield from device.loss(rows, iteration)
        reduced = yield from self.backward(rows, iteration, this)
        device.gradients = 0 if self.strategy.gradient_as_bucket_view else model.gradient_bytes
        yield from self.finalize(iteration, this, reduced)
        yield from device.step(iteration)
        yield from device.release({"inputs": rows * model.input_bytes_per_sample,
                                   "outputs": 2 * rows * model.output_bytes_per_sample})  # fmt: skip

    def backward(self, rows: int, iteration: int, this: _Round) -> Program:
        """The backward of all layers, with each bucket launched when it is full. Returns the all-reduces."""
        strategy, scenario, device = self.strategy, self.scenario, self.device
        where = {name: bucket.index for bucket in this.buckets for name in bucket.parameters}
        missing = [len(bucket.parameters) for bucket in this.buckets]
        copied: list[list[Handle]] = [[] for _ in this.buckets]
        reduced: list[Work] = []
        new = not (strategy.gradient_as_bucket_view or device.holds)
        late = scenario.backend.serial or (strategy.buckets.static_graph and iteration == 0)
        for layer in reversed(scenario.model.layers):
            yield from device.backward_layer(layer, rows, iteration, new_gradients=new)
            if layer.parameters:
                nbytes = sum(scenario.gradient_bytes_of[name] for name in layer.parameters)
                if scenario.host.hook_s:
                    yield busy(scenario.host.hook_s * len(layer.parameters), f"hooks of {layer.name}",
                               iteration=iteration, torch_function="Reducer::autograd_hook")  # fmt: skip
                copy = yield launch(Work(device.compute, f"copy {layer.name} into buckets", "copy",
                                         self.bucket_copy_s(len(layer.parameters), nbytes), iteration=iteration,
                                         nbytes=nbytes,
                                         torch_function="Reducer::mark_variable_ready_dense"))  # fmt: skip
                for name in layer.parameters:
                    missing[where[name]] -= 1
                    copied[where[name]] = [copy]
            if not late:
                yield from self.launch_full(iteration, this, missing, copied, reduced)
        if scenario.backend.serial:
            yield wait(copy)
        if this.bitmap and strategy.buckets.static_graph:
            yield from self.reduce_bitmap(iteration, this, reduced)
        yield from self.launch_full(iteration, this, missing, copied, reduced)
        if this.bitmap and not strategy.buckets.static_graph:
            yield from self.reduce_bitmap(iteration, this, reduced)
        return reduced

    def launch_full(self, iteration: int, this: _Round, missing: list[int], copied: list[list[Handle]],
                    reduced: list[Work]) -> Program:  # fmt: skip
        """Launch buckets in index order while the next one is full."""
        done = sum(work.bucket is not None for work in reduced)
        for bucket in this.buckets[done:]:
            if missing[bucket.index]:
                return
            reduced.append((yield from self.collective(
                f"all_reduce bucket {bucket.index}", "all_reduce", this.reduces[bucket.index][self.rank],
                bucket.nbytes, iteration, "Reducer::all_reduce_bucket", bucket=bucket.index,
                after=copied[bucket.index],
            )))  # fmt: skip

    def reduce_bitmap(self, iteration: int, this: _Round, reduced: list[Work]) -> Program:
        """Which parameters were used somewhere: one int32 each."""
        nbytes = 4 * len(self.scenario.model.trained_parameters)
        reduced.append((yield from self.collective("all_reduce used-parameter bitmap", "all_reduce",
                                                   this.bitmap[self.rank], nbytes, iteration,
                                                   "Reducer::all_reduce_local_used_map")))  # fmt: skip

    def collective(self, name: str, kind: str, program: Program, nbytes: int, iteration: int | None, torch_function: str, *,
                   bucket: int | None = None, after: list[Handle] | None = None) -> Program:  # fmt: skip
        """Put one collective on the communication stream. Returns the work."""
        if self.scenario.backend.launch_s:
            yield busy(self.scenario.backend.launch_s, f"launch {name}", iteration=iteration,
                       torch_function=torch_function)  # fmt: skip
        self.seq += 1
        return (yield launch(Work(self.stream, name, kind, program=program, after=after or (), iteration=iteration,
                                  bucket=bucket, group="default", seq=self.seq - 1, nbytes=nbytes,
                                  torch_function=torch_function)))  # fmt: skip

    def bucket_copy_s(self, tensors: int, nbytes: int) -> float:
        """Seconds to copy so many gradients into a bucket, or back: a small kernel each, and their bytes."""
        return tensors * self.scenario.host.bucket_kernel_s / 2 + self.device.copy_s(nbytes)

    def finalize(self, iteration: int, this: _Round, reduced: list[Work]) -> Program:
        """Wait for each bucket in order and copy it back into the gradients, unless they live there."""
        device = self.device
        for work in reduced:
            if self.scenario.backend.blocks_host:
                yield wait(work)
            nbytes = 0 if work.bucket is None else this.buckets[work.bucket].nbytes
            tensors = 0 if work.bucket is None else len(this.buckets[work.bucket].parameters)
            if self.strategy.gradient_as_bucket_view:
                nbytes = tensors = 0
            yield launch(Work(device.compute, f"copy bucket {work.bucket} back" if nbytes else f"wait for {work.name}",
                              "copy", self.bucket_copy_s(tensors, nbytes), after=[work], iteration=iteration, bucket=work.bucket,
                              nbytes=nbytes, torch_function="Reducer::finalize_backward"))  # fmt: skip
