"""The app in a real browser: what a person sees and does, read off the screen and off `root.player`."""

import random
from typing import Any

import pytest

from simulator.app_pages.runs import QUESTION, Choice
from simulator.app_pages.texts import text
from simulator.compare import Comparison
from simulator.trace import KINDS
from simulator.verdict import verdict
from simulator.views.style import STYLES, kind_name
from tests.browser.conftest import PLAYER


def asked(model: str, cluster: str = "4xA100") -> Comparison:
    """What the question simulates."""
    return Choice(model=model, cluster=cluster, **QUESTION).compare()


@pytest.mark.parametrize("width", [360, 1280])
def test_question_answer_other_link_and_bench(visit: Any, width: int) -> None:
    one = visit(width=width, reduced_motion="reduce")
    one.says("Which of the two does DataParallel hurt more?")
    assert one.page.evaluate(f"!({PLAYER})()") and one.fits()
    one.page.get_by_role("button", name="VGG-16", exact=True).click()
    first = one.drawn()
    factors = {}
    for model in ("resnet50", "vgg16"):
        found = asked(model)
        factors[model] = f"{found.runs['DataParallel'].step_s / found.single.step_s:.2f}"
        assert factors[model] + "×" in one.player("[...p.root.querySelectorAll('.factor')].map((e) => e.textContent)")
    assert factors["resnet50"] > factors["vgg16"]
    one.says("You said VGG-16. It is ResNet-50.")
    one.says("one Python thread builds 4 replicas of them")
    one.says(factors["resnet50"])
    one.page.get_by_role("radio", name="PCIe 3").or_(one.page.get_by_role("button", name="PCIe 3")).first.click()
    one.drawn(other_than=first)
    one.says("leave GPU 0 in every forward")
    assert "link=pcie3" in one.page.url and one.fits()
    one.page.get_by_text("Take VGG-16 to the bench").click()
    expected = asked("vgg16", "4xA100-pcie3")
    one.says(verdict(expected).english)
    one.drawn()
    assert "/bench" in one.page.url and "model=vgg16" in one.page.url and "cluster=4xA100-pcie3" in one.page.url
    assert one.player("p.model.panels.map((panel) => panel.end)") == [
        round(run.step_s * 1e9) for run in expected.runs.values()
    ]
    assert one.fits()


def test_the_drawing_holds_the_simulators_numbers(visit: Any) -> None:
    one = visit("/bench?model=resnet50&cluster=8xV100-dgx1&batch=16")
    one.drawn()
    found = Choice(cluster="8xV100-dgx1", batch=16).compare()
    drawn = one.player(
        "p.model.panels.map((panel) => panel.lanes.flatMap((lane) => [...lane.what].map((w, i) => "
        "[p.model.what.name[w], p.model.what.kind[w], lane.start[i], lane.end[i], panel.onPath[lane.index][i]])))"
    )
    for spans, run in zip(drawn, found.runs.values(), strict=True):
        expected = sorted((span.name, KINDS.index(span.kind), round(span.start_s * 1e9), round(span.end_s * 1e9))
                          for span in run.trace.spans if span.end_s is not None and span.end_s > span.start_s)  # fmt: skip
        assert sorted(tuple(row[:4]) for row in spans) == expected
        on_path = {(row[0], row[2]) for row in spans if row[4]}
        waited = {
            (piece.name, round(piece.start_s * 1e9)) for piece in run.metrics.critical_path if piece.resource != "link"
        }
        assert waited and waited <= on_path
        peaks = one.player("p.model.panels.find((panel) => panel.end === argument).memory.map((m) => m.allocated)",
                           round(run.step_s * 1e9))  # fmt: skip
        assert peaks == run.metrics.peak_memory_bytes


def test_the_moment_is_the_traces_own(visit: Any) -> None:
    one = visit("/bench?batch=8")
    one.drawn()
    found = Choice(batch=8).compare()
    dice = random.Random(5)
    for run, panel in zip(found.runs.values(), range(2), strict=True):
        for _ in range(40):
            t = dice.uniform(0, run.step_s * 1e9)
            busy = [span for span in run.trace.spans if span.device == 0 and span.resource == "compute"
                    and span.end_s is not None and round(span.start_s * 1e9) <= t < round(span.end_s * 1e9)]  # fmt: skip
            shown = one.player("p.activity(...argument)", [panel, 0, t])
            if busy:
                assert shown["kind"] == KINDS.index(busy[0].kind)
            else:
                assert "kind" not in shown


def test_what_is_on_the_canvas_has_the_kinds_colour(visit: Any) -> None:
    one = visit("/bench?model=vgg16&cluster=4xA100-pcie3")
    one.drawn()
    seen = one.player(
        "(() => { const part = p.parts[0]; const row = part.rows.find((r) => r.lane?.role === 'compute');"
        " let best = 0; const lane = row.lane; for (let i = 0; i < lane.count; i++)"
        " if (lane.end[i] - lane.start[i] > lane.end[best] - lane.start[best]) best = i;"
        " const r = p.theme.ratio, x = (lane.start[best] + 0.02 * (lane.end[best] - lane.start[best]) - p.view.t0)"
        " / (p.view.t1 - p.view.t0) * p.view.width * r + 2;"
        " const d = part.base.getContext('2d').getImageData(x, (row.top + 4) * r, 1, 1).data;"
        " return [p.model.kinds[p.model.what.kind[lane.what[best]]], ...d]; })()"
    )
    colour = STYLES[seen[0]].light
    assert seen[1:4] == [int(colour[at : at + 2], 16) for at in (1, 3, 5)]


def test_a_changed_control_brings_a_new_picture_while_the_old_one_stays(visit: Any) -> None:
    one = visit("/bench")
    old = one.drawn()
    one.page.evaluate(f"() => {{ const r = ({PLAYER})(); window.gone = 0; window.kept = r;"
                      " new MutationObserver(() => { if (!r.isConnected || !r.querySelector('.run')) window.gone++; })"
                      ".observe(document.body, { childList: true, subtree: true }); }")  # fmt: skip
    one.page.get_by_test_id("stNumberInputStepUp").first.click()
    one.drawn(other_than=old)
    one.says(verdict(Choice(batch=33).compare()).english)
    assert one.page.evaluate(f"window.gone === 0 && window.kept === ({PLAYER})()")
    one.page.wait_for_url("**batch=33**")
    again = visit(one.page.url.removeprefix(one.url))
    assert again.drawn() == one.player("p.root.dataset.v")


def test_keys_play_step_zoom_and_stay_inside(visit: Any) -> None:
    one = visit("/bench", reduced_motion="no-preference")
    drawn = one.drawn()
    one.player("p.stages.focus()")
    press = one.page.keyboard.press
    press("Space")
    one.page.wait_for_function(f"() => ({PLAYER})().player.frames > 3")
    assert one.player("p.root.dataset.state") == "playing"
    press("Space")
    assert one.player("p.root.dataset.state") == "paused" and one.player("p.time") > 0
    press("End")
    assert one.player("p.time === p.model.end && p.root.dataset.state === 'ended'")
    press("Home")
    assert one.player("p.time") == 0
    names = []
    for _ in range(4):
        press("ArrowRight")
        names.append(one.player("p.tip.querySelector('b').textContent"))
        assert one.player("p.time === p.selected.row.lane.start[p.selected.i]")
    run = Choice().compare().runs["DataParallel"]
    python = [
        span.name for span in run.trace.spans if span.resource.startswith("python") and (span.end_s or 0) > span.start_s
    ]
    assert names == python[:4]
    press("ArrowLeft")
    assert one.player("p.tip.querySelector('b').textContent") == python[2]
    press("ArrowDown")
    assert one.player("p.selected.row.lane.role") != "python"
    press("Enter")
    assert one.player("p.zoomed() && p.root.classList.contains('zoomed')")
    press("0")
    assert not one.player("p.zoomed()")
    press("+")
    assert one.player("p.zoomed()")
    press("?")
    assert not one.player("p.keys.hidden")
    press("Escape")
    assert one.player("p.keys.hidden && p.time === null && p.tip.hidden")
    press("r")
    press("c")
    one.page.wait_for_timeout(400)
    assert one.page.get_by_role("dialog").count() == 0 and one.drawn() == drawn and one.player("p.builds") == 1


def test_pointer_shows_details_scrubs_and_zooms_without_the_server(visit: Any) -> None:
    one = visit("/bench")
    sent: list[int] = []
    one.page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(1)))
    one.page.reload()
    one.drawn()
    box = one.page.locator(".run .stage").first.bounding_box()
    where = one.player(
        "(() => { const row = p.parts[0].rows.find((r) => r.lane?.role === 'python'), lane = row.lane; let best = 0;"
        " for (let i = 0; i < lane.count; i++) if (lane.end[i] - lane.start[i] > lane.end[best] - lane.start[best]) best = i;"
        " const middle = (lane.start[best] + lane.end[best]) / 2;"
        " return [(middle - p.view.t0) / (p.view.t1 - p.view.t0) * p.view.width, row.top + row.height / 2,"
        " p.model.what.name[lane.what[best]]]; })()"
    )
    one.page.wait_for_timeout(500)
    before, builds = len(sent), one.player("p.builds")
    one.page.mouse.move(box["x"] + where[0], box["y"] + where[1])
    one.page.locator(".tip").get_by_text(where[2]).wait_for()
    one.page.keyboard.down("Control")
    one.page.mouse.wheel(0, -300)
    one.page.keyboard.up("Control")
    assert one.player("p.zoomed()")
    one.page.get_by_role("button", name="Fit").click()
    axis = one.page.locator(".axis").bounding_box()
    one.page.mouse.move(axis["x"] + 100, axis["y"] + 10)
    one.page.mouse.down()
    for x in range(100, 400, 20):
        one.page.mouse.move(axis["x"] + x, axis["y"] + 10)
    one.page.mouse.up()
    shown = one.player("p.time / (p.model.end * 1.015)")
    assert shown == pytest.approx(380 / axis["width"], abs=0.01)
    assert len(sent) == before and one.player("p.builds") == builds


def test_all_devices_open_and_close(visit: Any) -> None:
    one = visit("/bench?cluster=8xV100-dgx1")
    one.drawn()
    count = "p.parts[0].rows.filter((row) => row.lane?.role === 'compute').length"
    assert one.player(count) == 3
    one.page.get_by_role("button", name="All GPUs").click()
    assert one.player(count) == 8
    one.page.get_by_role("button", name="All GPUs").click()
    assert one.player(count) == 3


@pytest.mark.parametrize("how", [{"color_scheme": "dark"}, {"path": "/bench?embed_options=dark_theme"}])
def test_the_dark_theme_has_its_own_colours(visit: Any, how: dict[str, str]) -> None:
    one = visit(**{"path": "/bench", **how})
    one.drawn()
    assert one.player("p.root.dataset.theme") == "dark"
    assert one.player("p.theme.kinds.map((kind) => kind.fill)") == [STYLES[kind].dark for kind in KINDS]


def test_chinese_is_kept_on_every_page(visit: Any) -> None:
    one = visit("/?lang=zh&answer=vgg16", reduced_motion="reduce")
    one.drawn()
    one.says("你选了 VGG-16，实际是 ResNet-50。")
    assert one.player("p.root.lang") == "zh"
    assert one.player("p.theme.kinds.map((kind) => kind.name)") == [kind_name(kind, "zh") for kind in KINDS]
    one.page.get_by_text("到实验台细看 ResNet-50").click()
    one.says(text("buckets", "zh"))
    assert "lang=zh" in one.page.url
    one.page.get_by_text("English", exact=True).click()
    one.says(text("buckets", "en"))
    assert "lang=" not in one.page.url


def test_a_link_wins_over_what_was_left_and_else_it_is_kept(visit: Any) -> None:
    one = visit("/bench?model=vgg16&batch=7", reduced_motion="reduce")
    one.says(verdict(Choice("vgg16", batch=7).compare()).english)
    one.page.get_by_role("link", name="The question", exact=True).click()
    one.page.get_by_role("button", name="ResNet-50", exact=True).click()
    one.drawn()
    one.page.get_by_role("link", name="The bench", exact=True).click()
    one.says(verdict(Choice("vgg16", batch=7).compare()).english)
    assert "batch=7" in one.page.url
    one.page.get_by_role("link", name="The question", exact=True).click()
    one.page.get_by_text("Take ResNet-50 to the bench").click()
    one.says(verdict(asked("resnet50")).english)
    assert "batch=12" in one.page.url


def test_the_answer_plays_by_itself_unless_less_motion_is_wanted(visit: Any) -> None:
    calm = visit("/?answer=vgg16", reduced_motion="reduce")
    calm.drawn()
    assert calm.player("p.root.dataset.state") == "whole"
    one = visit("/?answer=vgg16", reduced_motion="no-preference")
    one.drawn()
    one.page.wait_for_function(f"() => ({PLAYER})().player.frames > 3")
    assert one.player("p.playing && p.veiled")
    one.player("p.seek(p.model.panels[1].end)")
    assert one.player("p.parts[1].element.classList.contains('over') && !p.parts[0].element.classList.contains('over')")


@pytest.mark.parametrize("path", ["/?answer=vgg16", "/bench"])
@pytest.mark.parametrize("width", [360, 2560])
def test_no_width_scrolls_sideways(visit: Any, path: str, width: int) -> None:
    one = visit(path, width=width, reduced_motion="reduce")
    one.drawn()
    one.page.wait_for_timeout(300)
    assert one.fits()
    assert one.player("p.view.width") > 0.6 * (width if width < 400 else 0.5 * width)
