"""Numbers of a trace. Everything shown is computed here, from the one event log.

- communication of a device: the union of its communication spans and of the transfers that it sends or receives;
- exposed: communicates, or waits for a transfer, and computes nothing;
- overlap, as HolisticTraceAnalysis defines it: the part of the communication during which the device computes;
- algbw = bytes / time, busbw = algbw x 2 (N-1)/N for an all-reduce, as nccl-tests prints them.

Not modelled: nothing is simulated here.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simulator.critical_path import Piece, critical_path, seconds_by_cause, walk_back
from simulator.intervals import Interval, difference, length, union
from simulator.trace import COMMUNICATION, COMPUTE, Trace


class BucketTime(NamedTuple):
    """When one bucket was all-reduced; waiting for the slowest rank counts."""

    bucket: int
    nbytes: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Metrics:
    """The numbers of one trace."""

    trace: Trace

    @property
    def step_s(self) -> float:
        """Seconds from the start to the end of the last work."""
        return self.trace.end_s

    @cached_property
    def compute_intervals(self) -> list[list[Interval]]:
        """For each device, when it computes."""
        found: list[list[Interval]] = [[] for _ in self.trace.devices]
        for span in self.trace.spans:
            if span.kind in COMPUTE and span.end_s is not None:
                found[span.device].append((span.start_s, span.end_s))
        return [union(intervals) for intervals in found]

    @cached_property
    def communication_intervals(self) -> list[list[Interval]]:
        """For each device, when it communicates: its spans, and transfers that no span of its own covers."""
        found: list[list[Interval]] = [[] for _ in self.trace.devices]
        collectives: dict[int, tuple[str, int | None]] = {}
        takes_part: set[tuple[int, tuple[str, int | None]]] = set()
        for span in self.trace.spans:
            if span.kind in COMMUNICATION and span.end_s is not None:
                found[span.device].append((span.start_s, span.end_s))
                collectives[span.id] = called = span.name, span.iteration
                takes_part.add((span.device, called))
        for transfer in self.trace.transfers:
            if transfer.end_s is not None:
                called = collectives.get(transfer.span or 0, ("", None))
                for device in (transfer.source, transfer.target):
                    if device >= 0 and (device, called) not in takes_part:
                        found[device].append((transfer.issue_s, transfer.end_s))
        return [union(intervals) for intervals in found]

    @cached_property
    def busiest_device(self) -> int:
        """The device that communicates longest; the first of equals."""
        lengths = [length(intervals) for intervals in self.communication_intervals]
        return lengths.index(max(lengths))

    @property
    def compute_s(self) -> float:
        """Seconds in which the device that computes longest computes."""
        return max(length(intervals) for intervals in self.compute_intervals)

    @property
    def comm_s(self) -> float:
        """Seconds of communication on the busiest device."""
        return length(self.communication_intervals[self.busiest_device])

    def waits_for_transfers(self, device: int) -> list[Interval]:
        """When the device computes nothing because a transfer, its own or another's, has yet to end."""
        busy_until = 0.0
        found: list[Interval] = []
        for span in self.trace.spans:
            if span.device == device and span.kind in COMPUTE and span.end_s is not None:
                if span.start_s > busy_until:
                    found += [(max(piece.start_s, busy_until), piece.end_s)
                              for piece in walk_back(self.trace, span.cause, busy_until)
                              if piece.kind in COMMUNICATION]  # fmt: skip
                busy_until = max(busy_until, span.end_s)
        return union(found)

    @cached_property
    def exposed_comm_s(self) -> float:
        """Seconds in which the busiest device communicates or waits for it, and computes nothing."""
        device = self.busiest_device
        times = [*self.communication_intervals[device], *self.waits_for_transfers(device)]
        return length(difference(times, self.compute_intervals[device]))

    @property
    def device_seconds(self) -> dict[str, float]:
        """The step on the busiest device: it computes, else communicates or waits for that, else waits for a host.

        The three sum up to the step.
        """
        compute = length(self.compute_intervals[self.busiest_device])
        return {"compute": compute, "link": self.exposed_comm_s, "host": self.step_s - compute - self.exposed_comm_s}

    @property
    def overlap(self) -> float:
        """Part of the busiest device's communication during which it computes; 0 without communication."""
        device = self.busiest_device
        total = self.comm_s
        hidden = total - length(difference(self.communication_intervals[device], self.compute_intervals[device]))
        return hidden / total if total else 0.0

    @cached_property
    def bytes_by_kind(self) -> dict[str, dict[str, list[int]]]:
        """For each kind of traffic the bytes that each device sent and received."""
        found: dict[str, dict[str, list[int]]] = {}
        for transfer in self.trace.transfers:
            if transfer.end_s is None:
                continue
            entry = found.setdefault(transfer.kind, {"sent": [0] * len(self.trace.devices),
                                                     "received": [0] * len(self.trace.devices)})  # fmt: skip
            if transfer.source >= 0:
                entry["sent"][transfer.source] += transfer.nbytes
            if transfer.target >= 0:
                entry["received"][transfer.target] += transfer.nbytes
        return found

    def bytes_by_device(self, direction: str) -> list[int]:
        """All bytes `sent` or `received`, in device order."""
        columns = [entry[direction] for entry in self.bytes_by_kind.values()]
        return [sum(column[device] for column in columns) for device in range(len(self.trace.devices))]

    @cached_property
    def bytes_by_link(self) -> list[int]:
        """Bytes over each link of the trace."""
        found = [0] * len(self.trace.links)
        for transfer in self.trace.transfers:
            if transfer.end_s is not None:
                for link in transfer.route:
                    found[link] += transfer.nbytes
        return found

    @cached_property
    def buckets(self) -> list["BucketTime"]:
        """Each bucket's all-reduce, from the first rank that begins to the last that ends, in launch order."""
        found: dict[int, BucketTime] = {}
        for span in self.trace.spans:
            if span.kind == "all_reduce" and span.bucket is not None and span.end_s is not None:
                known = found.get(span.bucket, BucketTime(span.bucket, span.nbytes or 0, span.start_s, span.end_s))
                found[span.bucket] = known._replace(start_s=min(known.start_s, span.start_s),
                                                    end_s=max(known.end_s, span.end_s))  # fmt: skip
        return [found[index] for index in sorted(found)]

    @cached_property
    def peak_memory(self) -> list[dict[str, int]]:
        """For each device the bytes by category at its fullest moment, the context not counted towards it."""
        now: list[dict[str, int]] = [{} for _ in self.trace.devices]
        total = [0] * len(self.trace.devices)
        most = [-1] * len(self.trace.devices)
        peak: list[dict[str, int]] = [{} for _ in self.trace.devices]
        for change in self.trace.memory:
            held = now[change.device]
            held[change.category] = held.get(change.category, 0) + change.nbytes
            if change.category == "context":
                continue
            total[change.device] += change.nbytes
            if total[change.device] > most[change.device]:
                most[change.device] = total[change.device]
                peak[change.device] = dict(held)
        return peak

    @property
    def peak_memory_bytes(self) -> list[int]:
        """What torch.cuda.max_memory_allocated would print for each device."""
        return [sum(nbytes for category, nbytes in held.items() if category != "context") for held in self.peak_memory]

    @property
    def context_bytes(self) -> list[int]:
        """What nvidia-smi shows on top."""
        return [held.get("context", 0) for held in self.peak_memory]

    @cached_property
    def critical_path(self) -> list[Piece]:
        """What the step waits for."""
        return critical_path(self.trace)

    @cached_property
    def critical_seconds(self) -> dict[str, float]:
        """The critical path by compute, communication and host."""
        return seconds_by_cause(self.critical_path)


def algbw(nbytes: int, seconds: float) -> float:
    """Bytes per second as nccl-tests' algbw."""
    return nbytes / seconds


def busbw(nbytes: int, seconds: float, ranks: int) -> float:
    """nccl-tests' bus bandwidth of an all-reduce: what each link would carry if it were a ring."""
    return algbw(nbytes, seconds) * 2 * (ranks - 1) / ranks
