"""Which host span launched which piece of work on a stream: what a profiler records and the trace only implies.

The trace has the host's time to launch a layer and the layer's work on the stream, in the same order. A piece of work
belongs to the host span that names it ("launch conv1" and "conv1"), else to the host span that was its cause, else to
whatever launched the work before it on its stream (a copy into a bucket follows its layer's backward at once), else to
the last host span of its rank that had ended. Work before all host spans was launched by nothing in the trace.

Not modelled: the several kernels of one layer; they are one piece of work here.
"""

from bisect import bisect_right
from collections.abc import Iterable

from simulator.trace import Span


def launched_name(host: str) -> str | None:
    """The name of the work that a host span of this name launches, if the name says so."""
    if host.startswith("launch backward of "):
        return host.removeprefix("launch backward of ") + " backward"
    return host.removeprefix("launch ") if host.startswith("launch ") else None


def launchers(host_spans: Iterable[Span], stream_spans: Iterable[Span]) -> dict[int, Span]:
    """For the id of each piece of work the host span that launched it. Both come in the order of their start."""
    by_id = {span.id: span for span in host_spans}
    named: dict[tuple[int, int, int | None, str], list[Span]] = {}
    for span in by_id.values():
        target = launched_name(span.name)
        if target is not None:
            named.setdefault((span.rank, span.device, span.iteration, target), []).append(span)
    for waiting in named.values():
        waiting.reverse()
    ended: dict[int, list[tuple[float, int]]] = {}
    for span in by_id.values():
        ended.setdefault(span.rank, []).append((span.end_s or span.start_s, span.id))
    for ends in ended.values():
        ends.sort()
    found: dict[int, Span] = {}
    before: dict[tuple[int, str], Span] = {}
    for work in stream_spans:
        queue = named.get((work.rank, work.device, work.iteration, work.name))
        stream = work.device, work.resource
        host = queue.pop() if queue else by_id.get(work.cause or 0) or before.get(stream)
        if host is None:
            ends = ended.get(work.rank, [])
            place = bisect_right(ends, (work.start_s, float("inf")))
            host = by_id[ends[place - 1][1]] if place else None
        if host is not None:
            found[work.id] = before[stream] = host
    return found


def shared_out(launches: dict[int, Span]) -> dict[int, tuple[float, float]]:
    """For each piece of work its part of the host span's time: the span is divided equally among what it launched."""
    launched: dict[int, list[int]] = {}
    spans: dict[int, Span] = {}
    for work, host in launches.items():
        launched.setdefault(host.id, []).append(work)
        spans[host.id] = host
    parts: dict[int, tuple[float, float]] = {}
    for number, works in launched.items():
        start, end = spans[number].start_s, spans[number].end_s or spans[number].start_s
        edges = [start + (end - start) * index / len(works) for index in range(len(works))] + [end]
        parts.update((work, (edges[index], edges[index + 1])) for index, work in enumerate(works))
    return parts
