"""Two gloo processes that wrap modules in DistributedDataParallel and report the buckets that the Reducer launched.

They are started once and get one task after another: starting torch takes seconds, a task milliseconds. Whatever goes
wrong (an error on one rank only, no answer in time), both processes are ended and the next task starts a new pair.
This module imports torch only inside the processes.
"""

import gc
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from simulator.buckets import Bucket
from simulator.model import Parameter

LOOPBACK = {"linux": "lo", "darwin": "lo0"}


@dataclass(frozen=True)
class Task:
    """What both ranks do: build a module, wrap it, train it for some iterations."""

    model: str | tuple[Parameter, ...]
    """A name of real_models.MODELS, or the parameters of a module to make up."""
    ddp: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of DistributedDataParallel."""
    iterations: int = 4
    set_last_bucket_cap: bool = False
    no_sync: tuple[int, ...] = ()
    """Iterations whose forward and backward run under no_sync."""
    uses: tuple[tuple[str, ...], ...] = ()
    """Made up modules: for each rank the parameters that its forward uses, in that order. Empty: as registered."""
    reduce: bool = False
    """Whether the hook all-reduces (it need not: who launches what, and when, is the same)."""


@dataclass(frozen=True)
class Recording:
    """What one rank saw."""

    parameters: tuple[Parameter, ...]
    launches: tuple[tuple[Bucket, ...], ...]
    """Per iteration the buckets in the order in which the Reducer handed them to the communication hook."""
    ready: tuple[tuple[str, ...], ...]
    """Per iteration the trained parameters in the order in which their gradients became ready."""


class TaskError(RuntimeError):
    """Both ranks raised: the text is rank 0's traceback."""


class ReducerPair:
    """The two processes. A context manager; `run` gives the recordings of rank 0 and rank 1."""

    def __init__(self, folder: Path, timeout_s: float = 120.0) -> None:
        self.folder = folder
        self.timeout_s = timeout_s
        self._running: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []

    def __enter__(self) -> "ReducerPair":
        return self

    def __exit__(self, *_: object) -> None:
        for _process, connection in self._running:
            connection.close()  # the process ends at the end of file
        for process, _connection in self._running:
            process.join(timeout=5)
        self._end()

    def _end(self) -> None:
        for process, connection in self._running:
            if process.is_alive():
                process.kill()
            process.join(timeout=10)
            connection.close()
        self._running = []

    def _start(self) -> None:
        store = tempfile.mktemp(dir=self.folder, prefix="store-")
        context = multiprocessing.get_context("spawn")
        for rank in range(2):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, store, there), daemon=True)
            process.start()
            there.close()
            self._running.append((process, here))

    def run(self, task: Task) -> tuple[Recording, Recording]:
        """Do the task on both ranks. Raises TaskError when both raised, TimeoutError when one gave no answer."""
        if not self._running:
            self._start()
        try:
            deadline = time.monotonic() + self.timeout_s
            for _process, connection in self._running:
                connection.send(task)
            answers = [_receive(connection, deadline) for _process, connection in self._running]
            if any(isinstance(answer, Recording) for answer in answers) != all(
                isinstance(answer, Recording) for answer in answers
            ):
                raise RuntimeError(f"only one rank raised: {answers}")
        except BaseException:
            self._end()
            raise
        if not isinstance(answers[0], Recording):
            raise TaskError(answers[0])
        return answers[0], answers[1]


def _receive(connection: Connection, deadline: float) -> Any:
    if not connection.poll(max(0.0, deadline - time.monotonic())):
        raise TimeoutError("a rank gave no answer: the other one may have raised, or it waits for a collective")
    return connection.recv()


def _serve(rank: int, store: str, connection: Connection) -> None:
    """What a process does: one task after another, until the other end of the pipe is closed."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", LOOPBACK.get(sys.platform, ""))
    from datetime import timedelta

    import torch
    from torch import distributed

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    modules: dict[str, Any] = {}
    gc.freeze()  # torch's own objects stay: the collections below are then fast
    while True:
        try:
            task: Task = connection.recv()
        except (EOFError, OSError):
            break
        try:
            answer: Any = _record(task, rank, modules)
        except Exception:
            answer = traceback.format_exc()
        gc.collect()  # ends the Reducer, so that the module can be wrapped again
        connection.send(answer)
    distributed.destroy_process_group()


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _record(task: Task, rank: int, modules: dict[str, Any]) -> Recording:
    from contextlib import nullcontext

    from torch.nn.parallel import DistributedDataParallel

    from tests.against_torch import made_up, real_models

    if isinstance(task.model, str):
        if task.model not in modules:
            modules.clear()  # one large model at a time
            modules[task.model] = real_models.build(task.model)
        module, inputs = modules[task.model]
    else:
        module, inputs = made_up.made_up(task.model, task.uses[rank] if task.uses else None), ()
    parameters = made_up.parameter_table(module)
    unique = [parameter.name for parameter in parameters if parameter.tied_to is None]
    names = {id(tensor): name for tensor, name in zip(module.parameters(), unique, strict=True)}
    launches: list[list[Bucket]] = []
    ready: list[list[str]] = []
    handles = [
        p.register_post_accumulate_grad_hook(lambda p: ready[-1].append(names[id(p)]))
        for p in module.parameters()
        if p.requires_grad
    ]
    try:
        with _environment("DDP_SET_LAST_BUCKET_CAP", "1" if task.set_last_bucket_cap else "0"):
            ddp = DistributedDataParallel(module, **task.ddp)
            ddp.register_comm_hook(None, _logging_hook(launches, names, task.reduce))
            for iteration in range(task.iterations):
                launches.append([])
                ready.append([])
                with ddp.no_sync() if iteration in task.no_sync else nullcontext():
                    ddp(*inputs).float().sum().backward()
                module.zero_grad(set_to_none=True)
    finally:
        for handle in handles:
            handle.remove()
        module.zero_grad(set_to_none=True)
    return Recording(parameters, tuple(map(tuple, launches)), tuple(map(tuple, ready)))


def _logging_hook(launches: list[list[Bucket]], names: dict[int, str], reduce: bool) -> Any:
    """A communication hook that writes down the bucket."""
    import torch
    from torch import distributed

    def hook(_state: None, bucket: Any) -> Any:
        flat = bucket.buffer()
        held = tuple(names[id(p)] for p in bucket.parameters())
        dtype = str(flat.dtype).removeprefix("torch.")
        launches[-1].append(Bucket(bucket.index(), dtype, held, flat.numel() * flat.element_size(), flat.is_sparse))
        if reduce:
            work = distributed.all_reduce(flat, async_op=True)
            return work.get_future().then(lambda future: future.value()[0])
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(flat)
        return done

    # The Reducer accepts a hook only with torch's own annotations, and those need torch at the time of definition.
    hook.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook
