"""Who is faster, and what the slower one waits for, in one sentence of each language.

DataParallel loses time to three different things, and the sentence tells them apart: the Python thread (replicating
and launching for all devices under one GIL), GPU 0's link (parameters out, gradients in), GPU 0's memory (outputs,
gradients and the optimizer pile up on one card). The seconds are those in which the busiest device does not compute,
beyond one device's own step: link time is its exposed communication, the rest is the host's. They sum up to the
difference of the two steps, and hidden communication costs nothing.

Not modelled: what would happen after the cause is removed; simulate that.
"""

from dataclasses import dataclass

from simulator.compare import Comparison, Run
from simulator.units import nbytes, seconds

SAME = 0.02
"""Steps that differ by less are called equal."""

CAUSES = ("python thread", "GPU 0's link", "GPU 0's memory", "memory", "host launches", "all-reduce", "compute")


@dataclass(frozen=True)
class Verdict:
    """`cause` is one of CAUSES, for the strategy that the sentence is about."""

    winner: str
    ratio: float
    cause: str
    english: str
    chinese: str

    def text(self, language: str) -> str:
        """The sentence in "en" or "zh"."""
        return self.chinese if language == "zh" else self.english


def fits(run: Run) -> list[bool | None]:
    """For each device whether its peak, context included, fits its memory; None where the memory is not known."""
    answers: list[bool | None] = []
    for device, peak, context in zip(run.scenario.cluster.devices, run.metrics.peak_memory_bytes,
                                     run.metrics.context_bytes, strict=True):  # fmt: skip
        answers.append(peak + context <= device.memory_bytes if device.memory_bytes else None)
    return answers


def lost_seconds(comparison: Comparison, name: str) -> dict[str, float]:
    """Seconds beyond one device's own step, by what they are spent on: compute, link, host. They sum up to it."""
    mine = comparison.runs[name].metrics.device_seconds
    alone = comparison.single.metrics.device_seconds
    return {what: mine[what] - alone[what] for what in mine}


def cause(comparison: Comparison, name: str) -> str:
    """What this strategy waits for most, beyond one device's own step."""
    run = comparison.runs[name]
    parallel = name == "DataParallel"
    if parallel and fits(run)[0] is False:
        return "GPU 0's memory"
    lost = lost_seconds(comparison, name)
    worst = max(lost, key=lambda key: lost[key])
    if lost[worst] < 0.01 * run.step_s:
        return "compute"
    if worst == "host":
        return "python thread" if parallel else "host launches"
    if worst == "link":
        return "GPU 0's link" if parallel else "all-reduce"
    return "compute"


_ENGLISH = {
    "python thread": "DataParallel waits {lost} for its one Python thread",
    "GPU 0's link": "DataParallel waits {lost} for GPU 0's link",
    "host launches": "DDP waits {lost} for its host threads",
    "all-reduce": "DDP waits {lost} for all-reduce",
    "compute": "neither waits for much but compute",
}
_CHINESE = {
    "python thread": "DataParallel 等唯一的 Python 线程 {lost}",
    "GPU 0's link": "DataParallel 等 0 号卡的链路 {lost}",
    "host launches": "DDP 等主机线程 {lost}",
    "all-reduce": "DDP 等 all-reduce {lost}",
    "compute": "两者都主要在计算",
}


def verdict(comparison: Comparison) -> Verdict:
    """The finding on a comparison of both strategies, or on the one that can run."""
    if len(comparison.runs) < 2:
        return _alone(comparison)
    parallel, distributed = comparison.runs["DataParallel"], comparison.runs["DistributedDataParallel"]
    if fits(parallel)[0] is False:
        return _too_full(comparison, parallel, distributed)
    ratio = parallel.step_s / distributed.step_s
    if False in fits(distributed):
        english, chinese = _over(distributed, "DDP")
        return Verdict("DataParallel", 1 / ratio, "memory", f"{english}; DataParallel does, at "
                       f"{seconds(parallel.step_s)} a step.",
                       f"{chinese}；DataParallel 放得下，一步 {seconds(parallel.step_s)}。")  # fmt: skip
    slower = "DataParallel" if ratio >= 1 else "DistributedDataParallel"
    why = cause(comparison, slower)
    waits = seconds(_lost(comparison, slower, why))
    if abs(ratio - 1) < SAME:
        winner, first, first_zh = "neither", "DataParallel and DDP take the same time", "DataParallel 与 DDP 用时相同"
    elif ratio > 1:
        winner, first, first_zh = "DistributedDataParallel", f"DDP is {ratio:.2f}x faster", f"DDP 快 {ratio:.2f} 倍"
    else:
        winner, first = "DataParallel", f"DataParallel is {1 / ratio:.2f}x faster"
        first_zh = f"DataParallel 快 {1 / ratio:.2f} 倍"
    last = last_zh = ""
    if slower == "DataParallel" and why != "compute":
        exposed = lost_seconds(comparison, "DistributedDataParallel")["link"]
        last = f", DDP {seconds(exposed)} for all-reduce" if exposed > 0 else ", DDP does not wait"
        last_zh = f"，DDP 等 all-reduce {seconds(exposed)}" if exposed > 0 else "，DDP 不必等"
    return Verdict(winner, max(ratio, 1 / ratio), why, f"{first}: {_ENGLISH[why].format(lost=waits)}{last}.",
                   f"{first_zh}：{_CHINESE[why].format(lost=waits)}{last_zh}。")  # fmt: skip


def _too_full(comparison: Comparison, parallel: Run, distributed: Run) -> Verdict:
    """GPU 0 cannot hold what DataParallel puts there; DDP may or may not fit."""
    english, chinese = _over(parallel, "DataParallel")
    ratio = parallel.step_s / distributed.step_s
    if False not in fits(distributed):
        return Verdict("DistributedDataParallel", ratio, "GPU 0's memory",
                       f"{english}; DDP does, at {seconds(distributed.step_s)} a step.",
                       f"{chinese}；DDP 放得下，一步 {seconds(distributed.step_s)}。")  # fmt: skip
    return Verdict("neither", ratio, "GPU 0's memory",
                   f"{english}, nor does DDP fit any device; with more memory DDP would be {ratio:.2f}x faster.",
                   f"{chinese}，DDP 在每张卡上也放不下；若显存够，DDP 快 {ratio:.2f} 倍。")  # fmt: skip


def _over(run: Run, name: str) -> tuple[str, str]:
    """That a run does not fit the first device that it overfills."""
    device = fits(run).index(False)
    needs = nbytes(run.metrics.peak_memory_bytes[device] + run.metrics.context_bytes[device])
    has = nbytes(run.scenario.cluster.devices[device].memory_bytes)
    return (f"{name} does not fit GPU {device}'s memory ({needs} of {has})",
            f"{name} 超出 {device} 号卡的显存（需要 {needs}，只有 {has}）")  # fmt: skip


def _lost(comparison: Comparison, name: str, why: str) -> float:
    """Seconds that go to that cause."""
    return lost_seconds(comparison, name)["host" if why in ("python thread", "host launches") else "link"]


def _alone(comparison: Comparison) -> Verdict:
    name = next(iter(comparison.runs))
    run = comparison.runs[name]
    why, speedup = cause(comparison, name), comparison.speedup(name)
    short = "DDP" if name == "DistributedDataParallel" else name
    n = comparison.base.world_size
    english = f"{short} on {n} devices is {speedup:.2f}x one device"
    unit = "个 rank " if comparison.base.cluster.devices[0].kind == "CPU" else "张卡"
    chinese = f"{short} 用 {n} {unit}的加速比为 {speedup:.2f}"
    if False in fits(run):
        over, over_zh = _over(run, short)
        return Verdict("neither", speedup, why, f"{over}; with more, {english}.", f"{over_zh}；若显存够，{chinese}。")
    if why == "compute":
        return Verdict(name, speedup, why, f"{english}: it waits for little but compute.", f"{chinese}：几乎只在计算。")
    waits = seconds(_lost(comparison, name, why))
    return Verdict(name, speedup, why, f"{english}: {_ENGLISH[why].format(lost=waits)}.",
                   f"{chinese}：{_CHINESE[why].format(lost=waits)}。")  # fmt: skip
