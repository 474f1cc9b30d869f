"""The simulated ring's chunks beside a real one's: the same chunk, with the same bits, in every step on every rank.

In each step exactly one chunk changes on a rank, and the rank sends that chunk in the step after; so what a rank sends,
step by step, and what it holds at the end is all that it ever holds. Floating point addition is not associative, but
the ring fixes its order (what came, plus one's own), so bits must be equal and not only numbers near each other. The
result also equals dist.all_reduce, whose order of additions is another one, to rounding: adding N numbers in any order
errs by at most (N - 1) eps times the sum of their magnitudes.

Not modelled: NaN payloads; int64 that overflows.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.collectives import ring
from simulator.engine import Engine
from simulator.presets.clusters import laptop
from simulator.validation.launch import Workers
from simulator.validation.records import RingCase, RingRecord
from simulator.validation.rows import Row, exact, rounding
from simulator.verbs import Actor

WORKER = "simulator.validation.ring_worker:run"
DTYPES = ("int64", "float32", "float64")
WORLD_SIZES = tuple(range(2, 9))


def cases(world_size: int) -> tuple[RingCase, ...]:
    """Fewer elements than ranks, one more than a multiple of them, and more; each dtype."""
    sizes = world_size - 1, 2 * world_size + 1, 1000 + world_size // 2
    return tuple(RingCase(dtype, elements) for dtype in DTYPES for elements in sizes)


def record(workers: Workers, world_size: int) -> tuple[list[RingRecord], ...]:
    """The real ring on that many ranks: for each rank a record of every case."""
    return workers.run(WORKER, cases(world_size), world_size=world_size)


@dataclass(frozen=True)
class Simulated:
    """What the simulator's ring did: (rank, step) -> (chunk, values); and what each rank holds at the end."""

    sends: dict[tuple[int, int], tuple[int, bytes]]
    results: tuple[bytes, ...]


def simulate_ring(own: Sequence[Any]) -> Simulated:
    """An all-reduce of one array a rank, each cut into N chunks, over the simulator's loopback."""
    n = len(own)
    engine = Engine(laptop(n, name="ring", source=""))
    element = own[0].itemsize
    sizes = ring.split(own[0].nbytes, n, element)
    cuts = np.cumsum([size // element for size in sizes])[:-1]
    values = [[(chunk,) for chunk in np.split(array, cuts)] for array in own]
    programs = ring.ring_all_reduce(engine, range(n), sizes, values=values)
    actors: list[Actor] = [
        engine.start(program, name=f"rank {rank}", rank=rank, device=rank, resource="host")
        for rank, program in enumerate(programs)
    ]
    trace = engine.run()
    steps = [0] * n
    sends = {}
    for transfer in trace.transfers:
        rank = transfer.source
        assert transfer.chunk is not None
        sends[rank, steps[rank]] = transfer.chunk, transfer.values[0].tobytes()
        steps[rank] += 1
    return Simulated(sends, tuple(b"".join(chunk[0].tobytes() for chunk in actor.result) for actor in actors))


def compare(records: Sequence[Sequence[RingRecord]]) -> list[Row]:
    """One row for the bits of all sends and results, and one that the result is dist.all_reduce's."""
    n = len(records)
    simulated: dict[str, object] = {}
    measured: dict[str, object] = {}
    errors: dict[str, float] = {}
    for ranks in zip(*records, strict=True):
        case = ranks[0].case
        own = [np.frombuffer(rank.own, case.dtype) for rank in ranks]
        _collect(simulated, simulate_ring(own), case)
        _collect(measured, _measured(ranks), case)
        errors |= _rounding_errors(own, ranks)
    return [exact(f"ring of {n}: bits of every send", simulated, measured, "chunks"),
            rounding(f"ring of {n}: result and all_reduce", errors, "tensors")]  # fmt: skip


def _measured(ranks: Sequence[RingRecord]) -> Simulated:
    sends = {(rank, number): (step.sent_chunk, step.sent)
             for rank, record in enumerate(ranks) for number, step in enumerate(record.steps)}  # fmt: skip
    return Simulated(sends, tuple(record.result for record in ranks))


def _collect(into: dict[str, object], found: Simulated, case: RingCase) -> None:
    where = f"{case.dtype}, {case.elements} elements"
    for (rank, step), (chunk, content) in found.sends.items():
        into[f"{where}, rank {rank}, step {step}"] = _Value(chunk, content, case.dtype)
    for rank, content in enumerate(found.results):
        into[f"{where}, rank {rank}, result"] = _Value(-1, content, case.dtype)


@dataclass(frozen=True)
class _Value:
    """A chunk's number and bits; prints as numbers."""

    chunk: int
    content: bytes
    dtype: str

    def __str__(self) -> str:
        text = np.array2string(np.frombuffer(self.content, self.dtype), threshold=4)
        return f"chunk {self.chunk} {text}" if self.chunk >= 0 else text


def _rounding_errors(own: Sequence[Any], ranks: Sequence[RingRecord]) -> dict[str, float]:
    """For each rank the greatest difference from dist.all_reduce, in units of what rounding may do."""
    dtype = own[0].dtype
    magnitude = np.sum([np.abs(array).astype("float64") for array in own], axis=0)
    eps = np.finfo(dtype).eps if dtype.kind == "f" else 0.0
    allowed = 2 * (len(own) - 1) * eps * magnitude
    errors = {}
    for rank, record in enumerate(ranks):
        mine, theirs = (np.frombuffer(content, dtype) for content in (record.result, record.all_reduce))
        difference = np.abs(mine.astype("float64") - theirs.astype("float64"))
        over = np.where(difference > 0, difference / np.where(allowed > 0, allowed, 1e-300), 0.0)
        errors[f"{dtype.name}, {record.case.elements} elements, rank {rank}"] = float(over.max(initial=0.0))
    return errors
