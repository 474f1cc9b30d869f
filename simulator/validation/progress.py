"""A bar on a terminal: what is being done, how much of it all is done, and for how long it will go on.

Not modelled: parts that take longer on this machine than their weights say; the time left corrects itself.
"""

import sys
import time
from typing import TextIO

WIDTH = 24


class Bar:
    """Parts have weights, about the seconds that they take. Prints nothing where the stream is no terminal."""

    def __init__(self, total: float, stream: TextIO | None = None) -> None:
        self.total = total
        self.stream = sys.stderr if stream is None else stream
        self.shows = self.stream.isatty()
        self.begin = time.monotonic()
        self.done = 0.0
        self.part = ("", 0.0)
        self.length = 0

    def start(self, name: str, weight: float) -> None:
        """The next part begins; the one before is done."""
        self.done += self.part[1]
        self.part = name, weight
        self.show(0.0)

    def show(self, fraction: float) -> None:
        """So much of this part is done."""
        if not self.shows:
            return
        now = min(1.0, (self.done + fraction * self.part[1]) / self.total)
        elapsed = time.monotonic() - self.begin
        left = f", {round(elapsed * (1 - now) / now)} s left" if now > 0.03 else ""
        filled = round(now * WIDTH)
        self._write(f"[{'#' * filled}{'.' * (WIDTH - filled)}] {now:4.0%}{left}  {self.part[0]}")

    def close(self) -> None:
        """Take the bar away."""
        if self.shows:
            self._write("")
            self.stream.write("\r")
            self.stream.flush()

    def _write(self, text: str) -> None:
        self.stream.write("\r" + text.ljust(self.length))
        self.stream.flush()
        self.length = len(text)
