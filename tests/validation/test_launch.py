"""The launcher: answers come back, and whatever goes wrong, within seconds nothing is left."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from simulator.errors import InputError
from simulator.validation import launch as launching
from simulator.validation.launch import WorkerError, Workers, launch

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
SCRIPT = Path(__file__).with_name("launch_worker.py")
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 20.0
"""Within which an end must have come, on however busy a machine."""


def worker(name: str) -> str:
    return f"{SCRIPT}:{name}"


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet buried does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (ProcessLookupError, FileNotFoundError):
        return False


def soon(condition: Callable[[], bool]) -> bool:
    """Whether it becomes true within seconds."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def left_over() -> set[str]:
    """Temporary folders of launchers."""
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("simulator-validation-")}


@pytest.fixture
def own() -> Iterator[Workers]:
    """Ranks that a test may break."""
    with Workers(timeout_s=60) as started:
        yield started


class Watch:
    """Notes processes and folder, to look later whether they are gone."""

    def __init__(self, workers: Workers) -> None:
        self.pids, self.folder = workers.pids, workers.folder
        assert all(map(is_alive, self.pids)) and Path(self.folder).is_dir()

    def gone(self) -> bool:
        return not any(map(is_alive, self.pids)) and not Path(self.folder).exists()


def test_every_rank_answers_in_order(workers: Workers) -> None:
    answers = workers.run(worker("summed"), {"any": ["value"]}, world_size=3)
    assert answers == tuple((rank, [3.0, 3.0], {"any": ["value"]}) for rank in range(3))


def test_processes_stay_and_a_group_stays_while_its_size_does(workers: Workers) -> None:
    first = workers.run(worker("group"), world_size=2)
    second = workers.run(worker("group"), world_size=2)
    assert [pid for pid, _ in first] == [pid for pid, _ in second] == list(workers.pids[:2])
    assert max(calls for _, calls in second) == max(calls for _, calls in first) + 2
    workers.run(worker("summed"), world_size=1)
    assert max(calls for _, calls in workers.run(worker("group"), world_size=2)) == 2


def test_much_output_blocks_nobody(workers: Workers) -> None:
    assert workers.run(worker("chatters"), world_size=2) == (2000, 2000)


def test_progress_arrives_before_the_answer(workers: Workers) -> None:
    seen: list[tuple[int, Any]] = []
    answers = workers.run(worker("tells"), 3, world_size=2, on_progress=lambda rank, value: seen.append((rank, value)))
    assert answers == ("done", "done")
    assert sorted(seen) == [(rank, value) for rank in range(2) for value in range(3)]


def test_what_surrounds_the_launcher_does_not_reach_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["RANK", "MASTER_PORT", "TORCH_DISTRIBUTED_DEBUG", "DDP_SET_LAST_BUCKET_CAP"]
    for name in names:
        monkeypatch.setenv(name, "1")
    assert launch(worker("environment"), names, world_size=1) == ([None] * 4,)


def test_closing_leaves_no_process_no_file_and_no_port(own: Workers) -> None:
    linux = sys.platform == "linux"
    ports = own.run(worker("listens"), world_size=2) if linux else own.run(worker("summed"), world_size=2)
    watch = Watch(own)
    own.close()
    assert watch.gone() and own.pids == ()
    for port in (port for found in ports for port in found) if linux else ():
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
    own.close()


def test_a_rank_that_raises_ends_all_and_is_named_first(own: Workers) -> None:
    with pytest.raises(WorkerError) as caught:
        own.run(worker("summed"), world_size=2)
        watch = Watch(own)
        own.run(worker("raises"), 1, world_size=2)
    assert caught.value.failures[0].rank == 1
    assert "Rank 1 raised ValueError: rank 1 cannot" in str(caught.value)
    assert "launch_worker.py" in str(caught.value)
    # Rank 1 has left the group, so rank 0 may have seen that and raised too: then both stay for the next task.
    if len(caught.value.failures) == 1:
        assert watch.gone()
    assert own.run(worker("summed"), 5, world_size=2)[0] == (0, [1.0, 1.0], 5)


def test_an_error_on_every_rank_keeps_the_processes(workers: Workers) -> None:
    before = workers.run(worker("summed"), world_size=2), workers.pids
    with pytest.raises(WorkerError) as caught:
        workers.run(worker("raises"), None, world_size=2)
    assert sorted(failure.rank for failure in caught.value.failures) == [0, 1]
    with pytest.raises(WorkerError, match="pickle"):
        workers.run(worker("unpicklable"), world_size=2)
    assert (workers.run(worker("summed"), world_size=2), workers.pids) == before


def test_a_killed_rank_ends_all_within_seconds(own: Workers) -> None:
    own.run(worker("summed"), world_size=2)
    watch, start = Watch(own), time.monotonic()
    with pytest.raises(WorkerError) as caught:
        own.run(worker("dies"), 1, world_size=2)
    assert time.monotonic() - start < SECONDS
    assert caught.value.failures[0].rank == 1
    assert "Rank 1 was ended by signal 9 (SIGKILL).\n    the last words" in str(caught.value)
    assert watch.gone()
    children = []
    with pytest.raises(WorkerError, match="Rank 0 exited with status 3"):
        own.run(worker("exits"), 3, world_size=2, on_progress=lambda _, pid: children.append(pid))
    assert own.pids == () and soon(lambda: not is_alive(children[0]))


def test_a_rank_that_hangs_is_ended_and_the_report_says_where_it_stands(own: Workers) -> None:
    own.run(worker("summed"), world_size=2)
    watch = Watch(own)
    with pytest.raises(WorkerError) as caught:
        own.run(worker("hangs"), world_size=2, timeout_s=1.0)
    text = str(caught.value)
    assert "Rank 0 gave no answer in 1 s" in text and "in barrier" in text
    assert "Rank 1 gave no answer in 1 s" in text and "in hangs" in text
    assert watch.gone()


def test_an_interrupt_ends_all(own: Workers) -> None:
    watches = []

    def interrupt(rank: int, value: Any) -> None:
        watches.append(Watch(own))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own.run(worker("hangs"), world_size=2, on_progress=interrupt)
    assert watches[0].gone()


def test_what_a_rank_started_ends_with_it(own: Workers) -> None:
    children = []
    with pytest.raises(WorkerError):
        own.run(worker("starts_a_child"), world_size=1, timeout_s=1.0, on_progress=lambda _, pid: children.append(pid))
    assert soon(lambda: not is_alive(children[0]))


def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom simulator.validation.launch import Workers\nworkers = Workers()\n"
        f"workers.run({worker('hangs')!r}, world_size=2, on_progress=lambda _, pid: print(pid, workers.folder, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline().split() for _ in range(2)]
    pids, folder = [int(pid) for pid, _ in lines], Path(lines[0][1])
    assert all(map(is_alive, pids)) and folder.is_dir()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert soon(lambda: not any(map(is_alive, pids)) and not folder.exists())


@pytest.mark.parametrize("name", ["__main__:run", "no_function", "module.run"])
def test_a_worker_is_a_function_of_a_module(name: str) -> None:
    with Workers() as workers, pytest.raises(InputError, match=r"package\.module:function"):
        workers.run(name, world_size=2)


def test_without_torch_the_launcher_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    before = left_over()
    monkeypatch.setattr(launching.importlib.util, "find_spec", lambda name: None)
    with Workers() as workers, pytest.raises(InputError, match="pip install torch"):
        workers.run(worker("summed"), world_size=2)
    assert left_over() <= before
