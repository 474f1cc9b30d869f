"""Sets of time as sorted, disjoint intervals: union, difference, length."""

from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same times, sorted and without overlap; empty intervals go."""
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            if end > merged[-1][1]:
                merged[-1] = merged[-1][0], end
        else:
            merged.append((start, end))
    return merged


def difference(these: Iterable[Interval], those: Iterable[Interval]) -> list[Interval]:
    """The times of `these` that are not in `those`."""
    left: list[Interval] = []
    barred = union(those)
    position = 0
    for start, end in union(these):
        while position < len(barred) and barred[position][1] <= start:
            position += 1
        index = position
        while start < end:
            if index == len(barred) or barred[index][0] >= end:
                left.append((start, end))
                break
            if barred[index][0] > start:
                left.append((start, barred[index][0]))
            start = barred[index][1]
            index += 1
    return left


def length(intervals: Iterable[Interval]) -> float:
    """Seconds in all; overlaps count once."""
    return sum(end - start for start, end in union(intervals))
