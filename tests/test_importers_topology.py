"""Link matrices of real machines read in the shapes in which people paste them, and the best ring against all rings.

The expected counts are facts of the machines: a DGX-1 V100 has 6 NVLinks a GPU, 8 pairs with two and 8 with one; all
pairs of an NVSwitch are alike. Rings are checked against every ring of small machines.
"""

import contextlib
import itertools
import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster import Cluster, Device
from simulator.collectives.communicator import Communicator
from simulator.errors import InputError
from simulator.importers.topology import (
    TopologyMatrix,
    parse_topology,
    read_topology,
    read_topology_xml,
    to_cluster,
    topology_json,
    topology_text,
)
from simulator.importers.topology_cluster import class_rule, is_switched
from simulator.importers.topology_matrix import badness, best_ring
from simulator.presets.backends import backend_for
from simulator.presets.clusters import NO_PEER_COPY, NVLINK2, PCIE3, load_cluster

DATA = Path(__file__).with_name("data") / "topo"
FILES = sorted(path for path in DATA.iterdir() if path.suffix == ".txt")
DGX1 = "dgx1_v100_four_nics.txt"
NV2_RING, NV1_RING = (0, 3, 2, 1, 5, 6, 7, 4), (0, 1, 3, 7, 5, 4, 6, 2)
CLASSES = ("NV2", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS")

FACTS = {
    # file: GPUs, NICs, rows, pairs of GPUs by class, best ring, its worst link
    DGX1: (8, 4, 12, {"NV1": 8, "NV2": 8, "SYS": 8 * 7 // 2 - 16}, NV2_RING, "NV2"),
    "v100_cube_mesh_no_nic_rows.txt": (8, 2, 8, {"NV2": 8, "NV1": 8, "SYS": 8 * 7 // 2 - 16}, NV1_RING, "NV2"),
    "a100_nv4_nic_legend.txt": (4, 4, 8, {"NV4": 4 * 3 // 2}, (0, 1, 2, 3), "NV4"),
    "h100_nvswitch_tabs.txt": (8, 9, 17, {"NV18": 8 * 7 // 2}, tuple(range(8)), "NV18"),
    "v100_nv2_list_affinity.txt": (4, 1, 5, {"NV2": 4 * 3 // 2}, (0, 1, 2, 3), "NV2"),
    "rtx4090_all_sys.txt": (8, 0, 8, {"SYS": 8 * 7 // 2}, tuple(range(8)), "SYS"),
    "two_2080ti_no_peer_access.txt": (2, 0, 2, {"PIX": 1}, (0, 1), "PIX"),
    "two_3090_phb.txt": (2, 0, 2, {"PHB": 1}, (0, 1), "PHB"),
    "dgx2_cut_after_gpu4.txt": (16, 10, 5, {"NV6": 15 + 14 + 13 + 12 + 11}, None, None),
    "one_gpu_two_nics.txt": (1, 2, 3, {}, None, None),
    "pix_node_sys_two_sockets.txt": (8, 0, 8, {"PIX": 4, "NODE": 2 * 4, "SYS": 4 * 4}, tuple(range(8)), "SYS"),
}


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_the_matrix_of_a_real_machine_gives_its_counts_and_its_best_ring(file: Path) -> None:
    gpus, nics, rows, classes, ring, worst = FACTS[file.name]
    found = topology_json(file)
    json.dumps(found, allow_nan=False)
    assert (found["file"], found["gpus"], found["nics"], found["rows_present"]) == (file.name, gpus, nics, rows)
    assert (found["gpu_pair_classes"], found["asymmetric_cells"]) == (classes, 0)
    assert found.get("best_ring") == (None if ring is None else list(ring))
    assert found.get("best_ring_worst_link") == worst
    assert ("best_ring_links" in found) == (ring is not None and gpus > 2)
    if gpus > 2 and ring is not None:
        ends = zip(ring, ring[1:] + ring[:1], strict=True)
        assert found["best_ring_links"] == [found["links"][f"GPU{min(pair)}-GPU{max(pair)}"] for pair in ends]
        assert ring[1] < ring[-1]
    pairs = (gpus + nics) * (gpus + nics - 1) // 2
    assert len(found["links"]) == pairs


def test_every_file_of_the_folder_is_tested() -> None:
    assert {file.name for file in FILES} == set(FACTS)


@pytest.mark.parametrize("file", [*FILES, DATA / "half_dgx1_nccl.xml"], ids=lambda path: path.stem)
def test_the_text_fits_80_columns_and_names_every_gpu_and_nic(file: Path) -> None:
    text = topology_text(file)
    assert max(map(len, text.splitlines())) <= 80
    matrix = read_topology(file)
    assert all(name in text for name in matrix.names)
    if matrix.worst_link:
        assert f"Its worst link: {matrix.worst_link}" in text


def test_a_dgx1_has_six_nvlinks_a_gpu_and_the_nearest_nic_is_not_the_first_column() -> None:
    matrix = read_topology(DATA / DGX1)
    for gpu in range(8):
        links = [matrix.link(gpu, other) or "" for other in range(8) if other != gpu]
        assert sum(int(link[2:]) for link in links if link.startswith("NV")) == 6
    assert matrix.nics[0] == "mlx5_2"
    assert [matrix.nearest_nics(gpu) for gpu in range(8)] == [
        (name,) for name in ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3") for _ in range(2)
    ]


def test_affinity_is_read_in_the_order_of_its_titles_and_the_nic_legend_beside_it() -> None:
    last = read_topology(DATA / "h100_nvswitch_tabs.txt").affinity[7]
    assert (last.cpus, last.numa, last.gpu_numa_id) == ("80-159", "1", "N/A")
    listed = read_topology(DATA / "v100_nv2_list_affinity.txt").affinity[0]
    assert (listed.cpus, listed.numa, listed.gpu_numa_id) == ("0,2,4,6,8,10", "0", "")
    legend = read_topology(DATA / "a100_nv4_nic_legend.txt")
    assert dict(zip(legend.nics, legend.nic_devices)) == {f"NIC{i}": f"mlx5_{i}" for i in range(4)}


def test_without_rows_of_nics_the_links_between_nics_are_unknown_and_the_rest_is_known() -> None:
    matrix = read_topology(DATA / "v100_cube_mesh_no_nic_rows.txt")
    assert matrix.missing_rows == ()
    assert matrix.link(8, 9) is None
    assert (matrix.link(2, 8), matrix.link(0, 8), matrix.link(4, 9)) == ("PIX", "NODE", "SYS")


# ---- incomplete matrices


def test_a_cut_matrix_names_its_missing_rows_and_is_completed_by_symmetry_when_asked() -> None:
    cut = DATA / "dgx2_cut_after_gpu4.txt"
    matrix = read_topology(cut)
    assert matrix.missing_rows == tuple(f"GPU{i}" for i in range(5, 16))
    assert "GPU5 to GPU15" in matrix.incomplete and "complete" in matrix.incomplete
    assert "GPU5 to GPU15" in topology_text(cut).replace("\n  ", " ")
    with pytest.raises(InputError, match="GPU5 to GPU15"):
        to_cluster(matrix)
    whole = read_topology(cut, complete=True)
    assert whole.pair_classes == {"NV6": 16 * 15 // 2}
    assert whole.best_ring == tuple(range(16))
    assert "taken to be NV6" in whole.notes[-1]
    assert whole.completed() is whole
    assert topology_json(cut, complete=True)["best_ring"] == list(range(16))


def test_rows_that_differ_are_not_completed_but_a_column_for_each_missing_cell_is_enough() -> None:
    lines = (DATA / DGX1).read_text().splitlines()
    two_missing = "\n".join(lines[:7]) + "\n"
    with pytest.raises(InputError, match=r"GPU6, GPU7 .*NV1, NV2, SYS"):
        parse_topology(two_missing, complete=True)
    one_missing = "\n".join(lines[:8]) + "\n"
    assert parse_topology(one_missing).best_ring is None
    filled = parse_topology(one_missing, complete=True)
    assert filled.best_ring == NV2_RING
    assert filled.cells == tuple(row[:8] + row[8:] for row in filled.cells)


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_a_text_cut_anywhere_never_gives_a_wrong_link(file: Path) -> None:
    text = file.read_text()
    whole = read_topology(file)
    known = {(a, b): whole.link(i, j) for i, a in enumerate(whole.names) for j, b in enumerate(whole.names)}
    for end in range(0, len(text), 1 if len(text) < 500 else 7):
        try:
            part = parse_topology(text[:end])
        except InputError:
            continue
        for i, a in enumerate(part.names):
            for j, b in enumerate(part.names):
                assert part.link(i, j) in (None, known[a, b]), text[max(0, end - 20) : end]


# ---- shapes


def variants(text: str) -> dict[str, str]:
    lines = text.splitlines()
    wrapped = [part for line in lines for part in ([line] if len(line) < 80 else [line[:72].rstrip(), line[72:]])]
    return {
        "windows": text.replace("\n", "\r\n"),
        "underlined": "\x1b[4m" + lines[0] + "\x1b[0m\n" + "\n".join(lines[1:]),
        "underlined, escape lost": "[4m" + lines[0] + "[0m\n" + "\n".join(lines[1:]),
        "quoted": "\n".join("> " + line for line in lines),
        "comment": "\n".join("# " + line for line in lines),
        "grep": "\n".join("jobs/run.submit:# " + line for line in lines),
        "launcher": "\n".join("[1,0]<stdout>:" + line for line in lines),
        "fenced": "```text\n" + text + "\n```",
        "prompt": "$ nvidia-smi topo -m\n" + text + "\n$ \n",
        "indented": "\n".join("\t    " + line for line in lines),
        "blank lines": "\n\n".join(lines),
        "one blank": "\n".join(" ".join(line.split()) for line in lines),
        "tabs": "\n".join("\t".join(line.split()) for line in lines),
        "wrapped": "\n".join(wrapped),
    }


@pytest.mark.parametrize("file", [file for file in FILES if "cut" not in file.stem], ids=lambda path: path.stem)
def test_quotes_prompts_colours_and_wrapped_lines_change_nothing(file: Path) -> None:
    text = file.read_text().split("\n\n")[0] + "\n"
    plain = parse_topology(text)
    for name, changed in variants(text).items():
        if name == "wrapped" and "\t" in text:
            continue
        found = parse_topology(changed)
        assert (found.gpus, found.nics, found.cells, found.rows) == (plain.gpus, plain.nics, plain.cells, plain.rows), (
            name
        )
        if name != "wrapped":
            assert found.affinity == plain.affinity, name


def test_columns_in_any_order_give_gpus_by_number() -> None:
    mixed = "mlx5_0 GPU1 GPU0\nGPU1 PIX X NV4\nmlx5_0 X PIX SYS\nGPU0 SYS NV4 X\n"
    matrix = parse_topology(mixed)
    assert (matrix.gpus, matrix.nics) == (("GPU0", "GPU1"), ("mlx5_0",))
    assert (matrix.link(0, 1), matrix.link(0, 2), matrix.link(1, 2)) == ("NV4", "SYS", "PIX")


def test_an_old_drivers_word_for_sys_is_read_and_an_empty_cell_is_unknown() -> None:
    assert parse_topology("GPU0 GPU1\nGPU0 X SOC\nGPU1 SOC X\n").link(0, 1) == "SYS"
    tabs = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \t\tPHB\nGPU1\tNODE\t X \tNODE\nGPU2\tPHB\t\t X \n"
    matrix = parse_topology(tabs)
    assert (matrix.link(0, 1), matrix.link(1, 2), matrix.link(0, 2)) == ("NODE", "NODE", "PHB")
    assert matrix.missing_rows == ("GPU0", "GPU2")


def test_two_cells_that_disagree_are_counted_and_the_worse_is_used() -> None:
    matrix = parse_topology("GPU0 GPU1 GPU2\nGPU0 X NV4 NV4\nGPU1 NV3 X NV4\nGPU2 NV4 NV4 X\n")
    assert matrix.asymmetric_cells == 1
    assert matrix.link(0, 1) == matrix.link(1, 0) == matrix.worst_link == "NV3"
    assert "GPU0 and GPU1" in matrix.notes[0]


def test_peer_access_comes_from_its_own_matrix_and_from_no_link_class() -> None:
    without = DATA / "two_2080ti_no_peer_access.txt"
    assert read_topology(without).peer_access is False
    text = without.read_text()
    assert parse_topology(text.split("\n\n")[0]).peer_access is None
    assert parse_topology(text.replace("NS", "OK")).peer_access is True
    assert parse_topology(text.replace("topo -p2p p", "topo -p2p n")).peer_access is None, "NVLink's, not PCIe's"
    assert "not supported" in topology_text(without)


def test_a_second_matrix_is_left_out_and_said_so() -> None:
    text = (DATA / "two_3090_phb.txt").read_text()
    assert "second matrix" in parse_topology(text + text.replace("PHB", "SYS")).notes[0]
    assert parse_topology(text + text.replace("PHB", "SYS")).link(0, 1) == "PHB"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no header"),
        ("hello\nworld", "nvidia-smi topo -m"),
        ("GPU[0]\t\t: (Topology) Numa Node: 0\n", "nvidia-smi topo -m"),
        ("GPU0 GPU1\n", "no row"),
        ("GPU0 X NV1\nGPU1 NV1 X\n", "before the header"),
        ("GPU0 GPU1\nGPU0 X\nGPU1 NV1 X\n", "row GPU0 has 1 cells"),
        ("GPU0 GPU1\nGPU0 X NV1 NV1\nGPU1 NV1 X\n", "2 link classes are needed"),
        ("GPU0 GPU1\nGPU0 NV1 X\nGPU1 X NV1\n", "have shifted"),
        ("GPU0 GPU1\nGPU0 X NV1\nGPU0 X NV2\nGPU1 NV1 X\n", "comes twice"),
        ("GPU0 GPU1\nGPU0 X NV1\nGPU1 NV1 X\nGPU2 X NV1\n", "is no column"),
        ("GPU0 GPU0\nGPU0 X X\n", "comes twice"),
        (" ".join(f"GPU{i}" for i in range(300)) + "\nGPU0 X " + "SYS " * 299 + "\n", "at most 256"),
        ("<system></system>", "no gpu"),
        ("<system><gpu", "Whole XML"),
        ("<html><system/></html>", "begins with"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><system/>', "entities"),
        ("<system>" + "<pci>" * 100, "nests"),
        ('<system><gpu dev="x"/></system>', "whole number"),
        ('<system><gpu dev="0"/><gpu dev="0"/></system>', "twice"),
        ("<system><nvlink/></system>", "outside a gpu"),
    ],
)
def test_damaged_or_foreign_text_names_the_file_the_rule_and_the_next_step(text: str, said: str) -> None:
    with pytest.raises(InputError, match=r"here\.txt") as problem:
        parse_topology(text, "here.txt")
    assert said in str(problem.value) and "\n" not in str(problem.value)


def test_files_that_are_no_text_are_input_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.txt"):
        topology_json(tmp_path / "nowhere.txt")
    with pytest.raises(InputError):
        topology_json(tmp_path)
    file = tmp_path / "binary.txt"
    for content in (b"\xff\xfa\x00", b"GPU0 GPU1\x00", b"\x80"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"binary\.txt"):
            topology_json(file)
    file.write_bytes((DATA / "two_3090_phb.txt").read_text().encode("utf-16"))
    assert topology_json(file)["best_ring"] == [0, 1]


# ---- the best ring


def all_rings(n: int) -> list[tuple[int, ...]]:
    return [(0, *rest) for rest in itertools.permutations(range(1, n)) if n <= 2 or rest[0] < rest[-1]]


def machine(links: list[str], n: int) -> TopologyMatrix:
    pairs = dict(zip(itertools.combinations(range(n), 2), links))
    names = tuple(f"GPU{a}" for a in range(n))
    cells = tuple(tuple(None if a == b else pairs[min(a, b), max(a, b)] for b in range(n)) for a in range(n))
    return TopologyMatrix(names, cells=cells, rows=names)


machines = st.integers(2, 7).flatmap(
    lambda n: st.lists(st.sampled_from(CLASSES), min_size=n * (n - 1) // 2, max_size=n * (n - 1) // 2).map(
        lambda links: machine(links, n)
    )
)


@settings(max_examples=60, deadline=None)
@given(machines)
def test_no_ring_is_better_than_the_best_and_none_as_good_comes_before_it(matrix: TopologyMatrix) -> None:
    def worst_first(ring: tuple[int, ...]) -> list[int]:
        return sorted((badness(matrix.link(a, b) or "") for a, b in zip(ring, ring[1:] + ring[:1])), reverse=True)

    rings = all_rings(len(matrix.gpus))
    assert matrix.best_ring == min(rings, key=lambda ring: (worst_first(ring), ring))
    assert badness(matrix.worst_link or "") == min(worst_first(ring)[0] for ring in rings)


@settings(max_examples=20, deadline=None)
@given(machines, st.randoms(use_true_random=False))
def test_renumbering_the_gpus_keeps_the_classes_along_the_best_ring(
    matrix: TopologyMatrix, order: random.Random
) -> None:
    n = len(matrix.gpus)
    new = order.sample(range(n), n)
    cells = tuple(tuple(matrix.cells[new[a]][new[b]] for b in range(n)) for a in range(n))
    renumbered = TopologyMatrix(matrix.gpus, cells=cells, rows=matrix.gpus)
    assert sorted(renumbered.ring_links) == sorted(matrix.ring_links)


def test_sixteen_gpus_with_two_kinds_of_links_and_more_kinds_than_64_bits_can_tell_apart() -> None:
    # Even and odd numbers are two sockets: two crossings are the least, and 0 - 1 is the first in order.
    assert best_ring(16, lambda a, b: (a - b) % 2) == (0, *range(1, 16, 2), *range(2, 16, 2))
    ring = best_ring(12, lambda a, b: abs(a - b) ** 2 + min(a, b))
    assert ring is not None and sorted(ring) == list(range(12)) and ring[1] < ring[-1]
    assert best_ring(40, lambda a, b: 1) == tuple(range(40)), "all alike: nothing to search"
    assert best_ring(40, lambda a, b: a + b) is None


# ---- random machines, random damage


@st.composite
def printed(draw: st.DrawFn) -> tuple[TopologyMatrix, str]:
    """A machine of sockets, bridges and switches, NVLinks on some pairs, and its matrix as a driver would print it."""
    n, nics = draw(st.integers(1, 8)), draw(st.integers(0, 3))
    places = [draw(st.tuples(*[st.integers(0, 1)] * 4)) for _ in range(n + nics)]
    names = [f"GPU{a}" for a in range(n)] + [f"mlx5_{a}" for a in range(nics)]
    bonds = {pair: draw(st.integers(1, 6)) for pair in itertools.combinations(range(n), 2) if draw(st.booleans())}

    def link(a: int, b: int) -> str:
        if (min(a, b), max(a, b)) in bonds:
            return f"NV{bonds[min(a, b), max(a, b)]}"
        shared = next((depth for depth in range(4) if places[a][depth] != places[b][depth]), 4)
        return ("SYS", "NODE", "PHB", "PXB", "PIX")[shared]

    rows = names if draw(st.booleans()) else names[:n]
    cells = tuple(tuple(None if a == b or (x not in rows) else link(a, b) for b in range(n + nics))
                  for a, x in enumerate(names))  # fmt: skip
    titled = draw(st.booleans())
    order = draw(st.permutations(range(n + nics)))
    lines = [["", *(names[a] for a in order), *(["CPU Affinity", "NUMA Affinity"] if titled else [])]]
    for a, name in enumerate(names):
        if name in rows:
            lines.append([name, *("X" if a == b else link(a, b) for b in order)])
            lines[-1] += ["0-7,16-23", "0"] if titled and a < n else []
    tabs = draw(st.booleans())
    text = "\n".join("\t".join(line) if tabs else "".join(f"{word:15}" for word in line) for line in lines) + "\n"
    kept = [names[n:].index(name) + n for name in [names[a] for a in order] if name in names[n:]]
    sequence = [*range(n), *kept]
    return TopologyMatrix(
        tuple(names[:n]), tuple(names[a] for a in kept), tuple(tuple(cells[a][b] for b in sequence) for a in sequence),
        tuple(names[a] for a in sequence if names[a] in rows),
    ), text  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(printed())
def test_a_printed_machine_is_read_back_whole(case: tuple[TopologyMatrix, str]) -> None:
    matrix, text = case
    found = parse_topology(text)
    assert (found.gpus, found.nics, found.cells, found.rows) == (matrix.gpus, matrix.nics, matrix.cells, matrix.rows)
    assert found.missing_rows == () and found.asymmetric_cells == 0
    cluster = to_cluster(found, "V100")
    assert cluster.world_size == len(matrix.gpus)


def shown(text: str) -> None:
    """Everything that can be done with a text; InputError is the only error."""
    with contextlib.suppress(InputError):
        to_cluster(parse_topology(text), "A100")
    with contextlib.suppress(InputError):
        to_cluster(parse_topology(text, complete=True), "")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FILES), st.data())
def test_damage_anywhere_in_a_good_file_is_an_input_error_or_harmless(file: Path, data: st.DataObject) -> None:
    text = file.read_text()
    for _ in range(data.draw(st.integers(1, 3))):
        at, end = sorted((data.draw(st.integers(0, len(text))), data.draw(st.integers(0, len(text)))))
        piece = data.draw(
            st.sampled_from(["", "X", " ", "\t", "\n", "NV9", "GPU0", "NV999", "SYS", "\x1b[4m", "é", "CPU Affinity"])
        )
        text = text[:at] + piece + text[data.draw(st.sampled_from([at, at + 1, end])) :]
    shown(text)


words = st.sampled_from(
    ["GPU0", "GPU1", "GPU2", "NIC0", "mlx5_0", "X", "NV1", "PIX", "SYS", "OK", "NS", "CPU Affinity", "\n", "\t"]
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(st.text(), st.lists(words, max_size=40).map(" ".join), st.binary().map(lambda raw: raw.decode("latin-1")))
)
def test_garbage_is_an_input_error_or_a_matrix(text: str) -> None:
    shown(text)
    shown("<system>" + text)


# ---- NCCL's XML


def test_half_a_dgx1_is_the_first_four_rows_of_the_whole_and_its_lost_links_are_reported() -> None:
    half = read_topology_xml(DATA / "half_dgx1_nccl.xml")
    whole = read_topology(DATA / DGX1)
    assert half.gpus == whole.gpus[:4]
    assert all(half.link(a, b) == whole.link(a, b) for a, b in half.gpu_pairs)
    assert sum(count for *_, count in half.dangling) == 2 + 2 + 1 + 1
    assert {target[5:7] for _, target, _ in half.dangling} == {"85", "86", "89", "8a"}
    assert any("6 NVLinks lead to 4 devices" in note for note in half.notes)
    assert any("GPU3" in note and "NVSwitch" in note for note in half.notes)
    assert half.missing_rows == ()
    assert read_topology(DATA / "half_dgx1_nccl.xml") == half
    assert topology_json(DATA / "half_dgx1_nccl.xml")["gpu_pair_classes"] == {"NV1": 3, "NV2": 3}


def test_the_tree_of_the_xml_gives_the_pcie_classes_and_switches_join_all_gpus() -> None:
    def gpu(dev: int, bus: str, links: str = "") -> str:
        return f'<pci busid="{bus}"><gpu dev="{dev}">{links}</gpu></pci>'

    tree = (
        '<system><cpu numaid="0"><pci busid="a"><pci busid="b">' + gpu(0, "c") + gpu(1, "d") + "</pci>"
        + gpu(2, "e") + "</pci>" + gpu(3, "f") + '<pci busid="n"><nic><net name="mlx5_0"/></nic></pci></cpu>'
        + '<cpu numaid="1">' + gpu(4, "g") + "</cpu></system>"
    )  # fmt: skip
    matrix = parse_topology(tree)
    assert [matrix.link(0, b) for b in (1, 2, 3, 4, 5)] == ["PIX", "PXB", "PHB", "SYS", "PHB"]
    assert matrix.nics == ("mlx5_0",)
    assert matrix.affinity[4].numa == "1"
    to_switch = '<nvlink target="{}" count="6" tclass="0x068000"/>'
    switched = (
        "<system>"
        + "".join(gpu(i, f"{i}", to_switch.format("s0") + to_switch.format("-1")) for i in range(4))
        + "</system>"
    )
    assert parse_topology(switched).pair_classes == {"NV12": 4 * 3 // 2}


# ---- a machine for the simulator


def test_the_dgx1_matrix_gives_the_preset_down_to_each_link_and_channel() -> None:
    imported, preset = to_cluster(read_topology(DATA / DGX1), "V100"), load_cluster("8xV100-dgx1")
    assert {link for link in imported.links if "nic" not in link.name} == set(preset.links)
    assert (imported.devices, imported.rings, imported.hosts) == (preset.devices, preset.rings, preset.hosts)


def all_reduce_estimate(cluster: Cluster, nbytes: int) -> float:
    return Communicator(cluster, backend_for(cluster)).choose(nbytes).estimate_s


def test_pix_without_peer_access_is_not_taken_for_pcie_speed() -> None:
    # Case a07: PIX, yet 5.7 GB/s a copy, all-reduce bus bandwidth 4.0; ResNet-50's 102 MB take 25.6 ms.
    matrix = read_topology(DATA / "two_2080ti_no_peer_access.txt")
    cluster = to_cluster(matrix, "2080Ti")
    preset = load_cluster("2x2080Ti-pcie")
    assert (set(cluster.links), cluster.hosts, cluster.copy_fraction) == (set(preset.links), preset.hosts, NO_PEER_COPY)
    assert cluster.copy_fraction * cluster.route(0, 1).bandwidth_bytes_per_s == pytest.approx(5.7e9)
    assert all_reduce_estimate(cluster, 102_228_128) == pytest.approx(25.6e-3, rel=0.1)
    assert "not allowed" in cluster.source and "a rule" in cluster.source
    unknown = to_cluster(parse_topology("GPU0 GPU1\nGPU0 X PIX\nGPU1 PIX X\n"))
    assert unknown.route(0, 1).bandwidth_bytes_per_s == pytest.approx(5.7e9) and "does not imply" in unknown.source
    assert (1 << 30) / all_reduce_estimate(unknown, 1 << 30) < 6e9, "whatever the backend makes of it"
    assert to_cluster(matrix, "4090").route(0, 1).bandwidth_bytes_per_s == pytest.approx(19e9), (
        "measured through the host"
    )
    given_peers = to_cluster(matrix, "2080Ti", peer_access=True)
    assert given_peers.copy_fraction == 1.0
    assert [given_peers.links[i].target for i in given_peers.route(0, 1).links] == ["switch0", "gpu1"]
    measured = to_cluster(matrix, "2080Ti", peer_access=True, pcie_bytes_per_s=11e9)
    assert measured.route(0, 1).bandwidth_bytes_per_s == 11e9 and "11 GB/s as given" in measured.source


def test_each_class_is_a_longer_way_and_sys_is_the_socket_link() -> None:
    cluster = to_cluster(read_topology(DATA / "pix_node_sys_two_sockets.txt"), "V100", peer_access=True)
    hops = [[cluster.links[i].kind for i in cluster.route(0, other).links] for other in (1, 2, 4)]
    assert hops == [["pcie"] * 2, ["pcie"] * 4, ["pcie"] * 2 + ["socket"] + ["pcie"] * 2]
    assert [cluster.route(0, other).latency_s for other in (1, 2, 4)] == pytest.approx([1.2e-6, 2.4e-6, 3.0e-6])
    assert cluster.hosts == ("cpu0",) * 4 + ("cpu1",) * 4
    assert cluster.route(0, 1).bandwidth_bytes_per_s == PCIE3
    assert len(set(to_cluster(read_topology(DATA / "rtx4090_all_sys.txt"), "4090").hosts)) == 8


def test_more_nvlinks_than_a_gpu_has_are_a_switch() -> None:
    h100 = to_cluster(read_topology(DATA / "h100_nvswitch_tabs.txt"), "H100")
    assert h100.multicast and h100.rings == load_cluster("8xH100").rings
    assert (
        h100.route(0, 1).bandwidth_bytes_per_s == 18 * 25e9 == load_cluster("8xH100").route(0, 1).bandwidth_bytes_per_s
    )
    dgx2 = read_topology(DATA / "dgx2_cut_after_gpu4.txt", complete=True)
    assert to_cluster(dgx2, "V100").route(3, 9).bandwidth_bytes_per_s == 6 * NVLINK2
    assert is_switched(dgx2) and not is_switched(read_topology(DATA / DGX1))
    a100 = to_cluster(read_topology(DATA / "a100_nv4_nic_legend.txt"), "A100")
    assert a100.route(0, 1).bandwidth_bytes_per_s == 4 * 25e9
    assert len(a100.rings) == 6 and {ring.share for ring in a100.rings} == {1 / 6}, "three rings, both directions"


def test_all_channels_of_four_joined_gpus_use_every_nvlink_fully() -> None:
    cluster = to_cluster(read_topology(DATA / "a100_nv4_nic_legend.txt"), "A100")
    carried: dict[tuple[int, int], float] = {}
    for ring in cluster.rings:
        for edge in zip(ring.order, ring.order[1:] + ring.order[:1]):
            carried[edge] = carried.get(edge, 0.0) + ring.share
    assert len(carried) == 4 * 3 and list(carried.values()) == pytest.approx([1 / 3] * 12)
    assert all_reduce_estimate(cluster, 1 << 30) == pytest.approx(2 * 3 / 4 * (1 << 30) / (0.77 * 12 * 25e9), rel=0.05)


def test_a_gpu_beside_the_switch_and_gpus_without_any_pcie_class_are_joined() -> None:
    alone = "GPU0 GPU1 GPU2\nGPU0 X NV18 SYS\nGPU1 NV18 X SYS\nGPU2 SYS SYS X\n"
    assert to_cluster(parse_topology(alone), "A100").route(0, 2).bandwidth_bytes_per_s > 0
    silent = to_cluster(parse_topology("GPU0 GPU1\nGPU0 X NV4\nGPU1 NV4 X\n"), "A100")
    assert silent.hosts == ("cpu0", "cpu0")
    assert to_cluster(parse_topology("GPU0 CPU Affinity\nGPU0 X 0-7\n")).devices == (Device("gpu0"),)


def test_what_is_a_rule_says_so() -> None:
    assert all("a rule" in class_rule(link, "A100")[1] for link in ("PIX", "PXB", "PHB", "NODE", "SYS"))
    assert class_rule("NV2", "V100") == (2 * NVLINK2, "2 x 25.78 GB/s (nvidia-smi nvlink -s)")
    assert "for want of the device's kind" in class_rule("NV2")[1]
