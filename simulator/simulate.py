"""Scenario in, Trace out.

Not modelled: nothing of its own; see the strategies.
"""

from simulator.collectives.communicator import Communicator
from simulator.data_parallel import NEVER_RUN, start_data_parallel
from simulator.distributed_data_parallel import start_distributed_data_parallel
from simulator.engine import Engine
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario
from simulator.single_device import start_single_device
from simulator.trace import Trace


def simulate(scenario: Scenario) -> Trace:
    """Run the scenario's iterations. Equal scenarios give equal traces."""
    engine = Engine(scenario.cluster, compute_slowdown=scenario.backend.compute_slowdown)
    communicator = Communicator(scenario.cluster, scenario.backend)
    strategy = scenario.strategy
    unverified: tuple[str, ...] = ()
    if isinstance(strategy, DataParallel):
        start_data_parallel(engine, scenario, communicator)
        if strategy.transport == "nccl" and scenario.world_size > 1:
            unverified = NEVER_RUN
    elif isinstance(strategy, DistributedDataParallel):
        start_distributed_data_parallel(engine, scenario, communicator)
    else:
        start_single_device(engine, scenario)
    return engine.run(provenance=_provenance(scenario), unverified=unverified)


def _provenance(scenario: Scenario) -> str:
    return (f"{scenario.strategy.name}, {scenario.model.name} on {scenario.cluster.name}, backend "
            f"{scenario.backend.name}, {scenario.total_rows} rows, iterations {scenario.iterations}")  # fmt: skip
