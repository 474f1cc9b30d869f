"""Gradient buckets: which gradients DistributedDataParallel sends together, and in which order.

DDP does not all-reduce tensor by tensor (every message costs a latency) and does not wait for all of them (nothing
would overlap with the backward). It fills buckets and launches a bucket when its last gradient is ready. The rule,
`_compute_bucket_assignment_by_size`: walk over the tensors; each dtype has its own open bucket and its own place in
the list of limits; ADD the tensor, then close the bucket if its bytes reach the limit, and go on to the next limit
(the last one repeats). So no tensor is ever split, and a bucket may be far larger than the cap: the 411 MB weight of
VGG-16's first Linear travels as one message, with whatever was open when it came.

    layout              walks over                limits                              launch order
    first               order of registration     none: one bucket a dtype            reversed
    first, find_unused  order of registration     1 MiB, then 25 MiB; given cap: cap  reversed: 1 MiB comes LAST
    rebuilt             order of readiness        1 MiB, then 25 MiB; given cap: cap  as closed, then what is left open

Buckets are rebuilt once, at the start of the forward after the first synchronised backward (static_graph: after the
second), from the order in which the gradients really became ready on rank 0. So iteration 0 has one bucket and no
overlap at all; never measure it. find_unused_parameters without static_graph keeps the first layout for ever. Buckets
launch strictly by index: bucket i waits for bucket i - 1 even when it is ready earlier.

Source: torch 2.13 torch/nn/parallel/distributed.py (_BucketCapacityConfig, _ddp_init_helper) and
torch/csrc/distributed/c10d/reducer.cpp (compute_bucket_assignment_by_size, rebuild_buckets). Releases differ: until
2.3 the 1 MiB limit of the first bucket held for an explicit bucket_cap_mb too, from 2.4 on only for the default
(pytorch#121640); bucket_cap_mb_list came with 2.11. Read in the wheels of 2.0.0, 2.3.1, 2.4.0, 2.10.0, 2.11.0, 2.12.1
and 2.14.1; held against live Reducers of 2.3.1 and 2.13.0.

Not modelled: parameters on several devices in one process; delay_all_reduce_named_params; a changed
dist._DEFAULT_FIRST_BUCKET_BYTES; the Python reducer of torch.compile; bytes of a sparse gradient (they depend on the
rows that a batch touches: the dense size stands for them).
"""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.errors import InputError, number, require, whole
from simulator.model import Parameter

MIB = 1 << 20
DEFAULT_CAP_MB = 25
FIRST_BUCKET_BYTES = MIB
"""dist._DEFAULT_FIRST_BUCKET_BYTES: small, so that the first all-reduce starts early."""
NO_LIMIT = sys.maxsize
OLDEST_TORCH, NEWEST_TORCH = (2, 0), (2, 14)
EXPLICIT_CAP_FROM_FIRST_BUCKET = (2, 4)
CAP_LIST_SINCE = (2, 11)
TRAINABLE_DTYPES = ("float64", "float32", "float16", "bfloat16", "complex64")
"""Only these can require gradients."""


def torch_release(torch_version: object) -> tuple[int, int]:
    """Major and minor number of a torch version whose bucket rule is known here. Raises InputError."""
    found = re.match(r"(\d+)\.(\d+)(?![\d])", torch_version) if isinstance(torch_version, str) else None
    require(found is not None, f"torch_version = {torch_version!r}", 'a version like "2.14" or "2.13.0+cpu" is needed',
            "Give torch.__version__ as text")  # fmt: skip
    assert found is not None
    release = int(found[1]), int(found[2])
    known = f"{OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} to {NEWEST_TORCH[0]}.{NEWEST_TORCH[1]}"
    require(OLDEST_TORCH <= release <= NEWEST_TORCH, f"torch_version = {torch_version!r}",
            f"the bucket rule was checked for torch {known} only", "Give the nearest of these versions")  # fmt: skip
    return release


def _cap_bytes(cap_mb: object, name: str) -> int:
    size = int(number(cap_mb, name) * MIB)
    require(size <= NO_LIMIT, f"{name} = {cap_mb!r}", "the cap in bytes must fit 63 bits", "Use a smaller cap")
    return size


@dataclass(frozen=True)
class BucketOptions:
    """The arguments of DistributedDataParallel that shape its buckets. Raises InputError."""

    bucket_cap_mb: float | None = None
    """MiB at which a bucket closes. None is not 25: it is 1 for the first bucket and 25 for the others. With 0 every
    tensor travels alone."""
    bucket_cap_mb_list: tuple[float, ...] | None = None
    """One cap a bucket, the last repeats; bucket_cap_mb is then ignored, and the first layout uses the list too."""
    find_unused_parameters: bool = False
    static_graph: bool = False
    set_last_bucket_cap: bool = False
    """The environment variable DDP_SET_LAST_BUCKET_CAP=1: the small bucket is the last of the rebuilt ones."""
    torch_version: str = ".".join(map(str, NEWEST_TORCH))

    def __post_init__(self) -> None:
        release = torch_release(self.torch_version)
        if self.bucket_cap_mb is not None:
            _cap_bytes(self.bucket_cap_mb, "bucket_cap_mb")
        if self.bucket_cap_mb_list is not None:
            given = f"bucket_cap_mb_list = {self.bucket_cap_mb_list!r}"
            require(isinstance(self.bucket_cap_mb_list, (list, tuple)), given, "a list of caps in MiB is needed",
                    "Give one number a bucket")  # fmt: skip
            object.__setattr__(self, "bucket_cap_mb_list", tuple(self.bucket_cap_mb_list))
            for position, cap in enumerate(self.bucket_cap_mb_list):
                _cap_bytes(cap, f"bucket_cap_mb_list[{position}]")
            require(release >= CAP_LIST_SINCE, f"{given} with torch {self.torch_version}",
                    "torch has bucket_cap_mb_list since 2.11", "Leave it out, or choose a newer version")  # fmt: skip
        for name in ("find_unused_parameters", "static_graph", "set_last_bucket_cap"):
            value = getattr(self, name)
            require(isinstance(value, bool), f"{name} = {value!r}", "it is True or False", f"Change {name}")

    @property
    def rebuilt_limits(self) -> tuple[int, ...]:
        """Bytes at which the rebuilt buckets close; the last value repeats."""
        if self.bucket_cap_mb_list:
            return tuple(_cap_bytes(cap, "bucket_cap_mb_list") for cap in self.bucket_cap_mb_list)
        cap = _cap_bytes(DEFAULT_CAP_MB if self.bucket_cap_mb is None else self.bucket_cap_mb, "bucket_cap_mb")
        explicit = self.bucket_cap_mb is not None
        if explicit and torch_release(self.torch_version) >= EXPLICIT_CAP_FROM_FIRST_BUCKET:
            return (cap,)
        return FIRST_BUCKET_BYTES, cap

    @property
    def first_limits(self) -> tuple[int, ...]:
        """Bytes at which the buckets of the constructor close."""
        buckets_from_start = self.find_unused_parameters and not self.static_graph
        return self.rebuilt_limits if self.bucket_cap_mb_list or buckets_from_start else (NO_LIMIT,)


@dataclass(frozen=True)
class Bucket:
    """One all-reduce of gradients."""

    index: int
    """Its place in the order of launches."""
    dtype: str
    parameters: tuple[str, ...]
    """Names, in the order in which the gradients lie in the flat bucket."""
    nbytes: int
    sparse: bool = False
    """Holds one sparse gradient and nothing else."""


def assign_buckets(
    parameters: Sequence[Parameter], limits: Sequence[int], *, in_ready_order: bool = False
) -> tuple[tuple[Parameter, ...], ...]:
    """torch's `_compute_bucket_assignment_by_size` over the parameters in the order given.

    What stays open at the end follows. Then the buckets are sorted by their earliest parameter, unless the order
    given is already that of readiness (torch: `tensor_indices` is not empty).
    """
    require(bool(limits), "limits = ()", "at least one limit is needed", "Give the bytes at which a bucket closes")
    place = {id(parameter): position for position, parameter in enumerate(parameters)}
    open_buckets: dict[str, list[Parameter]] = {}
    open_bytes: dict[str, int] = {}
    cursor: dict[str, int] = {}
    result: list[tuple[Parameter, ...]] = []
    for parameter in parameters:
        if parameter.sparse:
            result.append((parameter,))
            continue
        dtype = parameter.dtype
        open_buckets.setdefault(dtype, []).append(parameter)
        open_bytes[dtype] = open_bytes.get(dtype, 0) + parameter.nbytes
        at = cursor.setdefault(dtype, 0)
        if open_bytes[dtype] >= limits[at]:
            result.append(tuple(open_buckets[dtype]))
            open_buckets[dtype], open_bytes[dtype] = [], 0
            cursor[dtype] = min(at + 1, len(limits) - 1)
    # torch walks a std::unordered_map here. libstdc++ puts a new key first, so the dtype met last comes out first.
    # (Two keys in one hash slot would stay together: for the trainable dtypes that happens neither on the CPU nor
    # on cuda:0, and rank 0 decides for all.)
    result.extend(tuple(bucket) for bucket in reversed(open_buckets.values()) if bucket)
    if not in_ready_order:
        result.sort(key=lambda bucket: place[id(bucket[0])])
    return tuple(result)


def rebuild_iteration(options: BucketOptions, synchronised: Sequence[bool] = ()) -> int | None:
    """The iteration at whose start the buckets are rebuilt; None if never.

    synchronised says of each iteration whether its backward synchronises (False: its forward ran under no_sync);
    iterations beyond its end do. Raises InputError.
    """
    require(not (options.static_graph and any(not synchronises for synchronises in synchronised[:1])),
            "static_graph with iteration 0 under no_sync", "its first backward must synchronise (torch stops with an "
            "internal error)", "Synchronise iteration 0, or leave static_graph out")  # fmt: skip
    if options.find_unused_parameters and not options.static_graph:
        return None
    needed = 2 if options.static_graph else 1
    done = [iteration for iteration, synchronises in enumerate(synchronised) if synchronises][:needed]
    return done[-1] + 1 if len(done) == needed else len(synchronised) + needed - len(done)


def trained(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """What DDP's Reducer gets: each tensor that requires a gradient once. Raises InputError if there is none."""
    result = tuple(p for p in parameters if p.requires_grad and p.tied_to is None)
    require(bool(result), f"none of {len(parameters)} parameters is trained",
            "DistributedDataParallel needs a parameter that requires a gradient (torch raises RuntimeError)",
            "Set requires_grad on at least one")  # fmt: skip
    for parameter in result:
        given = f"parameter {parameter.name!r} of dtype {parameter.dtype}"
        rule = "only floating point and complex tensors can require gradients"
        require(parameter.dtype in TRAINABLE_DTYPES, given, rule, "Set requires_grad to false")
    return result


def in_ready_order(parameters: Sequence[Parameter], ready_order: Sequence[str] | None) -> tuple[Parameter, ...]:
    """The parameters as their gradients become ready; without a recorded order, registration reversed."""
    if ready_order is None:
        return tuple(reversed(parameters))
    by_name = {parameter.name: parameter for parameter in parameters}
    if len(ready_order) != len(by_name) or set(ready_order) != set(by_name):
        repeated = [name for name, times in Counter(ready_order).items() if times > 1]
        odd = sorted(set(by_name).symmetric_difference(ready_order)) or repeated
        raise InputError(
            f"ready_order misses, repeats or invents {', '.join(map(repr, odd[:3]))}: it must list every trained "
            "parameter exactly once. Record it again, or leave it out to use the reverse order of registration."
        )
    return tuple(by_name[name] for name in ready_order)


def buckets_at(
    parameters: Sequence[Parameter],
    ready_order: Sequence[str] | None,
    options: BucketOptions,
    iteration: int,
    synchronised: Sequence[bool] = (),
) -> tuple[Bucket, ...]:
    """The buckets of an iteration (counted from 0) in launch order. Raises InputError.

    ready_order: names as the gradients become ready on rank 0 in the backward before the rebuild. The unused
    parameters of a static graph come last, in order of registration. What a bucket holds does not depend on whether
    the iteration synchronises; nothing is launched if it does not.
    """
    whole(iteration, "iteration")
    tensors = trained(parameters)
    ready = in_ready_order(tensors, ready_order)
    rebuilt_at = rebuild_iteration(options, synchronised)
    if rebuilt_at is None or iteration < rebuilt_at:
        # Layers are taken to be used as they are registered: then the last ones are ready first.
        groups = assign_buckets(tensors, options.first_limits)[::-1]
    elif options.set_last_bucket_cap:
        groups = assign_buckets(ready[::-1], options.rebuilt_limits, in_ready_order=True)[::-1]
    else:
        groups = assign_buckets(ready, options.rebuilt_limits, in_ready_order=True)
    return tuple(
        Bucket(index, group[0].dtype, tuple(p.name for p in group), sum(p.nbytes for p in group), group[0].sparse)
        for index, group in enumerate(groups)
    )
