"""What the launcher's tests let real ranks do. A script file: it is loaded by its path."""

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from torch import distributed, ones


def summed(me: Any, value: Any) -> Any:
    """Everyone's rank, summed over the ranks, and what was given."""
    tensor = ones(2) * me.rank
    distributed.all_reduce(tensor)
    return me.rank, tensor.tolist(), value


def group(me: Any, _: Any) -> Any:
    """Which process group this is, and how far a counter in it has come."""
    store = distributed.distributed_c10d._get_default_store()
    return os.getpid(), store.add("calls", 1)


def chatters(me: Any, _: Any) -> int:
    """More output than a pipe would hold."""
    for _ in range(2000):
        print("x" * 1000)
    return 2000


def listens(me: Any, _: Any) -> list[int]:
    """The TCP ports on which this process listens (Linux)."""
    distributed.barrier()
    inodes = {os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if _is_link(fd)}
    ports = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
            ports.append(int(fields[1].split(":")[1], 16))
    return ports


def _is_link(fd: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{fd}")


def tells(me: Any, count: int) -> str:
    """Progress, then an answer."""
    for number in range(count):
        me.tell(number)
    return "done"


def raises(me: Any, rank: int | None) -> None:
    """One rank raises (or all, for None), the others wait for it."""
    if rank is None or me.rank == rank:
        raise ValueError(f"rank {me.rank} cannot")
    distributed.barrier()


def dies(me: Any, rank: int) -> None:
    """One rank is killed, the others wait for it."""
    if me.rank == rank:
        print("the last words", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    distributed.barrier()


def exits(me: Any, status: int) -> None:
    """Rank 0 starts a child and leaves without a word."""
    if me.rank == 0:
        me.tell(subprocess.Popen(["sleep", "1000"]).pid)
        os._exit(status)
    distributed.barrier()


def hangs(me: Any, _: Any) -> None:
    """Rank 1 sleeps, the others wait for it."""
    me.tell(os.getpid())
    if me.rank == 1:
        time.sleep(1000)
    distributed.barrier()


def starts_a_child(me: Any, _: Any) -> None:
    """A grandchild of the launcher, which would go on by itself."""
    child = subprocess.Popen(["sleep", "1000"])
    me.tell(child.pid)
    time.sleep(1000)


def environment(me: Any, names: list[str]) -> list[str | None]:
    """What this process sees of these variables."""
    return [os.environ.get(name) for name in names]


def unpicklable(me: Any, _: Any) -> Any:
    """Something that no pipe can carry."""
    return lambda: None
