"""Known models in plain torch, compact: the same parameters, names and registration order as torchvision and
Hugging Face give them (totals: 11,689,512 for ResNet-18 and so on, tested), with small inputs so that they run fast.

The weights are zero. Only shapes and the order of the backward matter here, and neither depends on values.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.against_torch.real_transformers import GPT2, Bert


class BasicBlock(nn.Module):
    """torchvision.models.resnet.BasicBlock."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Two convolutions beside the shortcut."""
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """torchvision.models.resnet.Bottleneck."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """Three convolutions beside the shortcut."""
        y = F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))
        return F.relu(self.bn3(self.conv3(y)) + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """torchvision.models.resnet.ResNet."""

    def __init__(self, block: type[BasicBlock] | type[Bottleneck], depths: Sequence[int]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inputs = 64
        for number, depth in enumerate(depths, 1):
            width, blocks = 64 << (number - 1), []
            for position in range(depth):
                stride = 2 if number > 1 and position == 0 else 1
                outputs, downsample = width * block.expansion, None
                if stride != 1 or inputs != outputs:
                    shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                    downsample = nn.Sequential(shortcut, nn.BatchNorm2d(outputs))
                blocks.append(block(inputs, width, stride, downsample))
                inputs = outputs
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Stem, four stages, classifier."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for number in range(1, 5):
            x = self.get_submodule(f"layer{number}")(x)
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class FeaturesThenClassifier(nn.Module):
    """The frame of torchvision's AlexNet, VGG and SqueezeNet."""

    def __init__(self, features: nn.Module, pool: int | None, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.classifier = classifier
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Convolutions, pooling, classifier."""
        x = self.features(x)
        return self.classifier(x if self.pool is None else torch.flatten(F.adaptive_avg_pool2d(x, self.pool), 1))


def vgg16() -> nn.Module:
    """torchvision.models.vgg16."""
    layers: list[nn.Module] = []
    inputs = 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
            inputs = width
        layers.append(nn.MaxPool2d(2))
    classifier = nn.Sequential(nn.Linear(512 * 7 * 7, 4096), nn.ReLU(), nn.Dropout(),
                               nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 1000))  # fmt: skip
    return FeaturesThenClassifier(nn.Sequential(*layers), 7, classifier)


def alexnet() -> nn.Module:
    """torchvision.models.alexnet."""
    features = nn.Sequential(
        nn.Conv2d(3, 64, 11, 4, 2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1), nn.ReLU(), nn.Conv2d(384, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
    )  # fmt: skip
    classifier = nn.Sequential(nn.Dropout(), nn.Linear(256 * 6 * 6, 4096), nn.ReLU(),
                               nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))  # fmt: skip
    return FeaturesThenClassifier(features, 6, classifier)


class Fire(nn.Module):
    """torchvision.models.squeezenet.Fire."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Squeeze, then two expansions beside each other."""
        x = F.relu(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


def squeezenet1_0() -> nn.Module:
    """torchvision.models.squeezenet1_0."""
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    features = nn.Sequential(
        nn.Conv2d(3, 96, 7, 2), nn.ReLU(), pool, Fire(96, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), pool,
        Fire(256, 32, 128), Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), pool, Fire(512, 64, 256),
    )  # fmt: skip
    classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return FeaturesThenClassifier(features, None, classifier)


class DenseLayer(nn.Module):
    """torchvision.models.densenet._DenseLayer."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 128, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(128)
        self.conv2 = nn.Conv2d(128, 32, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Its 32 new channels after those it got."""
        y = self.conv1(F.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(F.relu(self.norm2(y)))], 1)


class DenseNet121(nn.Module):
    """torchvision.models.densenet121."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential()
        self.features.add_module("conv0", nn.Conv2d(3, 64, 7, 2, 3, bias=False))
        self.features.add_module("norm0", nn.BatchNorm2d(64))
        self.features.add_module("relu0", nn.ReLU())
        self.features.add_module("pool0", nn.MaxPool2d(3, 2, 1))
        width, depths = 64, (6, 12, 24, 16)
        for number, depth in enumerate(depths, 1):
            block = nn.Sequential()
            for layer in range(depth):
                block.add_module(f"denselayer{layer + 1}", DenseLayer(width + 32 * layer))
            self.features.add_module(f"denseblock{number}", block)
            width += 32 * depth
            if number < len(depths):
                transition = nn.Sequential()
                transition.add_module("norm", nn.BatchNorm2d(width))
                transition.add_module("relu", nn.ReLU())
                transition.add_module("conv", nn.Conv2d(width, width // 2, 1, bias=False))
                transition.add_module("pool", nn.AvgPool2d(2))
                self.features.add_module(f"transition{number}", transition)
                width //= 2
        self.features.add_module("norm5", nn.BatchNorm2d(width))
        self.classifier = nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Features, pooling, classifier."""
        return self.classifier(torch.flatten(F.adaptive_avg_pool2d(F.relu(self.features(x)), 1), 1))


def mlp() -> nn.Module:
    """Three Linear layers, 784-512-256-10."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


def _image(size: int) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: (torch.zeros(2, 3, size, size),)


def _tokens() -> tuple[Tensor, ...]:
    return (torch.zeros(1, 2, dtype=torch.int64),)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, ...]]]] = {
    "mlp": (mlp, lambda: (torch.zeros(2, 784),)),
    "resnet18": (lambda: ResNet(BasicBlock, (2, 2, 2, 2)), _image(32)),
    "resnet50": (lambda: ResNet(Bottleneck, (3, 4, 6, 3)), _image(32)),
    "densenet121": (DenseNet121, _image(32)),
    "squeezenet1_0": (squeezenet1_0, _image(32)),
    "alexnet": (alexnet, _image(64)),
    "vgg16": (vgg16, _image(32)),
    "bert_base": (Bert, _tokens),
    "gpt2": (GPT2, _tokens),
}
"""How to build each, and an input that it accepts."""


@contextmanager
def _zero_weights() -> Iterator[None]:
    """Makes the initialisers fill with zeros, which is faster than drawing a hundred million numbers."""
    names = ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_", "xavier_uniform_")
    kept = {name: getattr(nn.init, name) for name in names}
    for name in names:
        setattr(nn.init, name, lambda tensor, *_args, **_kwargs: tensor.detach().zero_())
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(nn.init, name, function)


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A model of MODELS and an input for it."""
    model, inputs = MODELS[name]
    with _zero_weights():
        return model(), inputs()
