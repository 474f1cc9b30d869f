"""What a kind of device and the computer around it cost: peak rates, and the seconds of the Python side.

A kernel's seconds come from the rates (`roofline`, scaled in `models` until a published step is met). The host's
seconds are these: a launch in the forward is paid once a kernel (Python runs the modules), in the backward once a
parameter tensor (C++ runs the graph; what grows there is the number of gradients), and what DataParallel does in
Python is paid per tensor and per replica. A step of a small batch on a fast device is nothing else: about 0.2 ms a
parameter tensor on every machine that published one.

Sources: peak rates and memory bandwidths, the vendors' data sheets (dense, without sparsity). A100 and 2080 Ti: fitted
on ryujaehun/pytorch-gpu-benchmark (MIT), a DGX A100 with PyTorch 1.7 and a 4 x RTX 2080 Ti box with PyTorch 1.4. The
even of its 32 torchvision models (sorted names) fixed the launches, at 1 device, and DataParallel's costs, at 2 and 4;
the odd models and 3 devices are predicted (tests/test_published_data_parallel.py prints the errors). On the 2080 Ti box
a forward of DataParallel costs 10 ms whatever the model, which only the fit says. Other kinds have no such table and
take the DGX A100's, with the newer PyTorch: it agrees better with a DGX Station of 4 V100, whose DataParallel takes 25,
33 and 40 ms at 16 images for a model that is not named (a ResNet-18: 30, 37 and 44; with the 2080 Ti box's, 37 to 49).

Not modelled: hosts of unequal speed, clocks that change with load, other work on the host.
"""

from dataclasses import dataclass, field, replace

from simulator.cluster import Cluster
from simulator.errors import unknown
from simulator.scenario import Host

PRECISIONS = ("fp32", "tf32", "amp", "bf16")
"""fp32 is torch's default: on A100, H100 and 4090 convolutions run in TF32 and matrix products in fp32."""
MIB = 1 << 20
COPY_REACH = 0.8
"""Part of the vendor's memory bandwidth that a copy kernel reaches; an estimate, the usual one."""
CONTEXT_BYTES = 425 * MIB
"""A CUDA context with its libraries: 300 to 1387 MiB in reports (leggedrobotics/rsl_rl#231: about 425 an L40)."""


@dataclass(frozen=True)
class Machine:
    """One kind of device and its host."""

    kind: str
    peak_flops_per_s: dict[str, float] = field(hash=False)
    """By precision of PRECISIONS; one that a device lacks is not there."""
    memory_bytes_per_s: float = 0.0
    host: Host = field(default_factory=Host)
    forward_launch_s: float = 0.0
    """Host seconds per kernel of the forward."""
    backward_launch_s: float = 0.0
    """Host seconds per parameter tensor in the backward."""
    source: str = ""
    known: bool = True
    """False: nothing is known of this device; its host costs nothing. Show `source`."""

    @property
    def context_bytes(self) -> int:
        """CUDA context and library buffers."""
        return self.host.context_bytes


def _machine(kind: str, peaks: dict[str, float], memory: float, host: Host, launches: tuple[float, float], source: str,
             *, context_bytes: int = CONTEXT_BYTES) -> Machine:  # fmt: skip
    reach = COPY_REACH * memory
    host = replace(host, device_memory_bytes_per_s=reach, context_bytes=context_bytes, source=source)
    return Machine(kind, peaks, memory, host, *launches, source)


REPLICATE_TENSOR_S = 10e-6
"""3000 tensors of 3500 floats take 34 ms to broadcast as a list and 4 ms as one (pytorch/pytorch#3930)."""
HOOK_S = 10e-6
"""A DDP hook: some bookkeeping and one kernel launch. An estimate; no published row fixes it."""
BUCKET_KERNEL_S = 16e-6
"""ResNet-50 on one V100: 97 ms alone, 100 ms in DDP's wrapper, where nothing is sent (pytorch/pytorch
benchmarks/distributed/ddp/README.md, torch 1.4); less the copies' bytes, over its 161 gradients."""
_DGX_A100 = Host(forward_s=3.3e-3, replicate_tensor_s=REPLICATE_TENSOR_S, replicate_copy_s=12.8e-6,
                 reduce_tensor_s=15.5e-6, hook_s=HOOK_S,
                 bucket_kernel_s=BUCKET_KERNEL_S)  # fmt: skip
_DGX_A100_LAUNCHES = 55e-6, 130e-6
_BOX_2080TI = Host(forward_s=10.1e-3, replicate_tensor_s=REPLICATE_TENSOR_S, replicate_copy_s=8.5e-6,
                   reduce_tensor_s=0.9e-6, backward_contention=0.16, hook_s=HOOK_S,
                 bucket_kernel_s=BUCKET_KERNEL_S)  # fmt: skip
_BOX_2080TI_LAUNCHES = 45e-6, 165e-6

MACHINES: dict[str, Machine] = {machine.kind: machine for machine in (
    _machine("V100", {"fp32": 15.7e12, "amp": 125e12}, 900e9, _DGX_A100, _DGX_A100_LAUNCHES,
             "V100 SXM2 16 GB; host constants of the DGX A100"),
    _machine("A100", {"fp32": 19.5e12, "tf32": 156e12, "amp": 312e12, "bf16": 312e12}, 1555e9, _DGX_A100,
             _DGX_A100_LAUNCHES, "A100 SXM4 40 GB; host constants fitted on a DGX A100, PyTorch 1.7"),
    _machine("H100", {"fp32": 66.9e12, "tf32": 494.7e12, "amp": 989.4e12, "bf16": 989.4e12}, 3350e9, _DGX_A100,
             _DGX_A100_LAUNCHES, "H100 SXM 80 GB; host constants of the DGX A100"),
    _machine("2080Ti", {"fp32": 13.45e12, "amp": 53.8e12}, 616e9, _BOX_2080TI, _BOX_2080TI_LAUNCHES,
             "RTX 2080 Ti; host constants fitted on a 4 x RTX 2080 Ti box, PyTorch 1.4"),
    _machine("TITAN-RTX", {"fp32": 16.3e12, "amp": 130.5e12}, 672e9, _DGX_A100, _DGX_A100_LAUNCHES,
             "TITAN RTX; host constants of the DGX A100"),
    _machine("4090", {"fp32": 82.6e12, "tf32": 82.6e12, "amp": 165.2e12, "bf16": 165.2e12}, 1008e9, _DGX_A100,
             _DGX_A100_LAUNCHES, "RTX 4090; host constants of the DGX A100"),
    _machine("CPU", {"fp32": 75e9, "bf16": 75e9, "amp": 75e9}, 10e9, Host(), (0.0, 0.0),
             "one core of a laptop with AVX2, an order of magnitude; kernels run on the host thread itself",
             context_bytes=0),
)}  # fmt: skip


def load_machine(kind: str) -> Machine:
    """The machine of that device kind. Raises InputError, with the known kinds, for another."""
    if kind not in MACHINES:
        raise unknown("device kind", kind, MACHINES)
    return MACHINES[kind]


def machine_for(cluster: Cluster) -> Machine:
    """The machine of the cluster's devices. Not known, or of several kinds: one whose host costs nothing."""
    kinds = sorted({device.kind for device in cluster.devices})
    if len(kinds) == 1 and kinds[0] in MACHINES:
        return MACHINES[kinds[0]]
    what = " and ".join(kind or "unnamed" for kind in kinds)
    source = f"unknown hardware ({what}): the host costs nothing"
    return Machine(what, {}, 0.0, Host(source=source), source=source, known=False)


def host_for(cluster: Cluster) -> Host:
    """The host of the cluster's devices; `source` says so when it is not known and costs nothing."""
    return machine_for(cluster).host
