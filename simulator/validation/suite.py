"""Everything that is checked, part by part.

Not modelled: NCCL; a testbed with known links.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from simulator.trace import Trace
from simulator.validation import ddp_values, dp_values, measured, ring_values, times
from simulator.validation.calibration import STEADY
from simulator.validation.launch import Workers
from simulator.validation.records import DdpCase, Plan, Run
from simulator.validation.report import Report, provenance
from simulator.validation.rows import Row

Step = Callable[[Workers, Callable[[float], None]], None]


@dataclass
class Suite:
    """`quick`: fewer ranks, cases and rounds, for under a minute. `parts`: exact, times, or both."""

    quick: bool = False
    parts: tuple[str, ...] = ("exact", "times")
    rows: list[Row] = field(default_factory=list)
    """The exact ones."""
    timed: times.Times | None = None
    traces: list[tuple[str, Trace]] = field(default_factory=list)

    @property
    def plan(self) -> Plan:
        """Of the times."""
        return times.QUICK if self.quick else times.FULL

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """Of the rings."""
        return ring_values.WORLD_SIZES[:3] if self.quick else ring_values.WORLD_SIZES

    def steps(self) -> list[tuple[str, float, Step]]:
        """Name, about how many seconds, and what to do; times first, while there are only two processes."""
        found: list[tuple[str, float, Step]] = [("starting two ranks", 4.0, _start)]
        if "times" in self.parts:
            found.append(("times, round by round", 0.55 * self.plan.rounds * self.plan.steps, self._times))
            found.append(("a step with its timeline", 2.0, self._timeline))
        if "exact" in self.parts:
            cases = ddp_values.QUICK_CASES if self.quick else ddp_values.CASES
            found += [(f"ring of {n}", 2.0, self._ring(n)) for n in self.world_sizes]
            found += [(f"DDP, {case.name}", 0.5, self._ddp(case)) for case in cases]
            found.append(("DP", 0.5, self._dp))
        return found

    def report(self) -> Report:
        """After all steps: exact rows first."""
        timed = [] if self.timed is None else times.rows(self.timed)
        repeats = f"{self.plan.rounds} rounds of {self.plan.steps}" if self.timed else "1"
        spread = None if self.timed is None else self.timed.aa_error
        sizes = self.world_sizes if "exact" in self.parts else (2,)
        facts = provenance(world_sizes=sizes, threads=1, repeats=repeats, spread=spread)
        return Report((*self.rows, *timed), facts, self.timed, tuple(self.traces))

    def _times(self, workers: Workers, show: Callable[[float], None]) -> None:
        records = times.measure(workers, self.plan, lambda rank, done: None if rank else show(done))
        self.timed = times.compare(self.plan, records)

    def _timeline(self, workers: Workers, show: Callable[[float], None]) -> None:
        """The step of median length of a few, beside its prediction."""
        assert self.timed is not None
        cap = self.plan.caps_mb[len(self.plan.caps_mb) // 2]
        run = Run(self.plan.widths, self.plan.rows, (("bucket_cap_mb", cap),), STEADY + 7)
        steps = measured.measure(workers, run)
        steady = sorted(range(STEADY, run.iterations), key=lambda i: max(s[i].end for s in steps) - steps[0][i].begin)
        trace = measured.as_trace(
            steps, (steady[len(steady) // 2],), provenance="DDP on two gloo ranks of this machine"
        )
        self.traces += [(f"Predicted, cap {cap:g} MiB", self.timed.typical(cap)),
                        (f"Measured, cap {cap:g} MiB", trace)]  # fmt: skip

    def _ring(self, n: int) -> Step:
        return lambda workers, _: self.rows.extend(ring_values.compare(ring_values.record(workers, n)))

    def _ddp(self, case: DdpCase) -> Step:
        return lambda workers, _: self.rows.extend(ddp_values.compare(case, ddp_values.record(workers, case)))

    def _dp(self, workers: Workers, _: Callable[[float], None]) -> None:
        self.rows += dp_values.compare(dp_values.record(workers))


def _start(workers: Workers, _: Callable[[float], None]) -> None:
    workers.run("simulator.validation.times_worker:nothing", world_size=2)
