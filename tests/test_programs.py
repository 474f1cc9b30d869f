"""A learner's programs: the same trace as any other run, and mistakes that are named."""

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
