"""The calendar's entries: what will happen when.

An event is `(time, serial, code, what it is about, version)`. Events of equal time are handled in the order of their
making, which is what the serial number is for; so runs repeat exactly. START is for flows, END and COMPUTED are void
when the version of their flow or work has changed since; a void event does not move time.

Not modelled: anything; these are names.
"""

from typing import Any

Event = tuple[float, int, int, Any, int]

START, END, RESUME, COMPUTED, RELEASE = range(5)
"""A flow begins on its links; a flow has ended; a program goes on; a piece of work is done; a lock is given back."""
