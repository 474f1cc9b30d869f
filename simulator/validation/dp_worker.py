"""DataParallel's arithmetic on a CPU: scatter, replicate, parallel_apply, gather, reduce, in torch's own functions.

torch.nn.DataParallel without GPUs calls the module as it is, so the five verbs are written out here with what its
source uses: `Tensor.chunk` for the scatter, a copy of the parameters for each chunk, `torch.cat` for the gather, and the
sum of the replicas' gradients, device 0's first, for the reduce.

Not modelled: buffers (each replica would normalise with its own chunk); the threads.
"""

from copy import deepcopy
from typing import Any

from simulator.importers import module_calls as calls
from simulator.validation import modules
from simulator.validation.process import Me
from simulator.validation.records import DpCase, DpRecord

torch = calls.torch()


def run(_: Me, cases: tuple[DpCase, ...]) -> list[DpRecord]:
    """All cases."""
    return [_record(case) for case in cases]


def _record(case: DpCase) -> DpRecord:
    module = modules.build("linears", seed=case.rows)
    whole = deepcopy(module).double()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.copy_(torch.round(3 * parameter.sign() * parameter.abs().sqrt()))
    inputs = modules.batch(case.rows, case.rows)
    counted = torch.round(2 * inputs).double()
    rows, parallel = _parallel(whole, counted, case.devices, torch.sum)
    single = _gradients(whole, counted, torch.sum)
    return DpRecord(rows, tuple((_bytes(a), _bytes(b)) for a, b in zip(parallel, single, strict=True)),
                  tuple(_rounding(module, inputs, case.devices)))  # fmt: skip


def _parallel(module: Any, inputs: Any, devices: int, loss: Any) -> tuple[tuple[int, ...], list[Any]]:
    """One forward and backward in DataParallel's five verbs: the rows of each device, and the gradients on device 0."""
    chunks = inputs.chunk(devices)
    replicas = [deepcopy(module) for _ in chunks]
    outputs = [replica(chunk) for replica, chunk in zip(replicas, chunks, strict=True)]
    loss(torch.cat(outputs)).backward()
    reduced = [parameter.grad.clone() for parameter in replicas[0].parameters()]
    for replica in replicas[1:]:
        for total, parameter in zip(reduced, replica.parameters(), strict=True):
            total.add_(parameter.grad)
    return tuple(len(chunk) for chunk in chunks), reduced


def _gradients(module: Any, inputs: Any, loss: Any) -> list[Any]:
    alone = deepcopy(module)
    loss(alone(inputs)).backward()
    return [parameter.grad for parameter in alone.parameters()]


def _rounding(module: Any, inputs: Any, devices: int) -> list[float]:
    parallel = _parallel(module, inputs, devices, torch.mean)[1]
    single = _gradients(module, inputs, torch.mean)
    each = [_gradients(module, row[None], torch.mean) for row in inputs]
    errors = []
    for number, (a, b) in enumerate(zip(parallel, single, strict=True)):
        largest = max(float(gradients[number].abs().max()) for gradients in each)
        allowed = 2 * len(each) * torch.finfo(a.dtype).eps * largest
        errors.append(float((a - b).abs().max()) / allowed if largest else 0.0)
    return errors


def _bytes(tensor: Any) -> bytes:
    content: bytes = (tensor + 0.0).numpy().tobytes()  # a sum of nothing may be -0.0
    return content
