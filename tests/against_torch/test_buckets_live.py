"""Our bucket rule beside a live Reducer on two gloo ranks: the same tensors, in the same order, in the same buckets."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.buckets import (
    CAP_LIST_SINCE,
    FIRST_BUCKET_BYTES,
    MIB,
    NEWEST_TORCH,
    OLDEST_TORCH,
    TRAINABLE_DTYPES,
    Bucket,
    BucketOptions,
    assign_buckets,
    buckets_at,
    rebuild_iteration,
    torch_release,
)
from simulator.model import Parameter
from tests.against_torch.reducer_pair import Recording, ReducerPair, Task, TaskError

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import distributed

INSTALLED = tuple(int(part) for part in torch.__version__.split(".")[:2])
VERSION = ".".join(map(str, min(max(INSTALLED, OLDEST_TORCH), NEWEST_TORCH)))
"""The version whose rule is held against the installed torch: its own, or the newest known."""
HAS_CAP_LIST = torch_release(VERSION) >= CAP_LIST_SINCE
DDP_ARGUMENTS = ("bucket_cap_mb", "bucket_cap_mb_list", "find_unused_parameters", "static_graph")

DEFAULT: dict[str, Any] = {}
CAP_25 = {"bucket_cap_mb": 25}
CAP_35 = {"bucket_cap_mb": 35}
CAP_1 = {"bucket_cap_mb": 1}
CAP_0 = {"bucket_cap_mb": 0}
UNUSED = {"find_unused_parameters": True}
STATIC = {"static_graph": True}
LAST = {"set_last_bucket_cap": True}
LIST = {"bucket_cap_mb_list": (5, 10, 25)}
ALL = (DEFAULT, CAP_25, CAP_1, CAP_0, UNUSED, STATIC, LAST, *([LIST] if HAS_CAP_LIST else []))
MATRIX = {
    "mlp": (*ALL, {"bucket_cap_mb": 0.1}, {"bucket_cap_mb": 0.1, **UNUSED}),
    "resnet18": (*ALL, CAP_35),
    "densenet121": ALL,
    "squeezenet1_0": ALL,
    "resnet50": (DEFAULT, CAP_25, CAP_1, UNUSED, LAST),
    "alexnet": (DEFAULT, CAP_1, UNUSED),
    "vgg16": (DEFAULT, CAP_25),
    "bert_base": (DEFAULT, STATIC),
    "gpt2": (DEFAULT, UNUSED),
}
LARGE = ("alexnet", "vgg16", "bert_base", "gpt2")
TOTALS = {
    "mlp": (6, 785 * 512 + 513 * 256 + 257 * 10),
    "resnet18": (62, 11_689_512),
    "resnet50": (161, 25_557_032),
    "densenet121": (364, 7_978_856),
    "squeezenet1_0": (52, 1_248_424),
    "alexnet": (16, 61_100_840),
    "vgg16": (32, 138_357_544),
    "bert_base": (202, 109_514_298),
    "gpt2": (148, 124_439_808),
}
"""Tensors and elements as torchvision and transformers state them; a tied tensor counts once."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReducerPair]:
    """The two ranks, for all tests of this file."""
    with ReducerPair(tmp_path_factory.mktemp("gloo")) as ranks:
        yield ranks


def record(pair: ReducerPair, options: BucketOptions, model: Any, **more: Any) -> tuple[Recording, Recording]:
    """Train under these options."""
    given_values = {name: getattr(options, name) for name in DDP_ARGUMENTS}
    arguments = {name: value for name, value in given_values.items() if value is not None and value is not False}
    ddp = {**arguments, **more.pop("ddp", {})}
    return pair.run(Task(model, ddp, set_last_bucket_cap=options.set_last_bucket_cap, **more))


def expected(recording: Recording, options: BucketOptions, no_sync: tuple[int, ...] = ()) -> list[tuple[Bucket, ...]]:
    """What our rule says for each iteration, from the ready order that rank 0 recorded before the rebuild."""
    iterations = range(len(recording.launches))
    synchronised = [iteration not in no_sync for iteration in iterations]
    ready = recording.ready[(rebuild_iteration(options, synchronised) or 1) - 1]
    trained = [p.name for p in recording.parameters if p.requires_grad and p.tied_to is None]
    order = (*ready, *(name for name in trained if name not in set(ready)))
    layouts = [buckets_at(recording.parameters, order, options, iteration, synchronised) for iteration in iterations]
    return [layout if synchronises else () for layout, synchronises in zip(layouts, synchronised, strict=True)]


def check(
    pair: ReducerPair, options: BucketOptions, model: Any, no_sync: tuple[int, ...] = (), **more: Any
) -> Recording:
    """Hold the rule against both ranks of a live run."""
    recording, other = record(pair, options, model, no_sync=no_sync, **more)
    for iteration, layout in enumerate(expected(recording, options, no_sync)):
        for launched in (recording.launches[iteration], other.launches[iteration]):
            # A static graph's first reduction comes after the backward, and tells every hook that its index is 0.
            delayed = options.static_graph and iteration == 0
            found = [Bucket(0 if delayed else b.index, b.dtype, b.parameters, b.nbytes, b.sparse) for b in launched]
            wanted = [Bucket(0 if delayed else b.index, b.dtype, b.parameters, b.nbytes, b.sparse) for b in layout]
            assert found == wanted, f"iteration {iteration} under {options}"
    return recording


def options_of(**options: Any) -> BucketOptions:
    """Options under the installed torch's rule."""
    return BucketOptions(**options, torch_version=VERSION)


@pytest.mark.parametrize(
    ("name", "given_options"),
    [(name, options) for name, sets in MATRIX.items() for options in sets],
    ids=[f"{name}-{options}" for name, sets in MATRIX.items() for options in sets],
)
def test_a_real_model_has_exactly_these_buckets(pair: ReducerPair, name: str, given_options: dict[str, Any]) -> None:
    options = options_of(**given_options)
    # Large models: no broadcast of half a gigabyte at construction, and gradients that lie in the buckets.
    more = (
        {"ddp": {"init_sync": False, "gradient_as_bucket_view": True}} if name in LARGE and INSTALLED >= (2, 4) else {}
    )
    iterations = 3 if name in LARGE and not options.static_graph else 4
    recording = check(pair, options, name, iterations=iterations, **more)
    unique = [p for p in recording.parameters if p.tied_to is None]
    assert (len(unique), sum(p.numel for p in unique)) == TOTALS[name]
    for buckets in recording.launches:
        assert sum(bucket.nbytes for bucket in buckets) == 4 * TOTALS[name][1]


def test_resnet18_with_an_explicit_cap_of_35_follows_the_release(pair: ReducerPair) -> None:
    recording = check(pair, options_of(**CAP_35), "resnet18", iterations=2)
    sizes = [bucket.nbytes for bucket in recording.launches[1]]
    assert sizes == ([37988256, 8769792] if INSTALLED >= (2, 4) else [2052000, 38297600, 6408448])


def plain(*sizes: int) -> tuple[Parameter, ...]:
    """fp32 vectors w0, w1, ... of so many elements."""
    return tuple(Parameter(f"w{i}", (size,)) for i, size in enumerate(sizes))


def cap(nbytes: int) -> float:
    """A bucket_cap_mb of so many bytes."""
    return nbytes / MIB


EDGES = ({}, CAP_0, {"bucket_cap_mb": cap(24)}, UNUSED, {**UNUSED, **CAP_0}, {**UNUSED, "bucket_cap_mb": cap(24)},
         {**LAST, "bucket_cap_mb": cap(24)}, STATIC, {**STATIC, **UNUSED, **CAP_0})  # fmt: skip


@pytest.mark.parametrize("given_options", EDGES, ids=str)
def test_empty_tensors_and_mixed_dtypes_are_really_reduced(pair: ReducerPair, given_options: dict[str, Any]) -> None:
    empty = (Parameter("a", (0,)), Parameter("b", (3,)), Parameter("c", (0, 4), "float64"), Parameter("d", (5,)))
    check(pair, options_of(**given_options), empty, reduce=True)
    dtypes = ("float32", "float16", "bfloat16", "float64", "float16", "float32", "bfloat16", "float64")
    check(
        pair, options_of(**given_options), tuple(Parameter(f"p{i}", (4,), d) for i, d in enumerate(dtypes)), reduce=True
    )


@pytest.mark.parametrize("given_options", EDGES, ids=str)
def test_sparse_gradients_have_their_own_buckets(pair: ReducerPair, given_options: dict[str, Any]) -> None:
    model = (Parameter("a", (3,)), Parameter("s", (5, 2), sparse=True), Parameter("b", (4,)),
             Parameter("t", (6, 2), sparse=True))  # fmt: skip
    check(pair, options_of(**given_options), model, reduce=True)


@pytest.mark.parametrize("uses", [("e", "f", "g", "h"), ("h", "e", "f", "g"), ("f", "g", "e", "h")], ids=str)
def test_tied_and_frozen_tensors(pair: ReducerPair, uses: tuple[str, ...]) -> None:
    model = (Parameter("e", (100, 8)), Parameter("f", (8, 8)), Parameter("frozen", (9,), requires_grad=False),
             Parameter("g", (100, 8), tied_to="e"), Parameter("h", (2,)))  # fmt: skip
    for given_options in (CAP_0, UNUSED):
        check(pair, options_of(**given_options), model, uses=(uses, uses))


@pytest.mark.parametrize("no_sync", [(), (0,), (0, 1), (1,), (0, 2), (1, 2), (0, 1, 2)], ids=str)
def test_only_synchronised_backwards_count_for_the_rebuild(pair: ReducerPair, no_sync: tuple[int, ...]) -> None:
    for given_options in ({}, STATIC, {**STATIC, **UNUSED}, UNUSED):
        options = options_of(bucket_cap_mb=cap(80), **given_options)
        if options.static_graph and 0 in no_sync:
            with pytest.raises(TaskError, match="INTERNAL ASSERT"):
                record(pair, options, plain(*[10] * 4), no_sync=no_sync)
        else:
            check(pair, options, plain(*[10] * 4), no_sync, iterations=6)


def test_a_static_graphs_unused_parameters_come_last(pair: ReducerPair) -> None:
    uses = ("w4", "w0", "w2")
    for size in (0, 80):
        recording = check(pair, options_of(bucket_cap_mb=cap(size), **STATIC), plain(*[10] * 6), uses=(uses, uses))
    assert recording.ready[1] == ("w2", "w0", "w4")


def test_rank_0_decides_the_order(pair: ReducerPair) -> None:
    model = plain(*[10] * 5)
    recording = check(
        pair, options_of(**CAP_0), model, uses=(("w3", "w0", "w1", "w4", "w2"), tuple(p.name for p in model))
    )
    if INSTALLED >= (2, 4):
        assert [b.parameters[0] for b in recording.launches[1]] == ["w2", "w4", "w1", "w0", "w3"]


@pytest.mark.skipif(not HAS_CAP_LIST, reason="this torch has no bucket_cap_mb_list")
def test_a_list_of_caps_holds_from_the_start(pair: ReducerPair) -> None:
    caps = tuple(cap(nbytes) for nbytes in (8, 60, 24))
    for more in ({}, UNUSED, STATIC, LAST, {"bucket_cap_mb": 1}):
        check(pair, options_of(bucket_cap_mb_list=caps, **more), plain(1, 2, 3, 4, 5, 6, 7, 8))
    check(pair, options_of(bucket_cap_mb=cap(24), bucket_cap_mb_list=()), plain(1, 2, 3, 4, 5))


@pytest.mark.parametrize(
    ("value", "found"),
    [(float("nan"), "ValueError"), (float("inf"), "OverflowError"), (-1, "TypeError"), (2.0**43, "TypeError")],
)
def test_torch_has_no_use_for_the_caps_that_we_refuse(pair: ReducerPair, value: float, found: str) -> None:
    with pytest.raises(TaskError, match=found):
        pair.run(Task(plain(1), {"bucket_cap_mb": value, "find_unused_parameters": True}))


def test_torch_refuses_a_model_without_trained_parameters(pair: ReducerPair) -> None:
    with pytest.raises(TaskError, match="RuntimeError: DistributedDataParallel is not needed"):
        pair.run(Task((Parameter("frozen", (2,), requires_grad=False),)))


@st.composite
def made_up_runs(draw: st.DrawFn) -> tuple[BucketOptions, tuple[Parameter, ...], tuple[str, ...]]:
    """Options, a model of up to 10 tensors, and the order in which its forward uses them."""
    model: list[Parameter] = [Parameter("p0", (draw(st.integers(0, 40)),))]
    for i in range(1, draw(st.integers(1, 10))):
        kind = draw(st.sampled_from(["plain"] * 6 + ["tied", "frozen", "sparse"]))
        dtype = draw(st.sampled_from(("float32", "float16", "bfloat16", "float64")))
        if kind == "tied":
            model.append(Parameter(f"p{i}", model[0].shape, tied_to="p0"))
        elif kind == "sparse":
            model.append(Parameter(f"p{i}", (draw(st.integers(1, 9)), draw(st.integers(1, 3))), sparse=True))
        else:
            shape = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
            model.append(Parameter(f"p{i}", shape, dtype, requires_grad=kind != "frozen"))
    sizes = st.integers(0, 200).map(cap)
    given_options: dict[str, Any] = {name: draw(st.booleans()) for name in (
        "find_unused_parameters", "static_graph", "set_last_bucket_cap")}  # fmt: skip
    given_options["bucket_cap_mb"] = draw(st.none() | sizes)
    if HAS_CAP_LIST:
        given_options["bucket_cap_mb_list"] = draw(st.none() | st.lists(sizes, min_size=1, max_size=3).map(tuple))
    uses = tuple(draw(st.permutations([p.name for p in model])))
    if given_options["find_unused_parameters"] or given_options["static_graph"]:
        left_out = draw(st.sets(st.sampled_from([p.name for p in model if not p.sparse])))
        uses = tuple(name for name in uses if name not in left_out or name == "p0")
    return options_of(**given_options), tuple(model), uses


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made_up_runs())
def test_any_model_has_exactly_these_buckets(pair: ReducerPair, run: Any) -> None:
    options, model, uses = run
    check(pair, options, model, uses=(uses, uses))


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(TRAINABLE_DTYPES), st.booleans()), min_size=1, max_size=20),
    st.lists(st.integers(0, 300), min_size=1, max_size=4),
    st.randoms(),
)
def test_assignment_equals_torchs_own_function(tensors: Any, limits: list[int], random: Any) -> None:
    model = [Parameter(str(i), (numel,), dtype, sparse=sparse) for i, (numel, dtype, sparse) in enumerate(tensors)]
    real = [torch.zeros(p.numel, dtype=getattr(torch, p.dtype)) for p in model]
    sparse = [p.sparse for p in model]
    found, _ = distributed._compute_bucket_assignment_by_size(real, limits, sparse, [])
    assert found == [[int(p.name) for p in bucket] for bucket in assign_buckets(model, limits)]
    order = list(range(len(model)))
    random.shuffle(order)
    found, _ = distributed._compute_bucket_assignment_by_size([real[i] for i in order], limits, sparse, order)
    ready = assign_buckets([model[i] for i in order], limits, in_ready_order=True)
    assert found == [[int(p.name) for p in bucket] for bucket in ready]


def test_the_small_first_bucket_is_torchs() -> None:
    assert distributed._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES
