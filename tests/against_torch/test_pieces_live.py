"""Flat pieces beside the parts of torch that make them, as far as they run without a GPU."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.model import Parameter
from simulator.pieces import construction_broadcast_buckets, reduce_pieces

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch import distributed
from torch.nn.parallel import _functions, comm

TENSORS = st.lists(
    st.tuples(st.integers(0, 60), st.sampled_from(("float32", "float16", "bfloat16", "float64", "int64"))),
    min_size=1,
    max_size=20,
)


def nbytes(tensors: Any) -> int:
    """Bytes of all of them."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@given(TENSORS, st.integers(1, 300))
def test_reduce_pieces_equal_torchs_take_tensors(tensors: Any, limit: int) -> None:
    model = [Parameter(str(i), (numel,), dtype) for i, (numel, dtype) in enumerate(tensors)]
    real = [torch.zeros(p.numel, dtype=getattr(torch, p.dtype)) for p in model]
    chunks = list(torch._utils._take_tensors(real, limit))
    assert reduce_pieces(model, limit) == tuple(
        (str(chunk[0].dtype).removeprefix("torch."), nbytes(chunk)) for chunk in chunks
    )


@given(TENSORS, st.integers(1, 300))
def test_construction_pieces_equal_torchs_assignment(tensors: Any, limit: int) -> None:
    model = [Parameter(str(i), (numel,), dtype) for i, (numel, dtype) in enumerate(tensors)]
    real = [torch.zeros(p.numel, dtype=getattr(torch, p.dtype)) for p in model]
    buckets, _ = distributed._compute_bucket_assignment_by_size(real, [limit])
    assert [piece.nbytes for piece in construction_broadcast_buckets(model, limit)] == [
        nbytes(real[i] for i in bucket) for bucket in buckets
    ]


def test_zeros_for_frozen_and_unused_parameters_reach_the_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    """DataParallel's autograd node on meta tensors: only the copies between devices are replaced."""
    reduced: list[list[tuple[int, ...]]] = []

    def broadcast(tensors: Any, devices: Any) -> Any:
        return [[tensor.detach().clone() for tensor in tensors] for _ in devices]

    def reduce(replicas: Any, _destination: Any) -> Any:
        reduced.extend([tuple(gradient.shape) for gradient in gradients] for gradients in replicas)
        return tuple(torch.zeros_like(gradient) for gradient in replicas[0])

    monkeypatch.setattr(comm, "broadcast_coalesced", broadcast)
    monkeypatch.setattr(comm, "reduce_add_coalesced", reduce)
    monkeypatch.setattr(_functions, "_get_device_index", lambda device, *_: device)
    used, unused = (torch.zeros(size, device="meta", requires_grad=True) for size in (3, 7))
    frozen = torch.zeros(5, device="meta")
    copies = _functions.Broadcast.apply([0, 1], used, frozen, unused)
    (copies[0].sum() + copies[3].sum()).backward()
    assert reduced == [[(3,), (5,), (7,)]] * 2
    table = [Parameter("used", (3,)), Parameter("frozen", (5,), requires_grad=False), Parameter("unused", (7,))]
    assert reduce_pieces(table) == (("float32", 4 * (3 + 5 + 7)),)
