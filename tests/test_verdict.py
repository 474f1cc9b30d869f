"""The finding tells the causes apart: each is made the only one, and named."""

from dataclasses import replace

import pytest

from simulator.backend import PLAIN, Backend
from simulator.buckets import BucketOptions
from simulator.cluster import Cluster
from simulator.compare import Comparison, compare
from simulator.model import ModelProfile
from simulator.scenario import OPTIMIZERS, DataParallel, DistributedDataParallel, Host, Scenario
from simulator.verdict import CAUSES, cause, fits, lost_seconds, verdict
from tests.samples import layers_of, star

FREE = Host(device_memory_bytes_per_s=1e30)
MODEL = layers_of([4_000_000] * 4, 1e-3, 2e-3, output_bytes=1000)
DP, DDP = "DataParallel", "DistributedDataParallel"


def compared(model: ModelProfile = MODEL, *, cluster: Cluster | None = None, strategies=None, **options) -> Comparison:
    options = {"host": FREE, "optimizer": OPTIMIZERS["none"], "backend": PLAIN, **options}
    base = Scenario(model, cluster or star(4, 1e30), DistributedDataParallel(), **options)
    return compare(base, strategies)


def test_a_python_thread_that_rebuilds_replicas_is_named() -> None:
    found = compared(host=replace(FREE, replicate_tensor_s=5e-3))
    assert cause(found, DP) == verdict(found).cause == "python thread"
    assert lost_seconds(found, DP)["host"] == pytest.approx(4 * 5e-3)
    assert verdict(found).winner == DDP


def test_gpu_0s_link_is_named() -> None:
    found = compared(cluster=star(4, 1e9), strategies=(DataParallel("peer_copy"), DistributedDataParallel()))
    assert cause(found, DP) == verdict(found).cause == "GPU 0's link"
    # Parameters and gradients of three replicas; the outputs' thousands of bytes come on top.
    assert lost_seconds(found, DP)["link"] == pytest.approx(2 * 3 * 16_000_000 / 1e9, rel=0.01)


def test_gpu_0s_memory_is_named_whatever_else_is_slow() -> None:
    found = compared(cluster=star(4, 1e9, memory_bytes=40_000_000))
    assert fits(found.runs[DP])[0] is False
    assert cause(found, DP) == verdict(found).cause == "GPU 0's memory"


def test_whether_it_fits_is_unknown_where_the_memory_is() -> None:
    assert fits(compared().runs[DP]) == [None] * 4
    assert fits(compared(cluster=star(4, 1e9, memory_bytes=10**12)).runs[DDP]) == [True] * 4


def test_ddps_own_causes_are_named() -> None:
    slow_wire = compared(cluster=star(4, 1e8), strategies=(DistributedDataParallel(),))
    assert cause(slow_wire, DDP) == "all-reduce"
    launches = compared(backend=Backend(launch_s=20e-3),
                        strategies=(DistributedDataParallel(BucketOptions(bucket_cap_mb=0)),))  # fmt: skip
    assert cause(launches, DDP) == "host launches"


def test_where_nothing_but_compute_takes_time_neither_wins() -> None:
    found = verdict(compared())
    assert (found.winner, found.cause) == ("neither", "compute")
    assert found.ratio == pytest.approx(1.0)


@pytest.mark.parametrize("options", [
    {}, {"host": replace(FREE, replicate_tensor_s=5e-3)}, {"cluster": star(4, 1e9)}, {"backend": Backend(launch_s=20e-3)},
    {"cluster": star(4, 1e9, memory_bytes=40_000_000)}, {"cluster": star(4, 1e9, memory_bytes=1000)},
])  # fmt: skip
@pytest.mark.parametrize("strategies", [None, (DataParallel(),), (DistributedDataParallel(),)])
def test_every_finding_is_one_sentence_in_either_language(options, strategies) -> None:
    found = verdict(compared(strategies=strategies, **options))
    assert found.cause in CAUSES
    assert found.text("en").endswith(".")
    assert found.text("zh").endswith("。")
    for text in (found.english, found.chinese):
        assert "{" not in text
        assert "nan" not in text
    assert found.ratio > 0
