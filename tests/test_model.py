"""What a model profile adds up to: tied tensors once, frozen ones without a gradient, seconds as lines over the batch."""

import pytest

from simulator.model import DTYPE_BYTES, Cost, Layer, ModelProfile, Parameter
from tests.samples import preset

MODEL = ModelProfile(
    "m",
    (Parameter("embedding", (10, 4)), Parameter("scale", (4,), "float16"), Parameter("frozen", (8,), requires_grad=False),
     Parameter("head", (10, 4), tied_to="embedding")),
    (Layer("embed", ("embedding",), Cost(1.0, 0.5), Cost(2.0, 0.25), activation_bytes_per_sample=3),
     Layer("rest", ("scale",), Cost(0.0, 1.0), Cost(0.5), activation_bytes_per_sample=4)),
    buffers=(Parameter("count", (), "int64"),),
    loss=Cost(0.125),
)  # fmt: skip


def test_a_tied_tensor_counts_once_and_a_frozen_one_has_no_gradient() -> None:
    assert MODEL.parameter_bytes == 10 * 4 * 4 + 4 * 2 + 8 * 4
    assert MODEL.gradient_bytes == 10 * 4 * 4 + 4 * 2
    assert [p.name for p in MODEL.trained_parameters] == ["embedding", "scale"]
    assert [p.name for p in MODEL.unique_parameters] == ["embedding", "scale", "frozen"]


def test_a_scalar_has_one_element() -> None:
    assert (MODEL.buffers[0].numel, MODEL.buffer_bytes) == (1, 8)


def test_seconds_are_a_line_over_the_batch_and_nothing_for_an_empty_one() -> None:
    assert Cost(1.0, 0.5).at(4) == 1.0 + 4 * 0.5
    assert Cost(1.0, 0.5).at(0) == 0.0
    assert MODEL.compute_s(4) == (1.0 + 4 * 0.5) + (2.0 + 4 * 0.25) + 4 * 1.0 + 0.5 + 0.125


def test_without_a_recorded_order_gradients_come_in_reverse_order_of_the_layers() -> None:
    assert MODEL.ready_order == ("scale", "embedding")


def test_activations_add_up_over_the_layers() -> None:
    assert MODEL.activation_bytes_per_sample == 3 + 4


@pytest.mark.parametrize(("dtype", "size"), DTYPE_BYTES.items())
def test_bytes_follow_the_dtype(dtype: str, size: int) -> None:
    assert Parameter("p", (3, 5), dtype).nbytes == 15 * size


@pytest.mark.parametrize(
    ("name", "nbytes"),
    [("resnet18", 11_689_512 * 4), ("resnet50", 25_557_032 * 4), ("vgg16", 138_357_544 * 4), ("gpt2", 124_439_808 * 4)],
)
def test_presets_have_the_published_number_of_parameters(name: str, nbytes: int) -> None:
    """torchvision's model table; GPT-2 small with its head tied."""
    assert preset(name).parameter_bytes == nbytes
