"""The bench: model, cluster, batch, strategy, the rest folded; DataParallel above DDP on one time axis.

Not modelled: nothing of its own.
"""

import streamlit as st

from simulator.app_pages.address import Address
from simulator.app_pages.blocks import (
    heading,
    heading_html,
    legend_html,
    paragraph,
    paragraph_html,
    path_html,
    refused,
    short,
    table_html,
)
from simulator.app_pages.controls import NAMES, controls
from simulator.app_pages.player import show_timeline
from simulator.app_pages.runs import Choice, Findings, Picture, findings, picture
from simulator.app_pages.texts import model_name, text
from simulator.errors import InputError


def facts(ran: Choice, shown: Picture, found: Findings, language: str) -> None:
    """All that is not the picture: numbers, critical paths, buckets, what is not verified, sources. Few, long blocks:
    every element of a page costs the browser a millisecond."""
    head = tuple(text(key, language) for key in ("bucket_row", "bucket_bytes", "bucket_sent", "bucket_hidden"))
    left = [heading_html(3, text("numbers", language)), table_html(found.numbers)]
    if found.context:
        left.append(paragraph_html(text("context_note", language, context=found.context)))
    if found.buckets:
        left += [heading_html(3, text("buckets", language)), table_html((head, *found.buckets))]
        if ran.first:
            left.append(paragraph_html(text("first_iteration", language)))
    right = [heading_html(3, text("path", language))]
    for name, entries in found.paths:
        right += [heading_html(4, name), path_html(entries, lambda count: text("path_more", language, count=count))]
    sources = [paragraph_html(note) for note in shown.unverified]
    sources.append(heading_html(3, text("sources", language)))
    sources += [paragraph_html(f"{label}: {source}") for label, source in shown.sources]
    columns = "".join(f'<div class="stack">{"".join(blocks)}</div>' for blocks in (left, right))
    st.html(f'<div class="pair">{columns}</div><div class="stack">{"".join(sources)}</div>')


def runnable(choice: Choice, language: str) -> Choice | None:
    """The choice; or the last one that ran, when this one cannot, and a word why."""
    try:
        picture(choice, language)
    except InputError as error:
        paragraph(text("cannot_run", language) + str(error), "said")
        last: Choice | None = st.session_state.get("last choice")
        return last
    st.session_state["last choice"] = choice
    return choice


@st.fragment
def bench(language: str) -> None:
    """Controls at the left, the answer beside them: the picture first, the numbers as soon as they are there."""
    address = Address("bench", NAMES)
    with st.container(key="bench"):
        rail, beside = st.columns([1, 4], gap="large")
    with rail:
        choice, problem = controls(address, language)
    address.keep()
    with beside, st.container(key="picture"):
        refused(address, language)
        if problem:
            paragraph(text("upload_bad", language, model=model_name(choice.model)) + problem, "said")
        ran = runnable(choice, language)
        if ran is None:
            return
        shown = picture(ran, language)
        title = st.container()
        if ran.profile:
            paragraph(text("upload_used", language, name=short(shown.model)), "said", whole=shown.model)
        if shown.impossible:
            paragraph(shown.impossible, "said")
        paragraph(shown.batches)
        st.html(legend_html(shown.memory_head, shown.memory))
        show_timeline(shown.timeline, "bench_timeline")
    found = findings(ran, language)
    with title:
        heading(2, found.title)
    with beside, st.container(key="facts"):
        facts(ran, shown, found, language)


bench(st.session_state["language"])
