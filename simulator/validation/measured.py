"""A measured run as a Trace, so that every view that shows a simulated run shows this one.

What a rank did lies between the moments that its hooks noted: a layer's forward from its own begin to the next one's;
its backward until its last gradient was ready, and what follows until the next layer's, the copy into the bucket; a
bucket's all-reduce from its hand-over until its future was done; waiting from the last copy until the last bucket was
there; then the copies back, and the optimizer. `covers` says what the hooks cannot see: links and transfers, memory,
values.

Not modelled: the all-reduce inside gloo; the copies back of the earlier buckets, which hide in the waiting.
"""

from collections.abc import Sequence
from typing import Any

from simulator.errors import require
from simulator.trace import Trace
from simulator.validation.launch import Workers
from simulator.validation.records import BucketTimes, Run, Step

WORKER = "simulator.validation.trace_worker:run"


def measure(workers: Workers, run: Run, *, world_size: int = 2) -> tuple[list[Step], ...]:
    """The steps of each rank of a real run."""
    return workers.run(WORKER, run, world_size=world_size)


def as_trace(records: Sequence[Sequence[Step]], iterations: Sequence[int], *, provenance: str = "") -> Trace:
    """The chosen iterations of all ranks, from the begin of the first. Raises InputError for one that was not run."""
    for iteration in iterations:
        require(0 <= iteration < len(records[0]), f"iteration {iteration}", f"{len(records[0])} were measured",
                "Choose one of them")  # fmt: skip
    origin = min(record[iterations[0]].begin for record in records)
    spans: list[tuple[Any, ...]] = []
    for rank, record in enumerate(records):
        for iteration in iterations:
            _Rank(spans, rank, iteration, origin).add(record[iteration])
    return Trace(
        tuple(f"rank {rank}" for rank in range(len(records))), raw_spans=spans, source="measured",
        provenance=provenance, covers=frozenset({"ranks"}), clock_offset_s=(0.0,) * len(records),
        end_s=max(span[7] for span in spans),
    )  # fmt: skip


class _Rank:
    """One iteration of one rank, turned into spans."""

    def __init__(self, spans: list[tuple[Any, ...]], rank: int, iteration: int, origin: float) -> None:
        self.spans = spans
        self.rank = rank
        self.iteration = iteration
        self.origin = origin
        self.last: int | None = None
        """The span before, on the compute stream."""
        self.ended: list[tuple[float, int]] = []
        """When each span of the compute stream ended, and its id."""

    def add(self, step: Step) -> None:
        """All of it."""
        self._forward(step)
        backward_end = self._backward(step)
        last = self._buckets(step.buckets)
        arrived = max([backward_end, *(bucket.reduced for bucket in step.buckets)])
        arrived = min(arrived, step.backward_end)
        if arrived > backward_end:
            self._span("wait for the buckets", "wait", backward_end, arrived, "Reducer::finalize_backward")
        self._span("copy the buckets back", "copy", arrived, step.backward_end, "Reducer::finalize_backward",
                   cause=last if arrived > backward_end else self.last)  # fmt: skip
        self._span("optimizer", "optimizer", step.backward_end, step.end, "Optimizer.step")

    def _forward(self, step: Step) -> None:
        ends = [*(begin for _, begin in step.layers[1:]), step.forward_end]
        self._span("before the forward", "wait", step.begin, step.layers[0][1], "DistributedDataParallel._pre_forward")
        for (name, begin), end in zip(step.layers, ends, strict=True):
            self._span(name, "forward", begin, end, "Module.forward")
        self._span("loss", "loss", step.forward_end, step.backward_begin, "")

    def _backward(self, step: Step) -> float:
        """Each layer's backward and the copy after it; returns the end of the last."""
        names = [*(name for name, _ in step.layers), "loss"]
        order = sorted(step.backwards, key=lambda found: found[1])
        order[0] = order[0][0], step.backward_begin
        last_ready = max([step.backward_begin, *step.ready.values()])
        ends = [begin for _, begin in order[1:]]
        ends.append(max(last_ready, *(bucket.ready for bucket in step.buckets), order[-1][1]))
        for (layer, begin), end in zip(order, ends, strict=True):
            ready = [moment for moment in step.ready.values() if begin <= moment <= end]
            done = max(ready, default=end)
            self._span(f"{names[layer]} backward", "backward", begin, done, "torch.autograd.backward")
            if ready and end > done:
                self._span(f"copy {names[layer]} into buckets", "copy", done, end, "Reducer::mark_variable_ready_dense")
        return ends[-1]

    def _buckets(self, buckets: Sequence[BucketTimes]) -> int | None:
        """Each in the first lane that is free, as gloo's two threads take them. Returns the span that ended last."""
        free: list[float] = []
        last: tuple[float, int] | None = None
        for number, bucket in enumerate(buckets):
            lane = next((lane for lane, until in enumerate(free) if until <= bucket.ready), len(free))
            free[lane : lane + 1] = [bucket.reduced]
            resource = "communication" if lane == 0 else f"communication {lane + 1}"
            filled = max((found for found in self.ended if found[0] <= bucket.ready), default=(0.0, None))[1]
            made = self._record(f"all_reduce bucket {bucket.index}", "all_reduce", resource, bucket.ready, bucket.reduced,
                                "Reducer::all_reduce_bucket", filled, bucket=bucket.index, group="default", seq=number,
                                nbytes=bucket.nbytes)  # fmt: skip
            last = max(last or (0.0, 0), (bucket.reduced, made))
        return None if last is None else last[1]

    def _span(self, name: str, kind: str, start: float, end: float, function: str, *, cause: int | None = None) -> None:
        self.last = self._record(name, kind, "compute", start, end, function, self.last if cause is None else cause)
        self.ended.append((end, self.last))

    def _record(self, name: str, kind: str, resource: str, start: float, end: float, function: str,
                cause: int | None, *, bucket: int | None = None, group: str | None = None, seq: int | None = None,
                nbytes: int | None = None) -> int:  # fmt: skip
        number = len(self.spans) + 1
        self.spans.append((number, name, kind, self.rank, self.rank, resource, start - self.origin, end - self.origin,
                           self.iteration, bucket, group, seq, nbytes, cause, function, 0, None))  # fmt: skip
        return number
