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


def _nccl(fractions: tuple[float, float, float], nvls_fraction: float, source: str, *, network: bool = False,
          **options: object) -> Backend:  # fmt: skip
    ll, ll128, simple = fractions
    hops = (2.7e-6, 4.0e-6, 14.0e-6) if network else (0.6e-6, 1.9e-6, 3.4e-6)
    tree_hops = (5.0e-6, 8.5e-6, 14.0e-6) if network else (0.6e-6, 1.25e-6, 4.0e-6)
    return Backend(
        name="nccl",
        algorithm="auto",
        ring_protocols=(
            Protocol("LL", 6.6e-6, hops[0], ll),
            Protocol("LL128", 14.0e-6, hops[1], ll128),
            Protocol("Simple", 8.4e-6, hops[2], simple),
        ),
        tree_protocols=(
            Protocol("LL", 6.8e-6, tree_hops[0], 0.92 * ll / 1.9),
            Protocol("LL128", 14.0e-6, tree_hops[1], 0.92 * ll128 * 7 / 9),
            Protocol("Simple", 8.4e-6, tree_hops[2], 0.92 * simple),
        ),
        nvls_protocols=(Protocol("Simple", 25.0e-6, 0.0, nvls_fraction),),
        source=source,
        **options,  # type: ignore[arg-type]
    )


def nccl(reached: float = 1.0, *, nvls_reached: float = 0.69, algorithm: str = "auto", network: bool = False,
         launch_s: float = 10e-6, serial: bool = False, compute_slowdown: float = 0.0, source: str = "") -> Backend:  # fmt: skip
    """NCCL. `reached` is the fraction of a link that its Simple protocol reaches, from a published table.

    LL reaches half of that and LL128 0.92 of it (tuning.cc). `nvls_reached` 0.69: 8 x H100, 4 GiB, algbw 275 GB/s
    times 9/8 bytes on the wire over 450 GB/s (NVIDIA/nccl#1455). `network`: some ring edge crosses nodes.
    """
    backend = _nccl((0.5 * reached, 0.92 * reached, reached), nvls_reached, source, network=network,
                    launch_s=launch_s, serial=serial, compute_slowdown=compute_slowdown)  # fmt: skip
    return Backend(**{**backend.__dict__, "algorithm": algorithm})


def gloo(step_s: float = 50e-6, reached: float = 1.0, *, source: str = "") -> Backend:
    """Gloo: a ring in the CPU, two collectives of a group at once, the host thread waits for each."""
    line = (Protocol("tcp", 0.0, step_s, reached),)
    return Backend("gloo", "ring", line, line, line, concurrent_collectives=2, blocks_host=True, source=source)
