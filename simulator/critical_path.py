"""What the step waits for: from the end back along causes to time 0, without a gap.

Every span and transfer names its cause, the last of all that it waited for, which ended when it began. Consecutive
transfers of one collective are one piece of the path.

Not modelled: near-critical paths; what a shorter piece would save is a question for another simulation.
"""

from typing import NamedTuple

from simulator.trace import COMMUNICATION, COMPUTE, Span, Trace, Transfer


class Piece(NamedTuple):
    """A stretch of the critical path."""

    device: int
    resource: str
    name: str
    kind: str
    start_s: float
    end_s: float


def critical_path(trace: Trace) -> list[Piece]:
    """Pieces in time order. Measured traces without causes give what is known: the last span alone."""
    ended = [record for record in trace.by_id.values() if record.end_s is not None]
    if not ended:
        return []
    last = max(ended, key=lambda found: (found.end_s, isinstance(found, Span), found.kind == "optimizer", found.id))
    return walk_back(trace, last.id, 0.0)


def walk_back(trace: Trace, from_id: int | None, until_s: float) -> list[Piece]:
    """The chain of causes that ends with a record, back to a time."""
    by_id = trace.by_id
    pieces: list[Piece] = []
    number = from_id
    while number is not None:
        record = by_id[number]
        piece = _piece(record, trace)
        if piece.end_s <= until_s:
            break
        if piece.end_s > piece.start_s:
            if pieces and isinstance(record, Transfer) and _same(piece, pieces[-1]):
                pieces[-1] = pieces[-1]._replace(start_s=piece.start_s)
            else:
                pieces.append(piece)
        number = record.cause
    pieces.reverse()
    return pieces


def _same(piece: Piece, later: Piece) -> bool:
    return piece.name == later.name and later.resource == "link" and piece.kind == later.kind


def _piece(record: Span | Transfer, trace: Trace) -> Piece:
    if isinstance(record, Span):
        end = trace.end_s if record.end_s is None else record.end_s
        return Piece(record.device, record.resource, record.name, record.kind, record.start_s, end)
    owner = trace.by_id.get(record.span) if record.span is not None else None
    name = owner.name if isinstance(owner, Span) else record.kind
    device = record.target if record.target >= 0 else record.source
    end = trace.end_s if record.end_s is None else record.end_s
    return Piece(device, "link", name, record.kind, record.issue_s, end)


def cause_of(kind: str) -> str:
    """compute, communication or host: what a kind of work keeps busy."""
    if kind in COMPUTE:
        return "compute"
    return "communication" if kind in COMMUNICATION else "host"


def seconds_by_cause(pieces: list[Piece]) -> dict[str, float]:
    """How much of the path is compute, communication and host."""
    total = {"compute": 0.0, "communication": 0.0, "host": 0.0}
    for piece in pieces:
        total[cause_of(piece.kind)] += piece.end_s - piece.start_s
    return total
