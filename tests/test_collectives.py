"""Collectives against closed forms, published figures, the vectorised recurrence, and what an all-reduce promises."""

import itertools
from collections.abc import Callable, Sequence
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backend import PLAIN, PLAIN_PROTOCOL, Backend, Protocol
from simulator.cluster import Cluster, Device, Link
from simulator.collectives.communicator import Communicator
from simulator.collectives.nvls import nvls_all_reduce
from simulator.collectives.ring import (
    chain,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    split,
)
from simulator.collectives.star import fan_in, fan_out, parameter_server
from simulator.collectives.tree import binomial_all_reduce, binomial_broadcast, tree_all_reduce
from simulator.collectives.vectorised import ring_times
from simulator.engine import Engine
from simulator.errors import InputError
from simulator.metrics import Metrics, busbw
from simulator.presets.backends import backend_for
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.trace import Trace
from simulator.verbs import Program, spawn, wait
from tests.samples import loop, replay, run, star

EXACT = 1e-12


def together(programs: Sequence[Program], device: int) -> Program:
    """Several programs of one device side by side, as one."""
    started = []
    for program in programs:
        handle = yield spawn(program, "part", device, "part")
        started.append(handle)
    yield wait(*started)


def ring(cluster: Cluster, nbytes: int, starts: Sequence[float] = (), *, element_bytes: int = 4) -> Trace:
    n = cluster.world_size
    return run(cluster, lambda engine: ring_all_reduce(engine, range(n), split(nbytes, n, element_bytes)), starts)


def binomial(cluster: Cluster, nbytes: int) -> Trace:
    return run(cluster, lambda engine: binomial_all_reduce(engine, range(cluster.world_size), nbytes))


def server(cluster: Cluster, nbytes: int, servers: Sequence[int]) -> Trace:
    members = range(cluster.world_size)
    return run(cluster, lambda engine: parameter_server(engine, members, nbytes, servers=servers))


def tree(cluster: Cluster, nbytes: int, slices: int = 1, nodes: Sequence[Sequence[int]] = ()) -> Trace:
    groups = nodes or [list(range(cluster.world_size))]

    def build(engine: Engine) -> list[Program]:
        programs = tree_all_reduce(engine, groups, nbytes, slice_bytes=max(1, nbytes // 2 // slices))
        return [together(programs[device], device) for device in range(cluster.world_size)]

    return run(cluster, build)


def nvls(cluster: Cluster, nbytes: int, slices: int = 8) -> Trace:
    def build(engine: Engine) -> list[Program]:
        programs = nvls_all_reduce(engine, range(cluster.world_size), nbytes, slice_bytes=max(1, nbytes // slices))
        return [together(programs[device], device) for device in range(cluster.world_size)]

    return run(cluster, build)


def chained(cluster: Cluster, slices: Sequence[int], *, reduces: bool) -> Trace:
    order = range(cluster.world_size)
    return run(cluster, lambda engine: chain(engine, order, slices, kind="broadcast", reduces=reduces))


# ---- the ring


def ring_s(n: int, nbytes: int, bandwidth: float, latency: float) -> float:
    return 2 * (n - 1) * (latency + nbytes / (n * bandwidth))


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8, 16, 64])
def test_a_ring_takes_the_closed_form_when_n_divides_the_bytes(n: int) -> None:
    trace = ring(star(n, 12.5e9, 5e-6), n * 1_000_000)
    assert trace.end_s == pytest.approx(ring_s(n, n * 1_000_000, 12.5e9, 5e-6), rel=EXACT)
    assert Metrics(trace).bytes_by_device("sent") == [2 * (n - 1) * 1_000_000] * n
    assert len(trace.transfers) == 2 * (n - 1) * n


def test_100_mb_on_8_ranks_at_50_gb_per_s_take_three_and_a_half_milliseconds_and_14_latencies() -> None:
    assert ring(star(8, 50e9), 100_000_000).end_s == pytest.approx(3.5e-3, rel=EXACT)
    assert ring(star(8, 50e9, 1e-6), 100_000_000).end_s == pytest.approx(3.5e-3 + 14e-6, rel=EXACT)


def test_interview_ring_of_1_mb_on_4_ranks_at_1_gb_per_s() -> None:
    assert ring(star(4, 1e9, 10e-6), 1_000_000).end_s == pytest.approx(6 * (10e-6 + 250e-6), rel=EXACT)


def test_a_ring_of_one_has_nothing_to_do() -> None:
    trace = ring(star(1, 1e9, 1e-6), 1000)
    assert (trace.end_s, trace.transfers, trace.outcome) == (0.0, (), "finished")


def test_a_ring_of_zero_bytes_takes_its_latencies() -> None:
    assert ring(star(4, 1e9, 1e-6), 0).end_s == pytest.approx(2 * 3 * 1e-6, rel=EXACT)


def test_a_ring_runs_at_its_slowest_link() -> None:
    n, nbytes = 4, 4_000_000
    trace = ring(loop([1e9, 1e9, 1e8, 1e9], [0.0] * n), nbytes)
    assert trace.end_s == pytest.approx(2 * (n - 1) * (nbytes / n) / 1e8, rel=EXACT)


def test_a_late_rank_delays_everyone_by_its_lateness() -> None:
    on_time = ring(star(4, 1e9, 1e-6), 4000)
    late = ring(star(4, 1e9, 1e-6), 4000, [0.0, 0.0, 5.0, 0.0])
    assert late.end_s == pytest.approx(5.0 + on_time.end_s, rel=EXACT)


def test_after_the_reduce_scatter_rank_i_holds_chunk_i_plus_1() -> None:
    """Its first all-gather send is the chunk that it completed."""
    n = 4
    trace = ring(star(n, 1e9), 4000)
    for rank in range(n):
        sends = [t for t in trace.transfers if t.source == rank]
        assert sends[n - 1].chunk == (rank + 1) % n
        assert sends[n - 1].contributions == (1 << n) - 1


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([1, 2, 4, 8]))
def test_split_cuts_by_element_and_the_first_parts_are_one_larger(elements: int, parts: int, size: int) -> None:
    sizes = split(elements * size, parts, size)
    assert sizes == [(elements // parts + (index < elements % parts)) * size for index in range(parts)]
    assert sum(sizes) == elements * size


# ---- the vectorised ring


@st.composite
def rings(draw: st.DrawFn) -> tuple[list[int], list[float], list[float], list[float]]:
    n = draw(st.integers(2, 9))
    times = st.floats(0, 1e-3)
    return (split(draw(st.integers(0, 10**8)), n, 4), draw(st.lists(times, min_size=n, max_size=n)),
            draw(st.lists(times, min_size=n, max_size=n)),
            draw(st.lists(st.floats(1e6, 1e11), min_size=n, max_size=n)))  # fmt: skip


@given(rings())
@settings(max_examples=200, deadline=None)
def test_the_vectorised_ring_equals_the_engine_at_every_rank_and_step(scenario) -> None:
    sizes, starts, latencies, bandwidths = scenario
    n = len(sizes)
    trace = run(loop(bandwidths, latencies), lambda engine: ring_all_reduce(engine, range(n), sizes), starts)
    steps: list = []
    ends = ring_times(sizes, starts, latencies, bandwidths, steps)
    for rank in range(n):
        assert [t.end_s for t in trace.transfers if t.source == rank] == [step[rank] for step in steps]
    assert trace.end_s == max(ends)


@pytest.mark.parametrize("n", [64, 128])
def test_the_vectorised_ring_equals_the_engine_at_scale(n: int) -> None:
    random = np.random.default_rng(n)
    bandwidths, latencies = random.uniform(1e9, 5e10, n).tolist(), random.uniform(1e-6, 9e-6, n).tolist()
    starts, sizes = random.uniform(0, 1e-4, n).tolist(), split(100_000_000, n, 4)
    trace = run(loop(bandwidths, latencies), lambda engine: ring_all_reduce(engine, range(n), sizes), starts)
    last = {t.source: t.end_s for t in trace.transfers}
    assert [last[rank] for rank in range(n)] == ring_times(sizes, starts, latencies, bandwidths).tolist()


def test_the_vectorised_ring_of_one_ends_when_it_starts() -> None:
    assert ring_times([100], [3.0], [1.0], [1.0]).tolist() == [3.0]


def test_the_vectorised_ring_refuses_lists_of_different_lengths() -> None:
    with pytest.raises(InputError, match="2 chunks, 1 starts, 2 latencies, 2 bandwidths: one of each for every rank"):
        ring_times([1, 1], [0.0], [0.0, 0.0], [1.0, 1.0])


# ---- every all-reduce sums every rank exactly once


def two_nodes(each: int, inside: float, nic: float, latency_s: float = 0.0) -> Cluster:
    """Two nodes of GPUs on a switch each, one NIC a node; no PCIe."""
    devices, links = [], []
    for node in range(2):
        for index in range(node * each, (node + 1) * each):
            devices.append(Device(f"gpu{index}", node=node))
            links += [Link(f"gpu{index}", f"switch{node}", inside, latency_s),
                      Link(f"switch{node}", f"gpu{index}", inside, latency_s)]  # fmt: skip
        links += [Link(f"switch{node}", "network", nic, latency_s), Link("network", f"switch{node}", nic, latency_s)]
    return Cluster("two nodes", tuple(devices), tuple(links))


ALL_REDUCES: dict[str, Callable[[Cluster, int], Trace]] = {
    "ring": ring,
    "binomial": binomial,
    "one server": lambda cluster, nbytes: server(cluster, nbytes, [0]),
    "last server": lambda cluster, nbytes: server(cluster, nbytes, [cluster.world_size - 1]),
    "sharded servers": lambda cluster, nbytes: server(cluster, nbytes, range(cluster.world_size)),
    "tree": tree,
    "tree in slices": lambda cluster, nbytes: tree(cluster, nbytes, 5),
    "tree of nodes": lambda cluster, nbytes: tree(
        cluster, nbytes, 3, [[device] for device in range(cluster.world_size)]
    ),
    "nvls": nvls,
}


@pytest.mark.parametrize("nbytes", [0, 4, 400, 4_000_004])
@pytest.mark.parametrize("n", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_every_rank_ends_with_the_sum_of_all_ranks_each_once(name: str, n: int, nbytes: int) -> None:
    trace = ALL_REDUCES[name](star(n, 1e9, 1e-6), nbytes)
    assert trace.outcome == "finished"
    if n > 1 and nbytes:
        everyone = (1 << n) - 1
        assert set(replay(trace.transfers, range(n)).values()) == {everyone}


@pytest.mark.parametrize("groups", [[[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 5]],
                                    [[0], [1], [2]], [[0, 1, 2, 3, 4]]])  # fmt: skip
def test_the_hierarchical_all_reduce_sums_all_ranks_each_once(groups: list[list[int]]) -> None:
    size, count = len(groups[0]), len(groups)
    n = size * count
    trace = run(star(n, 1e9, 1e-6), lambda engine: hierarchical_all_reduce(engine, groups, 4_000_000))

    def parts(chunk: int) -> Sequence[int]:
        """A chunk inside a group is made of one part for each group."""
        return range(chunk * count, (chunk + 1) * count) if chunk < size else (chunk - size,)

    held = replay(trace.transfers, range(n), parts)
    assert len(held) == n * size * count
    assert set(held.values()) == {(1 << n) - 1}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("algorithm", ["auto", "ring", "tree"])
def test_the_librarys_all_reduce_sums_all_ranks_each_once_on_every_preset(name: str, algorithm: str) -> None:
    cluster = load_cluster(name)
    library = Communicator(cluster, backend_for(cluster, algorithm=algorithm))
    for nbytes in (4, 1000, 3_000_004, 200_000_000):
        trace = run(cluster, lambda engine, nbytes=nbytes: library.all_reduce(engine, nbytes))
        held = replay(trace.transfers, range(cluster.world_size))
        assert set(held.values()) == {(1 << cluster.world_size) - 1}, (nbytes, library.choose(nbytes).algorithm)


@given(st.integers(1, 9), st.integers(0, 25), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_teaching_run_gives_every_rank_the_sums(n: int, elements: int, random) -> None:
    numbers = [[random.randint(-99, 99) for _ in range(elements)] for _ in range(n)]
    sizes = split(elements * 4, n, 4)
    cuts = [0, *itertools.accumulate(size // 4 for size in sizes)]
    values = [[row[start:end] for start, end in itertools.pairwise(cuts)] for row in numbers]
    engine = Engine(star(n, 1e9, 1e-6))
    actors = [
        engine.start(program, name="rank", rank=rank, device=rank, resource="host")
        for rank, program in enumerate(ring_all_reduce(engine, range(n), sizes, values=values))
    ]
    engine.run()
    sums = [sum(column) for column in zip(*numbers)]
    for actor in actors:
        assert [number for chunk in actor.result for number in chunk] == sums


def test_a_teaching_run_carries_its_numbers_in_the_trace() -> None:
    values = [[(1.0,), (2.0,)], [(10.0,), (20.0,)]]
    trace = run(star(2, 1e9), lambda engine: ring_all_reduce(engine, range(2), [4, 4], values=values))
    assert {(t.source, t.chunk, t.values) for t in trace.transfers} == {
        (0, 0, (1.0,)), (1, 1, (20.0,)), (0, 1, (22.0,)), (1, 0, (11.0,))}  # fmt: skip
    assert Trace.from_json(trace.to_json()) == trace


# ---- broadcast, reduce, gather, scatter


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("slices", [1, 2, 16])
@pytest.mark.parametrize("reduces", [False, True])
def test_a_chain_is_a_pipeline_of_slices(n: int, slices: int, reduces: bool) -> None:
    latency, bandwidth, nbytes = 1e-6, 1e9, 160_000
    trace = chained(star(n, bandwidth, latency), [nbytes // slices] * slices, reduces=reduces)
    expected = (slices + n - 2) * (latency + nbytes / (slices * bandwidth))
    assert trace.end_s == pytest.approx(expected, rel=EXACT)
    assert Metrics(trace).bytes_by_device("sent") == [nbytes] * (n - 1) + [0]


def test_a_chain_that_reduces_sums_all_at_its_end_and_one_that_broadcasts_carries_the_roots() -> None:
    reduced = chained(star(4, 1e9), [100, 100], reduces=True)
    assert [t.contributions for t in reduced.transfers if t.target == 3] == [0b0111] * 2
    sent = chained(star(4, 1e9), [100, 100], reduces=False)
    assert {t.contributions for t in sent.transfers} == {0b0001}


@pytest.mark.parametrize("in_turn", [True, False])
@pytest.mark.parametrize("build", [fan_out, fan_in])
def test_a_star_takes_all_copies_through_one_link(build, in_turn: bool) -> None:
    n, nbytes, bandwidth, latency = 4, 1_000_000, 1e9, 1e-6
    sizes = dict.fromkeys(range(1, n), nbytes)
    trace = run(star(n, bandwidth, latency), lambda engine: [build(engine, 0, sizes, kind="copy", in_turn=in_turn)])
    latencies = (n - 1) * latency if in_turn else latency
    assert trace.end_s == pytest.approx((n - 1) * nbytes / bandwidth + latencies, rel=EXACT)
    direction = "sent" if build is fan_out else "received"
    assert Metrics(trace).bytes_by_device(direction) == [(n - 1) * nbytes, 0, 0, 0]


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_a_binomial_broadcast_reaches_everyone_in_log2_n_rounds(n: int) -> None:
    latency, bandwidth, nbytes = 1e-6, 1e9, 1_000_000
    members = range(n)
    trace = run(star(n, bandwidth, latency), lambda engine: binomial_broadcast(engine, members, nbytes, kind="copy"))
    assert trace.end_s == pytest.approx(ceil(log2(n)) * (latency + nbytes / bandwidth), rel=EXACT)
    assert sorted(t.target for t in trace.transfers) == list(range(1, n))


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_all_gather_takes_n_minus_1_steps(n: int) -> None:
    latency, bandwidth, nbytes = 1e-6, 1e9, 1_000_000
    sizes = [nbytes] * n
    trace = run(star(n, bandwidth, latency), lambda engine: ring_all_gather(engine, range(n), sizes, kind="all_gather"))
    assert trace.end_s == pytest.approx((n - 1) * (latency + nbytes / bandwidth), rel=EXACT)


# ---- servers and trees


def test_160_mb_on_4_gpus_at_16_gb_per_s_take_60_ms_through_one_gpu_and_15_ms_sharded() -> None:
    """The figures of the textbook Dive into Deep Learning, for full-duplex links through a switch."""
    cluster, nbytes = star(4, 16e9), 160_000_000
    assert server(cluster, nbytes, [0]).end_s == pytest.approx(2 * 3 * nbytes / 16e9, rel=EXACT)
    assert server(cluster, nbytes, [0]).end_s == pytest.approx(60e-3, rel=EXACT)
    assert server(cluster, nbytes, range(4)).end_s == pytest.approx(15e-3, rel=EXACT)
    assert ring(cluster, nbytes).end_s == pytest.approx(15e-3, rel=EXACT)


def test_servers_need_two_steps_where_the_ring_needs_many() -> None:
    n, latency = 8, 50e-3
    cluster = star(n, 1e9, latency)
    assert server(cluster, 8000, range(n)).end_s == pytest.approx(2 * (latency + 7 * 1000 / 1e9), rel=EXACT)
    assert ring(cluster, 8000).end_s == pytest.approx(2 * (n - 1) * (latency + 1000 / 1e9), rel=EXACT)


def binomial_s(n: int, nbytes: int, bandwidth: float, latency: float) -> float:
    return 2 * log2(n) * (latency + nbytes / bandwidth)


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_a_binomial_tree_takes_2_log2_n_whole_transfers(n: int) -> None:
    trace = binomial(star(n, 12.5e9, 5e-6), 100_000)
    assert trace.end_s == pytest.approx(binomial_s(n, 100_000, 12.5e9, 5e-6), rel=EXACT)


def crossing(n: int, bandwidth: float, latency: float) -> float:
    return latency * bandwidth * ((n - 1) - log2(n)) / (log2(n) - (n - 1) / n)


def test_the_ring_and_the_binomial_tree_cross_at_117647_bytes_on_8_ranks() -> None:
    n, bandwidth, latency = 8, 12.5e9, 5e-6
    size = crossing(n, bandwidth, latency)
    assert round(size) == 117_647
    cluster = star(n, bandwidth, latency)
    for nbytes, wins in ((int(size * 0.99) // 32 * 32, "tree"), (int(size * 1.01) // 32 * 32, "ring")):
        rings, trees = ring(cluster, nbytes).end_s, binomial(cluster, nbytes).end_s
        assert rings == pytest.approx(ring_s(n, nbytes, bandwidth, latency), rel=EXACT)
        assert (trees < rings) == (wins == "tree")
    at = 117_648
    assert ring(cluster, at).end_s == pytest.approx(binomial(cluster, at).end_s, rel=1e-4)


def test_interview_ring_against_tree_at_64_ranks() -> None:
    cluster, nbytes = star(64, 12.5e9, 5e-6), 100_000
    assert ring(cluster, nbytes).end_s == pytest.approx(0.646e-3, rel=2e-3)
    assert binomial(cluster, nbytes).end_s == pytest.approx(0.156e-3, rel=2e-3)
    assert crossing(64, 12.5e9, 5e-6) == pytest.approx(710e3, rel=5e-3)


@pytest.mark.parametrize("n", [2, 4, 8])
def test_two_mirrored_chains_carry_half_the_bytes_each(n: int) -> None:
    """NCCL's tree inside a node: 2 (G - 1) steps of S/2, the two trees in opposite directions."""
    latency, bandwidth, nbytes = 1e-6, 1e9, 8000
    trace = tree(star(n, bandwidth, latency), nbytes)
    assert trace.end_s == pytest.approx(2 * (n - 1) * (latency + nbytes / 2 / bandwidth), rel=EXACT)


def mesh(n: int, bandwidth: float) -> Cluster:
    """A cable between every two devices."""
    links = [Link(f"gpu{a}", f"gpu{b}", bandwidth) for a, b in itertools.permutations(range(n), 2)]
    return Cluster("mesh", tuple(Device(f"gpu{index}") for index in range(n)), tuple(links))


def test_slices_bring_the_tree_near_one_buffer_over_each_cable() -> None:
    """A cable carries half the buffer up one tree and half down the other; a switch port both of two neighbours."""
    n, bandwidth, nbytes = 4, 1e9, 64_000_000
    on_cables, on_ports = tree(mesh(n, bandwidth), nbytes, 64).end_s, tree(star(n, bandwidth), nbytes, 64).end_s
    assert nbytes / bandwidth <= on_cables < 1.1 * nbytes / bandwidth
    assert 2 * nbytes / bandwidth <= on_ports < 1.1 * 2 * nbytes / bandwidth


# ---- hierarchy and shared NICs


def test_a_hierarchy_beats_one_flat_ring_over_two_nodes() -> None:
    """Interview question: 1 GB, 2 nodes of 8, 450 GB/s inside, one NIC of 25 GB/s a node."""
    nbytes = 1_000_000_000
    cluster = two_nodes(8, 450e9, 25e9)
    flat = ring(cluster, nbytes)
    assert flat.end_s == pytest.approx(2 * 15 / 16 * nbytes / 25e9, rel=EXACT)
    groups = [range(8), range(8, 16)]
    layered = run(cluster, lambda engine: hierarchical_all_reduce(engine, groups, nbytes))
    inside, across = 7 / 8 * nbytes / 450e9, 8 * (nbytes / 8) / 25e9
    assert layered.end_s == pytest.approx(2 * inside + across, rel=EXACT)
    assert layered.end_s == pytest.approx(43.9e-3, rel=1e-3)


def test_a_hierarchy_sends_only_one_share_of_the_bytes_across() -> None:
    nbytes = 8_000_000
    trace = run(two_nodes(8, 450e9, 25e9),
                lambda engine: hierarchical_all_reduce(engine, [range(8), range(8, 16)], nbytes))  # fmt: skip
    across = sum(t.nbytes for t in trace.transfers if (t.source < 8) != (t.target < 8))
    assert across == 2 * 8 * (nbytes // 8)


def test_two_rings_through_one_nic_take_twice_as_long_and_unequal_ones_share_until_one_ends() -> None:
    """Two process groups, a member of each pair on either node; each crossing of the network meets the other's."""
    nic, nbytes = 12.5e9, 80_000_000
    cluster = two_nodes(4, 1e12, nic)
    groups = [(0, 1, 4, 5), (2, 3, 6, 7)]

    def both(sizes: Sequence[int]) -> Trace:
        engine = Engine(cluster)
        for group, size in zip(groups, sizes):
            programs = ring_all_reduce(engine, group, split(size, 4, 4), kind=f"group {group}")
            for rank, program in zip(group, programs):
                engine.start(program, name="rank", rank=rank, device=rank, resource=str(group))
        return engine.run()

    alone = 6 * nbytes / 4 / nic
    assert both([nbytes, 0]).end_s == pytest.approx(alone, rel=EXACT)
    assert both([nbytes, nbytes]).end_s == pytest.approx(2 * alone, rel=EXACT)
    # With half as many bytes the second is done when both have moved as much; then the first goes on alone.
    trace = both([nbytes, nbytes // 2])
    first, second = (max(t.end_s for t in trace.transfers if t.kind == f"group {group}") for group in groups)
    assert second == pytest.approx(2 * alone / 2, rel=1e-3)
    assert first == pytest.approx(1.5 * alone, rel=1e-3)


def test_rings_in_both_directions_of_a_full_duplex_cable_do_not_meet() -> None:
    n, nbytes = 4, 4_000_000

    def both(engine: Engine) -> list[Program]:
        sizes = split(nbytes // 2, n, 4)
        right = ring_all_reduce(engine, range(n), sizes)
        left = ring_all_reduce(engine, [0, *range(n - 1, 0, -1)], sizes)
        back = {0: left[0], **{device: left[n - device] for device in range(1, n)}}
        return [together([right[device], back[device]], device) for device in range(n)]

    assert run(mesh(n, 1e9), both).end_s == pytest.approx(ring_s(n, nbytes // 2, 1e9, 0.0), rel=EXACT)


# ---- NVLS and the library's choice


def test_nvls_on_8_h100_beats_the_ring_at_1_gib() -> None:
    cluster, nbytes = load_cluster("8xH100"), 1 << 30

    def seconds(algorithm: str) -> float:
        library = Communicator(cluster, backend_for(cluster, algorithm=algorithm))
        return run(cluster, lambda engine: library.all_reduce(engine, nbytes)).end_s

    assert seconds("nvls") == pytest.approx(3.9e-3, rel=0.05)
    assert seconds("ring") == pytest.approx(5.1e-3, rel=0.05)
    assert Communicator(cluster, backend_for(cluster)).choose(nbytes).algorithm == "nvls"


def test_nvls_carries_one_buffer_and_one_share_of_it_each_way() -> None:
    n, nbytes = 8, 8_000_000
    metrics = Metrics(nvls(star(n, 1e9), nbytes))
    assert metrics.bytes_by_device("sent") == [nbytes + nbytes // n] * n
    assert metrics.bytes_by_device("received") == [nbytes + nbytes // n] * n


def test_interview_busbw() -> None:
    seconds = 0.6e-3
    assert (128 << 20) / seconds == pytest.approx(223.7e9, rel=1e-3)
    assert busbw(128 << 20, seconds, 8) == pytest.approx(391.5e9, rel=1e-3)


def test_without_multicast_nvls_falls_back_to_the_ring() -> None:
    assert Communicator(star(4, 1e9), Backend(algorithm="nvls")).choose(1000).algorithm == "ring"


def test_the_estimate_of_a_plain_ring_is_the_engines_time() -> None:
    cluster = star(8, 12.5e9, 5e-6)
    library = Communicator(cluster, PLAIN)
    trace = run(cluster, lambda engine: library.all_reduce(engine, 80_000_000))
    assert library.choose(80_000_000).estimate_s == pytest.approx(trace.end_s, rel=EXACT)


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_librarys_estimates_never_fall_as_bytes_grow_and_the_cheapest_is_taken(name: str) -> None:
    cluster = load_cluster(name)
    sizes = [round(1.5**power) for power in range(52)]
    estimates = {algorithm: [Communicator(cluster, backend_for(cluster, algorithm=algorithm)).choose(size).estimate_s
                             for size in sizes] for algorithm in ("auto", "ring", "tree", "nvls")}  # fmt: skip
    for times in estimates.values():
        assert times == sorted(times)
    assert all(auto <= min(others) for auto, *others in zip(*estimates.values()))


def test_rings_share_the_bytes_and_run_beside_each_other() -> None:
    """A DGX-1 has double and single NVLinks; its rings use both, in both directions."""
    cluster = load_cluster("8xV100-dgx1")
    nbytes = 96_000_000
    library = Communicator(cluster, PLAIN)
    trace = run(cluster, lambda engine: library.all_reduce(engine, nbytes))
    shares = [sum(t.nbytes for t in trace.transfers if t.chunk is not None and t.chunk // 8 == number)
              for number in range(len(cluster.rings))]  # fmt: skip
    assert shares == [round(2 * 7 * nbytes * ring.share) for ring in cluster.rings]
    assert sum(Metrics(trace).bytes_by_device("sent")) == 2 * 7 * nbytes


def test_a_protocol_adds_its_start_its_steps_and_its_fraction() -> None:
    n, nbytes, bandwidth = 4, 4_000_000, 1e9
    protocol = Protocol("LL", base_s=7e-6, step_s=2e-6, bandwidth_fraction=0.5)
    backend = Backend(ring_protocols=(protocol,))
    cluster = star(n, bandwidth)
    trace = run(cluster, lambda engine: Communicator(cluster, backend).all_reduce(engine, nbytes))
    assert trace.end_s == pytest.approx(7e-6 + 2 * (n - 1) * (2e-6 + nbytes / n / (bandwidth * 0.5)), rel=EXACT)


def test_the_cheapest_of_three_lines_is_the_lower_envelope() -> None:
    lines = (Protocol("LL", 1e-6, 0.0, 0.5), Protocol("Simple", 9e-6, 0.0, 1.0))
    library = Communicator(star(2, 1e9), Backend(ring_protocols=lines))
    cross = (9e-6 - 1e-6) * 1e9 / (1 / 0.5 - 1)
    assert library.choose(round(cross * 0.9)).protocol.name == "LL"
    assert library.choose(round(cross * 1.1)).protocol.name == "Simple"


def test_nothing_to_reduce_is_done_at_once() -> None:
    cluster = star(4, 1e9, 1e-6)
    trace = run(cluster, lambda engine: Communicator(cluster, PLAIN).all_reduce(engine, 0))
    assert (trace.end_s, trace.transfers) == (0.0, ())


# ---- law 9: more bytes, more latency or less bandwidth never make one collective faster


EVEN = 8 * 9 * 5
"""Elements that halves, five, six or eight slices, and two to six ranks divide."""
MONOTONE: dict[str, Callable[[Cluster, int], Trace]] = {
    **{name: ALL_REDUCES[name] for name in ALL_REDUCES if name != "tree of nodes"},
    "broadcast": lambda cluster, nbytes: chained(cluster, split(nbytes, 6, 4), reduces=False),
    "reduce": lambda cluster, nbytes: chained(cluster, split(nbytes, 6, 4), reduces=True),
    "hierarchical": lambda cluster, nbytes: run(
        cluster, lambda engine: hierarchical_all_reduce(engine, [range(2), range(2, 4)], nbytes)
    ),
}


@given(
    st.sampled_from(sorted(MONOTONE)), st.integers(2, 6), st.integers(0, 10**5), st.integers(0, 10**4),
    st.floats(1e6, 1e10), st.floats(1, 10), st.floats(0, 1e-3), st.floats(0, 1e-3),
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_one_collective_never_gets_faster_with_more_to_do(
    name: str, n: int, nbytes: int, more: int, bandwidth: float, faster: float, latency: float, later: float
) -> None:
    """Sizes divide evenly: where two of a collective's own flows share a link, the remainder of one element in one
    slice can turn their order, and the whole comes out an element's time shorter."""
    n = 4 if name == "hierarchical" else n
    collective = MONOTONE[name]
    nbytes, more = nbytes * 4 * EVEN, more * 4 * EVEN

    def seconds(nbytes: int, bandwidth: float, latency: float) -> float:
        return collective(star(n, bandwidth, latency), nbytes).end_s

    at = seconds(nbytes, bandwidth, latency)
    tolerance = 1 + 1e-9
    assert at <= seconds(nbytes + more, bandwidth, latency) * tolerance
    assert at <= seconds(nbytes, bandwidth, latency + later) * tolerance
    assert at * tolerance >= seconds(nbytes, bandwidth * faster, latency)


@given(st.sampled_from(["broadcast", "reduce"]), st.integers(0, 3 << 20), st.integers(0, 1 << 20))
@settings(max_examples=60, deadline=None)
def test_the_librarys_broadcast_and_reduce_never_get_faster_with_more_bytes(
    kind: str, elements: int, more: int
) -> None:
    cluster = load_cluster("8xV100-pcie")
    library = Communicator(cluster, PLAIN)

    def seconds(nbytes: int) -> float:
        engine = Engine(cluster)
        for device, program in getattr(library, kind)(engine, nbytes, kind=kind).items():
            engine.start(program, name=kind, rank=device, device=device, resource="host")
        return engine.run().end_s

    assert seconds(4 * elements) <= seconds(4 * (elements + more)) * (1 + 1e-9)


def test_equal_collectives_give_equal_traces() -> None:
    for name, collective in ALL_REDUCES.items():
        cluster = star(6, 1e9, 1e-6)
        first, second = collective(cluster, 1_000_004), collective(cluster, 1_000_004)
        assert first == second, name
        assert first.to_json() == second.to_json(), name


def test_the_plain_protocol_costs_nothing() -> None:
    assert (PLAIN_PROTOCOL.base_s, PLAIN_PROTOCOL.step_s, PLAIN_PROTOCOL.bandwidth_fraction) == (0.0, 0.0, 1.0)
