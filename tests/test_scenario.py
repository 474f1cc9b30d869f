"""Bad input is refused where the value comes into being, and says what was given, the rule and what to do next."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backend import Backend, Protocol, nccl
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster, Device, Link, Ring
from simulator.compare import compare
from simulator.errors import InputError, number, unknown, whole
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.presets.backends import backend_for
from simulator.presets.build import build_scenario
from simulator.presets.clusters import load_cluster
from simulator.presets.models import load_model
from simulator.scenario import (
    OPTIMIZERS,
    DataParallel,
    DistributedDataParallel,
    Host,
    Optimizer,
    Scenario,
    SingleDevice,
)
from simulator.simulate import simulate
from tests.samples import layers_of, star

NAN, INFINITE = math.nan, math.inf
MODEL = layers_of([400, 800], 1e-3, 1e-3, input_bytes=10, output_bytes=4)
BASE = Scenario(MODEL, star(4, 1e9), DistributedDataParallel())


def refused(build: Any, *parts: str) -> None:
    """It raises InputError, in three parts (given, rule, next step), with these words in it."""
    with pytest.raises(InputError) as caught:
        build()
    message = str(caught.value)
    for part in parts:
        assert part in message, message
    assert message.rstrip().endswith("."), message
    assert message.count(". ") >= 1 or "Known:" in message, message


# ---- names


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: load_cluster("8xV100-pci"), ("8xV100-pci", "Did you mean '8xV100-pcie'", "Known: ", "laptop")),
        (lambda: load_model("resnet5O", "V100"), ("resnet5O", "Did you mean 'resnet50'", "Known: ", "vgg16")),
        (lambda: load_model("resnet50", "V1000"), ("V1000", "Did you mean 'V100'", "Known: ")),
        (lambda: build_scenario("resnet50", "nowhere"), ("cluster 'nowhere' is not known", "Known: ")),
        (lambda: build_scenario("resnet50", "4xA100", optimizer="adamm"), ("Did you mean 'adam'", "Known: ")),
        (lambda: DataParallel("ncl"), ("transport 'ncl' is not known", "Did you mean 'nccl'")),
        (lambda: Backend(algorithm="rings"), ("algorithm 'rings' is not known", "Did you mean 'ring'")),
        (lambda: backend_for(star(2, 1.0), name="mpi"), ("library 'mpi' is not known", "Known: nccl, gloo, plain")),
        (lambda: Parameter("p", (1,), "float31"), ("dtype 'float31' is not known", "Did you mean 'float32'")),
        (lambda: replace(BASE, inputs="disk"), ("inputs 'disk' is not known", "Known: device, host")),
    ],
)  # fmt: skip
def test_an_unknown_name_lists_the_known_ones_and_the_nearest(build, words) -> None:
    refused(build, *words)


def test_a_name_unlike_any_other_gets_the_list_alone() -> None:
    assert str(unknown("model", "zzz", ["resnet50"])) == "model 'zzz' is not known. Known: resnet50."


# ---- sizes and numbers


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: replace(BASE, batch_per_device=0), ("batch_per_device = 0", "must be 1 or more")),
        (lambda: replace(BASE, batch_per_device=-3), ("batch_per_device = -3", "must be 1 or more")),
        (lambda: replace(BASE, batch_per_device=2.5), ("batch_per_device = 2.5", "a whole number is needed")),
        (lambda: replace(BASE, batch_per_device=True), ("batch_per_device = True", "a whole number is needed")),
        (lambda: replace(BASE, batch_per_device=10**30), ("batch_per_device", "must fit 63 bits")),
        (lambda: replace(BASE, global_batch=0), ("global_batch = 0", "must be 1 or more")),
        (lambda: replace(BASE, global_batch=3), ("global_batch 3 on 4 ranks", "Use 4 or more")),
        (lambda: replace(BASE, iterations=()), ("iterations ()", "at least one is needed")),
        (lambda: replace(BASE, iterations=(1, 0)), ("iterations (1, 0)", "rising order")),
        (lambda: replace(BASE, iterations=(1, 1)), ("iterations (1, 1)", "rising order")),
        (lambda: replace(BASE, iterations=(-1,)), ("iteration = -1", "must be 0 or more")),
        (lambda: replace(BASE, iterations=(0.5,)), ("iteration = 0.5", "a whole number is needed")),
        (lambda: replace(BASE, iterations=(0, "1")), ("iteration = '1'", "a whole number is needed")),
        (lambda: replace(BASE, iterations=3), ("iterations 3", "a tuple of at least one")),
        (lambda: replace(BASE, speed=(1.0,)), ("1 speeds for 4 devices", "one a device")),
        (lambda: replace(BASE, speed=(1.0, 1.0, 0.0, 1.0)), ("speed = 0.0", "above 0")),
        (lambda: replace(BASE, speed=(1.0, 1.0, NAN, 1.0)), ("speed = nan", "must be finite")),
        (lambda: Parameter("p", (3, -1)), ("a dimension of parameter 'p' = -1", "must be 0 or more")),
        (lambda: Parameter("p", (2**40, 2**40)), ("bytes of parameter 'p'", "must fit 63 bits")),
        (lambda: Cost(-1e-3), ("fixed_s = -0.001", "must be finite and 0 or more")),
        (lambda: Cost(0.0, NAN), ("per_sample_s = nan", "must be finite")),
        (lambda: Cost("1"), ("fixed_s = '1'", "a number is needed")),
        (lambda: Layer("l", forward_host_s=INFINITE), ("forward_host_s of layer 'l' = inf", "must be finite")),
        (lambda: Layer("l", activation_bytes_per_sample=-1), ("activation_bytes_per_sample of layer 'l' = -1",)),
        (lambda: replace(MODEL, input_bytes_per_sample=-1), ("input_bytes_per_sample of model 'layers' = -1",)),
        (lambda: Host(hook_s=NAN), ("hook_s = nan", "must be finite")),
        (lambda: Host(device_memory_bytes_per_s=0.0), ("device_memory_bytes_per_s = 0.0", "above 0")),
        (lambda: Host(context_bytes=-1), ("context_bytes = -1", "must be 0 or more")),
        (lambda: Optimizer("o", -1), ("state_copies = -1", "must be 0 or more")),
        (lambda: Backend(launch_s=-1.0), ("launch_s = -1.0", "must be finite and 0 or more")),
        (lambda: Backend(concurrent_collectives=0), ("concurrent_collectives = 0", "must be 1 or more")),
        (lambda: Backend(compute_slowdown=1.0), ("compute_slowdown 1", "compute must still advance")),
        (lambda: Backend(ring_protocols=()), ("ring_protocols is empty", "at least one is needed")),
        (lambda: Protocol("p", bandwidth_fraction=0.0), ("bandwidth_fraction of protocol p = 0.0", "above 0")),
        (lambda: Protocol("p", bandwidth_fraction=1.5), ("bandwidth_fraction 1.5", "at most the link")),
        (lambda: nccl(NAN), ("must be finite",)),
        (lambda: DataParallel(output_device=-1), ("output_device = -1", "must be 0 or more")),
        (lambda: BucketOptions(bucket_cap_mb=-1), ("bucket_cap_mb = -1", "must be finite and 0 or more")),
        (lambda: BucketOptions(bucket_cap_mb=NAN), ("bucket_cap_mb = nan", "must be finite")),
    ],
)  # fmt: skip
def test_an_impossible_size_is_refused(build, words) -> None:
    refused(build, *words)


def test_a_bucket_cap_of_0_is_one_tensor_a_bucket_after_the_first_iteration() -> None:
    strategy = DistributedDataParallel(BucketOptions(bucket_cap_mb=0))
    trace = simulate(replace(BASE, strategy=strategy, iterations=(0, 1)))
    counts = [sum(span.iteration == iteration and span.bucket is not None and span.kind == "all_reduce"
                  and span.rank == 0 for span in trace.spans) for iteration in (0, 1)]  # fmt: skip
    assert counts == [1, 2]


# ---- clusters


def cluster_of(links: list[Link], devices: int = 2, **options: Any) -> Cluster:
    return Cluster("c", tuple(Device(f"gpu{index}") for index in range(devices)), tuple(links), **options)


TWO_WAYS = [Link("gpu0", "gpu1", 1.0), Link("gpu1", "gpu0", 1.0)]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Cluster("c", ()), ("has 0 devices", "at least one is needed")),
        (lambda: load_cluster("4xA100").take(0), ("number of devices = 0", "must be 1 or more")),
        (lambda: load_cluster("4xA100").take(5),
         ("5 ranks on cluster '4xA100'", "it has 4 devices", "Ask for 4 or fewer")),
        (lambda: cluster_of([]), ("no path from gpu0 to gpu1", "Add links")),
        (lambda: cluster_of(TWO_WAYS[:1]), ("no path from gpu1 to gpu0", "Add links")),
        (lambda: cluster_of([*TWO_WAYS, Link("gpu1", "gpu2", 1.0), Link("gpu2", "gpu1", 1.0)], 3),
         ("no path from gpu0 to gpu2", "without passing through a third")),
        (lambda: cluster_of([*TWO_WAYS, TWO_WAYS[0]]), ("joins a pair of nodes twice", "differ in kind")),
        (lambda: Cluster("c", (Device("g"), Device("g"))), ("repeats a device name", "names are unique")),
        (lambda: Link("a", "b", 0.0), ("bandwidth_bytes_per_s of link a->b = 0.0", "above 0")),
        (lambda: Link("a", "b", NAN), ("bandwidth_bytes_per_s of link a->b = nan", "must be finite")),
        (lambda: Link("a", "b", INFINITE), ("bandwidth_bytes_per_s of link a->b = inf", "at most 1e30")),
        (lambda: Link("a", "b", 1e-300), ("bandwidth_bytes_per_s of link a->b", "at least 1e-30")),
        (lambda: Link("a", "b", 1.0, -1.0), ("latency_s of link a->b = -1.0", "0 or more")),
        (lambda: Device("g", memory_bytes=-1), ("memory_bytes of device 'g' = -1", "must be 0 or more")),
        (lambda: cluster_of(TWO_WAYS, rings=(Ring((0, 0)),)), ("ring (0, 0)", "visits every device once")),
        (lambda: cluster_of(TWO_WAYS, rings=(Ring((0, 1), 0.5),)), ("sum to 0.5", "shares sum to 1")),
        (lambda: Ring((0, 1), NAN), ("share of a ring = nan", "must be finite and above 0")),
        (lambda: Ring((0, 1), 0), ("share of a ring = 0", "must be finite and above 0")),
        (lambda: Device("g", node=-1), ("node of device 'g' = -1", "must be 0 or more")),
        (lambda: cluster_of(TWO_WAYS, hosts=("cpu",)), ("1 hosts", "one name a device")),
        (lambda: cluster_of(TWO_WAYS, copy_fraction=2.0), ("copy_fraction 2", "at most its route")),
        (lambda: cluster_of(TWO_WAYS).route(0, 7), ("device index 7", "it has 2 devices")),
    ],
)  # fmt: skip
def test_an_impossible_cluster_is_refused(build, words) -> None:
    refused(build, *words)


# ---- models


def model_of(**changes: Any) -> ModelProfile:
    facts: dict[str, Any] = {
        "name": "m", "parameters": (Parameter("a", (1,)), Parameter("b", (1,))),
        "layers": (Layer("first", ("a",)), Layer("second", ("b",))),
    }  # fmt: skip
    return ModelProfile(**{**facts, **changes})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"layers": ()}, ("has no layer", "at least one layer is needed")),
        ({"parameters": (Parameter("a", (1,)), Parameter("a", (1,)))}, ("parameter 'a'", "must not occur twice")),
        ({"layers": (Layer("first", ("a",)),)}, ("'b' must belong to exactly one layer",)),
        ({"layers": (Layer("first", ("a", "b", "c")),)}, ("'c' must belong to exactly one layer",)),
        ({"layers": (Layer("first", ("a", "b")), Layer("second", ("b",)))}, ("'b' must belong to exactly one layer",)),
        ({"parameters": (Parameter("a", (1,)), Parameter("b", (1,), requires_grad=False))}, ("'b' must belong",)),
        ({"ready_order": ("a",)}, ("ready_order of model 'm' misses 'b'",)),
        ({"ready_order": ("a", "b", "b")}, ("ready_order of model 'm' repeats 'b'",)),
        ({"ready_order": ("a", "z")}, ("ready_order of model 'm' invents 'z'",)),
    ],
)
def test_an_inconsistent_model_is_refused(changes, words) -> None:
    refused(lambda: model_of(**changes), *words)


def test_ddp_refuses_a_model_with_nothing_to_train() -> None:
    frozen = ModelProfile("frozen", (Parameter("a", (1,), requires_grad=False),), (Layer("first"),))
    refused(lambda: simulate(Scenario(frozen, star(2, 1.0), DistributedDataParallel())),
            "none of 1 parameters is trained", "Set requires_grad")  # fmt: skip


# ---- parts that do not fit together


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: replace(BASE, strategy=DataParallel(output_device=4)),
         ("output_device 4", "the cluster has 4 devices")),
        (lambda: replace(BASE, cluster=load_cluster("2x8xA100-1nic"), strategy=DataParallel()),
         ("DataParallel on 2x8xA100-1nic", "one process", "DistributedDataParallel")),
        (lambda: replace(BASE, cluster=load_cluster("laptop"), strategy=DataParallel()),
         ("DataParallel on laptop", "without GPUs", "DistributedDataParallel")),
        (lambda: replace(BASE, strategy=SingleDevice()), ("SingleDevice on 4 devices", "Use cluster.take(1)")),
        (lambda: simulate(replace(BASE, inputs="host")), ("inputs 'host'", "where host memory is", "'device'")),
        (lambda: compare(replace(BASE, cluster=load_cluster("2x8xA100-1nic")), (DataParallel(),)),
         ("no strategy can run here", "DistributedDataParallel")),
    ],
)  # fmt: skip
def test_parts_that_do_not_fit_together_are_refused(build, words) -> None:
    refused(build, *words)


def test_rows_of_ddp_differ_by_one_at_most_and_make_up_the_global_batch() -> None:
    assert replace(BASE, global_batch=10).rows == (3, 3, 2, 2)
    assert replace(BASE, batch_per_device=7).rows == (7, 7, 7, 7)
    assert replace(BASE, batch_per_device=7).total_rows == 28
    assert replace(BASE, batch_per_device=7, strategy=DataParallel()).rows == (7, 7, 7, 7)


def test_equal_scenarios_are_equal_keys() -> None:
    again = Scenario(layers_of([400, 800], 1e-3, 1e-3, input_bytes=10, output_bytes=4), star(4, 1e9),
                     DistributedDataParallel())  # fmt: skip
    assert (again, hash(again)) == (BASE, hash(BASE))
    assert replace(BASE, batch_per_device=1) != BASE


# ---- anything at all: an error of ours or a trace without a NaN, never a hang


ODD_NUMBERS = st.one_of(
    st.integers(), st.floats(), st.sampled_from([0, -1, 1, 10**400, 5e-324, 1e308, 1e30, 1e-30, NAN, INFINITE]),
    st.booleans(), st.none(), st.text(max_size=3),
)  # fmt: skip


@pytest.mark.parametrize("check", [number, whole])
@given(value=ODD_NUMBERS)
def test_a_number_is_finite_and_in_range_or_refused(check, value: Any) -> None:
    try:
        found = check(value, "value")
    except InputError as problem:
        assert "value = " in str(problem)
    else:
        assert 0 <= found <= 1e30
        assert not isinstance(value, bool)


def finite(trace) -> bool:
    times = [time for span in trace.spans for time in (span.start_s, span.end_s)]
    times += [time for t in trace.transfers for time in (t.issue_s, t.start_s, t.end_s)]
    return all(math.isfinite(time) for time in (*times, trace.end_s))


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_any_numbers_give_a_finite_trace_or_an_error_of_ours(data: st.DataObject) -> None:
    odd = data.draw(st.sampled_from([*range(20), None, None]), "which number is odd")
    drawn = iter(range(20))

    def draw(*usual: float | None) -> Any:
        return data.draw(ODD_NUMBERS if next(drawn) == odd else st.sampled_from(usual))

    def seconds() -> Any:
        return draw(0, 0.0, 1e-3, 1e30, 1e-30)

    def count() -> Any:
        return draw(0, 1, 1000, 2**62)

    try:
        layer = Layer("layer", ("p",), Cost(seconds(), seconds()), Cost(seconds()), seconds(), seconds(), count())
        model = ModelProfile("m", (Parameter("p", (draw(0, 1, 1000, 2**60),)),), (layer,),
                             input_bytes_per_sample=count(), output_bytes_per_sample=count())  # fmt: skip
        strategy = data.draw(st.sampled_from([DataParallel(), DataParallel("peer_copy"), DistributedDataParallel()]))
        protocol = Protocol("p", seconds(), seconds(), draw(1, 0.5, 1e-30))
        backend = Backend(ring_protocols=(protocol,), compute_slowdown=draw(0, 0.5, 0.999), launch_s=seconds())
        cluster = star(3, draw(1, 1e9, 1e-30, 1e30), seconds())
        host = Host(seconds(), device_memory_bytes_per_s=draw(1, 1e12, 1e-30, 1e30))
        batch, whole_batch = draw(1, 2, 2**62), draw(None, 1, 3, 10)
        scenario = Scenario(model, cluster, strategy, backend, batch, whole_batch, OPTIMIZERS["adam"], host)
        trace = simulate(scenario)
    except InputError:
        return
    except TypeError as problem:
        # star() itself halves the latency before anyone can check it.
        assert "unsupported operand type(s) for /" in str(problem)
        return
    assert finite(trace)
    assert trace.outcome == "finished"
