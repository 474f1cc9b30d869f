"""A module of the simulator with one thing broken on purpose, to see that the validation notices."""

import inspect
import sys
from types import ModuleType


def mutated(module: ModuleType, old: str, new: str) -> ModuleType:
    """A copy of the module with a piece of its source replaced, once. The module itself stays as it is."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, (
        f"{old!r} stands {source.count(old)} times in {module.__name__}: break something else"
    )
    copy = ModuleType(module.__name__ + "_broken")
    sys.modules[copy.__name__] = copy  # dataclasses look their module up
    exec(compile(source.replace(old, new), module.__file__ or "", "exec"), copy.__dict__)
    return copy
