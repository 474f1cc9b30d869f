"""What others measured, predicted from what they state: `python -m simulator.validation published`.

Every family of published figures has one fit, made before the rest is predicted; which rows fixed what stands beside
it.
The table has a line a family and use, then its groups (hardware, model, number of GPUs). A family passes if the median
of what was not fitted stays within its bound, and fails the command (exit status 1) otherwise. Bounds have reasons;
errors above 20 % have the cause that was found, or say that none was.

    relative error = simulated / published - 1        efficiencies: the difference, in points of 100

Not modelled: the spread of the published figures themselves.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.validation import (
    published_buckets,
    published_collectives,
    published_compute,
    published_dp,
    published_dp_ddp,
    published_nccl,
    published_overlap,
    published_scaling,
)  # fmt: skip
from simulator.validation.progress import Bar
from simulator.validation.published_rows import FITTED, HOWS, LARGE, Errors, Family, Left, left_of
from simulator.views.text import table
from simulator.views.words import wrap

WIDTH = 100
SECONDS = {published_nccl: 3, published_dp: 9, published_dp_ddp: 1, published_scaling: 6, published_buckets: 1,
           published_overlap: 1, published_collectives: 1, published_compute: 1}  # fmt: skip
"""Each module's families, in order, and about how long they take."""
HEADER = ("", "used", "rows", "median", "largest", "bound", "")
NUMBERS = (2, 3, 4, 5)


@cache
def families() -> tuple[Family, ...]:
    """All of them, each row predicted; a minute at most."""
    bar = Bar(sum(SECONDS.values()))
    try:
        found: list[Family] = []
        for module, weight in SECONDS.items():
            bar.start(module.__name__.rpartition(".published_")[2].replace("_", " "), weight)
            found += module.families()
        return tuple(found)
    finally:
        bar.close()


def left_out() -> tuple[Left, ...]:
    """Rows that are not predicted, of all sources."""
    return (*(left for family in families() for left in family.left), *left_of("left"))


def failures() -> list[str]:
    """Medians above their bounds."""
    return [failure for family in families() for failure in family.failures]


def run_published(arguments: Sequence[str]) -> int:
    """The command. Exit status 0; 1 when a family's median exceeds its bound; 2 for a wrong call."""
    parser = argparse.ArgumentParser(prog="python -m simulator.validation published",
                                     description=(__doc__ or "").split("\n", maxsplit=1)[0])  # fmt: skip
    parser.add_argument("--brief", action="store_true", help="families alone, without their groups")
    parser.add_argument("--json", metavar="FILE", help="write every row; - prints them instead of the table")
    parser.add_argument("--markdown", action="store_true", help="the small table of the README instead")
    options = parser.parse_args(arguments)
    try:
        return _published(options)
    except (InputError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2


def _published(options: argparse.Namespace) -> int:
    if options.markdown:
        print(accuracy_markdown())
    elif options.json != "-":
        print(report_text(brief=options.brief))
    if options.json:
        text = json.dumps(as_json(), indent=1, allow_nan=False)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n", encoding="utf-8")
    for failure in failures():
        print(f"FAIL {failure}", file=sys.stderr)
    return 1 if failures() else 0


def report_text(*, brief: bool = False) -> str:
    """For a terminal."""
    lines = [table([line for family in families() for line in _lines(family)], HEADER, right=NUMBERS), ""]
    for family in families():
        lines += [f"{family.name}", *_indented(f"fitted: {family.fit}"), *_indented(f"bound: {family.why}")]
        for how in HOWS:
            if errors := family.errors(how):
                lines += _indented(f"worst {how}: {errors.worst.row}, {_signed(errors)}")
        if not brief:
            body = [line for group in family.groups for line in _lines(family, group)]
            lines += [table(body, HEADER[:5], right=NUMBERS[:3])] if len(family.groups) > 1 else []
        for group, rows in family.off.items() if not brief else ():
            count = f"{len(rows)} row{'s' if len(rows) > 1 else ''}"
            said = f"{group}: {count} beyond {LARGE:.0%}: {family.cause(group) or 'no cause is named'}"
            lines += _indented(said)
        lines.append("")
    return "\n".join([*lines, *_left_text(), "", *wrap(summary(), WIDTH)])


def _indented(text: str) -> list[str]:
    return [f"  {line}" for line in wrap(text, WIDTH - 2)]


def _signed(errors: Errors) -> str:
    row = errors.worst
    return f"{100 * row.error:+.1f} points" if row.points else f"{row.error:+.1%}"


def _lines(family: Family, group: str | None = None) -> list[tuple[str, ...]]:
    """A line for each way in which rows were used."""
    found: list[tuple[str, ...]] = []
    for how in HOWS:
        errors = family.errors(how, group)
        if errors is None:
            continue
        points = errors.worst.points
        name = ("  " + group if group else family.name) if not found else ""
        line = (name, how, str(errors.rows), _size(errors.median, points), _size(errors.largest, points))
        bound = family.bounds.get(how)
        verdict = "" if bound is None else "pass" if errors.median <= bound else "FAIL"
        found.append(line if group else (*line, "" if bound is None else _size(bound, points), verdict))
    return found


def _size(value: float, points: bool) -> str:
    return f"{100 * value:.1f} pt" if points else f"{value:.1%}"


def _left_text() -> list[str]:
    reasons: Counter[str] = Counter()
    for left in left_out():
        reasons[left.reason] += left.rows
    lines = [f"Left out: {sum(reasons.values())} published rows."]
    for reason, rows in reasons.most_common():
        lines += _indented(f"{rows}: {reason}")
    return lines


def summary() -> str:
    """The whole in a sentence."""
    rows = [row for family in families() for row in family.rows]
    fitted = sum(row.how == FITTED for row in rows)
    inputs = sum(family.inputs for family in families())
    found = failures()
    return (f"{len(rows) - fitted} figures predicted or interpolated, {fitted} fitted, {inputs} taken as inputs, "
            f"{sum(left.rows for left in left_out())} published rows left out; "
            f"{len(found)} of {sum(len(family.bounds) for family in families())} medians above their bounds.")  # fmt: skip


def as_json() -> dict[str, Any]:
    """Every row, for another program."""
    return {
        "passes": not failures(),
        "families": [
            {"name": family.name, "fit": family.fit, "bounds": family.bounds, "why": family.why,
             "inputs": family.inputs, "points": any(row.points for row in family.rows),
             "errors": {how: _errors_json(family, how) for how in HOWS if family.errors(how)},
             "causes": {group: family.cause(group) for group in family.off},
             "rows": [row.as_json() for row in family.rows]}
            for family in families()
        ],
        "left_out": [{"source": left.source, "rows": left.rows, "reason": left.reason} for left in left_out()],
    }  # fmt: skip


def _errors_json(family: Family, how: str) -> dict[str, Any]:
    errors = family.errors(how)
    assert errors is not None
    return {"rows": errors.rows, "median": errors.median, "largest": errors.largest, "worst": errors.worst.row}


def accuracy_markdown() -> str:
    """The small table of the README."""
    lines = ["| Published figures | Rows that fix | Rows predicted | Median error | Nine in ten within |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    for family in families():
        fitted = family.errors(FITTED)
        told = sorted(abs(row.error) for row in family.rows if row.how != FITTED)
        points = any(row.points for row in family.rows)
        middle = Errors.of([row for row in family.rows if row.how != FITTED])
        assert middle is not None
        most = told[max(0, -(-9 * len(told) // 10) - 1)]
        values = [f"{100 * value:.0f} points" if points else f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
                  for value in (middle.median, most)]  # fmt: skip
        lines.append(f"| {family.name} | {fitted.rows if fitted else 0} | {middle.rows} | {' | '.join(values)} |")
    return "\n".join(lines)
