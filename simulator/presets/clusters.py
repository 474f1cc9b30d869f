"""Machines by name. Every figure has its source beside it; bandwidths are a direction's, in bytes a second.

PCIe 3 x16 and 4 x16: what a peer copy reaches, not the lane rate: 12 GB/s (nccl-tests and bandwidthTest figures, 13.2
GB/s host copies on a 2080 Ti box) and 25 GB/s (RTX 4090 pair with peer access 25.7 GB/s). NVLink 2: 25.78 GB/s a
link (nvidia-smi nvlink -s); V100 has 6 links, A100 12 (300 GB/s a direction), H100 18 (450 GB/s). Network: NCCL's
rule of 12 GB/s per 100 Gb/s port (NVIDIA/nccl-tests#119, #290). Latencies are of the wire and the switch; what the
library adds to each step is in the backend.

Not modelled: PCIe's ordering and retries; NICs shared with storage.
"""

from collections.abc import Callable, Sequence
from functools import partial

from simulator.cluster import Cluster, Device, Link, Ring
from simulator.errors import unknown

GIB = 1 << 30
PCIE3 = 12e9
PCIE4 = 25e9
QPI = 19.2e9
"""One UPI/QPI link between sockets: 9.6 GT/s x 2 bytes (vendor figure); a DGX-1 and most 8-GPU boxes have it."""
NVLINK2 = 25.78e9
NIC_100G = 12e9
ETHERNET_10G = 1.22e9
"""TCP over 10 Gb/s, 64 MiB one way in 55 ms (BinhangYuan/tc_cluster_setting)."""
PCIE_LATENCY = 1.2e-6
"""RTX 4090 pair with peer access: 1.2 us a copy; half on each side of the switch."""
NVLINK_LATENCY = 0.6e-6
NETWORK_LATENCY = 5e-6
MEMORY = {"V100": 16 * GIB, "A100": 40 * GIB, "H100": 80 * GIB, "2080Ti": 11 * GIB, "TITAN-RTX": 24 * GIB,
          "4090": 24 * GIB, "CPU": 0}  # fmt: skip


def both_ways(a: str, b: str, bandwidth: float, latency: float, kind: str) -> list[Link]:
    """A full-duplex cable."""
    return [Link(a, b, bandwidth, latency, kind), Link(b, a, bandwidth, latency, kind)]


def _gpus(count: int, kind: str, node: int = 0) -> list[Device]:
    return [Device(f"gpu{node * count + index}", kind, MEMORY[kind], node) for index in range(count)]


def pcie(count: int, kind: str, bandwidth: float, *, peer_access: bool = True, copy_fraction: float = 1.0,
         name: str, source: str) -> Cluster:  # fmt: skip
    """GPUs in pairs behind PCIe switches, four to a socket. Without peer access every copy goes through the socket."""
    devices = _gpus(count, kind)
    sockets = 1 if count <= 4 else 2
    links: list[Link] = []
    hosts = []
    label = "pcie"
    for index, device in enumerate(devices):
        socket = f"cpu{index // 4}"
        above = f"switch{index // 2}" if peer_access else socket
        links += both_ways(device.name, above, bandwidth, PCIE_LATENCY / 2, label)
        hosts.append(socket)
    if peer_access:
        for switch in range((count + 1) // 2):
            links += both_ways(f"switch{switch}", f"cpu{switch // 2}", bandwidth, PCIE_LATENCY / 2, label)
    if sockets == 2:
        links += both_ways("cpu0", "cpu1", QPI, PCIE_LATENCY / 2, "socket")
    return Cluster(name, tuple(devices), tuple(links), hosts=tuple(hosts), copy_fraction=copy_fraction, source=source)


HYBRID_CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip
"""NVLinks of each pair on a DGX-1 V100: 8 pairs with one, 8 with two, 6 links a GPU (nvidia-smi topo -m)."""
TWO_LINK_RING = (0, 3, 2, 1, 5, 6, 7, 4)
ONE_LINK_RING = (0, 1, 3, 7, 5, 4, 6, 2)


def dgx1(node: int = 0) -> tuple[list[Device], list[Link], list[str]]:
    """One DGX-1 V100: hybrid cube mesh, PCIe 3 switches of two GPUs, two sockets."""
    devices = _gpus(8, "V100", node)
    links: list[Link] = []
    for (a, b), count in HYBRID_CUBE_MESH.items():
        links += both_ways(devices[a].name, devices[b].name, count * NVLINK2, NVLINK_LATENCY, f"nvlink x{count}")
    hosts = []
    for index, device in enumerate(devices):
        links += both_ways(device.name, f"switch{node * 4 + index // 2}", PCIE3, PCIE_LATENCY / 2, "pcie")
        hosts.append(f"cpu{node * 2 + index // 4}")
    for switch in range(4):
        links += both_ways(
            f"switch{node * 4 + switch}", f"cpu{node * 2 + switch // 2}", PCIE3, PCIE_LATENCY / 2, "pcie"
        )
    links += both_ways(f"cpu{node * 2}", f"cpu{node * 2 + 1}", QPI, PCIE_LATENCY / 2, "socket")
    return devices, links, hosts


def _both_directions(orders: Sequence[tuple[tuple[int, ...], float]]) -> tuple[Ring, ...]:
    rings = []
    for order, share in orders:
        rings += [Ring(order, share / 2), Ring((order[0], *reversed(order[1:])), share / 2)]
    return tuple(rings)


def dgx1_v100() -> Cluster:
    """Two rings over double links and two over single links, in both directions: 6 channels' worth of bytes."""
    devices, links, hosts = dgx1()
    rings = _both_directions([(TWO_LINK_RING, 2 / 3), (ONE_LINK_RING, 1 / 3)])
    return Cluster("8xV100-dgx1", tuple(devices), tuple(links), rings, hosts=tuple(hosts),
                   source="DGX-1 V100 matrix of pytorch/pytorch benchmarks/distributed/ddp/README.md")  # fmt: skip


def nvswitch_node(count: int, kind: str, port: float, node: int = 0) -> tuple[list[Device], list[Link], list[str]]:
    """GPUs on an NVSwitch, each on a PCIe 4 switch of its own, and a socket for every four."""
    devices = _gpus(count, kind, node)
    links: list[Link] = []
    hosts = []
    sockets = (count + 3) // 4
    for index, device in enumerate(devices):
        socket, switch = f"cpu{node * sockets + index // 4}", f"switch{node * count + index}"
        links += both_ways(device.name, f"nvswitch{node}", port, NVLINK_LATENCY / 2, "nvlink")
        links += both_ways(device.name, switch, PCIE4, PCIE_LATENCY / 2, "pcie")
        links += both_ways(switch, socket, PCIE4, PCIE_LATENCY / 2, "pcie")
        hosts.append(socket)
    for number in range(1, sockets):
        links += both_ways(f"cpu{node * sockets}", f"cpu{node * sockets + number}", QPI, PCIE_LATENCY / 2, "socket")
    return devices, links, hosts


def nvswitch(count: int, kind: str, port: float, *, multicast: bool, name: str, source: str) -> Cluster:
    """One node of GPUs on an NVSwitch."""
    devices, links, hosts = nvswitch_node(count, kind, port)
    return Cluster(name, tuple(devices), tuple(links), multicast=multicast, hosts=tuple(hosts), source=source)


def _nic(node: int, nics: int, nic: int, switch: str, bandwidth: float) -> list[Link]:
    """A NIC on a PCIe switch, on the network's rail of the same number."""
    name = f"nic{node * nics + nic}"
    return [*both_ways(switch, name, bandwidth, PCIE_LATENCY / 2, "pcie"),
            *both_ways(name, f"rail{nic}", bandwidth, NETWORK_LATENCY, "network")]  # fmt: skip


def _crossing(cut: Sequence[int]) -> tuple[int, ...]:
    """A ring over two nodes of 8: through the first in this order, over the network, back through the second."""
    return (*cut, *(8 + index for index in reversed(cut)))


def two_nodes(kind: str, port: float, nics: int, nic_bandwidth: float, *, name: str, source: str) -> Cluster:
    """Two NVSwitch nodes of 8, with one NIC, or with eight: one beside each GPU.

    With eight NICs the library builds eight rings; each direction of each NIC carries exactly one of them.
    """
    devices: list[Device] = []
    links: list[Link] = []
    hosts: list[str] = []
    for node in range(2):
        more = nvswitch_node(8, kind, port, node)
        devices += more[0]
        links += more[1]
        hosts += more[2]
        for nic in range(nics):
            links += _nic(node, nics, nic, f"switch{node * 8 + nic * (8 // nics)}", nic_bandwidth)
    orders = [(0, 2, 3, 4, 5, 6, 7, 1)] if nics == 1 else [tuple((k + step) % 8 for step in range(8)) for k in range(8)]
    rings = tuple(Ring(_crossing(order), 1 / len(orders)) for order in orders)
    return Cluster(name, tuple(devices), tuple(links), rings, hosts=tuple(hosts), source=source)


def two_dgx1(*, name: str, source: str) -> Cluster:
    """Two DGX-1 with four 100 Gb/s NICs each, one on every PCIe switch; four rings over double links."""
    devices: list[Device] = []
    links: list[Link] = []
    hosts: list[str] = []
    for node in range(2):
        more = dgx1(node)
        devices += more[0]
        links += more[1]
        hosts += more[2]
        for nic in range(4):
            links += _nic(node, 4, nic, f"switch{node * 4 + nic}", NIC_100G)
    cycle = TWO_LINK_RING
    cuts = [cycle[k:] + cycle[:k] for k in (1, 3, 5, 7)]
    rings = tuple(Ring(_crossing(cut), 1 / 4) for cut in cuts)
    return Cluster(name, tuple(devices), tuple(links), rings, hosts=tuple(hosts), source=source)


def pair(kind: str, bandwidth: float, *, name: str, source: str) -> Cluster:
    """Two GPUs with an NVLink bridge, and PCIe 3 beside it."""
    devices = _gpus(2, kind)
    links = both_ways("gpu0", "gpu1", bandwidth, NVLINK_LATENCY, "nvlink")
    for device in devices:
        links += both_ways(device.name, "cpu0", PCIE3, PCIE_LATENCY / 2, "pcie")
    return Cluster(name, tuple(devices), tuple(links), hosts=("cpu0", "cpu0"), source=source)


def ethernet(nodes: int, kind: str, bandwidth: float, *, name: str, source: str) -> Cluster:
    """One GPU a node, on one Ethernet switch."""
    devices = tuple(Device(f"gpu{node}", kind, MEMORY[kind], node) for node in range(nodes))
    links: list[Link] = []
    for node, device in enumerate(devices):
        links += both_ways(device.name, f"cpu{node}", PCIE3, PCIE_LATENCY / 2, "pcie")
        links += both_ways(f"cpu{node}", "ethernet", bandwidth, 10 * NETWORK_LATENCY, "network")
    return Cluster(name, devices, tuple(links), hosts=tuple(f"cpu{node}" for node in range(nodes)), source=source)


def laptop(ranks: int, *, name: str, source: str) -> Cluster:
    """Processes of one computer that train on its CPU, a core each, and talk over loopback."""
    devices = tuple(Device(f"rank{rank}", "CPU") for rank in range(ranks))
    links = [link for device in devices for link in both_ways(device.name, "loopback", 1.8e9, 0.0, "loopback")]
    return Cluster(name, devices, tuple(links), hosts=("loopback",) * ranks, source=source)


DGX1_SOURCE = "DGX-1 V100 matrix of pytorch/pytorch benchmarks/distributed/ddp/README.md; NVLink 2 at 25.78 GB/s a link"
PCIE3_SOURCE = "PCIe 3 x16: 12 GB/s a direction, two GPUs a switch, four a socket"
PCIE4_SOURCE = "PCIe 4 x16: 25 GB/s a direction (RTX 4090 pair with peer access: 25.7 GB/s)"
NVSWITCH_SOURCE = "NVLink 3: 300 GB/s a GPU and direction; NVLink 4: 450 (vendor figures)"
NETWORK_SOURCE = f"{NVSWITCH_SOURCE}; 12 GB/s per 100 Gb/s port (NVIDIA/nccl-tests#119, #290)"
NO_PEER_SOURCE = "2 x RTX 2080 Ti without peer access: 5.7 GB/s a copy (bandwidth test in a rented container)"
NO_PEER_COPY = 5.7 / 12
LAPTOP_SOURCE = ("four cores, one for each rank (torchrun sets OMP_NUM_THREADS=1); gloo over loopback 1.8 GB/s, measured on "
                 "two cores, noisy by 10 to 25 %")  # fmt: skip

CLUSTERS: dict[str, Callable[[], Cluster]] = {
    **{f"{n}xV100-pcie": partial(pcie, n, "V100", PCIE3, name=f"{n}xV100-pcie", source=PCIE3_SOURCE)
       for n in (2, 4, 8)},
    "8xV100-dgx1": dgx1_v100,
    **{f"{n}xA100": partial(nvswitch, n, "A100", 300e9, multicast=False, name=f"{n}xA100", source=NVSWITCH_SOURCE)
       for n in (4, 8)},
    **{f"{n}xA100-pcie4": partial(pcie, n, "A100", PCIE4, name=f"{n}xA100-pcie4", source=PCIE4_SOURCE)
       for n in (4, 8)},
    "4xA100-pcie3": lambda: pcie(4, "A100", PCIE3, name="4xA100-pcie3", source=PCIE3_SOURCE),
    "8xH100": lambda: nvswitch(8, "H100", 450e9, multicast=True, name="8xH100", source=NVSWITCH_SOURCE),
    "4x2080Ti-pcie": lambda: pcie(4, "2080Ti", PCIE3, peer_access=False, copy_fraction=NO_PEER_COPY,
                                  name="4x2080Ti-pcie", source=f"{PCIE3_SOURCE}; {NO_PEER_SOURCE}"),
    "2x2080Ti-pcie": lambda: pcie(2, "2080Ti", PCIE3, peer_access=False, copy_fraction=NO_PEER_COPY,
                                  name="2x2080Ti-pcie", source=f"{PCIE3_SOURCE}; {NO_PEER_SOURCE}"),
    "4x4090-nopeer": lambda: pcie(4, "4090", PCIE4, peer_access=False, copy_fraction=19 / 25, name="4x4090-nopeer",
                                   source=f"{PCIE4_SOURCE}; without peer access 19 GB/s a copy"),
    "8x4090-pcie4": lambda: pcie(8, "4090", PCIE4, name="8x4090-pcie4", source=PCIE4_SOURCE),
    "2xTITAN-RTX-nvlink": lambda: pair("TITAN-RTX", 2 * NVLINK2, name="2xTITAN-RTX-nvlink",
                                       source="NVLink 2 bridge: 2 x 25.78 GB/s (huggingface/transformers#9371)"),
    "2xTITAN-RTX-pcie": lambda: pcie(2, "TITAN-RTX", PCIE3, peer_access=False, copy_fraction=NO_PEER_COPY,
                                     name="2xTITAN-RTX-pcie", source=PCIE3_SOURCE),
    "2x8xV100-dgx1": lambda: two_dgx1(name="2x8xV100-dgx1", source=f"{DGX1_SOURCE}; 4 x 100 Gb/s a node"),
    "2x8xA100-1nic": lambda: two_nodes("A100", 300e9, 1, NIC_100G, name="2x8xA100-1nic", source=NETWORK_SOURCE),
    "2x8xA100-8nic": lambda: two_nodes("A100", 300e9, 8, NIC_100G, name="2x8xA100-8nic", source=NETWORK_SOURCE),
    "2x8xH100-1nic": lambda: two_nodes("H100", 450e9, 1, NIC_100G, name="2x8xH100-1nic", source=NETWORK_SOURCE),
    "2x8xH100-8nic": lambda: two_nodes("H100", 450e9, 8, NIC_100G, name="2x8xH100-8nic", source=NETWORK_SOURCE),
    "2xV100-10gbe": lambda: ethernet(2, "V100", ETHERNET_10G, name="2xV100-10gbe",
                                     source="TCP over 10 Gb/s: 1.22 GB/s (BinhangYuan/tc_cluster_setting)"),
    "laptop": lambda: laptop(4, name="laptop", source=LAPTOP_SOURCE),
}  # fmt: skip


def load_cluster(name: str) -> Cluster:
    """The preset of that name. Raises InputError, with the known names and the nearest, for another."""
    if name not in CLUSTERS:
        raise unknown("cluster", name, CLUSTERS)
    return CLUSTERS[name]()
