"""Small modules that have, between them, all that shapes DDP's collectives: buffers, two dtypes, frozen, tied and
unused parameters, a convolution (whose weight's gradient is ready before its bias's, a Linear's after).

Imports torch, so only worker processes import it.

Not modelled: modules so large that a bucket of the constructor, 250 MiB, is full.
"""

from collections.abc import Callable, Sequence
from typing import Any

from simulator.importers import module_calls as calls

torch, nn = calls.torch(), calls.torch("nn")

INPUT_WIDTH = 12


def _made(forward: Callable[[Any, Any], Any], **parts: Any) -> Any:
    """A module of parts registered in this order, with a forward of its own."""
    module = type("Made", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        setattr(module, name, part)
    return module


def _two_dtypes() -> Any:
    """float32 below, float64 above, so that the two share no bucket."""

    def forward(self: Any, rows: Any) -> Any:
        return self.last(torch.tanh(self.high(torch.tanh(self.low(rows)).double())).float())

    return _made(forward, low=nn.Linear(INPUT_WIDTH, 24), high=nn.Linear(24, 18).double(), last=nn.Linear(18, 6))


def _tied() -> Any:
    """The last layer's weight is the first one's."""
    module = nn.Sequential(nn.Linear(INPUT_WIDTH, 20), nn.Tanh(), nn.Linear(20, INPUT_WIDTH), nn.Tanh(),
                           nn.Linear(INPUT_WIDTH, 20))  # fmt: skip
    module[4].weight = module[0].weight
    return module


def _unused() -> Any:
    """One layer takes no part, and the others are used in another order than they are registered."""

    def forward(self: Any, rows: Any) -> Any:
        return self.last(torch.tanh(self.first(rows)))

    return _made(forward, last=nn.Linear(16, 8), spare=nn.Linear(5, 7), first=nn.Linear(INPUT_WIDTH, 16))


def _frozen() -> Any:
    module = chain((INPUT_WIDTH, 20, 16, 4))
    module[0].requires_grad_(False)
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
