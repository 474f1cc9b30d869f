"""The output of gloo's own benchmark into tables: percentiles of the time by number of elements.

The time taken is p50, the median. The last column is called GB/s and is in GiB: bytes over the mean time, divided by
1024^3 (gloo/benchmark/runner.cc), and summed over the threads; so it is no algbw. It says how large an element is where
no size is printed: with the right size the mean time lies between the least and the greatest.

Not modelled: verification errors, the pairwise exchange's and the barriers' own meaning of bandwidth.
"""

import re

from simulator.importers.nccl_parse import collective_name
from simulator.importers.nccl_tables import UNKNOWN, RawRow, Table, Values, finished
from simulator.importers.text_file import plain_lines

GIB = 1 << 30
ELEMENT_BYTES = (4, 2, 8, 1)
_HEADER = re.compile(r"(size|elements|min|p50|p99|max|avg|bandwidth|samples|iterations)\s*(?:\(([^)\s]{1,6})\))?")
_ALGORITHM = re.compile(r"^\s*Algorithm:\s*(\S{1,60})\s*$|^\s*([A-Z][A-Z0-9_]{3,60})\s*$", re.ASCII)
_PROCESSES = re.compile(r"\bprocesses=([0-9]{1,6})\b", re.ASCII)
_THREADS = re.compile(r"\bthreads=([0-9]{1,4})\b", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{0,18})?", re.ASCII)
_KINDS = (("allreduce", "all_reduce"), ("allgather", "all_gather"), ("reducescatter", "reduce_scatter"),
          ("alltoall", "alltoall"), ("broadcast", "broadcast"), ("gather", "gather"), ("scatter", "scatter"),
          ("reduce", "reduce"))  # fmt: skip


def parse_gloo(text: str) -> list[Table]:
    """All tables of gloo's benchmark in a text, none where it has none."""
    tables: list[Table] = []
    algorithm, processes, threads = "", 0, 1
    columns: list[tuple[str, str]] = []
    rows: list[RawRow] = []
    notes: list[str] = []

    def close() -> None:
        if rows:
            name = algorithm.lower().replace("_", "")
            kind = next((kind for sign, kind in _KINDS if sign in name), UNKNOWN)
            made = finished(rows, collective_name(kind), processes or None, list(dict.fromkeys(notes)))
            tables.append(Table(made.collective, made.nranks, made.rows, "gloo", made.notes))
        rows.clear()
        notes.clear()

    for line in plain_lines(text):
        if "p50" in line and "elements" in line:
            close()
            columns = _HEADER.findall(line)
            notes.append(f"gloo {algorithm.lower()}: the time is the median (p50)" if algorithm else "the time is p50")
        elif found := _ALGORITHM.match(line):
            close()
            algorithm, columns = found[1] or found[2], []
        elif found := _PROCESSES.search(line):
            close()
            processes = int(found[1])
            threads = int(again[1]) if (again := _THREADS.search(line)) else 1
        elif columns:
            words = line.split()
            if len(words) == len(columns) and all(map(_NUMBER.fullmatch, words)):
                row, note = _row({name: (word, unit) for (name, unit), word in zip(columns, words)}, threads)
                rows += [row] if row else []
                notes += [note] if note else []
    close()
    return tables


def _row(cells: dict[str, tuple[str, str]], threads: int) -> tuple[RawRow | None, str]:
    """One row, and what is to be said about it."""
    word, unit = cells.get("p50", ("0", ""))
    ticks = 1e9 if unit == "ns" else 1e6
    seconds = float(word) / ticks
    elements = int(cells["elements"][0].partition(".")[0])
    if not 0 < seconds < 1e9:
        return None, f"{elements} elements: a time of 0 is below gloo's resolution; left out"
    half = 0.5 / ticks  # gloo cuts the rest of the last digit off
    if "size" in cells:
        return RawRow(int(cells["size"][0].partition(".")[0]), Values(seconds, half, None, 0.0)), ""
    speed = float(cells.get("avg", cells.get("bandwidth", ("0", "")))[0]) * GIB
    low, high = (float(cells[name][0]) / ticks if name in cells else 0.0 for name in ("min", "max"))
    sizes = [size for size in ELEMENT_BYTES if speed and low <= elements * size * threads / speed <= high + 2 * half]
    note = "" if sizes else "the bandwidth does not say how large an element is: taken as 4 bytes"
    return RawRow(elements * (sizes or [4])[0], Values(seconds, half, None, 0.0)), note
