"""The width of text in a terminal: a Chinese character takes two columns, a combining mark none."""

import unicodedata


def columns(text: str) -> int:
    """Columns that the text takes in a terminal."""
    return sum(0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1
               for sign in text)  # fmt: skip


def pad(text: str, width: int, *, right: bool = False) -> str:
    """The text with blanks up to that many columns, before it if `right`."""
    blanks = " " * (width - columns(text))
    return blanks + text if right else text + blanks


def wrap(text: str, width: int) -> list[str]:
    """Lines of at most `width` columns; breaks at blanks and after any wide character, and inside a longer word."""
    lines = [""]
    for piece in _pieces(text):
        if columns(lines[-1]) + columns(piece.rstrip()) > width:
            lines[-1] = lines[-1].rstrip()
            lines.append("")
            piece = piece.lstrip()
        for sign in piece:
            if columns(lines[-1]) + columns(sign) > width:
                if sign == " ":
                    break
                lines.append("")
            lines[-1] += sign
    return [line.rstrip() for line in lines]


def _pieces(text: str) -> list[str]:
    """Words with the blanks after them; every wide character for itself."""
    found = [""]
    for sign in text:
        if found[-1] and (columns(sign) == 2 or columns(found[-1][-1]) == 2 or (found[-1][-1] == " " and sign != " ")):
            found.append("")
        found[-1] += sign
    return found
