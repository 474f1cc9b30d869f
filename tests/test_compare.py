"""Both strategies beside one device: speed-ups by hand, and the contract that `compare --json` prints."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.backend import PLAIN
from simulator.buckets import BucketOptions
from simulator.compare import Run, compare
from simulator.errors import InputError
from simulator.presets.backends import backend_for
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.scenario import (
    OPTIMIZERS,
    DataParallel,
    DistributedDataParallel,
    Host,
    Scenario,
    SingleDevice,
    data_parallel_obstacle,
)
from tests.samples import layers_of, preset, star
from tests.test_laws import HOST

FREE = Host(device_memory_bytes_per_s=1e30)
DP, DDP = "DataParallel", "DistributedDataParallel"


def base(model=None, **options) -> Scenario:
    options = {"cluster": star(4, 16e9), "strategy": DistributedDataParallel(), "backend": PLAIN, "host": FREE,
               "optimizer": OPTIMIZERS["none"], "batch_per_device": 8, **options}  # fmt: skip
    return Scenario(model or layers_of([4_000_000] * 4, 1e-3, 2e-3), **options)


def test_both_strategies_run_with_the_same_rows_by_default() -> None:
    found = compare(base())
    assert list(found.runs) == [DP, DDP]
    assert {run.scenario.total_rows for run in found.runs.values()} == {4 * 8}
    assert {run.scenario.rows for run in found.runs.values()} == {(8, 8, 8, 8)}
    assert found.single.scenario.strategy == SingleDevice()
    assert (found.single.scenario.world_size, found.single.scenario.total_rows) == (1, 8)
    assert found.impossible == {}


def test_a_global_batch_is_divided_by_each_strategys_own_rule() -> None:
    found = compare(base(global_batch=30))
    assert found.runs[DP].scenario.rows == (8, 8, 8, 6)
    assert found.runs[DDP].scenario.rows == (8, 8, 7, 7)
    assert found.single.scenario.batch_per_device == 8
    assert found.single_whole_batch.scenario.total_rows == 30


def test_speed_ups_by_hand() -> None:
    """A model whose time does not depend on the batch: one device does all rows in one step's time."""
    model = layers_of([16_000_000], 0.0, 10e-3)
    found = compare(base(model))
    all_reduce = 2 * 3 / 4 * 16_000_000 / 16e9
    assert found.single.step_s == pytest.approx(10e-3)
    assert found.runs[DDP].step_s == pytest.approx(10e-3 + all_reduce)
    assert found.speedup(DDP) == pytest.approx(4 * 10e-3 / (10e-3 + all_reduce))
    assert found.speedup_same_global_batch(DDP) == pytest.approx(10e-3 / (10e-3 + all_reduce))
    assert found.runs[DDP].samples_per_s == pytest.approx(4 * 8 / (10e-3 + all_reduce))


def test_free_communication_scales_perfectly() -> None:
    found = compare(base(cluster=star(4, 1e30)))
    for name in (DP, DDP):
        assert found.speedup(name) == pytest.approx(4, rel=1e-9)


def test_a_model_that_takes_no_time_cannot_be_compared() -> None:
    model = layers_of([400], 0.0, 0.0)
    with pytest.raises(InputError, match="takes 0 s on one device: a speed-up needs a step that takes time"):
        compare(base(model))
    alone = Run.of(base(model, cluster=star(1, 1.0), strategy=SingleDevice()))
    assert (alone.step_s, alone.samples_per_s) == (0.0, math.inf)


def test_a_strategy_that_cannot_run_says_why() -> None:
    found = compare(base(cluster=load_cluster("2x8xA100-1nic")))
    assert list(found.runs) == [DDP]
    assert "one process" in found.impossible[DP]
    assert "impossible" in found.as_json()["strategies"][DP]


def test_strategies_of_ones_own_are_compared() -> None:
    mine = DistributedDataParallel(BucketOptions(bucket_cap_mb=1), gradient_as_bucket_view=True)
    assert compare(base(), (mine,)).runs[DDP].scenario.strategy == mine


def test_a_straggler_does_not_slow_the_single_device() -> None:
    found = compare(base(speed=(0.5, 1.0, 1.0, 1.0)))
    assert found.single.scenario.speed == ()


CONTRACT = {
    "step_s", "samples_per_s", "compute_s", "comm_s", "exposed_comm_s", "speedup", "speedup_same_global_batch",
    "bytes_sent_by_device", "bytes_received_by_device", "bytes_by_kind", "peak_memory_bytes_by_device", "critical_path",
}  # fmt: skip


@pytest.mark.parametrize("name", CLUSTERS)
def test_the_json_keeps_its_contract_on_every_preset(name: str) -> None:
    cluster = load_cluster(name)
    found = compare(base(preset("mlp-small", host_s=1e-5), cluster=cluster, backend=backend_for(cluster), host=HOST))
    data = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert {"model", "cluster", "world_size", "batch_per_device", "single_device", "strategies"} <= set(data)
    assert (data["cluster"], data["world_size"], data["batch_per_device"]) == (name, cluster.world_size, 8)
    assert set(data["single_device"]) == {"step_s", "samples_per_s"}
    assert set(data["strategies"]) == {DP, DDP}
    for strategy, numbers in data["strategies"].items():
        if strategy == DP and data_parallel_obstacle(cluster):
            assert set(numbers) == {"impossible"}
            continue
        assert set(numbers) >= CONTRACT
        for column in ("bytes_sent_by_device", "bytes_received_by_device", "peak_memory_bytes_by_device"):
            assert len(numbers[column]) == cluster.world_size
            assert all(isinstance(value, int) for value in numbers[column])
        sent = [sum(kind["sent"][device] for kind in numbers["bytes_by_kind"].values())
                for device in range(cluster.world_size)]  # fmt: skip
        assert sent == numbers["bytes_sent_by_device"]
        path = numbers["critical_path"]
        assert set(path[0]) == {"device", "resource", "name", "start_s", "end_s"}
        assert (path[0]["start_s"], path[-1]["end_s"]) == (0.0, numbers["step_s"])
        assert all(earlier["end_s"] == later["start_s"] for earlier, later in pairwise(path))
        assert 0 <= numbers["exposed_comm_s"] <= numbers["step_s"]
        assert 0 <= numbers["overlap"] <= 1


def test_the_first_iteration_is_slower_than_a_steady_one() -> None:
    model = layers_of([1 << 21] * 20, 0.0, 1e-3)
    options = DistributedDataParallel(BucketOptions(bucket_cap_mb=4))
    steady, first = (compare(base(model, iterations=(number,)), (options,)) for number in (3, 0))
    assert first.as_json()["iteration"] == 0
    assert first.runs[DDP].step_s > steady.runs[DDP].step_s


def test_vgg16_is_hurt_less_than_resnet50_by_host_time_and_more_by_bytes() -> None:
    """The cause decides: VGG-16 has many bytes in few tensors, ResNet-50 few bytes in many."""

    def slowdown(name: str, bandwidth: float, host: Host) -> float:
        found = compare(base(preset(name), cluster=star(4, bandwidth), host=host), (DataParallel(),))
        return found.runs[DP].step_s / found.single.step_s

    python, wires = replace(FREE, replicate_tensor_s=1e-4), FREE
    assert slowdown("vgg16", 1e30, python) < slowdown("resnet50", 1e30, python)
    assert slowdown("vgg16", 12e9, wires) > slowdown("resnet50", 12e9, wires)
