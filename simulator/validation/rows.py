"""One line of the result: a quantity, what the simulator says, what was measured, and a number that can fail.

Exact quantities are counted: how many items were compared, how many differ, and none may. Times have an error and a
tolerance that the machine's own spread sets (`times`). A row without a verdict of its own is part of a median that has
one.

Not modelled: nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.views.text import table

PASS, FAIL, INCONCLUSIVE, NONE = "pass", "FAIL", "inconclusive", ""
HEADER = ("quantity", "simulated", "measured", "error", "tolerance", "verdict")


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    quantity: str
    simulated: str
    measured: str
    error: str
    tolerance: str
    verdict: str
    note: str = ""
    """Of an exact quantity that differs: the first difference."""
    simulated_value: float | None = None
    """Times in seconds, where the row is one."""
    measured_value: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The row for another program."""
        return asdict(self)


def exact(quantity: str, simulated: Mapping[str, object], measured: Mapping[str, object], unit: str = "values") -> Row:
    """Every labelled item must be equal. The note names the first one that is not."""
    labels = list(dict.fromkeys([*simulated, *measured]))
    missing = object()
    odd = [label for label in labels if simulated.get(label, missing) != measured.get(label, missing)]
    note = ""
    if odd:
        first = odd[0]
        note = f"{first}: simulated {_short(simulated.get(first))}, measured {_short(measured.get(first))}"
    return Row(quantity, f"{len(simulated)} {unit}", f"{len(measured)} {unit}", f"{len(odd)} differ", "0",
               FAIL if odd or not labels else PASS, note)  # fmt: skip


def rounding(quantity: str, errors: Mapping[str, float], unit: str = "values") -> Row:
    """Differences in units of what rounding may do; each must be 1 or less."""
    worst = max(errors, key=lambda label: errors[label], default="")
    error = errors.get(worst, float("inf"))
    return Row(quantity, f"{len(errors)} {unit}", f"{len(errors)} {unit}", f"{error:.2g} of rounding", "1",
               PASS if error <= 1 else FAIL, "" if error <= 1 else f"{worst}: {error:.3g} times what rounding may do")  # fmt: skip


def _short(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 90 else text[:87] + "..."


def table_text(rows: Sequence[Row]) -> str:
    """All rows as one table, and what differs below it."""
    body = [(row.quantity, row.simulated, row.measured, row.error, row.tolerance, row.verdict) for row in rows]
    lines = [table(body, HEADER, right=(1, 2, 3, 4))]
    lines += [f"{row.quantity}: {row.note}" for row in rows if row.note]
    return "\n".join(lines)


def failed(rows: Iterable[Row]) -> list[Row]:
    """Those whose verdict fails."""
    return [row for row in rows if row.verdict == FAIL]
