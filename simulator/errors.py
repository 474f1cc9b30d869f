"""Every error that a wrong input can cause, as one type: what was given, the rule, the next step."""

import difflib
import math
from collections.abc import Iterable


class InputError(ValueError):
    """A value from outside breaks a rule. The message names the value, the rule and what to do next."""


def require(condition: bool, given: str, rule: str, next_step: str) -> None:
    """Raise InputError unless the condition holds."""
    if not condition:
        raise InputError(f"{given}: {rule}. {next_step}.")


def number(value: object, name: str, *, minimum: float = 0.0, exclusive: bool = False) -> float:
    """A finite real number of at least (or above, if exclusive) the minimum, as float. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InputError(f"{name} = {value!r}: a number is needed. Give a number, not {type(value).__name__}.")
    result = float(value)
    bound = f"above {minimum:g}" if exclusive else f"{minimum:g} or more"
    if not math.isfinite(result) or result < minimum or (exclusive and result == minimum):
        raise InputError(f"{name} = {value!r}: must be finite and {bound}. Change {name}.")
    return result


def whole(value: object, name: str, *, minimum: int = 0) -> int:
    """An integer of at least the minimum. Raises InputError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{name} = {value!r}: a whole number is needed. Give an integer.")
    if value < minimum:
        raise InputError(f"{name} = {value!r}: must be {minimum} or more. Change {name}.")
    return value


def unknown(kind: str, given: object, known: Iterable[str]) -> InputError:
    """The error for a name that is not in a list of known ones; names the nearest of them first."""
    names = list(known)
    near = difflib.get_close_matches(str(given).lower(), [name.lower() for name in names], n=1, cutoff=0.4)
    nearest = [name for name in names if near and name.lower() == near[0]]
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    return InputError(f"{kind} {given!r} is not known. {hint}Known: {', '.join(names)}.")
