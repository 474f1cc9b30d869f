"""The JSON file that nccl-tests writes since 2.17 (option -J) into the same rows as its text.

Times are in microseconds and bandwidths in GB/s, as in the text, but with six decimals. The device list has one entry a
process, so that the number of ranks is entries times threads times GPUs a thread.

Not modelled: the file's environment (it holds names of machines and of people), percentiles of single iterations.
"""

from collections.abc import Mapping
from typing import Any

from simulator.errors import LARGEST_WHOLE, InputError, parse_json
from simulator.importers.nccl_parse import OPERATIONS, TYPE_BYTES, RawTable, program_name
from simulator.importers.nccl_tables import RawRow, Values

HALF = 0.5e-6
"""Half a unit of the sixth decimal."""


def parse_raw_json(text: str, where: str, in_place: bool) -> list[RawTable]:
    """The one table of such a file. Raises InputError on JSON of another kind."""
    found = parse_json(text, where)
    try:
        config, results = found.get("config") or {}, found["results"]
        names = [program_name(str(word)) for word in found.get("args") or []]
        each = int(config.get("nthreads", 0)) * int(config.get("ngpus", 0))
        count = min(len(config.get("devices") or found.get("devices") or []) * each, 1_000_000)
        rows = [row for entry in results if (row := _row(entry, in_place)) is not None]
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as problem:
        raise InputError(
            f"{where}: {problem!r} is missing or damaged. The JSON that nccl-tests writes with -J has `results`, each with size "
            "and out_of_place. Write it again, or save the program's printed output."
        ) from None
    table = RawTable(
        next((name for name in names if name), ""), [("", rank) for rank in range(count)], per_process=each
    )
    table.rows = rows
    return [table] if rows else []


def _row(entry: Mapping[str, Any], in_place: bool) -> RawRow | None:
    """One entry of `results`; None where the run that is wanted was not measured."""
    wanted, other = ("in_place", "out_of_place") if in_place else ("out_of_place", "in_place")
    size, share = int(entry["size"]), None
    values = _values(entry.get(wanted))
    if values is None or not 0 <= size <= LARGEST_WHOLE:
        return None
    counted = int(entry.get("count", 0)) * TYPE_BYTES.get(str(entry.get("type")).lower(), 0)
    if counted > 0:
        share = size / counted
    root = str(entry.get("root", "")).strip()
    return RawRow(size, values, _values(entry.get(other)), share, OPERATIONS.get(str(entry.get("redop")).lower(), False),
                  int(root) if root else None)  # fmt: skip


def _values(run: Mapping[str, Any] | None) -> Values | None:
    if not run:
        return None
    time, busbw = float(run.get("time", run.get("cpu_time", 0.0))), float(run.get("bus_bw", "nan"))
    if not 1e-6 < time < 1e15:
        return None
    known = 0.0 <= busbw < 1e12
    return Values(time / 1e6, HALF / 1e6, busbw * 1e9 if known else None, HALF * 1e9)
