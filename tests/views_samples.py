"""Small hand-made traces, and simulated ones of both strategies, for the tests of the views."""

from functools import cache
from typing import Any

from simulator.backend import nccl
from simulator.presets.clusters import load_cluster
from simulator.scenario import DataParallel, DistributedDataParallel, Host, Scenario
from simulator.simulate import simulate
from simulator.trace import Trace
from tests.samples import preset

HOST = Host(replicate_copy_s=20e-6, reduce_tensor_s=2e-6, context_bytes=500 << 20)
STRATEGIES = {
    "DataParallel": DataParallel(),
    "peer_copy": DataParallel("peer_copy"),
    "DDP": DistributedDataParallel(),
}


def span(number: int, kind: str, start_s: float, end_s: float | None, *, device: int = 0, resource: str = "compute",
         rank: int | None = None, **more: Any) -> tuple[Any, ...]:  # fmt: skip
    """One raw span; the rest of its fields may be given by name."""
    fields = {"name": kind, "iteration": 0, "bucket": None, "group": None, "seq": None, "nbytes": None, "cause": None,
              "torch_function": "", **more}  # fmt: skip
    return (number, fields["name"], kind, device if rank is None else rank, device, resource, start_s, end_s,
            fields["iteration"], fields["bucket"], fields["group"], fields["seq"], fields["nbytes"], fields["cause"],
            fields["torch_function"], 0, None)  # fmt: skip


def hand_made() -> Trace:
    """Two devices, 10 ms: forward 0-2, backward 2-6, bucket 0's all-reduce 4-8, optimizer 9-10; the host 0-3."""
    spans = []
    for device in (0, 1):
        first = 10 * device
        spans += [
            span(first + 1, "host", 0.0, 0.003, device=device, resource="host", name="launch"),
            span(first + 2, "forward", 0.0, 0.002, device=device),
            span(first + 3, "backward", 0.002, 0.006, device=device, cause=first + 2),
            span(first + 4, "all_reduce", 0.004, 0.008, device=device, resource="communication", bucket=0),
            span(first + 5, "copy", 0.009, 0.009, device=device, cause=first + 4),
            span(first + 6, "optimizer", 0.009, 0.01, device=device, cause=first + 5),
        ]
    memory = [(0.0, 0, "context", 400), (0.0, 0, "parameters", 100), (0.002, 0, "activations", 300),
              (0.004, 0, "gradients", 100), (0.006, 0, "activations", -300)]  # fmt: skip
    return Trace(("gpu0", "gpu1"), raw_spans=spans, raw_memory=memory, end_s=0.01)


@cache
def scenario(name: str, cluster: str = "8xV100-pcie", iterations: tuple[int, ...] = (3,),
             speed: tuple[float, ...] = ()) -> Scenario:  # fmt: skip
    """ResNet-50 with even layers."""
    return Scenario(preset("resnet50", 0.036, host_s=50e-6), load_cluster(cluster), STRATEGIES[name], nccl(0.9),
                    host=HOST, iterations=iterations, speed=speed)  # fmt: skip


@cache
def simulated(name: str, cluster: str = "8xV100-pcie", iterations: tuple[int, ...] = (3,),
              speed: tuple[float, ...] = ()) -> Trace:  # fmt: skip
    """The trace of that scenario."""
    return simulate(scenario(name, cluster, iterations, speed))
