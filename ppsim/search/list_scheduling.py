"""List scheduling: a free device starts the best ready action, within a limit on what each device holds.

It makes the lists and their times together, action by action in the order of time. The loop of the engines
(`schedule/recurrence.py`) cannot do that: it runs lists that are given. A search calls it hundreds of times.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel

OTHER, FORWARD, BACKWARD, DUE = range(4)  # values of `Rules.prefer`
NEVER, FIRST, ALWAYS = range(3)  # values of `Rules.hold`
IDLE = -1  # next to the kinds 0 F, 1 I or B, 2 W: the device starts nothing yet
NONE = -1  # no stage, or no code
ROUNDING = 1e-9  # sums of activations may pass a limit by this much; a fraction for times
NOT_YET = float("inf")


class Work(NamedTuple):
    """Actions to schedule, as the compiled loops read them; a code is kind x stages + stage, kind 0 F, 1 I or B, 2 W.

    Attributes
    ----------
    m, split : int, bool
        Microbatches; True if the backward is I and W, False if it is B.
    first_local, local_stage : int (devices + 1,), (stages,)
        Device d runs the stages `local_stage[first_local[d]:first_local[d + 1]]`.
    device : int (3 x stages,)
        Device of each code.
    list_offsets : int (devices + 1,)
        First row of each device's list.
    seconds : float (3 x stages,)
        Length of an action of each code.
    source, wait : int, float (3 x stages,)
        Code whose same microbatch an action needs (-1: none), and the seconds of the transfer between both.
    following, weight : int (3 x stages,)
        Codes that need an action: the F, I or B of the next or the same stage, and the W of an I (-1: none).
    held : float (3 x stages,)
        What an action adds to what its device holds, less what it frees.
    limits : float (devices,)
        What each device may hold.
    begin : float (devices,)
        Seconds from which the time of a device counts: 0 for the makespan, its first possible start for the span.
    """

    m: int
    split: bool
    first_local: np.ndarray
    local_stage: np.ndarray
    device: np.ndarray
    list_offsets: np.ndarray
    seconds: np.ndarray
    source: np.ndarray
    wait: np.ndarray
    following: np.ndarray
    weight: np.ndarray
    held: np.ndarray
    limits: np.ndarray
    begin: np.ndarray


class Rules(NamedTuple):
    """The choices of `schedule_greedily`.

    Attributes
    ----------
    prefer : int
        Kind that starts if both an F and a backward could: the kind that did not run last (OTHER), a fixed one, or the
        action that is due first (DUE).
    hold : int
        When an F gives way to a backward that would arrive while the F runs: NEVER, before the device's FIRST
        backward, or ALWAYS.
    short_gaps, frees_memory : int
        1 if a W may start in a gap shorter than it, and before a backward if an F waits for memory.
    patience : float
        With DUE: the fraction of its length for which a ready action waits for one that is due before it.
    """

    prefer: int = OTHER
    hold: int = NEVER
    short_gaps: int = 1
    frees_memory: int = 1
    patience: float = 0.0


class State(NamedTuple):
    """Progress of all actions: `done` by code, `ends` by code x m + microbatch, the others by device."""

    done: np.ndarray
    ends: np.ndarray
    free_at: np.ndarray
    live: np.ndarray
    row: np.ndarray  # the next row to write
    last_kind: np.ndarray  # of F and backward, the kind that ran last
    wakes: np.ndarray  # a tree of the time at which each device looks again: leaf `leaves + d`, each node the earlier


def initial_state(work: Work) -> State:
    """Return the state in which nothing has run."""
    codes, devices = len(work.seconds), len(work.limits)
    leaves = 1 << max(devices - 1, 0).bit_length()
    return State(
        np.zeros(codes, np.int64), np.zeros(codes * work.m), np.zeros(devices), np.zeros(devices),
        np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.full(2 * leaves, NOT_YET),
    )  # fmt: skip


@kernel
def schedule_greedily(work, rules, due, most_ahead, state, codes, starts):
    """Fill the lists: each free device starts the action that the rules prefer among those it could start now.

    An F starts only if every unfinished microbatch of its device, one after the other, the oldest first, would still
    find memory for the F that it lacks there (the banker's rule). So no limit that holds one microbatch deadlocks.

    `due` (3 x stages x m,) ranks actions by code and microbatch, the lowest first: with DUE all of them, else the
    stages of a device. `most_ahead` (stages,) is how many F a stage may run ahead of its backwards. The loop writes
    the code and the start, in seconds, of each row. It returns the last end, or inf if something could not run.
    """
    devices, leaves, row = len(work.limits), len(state.wakes) // 2, state.row
    for d in range(devices):
        row[d] = work.list_offsets[d]
    longest = 0.0
    for seconds in work.seconds:
        longest = max(longest, seconds)
    wake(state.wakes, leaves, work.device[0], 0.0)
    makespan = 0.0
    while state.wakes[1] < NOT_YET:
        d, now = first_to_wake(state.wakes, leaves), state.wakes[1]
        kind, s, until = next_action(work, rules, state, due, most_ahead, d, now, ROUNDING * longest)
        if kind != IDLE:
            code = kind * len(work.local_stage) + s
            until = run_action(work, state, leaves, d, code, kind, now)
            codes[row[d]], starts[row[d]] = code, now
            row[d] += 1
            makespan = max(makespan, until)
        wake(state.wakes, leaves, d, until)
    for d in range(devices):
        if row[d] < work.list_offsets[d + 1]:
            return NOT_YET
    return makespan


@kernel
def wake(wakes, leaves, d, time):
    """Let device d look again at `time`."""
    node = leaves + d
    wakes[node] = time
    while node > 1:
        node //= 2
        wakes[node] = min(wakes[2 * node], wakes[2 * node + 1])


@kernel
def first_to_wake(wakes, leaves):
    """Return the device that looks next; the lowest of equals."""
    node = 1
    while node < leaves:
        node = 2 * node if wakes[2 * node] <= wakes[2 * node + 1] else 2 * node + 1
    return node - leaves


@kernel
def next_action(work, rules, state, due, most_ahead, d, now, rounding):
    """Return (kind, stage, until): what device d starts now, or IDLE, and until when."""
    stages = len(work.local_stage)
    forward, forward_due, forward_later, blocked = next_forward(work, state, due, most_ahead, d, now)
    backward, backward_due, backward_later = next_backward(work, state, due, d, now)
    weight, weight_due = next_weight(work, rules, state, due, d)
    kind, until, gap_is_known = IDLE, min(forward_later, backward_later), True
    if forward != NONE or backward != NONE:
        is_forward = backward == NONE or (
            forward != NONE and goes_forward(rules, state.last_kind[d], forward_due, backward_due)
        )
        kind, s = (0, forward) if is_forward else (1, backward)
        seconds, its_due = work.seconds[kind * stages + s], forward_due if is_forward else backward_due
        if rules.prefer == DUE:
            latest = now + rules.patience * seconds
            earlier = first_arrival_due(work, state, due, d, now, its_due) if until < latest else until
            if earlier < latest:
                kind, until, gap_is_known = IDLE, earlier, False
            elif weight != NONE and weight_due < its_due:
                kind = 2
        elif (
            is_forward
            and backward == NONE
            and (rules.hold == ALWAYS or (rules.hold == FIRST and state.done[stages + s] == 0))
            and backward_later < now + seconds - rounding
        ):
            kind, until, gap_is_known = IDLE, backward_later, False
    if weight != NONE and kind != 2:
        frees_memory = blocked and forward == NONE and rules.frees_memory != 0
        fits_gap = now + work.seconds[2 * stages + weight] <= until + rounding
        if frees_memory or (kind == IDLE and (fits_gap or (gap_is_known and rules.short_gaps != 0))):
            kind = 2
    return kind, weight if kind == 2 else (forward if kind == 0 else backward), until


@kernel
def goes_forward(rules, last_kind, forward_due, backward_due):
    """Return if the F starts where a backward could start as well."""
    if rules.prefer == OTHER:
        return last_kind == 1
    return rules.prefer == FORWARD or (rules.prefer == DUE and forward_due < backward_due)


@kernel
def has_source(work, state, code):
    """Return if what the next action of a code needs has started, and the code has microbatches left."""
    k, source = state.done[code], work.source[code]
    return k < work.m and (source < 0 or state.done[source] > k)


@kernel
def arrival(work, state, code):
    """Return when what the next action of a code needs is there."""
    source = work.source[code]
    return state.ends[source * work.m + state.done[code]] + work.wait[code] if source >= 0 else 0.0


@kernel
def next_forward(work, state, due, most_ahead, d, now):
    """Return (stage, due, later, blocked): the F of device d that may start and is due first, else NONE.

    `later` is when the next one arrives; `blocked` is true if one is there that must not start.
    """
    stages = len(work.local_stage)
    found, found_due, later, blocked = NONE, NOT_YET, NOT_YET, False
    for i in range(work.first_local[d], work.first_local[d + 1]):
        s = work.local_stage[i]
        if not has_source(work, state, s):
            continue
        k, there = state.done[s], arrival(work, state, s)
        if k - state.done[stages + s] >= most_ahead[s] or not finds_memory(work, state, d, s, k):
            blocked = blocked or there <= now
        elif there > now:
            later = min(later, there)
        elif found == NONE or due[s * work.m + k] < found_due:
            found, found_due = s, due[s * work.m + k]
    return found, found_due, later, blocked


@kernel
def finds_memory(work, state, d, s, k):
    """Return if every unfinished microbatch of device d, oldest first, could still end after F of stage s and k."""
    free = work.limits[d] + ROUNDING - state.live[d] - work.held[s]
    if free < 0.0:
        return False
    stages, begin, end = len(work.local_stage), work.first_local[d], work.first_local[d + 1]
    oldest, whole = work.m, 0.0
    for i in range(begin, end):
        oldest = min(oldest, state.done[(2 if work.split else 1) * stages + work.local_stage[i]])
        whole += work.held[work.local_stage[i]]
    j = oldest
    while j <= k and free < whole and k > oldest:
        lacks, frees = 0.0, 0.0
        for i in range(begin, end):
            t = work.local_stage[i]
            if state.done[t] + (1 if t == s else 0) <= j:
                lacks += work.held[t]
            elif state.done[stages + t] <= j:
                frees += work.held[t]
            elif state.done[2 * stages + t] <= j:
                frees -= work.held[2 * stages + t]
        if lacks > free:
            return False
        free += frees
        j += 1
    return True


@kernel
def next_backward(work, state, due, d, now):
    """Return (stage, due, later): the I or B of device d that is there and due first, else NONE.

    `later` is when the next one arrives.
    """
    stages = len(work.local_stage)
    found, found_due, later = NONE, NOT_YET, NOT_YET
    for i in range(work.first_local[d], work.first_local[d + 1]):
        code = stages + work.local_stage[i]
        if not has_source(work, state, code):
            continue
        there, its_due = arrival(work, state, code), due[code * work.m + state.done[code]]
        if there > now:
            later = min(later, there)
        elif found == NONE or its_due < found_due:
            found, found_due = work.local_stage[i], its_due
    return found, found_due, later


@kernel
def first_arrival_due(work, state, due, d, now, its_due):
    """Return when the first backward arrives at device d that is due before `its_due`."""
    earlier = NOT_YET
    for i in range(work.first_local[d], work.first_local[d + 1]):
        code = len(work.local_stage) + work.local_stage[i]
        if has_source(work, state, code) and due[code * work.m + state.done[code]] < its_due:
            there = arrival(work, state, code)
            if there > now:
                earlier = min(earlier, there)
    return earlier


@kernel
def next_weight(work, rules, state, due, d):
    """Return (stage, due): the W of device d that is due first, or whose I ran first; else NONE."""
    found, found_due = NONE, NOT_YET
    if not work.split:
        return found, found_due
    for i in range(work.first_local[d], work.first_local[d + 1]):
        code = 2 * len(work.local_stage) + work.local_stage[i]
        if has_source(work, state, code):
            its_due = due[code * work.m + state.done[code]] if rules.prefer == DUE else arrival(work, state, code)
            if found == NONE or its_due < found_due:
                found, found_due = work.local_stage[i], its_due
    return found, found_due


@kernel
def run_action(work, state, leaves, d, code, kind, now):
    """Run the next action of a code, wake the device that needs its result, and return its end."""
    k, end = state.done[code], now + work.seconds[code]
    state.ends[code * work.m + k] = end
    state.done[code] += 1
    state.free_at[d] = end
    state.live[d] += work.held[code]
    if kind != 2:
        state.last_kind[d] = kind
    following = work.following[code]
    if following >= 0:
        receiver, there = work.device[following], end + work.wait[following]
        if receiver != d and state.free_at[receiver] <= there and there < state.wakes[leaves + receiver]:
            wake(state.wakes, leaves, receiver, there)
    return end
