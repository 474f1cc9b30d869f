"""What all strategies do alike on one device: inputs, forward, loss, backward, optimizer, and the memory of each.

The host thread launches a layer's kernels (so many seconds, whatever the batch) and the compute stream runs them in
order; whichever is slower sets the pace. Activations are kept from a layer's forward until its backward has run;
gradients appear layer by layer in the backward and live until zero_grad at the start of the next iteration. An
iteration ends when the device has finished: the host waits for it, as `loss.item()` does in most loops.

Not modelled: the caching allocator's rounding and fragmentation; kernels' workspaces; activation checkpointing.
"""

from collections.abc import Sequence

from simulator.engine import Engine
from simulator.errors import require
from simulator.model import Layer
from simulator.scenario import Scenario
from simulator.verbs import Handle, Lock, Program, Stream, Work, busy, isend, launch, memory, wait


class Device:
    """One device in a run: its compute stream, its speed, and what lies in its memory from step to step."""

    def __init__(self, engine: Engine, scenario: Scenario, index: int, rank: int | None = None) -> None:
        self.engine = engine
        self.scenario = scenario
        self.index = index
        self.compute = Stream("compute", index, index if rank is None else rank)
        self.slowness = 1.0 / scenario.speed[index] if scenario.speed else 1.0
        self.gradients = 0
        """Bytes of the parameters' own gradients that are there."""
        self.holds = False
        """Whether they were there when the iteration began (set_to_none=False), so that the backward adds to them."""

    def copy_s(self, nbytes: int) -> float:
        """Seconds to read and write that many bytes once in the device's own memory."""
        return 2 * nbytes / self.scenario.host.device_memory_bytes_per_s

    # ---- pieces of a step, each a program to be run with `yield from`

    def reserve(self, *, trains: bool = True, gradients: bool = True) -> Program:
        """What lies in memory before the first step; `gradients`: whether they have memory of their own."""
        model, host = self.scenario.model, self.scenario.host
        state = self.scenario.optimizer.state_copies * model.gradient_bytes
        held = [("context", host.context_bytes)]
        if trains:
            held += [("parameters", model.parameter_bytes), ("buffers", model.buffer_bytes), ("optimizer_state", state)]
            if gradients and not self.scenario.set_to_none and self.scenario.iterations[0] > 0:
                self.gradients = model.gradient_bytes
                held.append(("gradients", self.gradients))
        for category, nbytes in held:
            if nbytes:
                yield memory(self.index, category, nbytes)

    def zero_grad(self) -> Program:
        """Drop the gradients of the step before, or fill them with zeros where they are (set_to_none=False)."""
        if self.gradients and self.scenario.set_to_none:
            yield memory(self.index, "gradients", -self.gradients)
            self.gradients = 0
        self.holds = self.gradients > 0

    def inputs(self, rows: int, iteration: int) -> Program:
        """The batch: there already, or copied from host memory, for which the host thread waits."""
        scenario = self.scenario
        nbytes = rows * scenario.model.input_bytes_per_sample
        yield memory(self.index, "inputs", nbytes)
        if scenario.inputs == "host" and nbytes:
            name = scenario.cluster.hosts[self.index] if scenario.cluster.hosts else ""
            require(bool(name), f"inputs 'host' on cluster {scenario.cluster.name}",
                    "it does not say where host memory is", "Use inputs 'device'")  # fmt: skip
            route = scenario.cluster.endpoint_route(name, scenario.cluster.devices[self.index].name)
            channel = self.engine.channel(-1, self.index, "input", route=route)

            def copy() -> Program:
                sent = yield isend(channel, nbytes)
                yield wait(sent)

            yield wait((yield launch(Work(self.compute, "copy inputs to the device", "input", program=copy(),
                                          iteration=iteration, nbytes=nbytes, torch_function="Tensor.cuda"))))  # fmt: skip

    def forward(self, rows: int, iteration: int, *, after: Sequence[Handle] = (), lock: Lock | None = None) -> Program:
        """All layers; under the lock if one is given. Returns the last work."""
        last: Work | None = None
        for layer in self.scenario.model.layers:
            yield busy(layer.forward_host_s, f"launch {layer.name}", lock=lock, iteration=iteration,
                       torch_function="Module.forward")  # fmt: skip
            kept = rows * layer.activation_bytes_per_sample
            last = yield launch(Work(self.compute, layer.name, "forward", layer.forward.at(rows) * self.slowness,
                                     after=() if last else after, iteration=iteration,
                                     allocates=(("activations", kept),) if kept else (),
                                     torch_function="Module.forward"))  # fmt: skip
        return last

    def outputs(self, rows: int) -> Program:
        """The outputs stay until the end of the iteration."""
        nbytes = rows * self.scenario.model.output_bytes_per_sample
        if nbytes:
            yield memory(self.index, "outputs", nbytes)

    def loss(self, rows: int, iteration: int) -> Program:
        """Loss and the gradient of the outputs, which is as large as the outputs."""
        seconds = self.scenario.model.loss.at(rows) * self.slowness
        nbytes = rows * self.scenario.model.output_bytes_per_sample
        return (yield launch(Work(self.compute, "loss", "loss", seconds, iteration=iteration,
                                  allocates=(("outputs", nbytes),) if nbytes else ())))  # fmt: skip

    def backward_layer(self, layer: Layer, rows: int, iteration: int, *, new_gradients: bool,
                       host_factor: float = 1.0, after: Sequence[Handle] = ()) -> Program:  # fmt: skip
        """One layer's backward; its activations go, and its gradients appear if they are new. Returns the work."""
        sizes = self.scenario.gradient_bytes_of
        nbytes = sum(sizes[name] for name in layer.parameters) if new_gradients else 0
        kept = rows * layer.activation_bytes_per_sample
        yield busy(layer.backward_host_s * host_factor, f"launch backward of {layer.name}", iteration=iteration,
                   torch_function="Engine::evaluate_function")  # fmt: skip
        return (yield launch(Work(self.compute, f"{layer.name} backward", "backward",
                                  layer.backward.at(rows) * self.slowness, after=after, iteration=iteration,
                                  allocates=(("gradients", nbytes),) if nbytes else (),
                                  frees=(("activations", kept),) if kept else (),
                                  torch_function="torch.autograd.backward")))  # fmt: skip

    def step(self, iteration: int) -> Program:
        """The optimizer, and the wait for the device at the end of the iteration."""
        scenario = self.scenario
        nbytes = scenario.optimizer.moved_copies * scenario.model.gradient_bytes
        if scenario.host.step_s:
            yield busy(scenario.host.step_s, "training loop", iteration=iteration)
        seconds = nbytes / scenario.host.device_memory_bytes_per_s * self.slowness
        last = yield launch(Work(self.compute, f"optimizer ({scenario.optimizer.name})", "optimizer", seconds,
                                 iteration=iteration, nbytes=nbytes, torch_function="Optimizer.step"))  # fmt: skip
        yield wait(last)

    def release(self, held: dict[str, int]) -> Program:
        """Drop what only this iteration needed."""
        for category, nbytes in held.items():
            if nbytes:
                yield memory(self.index, category, -nbytes)
