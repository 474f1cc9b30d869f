"""DataParallel and DistributedDataParallel on the same machine with the same model, beside one device alone.

The single device runs the same step without a wrapper, once with one device's rows (the speed-up of a throughput)
and once with all rows (the speed-up of a fixed global batch).

Not modelled: nothing of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from simulator.errors import InputError, require
from simulator.metrics import BucketTime, Metrics, algbw, busbw
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario, SingleDevice, data_parallel_obstacle
from simulator.simulate import simulate
from simulator.trace import Trace


@dataclass(frozen=True, eq=False)
class Run:
    """One strategy: its scenario, trace and numbers."""

    scenario: Scenario
    trace: Trace

    @cached_property
    def metrics(self) -> Metrics:
        """The trace's numbers."""
        return Metrics(self.trace)

    @property
    def step_s(self) -> float:
        """Seconds of the simulated step."""
        return self.trace.end_s

    @property
    def samples_per_s(self) -> float:
        """Rows of all devices per second."""
        return self.scenario.total_rows / self.step_s if self.step_s else float("inf")

    @staticmethod
    def of(scenario: Scenario) -> "Run":
        """Simulate."""
        return Run(scenario, simulate(scenario))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs by strategy name; why a strategy cannot run here, by name."""

    base: Scenario
    single: Run
    runs: Mapping[str, Run]
    impossible: Mapping[str, str]

    @cached_property
    def single_whole_batch(self) -> Run:
        """One device with the whole global batch (whether or not it fits its memory)."""
        return Run.of(replace(self.single.scenario, batch_per_device=self.base.total_rows))

    def speedup(self, name: str) -> float:
        """Samples per second over one device at the same batch per device."""
        return self.runs[name].samples_per_s / self.single.samples_per_s

    def speedup_same_global_batch(self, name: str) -> float:
        """One device's time for all rows over this strategy's."""
        return self.single_whole_batch.step_s / self.runs[name].step_s

    def as_json(self) -> dict[str, Any]:
        """The contract of `compare --json`."""
        base = self.base
        strategies: dict[str, Any] = {name: self._strategy(name, run) for name, run in self.runs.items()}
        strategies.update({name: {"impossible": reason} for name, reason in self.impossible.items()})
        return {
            "model": base.model.name,
            "cluster": base.cluster.name,
            "world_size": base.world_size,
            "batch_per_device": self.single.scenario.batch_per_device,
            "global_batch": base.total_rows,
            "backend": base.backend.name,
            "iteration": base.iterations[0],
            "sources": {
                "model": base.model.source,
                "cluster": base.cluster.source,
                "backend": base.backend.source,
                "host": base.host.source,
            },
            "single_device": {"step_s": self.single.step_s, "samples_per_s": self.single.samples_per_s},
            "strategies": strategies,
        }

    def _strategy(self, name: str, run: Run) -> dict[str, Any]:
        metrics = run.metrics
        return {
            "step_s": run.step_s,
            "samples_per_s": run.samples_per_s,
            "rows_by_device": list(run.scenario.rows),
            "compute_s": metrics.compute_s,
            "comm_s": metrics.comm_s,
            "exposed_comm_s": metrics.exposed_comm_s,
            "overlap": metrics.overlap,
            "speedup": self.speedup(name),
            "speedup_same_global_batch": self.speedup_same_global_batch(name),
            "bytes_sent_by_device": metrics.bytes_by_device("sent"),
            "bytes_received_by_device": metrics.bytes_by_device("received"),
            "bytes_by_kind": metrics.bytes_by_kind,
            "bytes_by_link": {link.name: nbytes for link, nbytes in
                              zip(run.trace.links, metrics.bytes_by_link, strict=True)},
            "buckets": [_bucket(bucket, run.scenario.world_size) for bucket in metrics.buckets],
            "peak_memory_bytes_by_device": metrics.peak_memory_bytes,
            "context_bytes_by_device": metrics.context_bytes,
            "critical_path": [
                {"device": piece.device, "resource": piece.resource, "name": piece.name, "start_s": piece.start_s,
                 "end_s": piece.end_s}
                for piece in metrics.critical_path
            ],
            "unverified": list(run.trace.unverified),
        }  # fmt: skip


def _bucket(bucket: BucketTime, ranks: int) -> dict[str, Any]:
    found: dict[str, Any] = bucket._asdict()
    seconds = bucket.end_s - bucket.start_s
    if bucket.nbytes and seconds:
        found["algbw_bytes_per_s"] = algbw(bucket.nbytes, seconds)
        found["busbw_bytes_per_s"] = busbw(bucket.nbytes, seconds, ranks)
    return found


def compare(base: Scenario, strategies: tuple[DataParallel | DistributedDataParallel, ...] | None = None) -> Comparison:
    """Run the strategies (both, with torch's defaults, if none are given) on the base scenario's model and machine."""
    chosen = strategies or (DataParallel(), DistributedDataParallel())
    runs: dict[str, Run] = {}
    impossible: dict[str, str] = {}
    for strategy in chosen:
        obstacle = data_parallel_obstacle(base.cluster) if isinstance(strategy, DataParallel) else None
        if obstacle:
            impossible[strategy.name] = obstacle
        else:
            runs[strategy.name] = Run.of(replace(base, strategy=strategy))
    if not runs:
        raise InputError(f"{base.cluster.name}: no strategy can run here. Use DistributedDataParallel instead.")
    single = replace(base, strategy=SingleDevice(), cluster=base.cluster.take(1),
                     batch_per_device=-(-base.total_rows // base.world_size),
                     global_batch=None, speed=())  # fmt: skip
    alone = Run.of(single)
    require(alone.step_s > 0, f"model {base.model.name!r} takes 0 s on one device",
            "a speed-up needs a step that takes time", "Give its layers or its optimizer a cost")  # fmt: skip
    return Comparison(base, alone, runs, impossible)
