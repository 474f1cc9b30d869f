"""What a program may say, and what it says it about: handles, pieces of work, streams, locks.

A program is a generator that yields verbs, and reads like the code that it stands for:

    def ping(engine):
        channel = engine.channel(0, 1, "copy")
        yield busy(10e-6, "launch")                   # the host thread works
        yield send(channel, 1_000_000)                # goes on when the bytes have arrived

A verb is a tuple of its code and its arguments; the functions below build and check them.

Not modelled: what the arguments cannot say: no verb depends on the values that a program computes.
"""

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from simulator.errors import number, whole

if TYPE_CHECKING:
    from simulator.network import Channel

Program = Generator[tuple[Any, ...], Any, Any]

BUSY, LAUNCH, WAIT, SEND, ISEND, RECV, SEND_RECV, SPAWN, FIRE, MEMORY = range(10)


class Handle:
    """Something that will be done: a piece of work, a program, a send, a signal."""

    __slots__ = ("cause", "done", "name", "waiters")

    def __init__(self, name: str = "signal") -> None:
        self.name = name
        self.done = False
        self.cause: int | None = None
        """Once done: the id of the span or transfer whose end made it so."""
        self.waiters: list[Actor | Work] = []


class Actor(Handle):
    """A program in progress, on a host thread or as a piece of work."""

    __slots__ = ("device", "pending", "program", "rank", "resource", "result", "span", "waits_for", "work")

    def __init__(self, program: Program, name: str, rank: int, device: int, resource: str) -> None:
        super().__init__(name)
        self.program = program
        self.rank = rank
        self.device = device
        self.resource = resource
        self.pending = 0
        """For how many things it still waits."""
        self.result: Any = None
        self.span: int | None = None
        self.work: Work | None = None
        self.waits_for: Channel | Lock | tuple[Handle, ...] = ()


class Work(Handle):
    """A piece of work for a stream: `seconds` of a device's time, or a program that runs until it returns.

    It starts when it stands first in its stream and all of `after` are done. Memory that it allocates is there from
    its start, what it frees goes at its end: pairs of category and bytes.
    """

    __slots__ = ("after", "allocates", "blockers", "bucket", "frees", "group", "id", "iteration", "kind", "lane",
                 "nbytes", "program", "rank", "rate", "remaining", "seconds", "seq", "since", "start", "stream",
                 "torch_function", "version")  # fmt: skip
    id: int
    lane: int
    start: float
    remaining: float
    since: float
    rate: float

    def __init__(self, stream: "Stream", name: str, kind: str, seconds: float = 0.0, *, program: Program | None = None,
                 after: Iterable[Handle] = (), iteration: int | None = None, bucket: int | None = None,
                 group: str | None = None, seq: int | None = None, nbytes: int | None = None,
                 allocates: Sequence[tuple[str, int]] = (), frees: Sequence[tuple[str, int]] = (),
                 torch_function: str = "", rank: int | None = None) -> None:  # fmt: skip
        super().__init__(name)
        self.stream = stream
        self.kind = kind
        self.seconds = seconds
        self.program = program
        self.after = after
        self.iteration = iteration
        self.bucket = bucket
        self.group = group
        self.seq = seq
        self.nbytes = nbytes
        self.allocates = allocates
        self.frees = frees
        self.torch_function = torch_function
        self.rank = stream.rank if rank is None else rank
        self.blockers = 0
        self.version = 0


class Stream:
    """An in-order queue of work on a device. `width` pieces may run at once (gloo's two worker threads)."""

    __slots__ = ("device", "lanes", "name", "queue", "rank")

    def __init__(self, name: str, device: int, rank: int, width: int = 1) -> None:
        self.name = name
        self.device = device
        self.rank = rank
        self.queue: deque[Work] = deque()
        self.lanes = list(range(width))
        """Lanes that are free; a piece of work takes the lowest."""


class Lock:
    """What one host thread at a time may hold; the others wait in the order in which they came."""

    __slots__ = ("holder", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: Actor | None = None
        self.waiting: deque[tuple[Actor, tuple[Any, ...]]] = deque()


def busy(seconds: float, name: str, kind: str = "host", *, lock: Lock | None = None, iteration: int | None = None,
         torch_function: str = "") -> tuple[Any, ...]:  # fmt: skip
    """The host thread works for that many seconds, holding the lock if one is given."""
    return BUSY, seconds, name, kind, lock, iteration, torch_function


def launch(work: Work) -> tuple[Any, ...]:
    """Put work at the end of its stream; gives back the work, to wait for."""
    return LAUNCH, work


def wait(*handles: Handle) -> tuple[Any, ...]:
    """Go on when all of them are done."""
    return WAIT, handles


def send(channel: "Channel", nbytes: int, *, chunk: int | None = None, contributions: int | None = None,
         values: Any = None, extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send and go on when the bytes have arrived."""
    return SEND, channel, whole(nbytes, "nbytes"), chunk, contributions, values, _latency(extra_latency_s)


def isend(channel: "Channel", nbytes: int, *, chunk: int | None = None, contributions: int | None = None,
          values: Any = None, extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send and go on at once; gives back a handle. Sends of one channel leave one after the other."""
    return ISEND, channel, whole(nbytes, "nbytes"), chunk, contributions, values, _latency(extra_latency_s)


def recv(channel: "Channel") -> tuple[Any, ...]:
    """Wait for the next message: a value with `nbytes`, `chunk`, `contributions` and `values`."""
    return RECV, channel


def send_recv(out: "Channel", nbytes: int, source: "Channel", *, chunk: int | None = None,
              contributions: int | None = None, values: Any = None,
              extra_latency_s: float = 0.0) -> tuple[Any, ...]:  # fmt: skip
    """Send to one neighbour and receive from another; go on when both are done. Gives back the message."""
    return SEND_RECV, out, whole(nbytes, "nbytes"), chunk, contributions, values, _latency(extra_latency_s), source


def spawn(program: Program, name: str, device: int, resource: str) -> tuple[Any, ...]:
    """Start another host thread; gives back its handle."""
    return SPAWN, program, name, device, resource


def fire(handle: Handle) -> tuple[Any, ...]:
    """Mark a signal as done."""
    return FIRE, handle


def memory(device: int, category: str, nbytes: int) -> tuple[Any, ...]:
    """A device gains (or loses) bytes of a category now."""
    return MEMORY, device, category, nbytes


def _latency(seconds: float) -> float:
    return number(seconds, "extra_latency_s") if seconds else 0.0
