"""The app's router: the language, and one page file for each entry. `make app` starts it."""

from pathlib import Path

import streamlit as st

from simulator.app_pages.frame import choose_language, dress
from simulator.app_pages.texts import text

PAGES = Path(__file__).parent / "simulator" / "app_pages"

st.set_page_config(page_icon=str(PAGES / "icon.svg"), layout="wide")
language = choose_language()
dress()
st.navigation([
    st.Page(PAGES / "question.py", title=text("question_page", language), url_path="question", default=True),
    st.Page(PAGES / "bench.py", title=text("bench_page", language), url_path="bench"),
], position="top").run()  # fmt: skip
