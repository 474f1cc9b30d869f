"""From the names and numbers of the controls to everything a page shows: simulated once, then kept as text and bytes.

Not modelled: nothing of its own.
"""

from dataclasses import dataclass

import streamlit as st

from simulator.app_pages.texts import model_name, player_words, span_name, text
from simulator.buckets import BucketOptions
from simulator.codec import from_json
from simulator.compare import Comparison, Run, compare
from simulator.critical_path import Piece
from simulator.errors import InputError
from simulator.intervals import difference, length
from simulator.model import ModelProfile
from simulator.presets.build import build_scenario
from simulator.scenario import DataParallel, DistributedDataParallel, Scenario
from simulator.trace import KINDS
from simulator.units import nbytes, percent, seconds, three_digits
from simulator.verdict import cause, fits, lost_seconds, verdict
from simulator.views.player.data import Look, Panel, timeline_data
from simulator.views.style import STYLES, kind_name

SHORT = {"DataParallel": "DataParallel", "DistributedDataParallel": "DDP"}
QUESTION = {"batch": 12, "inputs": "host", "optimizer": "none"}
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
class PathEntry:
    """A part of what the step waits for."""

    label: str
    kind: str
    time: str
    part: float


@dataclass(frozen=True)
class Answer:
    """What the bench shows."""

    title: str
    timeline: bytes
    batches: str
    numbers: tuple[tuple[str, ...], ...]
    paths: tuple[tuple[str, tuple[PathEntry, ...]], ...]
    buckets: tuple[tuple[str, ...], ...]
    impossible: str
    unverified: tuple[str, ...]
    context: str
    sources: tuple[tuple[str, str], ...]
    model: str


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


@st.cache_data(max_entries=64, show_spinner=False)
def answer(choice: Choice, language: str) -> Answer:
    """Simulate the choice. Raises InputError where it cannot run."""
    comparison = choice.compare()
    runs = comparison.runs
    words = words_for(comparison, language)
    panels = [panel(comparison, name, language) for name in runs]
    base = comparison.base
    name = base.model.name if choice.profile else model_name(base.model.name)
    impossible = ""
    if comparison.impossible:
        impossible = text("one_machine", language, cluster=base.cluster.name, nodes=base.cluster.nodes)
    distributed = runs["DistributedDataParallel"]
    return Answer(
        title=verdict(comparison).text(language),
        timeline=timeline_data(panels, language=language, words=words, rename=lambda found: span_name(found, language)),
        batches=batches(comparison, language),
        numbers=numbers(comparison, language),
        paths=tuple((SHORT[key], path_entries(run, language)) for key, run in runs.items()),
        buckets=bucket_rows(distributed),
        impossible=impossible,
        unverified=unverified(comparison, language),
        context=nbytes(distributed.metrics.context_bytes[0]) if distributed.metrics.context_bytes[0] else "",
        sources=((text("source_model", language), base.model.source), (text("source_cluster", language), base.cluster.source),
                 (text("source_library", language), base.backend.source or base.backend.name)),
        model=name,
    )  # fmt: skip


@st.cache_data(max_entries=16, show_spinner=False)
def reply(cluster: str, language: str) -> Reply:
    """Both of the question's models under both strategies, on one clock."""
    panels, hurts = [], []
    for model in reversed(QUESTION_MODELS):
        comparison = Choice(model=model, cluster=cluster, **QUESTION).compare()  # type: ignore[arg-type]
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
    timeline = timeline_data(panels, language=language, words=words_for(comparison, language), look=look,
                             rename=lambda found: span_name(found, language))  # fmt: skip
    return Reply(timeline, tuple(hurts), hurts[0].factor < 1.02 * hurts[1].factor,
                 unverified(comparison, language))  # fmt: skip


def unverified(comparison: Comparison, language: str) -> tuple[str, ...]:
    """What no run on GPUs has shown, each once."""
    notes = dict.fromkeys(note for run in comparison.runs.values() for note in run.trace.unverified)
    return tuple(text("NEVER_RUN", language) if "NCCL" in note else note for note in notes)


def words_for(comparison: Comparison, language: str) -> dict[str, str]:
    """The drawing's texts; ranks on a CPU are not called GPUs."""
    words = player_words(language)
    if comparison.base.cluster.devices[0].kind == "CPU":
        words |= {"device": "rank {device}", "hidden_one": "rank {from}", "hidden_many": "rank {from} – {to}"}
    return words


def panel(comparison: Comparison, name: str, language: str, *, group: str = "", model: str = "") -> Panel:
    """One strategy for the drawing."""
    run, alone = comparison.runs[name], comparison.single.step_s
    return Panel(
        key=f"{comparison.base.model.name}/{name}", title=SHORT[name], trace=run.trace, group=group,
        spoken=f"{model} {SHORT[name]}".strip(), alone_s=alone,
        result=text("result", language, time=seconds(run.step_s), alone=seconds(alone)),
        factor=f"{run.step_s / alone:.2f}×", mark=text("unverified", language) if run.trace.unverified else "",
        memory_limits=[device.memory_bytes for device in run.scenario.cluster.devices],
    )  # fmt: skip


def listed(rows: tuple[int, ...]) -> str:
    """`12` when all are alike, else `8/8/8/6`."""
    return str(rows[0]) if len(set(rows)) == 1 else "/".join(map(str, rows))


def batches(comparison: Comparison, language: str) -> str:
    """Both batches in words: most people trip over this."""
    n, total = comparison.base.world_size, comparison.base.total_rows
    rows = {name: listed(run.scenario.rows) for name, run in comparison.runs.items()}
    if n == 1:
        return text("alone_only", language)
    if "DataParallel" not in rows:
        return text("batches_ddp", language, n=n, rows=rows["DistributedDataParallel"], total=total)
    chunks = comparison.runs["DataParallel"].scenario.rows
    cut = f"{n} × {chunks[0]}" if len(set(chunks)) == 1 else listed(chunks)
    return text("both_batches", language, n=n, rows=rows["DistributedDataParallel"], total=total, chunks=cut)


def numbers(comparison: Comparison, language: str) -> tuple[tuple[str, ...], ...]:
    """The table, its header first."""
    runs, single = list(comparison.runs.items()), comparison.single

    def peak(run: Run, devices: range) -> str:
        if not devices:
            return ""
        most = max(devices, key=lambda device: run.metrics.peak_memory_bytes[device])
        full = any(fits(run)[device] is False for device in devices)
        shown = nbytes(run.metrics.peak_memory_bytes[most])
        return f"{shown} ({text('does_not_fit', language)})" if full else shown

    def row(key: str, alone: str, cells: list[str]) -> tuple[str, ...]:
        return (text(key, language), alone, *cells)

    return (
        ("", text("one_device", language), *(SHORT[name] for name, _ in runs)),
        row("row_step", seconds(single.step_s), [seconds(run.step_s) for _, run in runs]),
        row("row_rate", three_digits(single.samples_per_s), [three_digits(run.samples_per_s) for _, run in runs]),
        row("row_speedup", "1.00", [f"{comparison.speedup(name):.2f}" for name, _ in runs]),
        row("row_same", "1.00", [f"{comparison.speedup_same_global_batch(name):.2f}" for name, _ in runs]),
        row("row_exposed", "", [seconds(run.metrics.exposed_comm_s) for _, run in runs]),
        row("row_overlap", "", [percent(run.metrics.overlap) for _, run in runs]),
        row("row_sent", "", [nbytes(max(run.metrics.bytes_by_device("sent"))) for _, run in runs]),
        row("row_first", peak(single, range(1)), [peak(run, range(1)) for _, run in runs]),
        row("row_others", "", [peak(run, range(1, run.scenario.world_size)) for _, run in runs]),
    )


def path_label(piece: Piece, language: str) -> str:
    """What a piece of the critical path is, in a few words."""
    if piece.kind != "host":
        return kind_name(piece.kind if piece.kind in STYLES else "host", language)
    words = player_words(language)
    if piece.name.startswith("launch backward of "):
        return words["host Engine::evaluate_function"]
    if piece.name.startswith("hooks of "):
        return words["host Reducer::autograd_hook"]
    if piece.name.startswith("launch ") and "all_reduce" not in piece.name and "broadcast" not in piece.name:
        return words["host Module.forward"]
    return span_name(piece.name, language)


def path_entries(run: Run, language: str) -> tuple[PathEntry, ...]:
    """The critical path, summed by what it is, in the order in which each first comes."""
    total: dict[tuple[str, str], float] = {}
    for piece in run.metrics.critical_path:
        key = path_label(piece, language), piece.kind if piece.kind in KINDS else "host"
        total[key] = total.get(key, 0.0) + piece.end_s - piece.start_s
    step = run.step_s or 1.0
    return tuple(PathEntry(label, kind, seconds(time), time / step) for (label, kind), time in total.items() if time > 0)


def bucket_rows(run: Run) -> tuple[tuple[str, ...], ...]:
    """Number, bytes, when it is all-reduced on device 0, and how much of that device 0 computes."""
    found = []
    for span in run.trace.spans:
        if span.kind == "all_reduce" and span.bucket is not None and span.device == 0 and span.end_s is not None:
            lasts = span.end_s - span.start_s
            exposed = length(difference([(span.start_s, span.end_s)], run.metrics.compute_intervals[0]))
            hidden = percent(1 - exposed / lasts) if lasts else ""
            found.append((str(span.bucket), nbytes(span.nbytes or 0), f"{seconds(span.start_s)} – {seconds(span.end_s)}", hidden))
    return tuple(found)
