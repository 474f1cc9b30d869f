"""Output of nccl-tests and gloo's benchmark read in the formats of ten years, and models of time by size fitted to it.

Expected numbers are what the programs printed, or size over time times the factor. Models are fitted on the even rows of
published tables and tested on the odd ones, and on tables made of known lines.
"""

import contextlib
import json
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collectives.communicator import Communicator
from simulator.errors import InputError
from simulator.importers.nccl_fit import OUTSIDE, SIZE_CLASSES, halves
from simulator.importers.nccl_tests import (
    Row,
    Table,
    bus_factor,
    error_by_size_class,
    fit_backend,
    fit_model,
    nccl_tests_json,
    nccl_tests_text,
    parse_tables,
    read_tables,
)

DATA = Path(__file__).with_name("data") / "nccl_logs"
FILES = sorted(path for path in DATA.iterdir() if path.suffix == ".txt")
PUBLISHED: dict[str, dict[str, Any]] = json.loads((DATA.parent / "published" / "nccl.json").read_text())["tables"]
GIB = 1 << 30
US = 1e-6

TABLES = {
    # file: collective, ranks, sizes, out-of-place microseconds of the last row, its printed busbw in GB/s
    "no_peer_access_2080ti.txt": [("all_reduce", 2, 11, 268588, 4.00)],
    "p4d_by_nodes_old_format.txt": [("all_reduce", 8 * nodes, 1, us, busbw) for nodes, us, busbw in (
        (1, 8142.6, 230.77), (2, 35215, 57.17), (3, 64782, 31.77), (4, 70253, 29.61))],
    "v100_two_collectives_old_format.txt": [("all_reduce", 64, 2, 244833, 4.32), ("alltoall", 64, 2, 1041974, 0.51)],
    "gb10_version_header.txt": [("all_reduce", 2, 4, 67.93, 0.96)],
    "titan_x_milliseconds.txt": [("all_reduce", 4, 2, 1611, 9.31)],
    "gloo_40gbe.txt": [("all_reduce", 2, 1, 17251, None)],
}  # fmt: skip


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_each_file_gives_its_tables_with_bandwidths_that_follow_from_size_and_time(file: Path) -> None:
    found = nccl_tests_json(file)
    json.dumps(found, allow_nan=False)
    assert [(table["collective"], table["nranks"], len(table["rows"])) for table in found] == [
        expected[:3] for expected in TABLES[file.name]
    ]
    for table, (collective, nranks, _, microseconds, printed) in zip(found, TABLES[file.name], strict=True):
        assert set(table) == {"collective", "nranks", "rows"}, "nothing is flagged"
        factor = bus_factor(collective, nranks)
        for row in table["rows"]:
            assert set(row) == {"size_bytes", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s"}
            assert row["algbw_bytes_per_s"] == row["size_bytes"] / row["time_s"]
            assert row["busbw_bytes_per_s"] == pytest.approx(row["size_bytes"] / row["time_s"] * factor, rel=1e-12)
        last = table["rows"][-1]
        assert last["time_s"] == pytest.approx(microseconds * US, rel=1e-12)
        if printed is not None:
            assert last["busbw_bytes_per_s"] / 1e9 == pytest.approx(printed, abs=0.0051, rel=1e-3)


def test_every_file_of_the_folder_is_tested() -> None:
    assert {file.name for file in FILES} == set(TABLES)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_text_fits_80_columns_and_names_every_table(file: Path) -> None:
    text = nccl_tests_text(file)
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("rows") + text.count("1 row\n") >= len(TABLES[file.name])
    for collective, nranks, *_ in TABLES[file.name]:
        assert f"{collective} on {nranks} ranks" in text


def test_the_factors_are_those_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md. One GiB on 8 ranks in 8142.6 us: 230.77 GB/s (NVIDIA/nccl#527).
    assert bus_factor("all_reduce", 8) == 2 * 7 / 8
    assert all(
        bus_factor(name, 8) == 7 / 8 for name in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
    )
    assert all(bus_factor(name, 8) == 1 for name in ("broadcast", "reduce", "sendrecv"))
    assert bus_factor("hypercube", 8) is None
    assert abs(GIB / 8142.6e-6 * 2 * 7 / 8 / 1e9 - 230.77) < 0.005


def test_out_of_place_is_the_default_and_in_place_is_there_on_request() -> None:
    file = DATA / "no_peer_access_2080ti.txt"
    out, in_place = read_tables(file)[0], read_tables(file, in_place=True)[0]
    assert (out.rows[0].time_s, in_place.rows[0].time_s) == (12.25e-6, 12.00e-6)
    assert (out.rows[-1].time_s, in_place.rows[-1].time_s) == (268588 / 1e6, 268461 / 1e6)
    assert "in place" in nccl_tests_text(file, in_place=True)


# ---- what a paste does not say


def test_the_number_of_ranks_follows_from_the_bandwidths_where_nothing_names_it() -> None:
    by_nodes = read_tables(DATA / "p4d_by_nodes_old_format.txt")
    assert by_nodes[3].notes == ("'p4dn' 4: 32 ranks follow from busbw over algbw",)
    text = (DATA / "v100_two_collectives_old_format.txt").read_text()
    # busbw 4.33 +- 0.005 over 2.198 alone fits 62 to 72 ranks; the average, with six digits, only 64.
    assert parse_tables(text)[0].nranks == 64
    without_average = "\n".join(line for line in text.splitlines() if "Avg" not in line)
    found = parse_tables(without_average)
    assert [table.nranks for table in found] == [64, 64]
    assert "told elsewhere" in found[0].notes[0], "the other table's count column is a 64th of its size"
    only = without_average.split("alltoall")[0]
    assert parse_tables(only)[0].nranks == 64 and "only power of two" in parse_tables(only)[0].notes[0]


def test_without_any_clue_the_ranks_are_unknown_and_busbw_stays_as_printed() -> None:
    row = "  1048576  262144  float  sum  -1  100.0  10.49  0.00  0  100.0  10.49  0.00  0\n"
    table = parse_tables(log("all_reduce", row, ranks=0))[0]
    assert (table.nranks, table.rows[0].busbw_bytes_per_s) == (None, 0.0)
    assert "an unknown number of ranks" in nccl_text(log("all_reduce", row, ranks=0))
    assert parse_tables(log("all_reduce", row, ranks=0, threads="# nThread 1 nGpus 4 minBytes 8"))[0].nranks == 4


HEADER = (
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
)


def log(collective: str, rows: str, *, ranks: int, threads: str = "") -> str:
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid   1 on machine device  {rank} [0x00] GPU\n" for rank in range(ranks)
    )
    return f"# Collective test starting: {collective}_perf\n{threads}\n{devices}{HEADER}{rows}"


def nccl_text(text: str) -> str:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(text)
        file.flush()
        return nccl_tests_text(file.name)


def printed_row(collective: str, nranks: int, size: int, us: float) -> str:
    """A row as nccl-tests prints it: three decimals' width, GB/s with two."""
    share = nranks if collective in ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter") else 1
    operation = "sum" if collective in ("all_reduce", "reduce_scatter", "reduce") else "none"
    root = 0 if collective in ("broadcast", "reduce", "gather", "scatter") else -1
    algbw = size / us / 1e3
    busbw = algbw * (bus_factor(collective, nranks) or 0)
    values = f"{us:8.2f} {algbw:7.2f} {busbw:7.2f}      0"
    return f"{size:12} {size // share // 4:12}  float {operation:>7} {root:7} {values} {values}\n"


@pytest.mark.parametrize("nranks", [2, 8, 64])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce",
                                        "sendrecv", "gather", "scatter"])  # fmt: skip
def test_every_collective_is_read_with_its_own_factor(collective: str, nranks: int) -> None:
    rows = "".join(printed_row(collective, nranks, size, 10 + size / 1e5) for size in (1 << 16, 1 << 20, 1 << 28))
    table = parse_tables(log(collective, rows, ranks=nranks))[0]
    assert (table.collective, table.nranks, table.flagged, table.notes) == (collective, nranks, (), ())
    last = table.rows[-1]
    assert last.busbw_bytes_per_s == pytest.approx(
        (1 << 28) / last.time_s * (bus_factor(collective, nranks) or 0), rel=1e-12
    )
    if collective not in ("gather", "scatter"):
        bare = parse_tables(HEADER + rows)[0]
        named = {"all_gather": "unknown", "alltoall": "unknown"}.get(collective, collective)
        assert bare.collective == named
        if nranks == 8 and collective in ("all_reduce", "reduce_scatter"):
            assert bare.nranks == 8


# ---- formats


def rows_of(text: str) -> list[tuple[int, float]]:
    return [(row.size_bytes, row.time_s) for table in parse_tables(text) for row in table.rows]


def test_launchers_quotes_logs_and_lost_headers_change_nothing() -> None:
    text = (DATA / "no_peer_access_2080ti.txt").read_text()
    lines = text.splitlines()
    plain = parse_tables(text)
    noisy = [
        part for line in lines for part in (line, "machine:1:2 [0] NCCL INFO Channel 00/0 : 0[b4] -> 1[b5] via SHM")
    ]
    init = "machine:1:2 [0] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 1 nvmlDev 1 - Init COMPLETE"
    for changed in (
        "\n".join("[1,0]<stdout>:" + line for line in lines), "\n".join("> " + line for line in lines),
        "\n".join("    " + line for line in lines), text.replace("\n", "\r\n"), "\n".join(noisy), "```\n" + text + "```",
        "\n".join([*noisy, init.replace("Init", "Destroy")]), text.replace("  ", "\t"),
        "$ mpirun -np 2 ./build/all_reduce_perf -b 8 -e 1G -f 2 -g 1\n" + text,
    ):  # fmt: skip
        assert parse_tables(changed) == plain
    bare = [line for line in lines if not line.startswith("#")]
    assert rows_of("\n".join(bare)) == rows_of(text)
    assert parse_tables(init + "\n" + "\n".join(bare))[0].nranks == 2
    markdown = "\n".join("| " + " | ".join(line.split()) + " |" for line in bare)
    assert rows_of(markdown) == rows_of(text)


def test_columns_that_some_versions_add_or_leave_out() -> None:
    wide = HEADER.splitlines()[0].replace("#wrong", "#wrong   i_min   i_max   i_p99   i_cv%") + "\n"
    row = "  4096  1024  float  sum  -1  10.0  0.41  0.72  0  9.0  11.0  11.0  3.0  20.0  0.20  0.36  N/A  9.0  11.0  11.0  3.0\n"
    assert rows_of(wide + row) == [(4096, 10e-6)]
    stamped = HEADER.splitlines()[0] + " timestamp\n"
    body = "  4096  1024  float  sum  -1  10.0  0.41  0.72  0  20.0  0.20  0.36  N/A"
    assert rows_of(stamped + body + "  2026-01-01 12:00:00\n") == [(4096, 10e-6)]
    assert [row.time_s for row in parse_tables(stamped + body + " 2026-01-01 12:00:00", in_place=True)[0].rows] == [
        20e-6
    ]
    cpu = HEADER.replace(" time", " cputime")
    assert rows_of(cpu + body + "\n") == [(4096, 10e-6)]
    once = "size count type redop root time algbw busbw #wrong\n  4096  1024  half  avg  -1  10.0  0.41  0.72  0\n"
    assert rows_of(once) == [(4096, 10e-6)]
    with pytest.raises(InputError):
        parse_tables(once, in_place=True)
    untyped = "size time algbw busbw\n4096 10.0 0.41 0.72\n1048576 100 10.49 18.35\n"
    assert rows_of(untyped) == [(4096, 10e-6), (1 << 20, 100e-6)]
    assert parse_tables(untyped)[0].nranks == 8
    blank = "# size count type redop time algbw busbw error time algbw busbw error\n"
    blank += " 2048 64 float 10 0.20 0.18 0e+00 10 0.20 0.18 0e+00\n"
    assert parse_tables("# alltoall result\n" + blank)[0].nranks == 2048 // (64 * 4)
    large = log(
        "all_reduce",
        "  8589934592  2147483648  float  sum  -1  1.2e+07  0.72  1.25  0  1.2e+07  0.72  1.25  0\n",
        ranks=8,
    )
    assert parse_tables(large)[0].flagged == (), "a time of two digits explains any busbw within 4 %"


def test_the_programs_own_json_gives_the_same_table(tmp_path: Path) -> None:
    run = {"time": 268588.0, "alg_bw": 3.997728, "bus_bw": 3.997728, "nwrong": 0.0}
    entry = {"size": GIB, "count": GIB // 4, "type": "float", "redop": "sum", "root": "    -1", "out_of_place": run,
             "in_place": {**run, "time": 268461.0}}  # fmt: skip
    config = {"nthreads": 1, "ngpus": 2}
    written = {"version": 2, "args": ["./build/all_reduce_perf", "-b", "8"], "config": config, "devices": [{"rank": 0}],
               "results": [entry, {**entry, "out_of_place": None}]}  # fmt: skip
    file = tmp_path / "log.json"
    file.write_text(json.dumps(written))
    table = read_tables(file)[0]
    assert (table.collective, table.nranks, table.rows[0].time_s, table.flagged) == ("all_reduce", 2, 268588 / 1e6, ())
    assert [row.time_s for row in read_tables(file, in_place=True)[0].rows] == [268461 / 1e6] * 2
    for damaged in (
        {},
        {"results": 3},
        {"results": [3]},
        {"results": [{}]},
        {"results": []},
        [],
        {"config": 3, "results": []},
    ):
        with pytest.raises(InputError, match=r"here\.json"):
            parse_tables(json.dumps(damaged), "here.json")


def test_several_runs_in_one_paste_keep_their_own_ranks_and_collective() -> None:
    runs = [("all_reduce", 2), ("all_reduce", 8), ("all_gather", 4)]
    text = "\n".join(
        log(name, printed_row(name, n, 1 << 20, 100.0), ranks=n, threads="# nThread 1 nGpus 8 minBytes 8")
        + f"# Avg bus bandwidth    : 1\n#\n# Collective test concluded: {name}_perf\n" for name, n in runs
    )  # fmt: skip
    assert [(table.collective, table.nranks) for table in parse_tables(text)] == runs
    concluded = HEADER + printed_row("broadcast", 4, 1 << 20, 100.0) + "# Collective test concluded: broadcast_perf\n"
    assert parse_tables(concluded)[0].collective == "broadcast"
    split = log("all_reduce", printed_row("all_reduce", 2, 1 << 20, 100.0), ranks=4).replace(
        "Rank  2 Group  0", "Rank  0 Group  1"
    )
    assert parse_tables(split.replace("Rank  3 Group  0", "Rank  1 Group  1"))[0].nranks == 2


def test_programs_that_ran_side_by_side_are_told_from_ranks_that_ran_together() -> None:
    row = "  1048576  262144  float  sum  -1  10.0  104.86  0.00  0  10.0  104.86  0.00  0\n"
    device = "#  Rank  0 Pid  1 on machine device  0 [0x00] GPU\n"
    table = parse_tables(device + device + HEADER + row)[0]
    assert table.nranks == 1 and "side by side" in table.notes[0]
    assert table.rows[0].busbw_bytes_per_s == 0.0


# ---- what is wrong is said


def test_a_printed_busbw_that_does_not_follow_is_flagged_and_rounding_is_not() -> None:
    text = (DATA / "no_peer_access_2080ti.txt").read_text()
    assert not parse_tables(text)[0].flagged, "0.00 GB/s for 8 bytes is rounding"
    wrong = text.replace("268588    4.00    4.00", "268588    4.00    4.10")
    flagged = parse_tables(wrong)[0].flagged
    assert [row.size_bytes for row in flagged] == [GIB]
    assert "prints busbw 4.1 GB/s" in flagged[0].flag and "3.998" in flagged[0].flag
    assert flagged[0].busbw_bytes_per_s == pytest.approx(GIB / 268588e-6)
    assert "  !" in nccl_text(wrong)
    assert not parse_tables(text.replace("268588    4.00    4.00", "268588    4.00    4.07"))[0].flagged, "under 2 %"


def test_ranks_that_do_not_explain_the_busbw_are_doubted(tmp_path: Path) -> None:
    rows = "".join(printed_row("all_reduce", 16, size, size / 1e5) for size in (1 << 24, 1 << 26))
    file = tmp_path / "log.txt"
    file.write_text(log("all_reduce", rows, ranks=8))
    table = read_tables(file)[0]
    assert (table.nranks, len(table.flagged)) == (8, 2)
    assert table.notes == ("8 ranks are listed, but the printed busbw is that of 16",)
    assert [flag["size_bytes"] for flag in nccl_tests_json(file)[0]["flagged"]] == [1 << 24, 1 << 26]


def test_a_cut_row_is_left_out_and_named() -> None:
    text = (DATA / "no_peer_access_2080ti.txt").read_text()
    cut = text[: text.index("268588") + 20]
    table = parse_tables(cut)[0]
    assert len(table.rows) == 10
    assert "line 20 looks like a row" in table.notes[0]


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_text_cut_anywhere_gives_no_row_that_the_whole_has_not(file: Path) -> None:
    text = file.read_text()
    whole = {(row.size_bytes, row.time_s) for table in parse_tables(text) for row in table.rows}
    for end in range(0, len(text), 3):
        with contextlib.suppress(InputError):
            assert set(rows_of(text[:end])) <= whole, text[:end][-60:]


@pytest.mark.parametrize(
    "text",
    ["", "\n", "hello", "GPU0 GPU1\nGPU0 X PIX\n", "8 2 float sum", HEADER, "# Avg bus bandwidth : nan",
     "8 2 float sum -1 inf nan nan 0 1 1 1 0", "8 2 float sum -1 0.00 0 0 0 0.00 0 0 0", "elements min p50\n1 2 0\n",
     "99999999999999999999 2 float sum -1 1 1 1 0 1 1 1 0", "8 2 float sum -1 1e999 1 1 0 1 1 1 0",
     "٨ ٢ float sum -1 1 1 1 0 1 1 1 0"],
)  # fmt: skip
def test_foreign_text_names_the_file_the_rule_and_the_next_step(text: str) -> None:
    with pytest.raises(InputError, match=r"here\.txt.* A row has size, count, type.* Save the program's output"):
        parse_tables(text, "here.txt")


def use(text: str) -> None:
    """Everything that can be done with a text; InputError is the only error."""
    with contextlib.suppress(InputError):
        for table in parse_tables(text):
            for row in table.rows:
                assert row.size_bytes >= 0 and row.time_s > 0
                assert row.busbw_bytes_per_s is None or row.busbw_bytes_per_s >= 0
            model = fit_model(table)
            assert model.seconds(model.smallest_bytes) <= model.seconds(model.largest_bytes)
    with contextlib.suppress(InputError):
        parse_tables(text, in_place=True)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_damage_anywhere_in_a_good_file_is_an_input_error_or_harmless(file: Path, data: st.DataObject) -> None:
    text = file.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        piece = data.draw(
            st.sampled_from(["", "0", "9" * 30, "e", "e+99", ".", "\n", "#", "N/A", "nan", "float", "-1", "\t", "é"])
        )
        text = text[:at] + piece + text[data.draw(st.sampled_from([at, at + 1, end])) :]
    use(text)


words = st.sampled_from(["size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong", "float", "sum", "-1", "8",
                         "1048576", "262144", "12.5", "1e+05", "0.00", "N/A", "\n", "#", "p50", "elements", "(us)",
                         "# Rank 0 Group 0 Pid 1 on a device 0\n", "all_reduce_perf"])  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(st.text(), st.lists(words, max_size=60).map(" ".join), st.binary().map(lambda raw: raw.decode("latin-1")))
)
def test_garbage_is_an_input_error_or_a_table(text: str) -> None:
    use(text)


# ---- gloo


def test_gloos_last_column_is_in_gib_per_second_of_the_mean_time() -> None:
    # pytorch/gloo gloo/benchmark/runner.cc divides by 1024^3; 5 M floats at 1.073 GiB/s are 17.36 ms, beside a median of 17.25.
    table = read_tables(DATA / "gloo_40gbe.txt")[0]
    assert (table.tool, table.rows[0].size_bytes, table.rows[0].time_s) == ("gloo", 5_000_000 * 4, 17251 / 1e6)
    assert abs(20e6 / (1.073 * GIB) - 17.36e-3) < 0.01e-3
    assert table.rows[0].busbw_bytes_per_s == 20e6 / (17251 / 1e6) * 2 * 1 / 2
    assert "median" in table.notes[0]


def test_gloos_newer_format_and_other_element_sizes() -> None:
    newer = """=======
               ALLGATHER_RING

Device:      tcp
Options:     processes=4, inputs=1, threads=2, verify=true

=======
             BENCHMARK RESULTS

   size (B)   elements   min (ns)   p50 (ns)   p99 (ns)   max (ns)   bandwidth (GB/s)   iterations
        400        100      15000      20000      40000      90000              0.040         1000
"""
    table = parse_tables(newer)[0]
    assert (table.collective, table.nranks, table.rows[0].size_bytes, table.rows[0].time_s) == (
        "all_gather",
        4,
        400,
        20e-6,
    )
    halves_of_floats = (DATA / "gloo_40gbe.txt").read_text().replace("1.073", f"{1.073 / 2:.3f}")
    assert parse_tables(halves_of_floats)[0].rows[0].size_bytes == 5_000_000 * 2
    unclear = (DATA / "gloo_40gbe.txt").read_text().replace("1.073", "9.999")
    assert "4 bytes" in parse_tables(unclear)[0].notes[1]


# ---- models of time by size


def table_of(name: str) -> Table:
    entry = PUBLISHED[name]
    return Table("all_reduce", entry["ranks"], tuple(Row(size, us * US, None) for size, us in entry["rows"]))


def errors_of(name: str) -> dict[str, Any]:
    table = table_of(name)
    return error_by_size_class(fit_model(table), table)


def test_published_tables_are_met_at_the_rows_that_were_not_fitted() -> None:
    medians = []
    for name, entry in PUBLISHED.items():
        if len(entry["rows"]) < 10:
            continue
        found = errors_of(name)
        for size, error in found.items():
            print(f"{name:32} {size:10} {error.rows:2} odd rows, median {error.median:.3f}, worst {error.worst:+.3f}")
            if size != OUTSIDE:
                medians += [error.median] * error.rows
    assert median(medians) < 0.05
    assert len(medians) > 50


@pytest.mark.parametrize(
    ("name", "size", "most"),
    [("a100_azure_n8", "above", 0.02), ("a100_azure_n8", "to 64 MiB", 0.05), ("v100x8_nvlink_hybridmesh", "to 32 KiB", 0.02),
     ("2080tix2_pcie3_shm", "above", 0.01), ("2080tix2_pcie3_shm", "to 64 MiB", 0.01)],
)  # fmt: skip
def test_three_lines_meet_a_published_table_by_size_class(name: str, size: str, most: float) -> None:
    assert errors_of(name)[size].median < most


def test_one_line_for_all_sizes_is_worse() -> None:
    table = table_of("a100_azure_n8")

    def worst(lines: int) -> float:
        errors = error_by_size_class(fit_model(table, most_lines=lines), table)
        return max(abs(error.worst) for error in errors.values())

    print(f"one line {worst(1):.2f}, three lines {worst(3):.2f}")
    assert worst(3) < 0.1 < worst(1)


def made_table(lines: list[tuple[float, float]], nranks: int, sizes: list[int]) -> Table:
    factor = bus_factor("all_reduce", nranks) or 1.0
    rows = [Row(size, min(constant + size * factor / speed for constant, speed in lines), None) for size in sizes]
    random.Random(0).shuffle(rows)
    return Table("all_reduce", nranks, tuple(rows))


def test_a_table_made_of_three_lines_gives_the_lines_back() -> None:
    lines = [(20e-6, 10e9), (40e-6, 60e9), (100e-6, 200e9)]
    table = made_table(lines, 8, [1 << k for k in range(10, 31)] + [3 << k for k in range(10, 29)])
    fitted = fit_backend(table, launch_s=3e-6)
    model = fitted.models[0]
    assert model.link_bytes_per_s == pytest.approx(200e9, rel=1e-6)
    steps = 2 * (8 - 1)
    assert [(line.step_s * steps, line.bandwidth_fraction * model.link_bytes_per_s) for line in model.lines] == [
        (pytest.approx(constant, rel=1e-6), pytest.approx(speed, rel=1e-6)) for constant, speed in lines
    ]
    assert all(abs(error.worst) < 1e-6 for error in error_by_size_class(model, table).values())
    # The same numbers come out of the library that the simulator asks, on the machine that the model speaks of.
    library = Communicator(fitted.cluster(), fitted.backend)
    for row in table.rows:
        assert library.choose(row.size_bytes).estimate_s == pytest.approx(row.time_s, rel=1e-6)
    assert (fitted.backend.launch_s, fitted.backend.concurrent_collectives, fitted.backend.algorithm) == (
        3e-6,
        1,
        "ring",
    )
    assert "fitted on every second row of all_reduce, 8 ranks" in fitted.backend.source


def test_the_constant_is_divided_into_base_steps_and_what_the_links_add() -> None:
    table = made_table([(50e-6, 100e9)], 4, [1 << k for k in range(10, 28)])
    line = fit_model(table, base_s=8e-6, latency_s=1e-6).lines[0]
    assert (line.base_s, line.step_s) == (8e-6, pytest.approx((50e-6 - 8e-6) / 6 - 1e-6))
    named = fit_model(table, link_bytes_per_s=125e9)
    assert named.lines[0].bandwidth_fraction == pytest.approx(100 / 125)
    with pytest.raises(InputError, match="the table reaches"):
        fit_model(table, link_bytes_per_s=50e9)


def test_broadcast_is_fitted_on_the_link_of_the_all_reduce() -> None:
    sizes = [1 << k for k in range(10, 28)]
    ring = made_table([(50e-6, 100e9)], 4, sizes)
    chain = Table("broadcast", 4, tuple(Row(size, 30e-6 + size / 80e9, None) for size in sizes))
    fitted = fit_backend(chain, ring)
    assert fitted.backend.chain_protocols[0].bandwidth_fraction == pytest.approx(0.8)
    assert fitted.backend.chain_protocols[0].step_s == pytest.approx(30e-6 / 3)
    assert [model.collective for model in fitted.models] == ["all_reduce", "broadcast"]
    for wrong in ((chain,), (ring, ring), (ring, chain, chain), (ring, Table("alltoall", 4, chain.rows)),
                  (ring, Table("reduce", 8, chain.rows))):  # fmt: skip
        with pytest.raises(InputError):
            fit_backend(*wrong)


def test_gloo_runs_two_collectives_at_once_and_blocks_the_host() -> None:
    ring = made_table([(50e-6, 1e9)], 2, [1 << k for k in range(10, 28)])
    backend = fit_backend(Table("all_reduce", 2, ring.rows, "gloo")).backend
    assert (backend.name, backend.concurrent_collectives, backend.blocks_host) == ("gloo", 2, True)


def test_outside_the_fitted_sizes_there_is_no_time_unless_it_is_asked_for() -> None:
    table = table_of("v100x8_nvlink_hybridmesh")
    model = fit_model(table)
    even, odd = halves(table)
    assert (model.smallest_bytes, model.largest_bytes) == (even[0].size_bytes, even[-1].size_bytes) == (8, 128 << 20)
    assert {row.size_bytes for row in even} | {row.size_bytes for row in odd} == {row.size_bytes for row in table.rows}
    for nbytes in (4, 256 << 20):
        with pytest.raises(InputError, match=r"8 to 134217728.* extrapolate=True"):
            model.seconds(nbytes)
        assert model.seconds(nbytes, extrapolate=True) > 0
    even_count = Table("all_reduce", 8, table.rows[:-1])
    errors = error_by_size_class(fit_model(even_count), even_count)
    assert errors[OUTSIDE].rows == 1, "the greatest size is an odd row here: beyond what was fitted"
    assert set(errors) <= {*SIZE_CLASSES, OUTSIDE}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 31), st.floats(1e-7, 10.0)), min_size=3, max_size=40),
    st.sampled_from([2, 8, 64]),
    st.sampled_from(["all_reduce", "all_gather", "broadcast"]),
)
def test_time_never_falls_with_size_whatever_the_table_says(
    rows: list[tuple[int, float]], n: int, collective: str
) -> None:
    table = Table(collective, n, tuple(Row(size, time_s, None) for size, time_s in rows))
    try:
        model = fit_model(table)
    except InputError:
        return
    sizes = sorted({model.smallest_bytes, model.largest_bytes, *(size for size, _ in rows), 0, 1, 1 << 20, 1 << 33})
    times = [model.seconds(size, extrapolate=True) for size in sizes]
    assert times == sorted(times)
    assert 1 <= len(model.lines) <= 3
    assert all(0 < line.bandwidth_fraction <= 1 and line.step_s >= 0 for line in model.lines)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (Table("all_reduce", None, ()), "unknown number of ranks"),
        (Table("all_reduce", 1, (Row(8, 1e-6, None),) * 5), "on 1 ranks"),
        (Table("broadcast", 1, (Row(8, 1e-6, None),) * 5), "on 1 ranks"),
        (Table("unknown", 4, (Row(8, 1e-6, None),) * 5), "table of unknown"),
        (Table("all_reduce", 4, ()), "two sizes"),
        (Table("all_reduce", 4, (Row(8, 1e-6, None),) * 5), "two sizes"),
        (Table("all_reduce", 4, (Row(8, 1e-6, None), Row(16, 1e-6, None))), "two sizes"),
    ],
)
def test_a_table_that_carries_no_model_says_what_it_lacks(table: Table, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit_model(table)


def test_a_model_is_not_tested_on_another_table() -> None:
    model = fit_model(table_of("a100_azure_n8"))
    with pytest.raises(InputError, match="2"):
        error_by_size_class(model, table_of("a100_azure_n2"))


def test_resnet50s_gradients_without_peer_access_take_25_6_ms_by_the_imported_table() -> None:
    # Case a07: 97.5 MiB over a link that reaches 4.0 GB/s; eleven rows of the table are in the file, six are fitted.
    table = read_tables(DATA / "no_peer_access_2080ti.txt")[0]
    model = fit_model(table)
    assert model.seconds(102_228_128) == pytest.approx(25.6e-3, rel=0.02)
    assert model.link_bytes_per_s == pytest.approx(4.0e9, rel=0.02)
