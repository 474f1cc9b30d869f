"""The verbs, one by one and together: when things happen, in which order, and what each names as its cause."""

import math
from collections.abc import Callable, Sequence

import pytest

from simulator.cluster import Cluster, Device
from simulator.engine import Engine
from simulator.errors import InputError
from simulator.trace import Trace
from simulator.verbs import (
    Actor,
    Handle,
    Lock,
    Program,
    Stream,
    Work,
    busy,
    fire,
    isend,
    launch,
    memory,
    recv,
    send,
    send_recv,
    spawn,
    wait,
)
from tests.samples import run, star

BANDWIDTH = 10.0
LATENCY = 1.0


def on(devices: int, build: Callable[[Engine], Sequence[Program]], starts: Sequence[float] = ()) -> Trace:
    """Programs on a star of 10 bytes a second and 1 s of latency."""
    return run(star(devices, BANDWIDTH, LATENCY), build, starts)


def spans_of(trace: Trace) -> list[tuple[str, float, float | None]]:
    return [(span.name, span.start_s, span.end_s) for span in trace.spans]


# ---- host threads and locks


def test_busy_takes_its_seconds_one_after_the_other() -> None:
    def program():
        yield busy(1.5, "first")
        yield busy(2.0, "second")

    trace = on(1, lambda engine: [program()])
    assert spans_of(trace) == [("first", 0.0, 1.5), ("second", 1.5, 3.5)]
    assert trace.end_s == 3.5
    assert trace.spans[1].cause == trace.spans[0].id


def test_programs_start_when_they_are_told_to() -> None:
    def program():
        yield busy(1.0, "work")

    trace = on(2, lambda engine: [program(), program()], [2.0, 0.5])
    assert [(span.rank, span.start_s, span.end_s) for span in trace.spans] == [(1, 0.5, 1.5), (0, 2.0, 3.0)]


def test_a_lock_is_held_by_one_thread_at_a_time_in_the_order_of_asking() -> None:
    lock = Lock("the GIL")

    def thread(name: str, before: float):
        yield busy(before, f"{name} before")
        yield busy(1.0, name, lock=lock)
        yield busy(1.0, f"{name} again", lock=lock)

    trace = on(3, lambda engine: [thread("a", 0.3), thread("b", 0.2), thread("c", 0.1)])
    held = [span for span in trace.spans if "before" not in span.name]
    assert [span.name for span in held] == ["c", "b", "a", "c again", "b again", "a again"]
    assert [span.start_s for span in held] == pytest.approx([0.1, 1.1, 2.1, 3.1, 4.1, 5.1])
    # Each waits for the one that gave the lock back.
    assert [span.cause for span in held[1:]] == [span.id for span in held[:-1]]


def test_without_the_lock_threads_run_beside_each_other() -> None:
    def thread():
        yield busy(1.0, "work")

    assert on(4, lambda engine: [thread() for _ in range(4)]).end_s == 1.0


def test_spawned_threads_run_beside_their_parent_which_may_wait_for_them_and_read_their_result() -> None:
    results = []

    def child(seconds: float):
        yield busy(seconds, "child")
        return seconds * 10

    def parent():
        children: list[Actor] = []
        for seconds in (2.0, 3.0):
            started = yield spawn(child(seconds), "child", 0, f"thread {seconds}")
            children.append(started)
        yield busy(0.5, "parent")
        yield wait(*children)
        results.extend(actor.result for actor in children)
        yield busy(1.0, "after")

    trace = on(1, lambda engine: [parent()])
    assert trace.end_s == 3.0 + 1.0
    assert results == [20.0, 30.0]
    assert trace.spans[-1].cause == next(span.id for span in trace.spans if span.resource == "thread 3.0")


# ---- streams


def launched(works: Callable[[Stream], Sequence[Work]], width: int = 1) -> Trace:
    def program():
        stream = Stream("compute", 0, 0, width)
        for work in works(stream):
            yield launch(work)

    return on(1, lambda engine: [program()])


def test_a_stream_does_its_work_in_order_while_the_host_goes_on() -> None:
    def program():
        stream = Stream("compute", 0, 0)
        first = yield launch(Work(stream, "first", "forward", 2.0))
        yield launch(Work(stream, "second", "forward", 1.0))
        yield busy(0.5, "host")
        yield wait(first)
        yield busy(0.5, "host again")

    trace = on(1, lambda engine: [program()])
    assert sorted(spans_of(trace)) == [("first", 0.0, 2.0), ("host", 0.0, 0.5), ("host again", 2.0, 2.5),
                                       ("second", 2.0, 3.0)]  # fmt: skip


def test_work_that_has_to_wait_holds_up_what_stands_behind_it() -> None:
    gate = Handle("gate")

    def program():
        stream = Stream("compute", 0, 0)
        yield launch(Work(stream, "waits", "forward", 1.0, after=[gate]))
        yield launch(Work(stream, "behind", "forward", 1.0))
        yield busy(3.0, "host")
        yield fire(gate)

    trace = on(1, lambda engine: [program()])
    assert [(name, start) for name, start, _ in spans_of(trace)][1:] == [("waits", 3.0), ("behind", 4.0)]
    host, waits, behind = trace.spans
    assert (waits.cause, behind.cause) == (host.id, waits.id)


def test_a_stream_of_two_lanes_runs_two_pieces_at_once_and_names_their_lanes() -> None:
    trace = launched(lambda stream: [Work(stream, f"work {i}", "all_reduce", 1.0) for i in range(3)], width=2)
    assert [(span.resource, span.start_s) for span in trace.spans] == [("compute", 0.0), ("compute 2", 0.0),
                                                                       ("compute", 1.0)]  # fmt: skip


def test_a_program_can_be_a_piece_of_work_and_its_transfers_belong_to_its_span() -> None:
    def copy(engine: Engine):
        yield send(engine.channel(0, 1, "copy"), 20)

    def program(engine: Engine):
        stream = Stream("copies", 0, 0)
        work = yield launch(Work(stream, "copy", "copy", program=copy(engine), nbytes=20))
        yield wait(work)
        yield busy(1.0, "after")

    trace = on(2, lambda engine: [program(engine)])
    assert spans_of(trace) == [("copy", 0.0, 1.0 + 2.0), ("after", 3.0, 4.0)]
    (transfer,) = trace.transfers
    assert transfer.span == trace.spans[0].id
    assert trace.spans[1].cause == transfer.id


def test_memory_comes_at_the_start_of_work_and_goes_at_its_end() -> None:
    trace = launched(lambda stream: [
        Work(stream, "first", "forward", 1.0),
        Work(stream, "second", "forward", 2.0, allocates=[("activations", 7)], frees=[("activations", 5)]),
    ])  # fmt: skip
    assert [tuple(change) for change in trace.memory] == [(1.0, 0, "activations", 7), (3.0, 0, "activations", -5)]


def test_a_program_may_change_memory_itself() -> None:
    def program():
        yield busy(1.0, "work")
        yield memory(0, "parameters", 4)

    assert [tuple(change) for change in on(1, lambda engine: [program()]).memory] == [(1.0, 0, "parameters", 4)]


# ---- compute that slows


def slowed(compute_s: float, start_s: float, communicates_s: float, slowdown: float) -> float:
    """The end of a piece of compute beside a collective that takes the link for a while."""
    cluster = star(2, BANDWIDTH)
    engine = Engine(cluster, compute_slowdown=slowdown)
    channel = engine.channel(0, 1, "all_reduce")

    def collective():
        yield send(channel, round(communicates_s * BANDWIDTH))

    def program():
        yield launch(Work(Stream("compute", 0, 0), "compute", "forward", compute_s))
        yield busy(start_s, "host")
        yield launch(Work(Stream("communication", 0, 0), "all_reduce", "all_reduce", program=collective()))

    engine.start(program(), name="rank 0", rank=0, device=0, resource="host")
    trace = engine.run()
    return next(span.end_s for span in trace.spans if span.name == "compute")


def test_compute_slows_while_a_collective_runs_on_its_device() -> None:
    # 1 s at full speed, 2 s at three quarters, the rest at full speed.
    assert slowed(4.0, 1.0, 2.0, 0.25) == pytest.approx(1.0 + 2.0 + (4.0 - 1.0 - 2.0 * 0.75), rel=1e-12)


def test_compute_that_ends_during_the_collective_is_slow_to_its_end() -> None:
    assert slowed(2.0, 1.0, 10.0, 0.5) == pytest.approx(1.0 + (2.0 - 1.0) / 0.5, rel=1e-12)


def test_compute_does_not_slow_without_a_slowdown_or_on_another_device() -> None:
    assert slowed(4.0, 1.0, 2.0, 0.0) == 4.0
    engine = Engine(star(3, BANDWIDTH), compute_slowdown=0.5)

    def collective():
        yield send(engine.channel(0, 1, "all_reduce"), 20)

    def program():
        yield launch(Work(Stream("compute", 2, 2), "compute", "forward", 1.0))
        yield launch(Work(Stream("communication", 0, 0), "all_reduce", "all_reduce", program=collective()))

    engine.start(program(), name="both", rank=0, device=0, resource="host")
    assert next(span.end_s for span in engine.run().spans if span.name == "compute") == 1.0


def test_an_end_of_compute_that_moved_forward_does_not_move_the_end_of_the_run() -> None:
    """While the collective runs the compute is due at 7 s; when it has ended, at 6 s."""
    engine = Engine(star(2, BANDWIDTH), compute_slowdown=0.5)

    def collective():
        yield send(engine.channel(0, 1, "all_reduce"), 20)

    def program():
        yield launch(Work(Stream("communication", 0, 0), "all_reduce", "all_reduce", program=collective()))
        yield launch(Work(Stream("compute", 0, 0), "compute", "forward", 3.5))

    engine.start(program(), name="rank 0", rank=0, device=0, resource="host")
    assert engine.run().end_s == 2.0 + (3.5 - 2.0 * 0.5)


# ---- messages


def test_send_goes_on_when_the_bytes_have_arrived_and_isend_at_once() -> None:
    def sender(engine: Engine):
        channel = engine.channel(0, 1, "copy")
        yield send(channel, 10)
        yield busy(0.5, "after send")
        handle = yield isend(channel, 10)
        yield busy(0.5, "after isend")
        yield wait(handle)
        yield busy(0.5, "after wait")

    trace = on(2, lambda engine: [sender(engine)])
    assert [start for _, start, _ in spans_of(trace)] == [2.0, 2.5, 2.5 + 2.0]
    assert trace.spans[0].cause == trace.transfers[0].id


def test_recv_gives_the_message_whether_it_came_before_or_comes_later() -> None:
    got = []

    def sender(out):
        yield send(out, 10, chunk=7, contributions=0b1, values=(1, 2))
        yield busy(5.0, "pause")
        yield send(out, 20, chunk=8)

    def receiver(source):
        yield busy(4.0, "late")
        first = yield recv(source)
        second = yield recv(source)
        got.extend([first, second])
        yield busy(1.0, "done")

    def build(engine: Engine):
        channel = engine.channel(0, 1, "copy")
        return [sender(channel), receiver(channel)]

    trace = on(2, build)
    assert [(m.nbytes, m.chunk, m.contributions, m.values) for m in got] == [(10, 7, 1, (1, 2)), (20, 8, None, None)]
    done = trace.spans[-1]
    assert (done.start_s, done.cause) == (2.0 + 5.0 + 1.0 + 2.0, trace.transfers[-1].id)


def test_send_recv_goes_on_when_both_are_done() -> None:
    def rank(out, source, nbytes):
        message = yield send_recv(out, nbytes, source)
        yield busy(1.0, f"got {message.nbytes}")

    def build(engine: Engine):
        there, back = engine.channel(0, 1, "copy"), engine.channel(1, 0, "copy")
        return [rank(there, back, 10), rank(back, there, 30)]

    assert sorted(spans_of(on(2, build))) == [("got 10", 4.0, 5.0), ("got 30", 4.0, 5.0)]


def test_an_extra_latency_delays_one_message() -> None:
    def sender(engine: Engine):
        yield send(engine.channel(0, 1, "copy"), 10, extra_latency_s=0.25)

    (transfer,) = on(2, lambda engine: [sender(engine)]).transfers
    assert (transfer.issue_s, transfer.start_s, transfer.end_s) == (0.0, LATENCY + 0.25, LATENCY + 0.25 + 1.0)


def test_a_message_to_oneself_takes_no_time() -> None:
    def program(engine: Engine):
        channel = engine.channel(0, 0, "copy")
        yield send(channel, 1_000_000)
        yield recv(channel)

    trace = on(1, lambda engine: [program(engine)])
    assert (trace.end_s, trace.outcome) == (0.0, "finished")


# ---- order, causes, ends


def test_events_of_equal_time_are_handled_in_the_order_of_their_making() -> None:
    order = []

    def program(name: str):
        yield busy(1.0, name)
        order.append(name)

    on(5, lambda engine: [program(name) for name in "abcde"])
    assert order == list("abcde")


def test_every_record_begins_when_its_cause_has_ended() -> None:
    trace = learners_all_reduce(4, 40)
    for record in (*trace.spans, *trace.transfers):
        begin = record.start_s if hasattr(record, "resource") else record.issue_s
        cause = None if record.cause is None else trace.by_id[record.cause]
        assert begin == (0.0 if cause is None else cause.end_s)


def test_programs_that_wait_for_each_other_are_reported_with_what_they_wait_for() -> None:
    def rank(out, source):
        yield busy(1.0, "work")
        yield recv(source)
        yield send(out, 10)

    def build(engine: Engine):
        there, back = engine.channel(0, 1, "copy"), engine.channel(1, 0, "copy")
        return [rank(there, back), rank(back, there)]

    trace = on(2, build)
    assert trace.outcome == "deadlocked"
    assert [(w.rank, w.resource, w.waits_for) for w in trace.waiting] == [
        (0, "host", "a message from 1 to 0"), (1, "host", "a message from 0 to 1")]  # fmt: skip
    assert trace.end_s == 1.0


def test_of_several_handles_only_those_that_never_came_are_named() -> None:
    came, never = Handle("came"), Handle("rank 3 to join")

    def program():
        yield fire(came)
        yield wait(never, came)

    trace = on(1, lambda engine: [program()])
    assert [w.waits_for for w in trace.waiting] == ["rank 3 to join"]


def test_work_that_can_never_start_is_a_deadlock_although_nobody_waits_for_it() -> None:
    never = Handle("a gradient that never comes")

    def program():
        stream = Stream("communication", 0, 0)
        yield launch(Work(stream, "bucket 0", "all_reduce", 1.0, after=[never]))
        yield launch(Work(stream, "bucket 1", "all_reduce", 1.0))

    trace = on(1, lambda engine: [program()])
    assert trace.outcome == "deadlocked"
    assert [(w.resource, w.waits_for) for w in trace.waiting] == [("communication", "a gradient that never comes")]


def test_a_collective_that_never_finishes_is_a_span_without_an_end() -> None:
    def half(engine: Engine):
        yield recv(engine.channel(1, 0, "all_reduce"))

    def program(engine: Engine):
        work = Work(Stream("communication", 0, 0), "all_reduce", "all_reduce", program=half(engine), group="g", seq=3)
        yield wait((yield launch(work)))

    trace = on(2, lambda engine: [program(engine)])
    (span,) = trace.spans
    assert (span.end_s, span.group, span.seq) == (None, "g", 3)
    assert trace.outcome == "deadlocked"


# ---- mistakes of a program


@pytest.mark.parametrize("verb", [None, (), 3, "send", ("send", 1), (99,)])
def test_a_program_that_yields_no_verb_is_told_so(verb: object) -> None:
    def program():
        yield verb

    with pytest.raises(InputError, match="a program yields verbs"):
        on(1, lambda engine: [program()])


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf])
def test_impossible_seconds_are_refused(seconds: float) -> None:
    def host():
        yield busy(seconds, "think")

    def stream():
        yield launch(Work(Stream("compute", 0, 0), "think", "forward", seconds))

    for program in (host, stream):
        with pytest.raises(InputError, match="seconds of 'think'"):
            on(1, lambda engine, program=program: [program()])


@pytest.mark.parametrize("nbytes", [-1, 1.5, math.nan, True, "10"])
def test_impossible_bytes_are_refused(nbytes: object) -> None:
    def program(engine: Engine):
        yield send(engine.channel(0, 1, "copy"), nbytes)  # type: ignore[arg-type]

    with pytest.raises(InputError, match="nbytes"):
        on(2, lambda engine: [program(engine)])


@pytest.mark.parametrize("at_s", [-1.0, math.nan, math.inf])
def test_a_program_cannot_start_before_time_begins_or_never(at_s: float) -> None:
    def program():
        yield busy(1.0, "work")

    with pytest.raises(InputError, match="at_s"):
        on(1, lambda engine: [program()], [at_s])


@pytest.mark.parametrize("fraction", [0.0, -0.5, math.nan])
def test_a_channel_reaches_some_part_of_its_route(fraction: float) -> None:
    with pytest.raises(InputError, match="bandwidth_fraction"):
        Engine(star(2, 1.0)).channel(0, 1, "copy", bandwidth_fraction=fraction)


def test_two_programs_cannot_wait_for_one_message() -> None:
    def build(engine: Engine):
        channel = engine.channel(0, 1, "copy")

        def reader():
            yield recv(channel)

        return [reader(), reader()]

    with pytest.raises(InputError, match="a channel has one reader at a time"):
        on(2, build)


# ---- a learner's program


def learners_all_reduce(n: int, nbytes: int) -> Trace:
    """What a learner writes: the naive all-reduce. Everyone sends everything to rank 0, which sends the sum back."""
    everyone = (1 << n) - 1

    def build(engine: Engine):
        up = [engine.channel(rank, 0, "all_reduce") for rank in range(n)]
        down = [engine.channel(0, rank, "all_reduce") for rank in range(n)]

        def root():
            total, mask = 1.0, 1
            for rank in range(1, n):
                message = yield recv(up[rank])
                total += message.values
                mask |= message.contributions
            assert mask == everyone
            for rank in range(1, n):
                yield send(down[rank], nbytes, contributions=everyone, values=total)
            return total

        def other(rank: int):
            yield send(up[rank], nbytes, contributions=1 << rank, values=float(rank + 1))
            message = yield recv(down[rank])
            yield busy(0.0, f"rank {rank} has {message.values}")
            return message.values

        return [root(), *(other(rank) for rank in range(1, n))]

    return on(n, build)


def test_a_learners_program_is_timed_like_any_other() -> None:
    n, nbytes = 4, 40
    trace = learners_all_reduce(n, nbytes)
    # The pushes share GPU 0's link; the answers go one after the other.
    assert trace.end_s == pytest.approx(LATENCY + 3 * nbytes / BANDWIDTH + 3 * (LATENCY + nbytes / BANDWIDTH))
    assert [span.name for span in trace.spans] == [f"rank {rank} has 10.0" for rank in (1, 2, 3)]
    assert trace.outcome == "finished"


def test_an_empty_run_is_an_empty_trace() -> None:
    trace = Engine(Cluster("one", (Device("gpu0"),))).run()
    assert (trace.spans, trace.transfers, trace.end_s, trace.outcome) == ((), (), 0.0, "finished")
