"""Flat pieces: torch's counts for known models, the boundaries, and conservation of bytes."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.bucket_file import parameter_table
from simulator.buckets import MIB
from simulator.model import DTYPE_BYTES, Parameter
from simulator.pieces import BUFFER_BYTES, SCALAR_TYPES, broadcast_pieces, construction_broadcast_buckets, reduce_pieces
from tests.test_buckets import GPT2

RESNET50 = parameter_table(json.loads((Path(__file__).parent / "data/buckets/resnet50.json").read_text())).parameters
RESNET50_BYTES = 4 * 25_557_032
PIECES = (construction_broadcast_buckets, broadcast_pieces, reduce_pieces)


def test_resnet50_and_gpt2_have_the_counts_of_real_torch() -> None:
    assert (len(broadcast_pieces(RESNET50)), len(reduce_pieces(RESNET50))) == (9, 13)
    assert (len(broadcast_pieces(GPT2)), len(reduce_pieces(GPT2))) == (25, 38)


def test_gpt2_is_broadcast_in_two_pieces_at_construction() -> None:
    assert construction_broadcast_buckets(GPT2) == (("float32", 4 * 67_734_528), ("float32", 4 * 56_705_280))


def test_construction_sends_frozen_parameters_and_buffers_too() -> None:
    net = [
        Parameter("w", (516,)),
        Parameter("frozen", (9,), requires_grad=False),
        Parameter("again", (516,), tied_to="w"),
        Parameter("bn.running_mean", (16,)),
        Parameter("bn.num_batches_tracked", (), "int64"),
    ]
    assert construction_broadcast_buckets(net) == (("float32", 4 * (516 + 9 + 16)), ("int64", 8))


def test_a_broadcast_piece_closes_at_the_limit_and_a_reduce_piece_before_it() -> None:
    assert BUFFER_BYTES == 10 * MIB
    four = [Parameter(name, (10,)) for name in "abcd"]
    assert [piece.nbytes for piece in broadcast_pieces(four, 80)] == [80, 80]
    assert [piece.nbytes for piece in broadcast_pieces(four, 81)] == [120, 40]
    assert [piece.nbytes for piece in reduce_pieces(four, 80)] == [80, 80]
    assert [piece.nbytes for piece in reduce_pieces(four, 79)] == [40, 40, 40, 40]
    assert [piece.nbytes for piece in reduce_pieces(four, 1)] == [40, 40, 40, 40]


def test_open_pieces_come_last_by_scalar_type_outwards_and_by_first_use_inwards() -> None:
    mixed = [Parameter(dtype, (1,), dtype) for dtype in ("bfloat16", "float64", "float16", "float32")]
    assert [piece.dtype for piece in broadcast_pieces(mixed)] == ["float16", "float32", "float64", "bfloat16"]
    assert [piece.dtype for piece in reduce_pieces(mixed)] == ["bfloat16", "float64", "float16", "float32"]


def test_complex_tensors_travel_with_the_real_ones() -> None:
    mixed = [Parameter("r", (3,)), Parameter("c", (5,), "complex64")]
    assert broadcast_pieces(mixed) == reduce_pieces(mixed) == (("float32", 3 * 4 + 5 * 8),)


def test_zeros_for_frozen_parameters_are_reduced_too() -> None:
    assert reduce_pieces([Parameter("w", (3,)), Parameter("frozen", (4,), requires_grad=False)]) == (("float32", 28),)


def test_sparse_gradients_are_reduced_alone_and_first() -> None:
    model = [Parameter("w", (3,)), Parameter("s", (2, 5), sparse=True)]
    assert reduce_pieces(model) == (("float32", 40), ("float32", 12))
    assert broadcast_pieces(model) == (("float32", 52),)


def test_every_dtype_has_a_scalar_type_number() -> None:
    assert set(SCALAR_TYPES) == set(DTYPE_BYTES)


@pytest.mark.parametrize("pieces", PIECES)
def test_no_tensors_give_no_pieces(pieces) -> None:
    assert pieces([]) == ()


@pytest.mark.parametrize("pieces", PIECES)
def test_bytes_are_conserved_for_resnet50(pieces) -> None:
    assert sum(piece.nbytes for piece in pieces(RESNET50)) == RESNET50_BYTES


@given(
    st.lists(st.tuples(st.integers(0, 60), st.sampled_from(sorted(DTYPE_BYTES)), st.booleans()), max_size=20),
    st.integers(1, 300),
)
def test_bytes_are_conserved_and_no_reduce_piece_of_many_tensors_exceeds_the_limit(tensors, limit) -> None:
    model = [Parameter(str(i), (numel,), dtype, grad) for i, (numel, dtype, grad) in enumerate(tensors)]
    total = sum(p.nbytes for p in model)
    for pieces in PIECES:
        assert sum(piece.nbytes for piece in pieces(model, limit)) == total
    largest = max((p.nbytes for p in model), default=0)
    assert all(piece.nbytes <= max(limit, largest) for piece in reduce_pieces(model, limit))
