"""Figures: what is drawn is what the trace says, each call has a figure of its own, and Chinese is never boxes."""

import io
import itertools
import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch

from simulator.cluster import Cluster, Device, Link
from simulator.errors import InputError
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.trace import KINDS, LinkFact, Trace, Waiting
from simulator.units import time_unit
from simulator.views import save
from simulator.views.gantt import drawn_devices, timeline_figure
from simulator.views.layout import node_layers, node_positions
from simulator.views.memory import memory_figure, memory_steps
from simulator.views.rows import busy_seconds, last_moment, rows_of
from simulator.views.save import drawable, drawn_language, font_families, has_cjk_font, save_figure
from simulator.views.style import THEMES
from simulator.views.topology import link_rates, topology_figure
from tests.views_samples import STRATEGIES, hand_made, simulated, span

PAIR = ("DataParallel", "DDP")


def pair(cluster: str = "8xV100-pcie") -> list[tuple[str, Trace]]:
    return [(name, simulated(name, cluster)) for name in PAIR]


def bars(figure: Figure) -> dict[str, tuple[float, float]]:
    """For each path of bars: the sum of the widths in the axis' unit, and the middle of its height."""
    found = {}
    for artist in figure.axes[0].artists + figure.axes[0].patches:
        if isinstance(artist, PathPatch) and artist.get_gid():
            boxes = artist.get_path().vertices.reshape(-1, 5, 2)
            found[artist.get_gid()] = (np.ptp(boxes[:, :, 0], axis=1).sum(), boxes[:, :, 1].mean())
    return found


def texts(figure: Figure) -> list[str]:
    """Everything that is written."""
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    found += [text.get_text() for text in figure.texts]
    return found + [axes.get_xlabel() for axes in figure.axes]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for found in figure.legends for text in found.get_texts()]


# ---- the timeline


@pytest.mark.parametrize("cluster", ["8xV100-pcie", "4xA100"])
def test_the_bars_of_each_kind_are_as_long_as_in_the_trace(cluster):
    runs = pair(cluster)
    figure = timeline_figure(runs)
    factor, _ = time_unit(max(last_moment(trace) for _, trace in runs))
    drawn = bars(figure)
    assert drawn
    for number, (_, trace) in enumerate(runs):
        for row in rows_of(trace, drawn_devices(trace)):
            for kind, length in busy_seconds([row]).items():
                width, _ = drawn.pop(f"{number}-{row.device}-{row.role}--{kind}")
                assert width * factor == pytest.approx(length, rel=1e-9, abs=1e-15)
    assert not drawn


def test_runs_share_one_axis_and_the_first_stands_above():
    runs = pair()
    figure = timeline_figure(runs)
    assert len(figure.axes) == 1
    low, high = figure.axes[0].get_xlim()
    factor, unit = time_unit(high * 1e-3)
    assert (low, high) == (0, pytest.approx(max(last_moment(trace) for _, trace in runs) / factor))
    assert f"time in {unit}" in texts(figure)
    drawn = bars(figure)
    assert figure.axes[0].yaxis_inverted()
    assert drawn["0-7-compute--forward"][1] < drawn["1-0-compute--forward"][1]


def test_names_stand_on_the_bars_and_the_legend_has_only_the_rest():
    figure = timeline_figure(pair("8xV100-pcie"))
    written = texts(figure)
    for name in ("forward", "backward", "replicate", "1", "2", "3", "device 0", "Python", "DataParallel", "DDP"):
        assert name in written, name
    assert {"forward", "backward", "replicate"}.isdisjoint(legend(figure))
    assert "all-reduce (number: bucket)" in legend(figure)
    assert "host" not in legend(figure)  # its rows say so


def test_a_long_wait_says_what_it_is_for_and_is_hatched():
    figure = timeline_figure([("run", hand_made())])
    assert "waits for all-reduce" in texts(figure)
    waits = [artist for artist in figure.axes[0].artists + figure.axes[0].patches
             if isinstance(artist, PathPatch) and (artist.get_gid() or "").endswith("-wait")]  # fmt: skip
    assert len(waits) == 2
    assert all(artist.get_hatch() == "////" for artist in waits)


def test_above_four_devices_three_are_drawn_and_the_figure_says_so():
    figure = timeline_figure([("DDP", simulated("DDP"))])
    assert [text for text in texts(figure) if text.startswith("device")] == [
        "device 0", "device 1", "device 7", "devices 2 to 6 not drawn"]  # fmt: skip
    assert drawn_devices(simulated("DDP", "4xA100")) == (0, 1, 2, 3)
    assert not any("not drawn" in text for text in texts(timeline_figure([("DDP", simulated("DDP"))], devices=(4, 5))))


def test_the_end_of_each_run_is_written_at_its_end():
    figure = timeline_figure([("run", hand_made())])
    assert " 10.0 ms" in texts(figure)


def test_ten_thousand_spans_are_a_handful_of_paths():
    spans = [span(i + 1, ("forward", "backward")[i % 2], i * 1e-5, (i + 0.7) * 1e-5) for i in range(10_000)]
    figure = timeline_figure([("long", Trace(("gpu0",), raw_spans=spans, end_s=0.1))])
    assert len(bars(figure)) == 3
    assert len(figure.axes[0].texts) + len(figure.axes[0].patches) < 40
    assert bars(figure)["0-0-compute--forward"][0] == pytest.approx(5_000 * 0.7e-5 / 1e-3)


def test_what_never_finished_is_said_on_the_bar_and_below():
    spans = [span(1, "forward", 0.0, 0.01), span(2, "all_reduce", 0.01, None, resource="communication")]
    trace = Trace(("gpu0",), raw_spans=spans, waiting=(Waiting(0, "communication", "rank 1"),), end_s=0.02)
    written = texts(timeline_figure([("stuck", trace)]))
    assert "never finished " in written
    assert "Never finished: rank 0 (communication) waits for rank 1." in written


def test_what_was_never_run_on_several_gpus_is_said_below():
    assert any(text.startswith("Not verified: ") for text in texts(timeline_figure(pair())))


def test_transfers_alone_and_nothing_at_all_can_be_drawn():
    transfers = [(1, "all_reduce", 0, 1, (), 0.0, 0.0, 0.01, 100, 0, 1, None, None, None, None)]
    figure = timeline_figure(
        [("ring", Trace(("a", "b"), raw_transfers=transfers, end_s=0.02)), ("none", Trace(("a",)))]
    )
    assert bars(figure)["0-0-link-1-all_reduce"][0] == pytest.approx(10)
    assert "nothing recorded" in texts(figure)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.floats(0, 1), st.none() | st.floats(0, 1)),
                max_size=8))  # fmt: skip
def test_any_trace_can_be_drawn(items):
    spans = [span(number + 1, kind, start, None if length is None else start + length, device=device,
                  resource="host" if kind == "host" else "compute", bucket=number)
             for number, (kind, device, start, length) in enumerate(items)]  # fmt: skip
    trace = Trace(("a", "b", "c"), raw_spans=spans, raw_memory=[(start, d, "inputs", 8) for _, d, start, _ in items])
    for figure in (timeline_figure([("any", trace)]), memory_figure([("any", trace)]), topology_figure(trace, 0.5)):
        figure.savefig(io.BytesIO(), format="png", dpi=30)


def test_the_title_is_the_caller_s_and_breaks_to_fit():
    title = "DDP is 3.4x faster: 91 % of its communication hides behind the backward pass, and the rest does not " * 2
    figure = timeline_figure(pair(), title=title)
    assert " ".join(figure.get_suptitle().split()) == title.strip()
    assert "\n" in figure.get_suptitle()


@pytest.mark.parametrize("draw", [timeline_figure, memory_figure])
def test_no_run_an_unknown_theme_language_or_device_is_an_error(draw):
    for runs, more in (
        ([], {}),
        (pair(), {"theme": "blue"}),
        (pair(), {"language": "de"}),
        (pair(), {"devices": (8,)}),
    ):
        with pytest.raises(InputError):
            draw(runs, **more)


# ---- memory


def test_the_steps_of_memory_add_up_to_the_trace():
    steps = memory_steps(hand_made(), 0)
    assert steps.times_s.tolist() == [0.0, 0.002, 0.004, 0.006, 0.01]
    assert steps.total(context=False).tolist() == [100, 400, 500, 200, 200]
    assert (steps.total() - steps.total(context=False)).tolist() == [400] * 5
    trace = simulated("DDP")
    final = sum(change.nbytes for change in trace.memory if change.device == 3)
    assert memory_steps(trace, 3).total()[-1] == final


def test_a_band_is_as_high_as_its_bytes_and_the_context_lies_on_top():
    figure = memory_figure([("run", hand_made())], devices=(0,))
    bands = {band.get_gid(): band for band in figure.axes[0].collections}
    assert set(bands) == {"parameters", "gradients", "activations", "context"}
    tops = {name: band.get_paths()[0].vertices[:, 1].max() for name, band in bands.items()}
    assert tops["activations"] == pytest.approx(500)  # the axis is in bytes here: 100 + 100 + 300
    assert tops["context"] == pytest.approx(900)
    assert bands["context"].get_hatch() == "////"
    assert not bands["parameters"].get_hatch()


def test_the_capacity_line_is_drawn_where_it_is_in_sight_and_else_named():
    near = memory_figure([("run", hand_made())], devices=(0,), capacity_bytes=1000)
    assert [line.get_gid() for line in near.axes[0].lines if line.get_gid()] == ["capacity"]
    assert "capacity 1.00 kB" in texts(near)
    far = memory_figure([("run", hand_made())], devices=(0,), capacity_bytes=90_000)
    assert not [line for line in far.axes[0].lines if line.get_gid()]
    assert any("1.00 % of 90.0 kB" in text for text in texts(far))


def test_panels_of_all_runs_and_devices_have_one_scale():
    figure = memory_figure(pair(), devices=(0, 1, 7), capacity_bytes=16 << 30)
    assert len(figure.axes) == 6
    assert len({axes.get_ylim() for axes in figure.axes}) == len({axes.get_xlim() for axes in figure.axes}) == 1


def test_memory_that_was_not_recorded_is_said_to_be_so():
    trace = replace(hand_made(), covers=frozenset({"ranks"}))
    assert "memory not recorded" in texts(memory_figure([("measured", trace)], devices=(0,)))


@pytest.mark.parametrize("capacity", [float("nan"), -1, float("inf")])
def test_a_capacity_that_is_no_number_is_an_error(capacity):
    with pytest.raises(InputError, match="capacity_bytes"):
        memory_figure(pair(), capacity_bytes=capacity)


# ---- topology


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_preset_s_nodes_are_drawn_apart_from_each_other(name):
    cluster = load_cluster(name)
    places = node_positions(cluster)
    joined = {end for link in cluster.links for end in (link.source, link.target)}
    assert set(places) == joined | {device.name for device in cluster.devices}
    points = sorted((layer, column) for column, layer in places.values())
    for (layer, column), (next_layer, next_column) in itertools.pairwise(points):
        assert layer != next_layer or next_column - column >= 1 - 1e-9
    figure = topology_figure(cluster)
    boxes = [patch.get_gid() for patch in figure.axes[0].patches if isinstance(patch, FancyBboxPatch)]
    assert sorted(boxes) == sorted(f"node-{node}" for node in places)
    assert len([line for line in figure.axes[0].lines if line.get_gid().startswith("link-")]) == len(cluster.links)


def test_switches_stand_over_devices_hosts_over_switches_and_nvswitches_below():
    layers = node_layers(load_cluster("2x8xA100-8nic"))
    assert [layers[name] for name in ("nvswitch0", "gpu0", "switch0", "cpu0", "nic0", "rail0")] == [-1, 0, 1, 2, 3, 4]
    assert node_layers(load_cluster("2xV100-10gbe")) == {"gpu0": 0, "gpu1": 0, "cpu0": 1, "cpu1": 1, "ethernet": 2}


def test_a_link_of_more_bandwidth_is_wider():
    cluster = load_cluster("8xV100-dgx1")
    lines = {int(line.get_gid()[5:]): line.get_linewidth() for line in topology_figure(cluster).axes[0].lines}
    widths = {cluster.links[index].bandwidth_bytes_per_s: width for index, width in lines.items()}
    assert sorted(widths, key=lambda bandwidth: widths[bandwidth]) == sorted(widths)
    double, single = 2 * 25.78e9, 25.78e9
    assert widths[double] / widths[single] == pytest.approx(2**0.5)


def two_links() -> Trace:
    """A link at half its bandwidth for replicate, at full bandwidth from 1 s on, and one that rests."""
    links = (LinkFact("a->b", "a", "b", 100.0, 0.0, "pcie"), LinkFact("b->a", "b", "a", 100.0, 0.0, "pcie"))
    transfers = [
        (1, "replicate", 0, 1, (0,), 0.0, 0.0, 2.0, 150, None, None, None, None, None, ((0.0, 50.0), (1.0, 100.0)))
    ]
    spans = [span(2, "forward", 0.0, 2.0, device=1)]
    return Trace(("a", "b"), links, spans, transfers, end_s=2.0)


@pytest.mark.parametrize(("time", "part"), [(0.5, 0.5), (1.5, 1.0)])
def test_the_filled_part_of_a_link_is_the_part_that_carries_bytes(time, part):
    trace = two_links()
    assert link_rates(trace, time) == {0: {"replicate": part * 100.0}}
    figure = topology_figure(trace, time)
    lines = {line.get_gid(): line for line in figure.axes[0].lines}
    assert set(lines) == {"link-0", "link-1", "used-0"}
    assert lines["used-0"].get_linewidth() == pytest.approx(part * lines["link-0"].get_linewidth())
    assert lines["used-0"].get_color() == THEMES["light"].colour("replicate")
    assert {"replicate", "forward"} <= set(legend(figure))
    assert f"t = {time * 1000:.0f} ms" in texts(figure) or f"t = {time:.2f} s" in texts(figure)


def test_no_link_of_a_simulated_run_is_ever_filled_beyond_its_width():
    trace = simulated("peer_copy")
    for time in np.linspace(0, trace.end_s, 40):
        for index, carried in link_rates(trace, time).items():
            assert sum(carried.values()) <= trace.links[index].bandwidth_bytes_per_s * (1 + 1e-9)


def test_links_that_were_not_recorded_are_said_to_be_so():
    trace = replace(two_links(), covers=frozenset())
    assert "Links not recorded." in texts(topology_figure(trace, 0.5))


def test_a_machine_of_one_device_and_no_link_can_be_drawn():
    figure = topology_figure(Cluster("one", (Device("gpu0"),)))
    assert [patch.get_gid() for patch in figure.axes[0].patches] == ["node-gpu0"]


def test_nodes_that_no_device_reaches_are_drawn_too():
    cluster = Cluster("odd", (Device("gpu0"),), (Link("x", "y", 1.0),))
    assert set(node_positions(cluster)) == {"gpu0", "x", "y"}


@pytest.mark.parametrize("time", [float("nan"), -1.0, float("inf")])
def test_a_time_that_is_no_number_is_an_error(time):
    with pytest.raises(InputError, match="t = "):
        topology_figure(two_links(), time)


# ---- files, fonts, threads


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_equal_figures_give_equal_files(tmp_path, ending):
    contents = []
    for number in range(2):
        file = tmp_path / f"{number}.{ending}"
        save_figure(timeline_figure([("run", hand_made())], title="One & two"), file)
        contents.append(file.read_bytes())
    assert contents[0] == contents[1]


def test_an_svg_says_in_words_what_it_shows(tmp_path):
    file = tmp_path / "figure.svg"
    save_figure(timeline_figure([("run", hand_made())], title='DDP "wins" & hides'), file)
    assert 'role="img" aria-label="DDP &quot;wins&quot; &amp; hides"' in file.read_text()


def test_a_figure_without_a_title_can_be_saved(tmp_path):
    for ending in save.SUFFIXES:
        save_figure(timeline_figure([("run", hand_made())]), tmp_path / f"figure.{ending}")
        assert (tmp_path / f"figure.{ending}").stat().st_size > 1000


@pytest.mark.parametrize("name", ["figure.pdf", "figure", "figure.jpeg"])
def test_another_ending_names_the_known_ones(tmp_path, name):
    with pytest.raises(InputError, match="Known: svg, png"):
        save_figure(Figure(), tmp_path / name)


def everything(language: str, theme: str = "dark") -> list[Figure]:
    return [
        timeline_figure(pair(), title="反向", language=language, theme=theme),
        memory_figure(pair(), title="显存", language=language, theme=theme, capacity_bytes=4e9),
        topology_figure(simulated("DDP"), 0.02, title="链路", language=language, theme=theme),
    ]


@pytest.fixture
def no_cjk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(save, "_cjk_font", lambda: None)


def assert_drawn_without_a_warning(figures: list[Figure], folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, figure in enumerate(figures):
            save_figure(figure, folder / f"{number}.png")
            save_figure(figure, folder / f"{number}.svg")


def test_without_a_chinese_font_the_words_are_english_and_nothing_is_a_box(no_cjk, tmp_path):
    assert not has_cjk_font()
    assert drawn_language("zh") == "en"
    figures = everything("zh")
    assert "forward" in texts(figures[0])
    assert figures[0].get_suptitle() == "??"
    assert_drawn_without_a_warning(figures, tmp_path)


@pytest.mark.skipif(not has_cjk_font(), reason="no Chinese font on this machine")
def test_with_a_chinese_font_the_words_are_chinese_and_nothing_is_a_box(tmp_path):
    figures = everything("zh")
    assert "反向" in texts(figures[0])
    assert figures[0].get_suptitle() == "反向"
    assert "0 号卡" in " ".join(texts(figures[1]))
    assert_drawn_without_a_warning(figures, tmp_path)


def test_a_sign_that_no_font_has_becomes_a_question_mark():
    assert drawable("a\U000f0000b") == "a?b"
    assert font_families()[0] == "DejaVu Sans"


@pytest.mark.parametrize("theme", THEMES)
def test_the_background_is_the_theme_s(theme):
    for figure in everything("en", theme):
        red, green, blue, _ = figure.get_facecolor()
        shown = "#" + "".join(f"{round(channel * 255):02x}" for channel in (red, green, blue))
        assert shown == THEMES[theme].background


def test_two_threads_that_draw_at_once_get_a_figure_each(tmp_path):
    wanted = {"first": simulated("DDP", "4xA100"), "second": simulated("DataParallel", "4xA100")}
    found: dict[str, Figure] = {}
    start = threading.Barrier(2)

    def draw(label: str) -> None:
        start.wait()
        for _ in range(3):
            found[label] = timeline_figure([(label, wanted[label])], title=label)
            save_figure(found[label], tmp_path / f"{label}.png")

    threads = [threading.Thread(target=draw, args=(label,)) for label in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == set(wanted)
    for label, trace in wanted.items():
        assert found[label].get_suptitle() == label
        other = next(name for name in wanted if name != label)
        assert other not in texts(found[label])
        alone = timeline_figure([(label, trace)], title=label)
        assert bars(found[label]) == bars(alone)
        save_figure(alone, tmp_path / "alone.png")
        assert (tmp_path / "alone.png").read_bytes() == (tmp_path / f"{label}.png").read_bytes()


def test_text_and_chrome_traces_need_no_matplotlib_and_figures_no_pyplot():
    program = ("import sys, simulator.views.text, simulator.views.chrome_trace, simulator.views.save\n"
               "assert 'matplotlib' not in sys.modules\n"
               "import simulator.views.gantt, simulator.views.memory, simulator.views.topology\n"
               "from simulator.trace import Trace\n"
               "simulator.views.gantt.timeline_figure([('none', Trace(('gpu0',)))])\n"
               "assert 'matplotlib.pyplot' not in sys.modules\n")  # fmt: skip
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_draws_in_both_languages_and_themes(name):
    for language in ("en", "zh"):
        for theme in THEMES:
            assert len(timeline_figure([(name, simulated(name))], language=language, theme=theme).axes) == 1
