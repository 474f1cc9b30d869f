"""Host threads: busy for stated times, if need be under a lock that one of them may hold (Python's GIL).

Threads that want a lock get it in the order in which they asked. The time of holding is a span of the thread that
holds; the others' waiting is the gap between their spans, and what they wait for is the span that ended last.

Not modelled: host threads that compete for cores; the GIL's switch interval.
"""

from typing import TYPE_CHECKING, Any

from simulator.errors import number
from simulator.events import RELEASE, RESUME
from simulator.verbs import Actor, Lock

if TYPE_CHECKING:
    from simulator.engine import Engine

_FOREVER = float("inf")


def busy(engine: "Engine", actor: Actor, verb: tuple[Any, ...]) -> None:
    """A thread begins to work for `seconds`, now or when it gets the lock. Raises InputError on an impossible time."""
    if not 0.0 <= verb[1] < _FOREVER:
        number(verb[1], f"seconds of {verb[2]!r}")
    lock = verb[4]
    if lock is not None:
        if lock.holder is not None:
            lock.waiting.append((actor, verb))
            actor.waits_for = lock
            return
        lock.holder = actor
    _occupy(engine, actor, verb, actor.cause)


def _occupy(engine: "Engine", actor: Actor, verb: tuple[Any, ...], cause: int | None) -> None:
    """The thread works; the end of that is an event."""
    _, seconds, name, kind, lock, iteration, torch_function = verb
    now = engine.now
    span = engine.record.next_id()
    end = now + seconds
    engine.record.spans.append((span, name, kind, actor.rank, actor.device, actor.resource, now, end, iteration,
                                None, None, None, None, cause, torch_function, 0, None))  # fmt: skip
    actor.cause = span
    actor.result = None
    if lock is None:
        engine.push(end, RESUME, actor, 0)
    else:
        engine.push(end, RELEASE, lock, 0)


def release(engine: "Engine", lock: Lock) -> Actor:
    """The holder is done; the next one in the queue gets the lock. Returns the one that gave it back."""
    holder = lock.holder
    assert holder is not None
    lock.holder = None
    if lock.waiting:
        following, verb = lock.waiting.popleft()
        lock.holder = following
        _occupy(engine, following, verb, holder.cause)
    return holder
