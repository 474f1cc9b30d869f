"""What a model profile adds up to: tied tensors once, frozen ones without a gradient, seconds as lines over the batch."""

import re

import pytest

from simulator.errors import InputError
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


W = Parameter("w", (2, 3))


def model(*parameters: Parameter, **changes: object) -> ModelProfile:
    """One layer of all that is trained."""
    trained = tuple(p.name for p in parameters if p.requires_grad and p.tied_to is None)
    return ModelProfile(**{"name": "m", "parameters": parameters, "layers": (Layer("l", trained),), **changes})


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Parameter("w", 5), "shape of parameter 'w' is a number: a tuple of sizes is needed"),
        (lambda: Parameter("w", "ab"), "shape of parameter 'w' is text: a tuple of sizes"),
        (lambda: Parameter("w", None), "shape of parameter 'w' is nothing"),
        (lambda: Parameter("w", (2.0,)), "a dimension of parameter 'w' = 2.0"),
        (lambda: Parameter(3, (2,)), "a parameter's name is a number: text is needed"),
        (lambda: Parameter("w\n", (2,)), "control characters"),
        (lambda: Parameter("w", (2,), []), "dtype [] is not known"),
        (lambda: Parameter("w", (2,), requires_grad="yes"), "requires_grad of parameter 'w' is text"),
        (lambda: Parameter("w", (2,), tied_to=1), "tied_to of parameter 'w' is a number"),
        (lambda: Layer("l", "ab"), "parameters of layer 'l' is text: a tuple of names is needed"),
        (lambda: Layer("l", 3), "parameters of layer 'l' is a number"),
        (lambda: Layer("l", (3,)), "parameters of layer 'l' holds a number: it is a tuple of names"),
        (lambda: Layer("l", (), 1.0), "forward or backward of layer 'l' holds a number"),
        (lambda: Layer(None), "the name of a layer is nothing"),
        (lambda: model(W, name="\ud800"), "the name of a model holds '\\ud800'"),
        (lambda: model(W, name="a\x1b[31m"), "the name of a model holds '\\x1b'"),
        (lambda: model(W, device=3), "device of model 'm' is a number"),
        (lambda: model(W, parameters="w"), "parameters of model 'm' is text"),
        (lambda: model(W, parameters=("w",)), "parameters of model 'm' holds text: it is a tuple of Parameter"),
        (lambda: model(W, layers=Layer("l", ("w",))), "layers of model 'm' is a Layer: a tuple of Layer"),
        (lambda: model(W, ready_order="w"), "ready_order of model 'm' is text"),
        (lambda: model(W, loss=1.0), "loss of model 'm' holds a number"),
        (lambda: model(W, W), "'w': a name must not occur twice"),
        (lambda: model(W, Parameter("h", (2, 3), tied_to="v")), "'h' is tied to 'v': that must be the name of an earlier"),
        (lambda: model(Parameter("h", (2, 3), tied_to="w"), W), "that must be the name of an earlier"),
        (lambda: model(W, Parameter("h", (2, 3), tied_to="h")), "that must be the name of an earlier"),
        (lambda: model(W, Parameter("h", (3, 2), tied_to="w")), "'h' is tied to 'w': one tensor has one shape"),
        (lambda: model(W, Parameter("h", (2, 3), "float16", tied_to="w")), "one tensor has one shape and one dtype"),
        (lambda: model(W, Parameter("v", (1,)), ready_order=("w",)), "ready_order of model 'm' misses 'v'"),
        (lambda: model(W, ready_order=("w", "w")), "ready_order of model 'm' repeats 'w'"),
        (lambda: model(W, ready_order=("w", "v")), "ready_order of model 'm' invents 'v'"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused(build, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(said)):
        build()


def test_lists_become_tuples() -> None:
    assert Parameter("w", [2, 3]) == W
    assert Layer("l", ["w"]) == Layer("l", ("w",))
    assert hash(model(W, ready_order=["w"])) == hash(model(W))
