"""Frozen values of this package as JSON and back: scenarios, and a user's own model profile.

Every dataclass becomes an object with its class's name under "type". Floats round-trip exactly; inf and NaN are
refused when the value is built again, by the value's own rules.
"""

import json
import types
import typing
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

from simulator.backend import Backend, Protocol
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster, Device, Link, Ring
from simulator.errors import InputError, parse_json
from simulator.model import Cost, Layer, ModelProfile, Parameter
from simulator.scenario import DataParallel, DistributedDataParallel, Host, Optimizer, Scenario, SingleDevice

_TYPES = {kind.__name__: kind for kind in (
    Backend, BucketOptions, Cluster, Cost, DataParallel, Device, DistributedDataParallel, Host, Layer, Link,
    ModelProfile, Optimizer, Parameter, Protocol, Ring, Scenario, SingleDevice,
)}  # fmt: skip


def to_json(value: object) -> str:
    """A frozen value of this package as JSON."""
    return json.dumps(_plain(value), allow_nan=False)


def from_json(text: str) -> Any:
    """The value that `to_json` wrote. Raises InputError when the text is damaged or breaks a rule."""
    try:
        return _build(parse_json(text, "JSON"))
    except (KeyError, TypeError, AttributeError) as problem:
        raise InputError(f"JSON: {problem!r}. What `to_json` wrote is needed. Write the file again.") from None


def read_profile(path: Path) -> ModelProfile:
    """A model profile from a file. Raises InputError."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"{path}: {problem}. A readable profile is needed. Check the path.") from None
    value = from_json(text)
    if not isinstance(value, ModelProfile):
        raise InputError(f"{path}: holds {type(value).__name__}. A ModelProfile is needed. Save one with to_json.")
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
        if name not in _TYPES:
            raise InputError(f"JSON: type {name!r}. Known: {', '.join(_TYPES)}. Correct `type`.")
        kind = _TYPES[name]
        known = {field.name for field in fields(kind) if field.init}
        given = {key: _build(item) for key, item in data.items() if key != "type"}
        odd = sorted(set(given) - known)
        if odd:
            raise InputError(f"JSON: {name} has no {odd[0]!r}. Known: {', '.join(sorted(known))}. Remove it.")
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
        raise InputError(f"JSON: {key} of {kind.__name__} is {str(item)[:60]!r}. It must be {_hints(kind)[key]}. "
                         "Correct it.")  # fmt: skip


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
