"""What a validation found, for a person and for a program: one table, two timelines, and where it all comes from.

Not modelled: nothing.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simulator.trace import Trace
from simulator.validation.rows import FAIL, INCONCLUSIVE, PASS, Row, failed, table_text
from simulator.validation.times import Times
from simulator.views.text import timeline
from simulator.views.words import wrap

WIDTH = 80
ERRORS = ("Times are medians over the rounds, and so are errors and spreads: of simulated / measured - 1 within a round, "
          "and of measured / measured - 1 between a round and the next. ")  # fmt: skip
WORDS = {PASS: "pass", FAIL: "fail", INCONCLUSIVE: "say nothing (the machine is too busy)"}


@dataclass(frozen=True)
class Report:
    """All rows, and the same step predicted and measured."""

    rows: tuple[Row, ...]
    provenance: dict[str, Any]
    times: Times | None = None
    traces: tuple[tuple[str, Trace], ...] = ()

    @property
    def passes(self) -> bool:
        """Whether no verdict fails."""
        return not failed(self.rows)

    def text(self) -> str:
        """For a terminal."""
        lines = [table_text(self.rows), ""]
        for name, trace in self.traces:
            lines += [name, timeline(trace, width=WIDTH), ""]
        if self.times is not None:
            lines += wrap(ERRORS + overlap_words(self.times.compute_slowdown), WIDTH)
        known = {name: value for name, value in self.provenance.items() if value not in (None, "")}
        lines += [*wrap(", ".join(f"{name} {value}" for name, value in known.items()), WIDTH), "", self.summary]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """How many verdicts of each kind, in a sentence."""
        verdicts = [row.verdict for row in self.rows if row.verdict]
        counts = [f"{verdicts.count(verdict)} {words}" for verdict, words in WORDS.items() if verdict in verdicts]
        return f"Of {len(verdicts)} verdicts {', '.join(counts)}."

    def as_json(self) -> dict[str, Any]:
        """For another program; times in seconds."""
        found: dict[str, Any] = {
            "provenance": self.provenance, "passes": self.passes, "rows": [row.as_json() for row in self.rows],
        }  # fmt: skip
        if self.times is not None:
            found["times"] = {
                "median_error": self.times.error, "aa_error": self.times.aa_error, "verdict": self.times.verdict,
                "compute_slowdown": self.times.compute_slowdown,
                "calibrated_all_reduce_s": [{str(size): value for size, value in calibration.all_reduce_s.items()}
                                            for calibration in self.times.calibrations],
                "quantities": [{"name": q.name, "error": q.error, "spread": q.spread, "predicted_s": q.predicted,
                                "measured_s": q.measured} for q in self.times.quantities],
            }  # fmt: skip
        return found


def overlap_words(slowdown: float) -> str:
    """What the calibration found about overlap, as a sentence."""
    if slowdown >= 0.9:
        return ("Overlap: none. While an all-reduce runs, compute stands still, because gloo's threads need the cores "
                "of the ranks; the model slows it accordingly.")  # fmt: skip
    return f"Overlap: while an all-reduce runs, compute loses {slowdown:.0%} of its speed, measured with plain steps."


def provenance(*, world_sizes: Sequence[int], threads: int, repeats: str, spread: float | None) -> dict[str, Any]:
    """Where and when, and with what."""
    found: dict[str, Any] = {
        "torch": _version("torch"), "python": platform.python_version(), "backend": "gloo over loopback",
        "device": device_name(), "system": f"{platform.system()} {platform.machine()}", "cores": cores(),
        "threads": threads, "ranks": "2" if len(world_sizes) == 1 else f"{min(world_sizes)} to {max(world_sizes)}",
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "commit": commit(), "repeats": repeats,
        "spread": None if spread is None else round(spread, 4),
    }  # fmt: skip
    if hasattr(os, "getloadavg"):
        found["load"] = round(os.getloadavg()[0], 2)
    return found


def cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_name() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or "CPU"


def commit() -> str:
    """The repository's, with a mark if files differ from it; empty outside a repository."""
    folder = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12"], cwd=folder, text=True,
                              capture_output=True, timeout=10, check=True)  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
