"""Flat pieces: how many messages it takes to copy a whole model from one device or rank to others.

Three places in torch glue tensors of one dtype into flat pieces, and no two agree on when a piece is closed:

    DDP's constructor       rank 0's parameters and buffers, once    250 MiB, the rule of gradient buckets
    DataParallel replicate  parameters, every forward                10 MiB: add the tensor, then close at >= 10 MiB
    DataParallel reduce     gradients, once a backward               10 MiB: close first if the tensor would exceed it

So ResNet-50 (102,228,128 bytes) takes 9 pieces out and 13 back, the tied GPT-2 small 25 and 38. DataParallel reduces a
gradient for every parameter that it broadcast: for frozen and unused ones autograd makes zeros, and they travel too.

Source: torch 2.13 torch/distributed/utils.py (_sync_module_states), torch/nn/parallel/{comm,_functions}.py,
torch/_utils.py (_take_tensors), torch/csrc/utils/tensor_flatten.cpp (take_tensors, which Python cannot call).

Not modelled: parameters on several devices in one process; bytes of a sparse gradient (its dense size stands for them).
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from simulator.buckets import MIB, assign_buckets
from simulator.model import Parameter

CONSTRUCTION_BYTES = 250 * MIB
"""DistributedDataParallel.broadcast_bucket_size."""
BUFFER_BYTES = 10 * MIB
"""The default buffer_size of broadcast_coalesced and reduce_add_coalesced."""
SCALAR_TYPES = {
    "uint8": 0, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "float32": 6, "float64": 7,
    "complex64": 9, "bool": 11, "bfloat16": 15,
}  # fmt: skip
"""c10::ScalarType: take_tensors keeps its open pieces in a std::map under these numbers."""


class Piece(NamedTuple):
    """Some tensors of one dtype, copied as one."""

    dtype: str
    nbytes: int


def _existing(tensors: Iterable[Parameter]) -> list[Parameter]:
    """Each tensor once, however many names it has."""
    return [tensor for tensor in tensors if tensor.tied_to is None]


def _as_real(tensors: Iterable[Parameter]) -> list[Parameter]:
    """Complex tensors as DataParallel sends them: as twice as many real numbers."""
    return [replace(t, dtype="float32", shape=(*t.shape, 2)) if t.dtype == "complex64" else t for t in tensors]


def construction_broadcast_buckets(
    parameters_and_buffers: Sequence[Parameter], limit_bytes: int = CONSTRUCTION_BYTES
) -> tuple[Piece, ...]:
    """The broadcasts of the model's state in DDP's constructor (init_sync=True), in order; frozen tensors too."""
    dense = [replace(tensor, sparse=False) for tensor in _existing(parameters_and_buffers)]
    buckets = assign_buckets(dense, (limit_bytes,))
    return tuple(Piece(bucket[0].dtype, sum(tensor.nbytes for tensor in bucket)) for bucket in buckets)


def broadcast_pieces(parameters: Sequence[Parameter], limit_bytes: int = BUFFER_BYTES) -> tuple[Piece, ...]:
    """What DataParallel sends to each further device in every forward, in order; for buffers call it once more."""
    result = []
    open_bytes: dict[str, int] = {}
    for tensor in _as_real(_existing(parameters)):
        held = open_bytes.get(tensor.dtype, 0) + tensor.nbytes
        open_bytes[tensor.dtype] = held
        if held >= limit_bytes:
            result.append(Piece(tensor.dtype, held))
            del open_bytes[tensor.dtype]
    left = sorted(open_bytes, key=SCALAR_TYPES.__getitem__)
    return (*result, *(Piece(dtype, open_bytes[dtype]) for dtype in left))


def reduce_pieces(parameters: Sequence[Parameter], limit_bytes: int = BUFFER_BYTES) -> tuple[Piece, ...]:
    """What each further device sends back in DataParallel's backward, in order: sparse gradients alone and first."""
    tensors = _as_real(_existing(parameters))
    result = [Piece(t.dtype, t.nbytes) for t in tensors if t.sparse and t.requires_grad]
    open_bytes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.sparse and tensor.requires_grad:
            continue
        held = open_bytes.get(tensor.dtype, 0)
        if held > 0 and held + tensor.nbytes > limit_bytes:
            result.append(Piece(tensor.dtype, held))
            held = 0
        open_bytes[tensor.dtype] = held + tensor.nbytes
    return (*result, *itertools.starmap(Piece, open_bytes.items()))
