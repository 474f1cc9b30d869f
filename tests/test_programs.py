"""A learner's programs: the same trace as any other run, and mistakes that are named."""

from functools import partial

import pytest

from simulator.errors import InputError
from simulator.metrics import Metrics
from simulator.programs import Rank, run
from tests.samples import star

S, N, B, LATENCY = 4_000_000, 4, 1e9, 1e-5


def ring_all_reduce(me: Rank):
    """Chunk numbers and sums as in the textbook: send (r - s), add what comes."""
    n, right, left = me.world_size, (me.rank + 1) % me.world_size, (me.rank - 1) % me.world_size
    masks = [1 << me.rank] * n
    for step in range(2 * (n - 1)):
        chunk = (me.rank - step) % n
        message = yield me.send_recv(right, S // n, left, chunk=chunk, contributions=masks[chunk])
        masks[message.chunk] = message.contributions | (masks[message.chunk] if step < n - 1 else 0)
    assert masks == [(1 << n) - 1] * n


def gather_and_sum(me: Rank):
    """The naive way: all to rank 0, and back."""
    others = range(1, me.world_size)
    if me.rank:
        yield me.send(0, S)
        yield me.recv(0)
    else:
        for other in others:
            yield me.recv(other)
        for other in others:
            yield me.send(other, S)


def test_a_learners_ring_takes_the_closed_form_and_sends_as_few_bytes_as_can_be():
    trace = run([ring_all_reduce] * N, star(N, B, LATENCY))
    assert trace.outcome == "finished"
    assert trace.end_s == pytest.approx(2 * (N - 1) * (LATENCY + S / (N * B)), rel=1e-9)
    assert Metrics(trace).bytes_by_device("sent") == [2 * (N - 1) * S // N] * N


def test_the_naive_way_is_told_from_the_ring_by_its_bytes_and_its_time():
    naive, ring = (run([program] * N, star(N, B)) for program in (gather_and_sum, ring_all_reduce))
    assert max(Metrics(naive).bytes_by_device("sent")) == (N - 1) * S > max(Metrics(ring).bytes_by_device("sent"))
    assert naive.end_s == pytest.approx(N * ring.end_s, rel=1e-9)


def test_memory_and_compute_of_a_program_are_in_its_trace():
    def program(me: Rank):
        yield me.memory("activations", 100)
        yield me.compute(0.5, "layer")
        yield me.memory("activations", -100)

    trace = run([program] * 2, star(2, B))
    assert trace.end_s == 0.5
    assert Metrics(trace).peak_memory_bytes == [100, 100]
    assert [span.name for span in trace.spans] == ["layer", "layer"]


def test_ranks_that_wait_for_each_other_are_named():
    def program(me: Rank):
        yield me.recv((me.rank + 1) % 2)

    trace = run([program] * 2, star(2, B))
    assert trace.outcome == "deadlocked"
    assert sorted(waiting.rank for waiting in trace.waiting) == [0, 1]


@pytest.mark.parametrize(("other", "said"), [(7, "names rank 7"), (-1, "names rank -1"), (0, "sends to itself")])
def test_a_wrong_neighbour_is_named(other, said):
    def program(me: Rank):
        yield me.send(other if me.rank == 0 else 0, 1)

    with pytest.raises(InputError, match=said):
        run([program] * 2, star(2, B))


def test_one_program_a_device():
    with pytest.raises(InputError, match="3 programs on 2 devices"):
        run([ring_all_reduce] * 3, star(2, B))


def idle(me: Rank):
    yield me.compute(1.0)


def no_generator(me: Rank):
    me.send(1 - me.rank, 5)


def of_two(me: Rank, other: int):
    yield me.compute(other)


def of_none():
    yield


@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ([no_generator] * 2, "program 0, no_generator, gives nothing .* a program is a generator function"),
        ([of_two] * 2, "program 0, of_two, cannot be called with the rank .* a program is a generator function"),
        ([of_none] * 2, "program 0, of_none, cannot be called with the rank .* a program is a generator function"),
        ([of_none()] * 2, "is a generator that was called already.* Give the function itself"),
        ([None, None], "program 0 is nothing .* a program is a generator function"),
        ([3, "x"], "program 0 is a number: a program is a generator function"),
        (idle, "programs is a function: a list of generator functions is needed"),
        ("ab", "programs is text"),
        (None, "programs is nothing"),
    ],
)
def test_what_is_no_generator_function_is_refused(programs, said):
    with pytest.raises(InputError, match=said):
        run(programs, star(2, B))


def test_a_lambda_or_a_partial_that_gives_a_generator_is_a_program():
    trace = run([lambda me: idle(me), partial(of_two, other=2.0)], star(2, B))
    assert trace.end_s == 2.0


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (lambda me: me.send("1", 5), "rank 0 names rank '1': a rank is a whole number"),
        (lambda me: me.isend(1.0, 5), "names rank 1.0"),
        (lambda me: me.recv(None), "names rank None"),
        (lambda me: me.send_recv(1, 5, True), "names rank True"),
        (lambda me: me.send(1, 5.5), "nbytes = 5.5: a whole number is needed"),
        (lambda me: me.memory("activations", float("nan")), "bytes of 'activations' = nan: a whole number is needed"),
        (lambda me: me.memory("activations", 1.5), "a whole number is needed"),
        (lambda me: me.memory("activations", -(2**63)), "must be"),
        (lambda me: me.memory(None, 1), "the category of memory is nothing"),
        (lambda me: me.compute(float("nan")), "seconds of 'compute' = nan"),
        (lambda me: me.compute("1"), "a number is needed"),
        (lambda me: me.compute(1.0, 7), "the name of a computation is a number: text is needed"),
    ],
)
def test_a_verb_with_a_wrong_value_is_refused(verb, said):
    def program(me: Rank):
        if me.rank == 0:
            yield verb(me)

    with pytest.raises(InputError, match=said):
        run([program] * 2, star(2, B))
