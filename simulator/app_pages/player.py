"""The drawing as a Streamlit component. Registered once, when this module is first imported.

Not modelled: answers from the browser; the drawing keeps its moment and its zoom to itself.
"""

import streamlit as st

from simulator.views.player.data import script, style_sheet

_component = st.components.v2.component("timeline", html='<div class="player"></div>', css=style_sheet(), js=script())


def show_timeline(data: bytes, key: str) -> None:
    """Draw `timeline_data(...)`. The same key keeps zoom, speed and opened devices when the data changes."""
    _component(key=key, data=data)
