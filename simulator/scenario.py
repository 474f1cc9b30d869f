"""The whole question as one frozen value: what is trained, on what, by which library, with which strategy.

Names and defaults of the options are torch's own. Equal scenarios give equal traces. Batches: `batch_per_device`
is what each rank of DistributedDataParallel gets, and DataParallel gets `world_size` times as many rows; with
`global_batch` both get that many rows in all (DataParallel by the chunk rule, each rank of DistributedDataParallel
every world_size-th row). Most people trip over this once.

Not modelled: data loading, gradient accumulation, mixed precision's casts.
"""

from dataclasses import dataclass, field
from functools import cached_property

from simulator.backend import Backend
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster
from simulator.errors import InputError, number, require, unknown, whole
from simulator.model import ModelProfile

TRANSPORTS = ("nccl", "peer_copy")
INPUT_PLACES = ("device", "host")


@dataclass(frozen=True)
class DataParallel:
    """torch.nn.DataParallel: one process, a thread a replica, GPU 0 gives parameters and takes gradients.

    `transport` "nccl": one broadcast or reduce a piece, in sequence, as today's Linux wheels do (read in source, not
    run on several GPUs); "peer_copy": N - 1 copies through device 0, one at a time.
    """

    transport: str = "nccl"
    output_device: int = 0
    loss_inside: bool = False
    """The module computes its loss, so that one number a replica is gathered instead of all outputs."""

    def __post_init__(self) -> None:
        if self.transport not in TRANSPORTS:
            raise unknown("transport", self.transport, TRANSPORTS)
        whole(self.output_device, "output_device")

    @property
    def name(self) -> str:
        """The class's name in torch."""
        return "DataParallel"


@dataclass(frozen=True)
class DistributedDataParallel:
    """torch.nn.parallel.DistributedDataParallel: one process a device, bucketed all-reduce during the backward."""

    buckets: BucketOptions = BucketOptions()
    gradient_as_bucket_view: bool = False
    forward_sync_buffers: bool = True

    @property
    def name(self) -> str:
        """The class's name in torch."""
        return "DistributedDataParallel"


@dataclass(frozen=True)
class SingleDevice:
    """No wrapper at all: the module on device 0."""

    @property
    def name(self) -> str:
        """What tables call it."""
        return "SingleDevice"


Strategy = DataParallel | DistributedDataParallel | SingleDevice


@dataclass(frozen=True)
class Optimizer:
    """Passes over the parameters: how many bytes one step moves and keeps, per parameter byte."""

    name: str = "sgd"
    state_copies: int = 0
    moved_copies: int = 3
    """Reads and writes: SGD reads p and g, writes p; momentum reads and writes one more; Adam two more."""

    def __post_init__(self) -> None:
        whole(self.state_copies, "state_copies")
        whole(self.moved_copies, "moved_copies")


OPTIMIZERS = {
    "none": Optimizer("none", 0, 0),
    "sgd": Optimizer("sgd", 0, 3),
    "momentum": Optimizer("momentum", 1, 5),
    "adam": Optimizer("adam", 2, 7),
}


@dataclass(frozen=True)
class Host:
    """What the Python side costs, per machine. Fitted on published rows; each preset says which."""

    forward_s: float = 0.0
    """DataParallel: host seconds of a forward besides its tensors: threads, the calls of scatter and gather."""
    replicate_tensor_s: float = 0.0
    """DataParallel: host seconds per parameter or buffer tensor to broadcast, once a forward, however many replicas."""
    replicate_copy_s: float = 0.0
    """DataParallel: host seconds per tensor and replica (device 0 has one too) to build the replicas' modules."""
    reduce_tensor_s: float = 0.0
    """DataParallel: host seconds per gradient tensor and replica in the backward (autograd and reduce)."""
    backward_contention: float = 0.0
    """By which fraction each further replica's backward thread slows the others' launches (no GIL, one allocator)."""
    hook_s: float = 0.0
    """DistributedDataParallel: host seconds per gradient for its hook."""
    bucket_kernel_s: float = 0.0
    """DistributedDataParallel: device seconds per gradient for the two small kernels that copy it in and out of its
    bucket, whatever its bytes. The copy in pays one half, the copy back the other."""
    step_s: float = 0.0
    """Seconds of the training loop around forward and backward, both strategies and one device."""
    device_memory_bytes_per_s: float = 800e9
    """What a copy on the device reaches, read plus write: bucket copies and the optimizer."""
    context_bytes: int = 0
    """CUDA context and library buffers: seen by nvidia-smi, not by torch.cuda.memory_allocated."""
    source: str = ""

    def __post_init__(self) -> None:
        for name in ("forward_s", "replicate_tensor_s", "replicate_copy_s", "reduce_tensor_s", "backward_contention",
                     "hook_s", "bucket_kernel_s", "step_s"):  # fmt: skip
            number(getattr(self, name), name)
        number(self.device_memory_bytes_per_s, "device_memory_bytes_per_s", exclusive=True)
        whole(self.context_bytes, "context_bytes")


@dataclass(frozen=True)
class Scenario:
    """Everything `simulate` needs. Raises InputError when the parts do not fit together."""

    model: ModelProfile
    cluster: Cluster
    strategy: Strategy
    backend: Backend = Backend()
    batch_per_device: int = 32
    global_batch: int | None = None
    optimizer: Optimizer = OPTIMIZERS["momentum"]
    host: Host = Host()
    inputs: str = "device"
    """Where a batch lies when the step begins: on the device already, or in host memory and copied inside the step."""
    iterations: tuple[int, ...] = (3,)
    """Which iterations to run, one after the other. 3 is steady for every option; 0 has one bucket."""
    set_to_none: bool = True
    """zero_grad's argument. False (the default before torch 2.0) keeps the gradients' memory from step to step."""
    construction: bool = False
    """Whether the trace begins with DistributedDataParallel's constructor: its checks and rank 0's broadcast."""
    speed: tuple[float, ...] = field(default=())
    """Relative speed of each device; a straggler has less than 1. Empty: all 1."""

    def __post_init__(self) -> None:
        require(isinstance(self.strategy, Strategy), f"strategy {self.strategy!r}", "it must be one of the classes here",
                "Use DataParallel(), DistributedDataParallel() or SingleDevice()")  # fmt: skip
        whole(self.batch_per_device, "batch_per_device", minimum=1)
        if self.global_batch is not None:
            whole(self.global_batch, "global_batch", minimum=1)
        if self.inputs not in INPUT_PLACES:
            raise unknown("inputs", self.inputs, INPUT_PLACES)
        given = f"iterations {self.iterations!r}"
        require(isinstance(self.iterations, tuple) and bool(self.iterations), given, "a tuple of at least one is needed",
                "Give (0, 1, 2), say")  # fmt: skip
        for iteration in self.iterations:
            whole(iteration, "iteration")
        require(list(self.iterations) == sorted(set(self.iterations)), given, "they stand in rising order",
                "Give (0, 1, 2), say")  # fmt: skip
        if self.speed:
            require(len(self.speed) == self.cluster.world_size, f"{len(self.speed)} speeds for "
                    f"{self.cluster.world_size} devices", "one a device is needed", "Give one number a device")  # fmt: skip
            for value in self.speed:
                number(value, "speed", exclusive=True)
        if self.backend.algorithm == "nvls" and not self.cluster.multicast and self.world_size > 1:
            raise InputError(f"algorithm 'nvls' on {self.cluster.name}: its switch does not add or multicast. "
                             "Use an NVSwitch of the third generation or later (8xH100), or 'auto'.")  # fmt: skip
        if isinstance(self.strategy, DataParallel):
            require(self.strategy.output_device < self.cluster.world_size,
                    f"output_device {self.strategy.output_device}", f"the cluster has {self.cluster.world_size} devices",
                    "Use one of them")  # fmt: skip
            obstacle = data_parallel_obstacle(self.cluster)
            if obstacle:
                raise InputError(f"DataParallel on {self.cluster.name}: {obstacle}. Use GPUs of one node, or "
                                 "DistributedDataParallel.")  # fmt: skip
        elif isinstance(self.strategy, SingleDevice):
            require(self.world_size == 1, f"SingleDevice on {self.world_size} devices", "it uses one",
                    "Use cluster.take(1)")  # fmt: skip
        elif min(self.rows) == 0:
            raise InputError(
                f"global_batch {self.global_batch} on {self.cluster.world_size} ranks leaves a rank without a sample. "
                f"DistributedDataParallel needs one each. Use {self.cluster.world_size} or more."
            )

    @property
    def world_size(self) -> int:
        """Number of devices."""
        return self.cluster.world_size

    @cached_property
    def gradient_bytes_of(self) -> dict[str, int]:
        """Bytes of each trained parameter's gradient."""
        return {parameter.name: parameter.nbytes for parameter in self.model.trained_parameters}

    @property
    def total_rows(self) -> int:
        """Rows of the global batch."""
        return self.batch_per_device * self.world_size if self.global_batch is None else self.global_batch

    @property
    def rows(self) -> tuple[int, ...]:
        """Rows on each device. DataParallel: torch.chunk's rule, which can leave devices idle."""
        total, n = self.total_rows, self.world_size
        if isinstance(self.strategy, DataParallel):
            return chunk_rows(total, n)
        return tuple(total // n + (rank < total % n) for rank in range(n))


def data_parallel_obstacle(cluster: Cluster) -> str | None:
    """Why torch.nn.DataParallel cannot use this cluster's devices; None if it can."""
    if cluster.nodes > 1:
        return f"it is one process and sees one machine, here are {cluster.nodes} nodes"
    if cluster.world_size > 1 and any(device.kind == "CPU" for device in cluster.devices):
        return "without GPUs it has no device_ids and calls the module as it is"
    return None


def chunk_rows(rows: int, devices: int) -> tuple[int, ...]:
    """torch.chunk: pieces of ceil(rows / devices), the last one smaller, none for the devices that are left."""
    size = -(-rows // devices)
    return tuple(max(0, min(size, rows - index * size)) for index in range(devices))
