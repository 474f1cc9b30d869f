"""A trace as JSON in the layout that torch.profiler exports: Perfetto opens it, HolisticTraceAnalysis reads it.

A device is a process whose threads are its streams, as in Kineto's files; a rank is a process whose threads are its
host threads. Work on a stream is a "kernel" (collectives under NCCL's kernel names) or a "gpu_memcpy", with `stream`,
`device` and `correlation`; a host span is a "cpu_op" that holds a "cuda_runtime" slice for everything it launched;
"ac2g" arrows lead from launch to work, "cause" arrows from what ended last to what waited for it on another track.
Times are in microseconds to the nanosecond, so that slices on a track nest after rounding. Work that takes no time is
left out and its cause handed on.

One file of all ranks is for Perfetto, and shows transfers too. HolisticTraceAnalysis wants a file per rank (`rank=`),
all in one folder. Checked with its version 0.5.0 on ResNet-50 and 8 devices, HTA_DISABLE_NS_ROUNDING=1 (else it rounds
to whole microseconds, and prints 0.6 % less here): its overlap of each rank is that of `overlap_fraction` in every digit
that it prints, DistributedDataParallel's and DataParallel's. Its breakdowns of time, of kernels and of idle time and its
queue lengths run as well. It takes all streams of one number for one device, so the idle times of DataParallel's single
file mean nothing, as with real ones; its straggler view knows only NCCL's kernel names of before 2.19. Peer copies count
there as memory, not as communication.

Not modelled: the several kernels of a layer; NCCL's algorithm and protocol in a kernel's name; stream events.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from simulator.errors import InputError, require
from simulator.intervals import difference, length
from simulator.scenario import Scenario
from simulator.trace import Trace
from simulator.views.chrome_events import NEXT_TRACE, EventWriter
from simulator.views.save import cannot_write, check_target


class RunLike(Protocol):
    """A trace and what it is of."""

    @property
    def scenario(self) -> Scenario: ...
    @property
    def trace(self) -> Trace: ...


class ComparisonLike(Protocol):
    """Runs by name."""

    @property
    def runs(self) -> Mapping[str, RunLike]: ...


def chrome_trace(trace: Trace, scenario: Scenario | None = None, *, rank: int | None = None,
                 transfers: bool = True) -> dict[str, Any]:  # fmt: skip
    """The whole trace, or one rank's part of it. Raises InputError for a rank that the trace does not have.

    With the scenario, kernels carry the data type and the file the backend's name.
    """
    ranks = sorted({span.rank for span in trace.spans})
    require(rank is None or rank in ranks, f"rank {rank}", f"the trace has ranks {ranks}", "Use one of them")
    export = EventWriter(trace, scenario, ranks if rank is None else [rank])
    export.write(transfers and rank is None)
    return {**_head(trace, scenario, ranks, rank or 0), "traceEvents": export.events}


def write_chrome_trace(trace: Trace, path: str | Path, scenario: Scenario | None = None, *,
                       rank: int | None = None) -> None:  # fmt: skip
    """Write `chrome_trace` as *.json or *.json.gz. Raises InputError for another ending."""
    _write(chrome_trace(trace, scenario, rank=rank), Path(path))


def write_comparison(comparison: ComparisonLike, path: str | Path) -> None:
    """All runs of a comparison in one file, one below the other. Raises InputError for another ending."""
    whole: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    for number, (name, run) in enumerate(comparison.runs.items()):
        ranks = sorted({span.rank for span in run.trace.spans})
        export = EventWriter(run.trace, run.scenario, ranks, number * NEXT_TRACE, f"{name}: ")
        export.write(True)
        events += export.events
        whole = whole or _head(run.trace, run.scenario, ranks, 0)
    _write({**whole, "traceEvents": events}, Path(path))


def overlap_fraction(trace: Trace, rank: int) -> float | None:
    """HolisticTraceAnalysis' overlap for one rank: time computing while communicating over time communicating.

    Communication is what has an NCCL kernel's name; None if there is none.
    """
    export = EventWriter(trace, None, [rank])
    communicates: list[tuple[float, float]] = []
    computes: list[tuple[float, float]] = []
    for span in export.streams:
        name, end = export.name(span), span.end_s
        if end is not None and not name.startswith("Memcpy"):
            (communicates if name.startswith("nccl") else computes).append((span.start_s, end))
    total = length(communicates)
    return 1 - length(difference(communicates, computes)) / total if total else None


def _head(trace: Trace, scenario: Scenario | None, ranks: list[int], rank: int) -> dict[str, Any]:
    """What stands before the events. HolisticTraceAnalysis finds `"rank": N` here, so it comes first."""
    backend = scenario.backend.name if scenario else "nccl"
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": f"cuda:{backend}", "ranks": ranks,
             "pg_size": len(ranks)}  # fmt: skip
    devices = scenario.cluster.devices if scenario else ()
    return {
        "schemaVersion": 1,
        "distributedInfo": {"backend": backend, "rank": rank, "world_size": len(ranks), "pg_count": 1,
                            "pg_config": [group]},
        "deviceProperties": [{"id": index, "name": device.kind, "totalGlobalMem": device.memory_bytes}
                             for index, device in enumerate(devices)],
        "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "source": trace.source, "provenance": trace.provenance,
        "unverified": list(trace.unverified), "outcome": trace.outcome,
    }  # fmt: skip


def check_trace_file(path: str | Path) -> Path:
    """The path, if a Chrome trace can be written there, before it takes time to make one. Raises InputError."""
    target = check_target(path)
    if not target.name.endswith((".json", ".json.gz")):
        raise InputError(f"{target.name}: a Chrome trace is written as .json or .json.gz. Change the ending.")
    return target


def _write(data: dict[str, Any], path: Path) -> None:
    target = check_trace_file(path)
    text = json.dumps(data, allow_nan=False)
    try:
        target.write_bytes(gzip.compress(text.encode(), mtime=0) if target.suffix == ".gz" else text.encode())
    except OSError as problem:
        raise cannot_write(target, problem) from None
