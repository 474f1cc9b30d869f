"""A module with any list of parameters, and the list of parameters of any module."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from simulator.model import Parameter


class MadeUp(nn.Module):
    """Any list of parameters, used one after another in the order asked for."""

    def __init__(self, parameters: Sequence[Parameter], uses: Sequence[str] | None) -> None:
        super().__init__()
        self.uses = [p.name for p in parameters] if uses is None else list(uses)
        for given in parameters:
            if given.sparse:
                self.add_module(given.name, nn.Embedding(*given.shape, sparse=True))
            elif given.tied_to is not None:
                self.register_parameter(given.name, self.get_parameter(given.tied_to))
            else:
                tensor = torch.zeros(given.shape, dtype=getattr(torch, given.dtype))
                self.register_parameter(given.name, nn.Parameter(tensor, requires_grad=given.requires_grad))

    def forward(self) -> Tensor:
        """The sum of all elements of what is used."""
        total = torch.zeros((), requires_grad=True)
        for name in self.uses:
            used = getattr(self, name)
            total = total + (used(torch.tensor([0])) if isinstance(used, nn.Embedding) else used).sum().float()
        return total


def made_up(parameters: Sequence[Parameter], uses: Sequence[str] | None) -> nn.Module:
    """A module with exactly these parameters (a sparse one gets the name of its embedding plus `.weight`)."""
    return MadeUp(parameters, uses)


def parameter_table(module: nn.Module) -> tuple[Parameter, ...]:
    """The module's parameters in registration order, under every name that they have."""
    sparse = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding) and m.sparse}
    first: dict[int, str] = {}
    table = []
    for name, tensor in module.named_parameters(remove_duplicate=False):
        owner = first.setdefault(id(tensor), name)
        dtype = str(tensor.dtype).removeprefix("torch.")
        table.append(Parameter(name, tuple(tensor.shape), dtype, tensor.requires_grad,
                               None if owner == name else owner, id(tensor) in sparse))  # fmt: skip
    return tuple(table)
