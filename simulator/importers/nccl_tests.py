"""`python -m simulator nccl-tests FILE`: the tables of a benchmark's output, as JSON and as text of 80 columns.

`nccl_parse` reads what nccl-tests prints, `nccl_json` its JSON, `gloo_log` gloo's benchmark; here each table gets its collective and
its number of ranks: from the device list or NCCL's log, else from the count column, else from the ratio of the printed
bandwidths (`nccl_tables` says how). Where that leaves several numbers, one that another table of the same paste has is
taken, then the only power of two; the table's notes say so. `nccl_fit` makes a backend of a table.

Not modelled: nothing is corrected; a printed busbw that does not follow from size and time is flagged and kept.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from simulator.errors import InputError
from simulator.importers.gloo_log import parse_gloo
from simulator.importers.nccl_fit import FittedBackend, SizeModel, error_by_size_class, fit_backend, fit_model
from simulator.importers.nccl_json import parse_raw_json
from simulator.importers.nccl_parse import RawTable, damage, extra_name, parse_raw
from simulator.importers.nccl_tables import SHARING, UNKNOWN, RawRow, Row, Table, bus_factor, finished, ranks_between
from simulator.importers.text_file import read_text
from simulator.units import rate, seconds

__all__ = ["FittedBackend", "Row", "SizeModel", "Table", "bus_factor", "error_by_size_class", "fit_backend", "fit_model",
           "nccl_tests_json", "nccl_tests_text", "parse_tables", "read_tables"]  # fmt: skip
WIDTH = 80
_SMALL = re.compile(r"[0-9]{1,6}", re.ASCII)


def read_tables(path: str | Path, *, in_place: bool = False) -> tuple[Table, ...]:
    """The tables in a file. in_place: the second run of each row. Raises InputError where there is none."""
    return parse_tables(read_text(path), str(path), in_place=in_place)


def parse_tables(text: str, where: str = "the text", *, in_place: bool = False) -> tuple[Table, ...]:
    """The tables in a text; `where` names it in messages. Raises InputError where there is none."""
    raw = parse_raw_json(text, where, in_place) if text.lstrip().startswith("{") else parse_raw(text, in_place)
    tables = [table for part in raw if part.rows for table in _tables(part, raw)] + parse_gloo(text)
    if not tables:
        damaged = next((damage(part) for part in raw if part.damaged), "")
        raise InputError(
            f"{where}: no row of nccl-tests or of gloo's benchmark found{'; ' + damaged if damaged else ''}. A row has "
            "size, count, type, time, algbw and busbw. Save the program's output as it is, with its header."
        )
    return tuple(tables)


def _tables(raw: RawTable, all_raw: Sequence[RawTable]) -> list[Table]:
    """The tables of one header: one, or one for each number of ranks where a column in front tells them apart."""
    notes = [note for note in (damage(raw),) if note]
    collective = raw.name or _collective(raw)
    if collective == UNKNOWN:
        notes.append("the collective is not named: all_gather and alltoall look alike")
    if repeated := len(raw.ranks) - len(set(raw.ranks)):
        notes.append(f"{repeated} ranks are listed twice: programs ran side by side, not together")
    told = _told_ranks(raw, collective)
    if told is not None:
        table = finished(raw.rows, collective, told, notes)
        return [_doubted(table, raw) if table.flagged else table]
    # Someone's own column of numbers before the size may count nodes: each of its values is a run of its own.
    own = bool(raw.columns) and raw.columns[0] != "size" and all(row.extra[-1:] and _SMALL.fullmatch(row.extra[-1])
                                                                 for row in raw.rows)  # fmt: skip
    groups: dict[str, list[RawRow]] = {}
    for row in raw.rows:
        groups.setdefault(row.extra[-1] if own else "", []).append(row)
    hints = [raw.per_process, *(_told_ranks(other, other.name) for other in all_raw)]
    found: dict[int | None, tuple[list[RawRow], list[str]]] = {}
    for value, rows in groups.items():
        nranks, how = _inferred(collective, rows, raw.average if len(groups) == 1 else None, hints)
        kept = found.setdefault(nranks, ([], []))
        kept[0].extend(rows)
        kept[1].append(f"{extra_name(raw)} {value}: {how}" if value else how)
    return [
        finished(rows, collective, nranks, [*notes, *dict.fromkeys(hows)]) for nranks, (rows, hows) in found.items()
    ]


def _collective(raw: RawTable) -> str:
    """What the columns of a table without a name can only be."""
    row = next((row for row in raw.rows if row.share), raw.rows[0])
    shared = any(row.share and row.share > 1.5 for row in raw.rows)
    if row.reduces:
        return "reduce_scatter" if shared else "reduce" if row.root is not None and row.root >= 0 else "all_reduce"
    if row.reduces is None and not row.share:
        return "all_reduce" if ranks_between("all_reduce", raw.rows, raw.average) else UNKNOWN
    if row.root is not None and row.root >= 0:
        return "broadcast"
    return UNKNOWN if shared else "sendrecv"


def _told_ranks(raw: RawTable, collective: str) -> int | None:
    """The number of ranks that the text says: its device list, NCCL's log, or the share that the count column is."""
    if raw.ranks:
        groups = [group for group, _ in raw.ranks]
        return max(len({rank for other, rank in raw.ranks if other == group}) for group in set(groups))
    if raw.communicator:
        return raw.communicator
    shares = {row.share for row in raw.rows if row.share}
    if collective in SHARING and len(shares) == 1 and (share := shares.pop()) == int(share) > 1:
        return int(share)
    return None


def _inferred(collective: str, rows: Sequence[RawRow], average: float | None,
              hints: Sequence[int | None]) -> tuple[int | None, str]:  # fmt: skip
    """The number of ranks by the printed bandwidths, and a sentence about how it was found."""
    between = ranks_between(collective, rows, average)
    if between is None:
        if (hints[0] or 0) > 1:
            return hints[0], f"{hints[0]} ranks is what one process has (nThread x nGpus); nothing else says how many"
        return None, "the number of ranks is neither told nor to be had from the bandwidths: busbw is as printed"
    least, most = between
    if least == most:
        return least, f"{least} ranks follow from busbw over algbw"
    shared = {n for n in hints if n and least <= n <= most}
    if len(shared) == 1:
        return (n := shared.pop()), f"{least} to {most} ranks fit the bandwidths; {n} is told elsewhere in the text"
    powers = [1 << k for k in range(21) if least <= 1 << k <= most]
    if len(powers) == 1:
        return powers[0], f"{least} to {most} ranks fit the bandwidths; {powers[0]} is the only power of two"
    return None, f"{least} to {most} ranks fit the bandwidths: busbw is as printed"


def _doubted(table: Table, raw: RawTable) -> Table:
    """The table with a note on the number of ranks that would explain its printed busbw, if there is one."""
    between = ranks_between(table.collective, raw.rows, raw.average)
    if between is None or table.nranks is None or between[0] <= table.nranks <= between[1]:
        return table
    said = str(between[0]) if between[0] == between[1] else f"{between[0]} to {between[1]}"
    note = f"{table.nranks} ranks are listed, but the printed busbw is that of {said}"
    return Table(table.collective, table.nranks, table.rows, table.tool, (*table.notes, note))


def nccl_tests_json(path: str | Path, *, in_place: bool = False) -> list[dict[str, Any]]:
    """What `nccl-tests --json` prints. A table has `flagged`, its doubtful rows, only where there are some."""
    return [
        {
            "collective": table.collective,
            "nranks": table.nranks,
            "rows": [
                {"size_bytes": row.size_bytes, "time_s": row.time_s, "algbw_bytes_per_s": row.algbw_bytes_per_s,
                 "busbw_bytes_per_s": row.busbw_bytes_per_s}
                for row in table.rows
            ],
        } | ({"flagged": [{"size_bytes": row.size_bytes, "why": row.flag} for row in table.flagged]} if table.flagged else {})
        for table in read_tables(path, in_place=in_place)
    ]  # fmt: skip


def nccl_tests_text(path: str | Path, *, in_place: bool = False) -> str:
    """The same for a person; `!` marks a row whose printed busbw does not follow from its size and time."""
    lines: list[str] = []
    for table in read_tables(path, in_place=in_place):
        ranks = "an unknown number of ranks" if table.nranks is None else f"{table.nranks} ranks"
        place = ", in place" if in_place and table.tool == "nccl" else ""
        rows = f"{len(table.rows)} row{'s' if len(table.rows) != 1 else ''}"
        lines += ["", f"{table.collective} on {ranks} ({table.tool}{place}), {rows}"]
        lines.append(f"{'size (B)':>20}  {'time':>12}  {'algbw':>12}  {'busbw':>12}")
        for row in table.rows:
            busbw = "-" if row.busbw_bytes_per_s is None else rate(row.busbw_bytes_per_s)
            lines.append(f"{row.size_bytes:20}  {seconds(row.time_s):>12}  {rate(row.algbw_bytes_per_s):>12}  {busbw:>12}"
                         + ("  !" if row.flag else ""))  # fmt: skip
        for note in (*table.notes, *(f"{row.size_bytes} B {row.flag}" for row in table.flagged)):
            lines += textwrap.wrap(f"  {note}.", WIDTH, subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines[1:])
