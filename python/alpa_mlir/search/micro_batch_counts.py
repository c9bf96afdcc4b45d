"""The search over numbers of micro-batches: where it starts, and the ladder that it climbs.

What a number is worth is for a function to say; nothing here knows of modules or plans.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Predicted seconds of the best plan with so many micro-batches; infinite if there is none.
Worth = Callable[[int], float]


def nearest(counts: Sequence[int], wanted: float) -> int:
    """The count that differs from `wanted` by the least factor; the smaller one of two.

    Example:
        >>> nearest((1, 2, 8), 4)
        2
    """
    return min(counts, key=lambda n: (max(n, wanted) / min(n, wanted), n))


def climb(counts: Sequence[int], start: int, worth: Worth) -> int | None:
    """The best count that is found from `start` up and down a ladder of counts, as long as steps
    become faster, and then among the best one's neighbours; None if none has a plan.

    Args:
        counts: what may be chosen, rising; `start` among them.

    Example:
        >>> climb((1, 2, 3, 4, 6, 12), 2, lambda n: abs(n - 5))
        4
    """
    ladder = _ladder(counts, start)
    at = ladder.index(start)
    best = start
    # More and smaller micro-batches need less memory, as a rule.
    for count in [*ladder[at + 1 :], *reversed(ladder[:at])]:
        if worth(best) < float("inf"):
            break
        best = count
    if worth(best) == float("inf"):
        return None
    at = ladder.index(best)
    # Both ways: one stage with large micro-batches and many with small ones are two valleys.
    for way in (ladder[at + 1 :], list(reversed(ladder[:at]))):
        for count in way:
            if worth(count) >= worth(best):
                break
            best = count
    # What lies between the best one and its neighbours on the ladder.
    at = counts.index(best)
    return min((best, *counts[max(at - 1, 0) : at], *counts[at + 1 : at + 2]), key=worth)


def _ladder(counts: Sequence[int], start: int) -> list[int]:
    """Counts at least a factor of two apart, `start` among them, rising."""
    ladder = [start]
    for count in counts:
        if count >= 2 * ladder[-1]:
            ladder.append(count)
    for count in reversed(counts):
        if 2 * count <= ladder[0]:
            ladder.insert(0, count)
    return ladder
