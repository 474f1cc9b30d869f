"""Preset machines: everything is joined, rings are legal and lie on the links that they are meant for."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise, permutations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster import Cluster, Device, Link
from simulator.presets.clusters import (
    CLUSTERS,
    HYBRID_CUBE_MESH,
    NVLINK2,
    ONE_LINK_RING,
    TWO_LINK_RING,
    dgx1_v100,
    load_cluster,
)

EIGHT_NICS = ("2x8xA100-8nic", "2x8xH100-8nic")


def edges(order: tuple[int, ...]) -> list[tuple[int, int]]:
    return list(zip(order, (*order[1:], order[0]), strict=True))


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_preset_has_a_route_between_all_pairs_that_passes_through_no_device(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.name == name
    assert cluster.source
    devices = {device.name for device in cluster.devices}
    for a, b in permutations(range(cluster.world_size), 2):
        links = [cluster.links[index] for index in cluster.route(a, b).links]
        assert (links[0].source, links[-1].target) == (cluster.devices[a].name, cluster.devices[b].name)
        assert all(earlier.target == later.source for earlier, later in pairwise(links))
        assert not devices & {link.target for link in links[:-1]}
        route = cluster.route(a, b)
        assert route.latency_s == sum(link.latency_s for link in links)
        assert route.bandwidth_bytes_per_s == min(link.bandwidth_bytes_per_s for link in links)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_ring_visits_every_device_once_and_shares_sum_to_one(name: str) -> None:
    cluster = load_cluster(name)
    for ring in cluster.rings:
        assert sorted(ring.order) == list(range(cluster.world_size))
    assert sum(ring.share for ring in cluster.rings) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_link_is_full_duplex(name: str) -> None:
    cluster = load_cluster(name)
    there = {(link.source, link.target, link.kind): link for link in cluster.links}
    for (source, target, kind), link in there.items():
        back = there[target, source, kind]
        assert (back.bandwidth_bytes_per_s, back.latency_s) == (link.bandwidth_bytes_per_s, link.latency_s)


@pytest.mark.parametrize("name", CLUSTERS)
def test_host_memory_reaches_every_device(name: str) -> None:
    cluster = load_cluster(name)
    for host, device in zip(cluster.hosts, cluster.devices, strict=True):
        assert cluster.endpoint_route(host, device.name).links
        assert cluster.endpoint_route(device.name, host).links


@pytest.mark.parametrize("name", CLUSTERS)
def test_a_part_of_a_preset_is_a_cluster_again(name: str) -> None:
    cluster = load_cluster(name)
    for count in range(1, cluster.world_size + 1):
        part = cluster.take(count)
        assert part.devices == cluster.devices[:count]
        assert all(sorted(ring.order) == list(range(count)) for ring in part.rings)
    assert cluster.take(cluster.world_size) == cluster


# ---- single machines


def test_a_dgx1_has_6_nvlinks_a_gpu() -> None:
    counts = Counter[int]()
    for (a, b), links in HYBRID_CUBE_MESH.items():
        counts[a] += links
        counts[b] += links
    assert counts == dict.fromkeys(range(8), 6)
    assert Counter(HYBRID_CUBE_MESH.values()) == {1: 8, 2: 8}
    cluster = dgx1_v100()
    for device in cluster.devices:
        out = [link for link in cluster.links if link.source == device.name and link.kind.startswith("nvlink")]
        assert sum(link.bandwidth_bytes_per_s for link in out) == pytest.approx(6 * NVLINK2)


@pytest.mark.parametrize(("order", "links"), [(TWO_LINK_RING, 2), (ONE_LINK_RING, 1)])
def test_a_dgx1s_rings_lie_on_nvlinks_alone(order: tuple[int, ...], links: int) -> None:
    for a, b in edges(order):
        assert HYBRID_CUBE_MESH[min(a, b), max(a, b)] == links


def test_a_dgx1s_rings_use_every_nvlink_once_in_each_direction() -> None:
    """So 6 links' worth of bytes: the shares are in proportion to the links, and none waits for another."""
    cluster = dgx1_v100()
    load = Counter[int]()
    for ring in cluster.rings:
        for a, b in edges(ring.order):
            (link,) = cluster.route(a, b).links
            load[link] += 1
    assert set(load.values()) == {1}
    assert len(load) == 2 * len(HYBRID_CUBE_MESH)
    seconds = {ring.share / cluster.route(*ring.order[:2]).bandwidth_bytes_per_s for ring in cluster.rings}
    assert max(seconds) == pytest.approx(min(seconds))


@pytest.mark.parametrize(("name", "gb_per_s"), [("4xA100", 300), ("8xA100", 300), ("8xH100", 450)])
def test_gpus_on_an_nvswitch_reach_each_other_at_their_port(name: str, gb_per_s: int) -> None:
    cluster = load_cluster(name)
    for a, b in permutations(range(cluster.world_size), 2):
        assert cluster.route(a, b).bandwidth_bytes_per_s == gb_per_s * 1e9
    assert cluster.multicast == (name == "8xH100")


def test_pcie_pairs_meet_at_their_switch_and_others_at_a_socket() -> None:
    cluster = load_cluster("8xV100-pcie")

    def through(device: int) -> list[str]:
        return [cluster.links[index].target for index in cluster.route(0, device).links[:-1]]

    assert through(1) == ["switch0"]
    assert through(2) == ["switch0", "cpu0", "switch1"]
    assert through(7) == ["switch0", "cpu0", "cpu1", "switch3"]


def test_without_peer_access_every_copy_goes_through_the_socket() -> None:
    cluster = load_cluster("4x2080Ti-pcie")
    assert cluster.copy_fraction < 1
    for a, b in permutations(range(4), 2):
        assert "cpu0" in [cluster.links[i].target for i in cluster.route(a, b).links]


# ---- several machines


def crossings(cluster: Cluster) -> Counter[str]:
    """How many rings each direction of each NIC carries."""
    found = Counter[str]()
    for ring in cluster.rings:
        for a, b in edges(ring.order):
            found.update(cluster.links[i].name for i in cluster.route(a, b).links if cluster.links[i].kind == "network")
    return found


@pytest.mark.parametrize("name", EIGHT_NICS)
def test_each_direction_of_each_of_eight_nics_carries_one_ring(name: str) -> None:
    cluster = load_cluster(name)
    nics = [link.name for link in cluster.links if link.kind == "network"]
    assert len(nics) == 2 * 2 * 8
    assert crossings(cluster) == dict.fromkeys(nics, 1)
    assert len(cluster.rings) == 8


@pytest.mark.parametrize("name", ["2x8xA100-1nic", "2x8xH100-1nic"])
def test_one_nic_a_node_carries_the_one_ring_both_ways(name: str) -> None:
    cluster = load_cluster(name)
    assert len(cluster.rings) == 1
    assert set(crossings(cluster).values()) == {1}
    assert len(crossings(cluster)) == 2 * 2


def test_two_dgx1_use_their_four_nics_a_node() -> None:
    cluster = load_cluster("2x8xV100-dgx1")
    nics = [link.name for link in cluster.links if link.kind == "network"]
    assert len(nics) == 2 * 2 * 4
    assert set(crossings(cluster)) == set(nics)
    assert len(set(crossings(cluster).values())) == 1
    for ring in cluster.rings:
        crossed = [(a, b) for a, b in edges(ring.order) if (a < 8) != (b < 8)]
        assert len(crossed) == 2
        inside = [(a % 8, b % 8) for a, b in edges(ring.order) if (a < 8) == (b < 8)]
        assert all(HYBRID_CUBE_MESH[min(a, b), max(a, b)] == 2 for a, b in inside)


@pytest.mark.parametrize("name", CLUSTERS)
def test_nodes_are_as_many_as_the_name_says(name: str) -> None:
    expected = 2 if name.startswith("2x8x") or name.endswith("10gbe") else 1
    assert load_cluster(name).nodes == expected


# ---- the shortest route, against networkx


@given(st.integers(2, 5), st.integers(1, 4), st.data())
@settings(max_examples=100, deadline=None)
def test_a_route_has_the_least_sum_of_inverse_bandwidths(n: int, switches: int, data: st.DataObject) -> None:
    nodes = [f"gpu{i}" for i in range(n)] + [f"switch{i}" for i in range(switches)]
    links = [link for i in range(n) for link in (Link(f"gpu{i}", "switch0", 1.0), Link("switch0", f"gpu{i}", 1.0))]
    for a, b in permutations(nodes, 2):
        if data.draw(st.booleans()):
            links.append(Link(a, b, data.draw(st.integers(1, 9)), kind="extra"))
    cluster = Cluster("random", tuple(Device(f"gpu{i}") for i in range(n)), tuple(links))
    for a, b in permutations(range(n), 2):
        graph = networkx.DiGraph()
        for link in links:
            if not {link.source, link.target} & {f"gpu{i}" for i in range(n) if i not in (a, b)}:
                weight = 1 / link.bandwidth_bytes_per_s
                old = graph.get_edge_data(link.source, link.target, {"weight": weight})["weight"]
                graph.add_edge(link.source, link.target, weight=min(old, weight))
        least = networkx.shortest_path_length(graph, f"gpu{a}", f"gpu{b}", weight="weight")
        ours = sum(1 / links[index].bandwidth_bytes_per_s for index in cluster.route(a, b).links)
        assert ours == pytest.approx(least)


def test_the_graph_has_an_edge_for_every_link() -> None:
    cluster = load_cluster("8xV100-dgx1")
    found = {data["index"]: (source, target, data["kind"]) for source, target, data in cluster.graph.edges(data=True)}
    assert found == {index: (link.source, link.target, link.kind) for index, link in enumerate(cluster.links)}


def test_equal_clusters_are_equal_keys_whatever_routes_were_asked_for() -> None:
    asked, fresh = load_cluster("8xV100-dgx1"), load_cluster("8xV100-dgx1")
    for a, b in permutations(range(8), 2):
        asked.route(a, b)
    assert (asked, hash(asked)) == (fresh, hash(fresh))
    assert replace(asked, name="mine") != fresh
