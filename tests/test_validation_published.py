"""Published figures, predicted from what their authors state: bounds, accounts, and the command that prints them.

All rows are predicted once for this file. Run with -s to see the table.
"""

import csv
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator.backend import nccl
from simulator.presets.backends import backend_for
from simulator.presets.clusters import load_cluster
from simulator.presets.machines import host_for
from simulator.presets.models import load_model
from simulator.scenario import DistributedDataParallel, Scenario
from simulator.simulate import simulate
from simulator.validation import published, published_dp, published_machines, published_overlap
from simulator.validation.published_machines import (
    Nodes,
    all_reduce_s,
    closed_form_s,
    cluster_of,
    library,
    lines,
    lines_of,
    two_ranks,
)  # fmt: skip
from simulator.validation.published_rows import DATA, FITTED, LARGE, PREDICTED, Errors, Family, Prediction

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data" / "measurements"
FILES = sorted(DATA.glob("published_*.json"))
MIB = 1 << 20


def family(name: str) -> Family:
    return next(family for family in published.families() if family.name == name)


# ---- the errors
def test_every_familys_median_is_within_its_bound() -> None:
    print(published.report_text(brief=True))
    assert published.failures() == []
    assert all(family.bounds and family.why and family.fit for family in published.families())


@pytest.mark.parametrize(
    ("name", "how", "aim"),
    [("NCCL in a table, above 1 MiB", "interpolated", 0.05), ("NCCL in a table, to 1 MiB", "interpolated", 0.10),
     ("DataParallel, fp32", PREDICTED, 0.10), ("DP against DDP, steps", PREDICTED, 0.10),
     ("Overlap variants, steps", PREDICTED, 0.10), ("DDP's scaling efficiency", PREDICTED, 0.05)],
)  # fmt: skip
def test_the_aims_are_reached_where_the_bound_says_so(name: str, how: str, aim: float) -> None:
    errors = family(name).errors(how)
    assert errors is not None
    assert errors.median <= aim == family(name).bounds[how]


def test_every_row_that_is_far_off_has_its_cause_named() -> None:
    nameless = [(family.name, group) for family in published.families() for group in family.off
                if not family.cause(group)]  # fmt: skip
    assert nameless == []


def test_no_cause_is_named_for_nothing() -> None:
    """Families that share their causes count together."""
    used = {cause for family in published.families() for group in family.off if (cause := family.cause(group))}
    named = {cause for family in published.families() for cause in family.causes.values()}
    assert named == used


@pytest.mark.parametrize("name", ["Bucket sweeps", "Server against all-reduce", "One device, mixed precision"])
def test_rows_that_fix_a_constant_are_met(name: str) -> None:
    errors = family(name).errors(FITTED)
    assert errors is not None
    assert errors.largest < 0.005


def test_a_row_is_fitted_once_and_never_predicted_as_well() -> None:
    for found in published.families():
        keys = Counter((row.source, row.row) for row in found.rows if row.how == FITTED)
        assert not {(row.source, row.row) for row in found.rows if row.how != FITTED} & set(keys), found.name


def test_points_are_a_difference_and_other_errors_relative() -> None:
    row = Prediction("group", "row", PREDICTED, 0.9, 0.6, "source")
    assert row.error == pytest.approx(0.9 / 0.6 - 1)
    assert replace(row, points=True).error == pytest.approx(0.9 - 0.6)
    errors = Errors.of([row, replace(row, simulated=0.6), replace(row, simulated=0.3)])
    assert errors is not None
    assert (errors.median, errors.largest) == pytest.approx((0.5, 0.5))
    assert Errors.of([]) is None


# ---- what must not go unnoticed
def test_links_a_third_slower_fail_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = tuple(replace(found, rows=tuple(replace(row, simulated=1.3 * row.simulated) for row in found.rows))
                  for found in published.families() if found.name == "DP against DDP, steps")  # fmt: skip
    monkeypatch.setattr(published, "families", lambda: worse)
    assert published.run_published(["--brief"]) == 1
    said = capsys.readouterr()
    assert "FAIL DP against DDP, steps, predicted: median" in said.err
    assert "1 of 1 medians above their bounds" in " ".join(said.out.split())


def test_a_family_without_a_row_fails() -> None:
    empty = Family("nothing", (), {PREDICTED: 0.1}, "")
    assert empty.failures == ["nothing, predicted: no row, bound 10.0%"]


def test_perfect_overlap_gets_the_variants_wrong() -> None:
    source = published_overlap.SLOWS[0]
    known = published_overlap._seconds(source)
    during = {
        key: real for key, real in known.items() if key[4] == published_overlap.STEP and key[0].endswith("overlap")
    }
    errors = [abs(published_overlap._simulated(source, *key[:4], 0.0)[0] / real - 1) for key, real in during.items()]
    print(f"overlap that costs nothing: median {sorted(errors)[len(errors) // 2]:.1%} of {len(errors)}")
    assert sorted(errors)[len(errors) // 2] > 0.10
    assert 0.5 < published_overlap.slowdown() < 0.95


# ---- many equal nodes
@pytest.mark.parametrize(("cluster", "batch"), [("8xA100", 32), ("8xV100-dgx1", 32)])
def test_two_ranks_stand_for_eight(cluster: str, batch: int) -> None:
    machine = load_cluster(cluster)
    kind, backend = machine.devices[0].kind, backend_for(machine)
    model = load_model("resnet50", kind)
    pair, like = two_ranks(kind, lines(machine, backend), backend)
    eight, two = (simulate(Scenario(replace(model, buffers=()), *where, batch, host=host_for(machine))).end_s
                  for where in ((machine, DistributedDataParallel(), backend), (pair, DistributedDataParallel(), like)))  # fmt: skip
    print(f"{cluster}: {eight * 1e3:.2f} ms, two for all {two * 1e3:.2f}")
    assert two == pytest.approx(eight, rel=0.005)


@pytest.mark.parametrize("nbytes", [1, 64 * 1024, 4 * MIB, 1024 * MIB])
def test_two_ranks_take_what_the_lines_say(nbytes: int) -> None:
    found = lines_of(Nodes("A100", 300e9, 8, 32, 8, 24e9))
    cluster, backend = two_ranks("A100", found, nccl())
    assert all_reduce_s(cluster, backend, 2 * nbytes) == pytest.approx(closed_form_s(found, 2 * nbytes), rel=0.01)


def test_more_than_eight_nodes_have_the_links_of_eight_and_more_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = Nodes("A100", 300e9, 2, 16, 2, 24e9)
    found = lines_of(spec)
    monkeypatch.setattr(published_machines, "MOST_NODES", 16)
    whole = lines_of(spec)
    for short, long in zip(found, whole, strict=True):
        assert short.constant_s == pytest.approx(long.constant_s, rel=1e-9)
        assert short.per_byte_s == pytest.approx(long.per_byte_s, rel=1e-9)


@pytest.mark.parametrize("nbytes", [1024, 64 * MIB])
def test_the_closed_form_is_near_the_simulated_steps(nbytes: int) -> None:
    spec = Nodes("A100", 300e9, 8, 2, 8, 24e9)
    steps = all_reduce_s(cluster_of(spec), library(spec), nbytes)
    assert closed_form_s(lines_of(spec), nbytes) == pytest.approx(steps, rel=0.15)


def test_each_direction_of_each_nic_carries_one_ring() -> None:
    cluster = cluster_of(Nodes("A100", 300e9, 8, 3, 4, 24e9))
    carried: Counter[int] = Counter()
    for ring in cluster.rings:
        for a, b in zip(ring.order, (*ring.order[1:], ring.order[0]), strict=True):
            carried.update(link for link in cluster.route(a, b).links if cluster.links[link].kind == "network")
    assert set(carried.values()) == {1}
    assert len(carried) == 2 * 3 * 4


# ---- the facts
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_figures_have_their_source_and_licence_and_name_no_host(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for entry in json.loads(text)["sets"].values():
        assert entry["source"] and entry["licence"]
        assert entry.get("rows") or entry.get("left")
        assert all(isinstance(rows, int) and rows > 0 for rows in entry.get("left", {}).values())
    assert not re.search(r"[\w.]+@[\w-]+\.\w|\b\d{1,3}(\.\d{1,3}){3}\b|/home/|/root/|https?://", text)


def rows_of(name: str) -> dict[str, int]:
    """For each set of a file how many published rows it holds or leaves out."""
    numbers = 4 if name == "published_dpweak" else 1
    sets: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))["sets"]
    return {source: numbers * len(entry.get("rows", ())) + sum(entry.get("left", {}).values())
            for source, entry in sets.items()}  # fmt: skip


@pytest.mark.skipif(not SHARED.is_dir(), reason="the collection of measurements is not on this machine")
def test_every_row_of_the_collection_is_used_or_left_out_with_a_reason() -> None:
    ours = {source: rows for path in FILES for source, rows in rows_of(path.stem).items()}
    for machine in ("dpweak_a100sxm4_x1to4", "dpweak_2080ti_x1to4"):
        ours[machine] += 2 * 4 * len(published_dp.models())  # fp32: in tests/data/published
    tables = json.loads((ROOT / "tests" / "data" / "published" / "nccl.json").read_text())["tables"]
    ours |= {f"nccl_{name}": len(table["rows"]) for name, table in tables.items()}
    for path in sorted(SHARED.glob("*/*.csv")):
        if path.parent.name != "fits":
            lines = path.read_text(encoding="utf-8").splitlines()
            rows = list(csv.DictReader(line for line in lines if not line.startswith("# ")))
            assert ours.get(path.stem) == len(rows), path.stem


def test_all_rows_that_are_listed_are_predicted_fitted_or_inputs() -> None:
    for name, file in (("DDP's scaling efficiency", "published_scaling"), ("DP against DDP, steps", "published_dp_ddp"),
                       ("Server against all-reduce", "published_collectives"), ("Bucket sweeps", "published_buckets"),
                       ("Overlap variants, steps", "published_overlap")):  # fmt: skip
        sets = json.loads((DATA / f"{file}.json").read_text(encoding="utf-8"))["sets"]
        listed = sum(len(entry.get("rows", ())) for entry in sets.values())
        assert len(family(name).rows) + family(name).inputs == listed, name
    assert len(family("DataParallel, fp32").rows) == 2 * 2 * 3 * 32
    assert len(family("DataParallel, fp16 and fp64").rows) == 2 * 2 * 2 * 3 * 32


# ---- the command
def test_the_command_writes_every_row_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "published.json"
    assert published.run_published(["--json", str(file)]) == 0
    text = capsys.readouterr().out
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["passes"] is True
    assert [entry["name"] for entry in found["families"]] == [family.name for family in published.families()]
    for entry in found["families"]:
        assert sum(errors["rows"] for errors in entry["errors"].values()) == len(entry["rows"])
        assert all(abs(row["error"]) <= LARGE or entry["causes"][row["group"]] for row in entry["rows"])
        assert entry["name"] in text
    assert sum(left["rows"] for left in found["left_out"]) == sum(left.rows for left in published.left_out())
    assert max(map(len, text.splitlines())) <= 120
    assert "worst predicted" in text and "Left out" in text


def test_json_can_go_to_the_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.run_published(["--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["passes"] is True


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert published.run_published(["--brief", "--json", str(tmp_path / "no folder" / "file.json")]) == 2
    assert "error:" in capsys.readouterr().err


def test_the_readmes_table_has_a_line_a_family_and_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.run_published(["--markdown"]) == 0
    table = capsys.readouterr().out.strip()
    assert table == published.accuracy_markdown()
    assert table.count("\n") == 1 + len(published.families())
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table in readme, (
        "README.md is stale: paste what `python -m simulator.validation published --markdown` prints"
    )
