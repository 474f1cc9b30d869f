"""What all figures share: a bare figure in a theme, text in the one typeface, widths of text before it is drawn.

A figure is a `matplotlib.figure.Figure` of its own, never pyplot's: pyplot keeps one global state, and a server that
used it would show one user's picture to another.

Not modelled: kerning; a sign's width is an average.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from simulator.views.save import drawable, font_families
from simulator.views.style import STYLES, Theme
from simulator.views.words import columns, wrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PIXELS_PER_INCH = 96
MARGIN_IN = 0.25
SMALL, NORMAL, LARGE = 7.5, 8.5, 12.0
"""Font sizes in points."""
SMALL_HATCH = 0.5
LEGEND_ROW_IN = 0.24


def new_figure(width_in: float, height_in: float, theme: Theme) -> "Figure":
    """An empty figure on the theme's background."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), facecolor=theme.background, dpi=PIXELS_PER_INCH)


def text_width_in(text: str, size: float) -> float:
    """About how wide the text will be, in inches."""
    return columns(text) * 0.58 * size / 72


def title_lines(title: str, width_in: float) -> list[str]:
    """The title broken to fit; text that nothing can draw is replaced."""
    return wrap(drawable(title), _room(width_in, LARGE)) if title else []


def title_height_in(lines: Sequence[str]) -> float:
    """How much room the title takes at the top."""
    return MARGIN_IN + len(lines) * LARGE * 1.35 / 72


def put_title(figure: "Figure", lines: Sequence[str], theme: Theme) -> None:
    """The finding, at the top left."""
    width, height = figure.get_size_inches()
    figure.suptitle("\n".join(lines), x=MARGIN_IN / width, y=1 - MARGIN_IN / height, ha="left", va="top",
                    fontsize=LARGE, fontweight="bold", color=theme.text, fontfamily=font_families(),
                    linespacing=1.25)  # fmt: skip


def put_text(axes: "Axes", x: float, y: float, text: str, *, size: float = NORMAL, colour: str, **more: Any) -> None:
    """Text in the one typeface."""
    axes.text(x, y, drawable(text), fontsize=size, color=colour, fontfamily=font_families(), **more)


def put_notes(figure: "Figure", notes: Sequence[str], theme: Theme) -> None:
    """Small print at the bottom left, one line each."""
    width, height = figure.get_size_inches()
    for number, note in enumerate(reversed(notes)):
        figure.text(MARGIN_IN / width, (MARGIN_IN / 2 + number * SMALL * 1.4 / 72) / height, drawable(note),
                    fontsize=SMALL, color=theme.muted, fontfamily=font_families(), va="bottom")  # fmt: skip


def notes_height_in(notes: Sequence[str]) -> float:
    """How much room the small print takes."""
    return MARGIN_IN / 2 + len(notes) * SMALL * 1.4 / 72


def note_lines(notes: Sequence[str], width_in: float) -> list[str]:
    """The small print broken to fit."""
    return [line for note in notes for line in wrap(note, _room(width_in, SMALL))]


def _room(width_in: float, size: float) -> int:
    """How many narrow signs fit between the margins."""
    return max(20, int((width_in - 2 * MARGIN_IN) / text_width_in("n", size)))


def hatch_colour(kind: str, theme: Theme) -> str:
    """The lines of a kind's pattern: its ink, mixed into its fill so that they stay quiet."""
    if kind == "wait":
        return theme.waiting
    fill, ink = theme.colour(kind), theme.on(kind)
    mixed = (round(0.72 * int(fill[i : i + 2], 16) + 0.28 * int(ink[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def pattern(kind: str, theme: Theme) -> dict[str, Any]:
    """Fill, pattern and lines of a kind, as matplotlib's artists take them."""
    return {"facecolor": theme.colour(kind), "hatch": STYLES[kind].hatch or None,
            "edgecolor": hatch_colour(kind, theme), "linewidth": 0.0}  # fmt: skip


def quiet_hatch(artist: Any) -> None:
    """Thin lines, where this matplotlib can set them for one artist."""
    if hasattr(artist, "set_hatch_linewidth"):
        artist.set_hatch_linewidth(SMALL_HATCH)


def bare(axes: "Axes", theme: Theme) -> None:
    """No frame, no ticks."""
    axes.set_facecolor(theme.background)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, colors=theme.muted, labelsize=NORMAL)


def legend_rows(texts: Sequence[str], width_in: float) -> list[list[int]]:
    """Which entries stand in which row of a legend that wide."""
    rows: list[list[int]] = [[]]
    used = 0.0
    for number, text in enumerate(texts):
        needed = text_width_in(text, NORMAL) + 0.5
        if rows[-1] and used + needed > width_in:
            rows.append([])
            used = 0.0
        rows[-1].append(number)
        used += needed
    return rows


def put_legend(figure: "Figure", entries: Sequence[tuple[str, dict[str, Any]]], theme: Theme, left_in: float,
               top_in: float) -> None:  # fmt: skip
    """Swatches and names in rows from the given height downwards; each entry a name and its patch's properties."""
    from matplotlib.patches import Patch

    width, height = figure.get_size_inches()
    rows = legend_rows([text for text, _ in entries], width - left_in - MARGIN_IN)
    for number, row in enumerate(rows if entries else []):
        handles = [Patch(label=drawable(entries[index][0]), **entries[index][1]) for index in row]
        for handle in handles:
            quiet_hatch(handle)
        place = left_in / width, (top_in - number * LEGEND_ROW_IN) / height
        figure.legend(handles=handles, loc="upper left", ncols=len(handles), frameon=False, borderpad=0,
                      borderaxespad=0, bbox_to_anchor=place, handlelength=1.6, columnspacing=1.4, labelcolor=theme.text,
                      prop={"family": font_families(), "size": NORMAL})  # fmt: skip
