"""What holds for every trace, as assertions. A law that a trace cannot know about (see `covers`) is not asserted.

1. Work on one stream never overlaps itself. 2. No link carries more than its bandwidth, and a transfer's rate carries
its bytes. 3. A rank sends a chunk no earlier than it holds it. 4. After an all-reduce every chunk on every rank sums
all its ranks, each once. 5. Memory is never negative, and every iteration begins with what the one before it began
with. Laws 6 to 9 are about runs of a scenario, not about one trace: tests/test_laws.py and tests/test_collectives.py.
"""

import math
from collections import defaultdict

from simulator.trace import Span, Trace, Transfer
from tests.samples import rate_steps, replay

TOLERANCE = 1 + 1e-9


def check(trace: Trace) -> None:
    """All laws that one trace can break."""
    no_stream_overlaps_itself(trace)
    if trace.source == "simulated":
        ends_with_its_last_record(trace)
    if "links" in trace.covers:
        no_link_is_overloaded(trace)
    if "values" in trace.covers:
        nothing_is_sent_before_it_is_held(trace)
        every_all_reduce_is_complete(trace)
    if "memory" in trace.covers:
        memory_returns(trace)


def no_stream_overlaps_itself(trace: Trace) -> None:
    """Law 1. Work of no duration may stand anywhere."""
    last: dict[tuple[int, int, str], Span] = {}
    for span in trace.spans:
        place = span.rank, span.device, span.resource
        before = last.get(place)
        end = span.start_s if span.end_s is None else span.end_s
        assert span.start_s <= end
        if before is not None and before.end_s is not None and end > span.start_s:
            assert span.start_s >= before.end_s, f"{span} overlaps {before}"
        if before is None or end > span.start_s:
            last[place] = span


def ends_with_its_last_record(trace: Trace) -> None:
    """Nothing that was planned and did not happen moves the end."""
    assert trace.end_s == max((r.end_s for r in trace.by_id.values() if r.end_s is not None), default=0.0)


def slop_bytes(transfer: Transfer, rate: float) -> float:
    """What the last bit of a time is worth in bytes: a transfer of nanoseconds far from 0 has few bits of duration."""
    assert transfer.end_s is not None
    return 4 * rate * math.ulp(transfer.end_s)


def no_link_is_overloaded(trace: Trace) -> None:
    """Law 2."""
    changes: list[list[tuple[float, float]]] = [[] for _ in trace.links]
    for transfer in trace.transfers:
        if transfer.end_s is None or not transfer.route:
            continue
        most = min(trace.links[link].bandwidth_bytes_per_s for link in transfer.route)
        steps = rate_steps(transfer)
        carried = sum((end - start) * rate for start, end, rate in steps)
        assert abs(carried - transfer.nbytes) <= transfer.nbytes * 1e-9 + slop_bytes(transfer, most), transfer
        duration = transfer.end_s - transfer.start_s
        assert transfer.nbytes <= duration * most * TOLERANCE + slop_bytes(transfer, most), transfer
        for start, end, rate in steps:
            for link in transfer.route:
                changes[link] += [(start, min(rate, most)), (end, -min(rate, most))]
    for fact, found in zip(trace.links, changes, strict=True):
        found.sort()
        carried = 0.0
        for _, change in found:
            carried += change
            assert carried <= fact.bandwidth_bytes_per_s * TOLERANCE, fact.name


def collectives(trace: Trace) -> dict[tuple[object, ...], list[Transfer]]:
    """The transfers of each collective: by process group and sequence number, or else by name and iteration."""
    found: dict[tuple[object, ...], list[Transfer]] = defaultdict(list)
    for transfer in trace.transfers:
        owner = None if transfer.span is None else trace.by_id.get(transfer.span)
        if isinstance(owner, Span):
            key = (owner.group, owner.seq) if owner.group is not None else (owner.name, owner.iteration)
            found[(transfer.kind, *key)].append(transfer)
    return found


def nothing_is_sent_before_it_is_held(trace: Trace) -> None:
    """Law 3, for whatever says what it carries."""
    for transfers in collectives(trace).values():
        held: dict[tuple[int, int | None], int] = defaultdict(int)
        events = [(t.end_s, 0, t.id, t) for t in transfers] + [(t.issue_s, 1, t.id, t) for t in transfers]
        for _, issued, _, transfer in sorted(events):
            if transfer.contributions is None:
                continue
            if issued:
                own = 1 << transfer.source if transfer.source >= 0 else 0
                assert transfer.contributions & ~(own | held[transfer.source, transfer.chunk]) == 0, transfer
            else:
                held[transfer.target, transfer.chunk] |= transfer.contributions


def every_all_reduce_is_complete(trace: Trace) -> None:
    """Law 4."""
    members = range(len(trace.devices))
    for key, transfers in collectives(trace).items():
        if key[0] == "all_reduce":
            held = replay(transfers, members)
            assert set(held.values()) == {(1 << len(members)) - 1}, key
            assert {device for device, _ in held} == set(members), key


def memory_returns(trace: Trace) -> None:
    """Law 5. An iteration begins on a device where its inputs come, right after zero_grad."""
    held: dict[tuple[int, str], int] = defaultdict(int)
    begins: dict[int, list[dict[str, int]]] = defaultdict(list)
    before = 0.0
    for change in trace.memory:
        assert change.time_s >= before
        before = change.time_s
        if change.category == "inputs" and change.nbytes >= 0:
            begins[change.device].append({category: nbytes for (device, category), nbytes in held.items()
                                          if device == change.device and nbytes})  # fmt: skip
        held[change.device, change.category] += change.nbytes
        assert held[change.device, change.category] >= 0, change
    for device, starts in begins.items():
        assert all(start == starts[-1] for start in starts[1:]), f"device {device}: {starts}"
