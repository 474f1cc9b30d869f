"""Values, buckets and collectives of real ranks are the simulator's, exactly; and a broken simulator is noticed."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec

import numpy as np
import pytest

from simulator import distributed_data_parallel
from simulator.buckets import MIB, BucketOptions
from simulator.collectives import ring
from simulator.presets.facts import from_json
from simulator.validation import ddp_values, dp_values, ring_values
from simulator.validation.launch import Workers
from simulator.validation.records import DdpCase, DdpRecord, RingRecord
from simulator.validation.rows import FAIL, PASS, Row, failed, table_text
from tests.validation.broken import mutated

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
Rings = dict[int, tuple[list[RingRecord], ...]]
Runs = dict[str, tuple[DdpRecord, ...]]
SMALL_BUCKETS = next(case for case in ddp_values.CASES if case.name == "small buckets")


@pytest.fixture(scope="module")
def rings(workers: Workers) -> Iterator[Rings]:
    """Real rings, recorded once for all tests."""
    yield {n: ring_values.record(workers, n) for n in ring_values.WORLD_SIZES}


@pytest.fixture(scope="module")
def runs(workers: Workers) -> Iterator[Runs]:
    """Real DDP runs, recorded once for all tests."""
    yield {case.name: ddp_values.record(workers, case) for case in ddp_values.CASES}


def verdicts(rows: list[Row]) -> dict[str, str]:
    return {row.quantity.rpartition(": ")[2]: row.verdict for row in rows}


@pytest.mark.parametrize("n", ring_values.WORLD_SIZES)
def test_every_chunk_of_a_real_ring_has_the_simulated_bits(rings: Rings, n: int) -> None:
    rows = ring_values.compare(rings[n])
    assert not failed(rows), table_text(rows)
    sends_and_results = n * (2 * (n - 1) + 1)
    assert rows[0].measured == f"{len(ring_values.cases(n)) * sends_and_results} chunks"
    sizes = {case.elements for case in ring_values.cases(n)}
    assert all(size % n for size in sizes if size > n) and min(sizes) < n


def test_a_ring_sends_what_each_rank_holds_and_ends_with_all(rings: Rings) -> None:
    for record in (record for records in rings.values() for rank in records for record in rank):
        held = [step.held for step in record.steps]
        assert [step.sent for step in record.steps[1:]] == held[:-1], (
            "what changed in a step is what the next one sends"
        )
        assert len(record.result) == len(record.all_reduce) == len(record.own)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        chunk = index\n", "        chunk = (index + 1) % n\n"),
        ("return tuple(a + b for", "return tuple(a - b for"),
        ("(size + (index < larger)) * element_bytes", "(size + (index >= parts - larger)) * element_bytes"),
    ],
    ids=["chunk index", "sum", "sizes of the chunks"],
)
def test_a_broken_ring_is_noticed(rings: Rings, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    monkeypatch.setattr(ring_values, "ring", mutated(ring, old, new))
    assert verdicts(ring_values.compare(rings[4]))["bits of every send"] == FAIL


def test_a_wrong_result_of_all_reduce_is_noticed(rings: Rings) -> None:
    record = rings[3][1][-1]
    off = np.frombuffer(record.all_reduce, "float64") * (1 + 1e-12)
    spoiled = RingRecord(record.case, record.own, record.steps, record.result, off.tobytes())
    ranks = [list(rank) for rank in rings[3]]
    ranks[1][-1] = spoiled
    found = verdicts(ring_values.compare(ranks))
    assert found == {"bits of every send": PASS, "result and all_reduce": FAIL}


@pytest.mark.parametrize("case", ddp_values.CASES, ids=lambda case: case.name)
def test_a_real_ddp_run_is_the_simulated_one(runs: Runs, case: DdpCase) -> None:
    rows = ddp_values.compare(case, runs[case.name])
    assert not failed(rows), table_text(rows)


@pytest.mark.parametrize("case", ddp_values.CASES, ids=lambda case: case.name)
def test_a_ddp_record_is_complete(runs: Runs, case: DdpCase) -> None:
    for record in runs[case.name]:
        facts = from_json(record.facts)
        trained = {
            parameter.name for parameter in facts.parameters if parameter.requires_grad and not parameter.tied_to
        }
        assert len(record.calls) == 1 + case.iterations and all(record.calls)
        assert len(record.launches) == len(record.own) == len(record.reduced) == case.iterations
        assert "bucket_sizes" in record.logged
        for ready in record.ready:
            assert set(ready) == trained - set(facts.unused)
        assert [name for name in facts.ready_order if name not in facts.unused] == record.ready[-1]
        assert len(set(record.parameters)) == 1 + case.iterations, "every step changes the parameters"


def test_ranks_begin_with_rank_0s_parameters_and_different_gradients(runs: Runs) -> None:
    first, second = runs["small buckets"]
    assert first.parameters == second.parameters
    assert first.own != second.own
    assert first.reduced == second.reduced


def test_the_rule_of_an_older_torch_is_noticed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BucketOptions, "rebuilt_limits", property(lambda self: (MIB, 1600)))
    found = verdicts(ddp_values.compare(SMALL_BUCKETS, runs["small buckets"]))
    assert found["buckets"] == found["collectives"] == FAIL


def test_another_order_of_buckets_is_noticed(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    true = ddp_values.buckets_at

    def reversed_buckets(*arguments: object) -> object:
        found = true(*arguments)  # type: ignore[arg-type]
        return tuple(type(b)(i, b.dtype, b.parameters, b.nbytes, b.sparse) for i, b in enumerate(reversed(found)))

    monkeypatch.setattr(ddp_values, "buckets_at", reversed_buckets)
    assert verdicts(ddp_values.compare(SMALL_BUCKETS, runs["small buckets"]))["buckets"] == FAIL
    monkeypatch.undo()
    monkeypatch.setattr(distributed_data_parallel, "buckets_at", reversed_buckets)
    found = verdicts(ddp_values.compare(SMALL_BUCKETS, runs["small buckets"]))
    assert found["buckets"] == found["collectives"] == FAIL


@pytest.mark.parametrize("name", ["small buckets", "three ranks"])
def test_another_divisor_is_noticed(runs: Runs, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    case = next(case for case in ddp_values.CASES if case.name == name)
    assert verdicts(ddp_values.compare(case, runs[name]))["gradients"] == PASS
    monkeypatch.setattr(ddp_values, "share", lambda gradient, world_size: gradient)
    assert verdicts(ddp_values.compare(case, runs[name]))["gradients"] == FAIL


def test_ranks_that_drift_apart_are_noticed(runs: Runs) -> None:
    first, second = runs["small buckets"]
    spoiled = DdpRecord(**{**vars(second), "parameters": [*second.parameters[:-1], "another"]})
    assert verdicts(ddp_values.compare(SMALL_BUCKETS, (first, spoiled)))["parameters alike"] == FAIL


def test_data_parallels_arithmetic_is_one_devices(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    records = dp_values.record(workers)
    rows = dp_values.compare(records)
    assert not failed(rows), table_text(rows)
    assert records[dp_values.CASES.index(dp_values.DpCase(9, 4))].rows == (3, 3, 3), "one device is idle"
    monkeypatch.setattr(dp_values, "chunk_rows", lambda rows, devices: (rows // devices,) * devices)
    assert [row.verdict for row in dp_values.compare(records)] == [FAIL, PASS, PASS]


def test_the_release_of_the_bucket_rule_is_the_nearest_known() -> None:
    assert [ddp_values.known_version(v) for v in ("1.13.1", "2.13.0+cpu", "2.99")] == ["2.0", "2.13", "2.14"]


def test_a_simulated_ring_of_one_rank_keeps_its_values() -> None:
    values = np.arange(5.0)
    assert ring_values.simulate_ring([values]).results == (values.tobytes(),)


def test_mutations_that_no_longer_apply_are_refused() -> None:
    with pytest.raises(AssertionError, match="break something else"):
        partial(mutated, ring, "no such text")("")
