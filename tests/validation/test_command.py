"""`python -m simulator.validation`: what it prints and writes, its exit status, and how it stops."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from simulator.errors import InputError
from simulator.trace import Trace
from simulator.validation import __main__ as command
from simulator.validation import ddp_values, suite, times
from simulator.validation.launch import WorkerError, Workers
from simulator.validation.records import Plan
from simulator.validation.rows import FAIL, PASS, Row

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
ROOT = Path(__file__).resolve().parents[2]
TINY = Plan(widths=(64,) * 4, rows=8, caps_mb=(0.01, 25), sizes=(4096, 65536), held_out=(16384,), rounds=2, steps=1)


@needs_torch
def test_times_are_printed_and_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                       tmp_path: Path) -> None:  # fmt: skip
    monkeypatch.setattr(times, "QUICK", TINY)
    files = {name: tmp_path / f"out.{name}" for name in ("json", "trace")}
    status = command.main(["--quick", "--only", "times", "--json", str(files["json"]), "--trace", str(files["trace"])])
    printed = capsys.readouterr()
    assert printed.err == "", "no bar without a terminal"
    lines = printed.out.splitlines()
    assert lines[0].split() == ["quantity", "simulated", "measured", "error", "tolerance", "verdict"]
    assert "Predicted, cap 25 MiB" in lines and "Measured, cap 25 MiB" in lines
    written = json.loads(files["json"].read_text())
    assert status == (0 if written["passes"] else 1)
    assert written["provenance"]["repeats"] == "2 rounds of 1" and written["provenance"]["ranks"] == "2"
    assert len(written["times"]["quantities"]) == 3 and len(written["times"]["quantities"][0]["measured_s"]) == 2
    assert [row["quantity"] for row in written["rows"]][-1] == "times: median error"
    assert Trace.from_json(files["trace"].read_text()).source == "measured"


@needs_torch
def test_the_exact_part_alone_prints_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ddp_values, "QUICK_CASES", ddp_values.CASES[-1:])
    monkeypatch.setattr(suite.ring_values, "WORLD_SIZES", (2,))
    status = command.main(["--quick", "--only", "exact", "--json", "-"])
    written = json.loads(capsys.readouterr().out)
    assert status == (0 if written["passes"] else 1) and "times" not in written
    assert [row["quantity"].split(":")[0] for row in written["rows"]] == [
        "ring of 2", "ring of 2", *["DDP, four ranks"] * 4, "DP", "DP", "DP"]  # fmt: skip


class Stopped(suite.Suite):
    """A suite whose one step does what it is told."""

    problem: BaseException | None = None
    verdict = PASS

    def steps(self) -> list[tuple[str, float, suite.Step]]:
        def step(_: Workers, show: object) -> None:
            self.rows.append(Row("q", "1", "1", "0", "0", self.verdict))
            if self.problem is not None:
                raise self.problem

        return [("one", 1.0, step)]


@pytest.mark.parametrize(
    ("problem", "verdict", "status", "said"),
    [
        (None, PASS, 0, ""),
        (None, FAIL, 1, ""),
        (InputError("bad"), PASS, 2, "error: bad"),
        (WorkerError("w", 2, [], [0]), PASS, 1, "error: w on 2 ranks failed."),
        (KeyboardInterrupt(), PASS, 130, "stopped"),
    ],
)
def test_the_exit_status_tells_what_happened(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                                             problem: BaseException | None, verdict: str, status: int,
                                             said: str) -> None:  # fmt: skip
    monkeypatch.setattr(Stopped, "problem", problem)
    monkeypatch.setattr(Stopped, "verdict", verdict)
    monkeypatch.setattr(command, "Suite", Stopped)
    assert command.main([]) == status
    assert said in capsys.readouterr().err


def test_a_whole_run_covers_every_world_size_and_case() -> None:
    names = [name for name, _, _ in suite.Suite().steps()]
    assert [name for name in names if name.startswith("ring")] == [f"ring of {n}" for n in range(2, 9)]
    assert len([name for name in names if name.startswith("DDP")]) == len(ddp_values.CASES)
    assert len(suite.Suite(quick=True).steps()) < len(names)
    assert all(weight > 0 for _, weight, _ in suite.Suite().steps())


def children_of(pid: int) -> list[int]:
    """Linux: the parent is the second field after the command's name."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if stat.read_text().rpartition(")")[2].split()[1] == str(pid):
                found.append(int(stat.parent.name))
    return found


def alive(pid: int) -> bool:
    """Whether the process runs; one that has ended and waits for its new parent to read its status does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@needs_torch
@pytest.mark.skipif(sys.platform != "linux", reason="reads the process table of Linux")
def test_ctrl_c_ends_a_real_run_within_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-m", "simulator.validation", "--quick", "--json", str(tmp_path / "x.json")],
                               cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while len(workers := children_of(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(workers) >= 2
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == "" and "stopped" in err
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(alive(pid) for pid in workers)
    assert os.listdir(tmp_path) == [], tempfile.gettempdir()
