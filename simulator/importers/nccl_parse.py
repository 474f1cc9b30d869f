"""The text of nccl-tests (and of its predecessors and RCCL's copy) into rows, whatever version wrote it.

A row is recognised by its type (`float`, `half`, ...): two whole numbers stand before it, size and count, and behind it
redop, root and the values, of which each format has others. The header above says how many values there are; without
one there are four for each run (time, algbw, busbw, errors). The first run is out of place, the second in place.

Columns before the size (someone's own number of nodes) are kept, lines of NCCL's log between the rows passed over, and
commands, titles and device lists remembered for the table that follows them.

Not modelled: the per-iteration columns, CPU time apart from time; nccl-tests' JSON files (`nccl_json`).
"""

import re
from dataclasses import dataclass, field, replace

from simulator.errors import LARGEST_WHOLE
from simulator.importers.nccl_tables import COLLECTIVES, RawRow, Values
from simulator.importers.text_file import plain_lines, shortened

TYPE_BYTES = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "half": 2, "bfloat16": 2,
    "int": 4, "int32": 4, "uint32": 4, "float": 4, "int64": 8, "uint64": 8, "double": 8,
}  # fmt: skip
OPERATIONS = {
    "sum": True,
    "prod": True,
    "max": True,
    "min": True,
    "avg": True,
    "mulsum": True,
    "all": True,
    "none": False,
}
COLUMN_NAMES = {"bytes": "size", "n": "count", "op": "redop", "cputime": "time", "(size)": "size"}
_WHOLE = re.compile(r"[0-9]{1,19}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,25}(\.[0-9]{0,25})?(e[+-]?[0-9]{1,2})?", re.ASCII | re.IGNORECASE)
_ROOT = re.compile(r"-1|[0-9]{1,6}", re.ASCII)
_ANY = (r"all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?allv?|send[-_ ]?recv|broadcast|reduce|"
        r"gather|scatter")  # fmt: skip
_PROGRAM = re.compile(rf"({_ANY})_(?:perf|test)\b", re.IGNORECASE)
_TITLE = re.compile(rf"[\s#*=-]*({_ANY})\b[^0-9]{{0,30}}$", re.IGNORECASE)
_RANK = re.compile(r"\bRank\s{1,8}([0-9]{1,6})\s(?:\s{0,8}Group\s{1,8}([0-9]{1,6})\s)?.{0,200}\bdevice\b", re.ASCII)
_THREADS = re.compile(r"nThreads?:?\s+([0-9]{1,4})\s+nGpus:?\s+([0-9]{1,4})", re.ASCII)
_COMMUNICATOR = re.compile(r"\bnranks\s([0-9]{1,6})\b", re.ASCII)
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,20}:\s{0,20}(\S{1,30})")


@dataclass
class RawTable:
    """One header and its rows, with what the lines before said of them."""

    name: str = ""
    ranks: list[tuple[str, int]] = field(default_factory=list)
    """Group and rank of each line of the device list."""
    communicator: int = 0
    """Ranks according to NCCL's log."""
    per_process: int = 0
    columns: list[str] = field(default_factory=list)
    ticks_per_s: float = 1e6
    rows: list[RawRow] = field(default_factory=list)
    average: float | None = None
    damaged: list[int] = field(default_factory=list)

    def follow(self) -> "RawTable":
        """A table after this one by the same program."""
        return RawTable(self.name, list(self.ranks), self.communicator, self.per_process)


def parse_raw(text: str, in_place: bool) -> list[RawTable]:
    """The tables with at least one row, or with damaged ones."""
    tables = [RawTable()]
    for number, line in enumerate(plain_lines(text), 1):
        table = tables[-1]
        words = line.replace("#", " ").split() if line.lstrip().startswith("#") else line.split()
        columns = _columns(words)
        if columns:
            if table.rows or table.damaged:
                tables.append(table := table.follow())
            table.columns = columns
            table.ticks_per_s = 1e3 if "bytes" in map(str.lower, words) else 1e6  # before 2.5 times were milliseconds
        elif table.columns and not table.rows and ("(us)" in words or "(ms)" in words):
            table.ticks_per_s = 1e3 if "(ms)" in words else 1e6
        elif (row := _row(words, table, in_place)) is not None:
            table.rows.append(row)
        elif _looks_like_row(words):
            table.damaged.append(number)
        else:
            _remember(tables, line)
    return [table for table in tables if table.rows or table.damaged]


def _columns(words: list[str]) -> list[str]:
    """The names of a header's columns, empty for another line."""
    lower = [COLUMN_NAMES.get(word.lower(), word.lower()) for word in words]
    return lower if "size" in lower and "time" in lower and {"algbw", "busbw"} & set(lower) else []


def _looks_like_row(words: list[str]) -> bool:
    return any(word.lower() in TYPE_BYTES and at >= 2 and _WHOLE.fullmatch(words[at - 1]) is not None
               and _WHOLE.fullmatch(words[at - 2]) is not None for at, word in enumerate(words[:8]))  # fmt: skip


def _row(words: list[str], table: RawTable, in_place: bool) -> RawRow | None:
    """A row of numbers, or None if the words are none or a value that is needed is missing or no number."""
    columns = table.columns
    value_names = columns[columns.index("time") :] if columns else ["time", "algbw", "busbw", "error"] * 2
    stamped = value_names[-1:] == ["timestamp"]  # a date and a time of day: one name, two words
    at = next((i for i, word in enumerate(words[:8]) if word.lower() in TYPE_BYTES), None)
    if at is None:
        return _untyped(words, columns, table.ticks_per_s, in_place)
    if at < 2 or not _WHOLE.fullmatch(words[at - 1]) or not _WHOLE.fullmatch(words[at - 2]):
        return None
    behind = words[at + 1 :]
    one = value_names[: value_names.index("time", 1)] if value_names.count("time") > 1 else value_names
    for names in (value_names, one):
        between = len(behind) - len(names) - (stamped and names is value_names)
        if 0 <= between <= 2 and _fits(behind[:between], columns):
            break
    else:
        return None
    operation = next((word.lower() for word in behind[:between] if word.lower() in OPERATIONS), "none")
    root = next((int(word) for word in behind[:between] if _ROOT.fullmatch(word)), None)
    counted = int(words[at - 1]) * TYPE_BYTES[words[at].lower()]
    row = _with_values(int(words[at - 2]), behind[between:], names, table.ticks_per_s, in_place)
    return row and replace(row, share=int(words[at - 2]) / counted if counted else None, reduces=OPERATIONS[operation],
                           root=root, extra=tuple(words[: at - 2]))  # fmt: skip


def _fits(words: list[str], columns: list[str]) -> bool:
    """Whether these words between type and time are a redop and a root, as many as the header names.

    Old versions leave the redop of a collective that has none blank. Any other word too few means that the row is cut
    at its end, and that the first of its values is no time.
    """
    names = [name for name in ("redop", "root") if name in columns]
    has_operation = bool(words) and words[0].lower() in OPERATIONS
    roots = words[has_operation:]
    wanted = len(names) - ("redop" in names and not has_operation) if columns else (0, 1, 2)[len(words)]
    return len(words) == wanted and len(roots) <= 1 and all(map(_ROOT.fullmatch, roots)) and (
        bool(columns) or has_operation or not words)  # fmt: skip


def _untyped(words: list[str], columns: list[str], ticks_per_s: float, in_place: bool) -> RawRow | None:
    """A row of a table from which someone left the type out: only the header says which number is which."""
    at = columns.index("size") if columns else 0
    if not columns or "type" in columns or len(words) != len(columns) or not _WHOLE.fullmatch(words[at]):
        return None
    first = columns.index("time")
    row = _with_values(int(words[at]), words[first:], columns[first:], ticks_per_s, in_place)
    return row and replace(row, extra=tuple(words[:at]))


def _with_values(size: int, words: list[str], names: list[str], ticks_per_s: float, in_place: bool) -> RawRow | None:
    starts = [i for i, name in enumerate(names) if name == "time"]
    runs = []
    for start, end in zip(starts, [*starts[1:], len(names)]):
        runs.append(_values(dict(zip(names[start:end], words[start:end])), ticks_per_s))
    wanted = 1 if in_place else 0
    if size > LARGEST_WHOLE or wanted >= len(runs) or (chosen := runs[wanted]) is None:
        return None
    return RawRow(size, chosen, next((run for i, run in enumerate(runs) if i != wanted and run), None))


def _values(words: dict[str, str], ticks_per_s: float) -> Values | None:
    """Time and busbw of one run; None without a time above zero."""
    time, busbw = words.get("time", ""), words.get("busbw", "")
    if not _NUMBER.fullmatch(time) or not 1e-6 < float(time) < 1e15:
        return None
    known = _NUMBER.fullmatch(busbw) is not None and float(busbw) < 1e12
    return Values(float(time) / ticks_per_s, _half(time) / ticks_per_s, float(busbw) * 1e9 if known else None,
                  _half(busbw) * 1e9 if known else 0.0)  # fmt: skip


def _half(word: str) -> float:
    """Half a unit of a printed number's last digit."""
    digits, _, exponent = word.lower().partition("e")
    return 0.5 * 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def _remember(tables: list[RawTable], line: str) -> None:
    """What a line that is no row says about the table after it, or about the one before."""
    if found := _AVERAGE.search(line):
        number = found[1] if _NUMBER.fullmatch(found[1]) else "0"
        tables[-1].average = float(number) * 1e9 if 0 < float(number) < 1e12 else None
        return
    name = _PROGRAM.search(line) or _TITLE.match(line)
    if name and "concluded" in line:
        tables[-1].name = tables[-1].name or collective_name(name[1])
        return
    threads, rank, communicator = _THREADS.search(line), _RANK.search(line), _COMMUNICATOR.search(line)
    if communicator and not tables[-1].rows:
        tables[-1].communicator = max(tables[-1].communicator, int(communicator[1]))
    if not (name or threads or rank):
        return
    if tables[-1].rows or tables[-1].damaged:  # another program: what it runs on is told anew
        tables.append(RawTable(tables[-1].name))
    table = tables[-1]
    if name:
        table.name = collective_name(name[1])
    if threads:
        table.per_process = int(threads[1]) * int(threads[2])
    if rank:
        table.ranks.append((rank[2] or "", int(rank[1])))


def collective_name(word: str) -> str:
    """torch's and NCCL's word for it, however it was spelled."""
    plain = re.sub(r"[-_ ]", "", word.lower()).removesuffix("v")
    return next((name for name in COLLECTIVES if name.replace("_", "") == plain), word.lower())


def program_name(word: str) -> str:
    """The collective of a program (`all_reduce_perf`), empty for another word."""
    found = _PROGRAM.search(word)
    return collective_name(found[1]) if found else ""


def damage(table: RawTable) -> str:
    """The lines that look like rows and are none, for a note."""
    shown = ", ".join(map(str, table.damaged[:5])) + (", ..." if len(table.damaged) > 5 else "")
    return f"line {shown} looks like a row but is cut or damaged: left out" if table.damaged else ""


def extra_name(table: RawTable) -> str:
    """What the header calls the first column before the size."""
    return shortened(table.columns[0]) if table.columns and table.columns[0] != "size" else "first"
