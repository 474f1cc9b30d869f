"""The comparison as text that fits 80 columns: the finding, the numbers, a timeline, what was not verified.

Not modelled: nothing is computed here that is not in `metrics` or `verdict`.
"""

from simulator.compare import Comparison, Run
from simulator.scenario import DistributedDataParallel
from simulator.units import nbytes, percent, seconds, three_digits
from simulator.verdict import fits, verdict
from simulator.views.notes import in_language
from simulator.views.text import timeline
from simulator.views.words import columns, pad, wrap

WIDTH = 80

_WORDS = {
    "en": {
        "rows": "rows per device", "total": "rows in all", "step": "step", "rate": "samples/s",
        "speedup": "speed-up (same batch per device)", "same": "speed-up (same global batch)", "compute": "compute",
        "comm": "communication", "exposed": "exposed communication", "overlap": "overlap", "sent": "sent, busiest device",
        "first": "peak memory, GPU 0", "others": "peak memory, the others' most", "context": "CUDA context (besides)",
        "buckets": "buckets, in launch order:", "one": "one device", "full": "with the context, more than the device has",
        "impossible": "{name} cannot run here: {reason}.", "unverified": "Not verified on several GPUs: ",
        "path": "The step waits for: ", "batches": "{total} rows in all: DataParallel takes them as one batch, each of "
        "the {n} DDP ranks takes {each}.", "model": "Model:", "cluster": "Cluster:", "library": "Communicator:",
        "sources": "Where the numbers come from", "parts": "compute {compute}, "
        "communication {communication}, host {host}",
    },
    "zh": {
        "rows": "每张卡的样本数", "total": "样本总数", "step": "一步用时", "rate": "样本/秒",
        "speedup": "加速比（每卡 batch 相同）", "same": "加速比（总 batch 相同）", "compute": "计算", "comm": "通信",
        "exposed": "未被掩盖的通信", "overlap": "计算通信重叠", "sent": "最忙的卡发送", "first": "0 号卡显存峰值",
        "others": "其他卡显存峰值", "context": "CUDA 上下文（另计）", "buckets": "bucket（按发起顺序）：", "one": "单卡",
        "full": "连同上下文超出显存", "impossible": "{name} 在这里不能运行：{reason}。", "unverified": "未在多张 GPU 上验证：",
        "path": "这一步在等：", "batches": "共 {total} 个样本：DataParallel 当作一个 batch，{n} 个 DDP rank 各取 {each} 个。",
        "model": "模型：", "cluster": "集群：", "library": "通信库：",
        "sources": "数字从哪里来", "parts": "计算 {compute}，通信 {communication}，主机 {host}",
    },
}  # fmt: skip

_SHORT = {"DataParallel": "DataParallel", "DistributedDataParallel": "DDP"}


def comparison_text(comparison: Comparison, *, language: str = "en", colour: bool = False) -> str:
    """Everything `compare` prints."""
    words = _WORDS[language]
    base, runs = comparison.base, comparison.runs
    rows = sorted(set(_rank_rows(comparison)))
    each = "/".join(map(str, rows))
    lines = [
        *wrap(verdict(comparison).text(language), WIDTH),
        "",
        *wrap(f"{words['model']} {base.model.name} ({nbytes(base.model.parameter_bytes)}, "
               f"{len(base.model.unique_parameters)} tensors), {base.model.precision}, {base.model.device}", WIDTH),
        *wrap(f"{words['cluster']} {base.cluster.name}, backend {base.backend.name}", WIDTH),
        *wrap(words["batches"].format(total=base.total_rows, n=base.world_size, each=each), WIDTH),
        "",
        *_numbers(comparison, words),
        "",
    ]  # fmt: skip
    for name, run in runs.items():
        parts = {key: seconds(value) for key, value in run.metrics.critical_seconds.items()}
        lines += [*wrap(f"{_SHORT[name]}. {words['path']}{words['parts'].format(**parts)}", WIDTH), ""]
        lines += [timeline(run.trace, width=WIDTH, colour=colour, language=language, unverified=False), ""]
        if isinstance(run.scenario.strategy, DistributedDataParallel):
            lines += [*wrap(f"{words['buckets']} {', '.join(_bucket_sizes(run))}", WIDTH), ""]
    for name, reason in comparison.impossible.items():
        lines += wrap(words["impossible"].format(name=name, reason=in_language(reason, language)), WIDTH)
    for note in dict.fromkeys(note for run in runs.values() for note in run.trace.unverified):
        lines += wrap(words["unverified"] + in_language(note, language), WIDTH)
    lines += ["", words["sources"]]
    for label, source in (("model", base.model.source), ("cluster", base.cluster.source),
                          ("library", f"{base.backend.name}; {base.backend.source}".rstrip("; "))):  # fmt: skip
        lines += wrap(f"{words[label]} {source}", WIDTH)
    return "\n".join(lines).rstrip()


def _rank_rows(comparison: Comparison) -> tuple[int, ...]:
    total, n = comparison.base.total_rows, comparison.base.world_size
    return tuple(total // n + (rank < total % n) for rank in range(n))


def _bucket_sizes(run: Run) -> list[str]:
    found = {
        span.bucket: span.nbytes for span in run.trace.spans if span.bucket is not None and span.kind == "all_reduce"
    }
    return [nbytes(found[bucket] or 0) for bucket in sorted(found)]


def _numbers(comparison: Comparison, words: dict[str, str]) -> list[str]:
    names = list(comparison.runs)
    single = comparison.single
    table = [["", words["one"], *(_SHORT[name] for name in names)]]

    def row(label: str, alone: str, cells: list[str]) -> None:
        table.append([words[label], alone, *cells])

    runs = list(comparison.runs.values())
    row(
        "rows",
        str(single.scenario.batch_per_device),
        ["/".join(map(str, dict.fromkeys(r.scenario.rows))) for r in runs],
    )
    row("step", seconds(single.step_s), [seconds(run.step_s) for run in runs])
    row("rate", three_digits(single.samples_per_s), [three_digits(run.samples_per_s) for run in runs])
    row("speedup", "1.00", [f"{comparison.speedup(name):.2f}" for name in names])
    row("same", "1.00", [f"{comparison.speedup_same_global_batch(name):.2f}" for name in names])
    row("compute", seconds(single.metrics.compute_s), [seconds(run.metrics.compute_s) for run in runs])
    row("comm", "0 s", [seconds(run.metrics.comm_s) for run in runs])
    row("exposed", "0 s", [seconds(run.metrics.exposed_comm_s) for run in runs])
    row("overlap", "", [percent(run.metrics.overlap) for run in runs])
    row("sent", "0 B", [nbytes(max(run.metrics.bytes_by_device("sent"))) for run in runs])
    row("first", _peak(single, 0), [_peak(run, 0) for run in runs])
    row("others", "", [max((_peak_key(run, d) for d in range(1, run.scenario.world_size)), default=(0, ""))[1]
                       for run in runs])  # fmt: skip
    row("context", nbytes(single.metrics.context_bytes[0]), [nbytes(run.metrics.context_bytes[0]) for run in runs])
    full = ["", f"* {words['full']}"] if any("*" in cell for line in table for cell in line) else []
    widths = [max(columns(line[column]) for line in table) for column in range(len(table[0]))]
    return [
        "  ".join(pad(cell, widths[i], right=i > 0) for i, cell in enumerate(line)).rstrip() for line in table
    ] + full


def _peak(run: Run, device: int) -> str:
    return _peak_key(run, device)[1]


def _peak_key(run: Run, device: int) -> tuple[int, str]:
    peak = run.metrics.peak_memory_bytes[device]
    return peak, nbytes(peak) + ("*" if fits(run)[device] is False else "")
