"""The collective library: what one call costs besides the bytes, and which algorithm it picks.

NCCL moves a message by one of three protocols: LL (low latency, half the bandwidth), LL128 and Simple. Each is a
line: a start-up cost, a cost per step and a fraction of the link's bandwidth. The library takes the cheapest for
the size at hand, so that time over size is the lower envelope of three lines; one line for all sizes is wrong by
a third between 1 and 64 MiB. Sources of the constants: NCCL 2.28.3 `src/graph/tuning.cc` (base and hardware
latencies), published nccl-tests tables (the bandwidth that is reached, per machine, in the presets).

How many collectives of one process group run at once: NCCL 1 (one internal stream), gloo 2 (two worker threads).

Not modelled: NCCL's tuner plugins, CollNet/SHARP between nodes, CTA and channel counts below the ring share.
"""

from dataclasses import dataclass

from simulator.errors import number, require, unknown, whole

ALGORITHMS = ("auto", "ring", "tree", "nvls")


@dataclass(frozen=True)
class Protocol:
    """One line: seconds before the first step, seconds added to each step, fraction of the link that is reached."""

    name: str
    base_s: float = 0.0
    step_s: float = 0.0
    bandwidth_fraction: float = 1.0

    def __post_init__(self) -> None:
        number(self.base_s, f"base_s of protocol {self.name}")
        number(self.step_s, f"step_s of protocol {self.name}")
        fraction = number(self.bandwidth_fraction, f"bandwidth_fraction of protocol {self.name}", exclusive=True)
        require(fraction <= 1.0, f"bandwidth_fraction {fraction:g} of protocol {self.name}",
                "a protocol reaches at most the link", "Use 1 or less")  # fmt: skip


PLAIN_PROTOCOL = Protocol("plain")


@dataclass(frozen=True)
class Backend:
    """What turns a collective into transfers. Raises InputError on an unknown algorithm or a bad constant."""

    name: str = "plain"
    algorithm: str = "ring"
    ring_protocols: tuple[Protocol, ...] = (PLAIN_PROTOCOL,)
    tree_protocols: tuple[Protocol, ...] = (PLAIN_PROTOCOL,)
    nvls_protocols: tuple[Protocol, ...] = (PLAIN_PROTOCOL,)
    chain_protocols: tuple[Protocol, ...] = ()
    """For broadcast and reduce, which load each link in one direction only. Empty: the ring's."""
    concurrent_collectives: int = 1
    launch_s: float = 0.0
    """Host seconds to enqueue one collective."""
    compute_slowdown: float = 0.0
    """Fraction of its speed that a device's compute loses while a collective runs there."""
    serial: bool = False
    """No overlap at all: collectives start after the whole backward (it happens)."""
    blocks_host: bool = False
    """Whether waiting for a collective blocks the host thread (gloo) or only the stream (NCCL)."""
    source: str = ""

    def __post_init__(self) -> None:
        if self.algorithm not in ALGORITHMS:
            raise unknown("algorithm", self.algorithm, ALGORITHMS)
        whole(self.concurrent_collectives, "concurrent_collectives", minimum=1)
        number(self.launch_s, "launch_s")
        slowdown = number(self.compute_slowdown, "compute_slowdown")
        require(slowdown < 1.0, f"compute_slowdown {slowdown:g}", "compute must still advance", "Use less than 1")
        for protocols, name in ((self.ring_protocols, "ring"), (self.tree_protocols, "tree"),
                                (self.nvls_protocols, "nvls")):  # fmt: skip
            require(bool(protocols), f"{name}_protocols is empty", "at least one is needed", "Add a Protocol")


PLAIN = Backend()


Latencies = tuple[float, float, float]
"""Microseconds of a step by LL, LL128, Simple; the wire's own latency is in them."""
HARDWARE: dict[str, tuple[Latencies, Latencies]] = {
    "nvlink": ((0.6, 1.9, 3.4), (0.6, 1.25, 4.0)),
    "pcie": ((1.0, 2.5, 5.7), (1.0, 1.9, 4.0)),
    "network": ((2.7, 4.0, 14.0), (5.0, 8.5, 14.0)),
}
"""NCCL's hwLat (tuning.cc): a step of the ring and of the tree, by what it crosses."""
BASES: tuple[Latencies, Latencies] = ((6.6, 14.0, 8.4), (6.8, 14.0, 8.4))
"""NCCL's baseLat: ring and tree."""
NAMES = ("LL", "LL128", "Simple")


def nccl(reached: float = 1.0, *, ll_reached: float | None = None, chain_reached: float | None = None,
         nvls_reached: float = 0.69, algorithm: str = "auto", link: str = "nvlink", network: bool | float = False,
         wire_s: float = 0.0, slower_s: float = 0.0, launch_s: float = 10e-6, serial: bool = False,
         compute_slowdown: float = 0.0, source: str = "") -> Backend:  # fmt: skip
    """NCCL. `reached` is the fraction of a link that its Simple protocol reaches, from a published table.

    LL128 reaches 0.92 of it and LL half, or `ll_reached` of the link (tuning.cc caps it per generation); a chain, which
    loads a link in one direction only, may reach `chain_reached`. `nvls_reached` 0.69: 8 x H100, 4 GiB, algbw 275 GB/s
    times 9/8 bytes on the wire over 450 GB/s (NVIDIA/nccl#1455). `network`: the part of a ring's steps that crosses
    nodes (True: all). `wire_s`: latency that the cluster's links already add to a step. `slower_s`: what a step takes
    beyond tuning.cc's, from the smallest messages of a published table.
    """
    inside, across, crossing = HARDWARE[link], HARDWARE["network"], float(network)

    def protocols(which: int, fractions: tuple[float, float, float]) -> tuple[Protocol, ...]:
        made = []
        for index, name in enumerate(NAMES):
            step = (1 - crossing) * inside[which][index] + crossing * across[which][index]
            made.append(Protocol(name, BASES[which][index] * 1e-6, max(0.0, step * 1e-6 - wire_s) + slower_s,
                                 min(1.0, fractions[index])))  # fmt: skip
        return tuple(made)

    reached = number(reached, "reached", exclusive=True)
    ll = 0.5 * reached if ll_reached is None else number(ll_reached, "ll_reached", exclusive=True)
    chain = reached if chain_reached is None else number(chain_reached, "chain_reached", exclusive=True)
    return Backend(
        "nccl", algorithm, protocols(0, (ll, 0.92 * reached, reached)),
        protocols(1, (0.92 * ll / 1.9, 0.92 * 0.92 * reached * 7 / 9, 0.92 * reached)),
        (Protocol("Simple", 25e-6, 0.0, nvls_reached),),
        chain_protocols=protocols(0, (ll * chain / reached, 0.92 * chain, chain)), launch_s=launch_s, serial=serial,
        compute_slowdown=compute_slowdown, source=source,
    )  # fmt: skip


def gloo(step_s: float = 50e-6, reached: float = 1.0, *, source: str = "") -> Backend:
    """Gloo: a ring in the CPU, two collectives of a group at once, the host thread waits for each."""
    line = (Protocol("tcp", 0.0, step_s, reached),)
    return Backend("gloo", "ring", line, line, line, concurrent_collectives=2, blocks_host=True, source=source)
