"""The calibration gives back a machine that is known, the verdict goes by the machine's own spread, and the worker works.

No time of a real machine is compared with a number here.
"""

import statistics
from dataclasses import replace
from importlib.util import find_spec

import pytest

from simulator.model import Parameter
from simulator.presets.facts import LayerFacts, ModelFacts, to_json
from simulator.simulate import simulate
from simulator.validation import times
from simulator.validation.calibration import STEADY, calibrate, line
from simulator.validation.launch import Workers
from simulator.validation.records import Plan, Round, TimesRecord
from simulator.validation.rows import FAIL, INCONCLUSIVE, PASS
from simulator.validation.times import MIB, Quantity, Times

LAYERS = 4
LAYER_BYTES = 4 * MIB
FORWARD_S, BACKWARD_S, LOSS_S, BARRIER_S = 1e-3, 4e-3, 0.5e-3, 0.2e-3
OPTIMIZER_S, COPIES_S = 1.5e-3, 4e-3
COMPUTE_S = LAYERS * (FORWARD_S + BACKWARD_S) + LOSS_S
FIXED_S, PER_BYTE_S = 0.3e-3, 0.5e-9
PLAN = Plan(widths=(), rows=8, caps_mb=(1, 100), sizes=(MIB // 4, MIB, 4 * MIB, 16 * MIB), held_out=(2 * MIB, 8 * MIB),
            rounds=3, steps=1)  # fmt: skip


def reduce_s(nbytes: int) -> float:
    return FIXED_S + nbytes * PER_BYTE_S


def facts() -> ModelFacts:
    parameters = tuple(Parameter(f"p{i}", (LAYER_BYTES // 4,)) for i in range(LAYERS))
    return ModelFacts("known", parameters, tuple(LayerFacts(p.name, (p.name,)) for p in parameters))


def known_machine(slowdown: float, slower: float = 1.0) -> TimesRecord:
    """What one rank would record on a machine of these properties, if its DDP steps had no overlap."""
    nbytes = LAYERS * LAYER_BYTES
    alone = COMPUTE_S + OPTIMIZER_S + COPIES_S + reduce_s(nbytes)
    found = Round(
        barrier=BARRIER_S, all_reduce={size: reduce_s(size) for size in (*PLAN.sizes, *PLAN.held_out)},
        layers=[FORWARD_S * slower] * LAYERS + [BACKWARD_S * slower] * LAYERS + [LOSS_S * slower],
        compute=COMPUTE_S * slower + BARRIER_S, optimizer=OPTIMIZER_S + BARRIER_S, copies=COPIES_S + BARRIER_S,
        reduce=reduce_s(nbytes), both=COMPUTE_S * slower + slowdown * reduce_s(nbytes), ddp=dict.fromkeys(PLAN.caps_mb, alone),
    )  # fmt: skip
    return TimesRecord("2.13.0", to_json(facts()), [found] * PLAN.rounds)


def test_a_line_through_two_points_is_exact() -> None:
    fixed, per_byte = line({MIB: reduce_s(MIB), 4 * MIB: reduce_s(4 * MIB)})
    assert fixed == pytest.approx(FIXED_S) and per_byte == pytest.approx(PER_BYTE_S)


def test_a_line_never_has_a_negative_part() -> None:
    assert line({1: 1.0, 2: 4.0, 4: 16.0})[0] == 0.0
    fixed, per_byte = line({1: 4.0, 2: 2.0, 4: 1.0})
    assert fixed == 0.0 and per_byte > 0
    assert line({8: 4.0}) == (0.0, 0.5)


@pytest.mark.parametrize("slowdown", [0.0, 0.4, 0.9])
def test_the_calibration_gives_back_a_known_machine(slowdown: float) -> None:
    found = calibrate(PLAN, [known_machine(slowdown), known_machine(slowdown)], 1)
    assert found.compute_slowdown == pytest.approx(slowdown)
    assert found.profile.compute_s(PLAN.rows) == pytest.approx(COMPUTE_S)
    assert [layer.backward.at(PLAN.rows) for layer in found.profile.layers] == pytest.approx([BACKWARD_S] * LAYERS)
    for size in PLAN.held_out:
        assert times.all_reduce_s(found, size) == pytest.approx(reduce_s(size))


def test_the_slower_rank_sets_the_pace() -> None:
    found = calibrate(PLAN, [known_machine(0.0), known_machine(0.0, slower=1.5)], 0)
    assert found.profile.compute_s(PLAN.rows) == pytest.approx(1.5 * COMPUTE_S)


@pytest.mark.parametrize("slowdown", [0.0, 0.5, 0.99])
def test_one_bucket_overlaps_with_nothing_and_its_step_is_the_sum_of_its_parts(slowdown: float) -> None:
    found = calibrate(PLAN, [known_machine(slowdown)] * 2, 0)
    trace = times.predict(found, 100)
    assert trace.end_s == pytest.approx(COMPUTE_S + OPTIMIZER_S + COPIES_S + reduce_s(LAYERS * LAYER_BYTES))
    assert {span.iteration for span in trace.spans} == {STEADY}


def test_small_buckets_hide_all_but_the_last_where_cores_are_free_and_nothing_where_not() -> None:
    free, full = (times.predict(calibrate(PLAN, [known_machine(s)] * 2, 0), 1).end_s for s in (0.0, 0.99))
    alone = COMPUTE_S + OPTIMIZER_S + COPIES_S
    last = reduce_s(LAYER_BYTES)
    earlier_copies_back = (LAYERS - 1) / LAYERS * COPIES_S / 2
    assert free == pytest.approx(alone + last - earlier_copies_back)
    assert full > free + 2 * last


def test_a_scenario_of_the_calibration_is_simulated_as_any_other() -> None:
    scenario = calibrate(PLAN, [known_machine(0.3)] * 2, 0).scenario(1)
    assert simulate(scenario) == simulate(scenario)
    assert len([s for s in simulate(scenario).spans if s.kind == "all_reduce"]) == 2 * LAYERS


def quantity(predicted: float, *measured: float) -> Quantity:
    return Quantity("q", (predicted,) * len(measured), measured)


def test_the_error_and_the_spread_are_medians_over_the_rounds() -> None:
    found = quantity(1.1, 1.0, 1.0, 2.0, 1.0)
    assert found.error == pytest.approx(0.1)
    assert found.spread == pytest.approx(statistics.median([0.0, 0.5, 1.0]))
    both = Times((), (found, quantity(0.8, 1.0, 1.0, 1.0, 1.0)))
    assert both.error == pytest.approx(0.15) and both.aa_error == 0.0


@pytest.mark.parametrize(
    ("predicted", "measured", "verdict"),
    [
        (1.04, (1.0, 1.0, 1.0), PASS),
        (1.06, (1.0, 1.0, 1.0), FAIL),
        (0.94, (1.0, 1.0, 1.0), FAIL),
        (1.12, (1.0, 1.1, 1.0, 1.1), PASS),
        (9.99, (1.0, 1.5, 1.0, 1.5), INCONCLUSIVE),
    ],
)
def test_the_verdict_goes_by_the_machines_own_spread(
    predicted: float, measured: tuple[float, ...], verdict: str
) -> None:
    found = Times((), (quantity(predicted, *measured),))
    assert found.verdict == verdict
    last = times.rows(found)[-1]
    assert last.verdict == verdict and (last.note != "") == (verdict == INCONCLUSIVE)


def test_what_is_predicted_is_not_calibrated() -> None:
    for plan in (times.FULL, times.QUICK):
        assert not set(plan.sizes) & set(plan.held_out)
        assert plan.rounds >= 5 and len(plan.caps_mb) >= 2
    records = [known_machine(0.2), known_machine(0.2)]
    for record in records:
        spoiled = replace(record.rounds[0], ddp=dict.fromkeys(PLAN.caps_mb, 99.0))
        spoiled.all_reduce = {**spoiled.all_reduce, **dict.fromkeys(PLAN.held_out, 99.0)}
        record.rounds[0] = spoiled
    first, second = (calibrate(PLAN, records, number) for number in (0, 1))
    assert (first.profile, first.host, first.all_reduce_s) == (second.profile, second.host, second.all_reduce_s)


def test_a_known_machine_is_predicted_to_a_thousandth() -> None:
    found = times.compare(PLAN, [known_machine(0.99)] * 2)
    errors = {q.name: abs(q.error) for q in found.quantities}
    assert list(errors) == ["all-reduce of 2 MiB", "all-reduce of 8 MiB", "DDP step, cap 1 MiB (4 buckets)",
                            "DDP step, cap 100 MiB (1 bucket)"]  # fmt: skip
    assert errors["DDP step, cap 100 MiB (1 bucket)"] < 1e-9 and max(errors.values()) < 0.05
    assert found.aa_error == 0.0 and found.verdict == PASS


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
def test_a_real_round_measures_everything_that_the_plan_asks_for(workers: Workers) -> None:
    plan = Plan(widths=(64,) * 4, rows=8, caps_mb=(0.01, 25), sizes=(4096, 65536), held_out=(16384,), rounds=2, steps=2)
    shown: list[float] = []
    records = times.measure(workers, plan, lambda rank, done: None if rank else shown.append(done))
    assert shown == [0.5, 1.0]
    for record in records:
        assert len(record.rounds) == plan.rounds
        for found in record.rounds:
            assert set(found.all_reduce) == {*plan.sizes, *plan.held_out} and set(found.ddp) == set(plan.caps_mb)
            assert len(found.layers) == 2 * 3 + 1
            positive = [found.barrier, found.compute, found.optimizer, found.copies, found.reduce, found.both]
            assert min(*positive, *found.all_reduce.values(), *found.ddp.values(), *found.layers) > 0
    compared = times.compare(plan, records)
    assert [q.name for q in compared.quantities] == ["all-reduce of 0.0156 MiB", "DDP step, cap 0.01 MiB (3 buckets)",
                                                     "DDP step, cap 25 MiB (1 bucket)"]  # fmt: skip
    assert all(len(q.predicted) == len(q.measured) == plan.rounds for q in compared.quantities)
    assert compared.verdict in (PASS, FAIL, INCONCLUSIVE)
