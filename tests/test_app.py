"""Every page of the app in both languages, by Streamlit's own harness: no browser, no JavaScript."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("streamlit", reason="streamlit is not installed")

from streamlit.testing.v1 import AppTest

from simulator.app_pages.address import flag, number, one_of, whole
from simulator.app_pages.runs import Choice
from simulator.app_pages.texts import TEXTS, TEXTS_ON_CPU, cluster_name, model_name, player_words, span_name, text
from simulator.app_pages.texts_player import ON_CPU, PLAYER
from simulator.codec import to_json
from simulator.compare import compare
from simulator.errors import InputError
from simulator.presets.build import build_scenario
from simulator.presets.clusters import CLUSTERS, load_cluster
from simulator.presets.facts import MODEL_NAMES
from simulator.presets.models import load_model
from simulator.trace import Trace, Waiting
from simulator.verdict import verdict
from simulator.views.player.data import Panel, timeline_data

ROOT = Path(__file__).parent.parent
BENCH = "simulator/app_pages/bench.py"


def opened(page: str = "", **params: str) -> AppTest:
    """A page after its first run, with the address's parameters."""
    at = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    for key, value in params.items():
        at.query_params[key] = value
    at.run()
    if page:
        for key, value in params.items():
            at.query_params[key] = value
        at.switch_page(page).run()
    return at


def key_of(at: AppTest, name: str) -> str:
    """The key under which a control is drawn now: it changes with its labels."""
    pages = ("app keys", "bench keys", "question keys", "question play keys")
    return next(at.session_state[page][name] for page in pages
                if page in at.session_state and name in at.session_state[page])  # fmt: skip


def words(at: AppTest) -> str:
    """All that the page says outside its controls and its drawing."""
    return " ".join(element.proto.body for element in at.get("html"))


def drawing(at: AppTest) -> dict[str, Any]:
    """What the drawing was given."""
    found = at.get("bidi_component")
    assert len(found) == 1
    proto = found[0].proto
    data: dict[str, Any] = json.loads(proto.bytes or proto.json)
    return data


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("page", ["", BENCH])
def test_every_page_runs_in_both_languages(page: str, language: str) -> None:
    at = opened(page, lang=language)
    assert not at.exception
    assert at.session_state["language"] == language


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_question_shows_nothing_before_it_is_answered(language: str) -> None:
    at = opened(lang=language)
    assert not at.get("bidi_component")
    assert "553 MB" in words(at) and "102 MB" in words(at)
    assert [button.label for button in at.button] == ["VGG-16", "ResNet-50"]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("said", ["vgg16", "resnet50"])
def test_one_click_answers_the_question(said: str, language: str) -> None:
    at = opened(lang=language)
    at.button(key=f"say_{said}").click().run()
    assert not at.exception
    hurts = {model: factor(model, "4xA100") for model in ("vgg16", "resnet50")}
    worse = max(hurts, key=lambda model: hurts[model])
    assert f"{hurts[worse]:.2f}" in words(at)
    key = "right" if said == worse else "wrong"
    expected = text(key, language, said=model_name(said), model=model_name(worse))
    assert expected.replace(".", "") in plain(words(at)).replace(".", "")
    keys = [panel["key"] for panel in drawing(at)["panels"]]
    assert keys == [f"{m}/{s}" for m in ("resnet50", "vgg16") for s in ("DataParallel", "DistributedDataParallel")]


def plain(body: str) -> str:
    """HTML without the spans that keep names together."""
    return body.replace('<span class="nowrap">', "").replace("</span>", "").replace("&#x27;", "'")


def factor(model: str, cluster: str) -> float:
    """How many times as long DataParallel's step is as one device's."""
    found = compare(build_scenario(model, cluster, batch_per_device=12, inputs="host", optimizer="none"))
    return found.runs["DataParallel"].step_s / found.single.step_s


def test_the_sentence_follows_the_numbers_when_the_link_is_swapped() -> None:
    at = opened(answer="vgg16", link="pcie3")
    assert not at.exception
    hurts = {model: factor(model, "4xA100-pcie3") for model in ("vgg16", "resnet50")}
    worse = max(hurts, key=lambda model: hurts[model])
    assert f"PCIe 3 the answer is {model_name(worse)}" in plain(words(at)) or f"still {model_name(worse)}" in plain(
        words(at)
    )
    assert "PCIe 3; its" in words(at) or "on PCIe 3." in words(at)


@pytest.mark.parametrize("params", [
    {"model": "nonsense"}, {"cluster": "9xB900"}, {"batch": "-3"}, {"batch": "many"}, {"bucket_cap_mb": "nan"},
    {"devices": "99"}, {"optimizer": "zzz"}, {"algorithm": "nvls"}, {"precision": "int3"}, {"static_graph": "perhaps"},
    {"inputs": "<b>"}, {"iteration": "7"}, {"global_batch": "0"},
])  # fmt: skip
def test_what_the_address_cannot_mean_falls_back_and_says_so(params: dict[str, str]) -> None:
    at = opened(BENCH, **params)
    assert not at.exception
    name, given = next(iter(params.items()))
    assert f"{name} = {given.replace('<', '&lt;').replace('>', '&gt;')}" in words(at)
    assert verdict(compare(build_scenario("resnet50", "4xA100"))).english in plain(words(at))


@pytest.mark.parametrize(("params", "page", "shown"), [
    ({"serial": "1"}, BENCH, "off"), ({"find_unused_parameters": "TRUE"}, BENCH, "off"), ({"devices": "99"}, BENCH, "all"),
    ({"bucket_cap_mb": "nan"}, BENCH, "1, then 25"), ({"global_batch": "0"}, BENCH, "none"),
    ({"lang": "fr"}, "", "English"), ({"answer": "alexnet"}, "", "the question"), ({"batch": "-3"}, BENCH, "32"),
])  # fmt: skip
def test_a_note_names_what_is_shown_instead(params: dict[str, str], page: str, shown: str) -> None:
    at = opened(page, **params)
    name, given = next(iter(params.items()))
    assert text("bad_value", "en", name=name, given=given, used=shown) in words(at)


def test_a_choice_that_another_cluster_cannot_keep_falls_back_and_says_so() -> None:
    at = opened(BENCH, cluster="8xH100", algorithm="nvls")
    assert not at.exception and "is not possible here" not in words(at)
    at.selectbox(key=key_of(at, "cluster")).set_value("4xA100").run()
    assert not at.exception
    assert text("bad_value", "en", name="algorithm", given="nvls", used="auto") in words(at)
    assert "The address" not in words(at)
    assert verdict(Choice(cluster="4xA100").compare()).english in plain(words(at))


@pytest.mark.parametrize("cluster", list(CLUSTERS))
def test_one_device_can_be_chosen_on_every_cluster(cluster: str) -> None:
    at = opened(BENCH, cluster=cluster, devices="1", batch="2", lang="zh")
    assert not at.exception and "devices = 1" not in words(at)
    choice = Choice(cluster=cluster, batch=2, devices=1)
    assert verdict(choice.compare()).chinese in plain(words(at))
    assert [panel["title"] for panel in drawing(at)["panels"]] == ["DataParallel", "DDP"]
    assert text("alone_only", "zh", on_cpu=cluster == "laptop") in words(at)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_laptop_has_no_gpu(language: str) -> None:
    at = opened(BENCH, cluster="laptop", lang=language)
    data = drawing(at)
    controls = [*at.selectbox, *at.number_input, *at.toggle, *at.get("button_group"), *at.get("file_uploader")]
    said = [re.sub(r"<style.*?</style>|<h2>.*?</h2>", "", words(at), flags=re.DOTALL), *data["words"].values()]
    for control in controls:
        said += [control.proto.label, control.proto.help, *map(str, getattr(control.proto, "options", ()))]
    clusters = {cluster_name(name, language) for name in CLUSTERS}
    for each in said:
        found = [word for word in ("GPU", "CUDA", " 卡", "显存", "每卡", "卡数") if word in each]
        assert each in clusters or not found, each


def test_words_and_numbers_of_the_replicas_agree() -> None:
    run = compare(build_scenario("resnet50", "4xA100", batch_per_device=12)).runs["DataParallel"]
    host, base = run.scenario.host, run.scenario.model
    tensors = len(base.unique_parameters) + len(base.buffers)
    built = [span for span in run.trace.spans if span.name == "build the replicas"]
    assert sum((span.end_s or 0) - span.start_s for span in built) == pytest.approx(host.replicate_copy_s * tensors * 4)
    assert "builds 4 replicas" in words(opened(answer="vgg16"))
    assert "4 份副本" in words(opened(answer="vgg16", lang="zh"))


def test_the_memory_rows_have_a_legend() -> None:
    shown = words(opened(BENCH))
    legend = re.search(r'<div class="legend">.*?</div>', shown)
    assert legend
    assert all(name in legend[0] for name in ("parameters", "activations", "replicas", "gradients", "buckets"))


def test_a_deep_link_shows_the_scenario_that_it_names() -> None:
    at = opened(
        BENCH, model="vgg16", cluster="4xA100-pcie3", batch="12", transport="peer_copy", gradient_as_bucket_view="true"
    )
    choice = Choice("vgg16", "4xA100-pcie3", 12, "peer_copy", view=True)
    expected = choice.compare()
    assert verdict(expected).english in plain(words(at))
    ends = [panel["end"] for panel in drawing(at)["panels"]]
    assert ends == [round(run.step_s * 1e9) for run in expected.runs.values()]


def test_controls_change_the_scenario_and_the_address() -> None:
    at = opened(BENCH)
    at.number_input(key="batch").set_value(8)
    at.toggle(key="find_unused_parameters").set_value(True)
    at.selectbox(key=key_of(at, "cluster")).set_value("4xV100-pcie").run()
    assert not at.exception
    assert verdict(Choice(cluster="4xV100-pcie", batch=8, unused=True).compare()).english in plain(words(at))
    assert at.query_params["batch"] == "8" and at.query_params["cluster"] == "4xV100-pcie"
    assert at.query_params["find_unused_parameters"] == "true" and "model" not in at.query_params


@pytest.mark.parametrize("language", ["en", "zh"])
def test_several_machines_say_why_data_parallel_is_missing(language: str) -> None:
    at = opened(BENCH, cluster="2xV100-10gbe", lang=language)
    assert not at.exception
    assert text("one_machine", language, cluster=cluster_name("2xV100-10gbe", language), nodes=2) in words(at)
    assert [panel["title"] for panel in drawing(at)["panels"]] == ["DDP"]


def test_what_was_never_run_on_gpus_is_said_beside_its_title() -> None:
    assert text("NEVER_RUN", "en").split(" and ")[0][:40].replace("'", "&#x27;") in words(opened(BENCH))
    assert drawing(opened(BENCH))["panels"][0]["mark"] == text("unverified", "en")
    assert drawing(opened(BENCH, transport="peer_copy"))["panels"][0]["mark"] == ""


def test_a_profile_of_ones_own_takes_the_models_place() -> None:
    at = opened(BENCH)
    profile = load_model("mlp-small", "A100")
    at.get("file_uploader")[0].set_value(("mine.json", to_json(profile).encode(), "application/json")).run()
    assert not at.exception
    assert text("upload_used", "en", name="mlp-small") in words(at)
    box = at.selectbox(key=key_of(at, "model"))
    assert box.disabled and box.options == [text("from_file", "en", name="mlp-small")] and box.value == "resnet50"
    at.get("file_uploader")[0].set_value(None).run()
    box = at.selectbox(key=key_of(at, "model"))
    assert not box.disabled and box.value == "resnet50" and text("upload_used", "en", name="mlp-small") not in words(at)


def test_an_endless_name_is_cut_and_kept_whole_in_the_tooltip() -> None:
    at = opened(BENCH)
    name = "endless " * 625
    profile = replace(load_model("mlp-small", "A100"), name=name, source="from " + name)
    at.get("file_uploader")[0].set_value(("mine.json", to_json(profile).encode(), "application/json")).run()
    assert not at.exception
    seen = re.sub(r"<style.*?</style>|<[^>]*>", " ", words(at), flags=re.DOTALL)
    assert max(map(len, re.findall(r"(?:endless ?)+", seen))) <= 500
    assert f'title="{name}"' in words(at)
    box = at.selectbox(key=key_of(at, "model"))
    assert len(box.options[0]) < 80 and name in box.proto.help


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[]", to_json(load_cluster("laptop")).encode()])
def test_a_damaged_profile_is_refused_and_nothing_is_lost(content: bytes) -> None:
    at = opened(BENCH, model="vgg16")
    before = drawing(at)["v"]
    at.get("file_uploader")[0].set_value(("mine.json", content, "application/json")).run()
    assert not at.exception
    assert text("upload_bad", "en", model="VGG-16").strip() in words(at)
    assert drawing(at)["v"] == before


def test_a_combination_that_cannot_run_keeps_the_last_picture() -> None:
    at = opened(BENCH)
    before = drawing(at)["v"]
    at.number_input(key="global_batch").set_value(2).run()
    assert not at.exception
    assert text("cannot_run", "en").strip() in words(at)
    assert drawing(at)["v"] == before


@pytest.mark.parametrize("cluster", list(CLUSTERS))
def test_every_model_builds_on_every_cluster(cluster: str) -> None:
    for model in MODEL_NAMES:
        scenario = Choice(model, cluster, 2).scenario()
        assert scenario.world_size == load_cluster(cluster).world_size


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_text_has_both_languages_and_no_exclamation_mark(language: str) -> None:
    assert player_words(language).keys() == PLAYER.keys()
    assert TEXTS_ON_CPU.keys() <= TEXTS.keys() and ON_CPU.keys() <= PLAYER.keys()
    assert all(len(pair) == 2 and all(pair) for table in (TEXTS_ON_CPU, ON_CPU) for pair in table.values())
    for table in (TEXTS_ON_CPU, ON_CPU):
        assert not any(
            word in said for pair in table.values() for said in pair for word in ("GPU", "CUDA", "卡", "显存")
        )
    for table in (TEXTS, PLAYER):
        for key, pair in table.items():
            assert len(pair) == 2 and all(pair), key
            assert not any(mark in said for said in pair for mark in "!！"), key
            assert not any(word in pair[1] for word in ("内存", "规约", "还原", "总线")), key
    for cluster in CLUSTERS:
        assert cluster_name(cluster, language) != cluster
    assert all(model_name(name) != name for name in MODEL_NAMES)


def test_chinese_names_of_spans_keep_layers_and_buckets() -> None:
    assert span_name("launch backward of layer1.0.conv1", "zh") == "启动 layer1.0.conv1 的反向"
    assert span_name("all_reduce bucket 3", "zh") == "all_reduce bucket 3"
    assert span_name("my own program", "zh") == "my own program"
    assert span_name("training loop", "en") == "training loop"


def test_values_of_the_address_are_read_strictly() -> None:
    assert (whole(1, 9)("7"), number(0, 9)("2.5"), flag("true"), one_of("ab")("b")) == (7, 2.5, True, "b")
    for parse, given in ((whole(1, 9), "10"), (whole(1, 9), "x"), (number(0, 9), "nan"), (number(0, 9), "inf"),
                         (flag, "True"), (one_of("ab"), "c")):  # fmt: skip
        with pytest.raises(ValueError):
            parse(given)


def test_a_profile_that_is_something_else_is_an_input_error() -> None:
    with pytest.raises(InputError):
        Choice(profile=to_json(load_cluster("laptop"))).scenario()


def test_the_pages_load_neither_torch_nor_matplotlib_nor_networkx() -> None:
    code = (
        "import sys; from streamlit.testing.v1 import AppTest\n"
        "at = AppTest.from_file('app.py', default_timeout=60); at.query_params['answer'] = 'vgg16'; at.run()\n"
        f"at.switch_page({BENCH!r}).run(); assert not at.exception, at.exception\n"
        "print([name for name in ('torch', 'matplotlib', 'networkx') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.strip().splitlines()[-1] == "[]"


def drawn_spans(data: dict[str, Any], panel: int) -> list[tuple[str, str, int, int]]:
    """Name, kind, start and end in nanoseconds of everything in the drawing's lanes."""
    found = []
    for lane in data["panels"][panel]["lanes"]:
        now = 0
        for gap, length, entry in zip(lane["s"], lane["d"], lane["w"], strict=True):
            start, now = now + gap, now + gap + length
            found.append((data["what"]["name"][entry], data["kinds"][data["what"]["kind"][entry]], start, now))
    return sorted(found)


@pytest.mark.parametrize("cluster", ["8xV100-dgx1", "laptop"])
def test_the_drawings_data_is_the_trace_and_small(cluster: str) -> None:
    found = Choice(cluster=cluster).compare()
    data = timeline_data([Panel(name, name, run.trace) for name, run in found.runs.items()], language="en",
                         words=player_words("en"))  # fmt: skip
    assert len(data) < 400_000
    decoded = json.loads(data)
    for panel, run in enumerate(found.runs.values()):
        spans = sorted((span.name, span.kind, round(span.start_s * 1e9), round((span.end_s or 0) * 1e9))
                       for span in run.trace.spans if (span.end_s or 0) > span.start_s)  # fmt: skip
        assert drawn_spans(decoded, panel) == spans
        for lane in decoded["panels"][panel]["lanes"]:
            assert all(gap >= -1 for gap in lane["s"])


def test_work_that_never_finished_reaches_the_end_and_is_said() -> None:
    spans = [(1, "send", "copy", 0, 0, "compute", 0.0, 1e-3, 0, None, None, None, 8, None, "isend"),
             (2, "stuck", "all_reduce", 0, 0, "communication", 1e-3, None, 0, 0, "default", 0, 8, 1, "all_reduce")]  # fmt: skip
    trace = Trace(("gpu0",), raw_spans=[(*span, 0, None) for span in spans], end_s=5e-3,
                  waiting=(Waiting(0, "communication", "a message from 1 to 0"),), covers=frozenset())  # fmt: skip
    data = json.loads(timeline_data([Panel("a", "A", trace)], language="zh", words=player_words("zh")))
    assert ("stuck", "all_reduce", 1_000_000, 5_000_000) in drawn_spans(data, 0)
    assert data["panels"][0]["unfinished"] == ["communication a message from 1 to 0"]
    assert data["panels"][0]["memory"] == []
    assert [lane["c"] for lane in data["panels"][0]["lanes"]] == [[0], [1]]


def test_equal_runs_give_equal_bytes_and_a_language_changes_only_words() -> None:
    def made(language: str) -> bytes:
        run = Choice("mlp-small", batch=4).compare().runs["DataParallel"]
        return timeline_data([Panel("dp", "DataParallel", run.trace)], language=language, words=player_words(language))

    assert made("en") == made("en")
    english, chinese = json.loads(made("en")), json.loads(made("zh"))
    assert english["v"] != chinese["v"] and english["same"] == chinese["same"]
