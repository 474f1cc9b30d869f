"""DataParallel's iteration: one process that drives N devices, in torch's order.

    scatter the inputs -> replicate parameters and buffers -> parallel_apply -> gather the outputs -> loss
    -> scatter the outputs' gradient -> replicas' backward -> reduce gradients onto device 0 -> optimizer there

Replicating happens on every forward. The forward runs N Python threads under one GIL, so their launch times add up;
the backward runs one C++ thread a device without the GIL. The reduce is one autograd node: it begins when the last
replica's last gradient is there, so nothing overlaps. Parameters travel in flat pieces of at least 10 MiB, gradients
in pieces of at most 10 MiB (one larger tensor alone).

`transport="nccl"` is what today's Linux wheels do: a broadcast or reduce for each piece, in sequence, along the
library's rings. It was read in source and never run on several GPUs here; traces say so. `transport="peer_copy"` is
the star: N - 1 copies through device 0, one at a time.

Sources: torch/nn/parallel/{data_parallel,replicate,parallel_apply,scatter_gather,comm}.py, csrc/cuda/comm.cpp.

Not modelled: non-tensor inputs; a module that changes its buffers in replicas (they are lost in torch too).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from simulator.collectives.communicator import Communicator
from simulator.collectives.star import fan_in, fan_out
from simulator.engine import Engine
from simulator.pieces import Piece, broadcast_pieces, reduce_pieces
from simulator.scenario import DataParallel, Scenario
from simulator.single_device import single_device_iteration
from simulator.training import Device
from simulator.verbs import Handle, Lock, Program, Work, busy, launch, memory, spawn, wait

NEVER_RUN = ("DataParallel's transport over NCCL was read in torch's source and never run on several GPUs here.",)


def start_data_parallel(engine: Engine, scenario: Scenario, communicator: Communicator) -> None:
    """Start the one process on the engine."""
    engine.start(
        _Process(engine, scenario, communicator).train(), name="DataParallel", rank=0, device=0, resource="python"
    )


@dataclass
class _Process:
    engine: Engine
    scenario: Scenario
    communicator: Communicator
    gil: Lock = field(default_factory=lambda: Lock("the GIL"))

    def __post_init__(self) -> None:
        self.devices = [Device(self.engine, self.scenario, index, rank=0) for index in range(self.scenario.world_size)]
        self.rows = self.scenario.rows
        self.used = [index for index, rows in enumerate(self.rows) if rows]
        self.others = [index for index in self.used if index]
        self.arrived: dict[int, list[Handle]] = {index: [] for index in self.used}
        """What each device's next work has to wait for besides its own stream."""

    @property
    def strategy(self) -> DataParallel:
        strategy = self.scenario.strategy
        assert isinstance(strategy, DataParallel)
        return strategy

    def train(self) -> Program:
        for device in self.devices:
            yield from device.reserve(trains=device.index == 0)
        for iteration in self.scenario.iterations:
            if self.scenario.world_size == 1:
                yield from single_device_iteration(self.scenario, self.devices[0], iteration)
            else:
                yield from self.iteration(iteration)

    def iteration(self, iteration: int) -> Program:
        model = self.scenario.model
        total = self.scenario.total_rows
        first = self.devices[0]
        out = self.strategy.output_device
        yield from first.zero_grad()
        yield from first.inputs(total, iteration)
        yield busy(self.scenario.host.forward_s, "DataParallel.forward", lock=self.gil, iteration=iteration,
                   torch_function="DataParallel.forward")  # fmt: skip
        yield from self.scatter_inputs(iteration)
        yield from self.replicate(iteration)
        yield from self.parallel_apply(iteration)
        yield from self.gather(iteration)
        if not self.strategy.loss_inside:
            yield from self.devices[out].loss(total, iteration)
            yield from self.scatter_gradients(iteration)
        yield from self.backward(iteration)
        yield from self.reduce(iteration)
        first.gradients = model.gradient_bytes
        yield from first.step(iteration)
        for index in self.used:
            held = {"inputs": (total if index == 0 else self.rows[index]) * model.input_bytes_per_sample,
                    "outputs": self.output_bytes(index) * 2 if index != out or self.strategy.loss_inside else 0}  # fmt: skip
            yield from self.devices[index].release(held)
        if not self.strategy.loss_inside:
            own = self.output_bytes(out) if out in self.used else 0
            yield from self.devices[out].release({"outputs": own + 2 * total * model.output_bytes_per_sample})

    def output_bytes(self, index: int) -> int:
        """Bytes of one replica's outputs."""
        return self.rows[index] * self.scenario.model.output_bytes_per_sample

    # ---- the verbs of DataParallel.forward

    def scatter_inputs(self, iteration: int) -> Program:
        sizes = {index: self.rows[index] * self.scenario.model.input_bytes_per_sample for index in self.others}
        for index, nbytes in sizes.items():
            yield memory(index, "inputs", nbytes)
        yield from self.copies("scatter inputs", "scatter", 0, sizes, iteration, outward=True)

    def replicate(self, iteration: int) -> Program:
        """Broadcast the pieces, then build the replicas' modules: Python, tensor by tensor."""
        model, host = self.scenario.model, self.scenario.host
        tensors = len(model.unique_parameters) + len(model.buffers)
        yield busy(host.replicate_tensor_s * tensors, "flatten parameters and buffers", lock=self.gil,
                   iteration=iteration, torch_function="comm.broadcast_coalesced")  # fmt: skip
        for kind, what, tensors_of_kind in (("replicate", "parameters", model.unique_parameters),
                                            ("broadcast", "buffers", model.buffers)):  # fmt: skip
            for number, piece in enumerate(broadcast_pieces(tensors_of_kind)):
                yield from self.spread(piece, kind, f"{kind} {what}, piece {number}", iteration)
        yield busy(host.replicate_copy_s * tensors * len(self.used), "build the replicas", lock=self.gil,
                   iteration=iteration, torch_function="replicate")  # fmt: skip

    def spread(self, piece: Piece, kind: str, name: str, iteration: int) -> Program:
        """One piece from device 0 to the others."""
        flat = [("flat_pieces", piece.nbytes)]
        if not self.others or not piece.nbytes:
            return
        if self.strategy.transport == "peer_copy":
            sizes = dict.fromkeys(self.others, piece.nbytes)
            yield from self.copies(name, kind, 0, sizes, iteration, outward=True, holds=flat, lands="replicas")
            return
        programs = self.communicator.broadcast(self.engine, piece.nbytes, kind=kind, members=self.used)
        for index in self.used:
            allocates = flat if index == 0 else [("replicas", piece.nbytes)]
            yield launch(Work(
                self.devices[index].compute, name, kind, program=programs[index], after=self.take(index),
                iteration=iteration, nbytes=piece.nbytes, allocates=allocates, frees=flat if index == 0 else (),
                torch_function="Broadcast.forward",
            ))  # fmt: skip

    def parallel_apply(self, iteration: int) -> Program:
        """A Python thread a replica, all under one GIL."""
        threads = []
        for index in self.used:
            threads.append((yield spawn(self.replica_forward(index, iteration), f"replica {index}", index,
                                        f"python thread {index}")))  # fmt: skip
        yield wait(*threads)

    def replica_forward(self, index: int, iteration: int) -> Program:
        device, rows = self.devices[index], self.rows[index]
        yield from device.forward(rows, iteration, after=self.take(index), lock=self.gil)
        yield from device.outputs(rows)
        if self.strategy.loss_inside:
            yield from device.loss(rows, iteration)

    def gather(self, iteration: int) -> Program:
        """Every replica's outputs (or its one loss value) to the output device."""
        out, inside = self.strategy.output_device, self.strategy.loss_inside
        sizes = {index: 4 if inside else self.output_bytes(index) for index in self.used if index != out}
        if not inside:
            yield memory(out, "outputs", self.scenario.total_rows * self.scenario.model.output_bytes_per_sample)
        yield from self.copies("gather outputs", "gather", out, sizes, iteration, outward=False)

    def scatter_gradients(self, iteration: int) -> Program:
        """The backward of gather: the outputs' gradient back to the replicas."""
        out = self.strategy.output_device
        sizes = {index: self.output_bytes(index) for index in self.used if index != out}
        for index, nbytes in sizes.items():
            if nbytes:
                yield memory(index, "outputs", nbytes)
        yield from self.copies("scatter output gradients", "scatter", out, sizes, iteration, outward=True)

    def backward(self, iteration: int) -> Program:
        """One C++ thread a device; no GIL."""
        threads = []
        for index in self.used:
            threads.append((yield spawn(self.replica_backward(index, iteration), f"backward {index}", index,
                                        f"autograd thread {index}")))  # fmt: skip
        yield wait(*threads)

    def replica_backward(self, index: int, iteration: int) -> Program:
        factor = 1.0 + self.scenario.host.backward_contention * (len(self.used) - 1)
        new = bool(self.others) or not self.devices[0].holds
        for layer in reversed(self.scenario.model.layers):
            yield from self.devices[index].backward_layer(layer, self.rows[index], iteration, new_gradients=new,
                                                          host_factor=factor, after=self.take(index))  # fmt: skip

    def reduce(self, iteration: int) -> Program:
        """The backward of Broadcast: sums of all replicas' gradients on device 0. One node: after everything."""
        model, host = self.scenario.model, self.scenario.host
        if not self.others:
            return
        yield busy(host.reduce_tensor_s * len(model.unique_parameters) * len(self.used), "flatten gradients",
                   iteration=iteration, torch_function="comm.reduce_add_coalesced")  # fmt: skip
        for number, piece in enumerate(reduce_pieces(model.unique_parameters)):
            if piece.nbytes:
                yield from self.collect(piece, number, iteration)
        first = self.devices[0]
        last = []
        for index in self.used:
            freed = [("gradients", model.gradient_bytes)]
            freed.append(("replicas", model.parameter_bytes + model.buffer_bytes) if index else
                         ("gradients", model.parameter_bytes - (0 if first.holds else model.gradient_bytes)))  # fmt: skip
            last.append((yield launch(Work(self.devices[index].compute, "drop the replica", "copy",
                                           after=self.take(index), iteration=iteration,
                                           frees=[held for held in freed if held[1]]))))  # fmt: skip
        yield wait(*last)

    def collect(self, piece: Piece, number: int, iteration: int) -> Program:
        """One piece of gradients from every replica onto device 0."""
        name = f"reduce gradients, piece {number}"
        flat = [("flat_pieces", piece.nbytes)]
        kept = [*flat, ("gradients", piece.nbytes)]
        if self.strategy.transport == "peer_copy":
            sizes = dict.fromkeys(self.others, piece.nbytes)
            yield from self.copies(name, "reduce", 0, sizes, iteration, outward=False, holds=flat, keeps=kept[1:])
            return
        programs = self.communicator.reduce(self.engine, piece.nbytes, kind="reduce", members=self.used)
        for index in self.used:
            yield launch(Work(
                self.devices[index].compute, name, "reduce", program=programs[index], after=self.take(index),
                iteration=iteration, nbytes=piece.nbytes, allocates=flat if index else kept, frees=flat,
                torch_function="ReduceAddCoalesced.forward",
            ))  # fmt: skip

    # ---- streams

    def take(self, index: int) -> list[Handle]:
        """What the device's next work waits for; taken once."""
        taken, self.arrived[index] = self.arrived.get(index, []), []
        return taken

    def copies(self, name: str, kind: str, center: int, sizes: dict[int, int], iteration: int, *, outward: bool,
               holds: Iterable[tuple[str, int]] = (), keeps: Iterable[tuple[str, int]] = (),
               lands: str = "") -> Program:  # fmt: skip
        """Copies between one device and others, one at a time, on the centre's stream between stream barriers.

        The centre holds memory while they run and keeps some; what goes out lands in that category of the targets.
        """
        if not sizes:
            return
        build = fan_out if outward else fan_in
        program = build(self.engine, center, sizes, kind=kind, fraction=self.scenario.cluster.copy_fraction)
        marks = []
        for index in sizes:
            marks.append((yield launch(Work(self.devices[index].compute, f"reach {name}", "copy",
                                            after=self.take(index), iteration=iteration,
                                            allocates=((lands, sizes[index]),) if lands else ()))))  # fmt: skip
        copy = yield launch(Work(self.devices[center].compute, name, kind, program=program,
                                 after=[*marks, *self.take(center)], iteration=iteration, nbytes=sum(sizes.values()),
                                 allocates=(*holds, *keeps), frees=tuple(holds),
                                 torch_function="Scatter.forward" if outward else "Gather.forward"))  # fmt: skip
        for index in sizes:
            self.arrived[index].append(copy)
