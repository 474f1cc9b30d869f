"""The page's address holds its state: a deep link shows the same page again. What it cannot mean falls back, said so.

A control begins with what the address says; without anything there, with what it was when the page was left. From then
on the address follows: values that are not the default are in it, by their own names, never by their labels.

Not modelled: the browser's "back" within one page.
"""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st


class Address:
    """One page's controls, `names` in all. Make it at the top of each run, `keep` at the end of it."""

    def __init__(self, page: str, names: Sequence[str]) -> None:
        self.saved: dict[str, Any] = st.session_state.setdefault(f"{page} left", {})
        self.linked = any(name in st.query_params for name in names)
        self.defaults: dict[str, Any] = {}
        self.refused: list[tuple[str, str, Any]] = []
        """Name, what the address said, what is used instead."""

    def begin(self, name: str, default: Any, parse: Callable[[str], Any], allowed: Sequence[Any] | None = None) -> str:
        """Give the control its first value; `parse` raises ValueError on what it does not know. Returns the key."""
        self.defaults[name] = default
        if name not in st.session_state:
            st.session_state[name] = self._first(name, default, parse)
        if allowed is not None and st.session_state[name] not in allowed:
            self.refused.append((name, str(st.session_state[name]), default))
            st.session_state[name] = default
        return name

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
            value = st.session_state[name]
            self.saved[name] = value
            shown = None if value == default or value is None else _plain(value)
            if shown is None:
                if name in st.query_params:
                    del st.query_params[name]
            elif st.query_params.get(name) != shown:
                st.query_params[name] = shown


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
