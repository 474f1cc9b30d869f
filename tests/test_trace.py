"""The event log: order, lookup, equality, and JSON that comes back equal or is refused."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.backend import PLAIN
from simulator.errors import InputError
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario
from simulator.simulate import simulate
from simulator.trace import COMMUNICATION, COMPUTE, KINDS, MEMORY_CATEGORIES, Trace, Waiting
from tests.samples import layers_of, preset, star

MODEL = layers_of([400, 800], 1e-3, 1e-3, input_bytes=8, output_bytes=4, activation_bytes=16, buffers=[40])
parallel = simulate(Scenario(MODEL, star(3, 1e6), DataParallel(), PLAIN, 2))
distributed = simulate(Scenario(MODEL, star(3, 1e6), DistributedDataParallel(), PLAIN, 2, iterations=(0, 1)))


@pytest.mark.parametrize("trace", [parallel, distributed], ids=["DP", "DDP"])
def test_records_come_in_the_order_of_their_start_and_are_found_by_id(trace: Trace) -> None:
    assert [s.start_s for s in trace.spans] == sorted(s.start_s for s in trace.spans)
    assert [t.issue_s for t in trace.transfers] == sorted(t.issue_s for t in trace.transfers)
    assert [m.time_s for m in trace.memory] == sorted(m.time_s for m in trace.memory)
    assert len(trace.by_id) == len(trace.spans) + len(trace.transfers)
    assert all(trace.by_id[record.id] is record for record in (*trace.spans, *trace.transfers))


@pytest.mark.parametrize("trace", [parallel, distributed], ids=["DP", "DDP"])
def test_kinds_and_categories_are_those_that_have_a_colour(trace: Trace) -> None:
    kinds = {span.kind for span in trace.spans} | {t.kind for t in trace.transfers}
    assert kinds <= set(KINDS)
    assert {change.category for change in trace.memory} <= set(MEMORY_CATEGORIES)
    assert set(KINDS) >= COMPUTE | COMMUNICATION
    assert not COMPUTE & COMMUNICATION


def test_every_span_says_where_in_torch_it_happens() -> None:
    for trace in (parallel, distributed):
        assert not {s.name for s in trace.spans if not s.torch_function and s.kind in COMMUNICATION | {"forward"}}


def test_causes_and_owners_exist() -> None:
    for trace in (parallel, distributed):
        assert all(r.cause is None or r.cause in trace.by_id for r in (*trace.spans, *trace.transfers))
        assert all(t.span is None or t.span in trace.by_id for t in trace.transfers)


def test_traces_compare_by_what_happened() -> None:
    assert parallel != distributed
    assert parallel == simulate(Scenario(MODEL, star(3, 1e6), DataParallel(), PLAIN, 2))
    assert parallel != "a trace"


@pytest.mark.parametrize("trace", [parallel, distributed, Trace(("gpu0",))], ids=["DP", "DDP", "empty"])
def test_json_comes_back_equal(trace: Trace) -> None:
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert again.to_json() == trace.to_json()


def test_a_deadlock_comes_back_with_who_waits() -> None:
    trace = Trace(("gpu0",), waiting=(Waiting(1, "host", "rank 0 to join"),), source="measured", clock_offset_s=(0.5,))
    again = Trace.from_json(trace.to_json())
    assert (again.outcome, again.waiting, again.source, again.clock_offset_s) == (
        "deadlocked", trace.waiting, "measured", (0.5,))  # fmt: skip


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "3", "NaN", '{"devices": []}', "[" * 100_000])
def test_text_that_is_no_trace_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="trace: "):
        Trace.from_json(text)


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("spans", "device", 99), ("spans", "end_s", -1.0), ("spans", "start_s", "soon"), ("spans", "end_s", math.nan),
        ("transfers", "source", 7), ("transfers", "route", [99]), ("transfers", "start_s", 1e9),
        ("transfers", "issue_s", None), ("transfers", "route", 3), ("memory", "device", -1), ("memory", "nbytes", 0.5),
        ("memory", "nbytes", "x"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_refused(table: str, column: str, value: object) -> None:
    data = json.loads(parallel.to_json())
    fields = getattr(parallel, table)[0]._fields
    data[table][0][fields.index(column)] = value
    with pytest.raises(InputError, match="trace: "):
        Trace.from_json(json.dumps(data))


@pytest.mark.parametrize("table", ["spans", "transfers", "memory", "links"])
def test_a_short_row_is_refused(table: str) -> None:
    data = json.loads(parallel.to_json())
    data[table][0].pop()
    with pytest.raises(InputError, match="trace: "):
        Trace.from_json(json.dumps(data))


TEXT = Trace(("gpu0", "gpu1"), raw_memory=[(0.0, 0, "parameters", 4)]).to_json()


@given(st.integers(0, len(TEXT) - 1), st.text(max_size=3))
@settings(max_examples=300, deadline=None)
def test_a_trace_with_a_character_replaced_is_read_or_refused(position: int, other: str) -> None:
    try:
        Trace.from_json(TEXT[:position] + other + TEXT[position + 1 :])
    except InputError as problem:
        assert "trace" in str(problem)


def test_presets_give_traces_that_come_back_equal() -> None:
    trace = simulate(Scenario(preset("resnet18"), star(4, 16e9), DataParallel("peer_copy"), PLAIN, 4))
    assert Trace.from_json(trace.to_json()) == trace
