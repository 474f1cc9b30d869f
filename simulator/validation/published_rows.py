"""A published figure beside what the simulator says of it, and the arithmetic that sums many of them up.

How a row was used is part of it. `input`: its authors' one-GPU step or link, from which the others follow; it has no
error. `fitted`: it fixed a constant. `interpolated`: its table was fitted on the rows around it. `predicted`: nothing
of it was used. Errors are `simulated / published - 1`; a scaling efficiency's are its difference, in points of 100.

The published figures lie in `data/published_*.json`, numbers with their source, licence and the authors' hardware;
`left` counts the rows of a source that are not predicted, each with the reason. `tests/data/published` holds those
that other tests read too.

Not modelled: the spread between runs, which most sources do not print.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from simulator.errors import InputError

FITTED, INTERPOLATED, PREDICTED = "fitted", "interpolated", "predicted"
LARGE = 0.20
"""Of an error that must have a cause named."""
HOWS = (FITTED, INTERPOLATED, PREDICTED)
DATA = Path(__file__).with_name("data")
SHARED_WITH_TESTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "published"


@dataclass(frozen=True)
class Prediction:
    """One published row."""

    group: str
    """What the rows beside it have in common: the hardware, or the model."""
    row: str
    how: str
    simulated: float
    published: float
    source: str
    points: bool = False
    """Both are efficiencies of 0 to 1, and the error is their difference."""

    @property
    def error(self) -> float:
        """Relative, or the difference of efficiencies."""
        return self.simulated - self.published if self.points else self.simulated / self.published - 1

    def as_json(self) -> dict[str, Any]:
        """For another program."""
        return {"group": self.group, "row": self.row, "how": self.how, "simulated": self.simulated,
                "published": self.published, "error": self.error, "source": self.source}  # fmt: skip


@dataclass(frozen=True)
class Left:
    """Rows that are not predicted."""

    source: str
    rows: int
    reason: str


@dataclass(frozen=True)
class Errors:
    """Of several rows: how many, the median and the greatest of the errors' sizes, the worst row."""

    rows: int
    median: float
    largest: float
    worst: Prediction

    @staticmethod
    def of(rows: Sequence[Prediction]) -> "Errors | None":
        """None without a row."""
        if not rows:
            return None
        worst = max(rows, key=lambda row: abs(row.error))
        return Errors(len(rows), median(abs(row.error) for row in rows), abs(worst.error), worst)


@dataclass(frozen=True)
class Family:
    """Figures of one kind. `bounds`: the greatest median that passes, by how a row was used."""

    name: str
    rows: tuple[Prediction, ...]
    bounds: dict[str, float]
    why: str
    """Of the bounds."""
    inputs: int = 0
    left: tuple[Left, ...] = ()
    fit: str = ""
    """Which rows fixed what."""
    causes: dict[str, str] = field(default_factory=dict)
    """Why rows of a group are off by more than LARGE, by the group's name or how it begins."""

    def cause(self, group: str) -> str | None:
        """The cause that is named for a group; None where there is none."""
        return next((cause for start, cause in self.causes.items() if group.startswith(start)), None)

    @property
    def off(self) -> dict[str, list[Prediction]]:
        """Rows whose error is greater than LARGE, by group."""
        found = {group: [row for row in self.rows if row.group == group and abs(row.error) > LARGE]
                 for group in self.groups}  # fmt: skip
        return {group: rows for group, rows in found.items() if rows}

    def errors(self, how: str, group: str | None = None) -> Errors | None:
        """Of the rows used so, of one group or of all."""
        return Errors.of([row for row in self.rows if row.how == how and group in (None, row.group)])

    @property
    def groups(self) -> list[str]:
        """In the order of their first rows."""
        return list(dict.fromkeys(row.group for row in self.rows))

    @property
    def failures(self) -> list[str]:
        """Each median above its bound, in words."""
        found = []
        for how, bound in self.bounds.items():
            errors = self.errors(how)
            if errors is None or not errors.median <= bound:
                said = "no row" if errors is None else f"median {errors.median:.1%}"
                found.append(f"{self.name}, {how}: {said}, bound {bound:.1%}")
        return found


@cache
def published(name: str) -> dict[str, Any]:
    """A file of figures: `sets` by id, and what else it holds."""
    found: dict[str, Any] = json.loads((DATA / f"published_{name}.json").read_text(encoding="utf-8"))
    return found


@cache
def shared(name: str) -> dict[str, Any]:
    """A file of figures that tests read too. Raises InputError outside a checkout."""
    path = SHARED_WITH_TESTS / f"{name}.json"
    if not path.is_file():
        raise InputError(f"{path} is not there: figures lie beside the tests. Run it in a checkout of the repository.")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def left_of(name: str) -> tuple[Left, ...]:
    """The rows of a file's sets that are not predicted."""
    return tuple(Left(source, rows, reason) for source, entry in published(name)["sets"].items()
                 for reason, rows in entry.get("left", {}).items())  # fmt: skip
