"""A comparison as rows of words: batches, numbers, what the step waits for, buckets.

Not modelled: nothing of its own; every figure is read off `metrics`.
"""

from dataclasses import dataclass

from simulator.app_pages.texts import player_words, span_name, text
from simulator.compare import Comparison, Run
from simulator.critical_path import Piece
from simulator.intervals import difference, length
from simulator.trace import KINDS
from simulator.units import nbytes, percent, seconds, three_digits
from simulator.verdict import fits
from simulator.views.style import STYLES, kind_name

SHORT = {"DataParallel": "DataParallel", "DistributedDataParallel": "DDP"}


@dataclass(frozen=True)
class PathEntry:
    """A part of what the step waits for."""

    label: str
    kind: str
    time: str
    part: float


def listed(rows: tuple[int, ...]) -> str:
    """`12` when all are alike, else `8/8/8/6`."""
    return str(rows[0]) if len(set(rows)) == 1 else "/".join(map(str, rows))


def batches(comparison: Comparison, language: str) -> str:
    """Both batches in words: most people trip over this."""
    n, total = comparison.base.world_size, comparison.base.total_rows
    rows = {name: listed(run.scenario.rows) for name, run in comparison.runs.items()}
    if n == 1:
        return text("alone_only", language, on_cpu=on_cpu(comparison))
    if "DataParallel" not in rows:
        return text("batches_ddp", language, n=n, rows=rows["DistributedDataParallel"], total=total)
    chunks = comparison.runs["DataParallel"].scenario.rows
    cut = f"{n} × {chunks[0]}" if len(set(chunks)) == 1 else listed(chunks)
    return text("both_batches", language, n=n, rows=rows["DistributedDataParallel"], total=total, chunks=cut)


def on_cpu(comparison: Comparison) -> bool:
    """Whether ranks train on a CPU."""
    return comparison.base.cluster.devices[0].kind == "CPU"


def one_alone(comparison: Comparison, language: str) -> str:
    """What the speed-up is measured against."""
    return text("one_rank" if on_cpu(comparison) else "one_gpu", language)


def numbers(comparison: Comparison, language: str) -> tuple[tuple[str, ...], ...]:
    """The table, its header first."""
    runs, single = list(comparison.runs.items()), comparison.single
    cpu = on_cpu(comparison)
    first = player_words(language, on_cpu=cpu)["device"].format(device=0)

    def peak(run: Run, devices: range) -> str:
        if not devices:
            return ""
        most = max(devices, key=lambda device: run.metrics.peak_memory_bytes[device])
        full = any(fits(run)[device] is False for device in devices)
        shown = nbytes(run.metrics.peak_memory_bytes[most])
        return f"{shown} ({text('does_not_fit', language)})" if full else shown

    def row(key: str, alone: str, cells: list[str]) -> tuple[str, ...]:
        return (text(key, language, on_cpu=cpu), alone, *cells)

    return (
        ("", one_alone(comparison, language), *(SHORT[name] for name, _ in runs)),
        row("row_step", seconds(single.step_s), [seconds(run.step_s) for _, run in runs]),
        row("row_rate", three_digits(single.samples_per_s), [three_digits(run.samples_per_s) for _, run in runs]),
        row("row_speedup", "1.00", [f"{comparison.speedup(name):.2f}" for name, _ in runs]),
        row("row_same", "1.00", [f"{comparison.speedup_same_global_batch(name):.2f}" for name, _ in runs]),
        row("row_exposed", "", [seconds(run.metrics.exposed_comm_s) for _, run in runs]),
        row("row_overlap", "", [percent(run.metrics.overlap) for _, run in runs]),
        row("row_sent", "", [nbytes(max(run.metrics.bytes_by_device("sent"))) for _, run in runs]),
        (
            text("row_first", language, on_cpu=cpu, first=first),
            peak(single, range(1)),
            *(peak(run, range(1)) for _, run in runs),
        ),
        row("row_others", "", [peak(run, range(1, run.scenario.world_size)) for _, run in runs]),
    )


def path_label(piece: Piece, words: dict[str, str], language: str) -> str:
    """What a piece of the critical path is, in a few words."""
    if piece.kind != "host":
        return kind_name(piece.kind if piece.kind in STYLES else "host", language)
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
    words = player_words(language)
    for piece in run.metrics.critical_path:
        key = path_label(piece, words, language), piece.kind if piece.kind in KINDS else "host"
        total[key] = total.get(key, 0.0) + piece.end_s - piece.start_s
    step = run.step_s or 1.0
    return tuple(
        PathEntry(label, kind, seconds(time), time / step) for (label, kind), time in total.items() if time > 0
    )


def bucket_rows(run: Run) -> tuple[tuple[str, ...], ...]:
    """Number, bytes, when it is all-reduced, and during how much of that device 0 computes."""
    found = []
    for number, size, start_s, end_s in run.metrics.buckets:
        exposed = length(difference([(start_s, end_s)], run.metrics.compute_intervals[0]))
        hidden = percent(1 - exposed / (end_s - start_s)) if end_s > start_s else ""
        found.append((str(number), nbytes(size), f"{seconds(start_s)} – {seconds(end_s)}", hidden))
    return tuple(found)
