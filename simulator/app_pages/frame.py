"""What every page has: the language in the address, and the page's own few rules of style.

Not modelled: a third language.
"""

import gc

import streamlit as st

from simulator.app_pages.address import Address, one_of
from simulator.app_pages.texts import LANGUAGES
from simulator.views.style import STYLES

STYLE = """<style>
:root { --sticky-top: 3.5rem; --quiet: light-dark(#5b6168, #9aa2ad); --rule: light-dark(#e3e6ea, #2a303a); %s }
[data-testid="stMainBlockContainer"] { max-width: 2240px; padding: 4.5rem clamp(1rem, 3vw, 3rem) 4rem; }
[data-testid="stMain"] h1, [data-testid="stMain"] h2, [data-testid="stMain"] h3 { padding: 0; margin: 0; }
[data-testid="stMain"] h1 { font-size: clamp(1.5rem, 1.1rem + 1.6vw, 2.5rem); line-height: 1.25; font-weight: 650;
  letter-spacing: -0.01em; max-width: 24em; text-wrap: balance; }
[data-testid="stMain"] h2 { font-size: clamp(1.25rem, 1.05rem + 0.8vw, 1.75rem); line-height: 1.35; font-weight: 600;
  max-width: 34em; text-wrap: pretty; }
[data-testid="stMain"] h3 { font-size: 1.0625rem; line-height: 1.4; font-weight: 600; padding-top: 0.5rem; }
[data-testid="stMain"] .nowrap { white-space: nowrap; }
.lead { font-size: 1.125rem; line-height: 1.55; max-width: 68ch; margin: 0; text-wrap: pretty; }
.quiet { color: var(--quiet); font-size: 0.875rem; line-height: 1.55; max-width: 90ch; margin: 0; overflow-wrap: anywhere; }
.said { font-size: 0.9375rem; line-height: 1.5; margin: 0; padding: 0.5rem 0.75rem; border-radius: 0.5rem; max-width: 90ch;
  background: color-mix(in srgb, currentColor 7%%, transparent); overflow-wrap: anywhere; }
table.plain { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9375rem; }
table.plain th, table.plain td { border: 0; border-bottom: 1px solid var(--rule); padding: 0.3rem 1.25rem 0.3rem 0;
  text-align: right; white-space: nowrap; }
table.plain th:first-child, table.plain td:first-child { text-align: left; white-space: normal; }
table.plain th { font-weight: 600; color: inherit; }
table.plain td:first-child { color: var(--quiet); }
.scroll { overflow-x: auto; max-width: 100%%; }
.st-key-lang { position: fixed; top: 0.55rem; right: 1rem; z-index: 999991; width: auto; }
.st-key-lang button { min-height: 2rem; padding: 0 0.6rem; }
</style>""" % "".join(f"--k-{kind}: light-dark({style.light}, {style.dark});" for kind, style in STYLES.items())


CHINESE = """<style>.lead, .quiet, .said { line-height: 1.75; } .lead { max-width: 46em; }</style>"""


def choose_language() -> str:
    """English or Chinese, in the address and kept on every page."""
    address = Address("app", ("lang",))
    address.begin("lang", "en", one_of(list(LANGUAGES)), list(LANGUAGES))
    st.segmented_control("Language / 语言", list(LANGUAGES), format_func=LANGUAGES.__getitem__, required=True, key="lang",
                         label_visibility="collapsed")  # fmt: skip
    address.keep()
    return str(st.session_state["lang"])


@st.cache_resource
def settle() -> None:
    """Take what is imported out of the reach of garbage collections: a full one in the middle of a run costs 60 ms."""
    gc.collect()
    gc.freeze()


def dress(language: str) -> None:
    """The style rules, and the language for the page's own text."""
    settle()
    st.session_state["language"] = language
    st.html(STYLE + (CHINESE if language == "zh" else ""))
