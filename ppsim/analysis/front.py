"""The Pareto front of many runs."""

from __future__ import annotations

from collections.abc import Sequence


def pareto_front(pairs: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the pairs that no other pair is at most equal to in both and below in one, by rising first number."""
    front: list[int] = []
    for index in sorted(range(len(pairs)), key=lambda index: pairs[index]):
        if not front or pairs[index][1] < pairs[front[-1]][1]:
            front.append(index)
    return front
