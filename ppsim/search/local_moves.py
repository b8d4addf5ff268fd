"""Local search on lists: one action of a critical chain moves at a time, and lists that are not much longer stay.

Each of some thousand moves replays all lists within the limits and stops when the lists are too long. The loop of the
engines (`schedule/recurrence.py`) has no limits, runs to the end, and stores no order for the pass over the tails.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel
from ppsim.search.list_scheduling import ROUNDING, Work

NO_ROW = -1
NEVER_ENDS = float("inf")


class Replay(NamedTuple):
    """Lists with their times, by row; `row_of` by code x m + microbatch."""

    codes: np.ndarray
    microbatch: np.ndarray
    ends: np.ndarray
    tails: np.ndarray  # minimum seconds from the end of a row to the end of all
    live: np.ndarray  # amount held on the device after the row
    row_of: np.ndarray
    sequence: np.ndarray  # the rows in an order in which each comes after its inputs


class Scratch(NamedTuple):
    """Arrays that one replay fills and the next one overwrites."""

    done: np.ndarray  # actions run, by code
    waiting: np.ndarray  # the device that waits for the next result of a code, or -1
    position: np.ndarray  # the next row of each device
    stack: np.ndarray  # devices that can go on
    chain: np.ndarray  # rows of a critical chain that wait for the row before them on their device


def scratch_of(work: Work) -> tuple[Replay, Replay, Scratch]:
    """Return the arrays for two replays, with zeros."""
    rows, codes, devices = work.list_offsets[-1], len(work.seconds), len(work.limits)
    numbers = [np.int64, np.int64, np.float64, np.float64, np.float64, np.int64, np.int64]
    sizes = [rows] * 5 + [codes * work.m, rows]
    replays = [Replay(*(np.zeros(size, number) for size, number in zip(sizes, numbers, strict=True))) for _ in range(2)]
    scratch = Scratch(*(np.zeros(size, np.int64) for size in (codes, codes, devices, devices + 1, rows)))
    return replays[0], replays[1], scratch


@kernel
def improve_lists(work, now, other, scratch, codes, ends, moves, threshold, seed):
    """Move single actions of critical chains; the lists stay runnable and within the limits.

    Only the rows that a move passes give a first bound: their earliest starts and the longest chains after them, as in
    local search for job shops (Taillard 1994, doi 10.1287/ijoc.6.2.108). A move that could be short enough is replayed.
    The loop tries `moves` moves, with random numbers from `seed`. The lists may get longer than the best ones by the
    acceptance threshold, in seconds, which falls to 0 (threshold accepting: Dueck and Scheuer 1990, doi
    10.1016/0021-9991(90)90201-B). The loop overwrites `codes` and `ends` with the best lists found; lists that do not
    run within the limits stay as they are. The length of lists is the last end, each device's less its `begin`.
    """
    rows = len(codes)
    for row in range(rows):
        now.codes[row] = codes[row]
    current = replay(work, now, scratch, NEVER_ENDS)
    if current == NEVER_ENDS:
        return
    trace_back(work, now)
    links = critical_chain(work, now, scratch, current)
    shortest = store_best(now, codes, ends, current)
    state = seed % 2147483647 + 1
    for turn in range(moves):
        if links == 0:
            break
        longest = max(current, shortest + threshold * (1.0 - (turn + 1) / moves))
        state = state * 48271 % 2147483647
        row = scratch.chain[state % links]
        state = state * 48271 % 2147483647
        distance = 1 + (state // 8) % (16 if state % 8 < 3 else 4)
        state = state * 48271 % 2147483647
        source = row if state % 2 == 0 else row - 1
        target = reach(work, now, source, distance if state % 2 == 1 else -distance)
        if target == source or length_bound(work, now, source, target) > longest:
            continue
        for row in range(rows):
            other.codes[row] = now.codes[row]
        rotate(other, source, target)
        length = replay(work, other, scratch, longest)
        if length > longest:
            continue
        now, other = other, now
        trace_back(work, now)
        current = length
        links = critical_chain(work, now, scratch, current)
        if current < shortest:
            shortest = store_best(now, codes, ends, current)


@kernel
def store_best(now, codes, ends, length):
    """Store the lists as the best ones; return their length."""
    for row in range(len(codes)):
        codes[row], ends[row] = now.codes[row], now.ends[row]
    return length


@kernel
def rotate(lists, source, target):
    """Move the row at `source` to `target`, and the rows between by one."""
    code, step = lists.codes[source], 1 if target > source else -1
    row = source
    while row != target:
        lists.codes[row] = lists.codes[row + step]
        row += step
    lists.codes[target] = code


@kernel
def replay(work, lists, scratch, longest):
    """Fill the ends; return the length, or inf if the lists block, break a limit or are longer than `longest`."""
    devices, m = len(work.limits), work.m
    done, waiting, stack, position = scratch.done, scratch.waiting, scratch.stack, scratch.position
    for code in range(len(work.seconds)):
        done[code], waiting[code] = 0, NO_ROW
    for d in range(devices):
        position[d] = work.list_offsets[d]
        stack[d] = devices - 1 - d
    height, ran, length = devices, 0, 0.0
    while height > 0:
        height -= 1
        d = stack[height]
        row, first, last = position[d], work.list_offsets[d], work.list_offsets[d + 1]
        free = lists.ends[row - 1] if row > first else 0.0
        live = lists.live[row - 1] if row > first else 0.0
        begin, limit = work.begin[d], work.limits[d] + ROUNDING
        while row < last:
            code = lists.codes[row]
            k, source = done[code], work.source[code]
            if source >= 0:
                if done[source] <= k:
                    if work.device[source] == d:
                        return NEVER_ENDS
                    waiting[source] = d
                    break
                free = max(free, lists.ends[lists.row_of[source * m + k]] + work.wait[code])
            free += work.seconds[code]
            live += work.held[code]
            if free - begin > longest or live > limit:
                return NEVER_ENDS
            lists.ends[row], lists.live[row], lists.microbatch[row] = free, live, k
            lists.row_of[code * m + k] = row
            lists.sequence[ran] = row
            done[code] += 1
            ran += 1
            if waiting[code] >= 0:
                stack[height] = waiting[code]
                height += 1
                waiting[code] = NO_ROW
            row += 1
        length = max(length, free - begin)
        position[d] = row
    return length if ran == len(lists.codes) else NEVER_ENDS


@kernel
def tail_of(work, lists, code, k):
    """Return the minimum seconds from the end of an action to the end of all, by the actions that use its result."""
    longest = -work.begin[work.device[code]]
    for needing in (work.following[code], work.weight[code]):
        if needing >= 0:
            row = lists.row_of[needing * work.m + k]
            longest = max(longest, work.wait[needing] + work.seconds[needing] + lists.tails[row])
    return longest


@kernel
def trace_back(work, lists):
    """Fill the tails, from the last row to the first."""
    for i in range(len(lists.codes) - 1, -1, -1):
        row = lists.sequence[i]
        code = lists.codes[row]
        tail = tail_of(work, lists, code, lists.microbatch[row])
        if row + 1 < work.list_offsets[work.device[code] + 1]:
            tail = max(tail, work.seconds[lists.codes[row + 1]] + lists.tails[row + 1])
        lists.tails[row] = tail


@kernel
def critical_chain(work, lists, scratch, length):
    """Write the rows of a critical chain that wait for the row before them on their device; return their number."""
    links, row = 0, 0
    while lists.ends[row] - work.begin[work.device[lists.codes[row]]] < length:
        row += 1
    while row >= 0:
        code = lists.codes[row]
        start, source_code = lists.ends[row] - work.seconds[code], work.source[code]
        source = lists.row_of[source_code * work.m + lists.microbatch[row]] if source_code >= 0 else NO_ROW
        if row > work.list_offsets[work.device[code]] and (
            source < 0 or lists.ends[row - 1] >= lists.ends[source] + work.wait[code]
        ):
            scratch.chain[links] = row
            links += 1
            source = row - 1
        row = source if start > 0.0 else NO_ROW
    return links


@kernel
def reach(work, lists, source, distance):
    """Return the row to which an action may move, at most `distance` away.

    It stays within its list and its limit, and passes neither its input nor an action that uses its result.
    """
    code, row = lists.codes[source], source
    d, change = work.device[code], work.held[code]
    step, limit = 1 if distance > 0 else -1, work.limits[d] + ROUNDING
    barrier = time_barrier(work, lists, code, lists.microbatch[source], step)
    while row != source + distance:
        passed = row + step
        if passed < work.list_offsets[d] or passed >= work.list_offsets[d + 1] or lists.codes[passed] == code:
            break
        if lists.live[passed] - step * change > limit and step * change < 0.0:
            break
        if step < 0:
            if lists.ends[passed] <= barrier:
                break
        elif lists.ends[passed] - work.seconds[lists.codes[passed]] >= barrier:
            break
        row = passed
    return row


@kernel
def time_barrier(work, lists, code, k, step):
    """Return the time after which passed rows must end (step -1), or before which they must start (step 1).

    It is the start of the action's input, or the first end of an action that uses its result. So no passed row comes
    before that input or after that action in a chain, and the moved lists do not block. On the same device the action
    itself must not be passed: its end, or start, is the barrier.
    """
    if step < 0:
        source = work.source[code]
        if source < 0:
            return -1.0
        end = lists.ends[lists.row_of[source * work.m + k]]
        return end if work.device[source] == work.device[code] else end - work.seconds[source]
    first = NEVER_ENDS
    for needing in (work.following[code], work.weight[code]):
        if needing >= 0:
            end = lists.ends[lists.row_of[needing * work.m + k]]
            first = min(first, end - work.seconds[needing] if work.device[needing] == work.device[code] else end)
    return first


@kernel
def length_bound(work, lists, source, target):
    """Return a lower bound on the length after a move, by the rows from source to target alone."""
    low, high = min(source, target), max(source, target)
    d = work.device[lists.codes[source]]
    free = lists.ends[low - 1] if low > work.list_offsets[d] else 0.0
    bound = 0.0
    for position in range(low, high + 1):
        row = source
        if position != target:
            row = position + 1 if source < target else position - 1
        code, k = lists.codes[row], lists.microbatch[row]
        if work.source[code] >= 0:
            free = max(free, lists.ends[lists.row_of[work.source[code] * work.m + k]] + work.wait[code])
        free += work.seconds[code]
        bound = max(bound, free + tail_of(work, lists, code, k))
    if high + 1 < work.list_offsets[d + 1]:
        bound = max(bound, free + work.seconds[lists.codes[high + 1]] + lists.tails[high + 1])
    return bound
