"""What this machine does with compute alone and with an all-reduce alone, as the parts of a Scenario.

    layers        seconds of each layer's forward and backward without DDP, the slower rank's, scaled so that they sum to
                  a whole step that was not looked into
    memory        the optimizer's pass over the parameters gives the bandwidth; what the copies into and out of the buckets
                  take beyond it is a fixed cost of each gradient
    all-reduce    a line over the size, fitted to the calibrated sizes next to those in question; on loopback no one line
                  fits all sizes, since large messages leave the caches
    overlap       a plain step with an all-reduce underway takes longer by some part of that all-reduce's time. That part
                  is `compute_slowdown`: near 0 with cores to spare, near 1 where gloo's threads take the cores of the
                  ranks, as they do on a machine of two

No DDP step is used, so every DDP step is a prediction.

Not modelled: how much slower the all-reduce itself becomes under compute; its time counts as if it were alone.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from simulator.backend import Backend, gloo
from simulator.buckets import BucketOptions, buckets_at
from simulator.cluster import Cluster, Device, Link
from simulator.model import Cost, ModelProfile
from simulator.presets.facts import from_json
from simulator.scenario import DistributedDataParallel, Host, Optimizer, Scenario
from simulator.validation.ddp_values import known_version
from simulator.validation.records import Plan, Round, TimesRecord

REACH = 4.0
"""A line is fitted to the calibrated sizes from a fourth of the least size in question to four times the largest."""
MOST_SLOWDOWN = 0.99
LEAST_S = 1e-6
STEADY = 3
"""The iteration from which on every option's buckets are final."""
SGD = Optimizer("sgd", 0, 3)


@dataclass(frozen=True)
class Calibration:
    """Of one round."""

    plan: Plan
    profile: ModelProfile
    host: Host
    compute_slowdown: float
    all_reduce_s: Mapping[int, float]
    """For each calibrated size."""
    torch_version: str

    def scenario(self, cap_mb: float) -> Scenario:
        """One steady DDP step under a bucket cap."""
        options = BucketOptions(cap_mb, torch_version=known_version(self.torch_version))
        buckets = buckets_at(self.profile.parameters, self.profile.ready_order, options, STEADY)
        cluster, backend = self.network([bucket.nbytes for bucket in buckets])
        return Scenario(self.profile, cluster, DistributedDataParallel(options), backend, self.plan.rows,
                        optimizer=SGD, host=self.host, iterations=(STEADY,))  # fmt: skip

    def network(self, sizes: Sequence[int]) -> tuple[Cluster, Backend]:
        """Two ranks on loopback, and gloo, for messages of about these sizes."""
        near = {size: s for size, s in self.all_reduce_s.items() if min(sizes) / REACH <= size <= max(sizes) * REACH}
        fixed_s, per_byte_s = line(near or self.all_reduce_s)
        devices = tuple(Device(f"rank{rank}", "CPU") for rank in range(2))
        links = [Link(a, b, 1 / per_byte_s, 0.0, "loopback") for device in devices
                 for a, b in ((device.name, "loopback"), ("loopback", device.name))]  # fmt: skip
        cluster = Cluster("this machine", devices, tuple(links), source="measured")
        backend = gloo(fixed_s / 2, source="measured")  # a ring of two has two steps, each of half the bytes
        return cluster, replace(backend, compute_slowdown=self.compute_slowdown)


def line(seconds: Mapping[int, float]) -> tuple[float, float]:
    """Fixed seconds and seconds a byte: least squares of the relative errors, with neither below zero."""
    points = [(size, s, 1 / s**2) for size, s in seconds.items()]
    weight = sum(w for _, _, w in points)
    mean_x, mean_y = (sum(w * point[i] for *point, w in points) / weight for i in (0, 1))
    spread = sum(w * (x - mean_x) ** 2 for x, _, w in points)
    slope = sum(w * (x - mean_x) * (y - mean_y) for x, y, w in points) / spread if spread else math.inf
    fixed = mean_y - slope * mean_x
    if fixed >= 0 and slope > 0:
        return fixed, slope
    return 0.0, sum(w * x * y for x, y, w in points) / sum(w * x * x for x, _, w in points)


def slower(records: Sequence[TimesRecord], number: int, pick: Callable[[Round], float]) -> float:
    """The slower rank's seconds in one round: a step waits for it."""
    return max(pick(record.rounds[number]) for record in records)


def all_reduce_of(size: int) -> Callable[[Round], float]:
    """Picks that all-reduce of a round."""
    return lambda found: found.all_reduce[size]


def step_of(cap_mb: float) -> Callable[[Round], float]:
    """Picks the DDP step under that cap."""
    return lambda found: found.ddp[cap_mb]


def calibrate(plan: Plan, records: Sequence[TimesRecord], number: int) -> Calibration:
    """From everything of one round but the DDP steps and the sizes that are to be predicted."""

    def seconds(pick: Callable[[Round], float]) -> float:
        return slower(records, number, pick)

    def without_barrier(pick: Callable[[Round], float]) -> float:
        return max(seconds(pick) - seconds(lambda found: found.barrier), LEAST_S)

    facts = from_json(records[0].facts, "the model")
    count = len(facts.layers)
    slots = [max(slot) for slot in zip(*(record.rounds[number].layers for record in records), strict=True)]
    compute_s = without_barrier(lambda found: found.compute)
    costs = [Cost(slot * compute_s / sum(slots)) for slot in slots]
    profile = facts.profile(costs[:count], costs[count : 2 * count], loss=costs[2 * count], device="this machine")
    optimizer_s = without_barrier(lambda found: found.optimizer)
    copies_s = without_barrier(lambda found: found.copies)
    nbytes = profile.gradient_bytes
    bandwidth = max(SGD.moved_copies * nbytes / optimizer_s, 4 * nbytes / copies_s)
    host = Host(
        device_memory_bytes_per_s=bandwidth,
        bucket_kernel_s=max(0.0, copies_s - 4 * nbytes / bandwidth) / len(profile.trained_parameters),
        step_s=max(0.0, optimizer_s - SGD.moved_copies * nbytes / bandwidth), source="measured",
    )  # fmt: skip
    longer = seconds(lambda found: found.both) - compute_s
    slowdown = min(max(longer / seconds(lambda found: found.reduce), 0.0), MOST_SLOWDOWN)
    all_reduce_s = {size: seconds(all_reduce_of(size)) for size in plan.sizes}
    return Calibration(plan, profile, host, slowdown, all_reduce_s, records[0].torch_version)
