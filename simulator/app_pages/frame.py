"""What every page has: the language in the address, and one style sheet.

Not modelled: a third language.
"""

import gc
from pathlib import Path

import streamlit as st

from simulator.app_pages.address import Address, one_of
from simulator.app_pages.blocks import refused
from simulator.app_pages.texts import LANGUAGES
from simulator.views.style import STYLES

STYLE_SHEET = Path(__file__).with_name("page.css")


def choose_language() -> str:
    """English or Chinese, in the address and kept on every page."""
    address = Address("app", ("lang",))
    address.begin("lang", "en", one_of(list(LANGUAGES)), list(LANGUAGES))
    st.segmented_control("Language / 语言", list(LANGUAGES), format_func=LANGUAGES.__getitem__, required=True, key="lang",
                         label_visibility="collapsed")  # fmt: skip
    address.keep()
    language = st.session_state["language"] = str(address.value("lang"))
    refused(address, language)
    return language


@st.cache_resource
def settle() -> str:
    """The style sheet. What is imported is taken out of reach of garbage collections: a full one costs a run 60 ms."""
    gc.collect()
    gc.freeze()
    colours = "".join(f"--k-{kind}:light-dark({style.light},{style.dark});" for kind, style in STYLES.items())
    return f"<style>{STYLE_SHEET.read_text(encoding='utf-8')}:root{{{colours}}}</style>"


def dress() -> None:
    """The style rules."""
    st.html(settle())
