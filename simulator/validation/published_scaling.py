"""DistributedDataParallel on more and more GPUs: which part of N times one GPU's throughput is reached.

The authors state the model, the machine, the batch and the step of one GPU, which gives the seconds of its layers. All
else is the presets': NCCL's constants of published all-reduce tables, the host's of DataParallel's. So nothing is
fitted here, but for one row: ResNet-50 in DDP's wrapper on one GPU fixed the seconds of a bucket's small kernels.

Up to eight GPUs of one node are simulated one by one; of more, two stand for all (`published_machines.two_ranks`).
With k accumulated batches k - 1 of them send nothing, as `no_sync` has it. NICs are those of the named machines: 4 x
100 Gb/s in a DGX-1, 8 x 100 in a DGX-2, 8 x 200 in a DGX A100.

Not modelled: loaders, other jobs, clocks that fall with more GPUs at work, apex's own buckets.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from simulator.backend import Backend
from simulator.cluster import Cluster
from simulator.presets.backends import backend_for
from simulator.presets.clusters import NO_PEER_COPY, NVLINK2, PCIE3, load_cluster, pair, pcie
from simulator.presets.machines import host_for
from simulator.scenario import OPTIMIZERS, DistributedDataParallel, Scenario, SingleDevice, Strategy
from simulator.simulate import simulate
from simulator.validation.published_machines import Nodes, library, lines, lines_of, two_ranks
from simulator.validation.published_models import counted
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction, left_of, published

PORT = 6 * NVLINK2
MOST_GPUS = 8
EPOCH = "means of an epoch of 50 steps with its start, which weighs the more the more GPUs there are"
CAUSES = {
    "bert-large, DGX": "0.76 on 256 GPUs in tf32 beside 0.92 in amp, 0.70 on 8 beside 0.88 on 4; not explained",
    "NCF": "a step of milliseconds: what does not shrink with the batch (sampling, launches) is not stated",
    "resnet50, 2080Ti": "half precision on many GPUs only: perhaps the loader, which is not stated",
    "bert-base": EPOCH,
    "bert-large": EPOCH,
}  # fmt: skip
STEP_UNITS = {"s": 1.0, "ms": 1e-3}


def families() -> list[Family]:
    """One family; its groups are the models."""
    rows = tuple(_rows())
    inputs = sum(row[3] == "single" for entry in published("scaling")["sets"].values() for row in entry.get("rows", ()))
    return [Family("DDP's scaling efficiency", rows, {PREDICTED: 0.05}, "the aim, in points", inputs=inputs,
                   left=left_of("scaling"),
                   fit="ResNet-50 in DDP's wrapper on one V100 fixed the kernels of a bucket",
                   causes=CAUSES)]  # fmt: skip


def _rows() -> Iterator[Prediction]:
    for source, entry in published("scaling")["sets"].items():
        ones = {row[0]: row for row in entry.get("rows", ()) if row[3] == "single"}
        for row in entry.get("rows", ()):
            if row[3] == "single":
                continue
            group, model, precision, _, machine, gpus, nodes, batch, accumulation = row[:9]
            one = ones[group]
            wrapper = gpus == 1 and model == "resnet50"
            real = _rows_per_s(row) / _rows_per_s(one) / gpus
            ours = efficiency(model, machine, gpus, nodes, batch, accumulation, one[7], one[7] / _rows_per_s(one))
            yield Prediction(f"{model}, {machine}", f"{model} {precision}, {gpus} GPUs of {machine}, batch {batch}",
                             FITTED if wrapper else PREDICTED, ours, real, source, points=True)  # fmt: skip


def _rows_per_s(row: list[Any]) -> float:
    """Of all GPUs together."""
    gpus, batch, value, unit = row[5], row[7], row[9], row[10]
    return float(gpus * batch / (value * STEP_UNITS[unit]) if unit in STEP_UNITS else value)


@cache
def efficiency(model: str, machine: str, gpus: int, nodes: int, batch: int, accumulation: int, like_batch: int,
               step_s: float) -> float:  # fmt: skip
    """Throughput over N times that of one GPU, whose step of `like_batch` rows takes `step_s`."""
    cluster, backend = machine_of(machine, gpus, nodes)
    counts = tuple(published("scaling")["models"][model])
    kind = cluster.devices[0].kind
    many = counted(model, counts, kind, batch, step_s, like_batch)
    one = counted(model, counts, kind, like_batch, step_s)
    first = cluster.take(1)

    def step(profile: Any, cluster: Cluster, backend: Backend, strategy: Strategy, batch: int) -> float:
        return simulate(Scenario(profile, cluster, strategy, backend, batch, optimizer=OPTIMIZERS["none"],
                                 host=host_for(cluster))).end_s  # fmt: skip

    alone = step(one, first, backend_for(first), SingleDevice(), like_batch)
    together = step(many, cluster, backend, DistributedDataParallel(), batch)
    if accumulation > 1:
        quiet = step(many, first, backend_for(first), SingleDevice(), batch)
        together = (together + (accumulation - 1) * quiet) / accumulation
    return batch / together / (like_batch / alone)


@cache
def machine_of(name: str, gpus: int, nodes: int) -> tuple[Cluster, Backend]:
    """The cluster, or two ranks that stand for it, and its library."""
    if nodes > 1 or name == "DGX-2":
        spec = _nodes(name, gpus, nodes)
        like = library(spec)
        return two_ranks(spec.kind, lines_of(spec), like)
    if name.startswith("DGX"):
        cluster = load_cluster("8xA100" if name == "DGX A100" else "8xV100-dgx1").take(gpus)
    elif name.endswith("bridges") and gpus == 2:
        cluster = pair("TITAN-RTX", 2 * NVLINK2, name="two Turing GPUs with a bridge", source="NVLink 2 bridge")
    elif name.startswith("2080Ti"):
        cluster = pcie(gpus, "2080Ti", PCIE3, peer_access=False, copy_fraction=NO_PEER_COPY, name=name, source="")
    else:
        cluster = pcie(gpus, "V100", PCIE3, name=name, source="")
    backend = backend_for(cluster)
    if gpus > MOST_GPUS:
        return two_ranks(cluster.devices[0].kind, lines(cluster, backend), backend)
    return cluster, backend


def _nodes(name: str, gpus: int, nodes: int) -> Nodes:
    if name == "DGX-2":
        return Nodes("V100", PORT, gpus // nodes, nodes, 8)
    if name == "DGX A100":
        return Nodes("A100", 300e9, gpus // nodes, nodes, 8, 24e9)
    return Nodes("V100", PORT, gpus // nodes, nodes, 1 if name.endswith("one NIC") else 4)
