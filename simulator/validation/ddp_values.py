"""Real DDP runs beside simulated ones: buckets, collectives and gradients, item by item.

    buckets        what the Reducer handed to a communication hook, iteration by iteration, and what it logged
    collectives    kind, bytes and order of all that reached the process group, from the constructor on
    gradients      the simulator's mean: every rank's own gradient times 1/N, summed by the simulated ring
    parameters     the same bits on every rank after the constructor and after each step

Of two numbers the sum has one order, so with two ranks the gradients' bits are equal. gloo's ring adds three or more in
another order than ours: they are then equal to rounding, N eps times the sum of the magnitudes.

Not modelled: gradients of half precision on more than two ranks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from simulator.backend import gloo
from simulator.buckets import MIB, NEWEST_TORCH, OLDEST_TORCH, Bucket, BucketOptions, buckets_at
from simulator.model import Cost
from simulator.presets.clusters import laptop
from simulator.presets.facts import ModelFacts, from_json
from simulator.scenario import DistributedDataParallel, Scenario
from simulator.simulate import simulate
from simulator.trace import COMMUNICATION, Span, Trace
from simulator.validation.launch import Workers
from simulator.validation.records import DdpCase, DdpRecord
from simulator.validation.ring_values import simulate_ring
from simulator.validation.rows import Row, exact, rounding

WORKER = "simulator.validation.ddp_worker:run"
SMALL = ("bucket_cap_mb", 1600 / MIB)
CASES = (
    DdpCase("default", "linears"),
    DdpCase("small buckets", "linears", (SMALL,)),
    DdpCase("every tensor alone", "linears", (("bucket_cap_mb", 0),)),
    DdpCase("bucket views", "linears", (SMALL, ("gradient_as_bucket_view", True))),
    DdpCase("buffers", "convolutions", (SMALL,)),
    DdpCase("buffers not synced", "convolutions", (SMALL, ("forward_sync_buffers", False))),
    DdpCase("two dtypes", "two dtypes", (SMALL,)),
    DdpCase("tied weights", "tied", (SMALL,)),
    DdpCase("frozen weights", "frozen", (SMALL,)),
    DdpCase("find_unused_parameters", "unused", (("bucket_cap_mb", 500 / MIB), ("find_unused_parameters", True))),
    DdpCase("static_graph", "unused", (("bucket_cap_mb", 500 / MIB), ("static_graph", True))),
    DdpCase("static_graph, buffers", "convolutions", (SMALL, ("static_graph", True))),
    DdpCase("three ranks", "convolutions", (SMALL,), world_size=3),
    DdpCase("four ranks", "linears", (SMALL,), world_size=4),
)
QUICK_CASES = tuple(case for case in CASES if case.name in ("small buckets", "buffers", "find_unused_parameters",
                                                            "static_graph", "three ranks"))  # fmt: skip


def record(workers: Workers, case: DdpCase) -> tuple[DdpRecord, ...]:
    """The case on real ranks."""
    return workers.run(WORKER, case, world_size=case.world_size)


def known_version(torch_version: str) -> str:
    """The release whose bucket rule holds for that torch: its own, or the nearest that is known."""
    release = tuple(int(part) for part in torch_version.split(".")[:2])
    major, minor = min(max(release, OLDEST_TORCH), NEWEST_TORCH)
    return f"{major}.{minor}"


@dataclass(frozen=True)
class Prediction:
    """What the simulator says of a case."""

    case: DdpCase
    facts: ModelFacts
    torch_version: str

    @staticmethod
    def of(case: DdpCase, record: DdpRecord) -> "Prediction":
        """From the module's facts alone."""
        return Prediction(case, from_json(record.facts, case.name), known_version(record.torch_version))

    @cached_property
    def options(self) -> BucketOptions:
        """The case's options of buckets, under the installed torch's rule."""
        given = dict(self.case.ddp)
        return BucketOptions(given.get("bucket_cap_mb"), find_unused_parameters=given.get("find_unused_parameters", False),
                             static_graph=given.get("static_graph", False), torch_version=self.torch_version)  # fmt: skip

    def buckets(self, iteration: int) -> tuple[Bucket, ...]:
        """In launch order."""
        return buckets_at(self.facts.parameters, self.facts.ready_order, self.options, iteration)

    @cached_property
    def trace(self) -> Trace:
        """The constructor and all iterations; nothing computes, so only the order and the bytes say something."""
        given, count = dict(self.case.ddp), len(self.facts.layers)
        strategy = DistributedDataParallel(self.options, given.get("gradient_as_bucket_view", False),
                                           given.get("forward_sync_buffers", True))  # fmt: skip
        profile = self.facts.profile([Cost()] * count, [Cost()] * count, device="CPU")
        return simulate(Scenario(
            profile, laptop(self.case.world_size, name="ranks", source=""), strategy, gloo(), batch_per_device=6,
            iterations=tuple(range(self.case.iterations)), construction=True,
        ))  # fmt: skip

    def calls(self, rank: int) -> list[list[tuple[str, int]]]:
        """Of the constructor and of each iteration: kind and bytes of each collective, in order."""
        found: list[list[tuple[str, int]]] = [[] for _ in range(1 + self.case.iterations)]
        for span in self._collectives(rank):
            assert span.nbytes is not None
            found[0 if span.iteration is None else 1 + span.iteration].append((kind_of(span), span.nbytes))
        return found

    def _collectives(self, rank: int) -> list[Span]:
        spans = (span for span in self.trace.spans if span.rank == rank and span.kind in COMMUNICATION)
        return sorted(spans, key=lambda span: -1 if span.seq is None else span.seq)

    def launched(self, rank: int, iteration: int) -> list[int]:
        """Bytes of the buckets in the order in which the simulated rank launched them."""
        return [span.nbytes or 0 for span in self._collectives(rank)
                if span.iteration == iteration and span.bucket is not None]  # fmt: skip


def kind_of(span: Span) -> str:
    """The collective's name in torch. The traces have no colour for all_gather and count it as a broadcast."""
    return "all_gather" if span.name.endswith("number of parameters") else span.kind


def compare(case: DdpCase, records: Sequence[DdpRecord]) -> list[Row]:
    """The case's rows."""
    prediction = Prediction.of(case, records[0])
    return [_buckets(prediction, records), _collectives(prediction, records), _gradients(prediction, records),
            _parameters(case, records)]  # fmt: skip


def _buckets(prediction: Prediction, records: Sequence[DdpRecord]) -> Row:
    case = prediction.case
    simulated: dict[str, object] = {}
    measured: dict[str, object] = {}
    for rank, record in enumerate(records):
        for iteration, launches in enumerate(record.launches):
            # A static graph's first reduction comes after the backward, and tells every hook that its index is 0.
            delayed = prediction.options.static_graph and iteration == 0
            for number, bucket in enumerate(prediction.buckets(iteration)):
                label = f"rank {rank}, iteration {iteration}, launch {number}"
                simulated[label] = (0 if delayed else bucket.index, bucket.dtype, bucket.nbytes, bucket.parameters)
            for number, launch in enumerate(launches):
                label = f"rank {rank}, iteration {iteration}, launch {number}"
                measured[label] = (launch.index, launch.dtype, launch.nbytes, launch.parameters)
            label = f"rank {rank}, iteration {iteration}, bytes launched"
            simulated[label] = prediction.launched(rank, iteration)
            measured[label] = [launch.nbytes for launch in launches]
        for name, iteration in (("bucket_sizes", 0), ("rebuilt_bucket_sizes", case.iterations - 1)):
            if name in record.logged:
                sizes = [bucket.nbytes for bucket in prediction.buckets(iteration)]
                simulated[f"rank {rank}, logged {name}"] = sizes
                measured[f"rank {rank}, logged {name}"] = [int(size) for size in record.logged[name].split(",")]
    return exact(f"DDP, {case.name}: buckets", simulated, measured, "facts")


def _collectives(prediction: Prediction, records: Sequence[DdpRecord]) -> Row:
    def labelled(found: Iterable[tuple[int, list[list[tuple[str, int]]]]]) -> Mapping[str, object]:
        return {f"rank {rank}, {'constructor' if part == 0 else f'iteration {part - 1}'}, call {number}": call
                for rank, calls in found for part, of_part in enumerate(calls)
                for number, call in enumerate(of_part)}  # fmt: skip

    ranks = range(len(records))
    return exact(f"DDP, {prediction.case.name}: collectives", labelled((rank, prediction.calls(rank)) for rank in ranks),
                 labelled(zip(ranks, (record.calls for record in records))), "calls")  # fmt: skip


def share(gradient: Any, world_size: int) -> Any:
    """What a rank puts into the bucket: its gradient times 1/N, before the sum and not after it."""
    return gradient * gradient.dtype.type(1.0 / world_size)


def simulated_mean(own: Sequence[Mapping[str, bytes]], bucket: Bucket) -> bytes:
    """The bucket after the simulated ring has summed what the ranks put in."""
    n, dtype = len(own), np.dtype(bucket.dtype)

    def flat(gradients: Mapping[str, bytes]) -> Any:
        parts = [np.frombuffer(gradients[name], dtype) for name in bucket.parameters]
        return share(np.concatenate(parts), n)

    return simulate_ring([flat(gradients) for gradients in own]).results[0]


def _gradients(prediction: Prediction, records: Sequence[DdpRecord]) -> Row:
    """Every gradient on every rank, iteration by iteration."""
    case, n = prediction.case, len(records)
    simulated: dict[str, object] = {}
    measured: dict[str, object] = {}
    errors: dict[str, float] = {}
    sizes = {parameter.name: parameter.nbytes for parameter in prediction.facts.parameters}
    for iteration in range(case.iterations):
        own = [record.own[iteration] for record in records]
        for bucket in prediction.buckets(iteration):
            filled = [{name: g[name] or bytes(sizes[name]) for name in bucket.parameters} for g in own]
            mean, place = simulated_mean(filled, bucket), 0
            magnitude = sum(
                np.abs(np.frombuffer(b"".join(f.values()), bucket.dtype).astype("float64")) / n for f in filled
            )
            for name in bucket.parameters:
                piece = slice(place, place + sizes[name])
                place += sizes[name]
                for rank, record in enumerate(records):
                    found = record.reduced[iteration][name]
                    if found is None and all(gradients[name] is None for gradients in own):
                        continue  # used nowhere: torch leaves the gradient alone
                    label = f"iteration {iteration}, rank {rank}, {name}"
                    ours, theirs = (np.frombuffer(content or b"", bucket.dtype) for content in (mean[piece], found))
                    simulated[label], measured[label] = _Numbers.of(ours), _Numbers.of(theirs)
                    errors[label] = _in_roundings(ours, theirs, magnitude, piece, n)
    title = f"DDP, {case.name}: gradients"
    return exact(title, simulated, measured, "tensors") if n == 2 else rounding(title, errors, "tensors")


def _in_roundings(ours: Any, theirs: Any, magnitude: Any, piece: slice, n: int) -> float:
    """The greatest difference in units of N eps times the sum of the magnitudes."""
    if ours.shape != theirs.shape:
        return float("inf")
    allowed = n * np.finfo(ours.dtype).eps * magnitude[piece.start // ours.itemsize : piece.stop // ours.itemsize]
    difference = np.abs(ours.astype("float64") - theirs.astype("float64"))
    return float(np.max(np.where(difference > 0, difference / np.maximum(allowed, 1e-300), 0.0), initial=0.0))


@dataclass(frozen=True)
class _Numbers:
    """Bits that print as numbers."""

    content: bytes
    text: str

    @staticmethod
    def of(array: Any) -> "_Numbers":
        return _Numbers(array.tobytes(), np.array2string(array, threshold=4))

    def __str__(self) -> str:
        return self.text


def _parameters(case: DdpCase, records: Sequence[DdpRecord]) -> Row:
    """One digest for all ranks."""
    moments = ["the constructor", *(f"step {iteration}" for iteration in range(case.iterations))]
    versions = {f"versions after {moment}": len({record.parameters[number] for record in records})
                for number, moment in enumerate(moments)}  # fmt: skip
    return exact(f"DDP, {case.name}: parameters alike", dict.fromkeys(versions, 1), versions, "moments")
