"""The recorded model facts against arithmetic, against known bucket lists and against measured layer times."""

import json
from itertools import accumulate
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.model import Cost, Parameter
from simulator.presets.facts import MODEL_NAMES, MODELS, LayerFacts, ModelFacts, from_json, load_facts, to_json
from simulator.presets.roofline import layer_shares

LAYERS = Path(__file__).with_name("data") / "layers"
PEAKS = {"v100": (15.7e12, 900e9), "h100": (400e12, 3.35e12)}
"""fp32 FLOP/s (on an H100 what TF32 reaches without sparsity, about) and memory bytes/s, from the vendor."""


@pytest.mark.parametrize(
    ("name", "tensors", "nbytes"),
    [
        ("alexnet", 16, 4 * 61_100_840),
        ("resnet18", 62, 4 * 11_689_512),
        ("resnet50", 161, 4 * 25_557_032),
        ("vgg16", 32, 4 * 138_357_544),
        ("densenet121", 364, 4 * 7_978_856),
        ("gpt2", 148, 4 * 124_439_808),
        ("bert-base", 5 + 12 * 16 + 2 + 2, 4 * (109_482_240 + 2 * 768 + 2)),
        ("mlp-small", 6, 4 * (785 * 512 + 513 * 256 + 257 * 10)),
        ("mlp-wide", 6, 4 * (2 * 4097 * 4096 + 4097 * 10)),
    ],
)
def test_a_preset_has_the_tensors_and_bytes_of_its_model(name: str, tensors: int, nbytes: int) -> None:
    facts = load_facts(name)
    assert sum(parameter.tied_to is None for parameter in facts.parameters) == tensors
    assert facts.parameter_bytes == nbytes


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("resnet50", [8196000, 31502336, 26255360, 26550272, 9724160]),
        ("vgg16", [16388000, 67125248, 411058176, 28315648, 28320768, 2222336]),
        ("gpt2", [9446400, *11 * [28351488], 176446464]),
        ("mlp-small", [2143272]),
    ],
)
def test_the_recorded_ready_order_gives_the_buckets_that_torch_built(name: str, sizes: list[int]) -> None:
    facts = load_facts(name)
    nbytes = {parameter.name: parameter.nbytes for parameter in facts.parameters}
    buckets: list[int] = []
    size = 0
    for parameter in facts.ready_order:
        size += nbytes[parameter]
        if size >= (25 * 2**20 if buckets else 2**20):
            buckets, size = [*buckets, size], 0
    assert [*buckets, *([size] if size else [])] == sizes


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_facts_make_a_profile_and_come_back_from_json(name: str) -> None:
    facts = load_facts(name)
    assert from_json(to_json(facts)) == facts
    costs = [Cost(1e-6, 1e-6)] * len(facts.layers)
    profile = facts.profile(costs, costs, device="made up")
    assert profile.compute_s(3) == pytest.approx(2 * len(facts.layers) * 4e-6)
    assert profile.ready_order == facts.ready_order
    assert profile.parameter_bytes == facts.parameter_bytes
    assert profile.activation_bytes_per_sample == sum(layer.activation_bytes_per_sample for layer in facts.layers)
    assert not facts.unused
    assert "torch" in facts.source


def test_all_presets_together_stay_small() -> None:
    assert sum(path.stat().st_size for path in MODELS.glob("*.json")) < 600_000


def total(facts: ModelFacts, field: str) -> int:
    return sum(getattr(layer, field) for layer in facts.layers)


def test_vgg16_flops_are_those_of_its_convolutions_and_linears() -> None:
    facts = load_facts("vgg16")
    sides = [224] * 2 + [112] * 2 + [56] * 3 + [28] * 3 + [14] * 3
    weights = [parameter.numel for parameter in facts.parameters if parameter.name.endswith("weight")]
    forward = [2 * numel * side**2 for numel, side in zip(weights, [*sides, 1, 1, 1], strict=True)]
    assert [layer.forward_flops_per_sample for layer in facts.layers] == forward
    # No gradient of the images is asked for: the first convolution has only its weight's.
    assert [layer.backward_flops_per_sample for layer in facts.layers] == [forward[0], *(2 * f for f in forward[1:])]


def test_vgg16_keeps_what_its_backward_reads() -> None:
    # Each ReLU's output once (in place: the next layer reads the same storage), each pooling's output, int64 indices,
    # the adaptive pooling's output, 7x7 as its input; after two linears a ReLU, a dropout's mask of bytes and output.
    relu = 64 * 224**2 * 2 + 128 * 112**2 * 2 + 256 * 56**2 * 3 + 512 * 28**2 * 3 + 512 * 14**2 * 3
    pool = 64 * 112**2 + 128 * 56**2 + 256 * 28**2 + 512 * 14**2 + 512 * 7**2
    ends = 4 * 512 * 7**2 + 2 * 4096 * (4 + 1 + 4)
    assert total(load_facts("vgg16"), "activation_bytes_per_sample") == 4 * relu + (4 + 8) * pool + ends


def test_resnet50_launches_one_kernel_per_operation() -> None:
    facts = load_facts("resnet50")
    convolutions, relus, additions, ends = 53, 49, 16, 3  # max pooling, average pooling, linear
    # A batch norm counts its batches with a kernel of its own.
    assert total(facts, "forward_kernels") == 3 * convolutions + relus + additions + ends
    assert sum(buffer.nbytes for buffer in facts.buffers) == 4 * 53_120 + 8 * 53


def test_resnet50_moves_its_weights_three_times() -> None:
    facts = load_facts("resnet50")
    weights = 4 * sum(parameter.numel for parameter in facts.parameters if len(parameter.shape) > 1)
    # Read by the forward and by the input's gradient (not the first), written as the weight's gradient.
    assert sum(layer.weight_bytes for layer in facts.layers) == pytest.approx(3 * weights, rel=0.01)


@pytest.mark.parametrize(("name", "tokens"), [("gpt2", 1024), ("gpt2-512", 512), ("gpt2-256", 256), ("gpt2-128", 128)])
def test_gpt2_flops_are_linear_in_tokens_plus_quadratic_attention(name: str, tokens: int) -> None:
    facts = load_facts(name)
    assert facts.tokens_per_sample == tokens
    products = sum(p.numel for p in facts.parameters if len(p.shape) == 2 and "wpe" not in p.name and p.tied_to is None)
    attention = 12 * 4 * tokens**2 * 768
    assert total(facts, "forward_flops_per_sample") == 2 * products * tokens + attention
    # Fused attention computes the scores again: 5 products backward for 2 forward.
    assert total(facts, "backward_flops_per_sample") == 2 * 2 * products * tokens + attention * 5 // 2
    assert facts.output_bytes_per_sample == tokens * 50257 * 4
    assert facts.input_bytes_per_sample == tokens * 8


def test_gpt2s_tied_head_is_a_layer_without_parameters_and_the_embedding_comes_last() -> None:
    facts = load_facts("gpt2")
    assert facts.layers[-1].name == "lm_head"
    assert facts.layers[-1].parameters == ()
    assert facts.layers[0].parameters == ("transformer.wte.weight",) == facts.ready_order[-1:]
    tied = [parameter for parameter in facts.parameters if parameter.tied_to]
    assert [(p.name, p.tied_to) for p in tied] == [("lm_head.weight", "transformer.wte.weight")]


def test_mlp_small_work_is_what_its_shapes_say() -> None:
    first, second, third = load_facts("mlp-small").layers
    # Linear and ReLU: input and output; output twice. The bias is read by the same kernel as the weight.
    assert first.forward_bytes_per_sample == 4 * (784 + 512 + 512 + 512)
    assert first.forward_weight_bytes == 4 * 785 * 512
    assert (first.forward_kernels, third.forward_kernels) == (2, 1)
    # Gradient of the weight, sum for the bias, ReLU; and from the second layer on the gradient of the input.
    assert (first.backward_kernels, second.backward_kernels, third.backward_kernels) == (3, 4, 3)
    assert first.activation_bytes_per_sample == 4 * 512
    assert third.activation_bytes_per_sample == 0
    assert load_facts("mlp-small").loss.activation_bytes_per_sample == 4 * 10
    assert second.backward_flops_per_sample == 2 * second.forward_flops_per_sample == 4 * 512 * 256


def recorded(name: str) -> tuple[dict[str, object], list[list[float]]]:
    data = json.loads((LAYERS / f"{name}.json").read_text(encoding="utf-8"))
    return data, data["rows"]


def cumulative(values: list[float]) -> list[float]:
    return [part / sum(values) for part in accumulate(values)]


def largest_error(predicted: list[float], measured: list[float]) -> float:
    """The largest distance between two cumulative profiles, as a fraction of the whole."""
    pairs = zip(cumulative(predicted), cumulative(measured), strict=True)
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize(
    ("recording", "peaks", "forward_bound", "backward_bound", "plain_backward"),
    [
        ("pipedream_vgg16", "v100", 0.17, 0.20, 0.27),
        ("pipedream_resnet50", "v100", 0.05, 0.05, 0.07),
        ("pipedream_resnet18", "v100", 0.20, 0.09, 0.16),
        ("triosim_h100_resnet50", "h100", 0.08, 0.07, 0.07),
    ],
)
def test_the_roofline_divides_a_step_as_it_was_measured(
    recording: str, peaks: str, forward_bound: float, backward_bound: float, plain_backward: float
) -> None:
    data, rows = recorded(recording)
    facts = load_facts(str(data["model"]))
    forward, backward = ([row[i] for row in rows] for i in (0, 1))
    errors = []
    for tile_channels in (64, 0):
        weights = layer_shares(facts, *PEAKS[peaks], int(str(data["batch"])), tile_channels=tile_channels)
        errors.append((
            largest_error([w[0] for w in weights], forward),
            largest_error([w[1] for w in weights][::-1], backward[::-1]),
        ))  # fmt: skip
    print(f"{recording}: forward, backward off by at most {errors[0]}; without tile_channels {errors[1]}")
    assert errors[0][0] <= forward_bound
    assert errors[0][1] <= backward_bound
    assert errors[1][1] == pytest.approx(plain_backward, abs=0.01)


def ready_fractions(facts: ModelFacts, backward: list[float]) -> list[tuple[int, float]]:
    """Bytes of each rebuilt bucket, and the fraction of the backward after which it is ready."""
    nbytes = {parameter.name: parameter.nbytes for parameter in facts.parameters}
    buckets: list[tuple[int, float]] = []
    size = 0
    for layer, fraction in zip(reversed(facts.layers), cumulative(backward[::-1]), strict=True):
        for name in layer.parameters:
            size += nbytes[name]
            if size >= (25 * 2**20 if buckets else 2**20):
                buckets, size = [*buckets, (size, fraction)], 0
    return [*buckets, (size, 1.0)] if size else buckets


def test_resnet50_buckets_become_ready_when_a_v100_recorded_them() -> None:
    _, rows = recorded("ready_v100x1_resnet50_ddp_ws1")
    facts = load_facts("resnet50")
    for tile_channels, bound in ((64, 0.02), (0, 0.06)):
        weights = layer_shares(facts, *PEAKS["v100"], 32, tile_channels=tile_channels)
        predicted = ready_fractions(facts, [weight[1] for weight in weights])
        print(f"tile_channels {tile_channels}: recorded {rows}, predicted {predicted}")
        assert [size for size, _ in predicted] == [row[0] for row in rows]
        assert max(abs(a - row[1]) for (_, a), row in zip(predicted, rows, strict=True)) <= bound


def test_resnet50_buckets_become_ready_by_kernels_where_the_host_is_the_bottleneck() -> None:
    _, rows = recorded("ready_a100x2_resnet50_ddp")
    facts = load_facts("resnet50")
    predicted = ready_fractions(facts, [layer.backward_kernels for layer in facts.layers])
    print(f"recorded {rows}, predicted {predicted}")
    assert [size for size, _ in predicted] == [row[0] for row in rows]
    assert max(abs(a - row[1]) for (_, a), row in zip(predicted, rows, strict=True)) <= 0.02


def test_a_roofline_weight_is_the_slower_of_arithmetic_and_memory() -> None:
    layers = (LayerFacts("compute", ("w",), 100, 200, 4, 4, 8, 8), LayerFacts("memory", (), 1, 1, 40, 80, 20, 20))
    facts = ModelFacts("toy", (Parameter("w", (64, 3, 3, 3)),), layers)
    assert layer_shares(facts, 10.0, 2.0, 2) == ((2 * 100 / 5, 2 * 200 / 5), ((80 + 20) / 2, (160 + 20) / 2))
    assert layer_shares(facts, 10.0, 2.0, 2, tile_channels=0)[0] == (2 * 100 / 10, 2 * 200 / 10)
    assert layers[1].weight_bytes == 20 + 20


@pytest.mark.parametrize("rates", [(0.0, 1.0, 1), (1.0, 0.0, 1), (1.0, float("inf"), 1), (1.0, 1.0, 0)])
def test_a_roofline_refuses_impossible_rates(rates: tuple[float, float, int]) -> None:
    with pytest.raises(InputError):
        layer_shares(load_facts("mlp-small"), *rates)


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match=r"model 'resnet5' is not known\. Did you mean 'resnet50'"):
        load_facts("resnet5")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"columns": 3}', to_json(load_facts("mlp-small"))[:-400] + "}"])
def test_text_that_holds_no_facts_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError, match="here: no model facts"):
        from_json(text, "here")


def test_numbers_that_cannot_be_are_refused() -> None:
    text = to_json(load_facts("mlp-small")).replace('["0", ["0.bias", "0.weight"], ', '["0", ["0.bias", "0.weight"], -')
    with pytest.raises(InputError, match="forward_flops_per_sample of layer '0' = -"):
        from_json(text)
    with pytest.raises(InputError, match="mlp-small has 3 layers"):
        load_facts("mlp-small").profile([Cost()] * 3, [Cost()] * 2, device="made up")
    with pytest.raises(InputError, match="no layer"):
        ModelFacts("empty", (), ())


def test_unused_parameters_and_another_ready_order_survive_json() -> None:
    facts = ModelFacts(
        "odd", (Parameter("a", (2,)), Parameter("b", (3,), "float64", sparse=True)), (LayerFacts("l", ("a", "b")),),
        ready_order=("b", "a"), unused=("a",),
    )  # fmt: skip
    assert from_json(to_json(facts)) == facts
