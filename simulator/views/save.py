"""Figures to files, and the fonts that they need: Chinese never becomes boxes.

matplotlib's own font has no Chinese. Where the system has a font that does, it stands in for the signs that the first
lacks; where it has none, our own words are English and a sign of a caller's text that nothing can draw becomes "?". SVG
text is written as outlines, so that a file looks the same on a machine without the font.

Not modelled: right-to-left scripts.
"""

import os
import re
from functools import cache
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.errors import InputError, require, unknown
from simulator.views.style import check_language

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = ("svg", "png")
LATIN_FONT = "DejaVu Sans"
"""Comes with matplotlib, so it is always there."""
CJK_FONTS = (
    "Noto Sans CJK SC", "Noto Sans SC", "Source Han Sans SC", "Source Han Sans CN", "Microsoft YaHei", "PingFang SC",
    "Hiragino Sans GB", "Heiti SC", "STHeiti", "SimHei", "WenQuanYi Micro Hei", "WenQuanYi Zen Hei",
    "Noto Sans CJK JP", "Noto Sans CJK TC", "Arial Unicode MS", "Droid Sans Fallback", "SimSun", "Noto Serif CJK SC",
)  # fmt: skip
_SAMPLE = "前向反向优化器等待归约显存张号卡时间梯度激活值参数副本链路"


@cache
def _signs(font: str) -> frozenset[int]:
    """The code points that a font can draw; none if it is not installed."""
    from matplotlib import font_manager

    try:
        path = font_manager.findfont(font_manager.FontProperties(family=[font]), fallback_to_default=False)
        return frozenset(font_manager.get_font(path).get_charmap())
    except (ValueError, OSError, RuntimeError):
        return frozenset()


@cache
def _cjk_font() -> str | None:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    complete = (font for font in CJK_FONTS if font in installed and all(ord(sign) in _signs(font) for sign in _SAMPLE))
    return next(complete, None)


def has_cjk_font() -> bool:
    """Whether Chinese can be drawn here."""
    return _cjk_font() is not None


def font_families() -> list[str]:
    """The font of all figures, and the one that stands in for Chinese signs if there is one."""
    found = _cjk_font()
    return [LATIN_FONT] if found is None else [LATIN_FONT, found]


def drawn_language(language: str) -> str:
    """The language, or English where its font is missing. Raises InputError when we do not speak it."""
    return "en" if check_language(language) == "zh" and not has_cjk_font() else language


def drawable(text: str) -> str:
    """The text with "?" for what no font here can draw."""
    return "".join(
        sign if sign.isspace() or any(ord(sign) in _signs(font) for font in font_families()) else "?" for sign in text
    )


def check_target(path: str | Path) -> Path:
    """The path, if a file can be written there: its folder exists and it is no folder itself. Raises InputError."""
    require(str(path) not in ("", ".") and "\0" not in str(path), f"{str(path)!r} is no file",
            "a file's name is needed", "Name a file to write")  # fmt: skip
    target = Path(path)
    try:
        require(target.parent.is_dir(), f"{target}: its folder does not exist", "a file is written to a folder that exists",
                f"Make {target.parent} first, or name another folder")  # fmt: skip
        require(not target.is_dir(), f"{target} is a folder", "a file's name is needed", "Name a file to write")
    except (OSError, ValueError) as problem:
        raise problem if isinstance(problem, InputError) else cannot_write(target, problem) from None
    require(os.access(target if target.exists() else target.parent, os.W_OK), f"{target} cannot be written",
            "permission is needed", "Name a file in a folder of your own")  # fmt: skip
    return target


def cannot_write(path: Path, problem: Exception) -> InputError:
    """The error for a file that the system does not let us write."""
    reason = getattr(problem, "strerror", None) or problem
    return InputError(f"{path}: {reason}. It could not be written. Name another file, or make room.")


def check_figure(path: str | Path) -> Path:
    """The path, if a figure can be written there, before it takes time to draw it. Raises InputError."""
    target = check_target(path)
    suffix = target.suffix.lower().removeprefix(".")
    if suffix not in SUFFIXES:
        raise unknown("figure ending", suffix or target.name, SUFFIXES)
    require(find_spec("matplotlib") is not None, f"{target}: matplotlib is not installed", "figures are drawn with it",
            "pip install matplotlib")  # fmt: skip
    return target


def save_figure(figure: "Figure", path: str | Path) -> None:
    """Write the figure as *.svg or *.png. Equal figures give equal files. Raises InputError where it cannot."""
    target = check_figure(path)
    try:
        _save(figure, target, target.suffix.lower().removeprefix("."))
    except OSError as problem:
        raise cannot_write(target, problem) from None


def _save(figure: "Figure", target: Path, suffix: str) -> None:
    import matplotlib

    if suffix == "png":
        figure.savefig(target, format="png", dpi=150, facecolor=figure.get_facecolor(), metadata={"Software": None})
        return
    matplotlib.rcParams["svg.hashsalt"] = "simulator"
    title = figure.get_suptitle()
    facts = {"Date": None, **({"Title": title} if title else {})}
    figure.savefig(target, format="svg", facecolor=figure.get_facecolor(), metadata=facts)
    if title:
        label = escape(re.sub(r"\s+", " ", title), quote=True)
        text = target.read_text(encoding="utf-8").replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
        target.write_text(text, encoding="utf-8")
