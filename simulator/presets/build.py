"""From names to a scenario: the one place where presets of model, machine, host and library are put together."""

from pathlib import Path

from simulator.cluster import Cluster
from simulator.codec import read_profile
from simulator.errors import unknown
from simulator.model import ModelProfile
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import host_for
from simulator.presets.models import load_model
from simulator.scenario import OPTIMIZERS, DistributedDataParallel, Scenario, Strategy


def build_scenario(model: str | ModelProfile, cluster: str | Cluster, *, devices: int | None = None,
                   strategy: Strategy | None = None, batch_per_device: int = 32, global_batch: int | None = None,
                   optimizer: str = "momentum", algorithm: str = "auto", serial: bool = False, inputs: str = "device",
                   iterations: tuple[int, ...] = (3,), precision: str = "fp32",
                   construction: bool = False, set_to_none: bool = True) -> Scenario:  # fmt: skip
    """A scenario of presets. Raises InputError, with the known names and the nearest, for an unknown name.

    `model` may also be a profile or the path of one (`*.json`), `cluster` a Cluster.
    """
    machine = load_cluster(cluster) if isinstance(cluster, str) else cluster
    if devices is not None:
        machine = machine.take(devices)
    if isinstance(model, ModelProfile):
        profile = model
    elif model.endswith(".json"):
        profile = read_profile(Path(model))
    else:
        profile = load_model(model, machine.devices[0].kind, precision=precision)
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    return Scenario(
        profile, machine, strategy or DistributedDataParallel(), backend_for(machine, algorithm=algorithm, serial=serial),
        batch_per_device, global_batch, OPTIMIZERS[optimizer], host_for(machine), inputs, iterations,
        set_to_none=set_to_none, construction=construction,
    )  # fmt: skip
