"""The first page: one question, one click, both models on one clock, one sentence that says why.

Not modelled: nothing; the sentence is put together from the simulated numbers, whatever they say.
"""

import html

import streamlit as st

from simulator.app_pages.address import Address, one_of
from simulator.app_pages.blocks import heading, paragraph, refused
from simulator.app_pages.player import show_timeline
from simulator.app_pages.runs import QUESTION, QUESTION_MODELS, Hurt, Reply, reply
from simulator.app_pages.texts import model_name, text
from simulator.presets.facts import load_facts
from simulator.units import nbytes

LINKS = {"nvlink": ("4xA100", "NVLink"), "pcie3": ("4xA100-pcie3", "PCIe 3")}
DEVICES = 4


def ask(language: str) -> None:
    """The question and its two answers; nothing else."""
    with st.container(key="ask"):
        _ask(language)


def _ask(language: str) -> None:
    heading(1, text("question", language))
    paragraph(text("question_setting", language), "lead")
    sizes = {model: load_facts(model).parameter_bytes for model in QUESTION_MODELS}
    with st.container(key="answers"):
        for column, model in zip(st.columns(len(sizes), gap="medium"), sizes, strict=True):
            with column:
                part = 100 * sizes[model] / max(sizes.values())
                st.html(f'<div class="weights"><b>{html.escape(nbytes(sizes[model]))}</b>'
                        f'<div class="bar" style="width:{part:.1f}%"></div></div>')  # fmt: skip
                st.button(model_name(model), key=f"say_{model}", width="stretch", on_click=say, args=(model,))


def say(model: str | None) -> None:
    """Take the answer; None asks again."""
    st.session_state["answer"] = model


def why(hurt: Hurt, link: str, language: str) -> str:
    """One sentence: what the model that is hurt more waits for."""
    key = {"python thread": "why_python", "GPU 0's link": "why_link", "GPU 0's memory": "why_memory"}.get(hurt.cause)
    return text(key or "why_compute", language, model=hurt.model, tensors=hurt.tensors, bytes=hurt.bytes, host=hurt.host,
                link=hurt.link, name=link, n=DEVICES)  # fmt: skip


def headline(found: Reply, link: str, language: str) -> str:
    """Whether the answer was right; over another link, whether it changes."""
    hurt = found.hurts[0]
    if found.alike:
        return text("both_alike", language)
    if link != "nvlink":
        before = reply(LINKS["nvlink"][0], language)
        key = "link_keeps" if before.hurts[0].model == hurt.model else "link_flips"
        return text(key, language, link=LINKS[link][1], model=hurt.model)
    said = model_name(st.session_state["answer"])
    return text("right" if said == hurt.model else "wrong", language, said=said, model=hurt.model)


def link_name(link: str) -> str:
    """What the link is called on the page."""
    return LINKS[link][1]


@st.fragment
def play(language: str) -> None:
    """The answer, the one control, both models on one clock, and where to go from here."""
    address = Address("question play", ("link",))
    key = address.begin("link", "nvlink", one_of(list(LINKS)), list(LINKS), link_name)
    refused(address, language)
    link = address.value("link")
    cluster, name = LINKS[link]
    found = reply(cluster, language)
    first, second = found.hurts
    with st.container(key="reply"):
        words, control = st.columns([3, 1], gap="medium", vertical_alignment="bottom")
    with words:
        heading(2, headline(found, link, language))
        paragraph(why(first, name, language), "lead")
        paragraph(text("factors", language, first=first.model, second=second.model, first_factor=f"{first.factor:.2f}",
                       second_factor=f"{second.factor:.2f}"))  # fmt: skip
    with control:
        st.segmented_control(text("link", language), list(LINKS), format_func=link_name, key=key, required=True,
                             help=text("link_hint", language))  # fmt: skip
    show_timeline(found.timeline, "question_timeline")
    paragraph(text("measured" if link == "nvlink" else "simulated", language))
    for note in found.unverified:
        paragraph(note)
    with st.container(horizontal=True, key="onward"):
        for model in reversed(QUESTION_MODELS):
            params = {"model": model, "cluster": cluster, **{key: str(value) for key, value in QUESTION.items()}}
            st.page_link("simulator/app_pages/bench.py", label=text("to_bench", language, model=model_name(model)),
                         query_params=params | language_param(language))  # fmt: skip
        st.button(text("ask_again", language), on_click=say, args=(None,), type="tertiary")
    address.keep()


def language_param(language: str) -> dict[str, str]:
    """English is the default and not in the address."""
    return {} if language == "en" else {"lang": language}


def main() -> None:
    """The page."""
    language = st.session_state["language"]
    address = Address("question", ("answer",))
    address.begin("answer", None, one_of(QUESTION_MODELS))
    refused(address, language)
    if st.session_state["answer"] is None:
        ask(language)
    else:
        play(language)
    address.keep()


main()
