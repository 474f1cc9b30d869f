"""Small blocks of a page as HTML: paragraphs, tables, a strip of what the step waits for.

Not modelled: anything that answers to a click.
"""

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from simulator.app_pages.address import Address
from simulator.app_pages.summary import PathEntry
from simulator.app_pages.texts import LANGUAGES, text
from simulator.units import percent

LONG_LIST = 8
LONG_NAME, LONG_TEXT = 60, 500
"""Names and texts of a user's own file are cut after so many characters; pointing at them shows all."""
SMALL = 0.005
"""Parts of the step below this are in the strip only."""


def heading_html(level: int, words: str) -> str:
    """A heading whose names of models do not break at their hyphen."""
    inner = re.sub(r"[\w/]+(?:-\w+)+", r'<span class="nowrap">\g<0></span>', html.escape(words, quote=False))
    return f"<h{level}>{inner}</h{level}>"


def short(words: str, most: int = LONG_NAME) -> str:
    """The beginning of what is too long."""
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def paragraph_html(words: str, style: str = "quiet", whole: str = "") -> str:
    """Text in one of the page's styles: lead, quiet or said. `whole` shows when pointed at; else it is what was cut."""
    chinese = " zh" if st.session_state["language"] == "zh" else ""
    shown = short(words, LONG_TEXT)
    whole = whole or (words if shown != words else "")
    tip = f' title="{html.escape(whole)}"' if whole else ""
    return f'<p class="{style}{chinese}"{tip}>{html.escape(shown)}</p>'


def heading(level: int, words: str) -> None:
    """Show a heading."""
    st.html(heading_html(level, words))


def paragraph(words: str, style: str = "quiet", whole: str = "") -> None:
    """Show a paragraph."""
    st.html(paragraph_html(words, style, whole))


def legend_html(head: str, entries: Sequence[tuple[str, str]]) -> str:
    """Colours in one line, each with its name; an entry is a kind of work and a name."""
    items = "".join(
        f'<span><i style="background:var(--k-{kind})"></i>{html.escape(name)}</span>' for kind, name in entries
    )
    return f'<div class="legend"><b>{html.escape(head)}</b>{items}</div>'


def refused(address: Address, language: str) -> None:
    """What the address said, or a choice that another one made impossible, and what is shown instead."""
    for name, given, used in address.refused:
        paragraph(text("bad_value", language, name=name, given=given, used=in_words(name, used, language)), "said")


def in_words(name: str, value: Any, language: str) -> str:
    """A control's value as its notes call it."""
    if isinstance(value, bool):
        return text("on" if value else "off", language)
    if name == "devices" and value == 0:
        return text("all_of_them", language)
    if value is None:
        return text({"bucket_cap_mb": "cap_default", "answer": "unanswered"}.get(name, "nothing"), language)
    return LANGUAGES[value] if name == "lang" else str(value)


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """The first row is the header."""
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows[1:])
    return f'<div class="scroll"><table class="plain"><thead><tr>{head}</tr></thead>{body}</table></div>'


def path_html(entries: Sequence[PathEntry], more: Callable[[int], str]) -> str:
    """The parts of the step side by side, and the longest of them by name, in the order of the step."""
    strip = "".join(f'<i style="flex:{max(entry.part, 0.0005):.4f};background:var(--k-{entry.kind})" '
                    f'title="{html.escape(entry.label)} {entry.time}"></i>' for entry in entries)  # fmt: skip
    longest = sorted((entry for entry in entries if entry.part >= SMALL), key=lambda entry: -entry.part)[:LONG_LIST]
    named = [entry for entry in entries if entry in longest]
    items = "".join(f'<li><i style="background:var(--k-{entry.kind})"></i><span title="{html.escape(entry.label)}">'
                    f"{html.escape(short(entry.label, 80))}</span>"
                    f"<b>{entry.time}</b><small>{percent(entry.part)}</small></li>" for entry in named)  # fmt: skip
    rest = len(entries) - len(named)
    tail = f'<li class="rest"><span>{html.escape(more(rest))}</span></li>' if rest else ""
    return f'<div class="path"><div class="strip">{strip}</div><ol>{items}{tail}</ol></div>'
