"""Real ranks: N processes with torch.distributed (gloo), started, given work, and ended without a trace.

    with Workers() as workers:
        answers = workers.run("package.module:function", argument, world_size=2)      # one answer a rank

or, for one task, `launch(worker, argument, world_size=2)`. A worker is a function of a module or of a script file,
`function(me, argument)`; what it returns comes back through a pipe. The processes stay from task to task, because to
import torch takes longer than most tasks, and a task uses the first `world_size` of them.

Ranks meet through a file in a temporary folder and talk over the loopback interface, so no port has to be free. One
rank that raises, dies or hangs would leave the others waiting in a collective: then all are killed within seconds, each
with its process group, and WorkerError says which rank it was, why, and what it last wrote (of a rank that hangs: where
it stands). Only if every rank raised do they stay. The same happens on Ctrl-C. Should this process itself be
killed, the workers see their standard input end, remove the folder and go.

Not modelled: Windows; several machines; NCCL.
"""

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from simulator.errors import InputError, require, whole
from simulator.validation.process import PROGRESS, RAISED, READY, RESULT, Task

LOOPBACK = {"linux": "lo", "darwin": "lo0"}
GRACE_S = 2.0
"""For how long the others may still answer when one rank has failed."""
START_S = 120.0
"""For how long a process may take to import torch."""
TAIL_LINES = 15
MOST_SIGNS = 200
HANGS = "gave no answer"
OWN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "DDP_SET_LAST_BUCKET_CAP")
"""What a surrounding torchrun or a user's shell may have set, and what would change what the ranks do."""
OWN_PREFIXES = ("TORCH_DISTRIBUTED_", "TORCHELASTIC_", "GLOO_")

GONE = "gone"

Progress = Callable[[int, Any], None]


@dataclass(frozen=True)
class Failure:
    """One rank that did not do its task."""

    rank: int
    why: str
    tail: str = ""
    """Its traceback, or the last lines that it wrote."""


class WorkerError(RuntimeError):
    """Some ranks failed. The message names them, why, and what they last wrote."""

    def __init__(self, worker: str, world_size: int, failures: Sequence[Failure], ended: Sequence[int]) -> None:
        self.failures = tuple(failures)
        lines = [f"{worker} on {world_size} ranks failed."]
        for number, failure in enumerate(failures):
            lines.append(f"Rank {failure.rank} {failure.why[:MOST_SIGNS].strip()}.")
            if number == 0 or HANGS in failure.why:
                lines += [f"    {line}" for line in failure.tail.splitlines()[-TAIL_LINES:]]
        if ended:
            lines.append(f"Ended with it: rank {', '.join(map(str, ended))}.")
        super().__init__("\n".join(lines))


@dataclass
class _Process:
    """One worker process."""

    rank: int
    popen: "subprocess.Popen[bytes]"
    connection: Connection
    log: Path
    ready: bool = False

    def why_it_ended(self) -> str:
        """How the process ended, in words."""
        with suppress(subprocess.TimeoutExpired):
            status = self.popen.wait(timeout=GRACE_S)
            self._kill_group()  # now: later its number may be another's
            if status >= 0:
                return f"exited with status {status}"
            try:
                return f"was ended by signal {-status} ({signal.Signals(-status).name})"
            except ValueError:
                return f"was ended by signal {-status}"
        return "closed its connection"

    def tail(self) -> str:
        """The last lines that it wrote."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        except OSError:
            return ""

    def where_it_stands(self) -> str:
        """Its Python stack, which it writes down on a signal, whatever it does."""
        with suppress(ProcessLookupError):
            self.popen.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
        return self.tail()

    def kill(self) -> None:
        """The process, and whatever it started."""
        if self.popen.returncode is None:
            self._kill_group()
        self.connection.close()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Wait for the end of a killed process."""
        self.popen.wait()
        if self.popen.stdin is not None:
            self.popen.stdin.close()


class Workers:
    """A context manager. `timeout_s` holds for each task that does not bring its own; `threads` are torch's a process."""

    def __init__(self, timeout_s: float = 120.0, threads: int = 1) -> None:
        self.timeout_s = timeout_s
        self.threads = threads
        self._processes: list[_Process] = []
        self._folder = ""
        self._store = ""
        self._store_size = 0
        self._stores = count()

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pids(self) -> tuple[int, ...]:
        """Of the processes that are there now, in order of rank."""
        return tuple(process.popen.pid for process in self._processes)

    @property
    def folder(self) -> str:
        """Where their files are now; empty without processes."""
        return self._folder

    def run(self, worker: str, argument: object = None, *, world_size: int, timeout_s: float | None = None,
            on_progress: Progress | None = None) -> tuple[Any, ...]:  # fmt: skip
        """What the worker's function returns on each rank. Raises WorkerError, and InputError for a bad call."""
        whole(world_size, "world_size", minimum=1)
        require(":" in worker and not worker.startswith("__main__"), f"worker {worker!r}",
                "it is a function of a module or a script file", "Give package.module:function")  # fmt: skip
        limit = self.timeout_s if timeout_s is None else timeout_s
        try:
            self._start(world_size)
            task = Task(worker, argument, world_size, self._meet(world_size))
            chosen = self._processes[:world_size]
            for process in chosen:
                with suppress(BrokenPipeError):  # it has died: reading will tell
                    process.connection.send(task)
            return tuple(self._collect(worker, chosen, limit, on_progress))
        except WorkerError as error:
            if len(error.failures) == world_size and all(f.why.startswith("raised") for f in error.failures):
                self._store = ""
            else:
                self.close()
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes and remove their files. Calling it again does nothing."""
        processes, self._processes = self._processes, []
        folder, self._folder, self._store = self._folder, "", ""
        try:
            for process in processes:
                process.kill()
            for process in processes:
                process.bury()
        finally:
            if folder:
                shutil.rmtree(folder, ignore_errors=True)

    def _meet(self, world_size: int) -> str:
        """The file of the process group: the last one again while the ranks are the same and none has failed."""
        if not self._store or self._store_size != world_size:
            self._store = str(Path(self._folder) / f"store{next(self._stores)}")
            self._store_size = world_size
        return self._store

    def _start(self, world_size: int) -> None:
        """Start the processes that are missing, side by side."""
        if not self._folder:
            require(os.name == "posix", f"system {os.name!r}", "process groups are needed", "Use Linux or macOS")
            if importlib.util.find_spec("torch") is None:
                raise InputError("torch is not installed; real ranks need it. Run: pip install torch.")
            self._folder = tempfile.mkdtemp(prefix="simulator-validation-")
        for rank in range(len(self._processes), world_size):
            self._processes.append(self._begin(rank))
        new = [process for process in self._processes[:world_size] if not process.ready]
        self._collect("the start", new, START_S, None)
        for process in new:
            process.ready = True

    def _begin(self, rank: int) -> _Process:
        here, there = socket.socketpair()
        log = Path(self._folder) / f"rank{rank}.log"
        with there, open(log, "ab") as out:
            command = [sys.executable, "-u", "-m", "simulator.validation.process", str(rank), str(there.fileno()),
                       self._folder, str(self.threads)]  # fmt: skip
            popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out, env=self._environment(),
                                     pass_fds=(there.fileno(),), start_new_session=True)  # fmt: skip
        return _Process(rank, popen, Connection(here.detach()), log)

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items()
                if name not in OWN_VARIABLES and not name.startswith(OWN_PREFIXES)}  # fmt: skip
        root = str(Path(__file__).resolve().parents[2])
        path = [root, *(entry or os.getcwd() for entry in sys.path)]
        kept |= {"PYTHONPATH": os.pathsep.join(dict.fromkeys(path)), "OMP_NUM_THREADS": str(self.threads)}
        if sys.platform in LOOPBACK:
            kept["GLOO_SOCKET_IFNAME"] = LOOPBACK[sys.platform]
        return kept

    def _collect(self, worker: str, chosen: Sequence[_Process], limit_s: float,
                 on_progress: Progress | None) -> list[Any]:  # fmt: skip
        """One answer a process, in order. Raises WorkerError when one fails, or when time is up."""
        answers: dict[int, Any] = {}
        failures: list[Failure] = []
        left = {process.connection: process for process in chosen}
        deadline = time.monotonic() + limit_s
        while left:
            readable = wait(list(left), max(0.0, deadline - time.monotonic()))
            if not readable:
                break
            for connection in readable:
                assert isinstance(connection, Connection)
                process = left[connection]
                try:
                    kind, value = connection.recv()
                except (EOFError, ConnectionResetError):
                    kind, value = GONE, None
                if kind == PROGRESS:
                    if on_progress is not None:
                        on_progress(process.rank, value)
                    continue
                del left[connection]
                if kind in (RESULT, READY):
                    answers[process.rank] = value
                    continue
                if not failures:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
                failures.append(Failure(process.rank, f"raised {value[0]}", value[1]) if kind == RAISED else
                                Failure(process.rank, process.why_it_ended(), process.tail()))  # fmt: skip
        if left and not failures:
            failures = [Failure(process.rank, f"{HANGS} in {limit_s:g} s; where it stands", process.where_it_stands())
                        for process in left.values()]  # fmt: skip
        if failures:
            failures.sort(key=lambda failure: failure.why.startswith("raised"))  # a death explains the others' errors
            failed = {failure.rank for failure in failures}
            ended = [process.rank for process in chosen if process.rank not in failed]
            raise WorkerError(worker, len(chosen), failures, ended)
        return [answers.get(process.rank) for process in chosen]


def launch(worker: str, argument: object = None, *, world_size: int, timeout_s: float = 120.0, threads: int = 1,
           on_progress: Progress | None = None) -> tuple[Any, ...]:  # fmt: skip
    """Start the ranks, let them do one task, end them. Raises WorkerError and InputError."""
    with Workers(timeout_s, threads) as workers:
        return workers.run(worker, argument, world_size=world_size, on_progress=on_progress)
