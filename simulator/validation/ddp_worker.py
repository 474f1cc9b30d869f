"""Real DistributedDataParallel runs with everything written down. Runs in worker processes.

Each case is trained twice from the start. The first run is torch as it is: a dispatch mode sees every collective that
reaches the process group, with its bytes, and a copy of the module without DDP computes each rank's own gradients. In
the second run a communication hook sees every bucket that the Reducer launches.

Not modelled: `join`; `no_sync`; sparse gradients.
"""

import hashlib
import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from typing import Any

from simulator.importers import module_calls as calls
from simulator.importers.module import describe
from simulator.presets.facts import to_json
from simulator.validation import modules
from simulator.validation.process import Me
from simulator.validation.records import DdpCase, DdpRecord, Gradients, Launch

torch, distributed = calls.torch(), calls.torch("distributed")
DistributedDataParallel = calls.torch("nn.parallel").DistributedDataParallel
OPERATIONS = {"allreduce_": "all_reduce", "broadcast_": "broadcast", "allgather_": "all_gather"}
LEARNING_RATE = 0.05


def run(me: Me, case: DdpCase) -> DdpRecord:
    """Both runs of a case."""
    first = modules.build(case.module, seed=me.rank)
    facts = describe(first, modules.batch(me.rank), name=case.name, allow_unused=True)
    found = DdpRecord(torch.__version__, to_json(facts))
    _train(me, case, first, found)
    _train_hooked(me, case, modules.build(case.module, seed=me.rank), found)
    return found


def _wrap(module: Any, case: DdpCase) -> Any:
    options = dict(case.ddp)
    known = inspect.signature(DistributedDataParallel).parameters
    if "forward_sync_buffers" in options and "forward_sync_buffers" not in known:
        options["broadcast_buffers"] = options.pop("forward_sync_buffers")
    return DistributedDataParallel(module, **options)


def _loss(output: Any) -> Any:
    return output.float().pow(2).mean()


def _train(me: Me, case: DdpCase, module: Any, found: DdpRecord) -> None:
    plain = deepcopy(module)
    with counted(found.calls):
        ddp = _wrap(module, case)
    found.parameters.append(_digest(module))
    optimizer = torch.optim.SGD([p for p in ddp.parameters() if p.requires_grad], LEARNING_RATE, momentum=0.9)
    for iteration in range(case.iterations):
        rows = modules.batch(1000 * iteration + me.rank)
        plain.load_state_dict(module.state_dict())
        plain.zero_grad()
        _loss(plain(rows)).backward()
        found.own.append(_gradients(plain))
        optimizer.zero_grad()
        with counted(found.calls):
            _loss(ddp(rows)).backward()
        found.reduced.append(_gradients(module))
        optimizer.step()
        found.parameters.append(_digest(module))
    # The runtime fields are written at the next synchronised forward.
    logged = ddp._get_ddp_logging_data()
    found.logged = {name: str(logged[name]) for name in ("bucket_sizes", "rebuilt_bucket_sizes") if name in logged}


def _train_hooked(me: Me, case: DdpCase, module: Any, found: DdpRecord) -> None:
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: found.ready[-1].append(names[id(p)]))
    ddp = _wrap(module, case)
    ddp.register_comm_hook(None, _hook(found, names, me.world_size))
    for iteration in range(case.iterations):
        found.launches.append([])
        found.ready.append([])
        _loss(ddp(modules.batch(1000 * iteration + me.rank))).backward()
        ddp.zero_grad()


def _hook(found: DdpRecord, names: dict[int, str], world_size: int) -> Any:
    def hook(_: None, bucket: Any) -> Any:
        flat = bucket.buffer()
        held = tuple(names[id(parameter)] for parameter in bucket.parameters())
        found.launches[-1].append(Launch(bucket.index(), calls.dtype(flat), held, flat.numel() * flat.element_size()))
        work = distributed.all_reduce(flat.div_(world_size), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    # The Reducer accepts a hook only with torch's own annotations.
    hook.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
    return hook


@contextmanager
def counted(into: list[list[tuple[str, int]]]) -> Iterator[None]:
    """While entered, every collective of this process is noted: kind and bytes of what this rank puts in."""
    seen: list[tuple[str, int]] = []
    into.append(seen)
    with _watch(seen):
        yield


def _watch(seen: list[tuple[str, int]]) -> AbstractContextManager[Any]:
    def dispatch(mode: Any, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if operation.namespace == "c10d":
            name = operation.overloadpacket.__name__
            given = args[1] if name == "allgather_" else args[0]
            seen.append((OPERATIONS.get(name, name), sum(t.numel() * t.element_size() for t in calls.tensors(given))))
        return operation(*args, **(kwargs or {}))

    base = calls.torch("utils._python_dispatch").TorchDispatchMode
    watch: AbstractContextManager[Any] = type("Watch", (base,), {"__torch_dispatch__": dispatch})()
    return watch


def _gradients(module: Any) -> Gradients:
    return {name: None if p.grad is None else p.grad.numpy().tobytes() for name, p in module.named_parameters()}


def _digest(module: Any) -> str:
    digest = hashlib.sha256()
    for name, tensor in module.named_parameters():
        digest.update(name.encode() + tensor.detach().numpy().tobytes())
    return digest.hexdigest()
