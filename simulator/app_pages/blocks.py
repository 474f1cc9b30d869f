"""Small blocks of a page as HTML: paragraphs, tables, a strip of what the step waits for.

Not modelled: anything that answers to a click.
"""

import html
import re
from collections.abc import Callable, Sequence

import streamlit as st

from simulator.app_pages.address import Address
from simulator.app_pages.summary import PathEntry
from simulator.app_pages.texts import text
from simulator.units import percent

LONG_LIST = 8
SMALL = 0.005
"""Parts of the step below this are in the strip only."""


def heading_html(level: int, words: str) -> str:
    """A heading whose names of models do not break at their hyphen."""
    inner = re.sub(r"[\w/]+(?:-\w+)+", r'<span class="nowrap">\g<0></span>', html.escape(words, quote=False))
    return f"<h{level}>{inner}</h{level}>"


def paragraph_html(words: str, style: str = "quiet") -> str:
    """Text in one of the page's styles: lead, quiet or said."""
    chinese = " zh" if st.session_state["language"] == "zh" else ""
    return f'<p class="{style}{chinese}">{html.escape(words)}</p>'


def heading(level: int, words: str) -> None:
    """Show a heading."""
    st.html(heading_html(level, words))


def paragraph(words: str, style: str = "quiet") -> None:
    """Show a paragraph."""
    st.html(paragraph_html(words, style))


def refused(address: Address, language: str) -> None:
    """What the address said and the page cannot mean."""
    for name, given, used in address.refused:
        instead = text("all_of_them" if used == 0 else "nothing", language) if used in (0, None) else used
        paragraph(text("bad_value", language, name=name, given=given, used=instead), "said")


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
    items = "".join(f'<li><i style="background:var(--k-{entry.kind})"></i><span>{html.escape(entry.label)}</span>'
                    f"<b>{entry.time}</b><small>{percent(entry.part)}</small></li>" for entry in named)  # fmt: skip
    rest = len(entries) - len(named)
    tail = f'<li class="rest"><span>{html.escape(more(rest))}</span></li>' if rest else ""
    return f'<div class="path"><div class="strip">{strip}</div><ol>{items}{tail}</ol></div>'
