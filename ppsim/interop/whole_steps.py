"""Leaves out a step that had begun before the recording."""

from __future__ import annotations

import re

from ppsim.interop.ranges import Span

FIRST_STAGE, FORWARD, PREPARES = map(re.compile, (r"\(?0[FBIW]\d", r"\(?\d+F\d", r"\d+(RECV_F|UNSHARD)"))
COMPUTED = re.compile(r"(\d+)([FBIW])(\d+)")


def whole_steps(ranks: list[dict[str, list[Span]]], shifts: list[float]) -> list[dict[str, list[Span]]]:
    """The ranges of named actions without those of a first step that had begun before the recording.

    On the rank that runs stage 0 such a step shows backwards whose forwards are missing; it ends where, after these,
    nothing is open. The next step begins on each rank with its first forward after that.

    Parameters
    ----------
    ranks : list
        For each rank its actions with the (start, end) of each step.
    shifts : list of float
        Seconds to add to each rank's times.
    """
    in_time = [sorted((*span, action) for action, spans in named.items() for span in spans) for named in ranks]
    first = next((number for number, named in enumerate(ranks) if any(FIRST_STAGE.match(one) for one in named)), None)
    over = None if first is None else _end_of_begun_step(in_time[first])
    if first is None or over is None:
        return ranks
    begins = [_begin_of_step(each, over + shifts[first] - shift) for each, shift in zip(in_time, shifts, strict=True)]
    whole: list[dict[str, list[Span]]] = []
    for each, begin in zip(in_time, begins, strict=True):
        whole.append({})
        for start, end, action in each[begin:]:
            whole[-1].setdefault(action, []).append((start, end))
    return whole


def _begin_of_step(in_time: list[tuple[float, float, str]], earliest: float) -> int:
    """Position of the first forward after a time, or of what prepares it."""
    forwards = (
        number for number, (start, _, action) in enumerate(in_time) if start >= earliest and FORWARD.match(action)
    )
    begin = next(forwards, len(in_time))
    while begin > 0 and PREPARES.match(in_time[begin - 1][2]):
        begin -= 1
    return begin


def _end_of_begun_step(in_time: list[tuple[float, float, str]]) -> float | None:
    """When the last action of a step ends whose forwards are missing; None where all backwards follow theirs."""
    computed = [(end, parts) for _, end, action in in_time if (parts := COMPUTED.findall(action))]
    seen: set[tuple[str, str]] = set()
    orphans = -1
    for number, (_, parts) in enumerate(computed):
        for stage, kind, microbatch in parts:
            if kind == "F":
                seen.add((stage, microbatch))
            elif (stage, microbatch) not in seen:
                orphans = number
    opened: set[tuple[str, str]] = set()
    for number, (_, parts) in enumerate(computed if orphans >= 0 else []):
        for stage, kind, microbatch in parts:
            if kind == "F" and number > orphans and not opened:
                return computed[number - 1][0]
            if kind == "F":
                opened.add((stage, microbatch))
            elif kind != "I":  # its W follows
                opened.discard((stage, microbatch))
    return None
