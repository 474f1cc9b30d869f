"""The page's address holds its state: a deep link shows the same page again. What it cannot mean falls back, said so.

A control begins with what the address says; without anything there, with what it was when the page was left. From then
on the address follows: values that are not the default are in it, by their own names, never by their labels.

A browser sends the label of what is chosen, not its name, and keeps sending the old one when the labels change (another
language, another cluster). So a control with labels has them in its key: other labels make it a new control, which
takes over the value of the one before. Read values by `value`, never from the session's state.

Not modelled: the browser's "back" within one page.
"""

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import streamlit as st


class Address:
    """One page's controls, `names` in all. Make it at the top of each run, `keep` at the end of it."""

    def __init__(self, page: str, names: Sequence[str]) -> None:
        self.saved: dict[str, Any] = st.session_state.setdefault(f"{page} left", {})
        self.keys: dict[str, str] = st.session_state.setdefault(f"{page} keys", {})
        """The key of each name's control as it was drawn last."""
        self.linked = any(name in st.query_params for name in names)
        self.defaults: dict[str, Any] = {}
        self.refused: list[tuple[str, str, Any]] = []
        """Name, what the address or a choice made before said, what is used instead."""

    def begin(self, name: str, default: Any, parse: Callable[[str], Any], allowed: Sequence[Any] | None = None,
              show: Callable[[Any], str] = str) -> str:  # fmt: skip
        """Give the control its first value; `parse` raises ValueError on what it does not know. Returns the key.

        `show` gives the label of each `allowed` value.
        """
        self.defaults[name] = default
        before = self.keys.get(name)
        key = self.keys[name] = _key(name, allowed or (), show)
        if before is not None and before != key and before in st.session_state:
            st.session_state[key] = st.session_state[before]
        elif key not in st.session_state:
            st.session_state[key] = self._first(name, default, parse)
        if allowed is not None and st.session_state[key] not in allowed:
            self.refused.append((name, str(st.session_state[key])[:40], default))
            st.session_state[key] = default
        return key

    def value(self, name: str) -> Any:
        """What is chosen; `name` has begun."""
        return st.session_state[self.keys[name]]

    def _first(self, name: str, default: Any, parse: Callable[[str], Any]) -> Any:
        given = st.query_params.get(name)
        if given is None:
            return default if self.linked else self.saved.get(name, default)
        try:
            return parse(given)
        except ValueError:
            self.refused.append((name, given[:40], default))
            return default

    def keep(self) -> None:
        """Write what is not the default into the address, and remember all of it."""
        for name, default in self.defaults.items():
            value = self.value(name)
            self.saved[name] = value
            shown = None if value == default or value is None else _plain(value)
            if shown is None:
                if name in st.query_params:
                    del st.query_params[name]
            elif st.query_params.get(name) != shown:
                st.query_params[name] = shown


def _key(name: str, options: Sequence[Any], show: Callable[[Any], str]) -> str:
    """The name alone where every label is the option itself."""
    labels = [show(option) for option in options]
    if labels == [str(option) for option in options]:
        return name
    return f"{name} {crc32(chr(0).join(labels).encode()):08x}"


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def one_of(options: Sequence[str]) -> Callable[[str], str]:
    """A name of a list."""

    def parse(given: str) -> str:
        if given not in options:
            raise ValueError(given)
        return given

    return parse


def whole(least: int, most: int) -> Callable[[str], int]:
    """A whole number between two."""

    def parse(given: str) -> int:
        value = int(given)
        if not least <= value <= most:
            raise ValueError(given)
        return value

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """A number between two."""

    def parse(given: str) -> float:
        value = float(given)
        if not least <= value <= most:
            raise ValueError(given)
        return value

    return parse


def flag(given: str) -> bool:
    """true or false."""
    if given not in ("true", "false"):
        raise ValueError(given)
    return given == "true"
