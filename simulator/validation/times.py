"""Times, predicted and then measured, on this machine as it is.

What is calibrated (`calibration`) and what is predicted never overlap: all-reduces of other sizes, and DDP steps, of
which none is used to calibrate. All of it is measured in turns, round after round.

A machine that other programs share does not repeat itself. How far two rounds lie apart, the median of
|round / next round - 1| over the same quantities, is the A/A error, and the verdict measures the prediction by it: the
median error may exceed A/A by five points. Where A/A itself is above a quarter the machine says nothing, and the verdict
is "inconclusive".

Not modelled: other world sizes than 2; two ranks of which one is always slower.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simulator.collectives.communicator import Communicator
from simulator.engine import Engine
from simulator.simulate import simulate
from simulator.trace import Trace
from simulator.units import mib, percent, seconds
from simulator.validation.calibration import Calibration, all_reduce_of, calibrate, slower, step_of
from simulator.validation.launch import Progress, Workers
from simulator.validation.records import Plan, Round, TimesRecord
from simulator.validation.rows import FAIL, INCONCLUSIVE, NONE, PASS, Row

WORKER = "simulator.validation.times_worker:run"
MIB = 1 << 20
ALLOWED_BEYOND_AA = 0.05
MOST_AA = 0.25
FULL = Plan(widths=(768,) * 9, rows=64, caps_mb=(1, 6, 25), sizes=(MIB // 4, MIB, 4 * MIB, 16 * MIB),
            held_out=(2 * MIB, 8 * MIB), rounds=24, steps=4)  # fmt: skip
QUICK = Plan(FULL.widths, FULL.rows, FULL.caps_mb, FULL.sizes, FULL.held_out, rounds=8, steps=3)


@dataclass(frozen=True)
class Quantity:
    """Something predicted, in each round from that round's calibration, and measured in each."""

    name: str
    predicted: tuple[float, ...]
    """Seconds, a round each."""
    measured: tuple[float, ...]

    @property
    def predicted_s(self) -> float:
        """In the middle of the rounds."""
        return statistics.median(self.predicted)

    @property
    def measured_s(self) -> float:
        """In the middle of the rounds."""
        return statistics.median(self.measured)

    @property
    def error(self) -> float:
        """Relative, in the middle of the rounds; above 0 if the prediction is too long."""
        return statistics.median(p / m for p, m in zip(self.predicted, self.measured, strict=True)) - 1

    @property
    def spread(self) -> float:
        """How far one round lies from the next, in the middle."""
        return statistics.median(apart(self.measured))


@dataclass(frozen=True)
class Times:
    """Everything predicted, and the calibrations behind it, a round each."""

    calibrations: tuple[Calibration, ...]
    quantities: tuple[Quantity, ...]

    @property
    def compute_slowdown(self) -> float:
        """What compute loses of its speed beside an all-reduce, in the middle of the rounds."""
        return statistics.median(calibration.compute_slowdown for calibration in self.calibrations)

    def typical(self, cap_mb: float) -> Trace:
        """The predicted step of median length."""
        traces = sorted((predict(calibration, cap_mb) for calibration in self.calibrations), key=lambda t: t.end_s)
        return traces[len(traces) // 2]

    @property
    def aa_error(self) -> float:
        """The machine beside itself: over all quantities and pairs of rounds."""
        return statistics.median(step for quantity in self.quantities for step in apart(quantity.measured))

    @property
    def error(self) -> float:
        """The prediction beside the machine."""
        return statistics.median(abs(quantity.error) for quantity in self.quantities)

    @property
    def verdict(self) -> str:
        """By the machine's own spread."""
        if self.aa_error > MOST_AA:
            return INCONCLUSIVE
        return PASS if self.error <= self.aa_error + ALLOWED_BEYOND_AA else FAIL


def apart(rounds_s: Sequence[float]) -> list[float]:
    """|a / b - 1| of each round and the next."""
    return [abs(a / b - 1) for a, b in zip(rounds_s, rounds_s[1:])]


def measure(workers: Workers, plan: Plan, on_progress: Progress | None = None) -> tuple[TimesRecord, ...]:
    """All rounds on two real ranks."""
    return workers.run(WORKER, plan, world_size=2, timeout_s=600, on_progress=on_progress)


def compare(plan: Plan, records: Sequence[TimesRecord]) -> Times:
    """Predict everything from each round's calibration and put it beside what that round measured."""
    rounds = range(plan.rounds)
    calibrations = tuple(calibrate(plan, records, number) for number in rounds)

    def quantity(name: str, predicted_s: Sequence[float], pick: Callable[[Round], float]) -> Quantity:
        return Quantity(name, tuple(predicted_s), tuple(slower(records, number, pick) for number in rounds))

    found = [quantity(f"all-reduce of {mib(size)}", [all_reduce_s(c, size) for c in calibrations], all_reduce_of(size))
             for size in plan.held_out]  # fmt: skip
    for cap in plan.caps_mb:
        traces = [predict(calibration, cap) for calibration in calibrations]
        buckets = len({span.bucket for span in traces[0].spans if span.kind == "all_reduce"})
        name = f"DDP step, cap {cap:g} MiB ({buckets} bucket{'s' if buckets > 1 else ''})"
        found.append(quantity(name, [trace.end_s for trace in traces], step_of(cap)))
    return Times(calibrations, tuple(found))


def predict(calibration: Calibration, cap_mb: float) -> Trace:
    """One steady step."""
    return simulate(calibration.scenario(cap_mb))


def all_reduce_s(calibration: Calibration, nbytes: int) -> float:
    """One all-reduce alone."""
    cluster, backend = calibration.network([nbytes])
    engine = Engine(cluster)
    for rank, program in enumerate(Communicator(cluster, backend).all_reduce(engine, nbytes)):
        engine.start(program, name=f"rank {rank}", rank=rank, device=rank, resource="host")
    return engine.run().end_s


def rows(times: Times) -> list[Row]:
    """Each quantity, and the median that has the verdict."""
    found = [Row(quantity.name, seconds(quantity.predicted_s), seconds(quantity.measured_s), f"{quantity.error:+.1%}",
                 f"spread {percent(quantity.spread)}", NONE, simulated_value=quantity.predicted_s,
                 measured_value=quantity.measured_s) for quantity in times.quantities]  # fmt: skip
    allowed = f"A/A {times.aa_error:.1%} + {ALLOWED_BEYOND_AA:.0%}"
    note = ""
    if times.verdict == INCONCLUSIVE:
        note = f"two rounds lie {times.aa_error:.0%} apart: too busy a machine to measure by; try again when it is idle"
    return [*found, Row("times: median error", "", "", f"{times.error:.1%}", allowed, times.verdict, note)]
