"""The collective library on a cluster by name: NCCL with what its ring reaches there, gloo on a CPU.

`reached` is the part of a link's bandwidth that NCCL's Simple protocol reaches, from a published nccl-tests table of
such a machine. Each family says which table.
"""

from dataclasses import dataclass, replace

from simulator.backend import PLAIN, Backend, gloo, nccl
from simulator.cluster import Cluster
from simulator.errors import unknown
from simulator.presets.clusters import PCIE3

LIBRARIES = ("nccl", "gloo", "plain")


@dataclass(frozen=True)
class Reach:
    """What NCCL reaches of a family's links."""

    fraction: float
    source: str


def backend_for(cluster: Cluster, *, algorithm: str = "auto", serial: bool = False, name: str | None = None) -> Backend:
    """The library on that cluster. Unknown hardware gets the plain backend, and its `source` says so."""
    if name is not None and name not in LIBRARIES:
        raise unknown("library", name, LIBRARIES)
    kinds = {device.kind for device in cluster.devices}
    if name == "plain":
        return replace(PLAIN, serial=serial)
    if name == "gloo" or (name is None and kinds == {"CPU"}):
        return replace(gloo(), serial=serial)
    return nccl(0.77, algorithm=algorithm, serial=serial, network=cluster.nodes > 1)
