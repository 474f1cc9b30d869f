"""Frozen values of this package as JSON and back: scenarios, and a user's own model profile.

Every dataclass becomes an object with its class's name under "type". Floats round-trip exactly; inf and NaN are
refused when the value is built again, by the value's own rules.
"""

import json
import types
import typing
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulator.backend import Backend, Protocol
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster, Device, Link, Ring
from simulator.errors import InputError, parse_json
from simulator.model import Cost, Layer, ModelProfile, Parameter, in_words, printable
from simulator.scenario import DataParallel, DistributedDataParallel, Host, Optimizer, Scenario, SingleDevice

_TYPES = {kind.__name__: kind for kind in (
    Backend, BucketOptions, Cluster, Cost, DataParallel, Device, DistributedDataParallel, Host, Layer, Link,
    ModelProfile, Optimizer, Parameter, Protocol, Ring, Scenario, SingleDevice,
)}  # fmt: skip


def to_json(value: object) -> str:
    """A frozen value of this package as JSON."""
    return json.dumps(_plain(value), allow_nan=False)


def from_json(text: str, what: str = "JSON") -> Any:
    """The value that `to_json` wrote. Raises InputError, which begins with `what`, on damage or a broken rule."""
    data = parse_json(text.removeprefix("\ufeff"), what)
    try:
        return _build(data)
    except InputError as problem:
        raise InputError(f"{what}: {problem}") from None
    except RecursionError:
        raise InputError(f"{what}: lists or objects stand too deep in each other. What `to_json` wrote is needed. "
                         "Write the file again.") from None  # fmt: skip
    except (KeyError, TypeError, AttributeError):
        raise InputError(f"{what}: is damaged. What `to_json` wrote is needed. Write the file again.") from None


def read_profile(path: Path) -> ModelProfile:
    """A model profile from a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise InputError(f"{path}: {reason}. A readable profile is needed. Check the path.") from None
    value = from_json(text, str(path))
    if not isinstance(value, ModelProfile):
        raise InputError(f"{path}: holds {in_words(value)}. A ModelProfile is needed. Save one with to_json.")
    return value


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        found = {field.name: _plain(getattr(value, field.name)) for field in fields(value) if field.init}
        return {"type": type(value).__name__, **found}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _build(data: Any) -> Any:
    if isinstance(data, dict):
        name = data.get("type")
        if not isinstance(name, str) or name not in _TYPES:
            said = "it has no type" if "type" not in data else f"type is {_shown(name)}"
            raise InputError(f"{said}. Known: {', '.join(_TYPES)}. Correct `type`.")
        kind = _TYPES[name]
        known = {field.name: field for field in fields(kind) if field.init}
        given = {key: _build(item) for key, item in data.items() if key != "type"}
        odd = sorted(given.keys() - known)
        if odd:
            raise InputError(f"{name} has no {odd[0]!r}. Known: {', '.join(sorted(known))}. Remove it.")
        for key, field in known.items():
            if key not in given and field.default is MISSING and field.default_factory is MISSING:
                raise InputError(f"{name} lacks {key!r}. It must be {_needed(_hints(kind)[key])}. Add it.")
        for key, item in given.items():
            _check(kind, key, item)
        return kind(**given)
    if isinstance(data, list):
        return tuple(_build(item) for item in data)
    return data


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check(kind: type, key: str, item: object) -> None:
    """The value must be of the field's type, so that a damaged file fails here and not in the middle of a run."""
    if not _matches(item, _hints(kind)[key]):
        raise InputError(f"{key} of {kind.__name__} is {_shown(item)}. It must be {_needed(_hints(kind)[key])}. "
                         "Correct it.")  # fmt: skip
    for part in item if isinstance(item, tuple) else (item,):
        if isinstance(part, str):
            printable(part, f"{key} of {kind.__name__}")


def _shown(item: object) -> str:
    """A value as it stands in the file; of what is not plain, its sort."""
    if item is None or isinstance(item, (bool, int, float, str)):
        text = json.dumps(item)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return in_words(item)


def _needed(hint: Any) -> str:
    """What a field must hold, in words."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_needed, options))
    if origin is tuple:
        return f"a list, each entry {_needed(options[0])}"
    plain = {float: "a number", int: "a whole number", str: "text", bool: "true or false", type(None): "null"}
    return plain.get(hint) or f"an object of type {getattr(hint, '__name__', hint)}"


def _matches(item: object, hint: Any) -> bool:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_matches(item, option) for option in options)
    if origin is tuple:
        return isinstance(item, tuple) and all(_matches(part, options[0]) for part in item)
    if hint is float:
        return isinstance(item, (int, float)) and not isinstance(item, bool)
    if hint is int:
        return isinstance(item, int) and not isinstance(item, bool)
    return (hint is type(None) and item is None) or (isinstance(hint, type) and isinstance(item, hint))
