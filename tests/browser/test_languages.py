"""Both languages to and fro in a real browser: no control loses its value, and nothing fails on the way."""

from pathlib import Path
from typing import Any

import pytest

from simulator.app_pages.runs import Choice
from simulator.app_pages.texts import LANGUAGES, cluster_name, text
from simulator.codec import to_json
from simulator.presets.models import load_model
from simulator.verdict import verdict

CHANGED = {
    "model": "vgg16", "cluster": "8xH100", "batch": "7", "transport": "peer_copy", "loss_inside": "true",
    "bucket_cap_mb": "10", "find_unused_parameters": "true", "gradient_as_bucket_view": "true", "devices": "3",
    "optimizer": "adam", "precision": "bf16", "algorithm": "ring", "inputs": "host", "iteration": "first",
    "serial": "true", "global_batch": "30",
}  # fmt: skip


def switch(one: Any, language: str) -> None:
    """Click the language and wait until the page speaks it."""
    one.page.locator(".st-key-lang").get_by_text(LANGUAGES[language], exact=True).click()
    one.page.get_by_role("link", name=text("bench_page", language), exact=True).wait_for()


def whole(one: Any) -> None:
    """No Python error and no note that something is not possible."""
    one.page.wait_for_timeout(400)
    assert one.page.get_by_test_id("stException").count() == 0
    body = one.page.locator("body").inner_text()
    assert "is not possible here" not in body and "这里不能用" not in body


def parameters(one: Any) -> set[str]:
    """The address without its language."""
    return {part for part in one.page.url.partition("?")[2].split("&") if part and not part.startswith("lang=")}


@pytest.mark.parametrize("chosen", [{}, CHANGED, {"cluster": "laptop"}, {"cluster": "2xV100-10gbe", "devices": "1"}])
def test_the_bench_keeps_every_choice_through_four_switches(visit: Any, chosen: dict[str, str]) -> None:
    expected = {f"{name}={value}" for name, value in chosen.items()}
    one = visit("/bench?" + "&".join(sorted(expected)), reduced_motion="reduce")
    one.drawn()
    for language in ("zh", "en", "zh", "en"):
        switch(one, language)
        one.says(text("numbers", language))
        whole(one)
        assert parameters(one) == expected
        shown = one.page.locator(".st-key-first").get_by_test_id("stSelectbox").nth(1).inner_text()
        box = one.page.locator(".st-key-first input[role=combobox]").nth(1)
        cluster = cluster_name(chosen.get("cluster", "4xA100"), language)
        assert cluster in shown or cluster == box.input_value()


def test_choices_made_by_hand_survive_and_may_change_after_each_switch(visit: Any) -> None:
    one = visit("/bench", reduced_motion="reduce")
    one.drawn()
    batch = 32
    for language, cluster in (("zh", "8xA100"), ("en", "4xV100-pcie"), ("zh", "laptop"), ("en", "4xA100")):
        switch(one, language)
        one.page.locator(".st-key-first").get_by_role("combobox").nth(1).click()
        one.page.get_by_role("option", name=cluster_name(cluster, language), exact=True).click()
        if cluster == "4xA100":
            one.page.wait_for_url(lambda url: "cluster=" not in url)
        else:
            one.page.wait_for_url(f"**cluster={cluster}**")
        one.page.get_by_test_id("stNumberInputStepUp").first.click()
        batch += 1
        one.page.wait_for_url(f"**batch={batch}**")
        one.says(verdict(Choice(cluster=cluster, batch=batch).compare()).text(language))
        whole(one)


def test_switches_faster_than_the_page_lose_nothing(visit: Any) -> None:
    one = visit("/bench?cluster=8xV100-dgx1&devices=3&inputs=host&iteration=first", reduced_motion="reduce")
    one.drawn()
    for language in ("zh", "en", "zh", "en", "zh"):
        one.page.locator(".st-key-lang").get_by_text(LANGUAGES[language], exact=True).click()
    one.says(text("numbers", "zh"))
    whole(one)
    assert parameters(one) == {"cluster=8xV100-dgx1", "devices=3", "inputs=host", "iteration=first"}


def test_a_file_and_the_open_part_stay_through_four_switches(visit: Any, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(to_json(load_model("mlp-small", "A100")), encoding="utf-8")
    one = visit("/bench?cluster=8xA100", reduced_motion="reduce")
    one.drawn()
    one.page.get_by_test_id("stExpander").get_by_text("More", exact=True).click()
    one.page.locator("input[type=file]").set_input_files(tmp_path / "mine.json")
    for language in ("en", "zh", "en", "zh", "en"):
        if language != "en" or "lang=" in one.page.url:
            switch(one, language)
        one.says(text("upload_used", language, name="mlp-small"))
        whole(one)
        assert one.page.locator(".st-key-first").get_by_text(text("from_file", language, name="mlp-small")).count() or (
            one.page.locator(".st-key-first input").first.input_value() == text("from_file", language, name="mlp-small")
        )
        assert one.page.get_by_text(text("serial", language), exact=True).is_visible()
        assert parameters(one) == {"cluster=8xA100"}


@pytest.mark.parametrize("address", ["/", "/?answer=vgg16", "/?answer=resnet50&link=pcie3"])
def test_the_question_keeps_its_answer_through_four_switches(visit: Any, address: str) -> None:
    one = visit(address, reduced_motion="reduce")
    expected = {part for part in address.partition("?")[2].split("&") if part}
    one.says("DataParallel")
    for language in ("zh", "en", "zh", "en"):
        switch(one, language)
        one.says(text("ask_again" if expected else "question", language))
        whole(one)
        assert parameters(one) == expected
