"""The one encoding: a kind of work has the same colour, letter, pattern and name in every picture, table and page.

Compute is cool (blue, green, violet), communication warm (orange, yellow, red, pink), the host is grey and waiting is
no colour at all but a quiet hatch: the idle time is the lesson. The colours start from Okabe and Ito's and were moved
apart in CIELAB until every two of them stay 12 units or more apart for full colour vision and for simulated protanopia
and deuteranopia (Machado, Oliveira and Fernandes 2009). Grey print reads by lightness, pattern and letter: two kinds
with one pattern differ by 6 or more in lightness. Letters: lower case computes, upper case moves bytes.

Not modelled: a user's own palette.
"""

from dataclasses import dataclass

from simulator.errors import unknown
from simulator.trace import KINDS, MEMORY_CATEGORIES

LANGUAGES = ("en", "zh")


@dataclass(frozen=True)
class KindStyle:
    """How one kind of work looks. `hatch` is in matplotlib's signs."""

    letter: str
    light: str
    dark: str
    hatch: str
    en: str
    zh: str


STYLES: dict[str, KindStyle] = {
    "input": KindStyle("I", "#8395cc", "#e6d2f9", "--", "input", "输入"),
    "scatter": KindStyle("S", "#f5baa1", "#f6bf9b", "++", "scatter", "scatter"),
    "broadcast": KindStyle("C", "#eba05b", "#f19b4f", "--", "broadcast", "broadcast"),
    "replicate": KindStyle("R", "#eedb35", "#fde162", "\\\\", "replicate", "replicate"),
    "forward": KindStyle("f", "#3ac6fc", "#5accff", "", "forward", "前向"),
    "gather": KindStyle("G", "#a2392e", "#bd3f48", "++", "gather", "gather"),
    "loss": KindStyle("l", "#46336f", "#ab7393", "", "loss", "损失"),
    "backward": KindStyle("b", "#2c6fd3", "#6094fe", "", "backward", "反向"),
    "copy": KindStyle("c", "#c7e6e2", "#9ef3df", "", "copy", "拷贝"),
    "all_reduce": KindStyle("A", "#d76421", "#f47a0c", "//", "all-reduce", "all-reduce"),
    "reduce": KindStyle("D", "#be57a6", "#de70c4", "\\\\", "reduce", "归约"),
    "optimizer": KindStyle("o", "#108752", "#58a670", "xx", "optimizer", "优化器"),
    "host": KindStyle("h", "#a4a4a5", "#aaabad", "", "host", "主机线程"),
    "wait": KindStyle(".", "#f4f5f7", "#171c24", "////", "waiting", "等待"),
}
"""In the order of a training step, which is the order of every legend."""


@dataclass(frozen=True)
class MemoryStyle:
    """A category of memory takes the colour of the kind of work that it belongs to."""

    kind: str
    en: str
    zh: str


MEMORY_STYLES: dict[str, MemoryStyle] = {
    "parameters": MemoryStyle("loss", "parameters", "参数"),
    "buffers": MemoryStyle("copy", "buffers", "buffer"),
    "optimizer_state": MemoryStyle("optimizer", "optimizer state", "优化器状态"),
    "replicas": MemoryStyle("replicate", "replicas", "副本"),
    "gradients": MemoryStyle("backward", "gradients", "梯度"),
    "buckets": MemoryStyle("all_reduce", "buckets", "bucket"),
    "flat_pieces": MemoryStyle("reduce", "flat pieces", "展平的数据块"),
    "activations": MemoryStyle("forward", "activations", "激活值"),
    "inputs": MemoryStyle("input", "inputs", "输入"),
    "outputs": MemoryStyle("gather", "outputs", "输出"),
    "context": MemoryStyle("wait", "CUDA context", "CUDA context"),
}


@dataclass(frozen=True)
class Theme:
    """Colours of everything that is not work."""

    name: str
    background: str
    text: str
    muted: str
    """Second-rank text; 4.5 against the background, as `text` is."""
    line: str
    waiting: str
    """The hatch of waiting, on the colour of kind "wait"."""

    def colour(self, kind: str) -> str:
        """The fill of a kind. Raises InputError when it is not known."""
        style = style_of(kind)
        return style.light if self.name == "light" else style.dark

    def on(self, kind: str) -> str:
        """Black or white, whichever reads better on the kind's fill (4.5 or more)."""
        return self.ink_on(self.colour(kind))

    def ink_on(self, fill: str) -> str:
        """Black or white, whichever reads better on the fill."""
        return max("#000000", "#ffffff", key=lambda ink: contrast(ink, fill))

    def memory(self, category: str) -> str:
        """The fill of a memory category."""
        return self.colour(MEMORY_STYLES[category].kind) if category in MEMORY_STYLES else self.line


THEMES = {
    "light": Theme("light", "#ffffff", "#1a1d21", "#5b6168", "#e3e6ea", "#b4bac2"),
    "dark": Theme("dark", "#0e1117", "#e8eaed", "#9aa2ad", "#2a303a", "#4d5662"),
}


def style_of(kind: str) -> KindStyle:
    """The style of a kind. Raises InputError when it is not known."""
    if kind not in STYLES:
        raise unknown("kind of work", kind, KINDS)
    return STYLES[kind]


def theme_of(name: str) -> Theme:
    """The theme of that name. Raises InputError when it is not known."""
    if name not in THEMES:
        raise unknown("theme", name, THEMES)
    return THEMES[name]


def check_language(language: str) -> str:
    """The language, if it is one of ours. Raises InputError otherwise."""
    if language not in LANGUAGES:
        raise unknown("language", language, LANGUAGES)
    return language


def kind_name(kind: str, language: str = "en") -> str:
    """What the kind is called in that language; torch's and NCCL's words stay English."""
    style = style_of(kind)
    return style.zh if check_language(language) == "zh" else style.en


def memory_name(category: str, language: str = "en") -> str:
    """What the memory category is called in that language. Raises InputError when it is not known."""
    if category not in MEMORY_STYLES:
        raise unknown("memory category", category, MEMORY_CATEGORIES)
    style = MEMORY_STYLES[category]
    return style.zh if check_language(language) == "zh" else style.en


def palette(theme: str = "light") -> dict[str, dict[str, str]]:
    """All kinds as plain data, for the app's style sheet and the player: fill, ink, letter, names."""
    found = theme_of(theme)
    return {kind: {"fill": found.colour(kind), "ink": found.on(kind), "letter": style.letter, "en": style.en,
                   "zh": style.zh} for kind, style in STYLES.items()}  # fmt: skip


def rgb(colour: str) -> tuple[float, float, float]:
    """The three channels of `#rrggbb`, 0 to 1."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return red, green, blue


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2)."""
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    """WCAG 2 contrast ratio, 1 to 21."""
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
