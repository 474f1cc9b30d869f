"""describe and profile on small modules whose facts can be worked out by hand."""

import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import nn
from torch.autograd import Function
from torch.utils.checkpoint import checkpoint

from simulator.errors import InputError
from simulator.importers.module import describe, line, profile
from simulator.importers.module_calls import Loss, resized
from simulator.importers.module_clock import Clock
from simulator.model import Cost
from simulator.presets.facts import ModelFacts, load_facts


class Written(nn.Module):
    """A module written as its parts and its forward."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self._forward = forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(self, *args, **kwargs)


def mean_square(output: Any) -> Any:
    return output.square().mean()


def facts_of(module: nn.Module, inputs: Any, loss: Loss | None = mean_square, **options: Any) -> ModelFacts:
    facts = describe(module, inputs, name="m", loss=loss, **options)
    # On one device autograd runs the layers backward exactly, so the layers' order is the ready order.
    assert facts.ready_order == tuple(name for layer in reversed(facts.layers) for name in layer.parameters)
    nothing = [Cost()] * len(facts.layers)
    facts.profile(nothing, nothing, device="none")
    return facts


def test_a_linear_module_has_the_facts_of_its_shapes() -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    facts = facts_of(module, torch.randn(3, 8))
    first, second = facts.layers
    assert [layer.name for layer in facts.layers] == ["0", "2"]
    assert facts.ready_order == ("2.bias", "2.weight", "0.bias", "0.weight")
    assert first.forward_flops_per_sample == first.backward_flops_per_sample == 2 * 8 * 16
    assert second.backward_flops_per_sample == 2 * 2 * 16 * 4
    assert first.forward_bytes_per_sample == 4 * (8 + 16 + 16 + 16)
    assert first.forward_weight_bytes == 4 * 9 * 16
    assert (first.forward_kernels, first.backward_kernels) == (2, 3)
    assert first.activation_bytes_per_sample == 4 * 16
    assert facts.input_bytes_per_sample == 4 * 8
    assert facts.output_bytes_per_sample == 4 * 4
    assert (facts.loss.forward_kernels, facts.loss.activation_bytes_per_sample) == (2, 4 * 4)


def test_the_first_module_takes_what_runs_before_it() -> None:
    part = Written(lambda self, x: self.b(self.a(x.exp().exp())), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    first, second = facts_of(part, torch.randn(2, 4)).layers
    assert (first.name, first.forward_kernels, second.forward_kernels) == ("a", 3, 1)


def test_a_tied_weight_belongs_to_the_layer_that_uses_it_first() -> None:
    module: Any = Written(
        lambda self, x: self.head(self.middle(self.embed(x))), embed=nn.Embedding(10, 4), middle=nn.Linear(4, 4),
        head=nn.Linear(4, 10, bias=False),
    )  # fmt: skip
    module.head.weight = module.embed.weight
    facts = facts_of(module, torch.zeros(2, 3, dtype=torch.long))
    assert [layer.parameters for layer in facts.layers] == [
        ("embed.weight",), ("middle.bias", "middle.weight"), ()
    ]  # fmt: skip
    assert [(p.name, p.tied_to) for p in facts.parameters if p.tied_to] == [("head.weight", "embed.weight")]
    assert facts.parameter_bytes == 4 * (40 + 16 + 4)
    # Only the rows asked for are read, three a sample, and their int64 indices.
    assert facts.layers[0].forward_bytes_per_sample == 3 * (2 * 4 * 4 + 8)
    assert facts.layers[0].forward_weight_bytes == 0


def test_frozen_parameters_have_no_backward_and_no_place_in_the_order() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
    module[0].requires_grad_(False)
    facts = facts_of(module, torch.randn(2, 4))
    assert facts.layers[0].parameters == ()
    assert (facts.layers[0].forward_kernels, facts.layers[0].backward_kernels) == (1, 0)
    assert facts.layers[1].backward_flops_per_sample == facts.layers[1].forward_flops_per_sample
    assert [p.requires_grad for p in facts.parameters] == [False, False, True, True, True, True]


def test_an_unused_parameter_is_refused_or_kept_apart() -> None:
    module = Written(lambda self, x: self.a(x), a=nn.Linear(4, 4), idle=nn.Linear(4, 4))
    with pytest.raises(InputError, match=r"no gradient comes for idle\.weight, idle\.bias: .* allow_unused=True"):
        describe(module, torch.randn(2, 4), name="m")
    facts = facts_of(module, torch.randn(2, 4), allow_unused=True)
    assert facts.unused == ("idle.weight", "idle.bias")
    # As torch orders them when it rebuilds the buckets of a static graph: last.
    assert facts.layers[0].parameters == facts.ready_order == ("a.bias", "a.weight", "idle.weight", "idle.bias")


def test_several_inputs_come_as_a_tuple_or_by_name() -> None:
    def forward(self: Any, left: Any, right: Any, scale: float | None = None) -> Any:
        return self.a(left) + (self.b(right) if scale is None else scale * self.b(right))

    module = Written(forward, a=nn.Linear(4, 2), b=nn.Linear(8, 2))
    left, right = torch.randn(3, 4), torch.randn(3, 8)
    by_place = facts_of(module, (left, right))
    assert by_place == facts_of(module, {"left": left, "right": right})
    assert by_place.input_bytes_per_sample == 4 * (4 + 8)
    assert facts_of(module, (left, right, 2.0)).layers[1].forward_kernels == by_place.layers[1].forward_kernels + 1


class Answer(OrderedDict[str, Any]):
    """As Hugging Face returns: a mapping that is also indexed by place."""


@pytest.mark.parametrize(
    ("wrap", "loss_kernels"),
    [
        (lambda y: (y, y * 2), 4),  # two sums, a stack, its sum
        (lambda y: {"logits": y}, 1),
        (lambda y: [y.detach(), {"y": y}], 1),
        (lambda y: Answer(loss=y.mean(), logits=y), 1),
        (lambda y: y.mean(), 1),
    ],
)
def test_an_output_may_be_a_tuple_a_dict_or_carry_its_own_loss(wrap: Any, loss_kernels: int) -> None:
    module = Written(lambda self, x: wrap(self.a(x)), a=nn.Linear(4, 2))
    facts = facts_of(module, torch.randn(2, 4), loss=None)
    assert facts.loss.forward_kernels == loss_kernels


def test_a_convolution_with_batch_norm_counts_as_on_a_gpu() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 5))
    facts = facts_of(module, torch.randn(2, 3, 8, 8))
    conv, norm, _ = facts.layers
    assert conv.forward_flops_per_sample == conv.backward_flops_per_sample == 2 * 27 * 8 * 36
    assert conv.backward_kernels == 1  # its input needs no gradient
    assert norm.forward_kernels == 2  # and the counter of batches; flattening is a view
    assert [buffer.name for buffer in facts.buffers] == ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [buffer.dtype for buffer in facts.buffers] == ["float32", "float32", "int64"]
    deeper = facts_of(nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 8, 3)), torch.randn(2, 3, 8, 8)).layers[1]
    assert deeper.backward_kernels == 3  # gradients of input, weight and bias, each reading the output's gradient
    output, value, weight = 8 * 36, 4 * 64, 4 * 8 * 9
    assert deeper.backward_bytes_per_sample == 4 * (3 * output + 2 * value)
    assert deeper.backward_weight_bytes == 4 * (2 * weight + 8)


def test_dropout_is_one_kernel_with_a_mask_of_bytes() -> None:
    plain = nn.Sequential(nn.Linear(4, 64), nn.Linear(64, 2))
    dropped = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 2))
    few, many = (facts_of(module, torch.randn(2, 4)).layers[0] for module in (plain, dropped))
    assert many.forward_kernels == few.forward_kernels + 1
    assert many.backward_kernels == few.backward_kernels + 1
    # The linear's output was kept for the second linear; now the mask is kept too, and the output's dropped form.
    assert many.activation_bytes_per_sample == few.activation_bytes_per_sample + 64


def test_attention_flops_are_two_products_forward_and_five_backward() -> None:
    def forward(self: Any, x: Any) -> Any:
        q, k, v = self.qkv(x).view(len(x), 16, 3, 2, 8).permute(2, 0, 3, 1, 4)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    (layer,) = facts_of(Written(forward, qkv=nn.Linear(16, 48)), torch.randn(2, 16, 16)).layers
    linear, product = 2 * 16 * 16 * 48, 2 * 2 * 16 * 16 * 8
    assert layer.forward_flops_per_sample == linear + 2 * product
    assert layer.backward_flops_per_sample == linear + 5 * product


def test_a_module_called_twice_is_two_layers_and_its_gradient_comes_with_the_first() -> None:
    module = Written(lambda self, x: self.a(self.a(x)), a=nn.Linear(4, 4))
    facts = facts_of(module, torch.randn(2, 4))
    assert [(layer.name, {*layer.parameters}) for layer in facts.layers] == [
        ("a", {"a.weight", "a.bias"}), ("a#2", set())
    ]  # fmt: skip


def test_a_parameter_of_the_root_begins_a_layer_of_its_own() -> None:
    module = Written(lambda self, x: self.a(x + self.shift), a=nn.Linear(4, 4), shift=nn.Parameter(torch.zeros(4)))
    assert [(layer.name, layer.parameters) for layer in facts_of(module, torch.randn(2, 4)).layers] == [
        ("Written", ("shift",)), ("a", ("a.bias", "a.weight"))
    ]  # fmt: skip


def test_a_parameter_used_by_a_child_of_its_owner_is_found() -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True)
    facts = facts_of(Written(lambda self, x: self.mha(x, x, x)[0], mha=module), torch.randn(2, 5, 8))
    assert {name for layer in facts.layers for name in layer.parameters} == {p.name for p in facts.parameters}


def test_a_sparse_gradient_is_marked() -> None:
    module = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    facts = facts_of(module, torch.zeros(2, 3, dtype=torch.long))
    assert [parameter.sparse for parameter in facts.parameters] == [True, False, False]


def test_mixed_dtypes_keep_their_names() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).bfloat16())
    module[0].register_forward_hook(lambda *args: args[2].bfloat16())
    assert [parameter.dtype for parameter in facts_of(module, torch.randn(2, 4)).parameters] == [
        "float32", "float32", "bfloat16", "bfloat16"
    ]  # fmt: skip


def test_recomputation_is_work_of_the_backward_and_keeps_less() -> None:
    def build(again: bool) -> nn.Module:
        def forward(self: Any, x: Any) -> Any:
            inner = self.a(x)
            return self.c(checkpoint(self.b, inner, use_reentrant=False) if again else self.b(inner))

        inner = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
        return Written(forward, a=nn.Linear(8, 8), b=inner, c=nn.Linear(8, 2))

    kept, recomputed = (facts_of(build(again), torch.randn(2, 8)) for again in (False, True))
    assert recomputed.ready_order == kept.ready_order
    extra = sum(layer.backward_flops_per_sample for layer in recomputed.layers)
    extra -= sum(layer.backward_flops_per_sample for layer in kept.layers)
    # torch stops recomputing once every tensor is back: the second linear keeps its input, not its output.
    assert extra in (2 * 8 * 64, 2 * (8 * 64 + 64 * 8))
    assert recomputed.activation_bytes_per_sample == kept.activation_bytes_per_sample - 4 * 64


def test_reentrant_checkpoints_are_refused() -> None:
    module = Written(
        lambda self, x: checkpoint(self.b, self.a(x), use_reentrant=True), a=nn.Linear(4, 4), b=nn.Linear(4, 4)
    )
    with pytest.raises(InputError, match="use_reentrant=False"):
        describe(module, torch.randn(2, 4), name="m")


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    module(torch.randn(4, 4)).sum().backward()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    gradients = [torch.clone(parameter.grad) for parameter in module.parameters()]
    state = torch.random.get_rng_state()
    with torch.no_grad():
        describe(module, torch.randn(4, 4), name="m")
        torch.random.set_rng_state(state)
        profile(module, torch.zeros(4, 4), repeats=1, warmup=1)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert all(torch.equal(p.grad, g) for p, g in zip(module.parameters(), gradients, strict=True))
    assert not any(part._forward_pre_hooks for part in module.modules())


def test_the_meta_device_gives_the_same_facts() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    here = describe(module, torch.randn(2, 3, 8, 8), name="m", source="s")
    assert describe(module.to("meta"), torch.empty(2, 3, 8, 8, device="meta"), name="m", source="s") == here


def test_samples_are_repeated_or_cut_to_a_batch() -> None:
    two = torch.tensor([[1.0], [2.0]])
    assert resized({"x": (two, [two], "text")}, 3)["x"][0].flatten().tolist() == [1, 2, 1]
    assert resized(two, 1).tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("module", "inputs", "loss", "message"),
    [
        (nn.ReLU(), torch.randn(2, 4), None, "no parameter with requires_grad"),
        (nn.Linear, torch.randn(2, 4), None, "an nn.Module is needed"),
        (nn.DataParallel(nn.Linear(4, 2)), torch.randn(2, 4), None, r"Pass module\.module"),
        (nn.LazyLinear(2), torch.randn(2, 4), None, "Run one forward first"),
        (nn.Linear(4, 2), torch.tensor(1.0), None, r"the first dimension of each is the batch.*unsqueeze"),
        (nn.Linear(4, 2), torch.randn(0, 4), None, "the first dimension of each is the batch"),
        (nn.Linear(4, 2), (torch.randn(2, 4), torch.randn(3, 4)), None, r"shape \(2, 4\), \(3, 4\)"),
        (nn.Linear(4, 2), [1, 2], None, "without a tensor"),
        (nn.Linear(4, 2), torch.randn(2, 5), None, "Linear's forward fails on the example input .RuntimeError: .*2x5"),
        (Written(lambda self, x: "text", a=nn.Linear(4, 2)), torch.randn(2, 4), None, "returned a str.*pass loss="),
        (Written(lambda self, x: x, a=nn.Linear(4, 2)), torch.randn(2, 4), None, "depends on the parameters"),
        (nn.Linear(4, 2), torch.randn(2, 4), lambda y: y, r"loss returned a Tensor of shape \(2, 2\)"),
        (nn.Linear(4, 2), torch.randn(2, 4), lambda y: 3.0, "loss returned a float"),
    ],
)
def test_what_cannot_be_described_is_refused_with_the_next_step(
    module: Any, inputs: Any, loss: Loss | None, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        describe(module, inputs, name="m", loss=loss)


def test_a_path_that_depends_on_the_batch_is_refused() -> None:
    module = Written(lambda self, x: self.a(self.a(x)) if len(x) > 2 else self.a(x), a=nn.Linear(4, 4))
    with pytest.raises(InputError, match="m at batch 2 and at batch 4: other modules run"):
        describe(module, torch.randn(2, 4), name="m")
    with pytest.raises(InputError, match="two different sizes"):
        describe(module, torch.randn(2, 4), name="m", batches=(4, 2))


def test_a_missing_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match=r"torch is not installed.*pip install torch"):
        describe(nn.Linear(4, 2), None, name="m")


def test_the_presets_are_what_is_recorded_now() -> None:
    from simulator.presets.record import record

    assert record("mlp-small").layers == load_facts("mlp-small").layers
    pytest.importorskip("torchvision", reason="torchvision does not go with every build of torch")
    now, kept = record("resnet18"), load_facts("resnet18")
    assert (now.parameters, now.buffers, now.layers, now.loss) == (
        kept.parameters, kept.buffers, kept.layers, kept.loss
    )  # fmt: skip


class Sleep(Function):
    """Takes 10 ms and 5 ms a sample forward, twice that backward, on any machine."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        time.sleep(0.010 + 0.005 * len(x))
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        time.sleep(0.020 + 0.010 * len(gradient))
        return gradient


def test_profile_finds_the_line_of_each_layer_and_the_whole_step() -> None:
    slow = Written(lambda self, x: Sleep.apply(self.a(x)), a=nn.Linear(4, 4))
    module = nn.Sequential(nn.Linear(4, 4), slow, nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    measured = profile(module, torch.randn(8, 4), name="m", loss=mean_square, repeats=5, warmup=1)
    print(measured.source, *measured.layers, sep="\n")
    assert measured.device.startswith("CPU, ")
    assert [layer.name for layer in measured.layers] == ["0", "1.a", "2.0", "3"]
    layer = measured.layers[1]
    for batch in (2, 8):
        assert layer.forward.at(batch) == pytest.approx(0.010 + 0.005 * batch, rel=0.3)
        assert layer.backward.at(batch) == pytest.approx(0.020 + 0.010 * batch, rel=0.3)
    assert measured.compute_s(8) < 1.5 * 0.150
    ratio = float(measured.source.rsplit("sum to ", 1)[1].split()[0])
    assert ratio == pytest.approx(1, abs=0.3)
    assert all(one.forward_host_s == one.backward_host_s == 0 for one in measured.layers)


def test_on_cuda_events_time_a_device_that_is_kept_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[int] = []

    class Event:
        """An event on a device that takes twice as long as the host."""

        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at_s = 2 * time.perf_counter()

        def synchronize(self) -> None:
            pass

        def elapsed_time(self, end: "Event") -> float:
            return 1e3 * (end.at_s - self.at_s)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "made up")
    monkeypatch.setattr("simulator.importers.module.Clock", lambda device: Clock(torch.device("cuda")))
    module = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
    measured = profile(module, torch.randn(8, 64), repeats=3, warmup=2)
    assert measured.device == "made up"
    # Two batch sizes, each held before its forward and before its backward, for longer than the host had taken.
    assert len(slept) == 5 * 2 * 2
    for layer in measured.layers:
        assert min(layer.forward_host_s, layer.backward_host_s) > 0
        assert layer.forward.at(8) > 0
    assert min(slept) > 0


def test_a_line_through_two_times_is_never_negative() -> None:
    assert line(2, 3.0, 4, 5.0) == Cost(1.0, 1.0)
    assert line(2, 5.0, 4, 3.0) == Cost(4.0, 0.0)
    assert line(2, 1.0, 4, 4.0) == Cost(0.0, (2 * 1 + 4 * 4) / (4 + 16))
