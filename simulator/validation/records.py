"""What goes to the real ranks, and what comes back from them: plain data, so that it imports no torch.

Not modelled: nothing.
"""

from dataclasses import dataclass, field
from typing import Any

Gradients = dict[str, bytes | None]
"""For each parameter the bytes of its gradient; None where there is none."""


@dataclass(frozen=True)
class RingCase:
    """One tensor to reduce: a name of torch's dtype, elements on every rank, where the random numbers begin."""

    dtype: str
    elements: int
    seed: int = 0


@dataclass(frozen=True)
class RingStep:
    """What one rank did in one step; arrays as bytes."""

    sent_chunk: int
    sent: bytes
    received_chunk: int
    held: bytes
    """What it holds of the received chunk afterwards."""


@dataclass(frozen=True)
class RingRecord:
    """One case on one rank."""

    case: RingCase
    own: bytes
    """What it began with."""
    steps: tuple[RingStep, ...]
    result: bytes
    all_reduce: bytes
    """The result of dist.all_reduce on the same tensor."""


@dataclass(frozen=True)
class DdpCase:
    """One module under one set of options."""

    name: str
    module: str
    ddp: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments of DistributedDataParallel."""
    world_size: int = 2
    iterations: int = 4


@dataclass(frozen=True)
class Launch:
    """One bucket that the Reducer handed to the hook."""

    index: int
    dtype: str
    parameters: tuple[str, ...]
    nbytes: int


@dataclass
class DdpRecord:
    """One case on one rank."""

    torch_version: str
    facts: str
    """The module's ModelFacts as JSON."""
    calls: list[list[tuple[str, int]]] = field(default_factory=list)
    """Of the constructor, then of each iteration: the collectives and their bytes in order."""
    launches: list[list[Launch]] = field(default_factory=list)
    """Of each iteration."""
    ready: list[list[str]] = field(default_factory=list)
    """Of each iteration the parameters in the order in which their gradients became ready."""
    logged: dict[str, str] = field(default_factory=dict)
    """What the Reducer's own log says of its buckets."""
    own: list[Gradients] = field(default_factory=list)
    """Of each iteration this rank's gradients without DDP."""
    reduced: list[Gradients] = field(default_factory=list)
    """Of each iteration the gradients that DDP left."""
    parameters: list[str] = field(default_factory=list)
    """A digest of all parameters after the constructor and after each step."""


@dataclass(frozen=True)
class DpCase:
    """So many rows on so many devices."""

    rows: int
    devices: int


@dataclass(frozen=True)
class DpRecord:
    """What came out of one case."""

    rows: tuple[int, ...]
    """Of each device that got any."""
    whole: tuple[tuple[bytes, bytes], ...]
    """For each parameter DataParallel's and one device's gradient, of whole numbers, under a sum."""
    rounding: tuple[float, ...]
    """For each parameter the difference between them, of real numbers, under a mean, in units of what rounding may do."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    widths: tuple[int, ...]
    """Of the model's Linear layers, ReLU between them."""
    rows: int
    caps_mb: tuple[float, ...]
    """DDP's bucket caps in MiB; none of their steps is used to calibrate."""
    sizes: tuple[int, ...]
    """Bytes of the all-reduces that calibrate."""
    held_out: tuple[int, ...]
    """Bytes of those that are to be predicted."""
    rounds: int
    steps: int
    """Of each kind in a round."""


@dataclass
class Round:
    """Seconds on one rank, each the mean over a block of repeats without a pause."""

    barrier: float = 0.0
    """Is in all that does not wait for the other rank by itself, once a repeat."""
    all_reduce: dict[int, float] = field(default_factory=dict)
    layers: list[float] = field(default_factory=list)
    """Each layer's forward, each layer's backward, the loss."""
    compute: float = 0.0
    """Forward, loss and backward without DDP, and a barrier."""
    optimizer: float = 0.0
    """The optimizer's step, and a barrier."""
    copies: float = 0.0
    """All gradients into flat memory and back, and a barrier."""
    reduce: float = 0.0
    """An all-reduce of all gradients' bytes."""
    both: float = 0.0
    """Compute with that all-reduce beside it, until both have ended."""
    ddp: dict[float, float] = field(default_factory=dict)
    """For each cap a whole step."""


@dataclass
class TimesRecord:
    """What one rank measured."""

    torch_version: str
    facts: str
    """The model's ModelFacts as JSON."""
    rounds: list[Round] = field(default_factory=list)


@dataclass(frozen=True)
class Run:
    """What to train, with hooks that note the time."""

    widths: tuple[int, ...]
    """Of the Linear layers, ReLU between them."""
    rows: int
    ddp: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments of DistributedDataParallel."""
    iterations: int = 5
    module: str = ""
    """A module of `modules.BUILDERS` instead."""


@dataclass
class BucketTimes:
    """One bucket of one step."""

    index: int
    nbytes: int
    parameters: tuple[str, ...]
    ready: float
    reduced: float = 0.0


@dataclass
class Step:
    """Moments of one iteration on one rank, in seconds of the machine's clock."""

    begin: float
    layers: list[tuple[str, float]] = field(default_factory=list)
    """Name, and when its forward began."""
    forward_end: float = 0.0
    backward_begin: float = 0.0
    backwards: list[tuple[int, float]] = field(default_factory=list)
    """Layer, and when its backward began."""
    ready: dict[str, float] = field(default_factory=dict)
    """Parameter, and when its gradient was ready."""
    buckets: list[BucketTimes] = field(default_factory=list)
    backward_end: float = 0.0
    end: float = 0.0
