"""A row's verdict, what it says of a difference, and the table."""

import io
import json

import pytest

from simulator.validation.progress import Bar
from simulator.validation.report import Report, cores, overlap_words, provenance
from simulator.validation.rows import FAIL, INCONCLUSIVE, PASS, Row, exact, failed, rounding, table_text


def test_equal_items_pass_and_one_other_fails_by_its_name() -> None:
    assert exact("q", {"a": 1, "b": 2}, {"a": 1, "b": 2}).verdict == PASS
    row = exact("q", {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 5, "c": 6}, "calls")
    assert (row.verdict, row.error, row.simulated) == (FAIL, "2 differ", "3 calls")
    assert row.note == "b: simulated 2, measured 5"


@pytest.mark.parametrize(("simulated", "measured"), [({"a": 1}, {}), ({}, {"a": 1}), ({"a": None}, {})])
def test_what_one_side_lacks_is_a_difference(simulated: dict[str, object], measured: dict[str, object]) -> None:
    assert exact("q", simulated, measured).verdict == FAIL


def test_nothing_compared_is_no_pass() -> None:
    assert exact("q", {}, {}).verdict == FAIL
    assert rounding("q", {}).verdict == FAIL


def test_rounding_passes_up_to_one() -> None:
    assert rounding("q", {"a": 0.0, "b": 1.0}).verdict == PASS
    row = rounding("q", {"a": 0.5, "b": 1.5})
    assert row.verdict == FAIL and row.note.startswith("b: 1.5 times")
    assert rounding("q", {"a": float("nan")}).verdict == FAIL


def test_the_table_aligns_and_names_differences_below() -> None:
    rows = [exact("first", {"a": 1}, {"a": 1}), exact("second thing", {"a": 1}, {"a": 2})]
    lines = table_text(rows).splitlines()
    assert lines[0].split() == ["quantity", "simulated", "measured", "error", "tolerance", "verdict"]
    assert lines[2].endswith("pass") and lines[3].endswith("FAIL")
    assert lines[4] == "second thing: a: simulated 1, measured 2"
    assert failed(rows) == [rows[1]]


def test_a_report_passes_unless_something_fails() -> None:
    rows = (Row("a", "", "", "", "", PASS), Row("b", "", "", "", "", INCONCLUSIVE), Row("c", "", "", "", "", ""))
    report = Report(rows, {"torch": "2", "spread": None})
    assert report.passes
    assert report.summary == "Of 2 verdicts 1 pass, 1 say nothing (the machine is too busy)."
    assert "spread" not in report.text() and "torch 2" in report.text()
    bad = Report((*rows, Row("d", "", "", "", "", FAIL)), {})
    assert not bad.passes and "1 fail" in bad.summary
    assert json.loads(json.dumps(bad.as_json()))["rows"][3]["verdict"] == FAIL


def test_provenance_names_machine_library_and_date() -> None:
    found = provenance(world_sizes=(2, 3), threads=1, repeats="1", spread=0.12345)
    assert found["cores"] == cores() >= 1 and found["ranks"] == "2 to 3" and found["spread"] == 0.1235
    assert set(found) >= {"torch", "backend", "device", "cores", "threads", "date", "commit", "repeats", "spread"}
    assert found["date"].endswith("Z")


def test_overlap_is_put_into_words() -> None:
    assert "none" in overlap_words(0.99) and "40%" in overlap_words(0.4)


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_bar_shows_part_share_and_time_left_and_goes_away() -> None:
    stream = Terminal()
    bar = Bar(10.0, stream)
    bar.start("first", 4.0)
    bar.start("second", 6.0)
    bar.show(0.5)
    last = stream.getvalue().rpartition("\r")[2]
    assert " 70%" in last and "s left" in last and last.endswith("second") and last.count("#") == 17
    bar.close()
    assert stream.getvalue().endswith("\r") and not stream.getvalue().rstrip("\r").rpartition("\r")[2].strip()


def test_without_a_terminal_there_is_no_bar() -> None:
    stream = io.StringIO()
    bar = Bar(10.0, stream)
    bar.start("first", 4.0)
    bar.show(1.0)
    bar.close()
    assert stream.getvalue() == ""
