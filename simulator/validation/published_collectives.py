"""The parameter server beside the all-reduce, on one network whose delay and bandwidth are set.

Machines with one GPU each on one switch; `tc` limits what each receives. Stated: pattern, library, machines, bytes,
delay, bandwidth. The central server is a reduce to one rank and a broadcast, the sharded one an all-to-all and an
all-gather, as the authors' programs have them.

Fitted: one message between two machines on the provider's own line, which gives what TCP carries of 10 Gb/s (1.22 of
1.25 GB/s by NCCL) and what gloo adds to a byte; both presets. A limited line carries the same 0.976 of its rate.

Not modelled: TCP's window, so that a long delay costs too little; the receiving side's bursts.
"""

from collections.abc import Iterator
from functools import cache

from simulator.backend import Backend, gloo, nccl
from simulator.cluster import Cluster, Device, Link
from simulator.collectives.communicator import Communicator
from simulator.collectives.star import parameter_server
from simulator.engine import Engine
from simulator.network import Channel
from simulator.presets.backends import GLOO_S_PER_BYTE
from simulator.presets.clusters import ETHERNET_10G
from simulator.validation.published_rows import FITTED, PREDICTED, Family, Prediction, left_of, published
from simulator.verbs import Program, isend, recv, wait

CARRIED = ETHERNET_10G / 1.25e9
DEFAULT_DELAY_MS = 0.05
FIXED, CENTRAL, SHARDED = "send_recv", "parameter_server_central", "parameter_server_sharded"
CHAIN = "a chain's slices wait out the delay one after another; TCP sends the next before the last has arrived"
CAUSES = {
    "all_reduce, Gloo": "perhaps gloo waits for an answer within a step; the longer the delay, the slower",
    "all_reduce, NCCL": "50 ms of delay: TCP's window bounds what is under way, not the line",
    "broadcast, Gloo": "perhaps gloo copies, receives and sends in turn at a node of the tree",
    "broadcast, NCCL": CHAIN, "reduce, NCCL": CHAIN, "parameter_server_central": CHAIN,
    "reduce, Gloo": "a chain stands for gloo's reduce, which is another algorithm",
    "send_recv, Gloo": "on a slow wire gloo copies while it sends; the preset adds both",
    "parameter_server_sharded": "perhaps many senders into one line lose packets; sharing here is fair and free",
}  # fmt: skip
FIXED_BYTES = 64 << 20


def families() -> list[Family]:
    """One family; its groups are pattern and library."""
    return [Family("Server against all-reduce", tuple(_rows()), {PREDICTED: 0.30},
                   "TCP windows at delays of 1 to 50 ms; without delay the aim is 0.10", left=left_of("collectives"),
                   fit="one message of 64 MiB over the provider's line, by NCCL and by gloo", causes=CAUSES)]  # fmt: skip


def _rows() -> Iterator[Prediction]:
    for source, entry in published("collectives")["sets"].items():
        for pattern, library, ranks, nbytes, delay_ms, gbit, ms, line in entry["rows"]:
            fixed = pattern == FIXED and line == "default" and nbytes == FIXED_BYTES
            delay = DEFAULT_DELAY_MS if line == "default" else delay_ms
            seconds = seconds_of(pattern, library, ranks, nbytes, delay, gbit)
            yield Prediction(f"{pattern}, {library}", f"{pattern} by {library}, {ranks} machines, {nbytes >> 20} MiB, "
                             f"{delay_ms:g} ms, {gbit:g} Gb/s", FITTED if fixed else PREDICTED, seconds, ms * 1e-3,
                             source)  # fmt: skip


@cache
def seconds_of(pattern: str, library: str, ranks: int, nbytes: int, delay_ms: float, gbit: float) -> float:
    """Simulated seconds of one collective."""
    wire = gbit * 1e9 / 8 * CARRIED
    cluster = switch(ranks, wire, delay_ms * 1e-3)
    backend = gloo(0.0, 1 / (1 + GLOO_S_PER_BYTE * wire)) if library == "Gloo" else nccl(network=True)
    what = Communicator(cluster, backend)
    if pattern == CENTRAL:
        return sum(_run(cluster, what, backend, part, nbytes) for part in ("reduce", "broadcast"))
    return _run(cluster, what, backend, pattern, nbytes)


def _run(cluster: Cluster, library: Communicator, backend: Backend, pattern: str, nbytes: int) -> float:
    engine = Engine(cluster)
    for device, program in _programs(engine, library, backend, pattern, nbytes).items():
        engine.start(program, name=f"rank {device}", rank=device, device=device, resource="host")
    return max(transfer.end_s or 0.0 for transfer in engine.run().transfers)


def _programs(engine: Engine, library: Communicator, backend: Backend, pattern: str, nbytes: int) -> dict[int, Program]:
    """One program a machine."""
    ranks = range(library.cluster.world_size)
    if pattern == "broadcast":
        return library.broadcast(engine, nbytes, kind=pattern)
    if pattern == "reduce":
        return library.reduce(engine, nbytes, kind=pattern)
    if pattern == SHARDED:
        protocol = backend.ring_protocols[-1]
        return dict(enumerate(parameter_server(engine, ranks, nbytes, servers=ranks, protocol=protocol)))
    if pattern == FIXED:
        channel = engine.channel(0, 1, pattern, bandwidth_fraction=backend.ring_protocols[-1].bandwidth_fraction)
        return {0: _send(channel, nbytes), 1: _receive(channel)}
    return dict(enumerate(library.all_reduce(engine, nbytes)))


def _send(channel: Channel, nbytes: int) -> Program:
    yield wait((yield isend(channel, nbytes)))


def _receive(channel: Channel) -> Program:
    yield recv(channel)


def switch(ranks: int, bandwidth: float, delay_s: float) -> Cluster:
    """Machines on one switch, each with one line; a way takes the whole delay."""
    devices = tuple(Device(f"gpu{rank}", "V100", 0, rank) for rank in range(ranks))
    links = [Link(*ends, bandwidth, delay_s / 2, "network") for device in devices
             for ends in ((device.name, "switch"), ("switch", device.name))]  # fmt: skip
    return Cluster("switch", devices, tuple(links))
