"""The events of a Chrome trace, one pass over a Trace: tracks, slices, launches, arrows, memory counters.

Both ends of every slice are rounded alike, so that neighbours on a track stay neighbours. What the layout means is
told in `simulator.views.chrome_trace`.

Not modelled: nothing of its own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

from simulator.scenario import Scenario
from simulator.trace import Span, Trace, Transfer
from simulator.views.launches import launchers, shared_out
from simulator.views.rows import Bar, lanes, last_moment, role_of

NCCL_KERNELS = {"all_reduce": "ncclDevKernel_AllReduce_Sum", "broadcast": "ncclDevKernel_Broadcast",
                "replicate": "ncclDevKernel_Broadcast", "reduce": "ncclDevKernel_Reduce_Sum"}  # fmt: skip
COLLECTIVES = {"all_reduce": "allreduce", "broadcast": "broadcast", "replicate": "broadcast", "reduce": "reduce"}
COPIES = {"input": "Memcpy HtoD (Pageable -> Device)", "scatter": "Memcpy PtoP (Device -> Device)",
          "gather": "Memcpy PtoP (Device -> Device)"}  # fmt: skip
COMPUTE_STREAM, FIRST_OTHER_STREAM = 7, 20
"""torch's default stream is number 7 in profiles; NCCL's come later."""
RANKS, TRANSFERS, NEXT_TRACE = 1_000_000, 2_000_000, 10_000_000
"""Where the process numbers of ranks, of transfers, and of a second trace in the same file begin."""


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass
class EventWriter:
    """The ranks' part of a trace as events. `base` is added to every process number, `label` stands before its name."""

    trace: Trace
    scenario: Scenario | None
    ranks: list[int]
    base: int = 0
    label: str = ""
    events: list[dict[str, Any]] = field(default_factory=list)
    hosts: list[Span] = field(init=False)
    streams: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        kinds: dict[tuple[int, str], set[str]] = {}
        together: dict[tuple[str, int | None], set[int]] = {}
        for span in self.trace.spans:
            kinds.setdefault((span.device, span.resource), set()).add(span.kind)
            together.setdefault((span.name, span.iteration), set()).add(span.device)
        self.together = together
        host = {key for key, found in kinds.items() if role_of(key[1], found) == "host"}
        mine = [span for span in self.trace.spans if span.rank in self.ranks]
        self.hosts = [span for span in mine if (span.device, span.resource) in host]
        self.streams = [span for span in mine if (span.device, span.resource) not in host
                        and (span.end_s is None or span.end_s > span.start_s)]  # fmt: skip
        self.end = last_moment(self.trace)
        self.ids = count(1 + self.base)
        self.placed: dict[int, tuple[int, int, int]] = {}
        """Process, thread and start in ns of each span or transfer that has a slice."""

    def write(self, transfers: bool) -> None:
        """Fill `events`."""
        launches = launchers(self.hosts, self.streams)
        self._threads(self.hosts, {span.rank: self.base + RANKS + span.rank for span in self.hosts}, "rank", "rank")
        self._threads(self.streams, {span.device: self.base + span.device for span in self.streams}, "device", "device")
        self._steps()
        for span in self.hosts:
            self._slice(span, "cpu_op", span.name, {"External id": span.id})
        for span in self.streams:
            self._slice(span, "gpu_memcpy" if self.name(span).startswith("Memcpy") else "kernel", self.name(span),
                        self._kernel_args(span))  # fmt: skip
        if transfers:
            self._transfers()
        parts = shared_out(launches)
        for span in self.streams:
            if span.id in parts:
                self._launch(span, launches[span.id], *parts[span.id])
        shown: list[Span | Transfer] = [*self.hosts, *self.streams, *(self.trace.transfers if transfers else ())]
        for effect in shown:
            self._arrow(effect, launches)
        self._memory()

    def name(self, span: Span) -> str:
        """NCCL's kernel where several devices take part, a copy's name where one device copies, else the span's."""
        if span.kind in COPIES:
            return COPIES[span.kind]
        if span.kind not in NCCL_KERNELS:
            return span.name
        if len(self.together[span.name, span.iteration]) == 1 and len(self.trace.devices) > 1:
            return COPIES["scatter"]
        return NCCL_KERNELS[span.kind] + ("_f32" if self._float32 and "Sum" in NCCL_KERNELS[span.kind] else "")

    @cached_property
    def _float32(self) -> bool:
        return self.scenario is not None and all(p.dtype == "float32" for p in self.scenario.model.parameters)

    def _threads(self, spans: Iterable[Span], processes: dict[int, int], owner: str, word: str) -> None:
        """Give each resource a thread, or several where its spans overlap, and name them."""
        tracks: dict[tuple[int, str], list[Span]] = {}
        for span in spans:
            tracks.setdefault((getattr(span, owner), span.resource), []).append(span)
        for number, process in sorted(processes.items()):
            name = f"{self.label}{word} {number}" + (f" ({self.trace.devices[number]})" if word == "device" else "")
            self._meta("process_name", process, 0, "name", name)
            self._meta("process_labels", process, 0, "labels", f"GPU {number}" if word == "device" else "CPU")
            self._meta("process_sort_index", process, 0, "sort_index", process)
            others = count(FIRST_OTHER_STREAM if word == "device" else 1)
            for (holder, resource), found in tracks.items():
                if holder != number:
                    continue
                bars = [Bar(span.start_s, self._end(span), span.kind, None, span.name, True) for span in found]
                threads: dict[int, int] = {}
                for span, lane in zip(found, lanes(bars)):
                    if lane not in threads:
                        compute = word == "device" and resource == "compute" and lane == 0
                        threads[lane] = COMPUTE_STREAM if compute else next(others)
                        title = f"stream {threads[lane]} {resource}" if word == "device" else resource
                        self._meta("thread_name", process, threads[lane], "name", title)
                        self._meta("thread_sort_index", process, threads[lane], "sort_index", threads[lane])
                    self.placed[span.id] = process, threads[lane], _ns(span.start_s)

    def _steps(self) -> None:
        """ProfilerStep#N on the first thread of each rank, from its first span to the next step's."""
        for rank in self.ranks:
            begins: dict[int, float] = {}
            for span in (*self.hosts, *self.streams):
                if span.rank == rank and span.iteration is not None:
                    begins[span.iteration] = min(span.start_s, begins.get(span.iteration, span.start_s))
            edges = [*sorted(begins.values()), self.end]
            for number, (iteration, start) in enumerate(sorted(begins.items(), key=lambda item: item[1])):
                self._event("X", "user_annotation", f"ProfilerStep#{iteration}", self.base + RANKS + rank, 1,
                            _ns(start), _ns(edges[number + 1]))  # fmt: skip

    def _kernel_args(self, span: Span) -> dict[str, Any]:
        stream = self.placed[span.id][1]
        args: dict[str, Any] = {"External id": span.id, "device": span.device, "context": 1, "stream": stream,
                                "correlation": span.id, "span": span.name, "kind": span.kind}  # fmt: skip
        if span.nbytes is not None:
            args["bytes"] = span.nbytes
        if span.bucket is not None:
            args["bucket"] = span.bucket
        if self.name(span).startswith("nccl"):
            members = sorted(self.together[span.name, span.iteration])
            args |= {"Collective name": COLLECTIVES[span.kind], "Group size": len(members),
                     "Process Group Name": "0", "Process Group Description": "default_pg",
                     "Process Group Ranks": members}  # fmt: skip
            if self._float32 and span.nbytes is not None and span.nbytes % 4 == 0:
                args |= {"dtype": "Float", "In msg nelems": span.nbytes // 4, "Out msg nelems": span.nbytes // 4}
        return args

    def _slice(self, span: Span, category: str, name: str, args: dict[str, Any]) -> None:
        process, thread, start = self.placed[span.id]
        extra = {"torch_function": span.torch_function} if span.torch_function else {}
        end = None if span.end_s is None else _ns(span.end_s)
        self._event("B" if end is None else "X", category, name, process, thread, start, end, **args, **extra)

    def _launch(self, work: Span, host: Span, start: float, end: float) -> None:
        """The runtime call inside the host span, and the arrow to the work."""
        process, thread, _ = self.placed[host.id]
        name = "cudaMemcpyAsync" if self.name(work).startswith("Memcpy") else "cudaLaunchKernel"
        self._event("X", "cuda_runtime", name, process, thread, _ns(start), _ns(end), correlation=work.id)
        self._flow("ac2g", work.id + self.base, (process, thread, _ns(start)), self.placed[work.id])

    def _transfers(self) -> None:
        """A track for each pair of devices; several where transfers of one pair run at once."""
        process, tracks = self.base + TRANSFERS, dict[tuple[int, int], list[Transfer]]()
        for transfer in self.trace.transfers:
            tracks.setdefault((transfer.source, transfer.target), []).append(transfer)
        if tracks:
            self._meta("process_name", process, 0, "name", f"{self.label}transfers")
            self._meta("process_sort_index", process, 0, "sort_index", process)
        threads = count(1)
        for (source, target), found in sorted(tracks.items()):
            ordered = sorted(found, key=lambda transfer: (transfer.start_s, transfer.id))
            bars = [Bar(t.start_s, self._end(t), t.kind, None, "", True) for t in ordered]
            numbers: dict[int, int] = {}
            for transfer, lane in zip(ordered, lanes(bars)):
                if lane not in numbers:
                    numbers[lane] = next(threads)
                    self._meta("thread_name", process, numbers[lane], "name", f"{source} -> {target}")
                self.placed[transfer.id] = process, numbers[lane], _ns(transfer.start_s)
                more = {} if transfer.chunk is None else {"chunk": transfer.chunk}
                self._event("X", "transfer", transfer.kind, process, numbers[lane], _ns(transfer.start_s),
                            _ns(self._end(transfer)), bytes=transfer.nbytes, latency_us=1e6 * (
                                transfer.start_s - transfer.issue_s), **more)  # fmt: skip

    def _arrow(self, effect: Span | Transfer, launches: dict[int, Span]) -> None:
        """From the cause on another track; a launch has its own arrow, the work before on a stream needs none."""
        cause = self._shown_cause(effect)
        launcher = launches.get(effect.id)
        if effect.id not in self.placed or cause is None or (launcher is not None and launcher.id == cause):
            return
        source, target = self.placed[cause], self.placed[effect.id]
        if source[:2] != target[:2]:
            self._flow("cause", next(self.ids) + NEXT_TRACE // 2, source, target)

    def _shown_cause(self, effect: Span | Transfer) -> int | None:
        """The nearest cause with a slice. A transfer without one stands for the receiving device's own collective."""
        cause = effect.cause
        while cause is not None and cause not in self.placed:
            found = self.trace.by_id.get(cause)
            if isinstance(found, Transfer) and isinstance(effect, Span) and found.span is not None:
                return self._own_collective(effect, found.span)
            cause = None if found is None else found.cause
        return cause

    def _own_collective(self, effect: Span, collective: int) -> int | None:
        """The part of a collective that ran on the effect's device, or the sender's part if that is shown."""
        whole = self.trace.by_id.get(collective)
        if not isinstance(whole, Span):
            return None
        own = self._parts.get((effect.device, whole.name, whole.iteration), collective)
        return own if own in self.placed else None

    @cached_property
    def _parts(self) -> dict[tuple[int, str, int | None], int]:
        return {(span.device, span.name, span.iteration): span.id for span in self.streams}

    def _memory(self) -> None:
        """A counter of allocated bytes for each device: what torch.cuda.memory_allocated shows, no context."""
        held: dict[int, int] = {}
        devices = {span.device for span in (*self.hosts, *self.streams)}
        changes: dict[tuple[int, float], int] = {}
        for change in self.trace.memory:
            if change.category != "context" and change.device in devices:
                held[change.device] = held.get(change.device, 0) + change.nbytes
                changes[change.device, change.time_s] = held[change.device]
        for (device, time), nbytes in changes.items():
            self.events.append({"ph": "C", "name": "memory allocated", "pid": self.base + device, "tid": 0,
                                "ts": _ns(time) / 1000, "args": {"bytes": nbytes}})  # fmt: skip

    def _end(self, item: Span | Transfer) -> float:
        return self.end if item.end_s is None else item.end_s

    def _event(self, phase: str, category: str, name: str, process: int, thread: int, start: int, end: int | None,
               **args: Any) -> None:  # fmt: skip
        event = {"ph": phase, "cat": category, "name": name, "pid": process, "tid": thread, "ts": start / 1000}
        if end is not None:
            event["dur"] = (end - start) / 1000
        self.events.append({**event, "args": args} if args else event)

    def _meta(self, what: str, process: int, thread: int, key: str, value: str | int) -> None:
        self.events.append({"ph": "M", "name": what, "pid": process, "tid": thread, "ts": 0, "args": {key: value}})

    def _flow(self, category: str, number: int, source: tuple[int, int, int], target: tuple[int, int, int]) -> None:
        for phase, (process, thread, start), more in (("s", source, {}), ("f", target, {"bp": "e"})):
            self.events.append({"ph": phase, "id": number, "pid": process, "tid": thread, "ts": start / 1000,
                                "cat": category, "name": category, **more})  # fmt: skip
