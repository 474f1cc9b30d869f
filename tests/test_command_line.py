"""The command line: three contracts that other programs read, the report at 80 columns, and errors that help."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.codec import to_json
from simulator.views.words import columns
from tests.samples import preset

DATA = Path(__file__).parent / "data"
MIB = 1 << 20


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a successful command prints."""
    assert main(arguments) == 0
    return capsys.readouterr().out


def compare_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    return json.loads(run(capsys, "compare", "--json", *arguments))


def test_network_prints_the_finish_of_every_task_in_task_order(capsys: pytest.CaptureFixture[str]) -> None:
    file = DATA / "simgrid" / "02_shared_link.json"
    printed = json.loads(run(capsys, "network", str(file)))
    cases = json.loads(file.read_text())["cases"]
    assert list(printed) == [case["name"] for case in cases]
    for case in cases:
        expected = [task["finish_s"] for task in case["expected"]["tasks"]]
        assert printed[case["name"]]["finish_s"] == pytest.approx(expected, rel=1e-9)
        assert printed[case["name"]]["makespan_s"] == max(printed[case["name"]]["finish_s"])
        assert set(printed[case["name"]]) == {"finish_s", "makespan_s"}


@pytest.fixture
def eight_weights(tmp_path: Path) -> str:
    """Eight weights of exactly 1 MiB, as a file."""
    file = tmp_path / "eight.json"
    file.write_text(
        json.dumps({"params": {"repeat": 8, "shape": [512, 512], "dtype": "float32", "name_pattern": "w{i}"}})
    )
    return str(file)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], [[8], [1, 7], [1, 7]]),
        (["--bucket-cap-mb", "25"], [[8], [8], [8]]),
        (["--bucket-cap-mb", "2"], [[8], [2, 2, 2, 2], [2, 2, 2, 2]]),
        (["--bucket-cap-mb", "0.5"], [[8], [1] * 8, [1] * 8]),
        (["--bucket-cap-mb", "0"], [[8], [1] * 8, [1] * 8]),
        (["--find-unused-parameters"], [[7, 1]] * 3),
        (["--static-graph"], [[8], [8], [1, 7]]),
        (["--iterations", "1"], [[8]]),
    ],
)
def test_buckets_prints_bytes_by_iteration_in_launch_order(
    capsys: pytest.CaptureFixture[str], eight_weights: str, options: list[str], expected: list[list[int]]
) -> None:
    printed = json.loads(run(capsys, "buckets", eight_weights, *options))
    assert printed == {"iterations": [[size * MIB for size in sizes] for sizes in expected]}


def test_buckets_follow_the_rule_of_a_torch_version(capsys: pytest.CaptureFixture[str], eight_weights: str) -> None:
    # Until 2.3 an explicit cap left the first bucket at 1 MiB.
    for torch_version, expected in (("2.3.1", [1, 7]), ("2.13.0+cpu", [8])):
        options = ["--bucket-cap-mb", "25", "--torch-version", torch_version, "--iterations", "2"]
        printed = json.loads(run(capsys, "buckets", eight_weights, *options))
        assert printed["iterations"][1] == [size * MIB for size in expected]


def test_buckets_knows_presets_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    printed = json.loads(run(capsys, "buckets", "vgg16", "--iterations", "2"))
    fc6_weight = 25088 * 4096 * 4
    assert any(fc6_weight <= size < fc6_weight + MIB for size in printed["iterations"][1])
    assert 411_058_176 in printed["iterations"][1]


def test_compare_prints_every_field_of_its_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare_json(capsys, "--model", "resnet50", "--cluster", "4xA100", "--batch", "12")
    assert (found["model"], found["cluster"], found["world_size"], found["batch_per_device"]) == (
        "resnet50",
        "4xA100",
        4,
        12,
    )
    assert set(found["single_device"]) == {"step_s", "samples_per_s"}
    assert set(found["strategies"]) == {"DataParallel", "DistributedDataParallel"}
    for strategy in found["strategies"].values():
        assert {
            "step_s", "samples_per_s", "compute_s", "comm_s", "exposed_comm_s", "speedup", "speedup_same_global_batch",
            "bytes_sent_by_device", "bytes_received_by_device", "bytes_by_kind", "peak_memory_bytes_by_device",
            "critical_path",
        } <= set(strategy)  # fmt: skip
        step = strategy["step_s"]
        assert strategy["samples_per_s"] == pytest.approx(4 * 12 / step, rel=1e-12)
        alone = found["single_device"]["samples_per_s"]
        assert strategy["speedup"] == pytest.approx(strategy["samples_per_s"] / alone, rel=1e-12)
        for name in ("bytes_sent_by_device", "bytes_received_by_device", "peak_memory_bytes_by_device"):
            assert len(strategy[name]) == 4 and all(isinstance(value, int) for value in strategy[name])
        for direction in ("sent", "received"):
            by_kind = [sum(column) for column in zip(*(kind[direction] for kind in strategy["bytes_by_kind"].values()))]
            assert by_kind == strategy[f"bytes_{direction}_by_device"]
        assert sum(strategy["bytes_by_link"].values()) >= sum(strategy["bytes_sent_by_device"])
        path = strategy["critical_path"]
        assert path[0]["start_s"] == 0 and path[-1]["end_s"] == step
        assert all(before["end_s"] == after["start_s"] for before, after in zip(path, path[1:]))
        assert all(set(piece) == {"device", "resource", "name", "start_s", "end_s"} for piece in path)
        assert 0 <= strategy["exposed_comm_s"] <= step and 0 <= strategy["comm_s"] <= step


def test_compare_lists_buckets_with_their_bandwidths(capsys: pytest.CaptureFixture[str]) -> None:
    found = compare_json(capsys, "--model", "resnet50", "--cluster", "4xA100")["strategies"]
    buckets = found["DistributedDataParallel"]["buckets"]
    assert [bucket["nbytes"] for bucket in buckets] == [8196000, 31502336, 26255360, 26550272, 9724160]
    for bucket in buckets:
        seconds = bucket["end_s"] - bucket["start_s"]
        assert bucket["algbw_bytes_per_s"] == pytest.approx(bucket["nbytes"] / seconds, rel=1e-12)
        assert bucket["busbw_bytes_per_s"] == pytest.approx(bucket["nbytes"] / seconds * 2 * 3 / 4, rel=1e-12)
    assert found["DataParallel"]["buckets"] == []


def test_iteration_0_is_slower_than_the_steady_state(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "vgg16", "--cluster", "8xV100-pcie"]
    first = compare_json(capsys, *arguments, "--iteration", "0")["strategies"]["DistributedDataParallel"]
    steady = compare_json(capsys, *arguments)["strategies"]["DistributedDataParallel"]
    assert first["step_s"] > steady["step_s"]
    assert first["exposed_comm_s"] == pytest.approx(first["comm_s"], rel=1e-2)


def test_batch_is_per_device_and_global_batch_is_shared(capsys: pytest.CaptureFixture[str]) -> None:
    per_device = compare_json(capsys, "--cluster", "4xA100", "--batch", "9")["strategies"]
    assert per_device["DataParallel"]["rows_by_device"] == [9] * 4
    shared = compare_json(capsys, "--cluster", "4xA100", "--global-batch", "9")["strategies"]
    assert shared["DataParallel"]["rows_by_device"] == [3, 3, 3, 0]
    assert shared["DistributedDataParallel"]["rows_by_device"] == [3, 2, 2, 2]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    ("model", "cluster"), [("resnet50", "8xV100-pcie"), ("gpt2", "2x8xA100-1nic"), ("mlp-small", "laptop")]
)
def test_the_report_fits_80_columns(
    capsys: pytest.CaptureFixture[str], model: str, cluster: str, language: str
) -> None:
    printed = run(capsys, "compare", "--model", model, "--cluster", cluster, "--batch", "8", "--language", language)
    assert max(map(columns, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    assert ("samples/s" if language == "en" else "样本/秒") in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compare", "--model", "resnet5"], "Did you mean 'resnet50'?"),
        (["compare", "--cluster", "8xV100-pci"], "Did you mean '8xV100-pcie'?"),
        (["compare", "--batch", "0"], "batch_per_device = 0"),
        (["compare", "--batch", "-3"], "batch_per_device = -3"),
        (["compare", "--devices", "0"], "number of devices = 0"),
        (["compare", "--devices", "99"], "it has 8 devices"),
        (["compare", "--global-batch", "3"], "leaves a rank without a sample"),
        (["compare", "--bucket-cap-mb", "nan"], "bucket_cap_mb = nan"),
        (["compare", "--bucket-cap-mb", "-1"], "bucket_cap_mb = -1"),
        (["compare", "--iteration", "-1"], "iteration = -1"),
        (["compare", "--torch-version", "1.0"], "torch_version = '1.0'"),
        (["compare", "--optimizer", "adamw"], "Did you mean 'adam'?"),
        (["compare", "--algorithm", "rings"], "Did you mean 'ring'?"),
        (["compare", "--algorithm", "nvls"], "does not add or multicast"),
        (["compare", "--transport", "p2p"], "Known: nccl, peer_copy"),
        (["compare", "--figure", "step.pdf"], "Known: svg, png"),
        (["compare", "--figure", ""], "'' is no file"),
        (["compare", "--figure", "/nonexistent/x.svg"], "its folder does not exist"),
        (["compare", "--figure", "/"], "is a folder"),
        (["compare", "--figure", "a\0.svg"], "error: "),
        (["compare", "--chrome-trace", ""], "'' is no file"),
        (["compare", "--chrome-trace", "/nonexistent/x.json"], "its folder does not exist"),
        (["compare", "--chrome-trace", "x.txt"], ".json or .json.gz"),
        (["compare", "--model", "no\x1b[31m\nwhere.json"], r"no\x1b[31m\nwhere.json"),
        (["compare", "--precision", "foo"], "foo"),
        (["compare", "--precision", ""], "precision ''"),
        (["network", "a\0b"], "A readable JSON file is needed"),
        (["buckets", "resnet50", "--iterations", "1000000000"], "at most 10,000"),
        (["compare", "--model", "nowhere.json"], "nowhere.json"),
        (["network", "nowhere.json"], "nowhere.json"),
        (["buckets", "nowhere.json"], "nowhere.json"),
        (["buckets", "resnet50", "--iterations", "0"], "iterations"),
    ],
)  # fmt: skip
def test_a_wrong_input_gives_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and said in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cases": 3}', '{"cases": [{"name": "a"}]}', "\x00"])
@pytest.mark.parametrize("command", ["network", "buckets"])
def test_a_damaged_file_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, content: str
) -> None:
    file = tmp_path / "damaged.json"
    file.write_text(content)
    assert main([command, str(file)]) == 2
    assert "damaged.json" in capsys.readouterr().err


def test_topology_and_nccl_tests_print_text_of_80_columns_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command, folder in (("topology", "topo"), ("nccl-tests", "nccl_logs")):
        files = sorted((DATA / folder).glob("*.txt"))
        assert files
        for file in files:
            if main([command, str(file), "--json"]):
                assert capsys.readouterr().err.startswith("error: ")
                continue
            json.loads(capsys.readouterr().out)
            assert max(map(columns, run(capsys, command, str(file)).splitlines())) <= 80


def test_figure_and_chrome_trace_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, png, trace = tmp_path / "a.svg", tmp_path / "a.png", tmp_path / "trace.json"
    run(capsys, "compare", "--cluster", "4xA100", "--figure", str(svg), "--chrome-trace", str(trace))
    run(capsys, "compare", "--cluster", "4xA100", "--figure", str(png))
    assert svg.read_text().lstrip().startswith("<?xml")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(trace.read_text())["traceEvents"]) > 1000


def test_written_files_are_named_on_standard_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    svg, trace = str(tmp_path / "a.svg"), str(tmp_path / "t.json.gz")
    assert main(["compare", "--cluster", "4xA100", "--json", "--figure", svg, "--chrome-trace", trace]) == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == [f"wrote {trace}", f"wrote {svg}"]
    json.loads(captured.out)


@pytest.mark.parametrize("option", ["--figure=/nonexistent/x.svg", "--chrome-trace=/nonexistent/x.json"])
def test_a_missing_folder_is_found_before_the_simulation(monkeypatch: pytest.MonkeyPatch, option: str) -> None:
    monkeypatch.setattr("simulator.compare.compare", lambda *_: pytest.fail("simulated"))
    assert main(["compare", option]) == 2


def test_a_figure_without_matplotlib_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", "--figure", str(tmp_path / "a.svg")]) == 2
    said = capsys.readouterr().err
    assert "pip install matplotlib" in said and said.count("\n") == 1


def profile(folder: Path, **changes: object) -> str:
    """A profile as a file, with some of its fields replaced."""
    file = folder / "mine.json"
    file.write_text(json.dumps({**json.loads(to_json(preset("mlp-small"))), **changes}), encoding="utf-8")
    return str(file)


def test_a_profile_has_its_own_precision(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = profile(tmp_path)
    for more in ([], ["--precision", "fp32"]):
        run(capsys, "compare", "--model", file, "--cluster", "4xA100", "--json", *more)
    for wrong in ("amp", "foo", ""):
        assert main(["compare", "--model", file, "--cluster", "4xA100", "--precision", wrong]) == 2
        assert "whose precision is 'fp32'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\ud800", "a\nb", "a\x9b", "a\u202e"])
def test_a_name_that_cannot_be_printed_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file = profile(tmp_path, name=name)
    assert main(["compare", "--model", file]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {file}: ") and "name of ModelProfile holds" in said
    assert said[:-1].isprintable() and said.isascii()


@pytest.mark.parametrize("batch", ["3", "32"])
def test_batch_and_global_batch_exclude_each_other(capsys: pytest.CaptureFixture[str], batch: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--global-batch", "8", "--batch", batch])
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err


def program(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run([sys.executable, "-m", "simulator", *arguments], stderr=subprocess.PIPE, text=True, **more)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_terminal_that_knows_only_ascii_gets_question_marks(language: str) -> None:
    done = program("compare", "--cluster", "4xA100", "--language", language, stdout=subprocess.PIPE,
                   env={**os.environ, "PYTHONIOENCODING": "ascii"})  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii() and "?" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["list"], ["--help"], ["compare", "--json"]], ids=lambda arguments: arguments[0])
def test_a_full_disk_gives_one_line_and_status_1(arguments: list[str]) -> None:
    with open("/dev/full", "w") as full:
        done = program(*arguments, stdout=full)
    assert done.returncode == 1
    assert done.stderr.startswith("error: No space left") and done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_file_that_cannot_be_written_to_its_end_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, name in (("--figure", "a.svg"), ("--figure", "a.png"), ("--chrome-trace", "t.json")):
        file = tmp_path / name
        file.symlink_to("/dev/full")
        assert main(["compare", "--cluster", "4xA100", option, str(file)]) == 2
        assert capsys.readouterr().err.startswith(f"error: {file}: No space left")


def test_the_module_runs_as_a_program() -> None:
    done = subprocess.run([sys.executable, "-m", "simulator", "list"], capture_output=True, text=True, check=True)
    assert "resnet50" in done.stdout and "8xV100-pcie" in done.stdout
