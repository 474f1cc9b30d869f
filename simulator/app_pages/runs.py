"""From the names and numbers of the controls to everything a page shows: simulated once, then kept as text and bytes.

Not modelled: nothing of its own.
"""

from dataclasses import dataclass
from typing import Any

import streamlit as st

from simulator.app_pages.summary import SHORT, PathEntry, batches, bucket_rows, numbers, on_cpu, one_alone, path_entries
from simulator.app_pages.texts import cluster_name, model_name, player_words, span_name, text
from simulator.buckets import BucketOptions
from simulator.codec import from_json
from simulator.compare import Comparison, compare
from simulator.errors import InputError
from simulator.model import ModelProfile
from simulator.presets.build import build_scenario
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario
from simulator.trace import MEMORY_CATEGORIES
from simulator.units import nbytes, seconds
from simulator.verdict import cause, lost_seconds, verdict
from simulator.views.player.data import Look, Panel, timeline_data
from simulator.views.style import MEMORY_STYLES, memory_name

QUESTION: dict[str, Any] = {"batch": 12, "inputs": "host", "optimizer": "none"}
"""The published run that the question follows: 12 images a GPU, copied inside the step, no optimizer."""
QUESTION_MODELS = ("vgg16", "resnet50")


@dataclass(frozen=True)
class Choice:
    """The bench's controls. `devices` 0 is all, `global_batch` 0 is none, `cap` 0 or less is torch's default."""

    model: str = "resnet50"
    cluster: str = "4xA100"
    batch: int = 32
    transport: str = "nccl"
    loss_inside: bool = False
    cap: float | None = None
    unused: bool = False
    static: bool = False
    view: bool = False
    devices: int = 0
    optimizer: str = "momentum"
    precision: str = "fp32"
    algorithm: str = "auto"
    serial: bool = False
    inputs: str = "device"
    first: bool = False
    global_batch: int = 0
    profile: str = ""
    """A user's own profile as JSON; it takes the place of `model`."""

    def scenario(self) -> Scenario:
        """Raises InputError where the parts do not fit."""
        model: str | ModelProfile = read_profile(self.profile) if self.profile else self.model
        return build_scenario(
            model, self.cluster, devices=self.devices or None, batch_per_device=self.batch,
            global_batch=self.global_batch or None, optimizer=self.optimizer, algorithm=self.algorithm,
            serial=self.serial, inputs=self.inputs, iterations=(0,) if self.first else (3,), precision=self.precision,
            strategy=self.strategies()[1],
        )  # fmt: skip

    def strategies(self) -> tuple[DataParallel, DistributedDataParallel]:
        """Both, with the options of the controls."""
        buckets = BucketOptions(bucket_cap_mb=self.cap, find_unused_parameters=self.unused, static_graph=self.static)
        return (DataParallel(self.transport, loss_inside=self.loss_inside),
                DistributedDataParallel(buckets, gradient_as_bucket_view=self.view))  # fmt: skip

    def compare(self) -> Comparison:
        """Both strategies and one device alone."""
        return compare(self.scenario(), self.strategies())


@dataclass(frozen=True)
class Findings:
    """What the bench says in words and numbers."""

    title: str
    numbers: tuple[tuple[str, ...], ...]
    paths: tuple[tuple[str, tuple[PathEntry, ...]], ...]
    buckets: tuple[tuple[str, ...], ...]
    context: str


@dataclass(frozen=True)
class Picture:
    """What the bench shows first, as soon as both steps are simulated."""

    timeline: bytes
    batches: str
    impossible: str
    unverified: tuple[str, ...]
    sources: tuple[tuple[str, str], ...]
    model: str
    memory_head: str
    memory: tuple[tuple[str, str], ...]
    """For each category of memory that is held at all: the kind of work whose colour it has, and its name."""


@dataclass(frozen=True)
class Hurt:
    """What DataParallel does to one of the question's models."""

    model: str
    tensors: int
    bytes: str
    factor: float
    cause: str
    host: str
    link: str


@dataclass(frozen=True)
class Reply:
    """What the question shows once it is answered. The first of `hurts` is hurt more, unless both are `alike`."""

    timeline: bytes
    hurts: tuple[Hurt, ...]
    alike: bool
    unverified: tuple[str, ...]


def read_profile(source: str) -> ModelProfile:
    """A profile from its JSON. Raises InputError."""
    value = from_json(source)
    if not isinstance(value, ModelProfile):
        raise InputError(f"The file holds {type(value).__name__}. A ModelProfile is needed. Save one with to_json.")
    return value


@st.cache_resource(max_entries=6, show_spinner=False)
def compared(choice: Choice) -> Comparison:
    """Both strategies and one device alone, simulated once and shared: nobody changes a trace. Raises InputError."""
    return choice.compare()


@st.cache_data(max_entries=64, show_spinner=False)
def picture(choice: Choice, language: str) -> Picture:
    """The drawing and what must be said beside it. Raises InputError where the choice cannot run."""
    comparison = compared(choice)
    base = comparison.base
    impossible = ""
    if comparison.impossible:
        several = base.cluster.nodes > 1
        impossible = text("one_machine" if several else "no_gpus", language, nodes=base.cluster.nodes,
                          cluster=cluster_name(base.cluster.name, language))  # fmt: skip
    return Picture(
        timeline=timeline_data([panel(comparison, name, language) for name in comparison.runs], language=language,
                               words=player_words(language, on_cpu=on_cpu(comparison)),
                               rename=lambda found: span_name(found, language)),
        batches=batches(comparison, language),
        impossible=impossible,
        unverified=unverified(comparison, language),
        sources=((text("source_model", language), base.model.source), (text("source_cluster", language), base.cluster.source),
                 (text("source_library", language), base.backend.source or base.backend.name)),
        model=base.model.name if choice.profile else model_name(base.model.name),
        memory_head=text("memory_colours", language, on_cpu=on_cpu(comparison)),
        memory=memory_legend(comparison, language),
    )  # fmt: skip


def memory_legend(comparison: Comparison, language: str) -> tuple[tuple[str, str], ...]:
    """The categories of memory that a device holds at any time, in the order of the drawing."""
    held = {change.category for run in comparison.runs.values() for change in run.trace.memory if change.nbytes}
    return tuple((MEMORY_STYLES[category].kind, memory_name(category, language))
                 for category in MEMORY_CATEGORIES if category in held)  # fmt: skip


@st.cache_data(max_entries=64, show_spinner=False)
def findings(choice: Choice, language: str) -> Findings:
    """The sentence and the numbers."""
    comparison = compared(choice)
    distributed = comparison.runs["DistributedDataParallel"]
    context = distributed.metrics.context_bytes[0]
    return Findings(
        title=verdict(comparison).text(language),
        numbers=numbers(comparison, language),
        paths=tuple((SHORT[key], path_entries(run, language)) for key, run in comparison.runs.items()),
        buckets=bucket_rows(distributed),
        context=nbytes(context) if context else "",
    )


@st.cache_data(max_entries=16, show_spinner=False)
def reply(cluster: str, language: str) -> Reply:
    """Both of the question's models under both strategies, on one clock."""
    panels, hurts = [], []
    for model in reversed(QUESTION_MODELS):
        comparison = Choice(model=model, cluster=cluster, **QUESTION).compare()
        profile = comparison.base.model
        tensors = len(profile.unique_parameters) + len(profile.buffers)
        group = f"{model_name(model)} · {nbytes(profile.parameter_bytes)} · {text('tensors', language, count=tensors)}"
        panels += [panel(comparison, name, language, group=group, model=model_name(model)) for name in comparison.runs]
        lost = lost_seconds(comparison, "DataParallel")
        hurts.append(Hurt(
            model_name(model), tensors, nbytes(profile.parameter_bytes),
            comparison.runs["DataParallel"].step_s / comparison.single.step_s, cause(comparison, "DataParallel"),
            seconds(lost["host"]), seconds(lost["link"]),
        ))  # fmt: skip
    hurts.sort(key=lambda hurt: -hurt.factor)
    look = Look(shown=(0,), roles=("python", "compute", "communication"), memory=False, autoplay=True)
    timeline = timeline_data(panels, language=language, words=player_words(language, on_cpu=on_cpu(comparison)), look=look,
                             rename=lambda found: span_name(found, language))  # fmt: skip
    return Reply(timeline, tuple(hurts), hurts[0].factor < 1.02 * hurts[1].factor,
                 unverified(comparison, language))  # fmt: skip


def unverified(comparison: Comparison, language: str) -> tuple[str, ...]:
    """What no run on GPUs has shown, each once."""
    notes = dict.fromkeys(note for run in comparison.runs.values() for note in run.trace.unverified)
    return tuple(text("NEVER_RUN", language) if "NCCL" in note else note for note in notes)


def panel(comparison: Comparison, name: str, language: str, *, group: str = "", model: str = "") -> Panel:
    """One strategy for the drawing."""
    run, alone = comparison.runs[name], comparison.single.step_s
    return Panel(
        key=f"{comparison.base.model.name}/{name}", title=SHORT[name], trace=run.trace, group=group,
        spoken=f"{model} {SHORT[name]}".strip(), alone_s=alone,
        result=text("result", language, time=seconds(run.step_s), alone=seconds(alone),
                    one=one_alone(comparison, language)),
        factor=f"{run.step_s / alone:.2f}×", mark=text("unverified", language) if run.trace.unverified else "",
        memory_limits=[device.memory_bytes for device in run.scenario.cluster.devices],
    )  # fmt: skip
