"""Small modules that have, between them, all that shapes DDP's collectives: buffers, two dtypes, frozen, tied and
unused parameters, a convolution (whose weight's gradient is ready before its bias's, a Linear's after).

Imports torch, so only worker processes import it.

Not modelled: modules so large that a bucket of the constructor, 250 MiB, is full.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


def _two_dtypes() -> Any:
    class TwoDtypes(nn.Module):
        """float32 below, float64 above, so that the two share no bucket."""

        def __init__(self) -> None:
            super().__init__()
            self.low, self.high, self.last = nn.Linear(12, 24), nn.Linear(24, 18).double(), nn.Linear(18, 6)

        def forward(self, rows: Any) -> Any:
            return self.last(torch.tanh(self.high(torch.tanh(self.low(rows)).double())).float())

    return TwoDtypes()


def _tied() -> Any:
    class Tied(nn.Module):
        """The last layer's weight is the first one's."""

        def __init__(self) -> None:
            super().__init__()
            self.first, self.middle, self.last = nn.Linear(12, 20), nn.Linear(20, 12), nn.Linear(12, 20)
            self.last.weight = self.first.weight

        def forward(self, rows: Any) -> Any:
            return self.last(torch.tanh(self.middle(torch.tanh(self.first(rows)))))

    return Tied()


def _unused() -> Any:
    class Unused(nn.Module):
        """One layer takes no part, and the others are used in another order than they are registered."""

        def __init__(self) -> None:
            super().__init__()
            self.last, self.spare, self.first = nn.Linear(16, 8), nn.Linear(5, 7), nn.Linear(12, 16)

        def forward(self, rows: Any) -> Any:
            return self.last(torch.tanh(self.first(rows)))

    return Unused()


def _frozen() -> Any:
    module = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 4))
    for parameter in module[0].parameters():
        parameter.requires_grad_(False)
    return module


def _convolutions() -> Any:
    return nn.Sequential(
        nn.Unflatten(1, (3, 2, 2)), nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip


def chain(widths: Sequence[int]) -> Any:
    """Linear layers with ReLU between them."""
    parts: list[Any] = []
    for before, after in zip(widths, widths[1:]):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


INPUT_WIDTH = 12
BUILDERS: dict[str, Callable[[], Any]] = {
    "linears": lambda: chain((INPUT_WIDTH, 30, 40, 20, 10)),
    "convolutions": _convolutions,
    "two dtypes": _two_dtypes,
    "tied": _tied,
    "frozen": _frozen,
    "unused": _unused,
}


def build(name: str, seed: int) -> Any:
    """The module with random weights that the seed fixes."""
    torch.manual_seed(seed)
    return BUILDERS[name]()


def batch(seed: int, rows: int = 6, width: int = INPUT_WIDTH) -> Any:
    """Inputs that the seed fixes."""
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))
