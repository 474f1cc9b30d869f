"""One device, no wrapper: the same step without any communication. What speed-ups are measured against.

Not modelled: nothing beyond `simulator.training`.
"""

from simulator.engine import Engine
from simulator.scenario import Scenario
from simulator.training import Device
from simulator.verbs import Program


def start_single_device(engine: Engine, scenario: Scenario) -> None:
    """Start the program on device 0."""
    device = Device(engine, scenario, 0)
    engine.start(_train(scenario, device), name="train", rank=0, device=0, resource="host")


def _train(scenario: Scenario, device: Device) -> Program:
    yield from device.reserve()
    for iteration in scenario.iterations:
        yield from single_device_iteration(scenario, device, iteration)


def single_device_iteration(scenario: Scenario, device: Device, iteration: int) -> Program:
    """One step on one device."""
    model, rows = scenario.model, scenario.rows[device.index]
    yield from device.zero_grad()
    yield from device.inputs(rows, iteration)
    yield from device.forward(rows, iteration)
    yield from device.outputs(rows)
    yield from device.loss(rows, iteration)
    for layer in reversed(model.layers):
        yield from device.backward_layer(layer, rows, iteration, new_gradients=not device.holds)
    device.gradients = model.gradient_bytes
    yield from device.step(iteration)
    yield from device.release({"inputs": rows * model.input_bytes_per_sample,
                               "outputs": 2 * rows * model.output_bytes_per_sample})  # fmt: skip
