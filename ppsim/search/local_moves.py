"""Local search on lists: one action of a critical chain moves at a time, and what is not much longer stays."""

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
    tails: np.ndarray  # least seconds from the end of a row to the end of all
    live: np.ndarray  # held on the device once the row has started (F) or ended
    row_of: np.ndarray
    sequence: np.ndarray  # the rows in an order in which each stands after all that it waits for


class Scratch(NamedTuple):
    done: np.ndarray  # by code
    waiting: np.ndarray  # the device that waits for the next result of a code, or -1
    position: np.ndarray  # by device
    stack: np.ndarray
    chain: np.ndarray  # rows of a critical chain that follow the row before them on their device


def scratch_of(work: Work) -> tuple[Replay, Replay, Scratch]:
    """Room for the search, not filled."""
    rows, cells, devices = work.list_offsets[-1], 3 * len(work.local_stage), len(work.limits)
    numbers = [np.int64, np.int64, np.float64, np.float64, np.float64, np.int64, np.int64]
    sizes = [rows] * 5 + [cells * work.m, rows]
    replays = [Replay(*(np.zeros(size, number) for size, number in zip(sizes, numbers, strict=True))) for _ in range(2)]
    scratch = Scratch(*(np.zeros(size, np.int64) for size in (cells, cells, devices, devices + 1, rows)))
    return replays[0], replays[1], scratch


@kernel
def improve_lists(work, now, other, scratch, codes, ends, rounds, heat, seed):
    """Move single actions of critical chains; the lists stay runnable and within the limits.

    A move is judged first by the rows that it passes alone: their earliest starts and the longest ways behind them, as
    in local search for job shops (Taillard 1994, doi 10.1287/ijoc.6.2.108); what promises to be short enough is
    replayed. `rounds` moves are tried, with random numbers of `seed`; a list may get longer by `heat` seconds at first,
    which falls to 0. `codes` are lists that run within the limits, and in the end the best ones found; `ends` become
    theirs. Returns the last end, seconds.
    """
    rows = len(codes)
    for row in range(rows):
        now.codes[row] = codes[row]
    current = replay(work, now, scratch, NEVER_ENDS)
    if current == NEVER_ENDS:
        return current
    trace_back(work, now)
    links = critical_chain(work, now, scratch, current)
    shortest = keep(now, codes, ends, current)
    state = seed % 2147483647 + 1
    for turn in range(rounds):
        if links == 0:
            break
        bar = max(current, shortest + heat * (1.0 - (turn + 1) / rounds))
        state = state * 48271 % 2147483647
        row = scratch.chain[state % links]
        state = state * 48271 % 2147483647
        distance = 1 + (state // 8) % (16 if state % 8 < 3 else 4)
        state = state * 48271 % 2147483647
        source = row if state % 2 == 0 else row - 1
        target = reach(work, now, source, distance if state % 2 == 1 else -distance)
        if target == source or promised(work, now, source, target) > bar:
            continue
        copy_lists(now, other)
        rotate(other, source, target)
        made = replay(work, other, scratch, bar)
        if made > bar:
            continue
        now, other = other, now
        trace_back(work, now)
        current = made
        links = critical_chain(work, now, scratch, current)
        if current < shortest:
            shortest = keep(now, codes, ends, current)
    return shortest


@kernel
def replay_lists(work, now, scratch, codes, ends, tails):
    """Work out `ends` and `tails` of lists of `codes`; the makespan, inf where they do not run or break a limit."""
    for row in range(len(codes)):
        now.codes[row] = codes[row]
    makespan = replay(work, now, scratch, NEVER_ENDS)
    if makespan < NEVER_ENDS:
        trace_back(work, now)
        for row in range(len(codes)):
            ends[row], tails[row] = now.ends[row], now.tails[row]
    return makespan


@kernel
def keep(now, codes, ends, makespan):
    """Note the lists as the best ones."""
    for row in range(len(codes)):
        codes[row], ends[row] = now.codes[row], now.ends[row]
    return makespan


@kernel
def copy_lists(now, other):
    """The codes of one into the other."""
    for row in range(len(now.codes)):
        other.codes[row] = now.codes[row]


@kernel
def rotate(lists, source, target):
    """Move the row at `source` to `target`; those between make room."""
    code, step = lists.codes[source], 1 if target > source else -1
    row = source
    while row != target:
        lists.codes[row] = lists.codes[row + step]
        row += step
    lists.codes[target] = code


@kernel
def change(work, code):
    """What an action adds to what its device holds."""
    stages = len(work.local_stage)
    kind, s = code // stages, code % stages
    if kind == 0:
        return work.share[s]
    if kind == 2:
        return -work.share[s] * work.kept[s]
    return -work.share[s] * (1.0 - work.kept[s]) if work.split else -work.share[s]


@kernel
def needed(work, code):
    """The code whose same microbatch an action waits for, or -1."""
    stages = len(work.local_stage)
    kind, s = code // stages, code % stages
    if kind == 0:
        return code - 1 if s > 0 else NO_ROW
    if kind == 1:
        return s if s == stages - 1 else code + 1
    return code - stages


@kernel
def wait_for(work, code):
    """Seconds from the end of what an action waits for to its arrival."""
    stages = len(work.local_stage)
    kind, s = code // stages, code % stages
    if kind == 0 and s > 0:
        return work.waits[s - 1]
    return work.waits[code + 1] if kind == 1 and s < stages - 1 else 0.0


@kernel
def replay(work, lists, scratch, bar):
    """Work out the ends; the makespan, or inf where they do not run, break a limit or end after `bar`."""
    devices, m = len(work.limits), work.m
    stages = len(work.local_stage)
    done, waiting, stack, position = scratch.done, scratch.waiting, scratch.stack, scratch.position
    for code in range(3 * stages):
        done[code], waiting[code] = 0, NO_ROW
    for d in range(devices):
        position[d] = work.list_offsets[d]
        stack[d] = devices - 1 - d
    height, ran, makespan = devices, 0, 0.0
    while height > 0:
        height -= 1
        d = stack[height]
        row, first, last = position[d], work.list_offsets[d], work.list_offsets[d + 1]
        free = lists.ends[row - 1] if row > first else 0.0
        live = lists.live[row - 1] if row > first else 0.0
        while row < last:
            code = lists.codes[row]
            k, need = done[code], needed(work, code)
            if need >= 0:
                if done[need] <= k:
                    if work.device_of[need % stages] == d:
                        return NEVER_ENDS
                    waiting[need] = d
                    break
                free = max(free, lists.ends[lists.row_of[need * m + k]] + wait_for(work, code))
            free += work.lengths[code]
            live += change(work, code)
            if free > bar or live > work.limits[d] + ROUNDING:
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
        makespan = max(makespan, free)
        position[d] = row
    return makespan if ran == len(lists.codes) else NEVER_ENDS


@kernel
def way_behind(work, lists, code, k):
    """Least seconds from the end of an action to the end of all by what other devices' actions wait for it."""
    stages = len(work.local_stage)
    kind, s = code // stages, code % stages
    longest = 0.0
    if kind == 0:
        after = code + 1 if s < stages - 1 else stages + s
        longest = way_over(work, lists, after, k)
    elif kind == 1:
        if s > 0:
            longest = way_over(work, lists, code - 1, k)
        if work.split:
            longest = max(longest, way_over(work, lists, code + stages, k))
    return longest


@kernel
def way_over(work, lists, after, k):
    """Least seconds from the end of what an action waits for, through it, to the end of all."""
    return wait_for(work, after) + work.lengths[after] + lists.tails[lists.row_of[after * work.m + k]]


@kernel
def trace_back(work, lists):
    """Work out the tails."""
    stages = len(work.local_stage)
    for i in range(len(lists.codes) - 1, -1, -1):
        row = lists.sequence[i]
        code = lists.codes[row]
        tail = way_behind(work, lists, code, lists.microbatch[row])
        if row + 1 < work.list_offsets[work.device_of[code % stages] + 1]:
            tail = max(tail, work.lengths[lists.codes[row + 1]] + lists.tails[row + 1])
        lists.tails[row] = tail


@kernel
def critical_chain(work, lists, scratch, makespan):
    """Write the rows of one longest chain that follow the row before them on their device; their number."""
    stages, links = len(work.local_stage), 0
    row = 0
    while lists.ends[row] < makespan:
        row += 1
    while row >= 0:
        code = lists.codes[row]
        begin, need = lists.ends[row] - work.lengths[code], needed(work, code)
        source = lists.row_of[need * work.m + lists.microbatch[row]] if need >= 0 else NO_ROW
        if row > work.list_offsets[work.device_of[code % stages]] and (
            source < 0 or lists.ends[row - 1] >= lists.ends[source] + wait_for(work, code)
        ):
            scratch.chain[links] = row
            links += 1
            source = row - 1
        row = source if begin > 0.0 else NO_ROW
    return links


@kernel
def reach(work, lists, source, distance):
    """Where the row may move, at most so far: within its list, its limit, and not past what it waits for or feeds."""
    code, k, stages = lists.codes[source], lists.microbatch[source], len(work.local_stage)
    d = work.device_of[code % stages]
    step, extra, row = 1 if distance > 0 else -1, change(work, code), source
    room = work.limits[d] + ROUNDING
    bound = bound_of(work, lists, code, k, step)
    while row != source + distance:
        passed = row + step
        if passed < work.list_offsets[d] or passed >= work.list_offsets[d + 1] or lists.codes[passed] == code:
            break
        if extra > 0.0 and step < 0 and lists.live[passed] + extra > room:
            break
        if extra < 0.0 and step > 0 and lists.live[passed] - extra > room:
            break
        other = lists.codes[passed]
        if step < 0:
            if lists.ends[passed] <= bound:
                break
        elif lists.ends[passed] - work.lengths[other] >= bound:
            break
        row = passed
    return row


@kernel
def bound_of(work, lists, code, k, step):
    """Start of what an action waits for, or least end of what waits for it: no row beyond leads to it or from it."""
    stages, m = len(work.local_stage), work.m
    if step < 0:
        need = needed(work, code)
        if need < 0:
            return -1.0
        row = lists.row_of[need * m + k]
        return (
            lists.ends[row] - work.lengths[need]
            if work.device_of[need % stages] != work.device_of[code % stages]
            else lists.ends[row]
        )
    kind, s = code // stages, code % stages
    least = NEVER_ENDS
    if kind == 0:
        after = code + 1 if s < stages - 1 else stages + s
        least = first_end(work, lists, code, after, k)
    elif kind == 1:
        if s > 0:
            least = first_end(work, lists, code, code - 1, k)
        if work.split:
            least = min(least, first_end(work, lists, code, code + stages, k))
    return least


@kernel
def first_end(work, lists, code, after, k):
    """End of an action that waits for `code`, or its start on the same device."""
    stages = len(work.local_stage)
    row = lists.row_of[after * work.m + k]
    same = work.device_of[after % stages] == work.device_of[code % stages]
    return lists.ends[row] - work.lengths[after] if same else lists.ends[row]


@kernel
def promised(work, lists, source, target):
    """Least makespan after a move, by the rows from source to target alone."""
    low, high = min(source, target), max(source, target)
    stages = len(work.local_stage)
    d = work.device_of[lists.codes[source] % stages]
    free = lists.ends[low - 1] if low > work.list_offsets[d] else 0.0
    least = 0.0
    for place in range(low, high + 1):
        row = moved(place, source, target)
        code = lists.codes[row]
        need = needed(work, code)
        if need >= 0:
            free = max(free, lists.ends[lists.row_of[need * work.m + lists.microbatch[row]]] + wait_for(work, code))
        free += work.lengths[code]
        least = max(least, free + way_behind(work, lists, code, lists.microbatch[row]))
    if high + 1 < work.list_offsets[d + 1]:
        least = max(least, free + work.lengths[lists.codes[high + 1]] + lists.tails[high + 1])
    return least


@kernel
def moved(place, source, target):
    """The row that stands at `place` once the one at `source` has moved to `target`."""
    if place == target:
        return source
    return place + 1 if source < target else place - 1
