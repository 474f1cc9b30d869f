"""Gradient buckets against lists measured on real torch, and the laws that hold for any model."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.bucket_file import parameter_table
from simulator.buckets import (
    FIRST_BUCKET_BYTES,
    MIB,
    NO_LIMIT,
    TRAINABLE_DTYPES,
    BucketOptions,
    assign_buckets,
    buckets_at,
    rebuild_iteration,
)
from simulator.errors import InputError
from simulator.model import Parameter

DATA = Path(__file__).parent / "data" / "buckets"
RECORDED = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.json"))}
MEASURED = [(name, entry) for name, content in RECORDED.items() for entry in content["measured"]]
F32 = 4


def fp32(**shapes: tuple[int, ...]) -> list[Parameter]:
    """fp32 parameters by name."""
    return [Parameter(name, shape) for name, shape in shapes.items()]


def linear(name: str, inputs: int, outputs: int, dtype: str = "float32") -> list[Parameter]:
    """Weight and bias of an nn.Linear."""
    return [Parameter(f"{name}.weight", (outputs, inputs), dtype), Parameter(f"{name}.bias", (outputs,), dtype)]


MLP = [*linear("fc1", 784, 512), *linear("fc2", 512, 256), *linear("fc3", 256, 10)]
TIED = [Parameter("emb.weight", (1000, 64)), *linear("fc", 64, 64),
        Parameter("out.weight", (1000, 64), tied_to="emb.weight")]  # fmt: skip
ALTERNATING = [p for i in range(4) for p in linear(f"l{i}", 512, 512, "float16" if i % 2 else "float32")]
EIGHT = [Parameter(f"w{i}", (512, 512)) for i in range(8)]
"""Eight weights of exactly 1 MiB."""


def gpt2() -> list[Parameter]:
    """GPT-2 small with a tied head: 148 tensors of 149 names."""
    d = 768
    blocks = [
        Parameter(f"h.{i}.{name}", shape)
        for i in range(12)
        for name, shape in {
            "ln_1.weight": (d,), "ln_1.bias": (d,), "attn.c_attn.weight": (d, 3 * d), "attn.c_attn.bias": (3 * d,),
            "attn.c_proj.weight": (d, d), "attn.c_proj.bias": (d,), "ln_2.weight": (d,), "ln_2.bias": (d,),
            "mlp.c_fc.weight": (d, 4 * d), "mlp.c_fc.bias": (4 * d,), "mlp.c_proj.weight": (4 * d, d),
            "mlp.c_proj.bias": (d,),
        }.items()
    ]  # fmt: skip
    return [Parameter("wte.weight", (50257, d)), Parameter("wpe.weight", (1024, d)), *blocks,
            *fp32(**{"ln_f.weight": (d,), "ln_f.bias": (d,)}),
            Parameter("lm_head.weight", (50257, d), tied_to="wte.weight")]  # fmt: skip


GPT2 = gpt2()
GPT2_BLOCK = F32 * (12 * 768**2 + 13 * 768)
"""Bytes of one transformer block."""
GPT2_MLP_OUT = F32 * (4 * 768**2 + 768)


def sizes(
    parameters: list[Parameter], options: BucketOptions, iteration: int, ready: list[str] | None = None
) -> list[int]:
    """Bytes per bucket in launch order."""
    return [bucket.nbytes for bucket in buckets_at(parameters, ready, options, iteration)]


def steady(parameters: list[Parameter], cap: float | None = None, **options: bool) -> list[int]:
    """Bytes per bucket long after the rebuild."""
    return sizes(parameters, BucketOptions(bucket_cap_mb=cap, **options), 9)


@pytest.mark.parametrize(("name", "entry"), MEASURED, ids=[f"{n}-{e['options']}-{e['iteration']}" for n, e in MEASURED])
def test_sizes_equal_those_measured_on_torch(name: str, entry: dict) -> None:
    table = parameter_table(RECORDED[name])
    found = buckets_at(table.parameters, table.ready_order, BucketOptions(**entry["options"]), entry["iteration"])
    assert [bucket.nbytes for bucket in found] == entry["bytes"]


def test_resnet18_first_bucket_is_the_classifier_alone() -> None:
    table = parameter_table(RECORDED["resnet18"])
    first = buckets_at(table.parameters, table.ready_order, BucketOptions(), 1)[0]
    assert (first.parameters, first.nbytes) == (("fc.bias", "fc.weight"), F32 * (512 * 1000 + 1000))


@pytest.mark.parametrize(("cap", "count", "head", "last"), [
    (0.1, 49, [8196000, 4210688, 9441280], 55040), (1, 35, [8196000, 4210688, 9441280], 552192)])  # fmt: skip
def test_resnet50_small_caps(cap: float, count: int, head: list[int], last: int) -> None:
    table = parameter_table(RECORDED["resnet50"])
    found = sizes(list(table.parameters), BucketOptions(cap), 1, list(table.ready_order or ()))
    assert (len(found), found[:3], found[-1]) == (count, head, last)
    unused = BucketOptions(cap, find_unused_parameters=True)
    assert len(sizes(list(table.parameters), unused, 1)) == count


def test_vgg16_buckets_depend_on_the_recorded_ready_order() -> None:
    table = parameter_table(RECORDED["vgg16"])
    real = sizes(list(table.parameters), BucketOptions(), 1, list(table.ready_order or ()))
    reverse = sizes(list(table.parameters), BucketOptions(), 1)
    assert real[:3] == reverse[:3] == [F32 * 4097 * 1000, F32 * 4097 * 4096, F32 * (512 * 49 + 1) * 4096]
    assert real[3:] == [28315648, 28320768, 2222336]
    assert reverse[3:] == [28317696, 28319744, 2221312]


def test_multilayer_perceptron_of_the_facts() -> None:
    fc1, fc2, fc3 = F32 * 785 * 512, F32 * 513 * 256, F32 * 257 * 10
    assert steady(MLP) == steady(MLP, 1) == steady(MLP, 25) == [fc1 + fc2 + fc3] == [2_143_272]
    assert steady(MLP, 0.1) == [fc3 + fc2, fc1]
    bias = F32 * 512
    assert steady(MLP, find_unused_parameters=True) == [fc3 + fc2 + bias, fc1 - bias] == [537640, 1605632]
    assert steady(MLP, 0.1, find_unused_parameters=True) == [11304, 526336, 1605632]
    assert steady(MLP, 1, find_unused_parameters=True) == [537640, 1605632]
    assert steady(MLP, 25, find_unused_parameters=True) == [fc1 + fc2 + fc3]


def test_tied_gpt2_of_the_facts() -> None:
    embeddings = F32 * 768 * (50257 + 1024)
    total = embeddings + 12 * GPT2_BLOCK + F32 * 2 * 768
    first = F32 * 2 * 768 + GPT2_MLP_OUT
    assert sizes(GPT2, BucketOptions(), 0) == [total] == [497_759_232]
    assert steady(GPT2) == [first, *[GPT2_BLOCK] * 11, total - first - 11 * GPT2_BLOCK]
    assert steady(GPT2)[0::12] == [9_446_400, 176_446_464]
    block_and_norm = [28_351_488] * 12
    assert steady(GPT2, 25) == [*block_and_norm, 157_541_376]
    assert steady(GPT2, 100) == [106318848, 111037440, 113405952, 166996992]
    assert len(steady(GPT2, 0.1)) == len(steady(GPT2, 1)) == 50
    assert steady(GPT2, 1)[:4] == [9446400, 9449472, 2368512, 7087104]
    assert steady(GPT2, 1)[-1] == F32 * 768 * 50257
    unused = [F32 * 3 * 768, *[GPT2_BLOCK] * 11, GPT2_BLOCK + F32 * 768 * (1024 - 1), F32 * 768 * 50257]
    assert steady(GPT2, find_unused_parameters=True) == unused == [9216, *[28351488] * 11, 31494144, 154389504]
    assert len(steady(GPT2, 25, find_unused_parameters=True)) == 14
    assert len(steady(GPT2, 1, find_unused_parameters=True)) == 51
    assert steady(GPT2, 100, find_unused_parameters=True) == [9458688, 113405952, 113405952, 107099136, 154389504]


def test_a_tied_tensor_counts_once_at_its_first_name() -> None:
    emb, fc = F32 * 1000 * 64, F32 * 65 * 64
    assert steady(TIED) == steady(TIED, 0.1) == [fc + emb] == [272_640]
    assert steady(TIED, 0.1, find_unused_parameters=True) == [fc, emb]
    assert buckets_at(TIED, None, BucketOptions(), 1)[0].parameters == ("fc.bias", "fc.weight", "emb.weight")


def test_alternating_dtypes_of_the_facts() -> None:
    half, single = 2 * 513 * 512, 4 * 513 * 512
    assert sizes(ALTERNATING, BucketOptions(), 0) == [2 * half, 2 * single]
    rebuilt = buckets_at(ALTERNATING, None, BucketOptions(), 1)
    assert [(b.dtype, b.nbytes) for b in rebuilt] == [("float32", single), ("float16", 2 * half), ("float32", single)]
    assert rebuilt[1].parameters == ("l3.bias", "l3.weight", "l1.bias", "l1.weight")
    assert steady(ALTERNATING, 0.1) == [half, single, half, single]
    assert steady(ALTERNATING, find_unused_parameters=True) == [1024, 1049600, 1052672, 1048576]
    assert len(steady(ALTERNATING, 0.1, find_unused_parameters=True)) == 6


def test_eight_weights_of_one_mib() -> None:
    def mib(options: BucketOptions, iteration: int) -> list[float]:
        return [nbytes / MIB for nbytes in sizes(EIGHT, options, iteration)]

    assert [mib(BucketOptions(), i) for i in range(3)] == [[8], [1, 7], [1, 7]]
    assert [mib(BucketOptions(25), i) for i in range(2)] == [[8], [8]]
    assert [mib(BucketOptions(2), i) for i in range(2)] == [[8], [2, 2, 2, 2]]
    assert mib(BucketOptions(0.5), 1) == [1] * 8
    assert [mib(BucketOptions(find_unused_parameters=True), i) for i in (0, 5)] == [[7, 1], [7, 1]]
    static = BucketOptions(static_graph=True)
    assert [mib(static, i) for i in range(3)] == [[8], [8], [1, 7]]
    both = BucketOptions(static_graph=True, find_unused_parameters=True)
    assert [mib(both, i) for i in range(3)] == [[8], [8], [1, 7]]
    assert mib(BucketOptions(set_last_bucket_cap=True), 1) == [7, 1]


def test_an_embedding_registered_first_leaves_one_bucket_for_ever() -> None:
    model = [Parameter("emb.weight", (50000, 128)), *[p for i in range(4) for p in linear(f"l{i}", 128, 128)],
             *linear("out", 128, 10)]  # fmt: skip
    small = F32 * (4 * 129 * 128 + 129 * 10)
    assert [sizes(model, BucketOptions(), i) for i in range(3)] == [[F32 * 50000 * 128 + small]] * 3
    assert steady(model, find_unused_parameters=True) == [small, F32 * 50000 * 128]


def test_three_thousand_small_tensors_are_one_bucket() -> None:
    assert steady([Parameter(f"ps.{i}", (50,)) for i in range(3000)]) == [3000 * 50 * F32]


@pytest.mark.parametrize(("limits", "expected"), [
    ([39], [40, 40, 40, 40]), ([40], [40, 40, 40, 40]), ([41], [80, 80]), ([80], [80, 80]), ([81], [120, 40]),
    ([40, 80], [40, 80, 40]), ([0], [40, 40, 40, 40]), ([NO_LIMIT], [160])])  # fmt: skip
def test_a_bucket_closes_when_it_reaches_the_limit(limits: list[int], expected: list[int]) -> None:
    tensors = fp32(a=(10,), b=(10,), c=(10,), d=(10,))
    assert [sum(p.nbytes for p in bucket) for bucket in assign_buckets(tensors, limits)] == expected


def test_a_tensor_above_the_limit_joins_what_is_open() -> None:
    tensors = fp32(a=(5,), b=(1000,), c=(5,))
    assert [[p.name for p in bucket] for bucket in assign_buckets(tensors, [100])] == [["a", "b"], ["c"]]


def test_each_dtype_has_its_own_place_in_the_limits() -> None:
    tensors = [Parameter(f"{i}", (10,), dtype) for i, dtype in enumerate(["float32", "float16"] * 4)]
    found = assign_buckets(tensors, [20, 60], in_ready_order=True)
    assert [[p.name for p in bucket] for bucket in found] == [["0"], ["1"], ["2", "4"], ["3", "5", "7"], ["6"]]


def test_what_is_left_open_follows_newest_dtype_first() -> None:
    tensors = [Parameter(str(i), (1,), dtype) for i, dtype in enumerate(["float32", "bfloat16", "float16", "float32"])]
    ready = assign_buckets(tensors, [NO_LIMIT], in_ready_order=True)
    assert [bucket[0].dtype for bucket in ready] == ["float16", "bfloat16", "float32"]
    in_registration = assign_buckets(tensors, [NO_LIMIT])
    assert [bucket[0].dtype for bucket in in_registration] == ["float32", "bfloat16", "float16"]


def test_first_iteration_launches_the_dtype_registered_last_first() -> None:
    mixed = [Parameter("a", (1,)), Parameter("b", (1,), "float16"), Parameter("c", (1,))]
    assert [b.parameters for b in buckets_at(mixed, None, BucketOptions(), 0)] == [("b",), ("a", "c")]


def test_a_sparse_gradient_travels_alone() -> None:
    model = [Parameter("a", (3,)), Parameter("s", (5, 2), sparse=True), Parameter("b", (4,))]
    first = buckets_at(model, None, BucketOptions(), 0)
    assert [(b.parameters, b.sparse) for b in first] == [(("s",), True), (("a", "b"), False)]
    rebuilt = buckets_at(model, ["b", "s", "a"], BucketOptions(0), 1)
    assert [(b.parameters, b.nbytes) for b in rebuilt] == [(("b",), 16), (("s",), 40), (("a",), 12)]


def test_cap_zero_sends_every_tensor_alone_even_an_empty_one() -> None:
    model = fp32(a=(0,), b=(3,), c=(0, 4))
    assert steady(model, 0) == [0, 12, 0]
    assert sizes(model, BucketOptions(0), 0) == [12]
    assert steady(model, 0, find_unused_parameters=True) == [0, 12, 0]
    assert steady(model) == [12]


def test_frozen_parameters_are_left_out() -> None:
    model = [
        Parameter("a", (3,)),
        Parameter("frozen", (9,), requires_grad=False),
        Parameter("step", (), "int64", False),
    ]
    assert steady(model) == [12]
    with pytest.raises(InputError, match=r"none of 1 parameters is trained.*RuntimeError"):
        buckets_at(model[1:2], None, BucketOptions(), 0)
    with pytest.raises(InputError, match="none of 0 parameters"):
        buckets_at([], None, BucketOptions(), 0)
    with pytest.raises(InputError, match=r"'step' of dtype int64.*floating point"):
        buckets_at([Parameter("step", (), "int64")], None, BucketOptions(), 0)


def test_until_torch_2_3_an_explicit_cap_left_the_first_bucket_at_one_mib() -> None:
    table = parameter_table(RECORDED["resnet18"])
    for cap, expected in ((25, [2052000, 28852224, 15853824]), (35, [2052000, 38297600, 6408448])):
        options = BucketOptions(cap, torch_version="2.3.1")
        assert sizes(list(table.parameters), options, 1, list(table.ready_order or ())) == expected
    below = BucketOptions(0.25, torch_version="2.3")
    assert below.rebuilt_limits == (FIRST_BUCKET_BYTES, FIRST_BUCKET_BYTES // 4)
    assert BucketOptions(0.25, torch_version="2.4.0+cpu").rebuilt_limits == (FIRST_BUCKET_BYTES // 4,)


@pytest.mark.parametrize(("options", "synchronised", "expected"), [
    ({}, (), 1), ({}, (True, True), 1), ({}, (False,), 2), ({}, (False, False), 3), ({}, (True, False), 1),
    ({"static_graph": True}, (), 2), ({"static_graph": True}, (True,), 2), ({"static_graph": True}, (True, False), 3),
    ({"static_graph": True, "find_unused_parameters": True}, (), 2), ({"find_unused_parameters": True}, (), None)],
)  # fmt: skip
def test_rebuild_comes_after_the_first_synchronised_backward(
    options: dict, synchronised: tuple, expected: int | None
) -> None:
    assert rebuild_iteration(BucketOptions(**options), synchronised) == expected


def test_the_layout_of_an_iteration_follows_no_sync() -> None:
    assert [len(buckets_at(EIGHT, None, BucketOptions(2), i, (False, False))) for i in range(5)] == [1, 1, 1, 4, 4]


@pytest.mark.parametrize(("bad", "message"), [
    ({"bucket_cap_mb": -1}, "bucket_cap_mb = -1: must be finite and 0 or more"),
    ({"bucket_cap_mb": -1e-9}, "bucket_cap_mb"),
    ({"bucket_cap_mb": float("nan")}, "bucket_cap_mb = nan"),
    ({"bucket_cap_mb": float("inf")}, "bucket_cap_mb = inf"),
    ({"bucket_cap_mb": "25"}, "a number is needed"),
    ({"bucket_cap_mb": True}, "a number is needed"),
    ({"bucket_cap_mb": 2.0**43}, "63 bits"),
    ({"bucket_cap_mb_list": (1, -2)}, r"bucket_cap_mb_list\[1\] = -2"),
    ({"bucket_cap_mb_list": 25}, "a list of caps"),
    ({"bucket_cap_mb_list": (1,), "torch_version": "2.10"}, "since 2.11"),
    ({"find_unused_parameters": 1}, "find_unused_parameters = 1: it is True or False"),
    ({"torch_version": "1.13.1"}, "2.0 to 2.14"), ({"torch_version": "2.15"}, "2.0 to 2.14"),
    ({"torch_version": "two"}, "a version like"), ({"torch_version": 2.14}, "a version like")])  # fmt: skip
def test_a_wrong_option_is_refused(bad: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        BucketOptions(**bad)


def test_options_are_frozen_and_hashable() -> None:
    options = BucketOptions(bucket_cap_mb_list=[1, 25])
    assert options == BucketOptions(bucket_cap_mb_list=(1, 25)) and hash(options) == hash(BucketOptions(None, (1, 25)))
    with pytest.raises(FrozenInstanceError):
        options.static_graph = True


def test_an_empty_cap_list_counts_as_none_given() -> None:
    assert BucketOptions(2, ()).rebuilt_limits == (2 * MIB,)
    assert BucketOptions(2, (1, 3)).first_limits == BucketOptions(2, (1, 3)).rebuilt_limits == (MIB, 3 * MIB)


@pytest.mark.parametrize(
    ("order", "named"),
    [
        (["a"], "'b'"),
        (["a", "b", "x"], "'x'"),
        (["a", "a", "b"], "'a'"),
        (["a", "a"], "'b'"),
        (["frozen", "b", "a"], "'frozen'"),
    ],
)
def test_a_ready_order_must_list_each_trained_parameter_once(order: list[str], named: str) -> None:
    model = [*fp32(a=(1,), b=(2,)), Parameter("frozen", (1,), requires_grad=False)]
    with pytest.raises(InputError, match=f"ready_order.*{named}"):
        buckets_at(model, order, BucketOptions(), 0)


@pytest.mark.parametrize("iteration", [-1, 1.0, True])
def test_an_iteration_is_a_whole_number(iteration: object) -> None:
    with pytest.raises(InputError, match="iteration"):
        buckets_at(EIGHT, None, BucketOptions(), iteration)


def test_static_graph_needs_a_synchronised_first_iteration() -> None:
    with pytest.raises(InputError, match="no_sync"):
        rebuild_iteration(BucketOptions(static_graph=True), (False,))


def test_limits_must_not_be_empty() -> None:
    with pytest.raises(InputError, match="at least one limit"):
        assign_buckets(EIGHT, [])


@st.composite
def models(draw: st.DrawFn) -> list[Parameter]:
    """Up to 12 parameters of mixed dtypes and sizes; at least one of them is trained."""
    result: list[Parameter] = []
    for i in range(draw(st.integers(1, 12))):
        tied = draw(st.sampled_from([None, *(p for p in result if p.tied_to is None)]))
        if tied is not None and draw(st.booleans()):
            result.append(Parameter(f"p{i}", tied.shape, tied.dtype, tied.requires_grad, tied.name))
            continue
        shape = tuple(draw(st.lists(st.integers(0, 9), max_size=2)))
        result.append(Parameter(f"p{i}", shape, draw(st.sampled_from(TRAINABLE_DTYPES)),
                                i == 0 or draw(st.booleans()), None, draw(st.integers(0, 9)) == 0))  # fmt: skip
    return result


options = st.builds(
    BucketOptions,
    bucket_cap_mb=st.none() | st.integers(0, 400).map(lambda nbytes: nbytes / MIB),
    bucket_cap_mb_list=st.none()
    | st.lists(st.integers(0, 400).map(lambda nbytes: nbytes / MIB), max_size=3).map(tuple),
    find_unused_parameters=st.booleans(),
    static_graph=st.booleans(),
    set_last_bucket_cap=st.booleans(),
)


@given(models(), options, st.integers(0, 4), st.randoms())
def test_every_trained_parameter_is_in_exactly_one_bucket(model, options, iteration, random) -> None:
    tensors = {p.name: p for p in model if p.requires_grad and p.tied_to is None}
    ready = list(tensors)
    random.shuffle(ready)
    found = buckets_at(model, ready, options, iteration)
    assert sorted(name for bucket in found for name in bucket.parameters) == sorted(tensors)
    assert [bucket.index for bucket in found] == list(range(len(found)))
    for bucket in found:
        assert bucket.parameters and bucket.nbytes == sum(tensors[name].nbytes for name in bucket.parameters)
        assert {tensors[name].dtype for name in bucket.parameters} == {bucket.dtype}
        assert {tensors[name].sparse for name in bucket.parameters} == {bucket.sparse}
        assert not bucket.sparse or len(bucket.parameters) == 1


@given(models(), st.integers(1, 400))
def test_a_closed_bucket_was_below_its_limit_before_its_last_tensor(model, limit) -> None:
    found = assign_buckets(model, [limit], in_ready_order=True)
    last_of = {bucket[0].dtype: bucket for bucket in found if not bucket[0].sparse}
    for bucket in found:
        nbytes = [p.nbytes for p in bucket]
        if not bucket[0].sparse:
            assert sum(nbytes[:-1]) < limit
            assert sum(nbytes) >= limit or bucket is last_of[bucket[0].dtype]


@given(models(), options)
def test_after_the_rebuild_nothing_changes(model, options) -> None:
    rebuilt_at = rebuild_iteration(options) or 0
    layouts = [buckets_at(model, None, options, iteration) for iteration in range(5)]
    assert len(set(layouts[rebuilt_at:])) == 1
    assert len(set(layouts[:rebuilt_at])) <= 1


@given(models())
def test_the_small_last_bucket_is_the_default_rule_read_backwards(model) -> None:
    ready = [p.name for p in model if p.requires_grad and p.tied_to is None]
    swapped = buckets_at(model, ready[::-1], BucketOptions(2**-17, set_last_bucket_cap=True), 1)
    plain = buckets_at(model, ready, BucketOptions(2**-17), 1)
    assert [b.parameters for b in swapped] == [b.parameters for b in plain[::-1]]
