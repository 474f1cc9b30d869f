"""What one worker process does: join a process group, run one function after another, send back what each returns.

The launcher starts it as a program of its own (`python -m simulator.validation.process`), so that nothing of the
launching process, its threads and its locks, is copied. Three ways lead between the two:

    standard input    never carries a byte; it is closed when the launcher ends, however that ends, and then so do we
    a socket          tasks in; progress, results and tracebacks out
    a log file        standard output and standard error, whose last lines a report of a failure quotes

A group lives until the launcher asks for another one: making one takes longer than most tasks.

Not modelled: machines other than this one; CUDA devices.
"""

import faulthandler
import gc
import importlib
import importlib.util
import os
import shutil
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simulator.importers import module_calls as calls

READY, PROGRESS, RESULT, RAISED = "ready", "progress", "result", "raised"
"""Kinds of message to the launcher."""
FAR = timedelta(days=1)
"""The launcher, which can say who hangs, ends a task long before torch would."""


@dataclass(frozen=True)
class Task:
    """What the launcher asks for."""

    worker: str
    """`package.module:function`, or `path/of/file.py:function`."""
    argument: Any
    world_size: int
    store: str
    """The file through which the ranks meet; another file than before means another process group."""


@dataclass(frozen=True)
class Me:
    """What a worker's function gets first: who it is, and how it says how far it is."""

    rank: int
    world_size: int
    tell: Callable[[Any], None]


def load(worker: str) -> Callable[[Me, Any], Any]:
    """The function that a task names."""
    place, _, name = worker.rpartition(":")
    if place.endswith(".py"):
        specification = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert specification is not None and specification.loader is not None
        module = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    function: Callable[[Me, Any], Any] = getattr(module, name)
    return function


def _end_with_the_launcher(folder: str) -> None:
    """Whatever the main thread does, and even if the launcher was killed: leave no process and no file."""
    while os.read(0, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


class _Group:
    """The process group that is there now, if any."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.store = ""

    def join(self, task: Task) -> None:
        """Be in the group that the task wants."""
        if task.store != self.store:
            self.leave()
            distributed = calls.torch("distributed")
            store = distributed.FileStore(task.store, task.world_size)
            self.store = task.store
            distributed.init_process_group("gloo", store=store, rank=self.rank, world_size=task.world_size,
                                           timeout=FAR)  # fmt: skip

    def leave(self) -> None:
        """Be in no group."""
        if self.store:
            self.store = ""
            distributed = calls.torch("distributed")
            if distributed.is_initialized():
                distributed.destroy_process_group()


def serve(rank: int, pipe: int, folder: str, threads: int) -> None:
    """Do tasks until the launcher ends."""
    threading.Thread(target=_end_with_the_launcher, args=(folder,), daemon=True).start()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)
    connection = Connection(pipe)
    torch = calls.torch()
    calls.torch("nn.parallel")
    torch.set_num_threads(threads)
    warnings.simplefilter("ignore")
    group = _Group(rank)
    gc.freeze()  # torch's own objects stay: the collections below are then fast
    connection.send((READY, None))
    while True:
        try:
            task: Task = connection.recv()
        except (EOFError, OSError):
            return
        os.ftruncate(1, 0)
        answer: tuple[str, Any]
        try:
            function = load(task.worker)
            group.join(task)
            me = Me(rank, task.world_size, lambda value: connection.send((PROGRESS, value)))
            answer = RESULT, function(me, task.argument)
            connection.send(answer)
        except Exception as error:
            text = traceback.format_exc()
            connection.send((RAISED, (f"{type(error).__name__}: {error}", text)))
            group.leave()
        gc.collect()  # ends a Reducer, so that its module can be wrapped again


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
