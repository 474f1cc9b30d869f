"""The ring all-reduce in plain isend and irecv, with everything written down. Runs in worker processes.

Rank r sends chunk (r - s) mod N in step s of the reduce-scatter and adds what comes to its own, in this order; then it
sends chunk (r + 1 - s) mod N in step s of the all-gather. It is the algorithm as one would write it with torch, and
knows nothing of the simulator's.

Not modelled: segments, as gloo's own ring cuts chunks into them; the values do not depend on that.
"""

from typing import Any

import numpy as np

from simulator.importers import module_calls as calls
from simulator.validation.process import Me
from simulator.validation.records import RingCase, RingRecord, RingStep

torch, distributed = calls.torch(), calls.torch("distributed")


def own_values(case: RingCase, rank: int) -> Any:
    """Numbers of many magnitudes, so that the order of additions shows in the last bits."""
    random = np.random.default_rng([case.seed, case.elements, rank])
    numbers = random.standard_normal(case.elements) * 10.0 ** random.integers(-3, 4, case.elements)
    scale = 1e6 if case.dtype == "int64" else 1.0
    return torch.from_numpy((numbers * scale).astype(case.dtype))


def run(me: Me, cases: tuple[RingCase, ...]) -> list[RingRecord]:
    """All cases, one after the other."""
    return [_record(me, case) for case in cases]


def _record(me: Me, case: RingCase) -> RingRecord:
    own = own_values(case, me.rank)
    tensor = own.clone()
    steps = _all_reduce(me, tensor)
    reference = own.clone()
    distributed.all_reduce(reference)
    return RingRecord(case, _bytes(own), tuple(steps), _bytes(tensor), _bytes(reference))


def _all_reduce(me: Me, tensor: Any) -> list[RingStep]:
    """In place."""
    n, rank = me.world_size, me.rank
    chunks = list(torch.tensor_split(tensor, n))  # the first ones are one element larger
    steps = []
    for step in range(2 * (n - 1)):
        reduces = step < n - 1
        s = step if reduces else step - n
        sends, receives = (rank - s) % n, (rank - s - 1) % n
        sent = chunks[sends].clone()
        incoming = torch.empty_like(chunks[receives])
        request = distributed.isend(sent, (rank + 1) % n)
        distributed.irecv(incoming, (rank - 1) % n).wait()
        request.wait()
        chunks[receives].copy_(incoming + chunks[receives] if reduces else incoming)
        steps.append(RingStep(sends, _bytes(sent), receives, _bytes(chunks[receives])))
    return steps


def _bytes(tensor: Any) -> bytes:
    content: bytes = tensor.numpy().tobytes()
    return content
