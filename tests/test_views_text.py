"""The text timeline and the rows that every timeline draws; aligned tables."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.errors import InputError
from simulator.trace import KINDS, Trace, Waiting
from simulator.views.rows import busy_seconds, last_moment, rows_of
from simulator.views.style import STYLES
from simulator.views.text import table, timeline
from simulator.views.words import columns, pad, wrap
from tests.views_samples import STRATEGIES, hand_made, simulated, span

SECONDS = st.floats(0, 1)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def line_of(text: str, device: str, row: str) -> str:
    """The characters of one row, without its name."""
    found = ""
    for line in text.splitlines():
        found = device if line.startswith(device) else "" if line.startswith("device") else found
        rest = line.removeprefix(device).strip() if found else ""
        if rest.startswith(row):
            return rest.removeprefix(row)
    raise AssertionError(f"{device} has no row {row}")


# ---- what is drawn


def test_a_hand_made_trace_reads_as_its_times_say():
    text = timeline(hand_made(), width=57)
    assert text.splitlines() == [
        "              ms 0       2       4       6       8",
        "                 |-------|-------|-------|-------|-------",
        "device 0 host    hhhhhhhhhhhh",
        "         compute ffffffffbbbbbbbbbbbbbbbb............oooo",
        "         comm                    A0AAAAAAAAAAAAAA",
        "device 1 like device 0",
        "f forward  b backward  A all-reduce  o optimizer  h host",
        ". waiting  A0: bucket 0",
    ]


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("language", ["en", "zh"])
@settings(max_examples=10, deadline=None)
@given(width=st.integers(40, 160))
def test_no_line_is_wider_than_asked(name, language, width):
    for line in timeline(simulated(name), width=width, language=language).splitlines():
        assert columns(line) <= width


def test_each_kind_gets_the_columns_of_its_time():
    trace = simulated("DDP")
    cells = 80 - len("device 0 compute ")
    row = next(row for row in rows_of(trace, (0,)) if row.role == "compute")
    line = line_of(timeline(trace, devices=(0,)), "device 0", "compute")
    expected = busy_seconds([row])
    for kind in ("forward", "backward", "wait"):
        assert abs(line.count(STYLES[kind].letter) - expected[kind] / last_moment(trace) * cells) <= 2


def test_work_that_fills_a_third_of_a_stretch_gets_a_third_of_its_columns():
    spans = [span(i + 1, "forward", i * 1e-3, i * 1e-3 + 1e-3 / 3) for i in range(300)]
    text = timeline(Trace(("gpu0",), raw_spans=spans, end_s=0.3), width=77)
    line = line_of(text, "device 0", "compute").strip()
    assert abs(line.count("f") - len(line) / 3) <= 1
    assert "fff" not in line


def test_a_short_piece_of_work_keeps_one_column():
    spans = [span(1, "backward", 0.0, 0.1), span(2, "optimizer", 0.1, 0.1004)]
    line = line_of(timeline(Trace(("gpu0",), raw_spans=spans, end_s=0.1004), width=80), "device 0", "compute")
    assert line.strip().endswith("bo")


def test_the_ruler_names_its_unit_and_stands_over_the_marks():
    for end, unit in ((80e-6, "µs"), (0.04, "ms"), (3.0, "s")):
        numbers, marks = timeline(Trace(("gpu0",), raw_spans=[span(1, "forward", 0.0, end)], end_s=end)).splitlines()[
            :2
        ]
        assert numbers.split()[0] == unit
        for found in re.finditer(r"\d+(\.\d+)?", numbers):
            assert marks[found.start()] == "|"


def test_the_legend_has_the_letters_that_can_be_seen_and_no_others():
    lines = timeline(hand_made()).splitlines()
    legend = [part.split(" ", 1) for part in re.split(r"  +", "  ".join(lines[-2:])) if ":" not in part]
    assert {letter for letter, _ in legend} == set("fbAoh.")


def test_all_python_threads_of_one_process_share_a_row():
    trace = simulated("DataParallel")
    rows = rows_of(trace)
    python = [row for row in rows if row.role == "host" and row.resources[0].startswith("python")]
    assert [row.device for row in python] == [0]
    assert python[0].lane_count == 1  # the GIL lets one run at a time
    assert {f"python thread {index}" for index in range(8)} <= set(python[0].resources)
    assert timeline(trace).count("Python") == 1


def test_only_what_is_in_the_window_and_on_the_devices_is_shown():
    text = timeline(hand_made(), start_s=0.006, end_s=0.008, devices=(1,))
    assert "device 0" not in text
    assert set(line_of(text, "device 1", "compute").strip()) == {"."}
    assert "forward" not in text


def test_work_that_never_finished_is_marked_and_named():
    trace = Trace(("gpu0",), raw_spans=[span(1, "forward", 0.0, 0.01), span(2, "all_reduce", 0.01, None,
                  resource="communication")], waiting=(Waiting(0, "communication", "a message from 1 to 0"),),
                  end_s=0.02)  # fmt: skip
    text = timeline(trace)
    assert line_of(text, "device 0", "comm").endswith("!")
    assert "Never finished: rank 0 (communication) waits for a message from 1 to 0." in text


def test_a_trace_of_transfers_alone_has_a_row_for_each_pair():
    transfers = [(1, "all_reduce", 0, 1, (), 0.0, 0.0, 0.01, 100, 0, 1, None, None, None, None),
                 (2, "all_reduce", 1, 0, (), 0.01, 0.01, 0.02, 100, 0, 3, None, 1, None, None)]  # fmt: skip
    text = timeline(Trace(("a", "b"), raw_transfers=transfers, end_s=0.02), width=60)
    assert set(line_of(text, "device 0", "-> 1").strip()) == {"A"}
    assert line_of(text, "device 1", "-> 0").index("A") > len(line_of(text, "device 0", "-> 1").strip())


def test_an_empty_trace_says_so():
    assert timeline(Trace(("gpu0",))) == "Nothing recorded."


def test_parts_of_the_model_that_were_never_run_are_named_unless_the_caller_does():
    text = timeline(simulated("DataParallel"))
    assert "Not verified: " in text
    assert "Not verified: " not in timeline(simulated("DataParallel"), unverified=False)


# ---- devices that do the same


def test_devices_that_do_the_same_are_named_and_not_repeated():
    text = timeline(simulated("DDP"))
    assert "devices 1 to 7 like device 0" in text
    assert "device 1 " not in text


def test_a_straggler_is_drawn_for_itself():
    slow = simulated("DDP", "4xA100", speed=(1.0, 1.0, 0.5, 1.0))
    text = timeline(slow)
    assert "device 2 host" in text
    assert "devices 1 and 3 like device 0" in text


def test_of_many_unlike_devices_eight_are_drawn_and_the_rest_counted():
    spans = [span(d + 1, "forward", 0.0, 0.01 * (d + 1), device=d) for d in range(12)]
    text = timeline(Trace(tuple(f"gpu{d}" for d in range(12)), raw_spans=spans, end_s=0.12))
    assert "device 7" in text
    assert "device 8" not in text
    assert "4 more devices not drawn" in text


# ---- colour, language, bad input


def test_colour_comes_only_when_asked_and_changes_no_character():
    plain = timeline(simulated("DDP"))
    painted = timeline(simulated("DDP"), colour=True)
    assert "\x1b" not in plain
    assert "\x1b[" in painted
    assert ESCAPE.sub("", painted) == plain


def test_the_same_trace_gives_the_same_text():
    assert timeline(hand_made()) == timeline(hand_made())


def test_chinese_keeps_api_words_and_never_says_memory_for_gpu_memory():
    text = timeline(simulated("DDP"), language="zh")
    assert "反向" in text
    assert "all-reduce" in text
    assert "1 到 7 号卡与 0 号卡相同" in text


@pytest.mark.parametrize("arguments", [
    {"width": 20}, {"width": 0}, {"devices": (9,)}, {"devices": (-1,)}, {"start_s": 0.02, "end_s": 0.01},
    {"start_s": float("nan")}, {"end_s": float("inf")}, {"language": "fr"},
])  # fmt: skip
def test_a_width_window_device_or_language_that_cannot_be_is_an_error(arguments):
    with pytest.raises(InputError):
        timeline(hand_made(), **arguments)


# ---- rows


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_span_is_in_exactly_one_row(name):
    trace = simulated(name)
    expected: dict[str, float] = {}
    for item in trace.spans:
        expected[item.kind] = expected.get(item.kind, 0.0) + item.end_s - item.start_s
    rows = rows_of(trace)
    shown = busy_seconds(rows)
    waiting = shown.pop("wait")
    assert set(shown) == {kind for kind, length in expected.items() if length > 0}
    for kind, length in shown.items():
        assert length == pytest.approx(expected[kind], rel=1e-9)
    compute = [row for row in rows if row.role == "compute"]
    busy = sum(bar.end_s - bar.start_s for row in compute for bar in row.bars)
    assert waiting + busy == pytest.approx(8 * last_moment(trace), rel=1e-9)


def test_a_wait_says_what_it_was_for_through_work_that_took_no_time():
    row = next(row for row in rows_of(hand_made(), (0,)) if row.role == "compute")
    assert [(wait.start_s, wait.end_s, wait.kind) for wait in row.waits] == [(0.006, 0.009, "all_reduce")]


def test_bars_of_one_row_that_run_at_once_get_lanes_of_their_own():
    spans = [span(1, "all_reduce", 0.0, 2.0, resource="communication"),
             span(2, "all_reduce", 1.0, 3.0, resource="communication 2"),
             span(3, "all_reduce", 2.0, 4.0, resource="communication")]  # fmt: skip
    row = next(row for row in rows_of(Trace(("gpu0",), raw_spans=spans, end_s=4.0)) if row.role == "communication")
    assert row.lanes == (0, 1, 0)


def test_a_device_without_any_work_waits_all_the_time():
    trace = Trace(("gpu0", "gpu1"), raw_spans=[span(1, "forward", 0.0, 1.0)], end_s=1.0)
    idle = rows_of(trace, (1,))
    assert [(wait.start_s, wait.end_s) for wait in idle[0].waits] == [(0.0, 1.0)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), SECONDS, st.none() | SECONDS), max_size=12),
       st.integers(40, 100))  # fmt: skip
def test_any_trace_can_be_drawn(items, width):
    spans = [span(number + 1, kind, start, None if length is None else start + length, device=device,
                  resource="host" if kind == "host" else "compute")
             for number, (kind, device, start, length) in enumerate(items)]  # fmt: skip
    text = timeline(Trace(("a", "b", "c"), raw_spans=spans), width=width)
    assert all(columns(line) <= width for line in text.splitlines())


# ---- tables


def test_a_table_aligns_numbers_to_the_right_and_words_to_the_left():
    assert table([["DP", "171 ms"], ["DDP", "38.7 ms"]], ["strategy", "step"]).splitlines() == [
        "strategy     step",
        "--------  -------",
        "DP         171 ms",
        "DDP       38.7 ms",
    ]


def test_a_chinese_character_takes_two_columns():
    lines = table([["梯度", 3], ["bucket", 12]], ["名称", "个数"]).splitlines()
    assert {columns(line) for line in lines} == {columns("bucket") + 2 + columns("个数")}
    assert columns("0 号卡") == 6
    assert pad("卡", 4, right=True) == "  卡"


def test_a_row_of_another_length_than_the_header_is_an_error():
    with pytest.raises(InputError, match="header has 2"):
        table([["a"]], ["one", "two"])


@given(st.text(alphabet="ab 梯度，.", max_size=80), st.integers(4, 30))
def test_wrapped_text_keeps_its_signs_and_its_width(text, width):
    lines = wrap(text, width)
    assert all(columns(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())
