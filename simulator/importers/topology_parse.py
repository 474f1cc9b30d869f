"""The text of `nvidia-smi topo -m` into a TopologyMatrix, in all the shapes in which people paste it.

A header names the columns: GPUs, NICs (`mlx5_0`, `NIC0`, in any order) and at the end the affinity columns. A row is a
name and as many link classes; what follows them is affinity, in the order of its titles, because tabs and blanks are
lost and doubled on the way. Rows of NICs may be missing, the last row may be cut, a long row may be wrapped. A second
matrix (`topo -p2p`) says whether peer access is allowed.

A cell that cannot be right is an error: it means that columns have shifted, and every link after it is wrong.

Not modelled: `topo -p` and the other commands of nvidia-smi; the XML of NCCL is in `topology_xml`.
"""

import re
from dataclasses import dataclass, field, replace

from simulator.errors import InputError, require
from simulator.importers.text_file import plain_lines, shortened
from simulator.importers.topology_matrix import Affinity, TopologyMatrix, is_link

MOST_DEVICES = 256
_GPU = re.compile(r"GPU[0-9]{1,4}", re.ASCII)
_NIC = re.compile(r"[A-Za-z][\w.-]{0,30}[0-9][\w.-]{0,30}", re.ASCII)
_TITLE_WORDS = {"CPU", "NUMA", "GPU", "Affinity", "ID"}
_TITLES = re.compile(r"CPU\s+Affinity|GPU\s+NUMA\s+ID|NUMA\s+Affinity")
_LEGEND = re.compile(r"^\s*(NIC[0-9]{1,4})\s*:\s*(\S{1,64})\s*$", re.ASCII)
_P2P = {"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}
_ALIASES = {"SOC": "SYS"}
"""Drivers before 2017 say SOC for what is SYS now."""
_NEXT = "Paste the output of `nvidia-smi topo -m` again, whole"


@dataclass
class _Draft:
    """One matrix while it is read."""

    line: int
    last_line: int
    """Of its header, which a narrow terminal wraps."""
    columns: list[str]
    titles: list[str]
    cells: dict[str, list[str | None]] = field(default_factory=dict)
    extras: dict[str, list[str]] = field(default_factory=dict)
    peer: bool = False
    command: str = ""

    def goes_on(self, number: int) -> bool:
        """Whether the line after that many may still belong to the header."""
        return number == self.last_line and not self.titles and not self.cells


def parse_matrix(text: str, where: str) -> TopologyMatrix:
    """The matrix in a text; `where` names it in messages. Raises InputError on damaged or foreign text."""
    lines = plain_lines(text)
    cut = bool(text) and not text[-1].isspace()
    drafts: list[_Draft] = []
    for number, line in enumerate(lines):
        words = line.split()
        columns, titles = _header(words)
        wrapped = bool(drafts) and drafts[-1].goes_on(number) and not set(columns) & set(drafts[-1].columns)
        if wrapped and (columns or titles):
            drafts[-1].columns += columns
            drafts[-1].titles += titles
            drafts[-1].last_line = number + 1
        elif any(map(_GPU.fullmatch, columns)):
            command = next((before for before in reversed(lines[max(0, number - 2) : number]) if "topo" in before), "")
            drafts.append(_Draft(number + 1, number + 1, columns, titles, command=command))
        elif drafts:
            _take_row(drafts[-1], line, words, where, number + 1, ends=cut and number == len(lines) - 1)
        elif len(words) > 2 and _GPU.fullmatch(words[0]) and "X" in words[1:] and any(map(_is_cell, words[1:])):
            raise InputError(f"{where}, line {number + 1}: row {words[0]} comes before the header. The line that names "
                             f"the columns (GPU0 ...) is needed. {_NEXT}.")  # fmt: skip
    matrices = [draft for draft in drafts if draft.cells and not draft.peer]
    if not matrices:
        what = "no header GPU0 ..."
        if drafts:
            what = f"line {drafts[0].line} names {len(drafts[0].columns)} columns, but no row"
        raise InputError(f"{where}: {what} of `nvidia-smi topo -m` found. A matrix of link classes is needed. {_NEXT}.")
    found = _finish(matrices[0], where)
    second = f"a second matrix (line {matrices[1].line}) was left out: one file, one machine" if matrices[1:] else ""
    legend = {match[1]: match[2] for match in map(_LEGEND.match, lines) if match}
    devices = tuple(legend.get(name, "") for name in found.nics) if legend else ()
    notes = (*found.notes, second) if second else found.notes
    return replace(found, nic_devices=devices, peer_access=_peer(drafts), notes=notes)


def _is_cell(word: str) -> bool:
    return word == "X" or word in _ALIASES or is_link(word)


def _header(words: list[str]) -> tuple[list[str], list[str]]:
    """Columns and affinity titles, if these words are a header or a part of one; empty for any other line."""
    start = next((i for i, word in enumerate(words) if _GPU.fullmatch(word)), 0)
    while start and _is_name(words[start - 1]):  # what a search or an editor put before the names is passed over
        start -= 1
    end = start
    while end < len(words) and _is_name(words[end]):
        end += 1
    if not set(words[end:]) <= _TITLE_WORDS:
        return [], []
    return words[start:end], _TITLES.findall(" ".join(words[end:]))


def _is_name(word: str) -> bool:
    """Whether the word can name a device. (NV1 has the form of a name.)"""
    return not _is_cell(word) and bool(_GPU.fullmatch(word) or _NIC.fullmatch(word))


def _take_row(draft: _Draft, line: str, words: list[str], where: str, number: int, *, ends: bool) -> None:
    """Add a row or the continuation of a wrapped one; pass over anything else."""
    at = next((i for i, word in enumerate(words[:-1]) if word in draft.columns and _starts_cells(words[i + 1])), None)
    width = len(draft.columns)
    if at is None:
        _take_continuation(draft, words, where, number)
        return
    name, rest = words[at], words[at + 1 :]
    cells, after = _cells_of(rest, width, draft)
    if len(cells) < width and "\t" in line:
        by_tab = [part.strip() for part in line[line.index(name) + len(name) :].split("\t")][1 : width + 1]
        if len(by_tab) == width and all(not part or _is_cell(part) for part in by_tab):
            # An empty cell between tabs: the others keep their columns.
            cells = [_ALIASES.get(part, part) or None for part in by_tab]
    if ends and not after and cells and (cells[-1] or "").startswith("NV"):
        cells = cells[:-1]  # The text ends here: NV1 may be the beginning of NV12.
    damaged = next((word for word in after if _is_cell(word)), None)
    require(damaged is None, f"{where}, line {number}: row {name} has {shortened(after[0] if after else '')}",
            f"{width} link classes are needed, as many as the header names columns", _NEXT)  # fmt: skip
    require(name not in draft.cells or draft.cells[name] == cells, f"{where}, line {number}: row {name} comes twice",
            "one row a device", _NEXT)  # fmt: skip
    draft.cells[name], draft.extras[name] = cells, after


def _starts_cells(word: str) -> bool:
    return _is_cell(word) or word in _P2P


def _take_continuation(draft: _Draft, words: list[str], where: str, number: int) -> None:
    """The rest of a row that a narrow terminal wrapped. A row of a device that is no column: the header is cut."""
    last = next(reversed(draft.cells), None)
    if len(words) > 2 and _is_name(words[0]) and "X" in words and all(map(_starts_cells, words[1:3])):
        raise InputError(f"{where}, line {number}: row {words[0]} is no column of line {draft.line}. A matrix has the "
                         f"same rows and columns. {_NEXT}.")  # fmt: skip
    if last and words and _starts_cells(words[0]) and "=" not in words and len(draft.cells[last]) < len(draft.columns):
        more, rest = _cells_of(words, len(draft.columns) - len(draft.cells[last]), draft)
        draft.cells[last], draft.extras[last] = draft.cells[last] + more, rest


def _cells_of(words: list[str], width: int, draft: _Draft) -> tuple[list[str | None], list[str]]:
    """The link classes at the start of the words, at most `width`, and the words after them."""
    cells: list[str | None] = []
    for word in words[:width]:
        if word in _P2P:
            draft.peer = True
        elif not _is_cell(word):
            break
        cells.append(_ALIASES.get(word, word))
    return cells, words[len(cells) :]


def _finish(draft: _Draft, where: str) -> TopologyMatrix:
    """The draft as a value, with the GPUs in the order of their numbers."""
    columns, width = draft.columns, len(draft.columns)
    require(
        width <= MOST_DEVICES, f"{where}: {width} columns", f"at most {MOST_DEVICES} are read", "Give one machine's"
    )
    require(len(set(columns)) == width, f"{where}, line {draft.line}: a column comes twice", "names are unique", _NEXT)
    gpus = sorted((name for name in columns if _GPU.fullmatch(name)), key=lambda name: int(name[3:]))
    names = gpus + [name for name in columns if not _GPU.fullmatch(name)]
    table: dict[str, dict[str, str | None]] = {}
    notes: list[str] = []
    last = next(reversed(draft.cells))
    for name, cells in draft.cells.items():
        short = len(cells) < width
        # Only the end of a paste is cut; a short row before it has lost a cell, nobody knows which.
        require(not short or name == last, f"{where}: row {name} has {len(cells)} cells",
                f"the header names {width} columns", _NEXT)  # fmt: skip
        if short:
            notes.append(f"row {name} is cut after {len(cells)} of {width} cells")
        table[name] = dict(zip(columns, cells))
        for column, cell in table[name].items():
            require((cell == "X") == (column == name) or cell is None,
                    f"{where}: row {name} has {cell} in column {column}", "X stands on the diagonal and only there",
                    f"The columns have shifted. {_NEXT}")  # fmt: skip
    grid = tuple(tuple(None if a == b else table.get(a, {}).get(b) for b in names) for a in names)
    for a, row in enumerate(grid):
        for b, cell in enumerate(row[:a]):
            if cell and grid[b][a] and cell != grid[b][a]:
                said = f"one cell says {grid[b][a]}, the other {cell}; the worse is used"
                notes.append(f"{names[b]} and {names[a]}: {said}")
    rows = tuple(name for name in names if name in table)
    affinity = tuple(_affinity(draft, name) for name in gpus)
    return TopologyMatrix(tuple(gpus), tuple(names[len(gpus) :]), grid, rows, affinity, notes=tuple(notes))


def _affinity(draft: _Draft, name: str) -> Affinity:
    """The words after a row's cells, by the titles; a word too few means that the last titles have none."""
    values = dict(zip(draft.titles, draft.extras.get(name, [])))
    return Affinity(*(values.get(title, "") for title in ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")))


def _peer(drafts: list[_Draft]) -> bool | None:
    """Whether all peer matrices allow every pair. Those of NVLink (`-p2p n`) and atomics (`a`) do not count."""
    answers = [cell for draft in drafts if draft.peer and not re.search(r"-p2p\s+[na]\b", draft.command)
               for cells in draft.cells.values() for cell in cells if cell in _P2P]  # fmt: skip
    return all(cell == "OK" for cell in answers) if answers else None
