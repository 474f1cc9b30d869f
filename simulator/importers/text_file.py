"""A file that someone else's program printed, as text without the terminal's colours; InputError if it is not text.

Pastes come with a byte-order mark, as UTF-16, with escape sequences for underlined headers, with the prefixes that job
launchers put before every line (`[1,0]<stdout>:`), quoted (`> `) or as a table (`| `). All of that goes away here, so
that the importers see what the program wrote.

Not modelled: other encodings than UTF-8 and UTF-16; archives.
"""

import re
from pathlib import Path

from simulator.errors import InputError, require

LARGEST_BYTES = 32 << 20
"""More than any log of these programs; a larger file is another file."""
_COLOURS = re.compile(r"\x1b?\[[0-9;]{0,16}m")
_LAUNCHER = re.compile(r"^\s*\[[0-9]+,[0-9]+\]<std(?:out|err)>:?")
_FRAME = re.compile(r"[|`]|^\s*>+")


def read_text(path: str | Path) -> str:
    """The text of a file. Raises InputError where there is none, where it is too long or no text."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except (OSError, ValueError) as problem:
        raise InputError(f"{path}: {problem}. A readable text file is needed. Check the path.") from None
    require(len(raw) <= LARGEST_BYTES, f"{path} has more than {LARGEST_BYTES >> 20} MiB",
            "the output of one program is far smaller", "Cut out the part with the table")  # fmt: skip
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as problem:
        raise InputError(f"{path}: {problem}. Text in UTF-8 is needed. Save the program's output as text.") from None
    require("\x00" not in text, f"{path} has zero bytes", "text has none", "Save the program's output as text")
    return text


def plain_lines(text: str) -> list[str]:
    """The lines as the program wrote them; tabs and leading blanks are kept."""
    return [_FRAME.sub(" ", _LAUNCHER.sub("", _COLOURS.sub("", line))) for line in text.splitlines()]


def shortened(text: object, most: int = 40) -> str:
    """A piece of foreign text for a message: printable, and not longer than a line's half."""
    shown = repr(text)
    return shown if len(shown) <= most else shown[: most - 4] + "...'"
