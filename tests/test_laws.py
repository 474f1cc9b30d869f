"""The laws of a trace over every preset and strategy, and over random small scenarios."""

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator import codec
from simulator.backend import PLAIN, Backend, Protocol, gloo, nccl
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.backends import backend_for
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.scenario import (
    OPTIMIZERS,
    DataParallel,
    DistributedDataParallel,
    Host,
    Scenario,
    SingleDevice,
    Strategy,
    data_parallel_obstacle,
)
from simulator.simulate import simulate
from simulator.trace import Trace
from tests import laws
from tests.samples import layers_of, preset, star

HOST = Host(forward_s=1e-4, replicate_tensor_s=2e-6, replicate_copy_s=3e-6, reduce_tensor_s=1e-6,
            backward_contention=0.1, hook_s=1e-6, step_s=1e-4, context_bytes=400 << 20)  # fmt: skip
STRATEGIES: dict[str, Strategy] = {
    "dp nccl": DataParallel(),
    "dp peer_copy": DataParallel("peer_copy"),
    "dp loss inside, last device": DataParallel("peer_copy", output_device=1, loss_inside=True),
    "ddp": DistributedDataParallel(),
    "ddp views": DistributedDataParallel(gradient_as_bucket_view=True),
    "ddp finds unused": DistributedDataParallel(BucketOptions(find_unused_parameters=True)),
    "ddp static graph": DistributedDataParallel(BucketOptions(static_graph=True)),
    "ddp by tensor": DistributedDataParallel(BucketOptions(bucket_cap_mb=0), forward_sync_buffers=False),
}
SMALL, LARGE = (0, 1, 2, 3), (0, 3)
"""Iterations: of a small model all that differ, of a large one the first and a steady one."""
CASES = [
    *((cluster, strategy, "mlp-small", SMALL) for cluster in CLUSTERS for strategy in STRATEGIES),
    *((cluster, strategy, model, LARGE)
      for cluster, model in (("4xA100", "vgg16"), ("8xV100-dgx1", "resnet18"), ("8xV100-pcie", "gpt2-128"),
                             ("2x2080Ti-pcie", "resnet50"), ("2x8xH100-8nic", "bert-base"), ("laptop", "resnet18"))
      for strategy in ("dp nccl", "dp peer_copy", "ddp")),
]  # fmt: skip


def runs_here(strategy: Strategy, cluster: Cluster) -> bool:
    return not isinstance(strategy, DataParallel) or data_parallel_obstacle(cluster) is None


@pytest.mark.parametrize(("cluster", "strategy", "model", "iterations"), [
    case for case in CASES if runs_here(STRATEGIES[case[1]], load_cluster(case[0]))
])  # fmt: skip
def test_the_laws_hold_on_every_preset_and_strategy(
    cluster: str, strategy: str, model: str, iterations: tuple[int, ...]
) -> None:
    machine = load_cluster(cluster)
    scenario = Scenario(preset(model, host_s=5e-6), machine, STRATEGIES[strategy], backend_for(machine), 4, host=HOST,
                        iterations=iterations)  # fmt: skip
    trace = simulate(scenario)
    assert trace.outcome == "finished"
    laws.check(trace)
    if iterations == SMALL:
        repeats_exactly(scenario, trace)


def repeats_exactly(scenario: Scenario, trace: Trace) -> None:
    """Law 6."""
    again = codec.from_json(codec.to_json(scenario))
    assert again == scenario
    assert hash(again) == hash(scenario)
    assert simulate(again) == trace
    read = Trace.from_json(trace.to_json())
    assert read == trace
    assert read.to_json() == trace.to_json()
    assert (read.source, read.provenance, read.covers, read.unverified, read.clock_offset_s, read.outcome) == (
        trace.source, trace.provenance, trace.covers, trace.unverified, trace.clock_offset_s, trace.outcome)  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("strategy", [DataParallel(), DataParallel("peer_copy"), DistributedDataParallel(),
                                      SingleDevice()])  # fmt: skip
def test_one_rank_sends_nothing(name: str, strategy: Strategy) -> None:
    """Law 7, first half."""
    cluster = load_cluster(name).take(1)
    scenario = Scenario(preset("mlp-small"), cluster, strategy, backend_for(cluster), host=HOST, iterations=(0, 1, 2))
    trace = simulate(scenario)
    assert trace.transfers == ()
    laws.check(trace)


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_without_costs_every_strategy_takes_the_compute_time(strategy: Strategy, n: int) -> None:
    """Law 7, second half: infinite bandwidth and memory speed, no latency, host, launch or copy cost."""
    model = preset("resnet18", 0.05)
    scenario = Scenario(model, star(n, 1e30), strategy, PLAIN, 4, optimizer=OPTIMIZERS["none"],
                        host=Host(device_memory_bytes_per_s=1e30))  # fmt: skip
    assert simulate(scenario).end_s == pytest.approx(model.compute_s(4), rel=1e-12)


def test_communication_alone_takes_the_rings_closed_form() -> None:
    """Law 8 in a whole step: one bucket, no compute, no copies."""
    n, nbytes, bandwidth, latency = 4, 4_000_000, 1e9, 1e-6
    model = layers_of([nbytes], 0.0, 0.0)
    scenario = Scenario(model, star(n, bandwidth, latency), DistributedDataParallel(), PLAIN, 1,
                        optimizer=OPTIMIZERS["none"], host=Host(device_memory_bytes_per_s=1e30))  # fmt: skip
    trace = simulate(scenario)
    assert trace.end_s == pytest.approx(2 * (n - 1) * (latency + nbytes / (n * bandwidth)), rel=1e-12)
    sent = [sum(t.nbytes for t in trace.transfers if t.source == rank) for rank in range(n)]
    assert sent == [2 * (n - 1) * nbytes // n] * n


# ---- random scenarios


SECONDS = st.one_of(st.just(0.0), st.floats(1e-7, 1e-2))
COSTS = st.builds(Cost, SECONDS, SECONDS)


@st.composite
def models(draw: st.DrawFn) -> ModelProfile:
    parameters: list[Parameter] = []
    layers = []
    for index in range(draw(st.integers(1, 5))):
        owned = []
        for number in range(draw(st.integers(0, 3))):
            name = f"p{index}.{number}"
            dtype = draw(st.sampled_from(["float32", "float32", "float16"]))
            shape = tuple(draw(st.lists(st.integers(0, 700), max_size=2)))
            trained = draw(st.booleans()) or not parameters
            parameters.append(Parameter(name, shape, dtype, requires_grad=trained))
            owned += [name] if trained else []
        layers.append(Layer(f"layer {index}", tuple(owned), draw(COSTS), draw(COSTS), draw(SECONDS), draw(SECONDS),
                            draw(st.integers(0, 10_000))))  # fmt: skip
    if not parameters:
        parameters.append(Parameter("p", (10,)))
        layers[-1] = replace(layers[-1], parameters=("p",))
    ready = draw(st.permutations([p.name for p in parameters if p.requires_grad]))
    buffers = tuple(Parameter(f"b{i}", (size,), dtype) for i, (size, dtype) in enumerate(
        draw(st.lists(st.tuples(st.integers(0, 50), st.sampled_from(["float32", "int64"])), max_size=3))))  # fmt: skip
    return ModelProfile("random", tuple(parameters), tuple(layers), tuple(ready), buffers, draw(st.integers(0, 10_000)),
                        draw(st.integers(0, 10_000)), draw(COSTS))  # fmt: skip


BACKENDS = st.one_of(
    st.just(PLAIN),
    st.builds(nccl, st.floats(0.1, 1.0), algorithm=st.sampled_from(["auto", "ring", "tree", "nvls"]),
              serial=st.booleans(), compute_slowdown=st.sampled_from([0.0, 0.2])),
    st.builds(gloo, st.sampled_from([0.0, 5e-5])),
    st.builds(Backend, ring_protocols=st.just((Protocol("half", 1e-6, 1e-6, 0.5),)),
              concurrent_collectives=st.integers(1, 3), launch_s=SECONDS, blocks_host=st.booleans()),
)  # fmt: skip
BUCKETS = st.builds(BucketOptions, st.sampled_from([None, 0, 0.001, 0.5, 25]), find_unused_parameters=st.booleans(),
                    static_graph=st.booleans())  # fmt: skip


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    n = draw(st.integers(1, 6))
    kind = draw(st.sampled_from(["star", "preset"]))
    if kind == "star":
        cluster = star(n, draw(st.floats(1e6, 1e11)), draw(SECONDS))
    else:
        cluster = load_cluster(draw(st.sampled_from(["8xV100-dgx1", "8xV100-pcie", "8xH100"]))).take(n)
    strategy = draw(st.one_of(
        st.builds(DataParallel, st.sampled_from(["nccl", "peer_copy"]), st.integers(0, n - 1), st.booleans()),
        st.builds(DistributedDataParallel, BUCKETS, st.booleans(), st.booleans()),
        st.just(SingleDevice()) if n == 1 else st.nothing(),
    ))  # fmt: skip
    least = 1 if isinstance(strategy, DataParallel) else n
    backend = draw(BACKENDS)
    if backend.algorithm == "nvls" and not cluster.multicast:
        backend = replace(backend, algorithm="auto")
    return Scenario(
        draw(models()), cluster, strategy, backend,
        batch_per_device=draw(st.integers(1, 5)),
        global_batch=draw(st.one_of(st.none(), st.integers(least, 20))),
        optimizer=draw(st.sampled_from(list(OPTIMIZERS.values()))),
        host=draw(st.sampled_from([Host(), HOST])),
        inputs=draw(st.sampled_from(["device", "host"])) if cluster.hosts else "device",
        iterations=draw(st.sampled_from([(0,), (3,), (0, 1, 2, 3), (1, 5)])),
        construction=draw(st.booleans()),
        speed=draw(st.one_of(st.just(()), st.lists(st.floats(0.2, 2), min_size=n, max_size=n).map(tuple))),
    )  # fmt: skip


@given(scenarios())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_the_laws_hold_in_random_scenarios(scenario: Scenario) -> None:
    trace = simulate(scenario)
    assert trace.outcome == "finished"
    laws.check(trace)
    repeats_exactly(scenario, trace)


# ---- the laws have teeth: a trace that breaks one is noticed


def whole() -> Trace:
    return simulate(Scenario(preset("mlp-small"), star(4, 1e9, 1e-6), DistributedDataParallel(), PLAIN, 4,
                             iterations=(1, 2, 3)))  # fmt: skip


def changed(trace: Trace, table: str, position: int, **values: object) -> Trace:
    """The trace with one row changed."""
    rows = list(getattr(trace, table))
    rows[position] = rows[position]._replace(**values)
    return replace(trace, **{f"raw_{table}": rows})


def test_an_overlap_is_noticed() -> None:
    trace = whole()
    position = next(i for i, span in enumerate(trace.spans) if span.kind == "forward")
    with pytest.raises(AssertionError, match="overlaps"):
        laws.check(changed(trace, "spans", position, end_s=trace.spans[position].end_s + 1e-4))


def test_a_transfer_that_is_too_fast_is_noticed() -> None:
    trace = whole()
    with pytest.raises(AssertionError):
        laws.check(changed(trace, "transfers", 9, nbytes=10 * trace.transfers[9].nbytes))


def test_two_transfers_on_a_link_for_one_are_noticed() -> None:
    trace = whole()
    double = trace.transfers[9]._replace(id=10**6)
    with pytest.raises(AssertionError):
        laws.no_link_is_overloaded(replace(trace, raw_transfers=[*trace.transfers, double]))


def test_a_chunk_that_is_sent_too_early_is_noticed() -> None:
    trace = whole()
    position = next(i for i, t in enumerate(trace.transfers) if t.kind == "all_reduce" and t.contributions == 0b11)
    with pytest.raises(AssertionError):
        laws.nothing_is_sent_before_it_is_held(changed(trace, "transfers", position, issue_s=0.0))


def test_a_rank_that_is_left_out_is_noticed() -> None:
    trace = whole()
    position = next(i for i, t in enumerate(trace.transfers) if t.kind == "all_reduce" and t.contributions == 0b1111)
    with pytest.raises(AssertionError):
        laws.every_all_reduce_is_complete(changed(trace, "transfers", position, contributions=0b0111))


def test_memory_that_does_not_come_back_is_noticed() -> None:
    trace = whole()
    dropped = [i for i, m in enumerate(trace.memory) if (m.device, m.category) == (0, "outputs") and m.nbytes < 0]
    position = dropped[1]
    with pytest.raises(AssertionError):
        laws.memory_returns(changed(trace, "memory", position, nbytes=trace.memory[position].nbytes + 1))
    with pytest.raises(AssertionError):
        laws.memory_returns(changed(trace, "memory", position, nbytes=10 * trace.memory[position].nbytes))
