"""The palette: every kind has a style, colours stay apart for colour-blind eyes and in grey, labels can be read."""

import itertools
import math

import numpy as np
import pytest

from simulator.errors import InputError
from simulator.trace import COMMUNICATION, COMPUTE, KINDS, MEMORY_CATEGORIES
from simulator.views.style import (
    MEMORY_STYLES,
    STYLES,
    THEMES,
    contrast,
    kind_name,
    luminance,
    memory_name,
    palette,
    rgb,
    theme_of,
)

PAINTED = [kind for kind in KINDS if kind != "wait"]
# Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision Deficiency (2009),
# severity 1.0, on linear RGB.
VISION = {
    "full": np.eye(3),
    "deuteranopia": np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                              [-0.011820, 0.042940, 0.968881]]),
    "protanopia": np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                            [-0.003882, -0.048116, 1.051998]]),
}  # fmt: skip


def lab(colour: str, vision: str = "full") -> np.ndarray:
    """CIELAB (D65) of what an eye of that kind sees."""
    channels = np.array(rgb(colour))
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISION[vision] @ linear, 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def test_every_kind_and_every_memory_category_has_a_style():
    assert set(STYLES) == set(KINDS)
    assert set(MEMORY_STYLES) == set(MEMORY_CATEGORIES)
    for kind, language in itertools.product(KINDS, ("en", "zh")):
        assert kind_name(kind, language)
    for category, language in itertools.product(MEMORY_CATEGORIES, ("en", "zh")):
        assert memory_name(category, language)


def test_letters_are_unique_and_their_case_tells_compute_from_communication():
    letters = [style.letter for style in STYLES.values()]
    assert len(set(letters)) == len(letters)
    assert all(STYLES[kind].letter.isupper() for kind in COMMUNICATION)
    assert all(STYLES[kind].letter.islower() for kind in COMPUTE)


def test_no_two_memory_categories_share_a_colour():
    assert len({style.kind for style in MEMORY_STYLES.values()}) == len(MEMORY_STYLES)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISION)
def test_every_two_kinds_stay_apart_for_this_eye(theme, vision):
    seen = {kind: lab(THEMES[theme].colour(kind), vision) for kind in PAINTED}
    for first, second in itertools.combinations(PAINTED, 2):
        assert math.dist(seen[first], seen[second]) > 12, (first, second)


@pytest.mark.parametrize("theme", THEMES)
def test_the_kinds_that_fill_most_pictures_stay_half_as_far_apart_again(theme):
    for vision in VISION:
        main = ("forward", "backward", "all_reduce", "replicate", "reduce", "host")
        for first, second in itertools.combinations(main, 2):
            a, b = (lab(THEMES[theme].colour(kind), vision) for kind in (first, second))
            assert math.dist(a, b) > 18, (vision, first, second)


@pytest.mark.parametrize("theme", THEMES)
def test_kinds_with_one_pattern_differ_in_lightness_so_that_grey_print_reads(theme):
    for first, second in itertools.combinations(PAINTED, 2):
        if STYLES[first].hatch == STYLES[second].hatch:
            light = [lab(THEMES[theme].colour(kind))[0] for kind in (first, second)]
            assert abs(light[0] - light[1]) > 6, (first, second)


@pytest.mark.parametrize("theme", THEMES)
def test_text_reads_on_every_fill_and_on_the_background(theme):
    found = THEMES[theme]
    for kind in KINDS:
        assert contrast(found.on(kind), found.colour(kind)) >= 4.5, kind
    for ink in (found.text, found.muted):
        assert contrast(ink, found.background) >= 4.5
        assert contrast(ink, found.colour("wait")) >= 4.5


@pytest.mark.parametrize("theme", THEMES)
def test_waiting_is_quieter_than_any_work(theme):
    found = THEMES[theme]
    quiet = contrast(found.colour("wait"), found.background)
    assert all(contrast(found.colour(kind), found.background) > quiet for kind in PAINTED)


def test_contrast_is_the_ratio_of_the_web_content_guidelines():
    assert contrast("#000000", "#ffffff") == pytest.approx(1.05 / 0.05)
    assert contrast("#777777", "#ffffff") == pytest.approx(1.05 / (((0x77 / 255 + 0.055) / 1.055) ** 2.4 + 0.05))
    assert luminance("#ffffff") == pytest.approx(1.0)


def test_the_glossary_holds_for_the_chinese_names():
    assert kind_name("all_reduce", "zh") == "all-reduce"
    assert kind_name("backward", "zh") == "反向"
    assert kind_name("reduce", "zh") == "归约"
    assert not any(wrong in kind_name(kind, "zh") for kind in KINDS for wrong in ("规约", "还原", "内存"))


def test_the_palette_as_data_names_each_kind_once_in_both_themes():
    for theme in THEMES:
        found = palette(theme)
        assert list(found) == list(STYLES)
        assert found["forward"]["fill"] == THEMES[theme].colour("forward")


def test_an_unknown_kind_theme_or_language_lists_the_known_ones():
    for call in (lambda: theme_of("drak"), lambda: kind_name("forwards"), lambda: kind_name("forward", "fr"),
                 lambda: memory_name("params")):  # fmt: skip
        with pytest.raises(InputError, match="Known: "):
            call()
