"""A learner's own programs on a cluster: one generator a rank, in, and the Trace out.

    def ring_all_reduce(me):
        right, left = (me.rank + 1) % me.world_size, (me.rank - 1) % me.world_size
        for step in range(2 * (me.world_size - 1)):
            yield me.send_recv(right, nbytes // me.world_size, left)

    trace = run([ring_all_reduce] * 4, cluster)

Steps, bytes, time and memory are read off the trace like those of any other run.

Not modelled: several processes on one device; streams (use `simulator.engine` for those).
"""

import inspect
from collections.abc import Callable, Generator, Sequence
from typing import Any

from simulator.backend import PLAIN, Backend
from simulator.cluster import Cluster
from simulator.engine import Engine
from simulator.errors import LARGEST_WHOLE, InputError, number, require, whole
from simulator.model import in_words, printable
from simulator.network import Channel
from simulator.trace import Trace
from simulator.verbs import Program, busy, isend, memory, recv, send, send_recv


class Rank:
    """What one program knows: who it is, and the verbs it can yield. Messages of a pair arrive in order."""

    def __init__(self, engine: Engine, rank: int, channels: dict[tuple[int, int], Channel], backend: Backend) -> None:
        self.rank = rank
        self.world_size = len(engine.cluster.devices)
        self._engine = engine
        self._channels = channels
        self._protocol = backend.ring_protocols[-1]

    def _channel(self, source: int, target: int) -> Channel:
        for other in (source, target):
            require(isinstance(other, int) and not isinstance(other, bool), f"rank {self.rank} names rank {other!r}",
                    "a rank is a whole number", "Give an integer")  # fmt: skip
            require(0 <= other < self.world_size, f"rank {self.rank} names rank {other}",
                    f"ranks are 0 to {self.world_size - 1}", "Take it modulo world_size")  # fmt: skip
        require(source != target, f"rank {self.rank} sends to itself", "a message goes to another rank",
                "Keep the value in a variable")  # fmt: skip
        if (source, target) not in self._channels:
            self._channels[source, target] = self._engine.channel(
                source, target, "copy", bandwidth_fraction=self._protocol.bandwidth_fraction
            )
        return self._channels[source, target]

    def send(self, to: int, nbytes: int, **message: Any) -> tuple[Any, ...]:
        """Send and go on when the bytes have arrived. `message`: chunk, contributions, values."""
        return send(self._channel(self.rank, to), nbytes, extra_latency_s=self._protocol.step_s, **message)

    def isend(self, to: int, nbytes: int, **message: Any) -> tuple[Any, ...]:
        """Send and go on at once; gives back a handle for `simulator.verbs.wait`."""
        return isend(self._channel(self.rank, to), nbytes, extra_latency_s=self._protocol.step_s, **message)

    def recv(self, source: int) -> tuple[Any, ...]:
        """Wait for the next message: a value with `nbytes`, `chunk`, `contributions` and `values`."""
        return recv(self._channel(source, self.rank))

    def send_recv(self, to: int, nbytes: int, source: int, **message: Any) -> tuple[Any, ...]:
        """Send to one rank and receive from another at the same time; gives back the message."""
        return send_recv(self._channel(self.rank, to), nbytes, self._channel(source, self.rank),
                         extra_latency_s=self._protocol.step_s, **message)  # fmt: skip

    def compute(self, seconds: float, name: str = "compute", kind: str = "forward") -> tuple[Any, ...]:
        """Work for that many seconds."""
        return busy(number(seconds, f"seconds of {printable(name, 'the name of a computation')!r}"), name,
                    printable(kind, "the kind of a computation"))  # fmt: skip

    def memory(self, category: str, nbytes: int) -> tuple[Any, ...]:
        """Hold (or, negative, drop) so many bytes."""
        printable(category, "the category of memory")
        return memory(self.rank, category, whole(nbytes, f"bytes of {category!r}", minimum=-LARGEST_WHOLE))


def run(programs: Sequence[Callable[[Rank], Program]], cluster: Cluster, backend: Backend = PLAIN) -> Trace:
    """Run program i as rank i on device i.

    Raises InputError when their number is not the cluster's, or when one is not a generator function of one argument.
    """
    require(isinstance(programs, Sequence) and not isinstance(programs, str), f"programs is {in_words(programs)}",
            "a list of generator functions is needed, one a device", "Write [program] * cluster.world_size")  # fmt: skip
    require(len(programs) == cluster.world_size, f"{len(programs)} programs on {cluster.world_size} devices",
            "one program a device", "Give one for each, or use cluster.take")  # fmt: skip
    engine = Engine(cluster, compute_slowdown=backend.compute_slowdown)
    channels: dict[tuple[int, int], Channel] = {}
    for rank, program in enumerate(programs):
        engine.start(_begun(program, Rank(engine, rank, channels, backend)), name=f"rank {rank}", rank=rank, device=rank,
                     resource="program")  # fmt: skip
    return engine.run(provenance=f"programs on {cluster.name}")


def _begun(program: Callable[[Rank], Program], me: Rank) -> Program:
    """The program's generator."""
    rule = "a program is a generator function of one argument, the rank: `def program(me): yield me.compute(1.0)`"
    named = getattr(program, "__name__", None)
    given = f"program {me.rank}" + (f", {named}," if isinstance(named, str) else "")
    if isinstance(program, Generator):
        raise InputError(f"{given} is a generator that was called already: {rule}. Give the function itself.")
    if not callable(program):
        raise InputError(f"{given} is {in_words(program)}: {rule}. Give such a function.")
    try:
        inspect.signature(program).bind(me)
    except TypeError as problem:
        raise InputError(
            f"{given} cannot be called with the rank ({problem}): {rule}. Correct its arguments."
        ) from None
    except ValueError:
        pass  # a built-in without a signature
    begun = program(me)
    if not isinstance(begun, Generator):
        raise InputError(f"{given} gives {in_words(begun)} and not a generator: {rule}. Let it yield its verbs.")
    return begun
