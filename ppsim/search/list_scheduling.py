"""List scheduling of F, I (or B) and W of any stages on any devices under a limit on what each device holds."""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel

OTHER, FORWARD, BACKWARD, DUE = range(4)  # what runs where both an F and a backward could start
NEVER, FIRST, ALWAYS = range(3)  # when an F gives way to a backward that would arrive while it runs
WAIT = -1  # beside the kinds 0 F, 1 I or B, 2 W: the device does nothing yet
NONE = -1  # no stage
ROUNDING = 1e-9  # shares that sum up to a limit may differ from it by this much, times by this part of the longest
NEVER_AGAIN = float("inf")


class Work(NamedTuple):
    """What is to be scheduled, as the compiled loops read it.

    Attributes
    ----------
    m, split : int, bool
        Microbatches; whether the backward is I and W, or one B.
    first_local, local_stage : int (devices + 1,), (stages,)
        Device d runs the stages `local_stage[first_local[d]:first_local[d + 1]]`.
    device_of : int (stages,)
        Device of each stage.
    list_offsets : int (devices + 1,)
        Where each device's list begins.
    lengths : float (3 x stages,)
        Seconds of F, of I or B, and of W.
    waits : float (2 x stages,)
        Seconds from the end of F to its arrival at the next stage, and of I or B at the one before.
    share, kept, limits : float (stages,), (stages,), (devices,)
        Activations that F adds, the part of them that lives until W, and what a device may hold.
    """

    m: int
    split: bool
    first_local: np.ndarray
    local_stage: np.ndarray
    device_of: np.ndarray
    list_offsets: np.ndarray
    lengths: np.ndarray
    waits: np.ndarray
    share: np.ndarray
    kept: np.ndarray
    limits: np.ndarray


class Rules(NamedTuple):
    """How `schedule_greedily` chooses.

    Attributes
    ----------
    prefer : int
        What runs where both an F and a backward could start: OTHER is the kind that did not run last.
    hold : int
        When an F gives way to a backward that would arrive while it runs.
    short_gaps, make_room : int
        Whether a W goes into a gap shorter than it, and before a backward when an F waits for memory.
    patience : float
        Where `prefer` is DUE: the part of its length for which a ready action waits for one due before it.
    """

    prefer: int = OTHER
    hold: int = NEVER
    short_gaps: int = 1
    make_room: int = 1
    patience: float = 0.0


class State(NamedTuple):
    """How far everything is: by kind x stages + stage, by that x m + microbatch, and by device."""

    done: np.ndarray
    arrival: np.ndarray  # of the input of F, of I or B; the end of the I that W follows
    free: np.ndarray
    live: np.ndarray
    position: np.ndarray  # row that is written next
    last: np.ndarray  # kind that ran last, of F and backward
    wakes: np.ndarray  # a tree of the time at which each device looks again: leaf `leaves + d`, each node the earlier


def beginning(work: Work) -> State:
    """The state in which nothing has run."""
    cells, devices = 3 * len(work.local_stage), len(work.limits)
    leaves = 1 << max(devices - 1, 0).bit_length()
    return State(
        np.zeros(cells, np.int64), np.zeros(cells * work.m), np.zeros(devices), np.zeros(devices),
        np.zeros(devices, np.int64), np.zeros(devices, np.int64), np.full(2 * leaves, NEVER_AGAIN),
    )  # fmt: skip


@kernel
def schedule_greedily(work, rules, due, most_ahead, state, codes, starts):
    """Fill the lists: whoever is free takes what the rules like best among what it could start now.

    An F starts only where every unfinished microbatch of its device, one after the other, the oldest first, still finds
    room for the F that it lacks there (the banker's rule): no limit that holds one microbatch ever locks.

    `due` (3 x stages x m,) says by kind, stage and microbatch what goes first where `prefer` is DUE and among stages:
    the lower, the earlier; `most_ahead` (stages,) how many F a stage may run ahead of its backwards. Written for each
    row are `codes`, kind x stages + stage with kind 0 to 2 as in `lengths`, and `starts`, seconds. Returns the last
    end, seconds; inf where something could not run.
    """
    stages, devices, leaves = len(work.local_stage), len(work.limits), len(state.wakes) // 2
    position = state.position
    for d in range(devices):
        position[d] = work.list_offsets[d]
    longest = 0.0
    for length in work.lengths:
        longest = max(longest, length)
    wake(state.wakes, leaves, work.device_of[0], 0.0)
    makespan = 0.0
    while state.wakes[1] < NEVER_AGAIN:
        d, now = first_to_wake(state.wakes, leaves), state.wakes[1]
        kind, s, until = choice(work, rules, state, due, most_ahead, d, now, ROUNDING * longest)
        if kind != WAIT:
            until = start(work, state, leaves, d, kind, s, now)
            codes[position[d]], starts[position[d]] = kind * stages + s, now
            position[d] += 1
            makespan = max(makespan, until)
        wake(state.wakes, leaves, d, until)
    for d in range(devices):
        if position[d] < work.list_offsets[d + 1]:
            return NEVER_AGAIN
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
    """The device that looks next; the lowest of equals."""
    node = 1
    while node < leaves:
        node = 2 * node if wakes[2 * node] <= wakes[2 * node + 1] else 2 * node + 1
    return node - leaves


@kernel
def choice(work, rules, state, due, most_ahead, d, now, rounding):
    """(kind, stage, until): what device d starts now, or WAIT, and until when."""
    stages = len(work.local_stage)
    forward, forward_due, forward_later, blocked = next_forward(work, state, due, most_ahead, d, now)
    backward, backward_due, backward_later = next_backward(work, state, due, d, now)
    weight, weight_due = next_weight(work, rules, state, due, d)
    kind, until, gap_is_known = WAIT, min(forward_later, backward_later), True
    if forward != NONE or backward != NONE:
        is_forward = backward == NONE or (
            forward != NONE and goes_forward(rules, state.last[d], forward_due, backward_due)
        )
        kind, s = (0, forward) if is_forward else (1, backward)
        length, its_due = work.lengths[kind * stages + s], forward_due if is_forward else backward_due
        if rules.prefer == DUE:
            earlier = earlier_due(work, state, due, d, now, its_due) if until < now + rules.patience * length else until
            if earlier < now + rules.patience * length:
                kind, until, gap_is_known = WAIT, earlier, False
            elif weight != NONE and weight_due < its_due:
                kind = 2
        elif (
            is_forward
            and backward == NONE
            and (rules.hold == ALWAYS or (rules.hold == FIRST and state.done[stages + s] == 0))
            and backward_later < now + length - rounding
        ):
            kind, until, gap_is_known = WAIT, backward_later, False
    if weight != NONE and kind != 2:
        makes_room = blocked and forward == NONE and rules.make_room != 0
        fits = now + work.lengths[2 * stages + weight] <= until + rounding or (gap_is_known and rules.short_gaps != 0)
        if makes_room or (kind == WAIT and fits):
            kind = 2
    return kind, weight if kind == 2 else (forward if kind == 0 else backward), until


@kernel
def goes_forward(rules, last, forward_due, backward_due):
    """Whether the F runs where a backward could run as well."""
    if rules.prefer == OTHER:
        return last == 1
    return rules.prefer == FORWARD or (rules.prefer == DUE and forward_due < backward_due)


@kernel
def next_forward(work, state, due, most_ahead, d, now):
    """(stage, due, later, blocked): the F of device d that may start and is due first, else NONE.

    `later` is when the next one arrives, `blocked` whether one that is there must not start.
    """
    stages, m = len(work.local_stage), work.m
    found, found_due, later, blocked = NONE, NEVER_AGAIN, NEVER_AGAIN, False
    for i in range(work.first_local[d], work.first_local[d + 1]):
        s = work.local_stage[i]
        k = state.done[s]
        if k >= m or (s > 0 and state.done[s - 1] <= k):
            continue
        there = state.arrival[s * m + k]
        if k - state.done[stages + s] >= most_ahead[s] or not finds_room(work, state, d, s, k):
            blocked = blocked or there <= now
        elif there > now:
            later = min(later, there)
        elif found == NONE or due[s * m + k] < found_due:
            found, found_due = s, due[s * m + k]
    return found, found_due, later, blocked


@kernel
def finds_room(work, state, d, s, k):
    """Whether every unfinished microbatch of device d, oldest first, could still end after F of stage s and k."""
    room = work.limits[d] + ROUNDING - state.live[d] - work.share[s]
    if room < 0.0:
        return False
    stages, begin, end = len(work.local_stage), work.first_local[d], work.first_local[d + 1]
    oldest, whole = work.m, 0.0
    for i in range(begin, end):
        oldest = min(oldest, state.done[(2 if work.split else 1) * stages + work.local_stage[i]])
        whole += work.share[work.local_stage[i]]
    j = oldest
    while j <= k and room < whole and k > oldest:
        lacks, held = 0.0, 0.0
        for i in range(begin, end):
            t = work.local_stage[i]
            if state.done[t] + (1 if t == s else 0) <= j:
                lacks += work.share[t]
            elif state.done[stages + t] <= j:
                held += work.share[t]
            elif work.split and state.done[2 * stages + t] <= j:
                held += work.share[t] * work.kept[t]
        if lacks > room:
            return False
        room += held
        j += 1
    return True


@kernel
def next_backward(work, state, due, d, now):
    """(stage, due, later): the I or B of device d that is there and due first, else NONE; when the next one arrives."""
    stages, m = len(work.local_stage), work.m
    found, found_due, later = NONE, NEVER_AGAIN, NEVER_AGAIN
    for i in range(work.first_local[d], work.first_local[d + 1]):
        s = work.local_stage[i]
        if not is_sent(state.done, stages, s, m):
            continue
        cell = (stages + s) * m + state.done[stages + s]
        if state.arrival[cell] > now:
            later = min(later, state.arrival[cell])
        elif found == NONE or due[cell] < found_due:
            found, found_due = s, due[cell]
    return found, found_due, later


@kernel
def is_sent(done, stages, s, m):
    """Whether what the next I or B of stage s waits for has run."""
    k = done[stages + s]
    return k < m and done[s if s == stages - 1 else stages + s + 1] > k


@kernel
def earlier_due(work, state, due, d, now, its_due):
    """When the first backward arrives at device d that is due before `its_due`."""
    stages, m = len(work.local_stage), work.m
    earlier = NEVER_AGAIN
    for i in range(work.first_local[d], work.first_local[d + 1]):
        s = work.local_stage[i]
        cell = (stages + s) * m + state.done[stages + s]
        if is_sent(state.done, stages, s, m) and state.arrival[cell] > now and due[cell] < its_due:
            earlier = min(earlier, state.arrival[cell])
    return earlier


@kernel
def next_weight(work, rules, state, due, d):
    """(stage, due): the W of device d that is due first, or whose I ran first; else NONE."""
    stages, m = len(work.local_stage), work.m
    found, found_due = NONE, NEVER_AGAIN
    for i in range(work.first_local[d], work.first_local[d + 1]):
        s = work.local_stage[i]
        k = state.done[2 * stages + s]
        if work.split and k < state.done[stages + s]:
            cell = (2 * stages + s) * m + k
            key = due[cell] if rules.prefer == DUE else state.arrival[cell]
            if found == NONE or key < found_due:
                found, found_due = s, key
    return found, found_due


@kernel
def start(work, state, leaves, d, kind, s, now):
    """Run the next action of a kind and stage: its result goes to where it is needed; returns its end."""
    stages, m = len(work.local_stage), work.m
    code = kind * stages + s
    k, end = state.done[code], now + work.lengths[code]
    state.done[code] += 1
    state.free[d] = end
    if kind == 2:
        state.live[d] -= work.share[s] * work.kept[s]
        return end
    state.last[d] = kind
    target = s + 1 if kind == 0 else s - 1
    if kind == 0:
        state.live[d] += work.share[s]
        if target == stages:
            state.arrival[(stages + s) * m + k] = end
    else:
        state.live[d] -= work.share[s] * (1.0 - work.kept[s]) if work.split else work.share[s]
        state.arrival[(2 * stages + s) * m + k] = end
    if 0 <= target < stages:
        there, receiver = end + work.waits[code], work.device_of[target]
        state.arrival[(kind * stages + target) * m + k] = there
        if receiver != d and state.free[receiver] <= there and there < state.wakes[leaves + receiver]:
            wake(state.wakes, leaves, receiver, there)
    return end
