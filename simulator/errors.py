"""Every error that a wrong input can cause, as one type: what was given, the rule, the next step."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

LARGEST = 1e30
"""Beyond any size, rate or time; sums and quotients of numbers up to this, and from its inverse, stay finite."""
LARGEST_WHOLE = 2**63 - 1
"""What torch's sizes hold."""


class InputError(ValueError):
    """A value from outside breaks a rule. The message names the value, the rule and what to do next."""


def require(condition: bool, given: str, rule: str, next_step: str) -> None:
    """Raise InputError unless the condition holds."""
    if not condition:
        raise InputError(f"{given}: {rule}. {next_step}.")


def number(value: object, name: str, *, minimum: float = 0.0, exclusive: bool = False) -> float:
    """A real number of at least (or above, if exclusive) the minimum, and at most 1e30, as float. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} = {value!r}: a number is needed. Give a number, not {type(value).__name__}.")
    least = minimum + 1 / LARGEST if exclusive else minimum
    if not least <= value <= LARGEST:
        bound = f"above {minimum:g}" if exclusive else f"{minimum:g} or more"
        size = " (at most 1e30)" if value > LARGEST else " (at least 1e-30)" if value > 0 else ""
        raise InputError(f"{name} = {_short(value)}: must be finite and {bound}{size}. Change {name}.")
    return float(value)


def whole(value: object, name: str, *, minimum: int = 0) -> int:
    """An integer of at least the minimum, of 63 bits at most. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} = {value!r}: a whole number is needed. Give an integer.")
    if value < minimum:
        raise InputError(f"{name} = {_short(value)}: must be {minimum} or more. Change {name}.")
    if value > LARGEST_WHOLE:
        raise InputError(f"{name} = {_short(value)}: must fit 63 bits. Change {name}.")
    return value


def _short(value: float) -> str:
    """A number for a message; one too long to print, by its length."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"
    return repr(value)


def parse_json(text: str, what: str) -> Any:
    """The value of a JSON text without NaN and infinities. Raises InputError."""

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, parse_constant=refuse)
    except (ValueError, RecursionError) as problem:
        raise InputError(f"{what}: {problem}. Valid JSON is needed. Write the file again.") from None


def unknown(kind: str, given: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a list of known ones; names the nearest of them first."""
    names = list(known)
    near = difflib.get_close_matches(str(given).lower(), [name.lower() for name in names], n=1, cutoff=0.4)
    nearest = [name for name in names if near and name.lower() == near[0]]
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"{kind} {given!r} is not known. {hint}Known: {', '.join(names)}.")
