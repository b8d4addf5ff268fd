"""The loop of the greedy search: list scheduling of F, I (or B) and W of any stages on any devices under a limit."""

import heapq

import numpy as np

OTHER, FORWARD, BACKWARD, DUE = range(4)  # what runs where both an F and a backward could start
NEVER, FIRST, ALWAYS = range(3)  # when an F gives way to a backward that would arrive while it runs
ROUNDING = 1e-9  # shares that sum up to a limit may differ from it by this much, times by this part of the longest


def schedule_greedily(
    m, first_local, local_stage, device_of, split, lengths, waits, share, kept, limits, due, most_ahead, switches,
    patience, list_offsets, codes, starts,
):  # fmt: skip
    """Fill the lists: whoever is free takes what the switches like best among what it could start now.

    An F starts only where every unfinished microbatch of its device, one after the other, the oldest first, still finds
    room for the F that it lacks there (the banker's rule): no limit that holds one microbatch ever locks.

    Parameters
    ----------
    m, split : int, bool
        Microbatches; whether the backward is I and W, or one B.
    first_local, local_stage : int (devices + 1,), (stages,)
        Device d runs the stages `local_stage[first_local[d]:first_local[d + 1]]`.
    device_of : int (stages,)
        Device of each stage.
    lengths : float (3 x stages,)
        Seconds of F, of I or B, and of W.
    waits : float (2 x stages,)
        Seconds from the end of F to its arrival at the next stage, and of I or B at the one before.
    share, kept, limits : float (stages,), (stages,), (devices,)
        Activations that F adds, the part of them that lives until W, and what a device may hold.
    due : float (3 x stages x m,)
        The lower, the earlier, by kind, stage and microbatch; read where `prefer` is DUE.
    most_ahead : int (stages,)
        F that a stage may run ahead of its backwards.
    switches : int (4,)
        prefer; hold; whether a W goes into a gap shorter than it; whether a W goes before a backward when an F waits
        for memory.
    patience : float
        Where `prefer` is DUE: the part of its length for which a ready action waits for one due before it.
    list_offsets : int (devices + 1,)
        Where each device's list begins.
    codes, starts : int32, float64, written
        kind x stages + stage of each row, kind 0 to 2 as in `lengths`; and its start, seconds.

    Returns
    -------
    float : the last end, seconds; inf where something could not run.
    """
    infinite = float("inf")
    stages, devices = len(local_stage), len(first_local) - 1
    prefer, hold, short_gaps, make_room = switches[0], switches[1], switches[2], switches[3]
    longest = 0.0
    for length in lengths:
        longest = max(longest, length)
    rounding = ROUNDING * longest
    done = np.zeros(3 * stages, np.int64)
    arrival = np.zeros(3 * stages * m, np.float64)  # of the input of F, of I or B; the end of the I that W follows
    free, live, last = np.zeros(devices), np.zeros(devices), np.zeros(devices, np.int64)
    position = np.zeros(devices, np.int64)
    for d in range(devices):
        position[d] = list_offsets[d]
    makespan = 0.0
    rows = 0
    events = [(0.0, 0)]
    for d in range(1, devices):
        if device_of[0] == d:
            events = [(0.0, d)]
    while len(events) > 0:
        now, d = heapq.heappop(events)
        if free[d] > now:
            continue
        oldest = m
        for i in range(first_local[d], first_local[d + 1]):
            oldest = min(oldest, done[(2 if split else 1) * stages + local_stage[i]])
        whole = 0.0
        for i in range(first_local[d], first_local[d + 1]):
            whole += share[local_stage[i]]
        # The candidates: of each kind the ready one that is due first, and when the next one arrives.
        forward = backward = weight = -1
        forward_due = backward_due = weight_due = infinite
        forward_later = backward_later = infinite
        blocked = False
        for i in range(first_local[d], first_local[d + 1]):
            s = local_stage[i]
            k = done[s]
            if k < m and (s == 0 or done[s - 1] > k):
                there = arrival[s * m + k]
                room = limits[d] + ROUNDING - live[d] - share[s]
                safe = room >= 0.0
                j = oldest  # can each unfinished microbatch, oldest first, end once those before it have?
                while safe and k > oldest and j <= k and room < whole:
                    lacks, held = 0.0, 0.0
                    for other in range(first_local[d], first_local[d + 1]):
                        t = local_stage[other]
                        if done[t] + (1 if t == s else 0) <= j:
                            lacks += share[t]
                        elif not split:
                            held += share[t] if done[stages + t] <= j else 0.0
                        elif done[stages + t] <= j:
                            held += share[t]
                        elif done[2 * stages + t] <= j:
                            held += share[t] * kept[t]
                    safe = lacks <= room
                    room += held
                    j += 1
                if k - done[stages + s] >= most_ahead[s] or not safe:
                    blocked = blocked or there <= now
                elif there > now:
                    forward_later = min(forward_later, there)
                elif forward < 0 or due[s * m + k] < forward_due:
                    forward, forward_due = s, due[s * m + k]
            k = done[stages + s]
            if k < m and done[s if s == stages - 1 else stages + s + 1] > k:
                there = arrival[(stages + s) * m + k]
                if there > now:
                    backward_later = min(backward_later, there)
                elif backward < 0 or due[(stages + s) * m + k] < backward_due:
                    backward, backward_due = s, due[(stages + s) * m + k]
            if split and done[2 * stages + s] < k:
                cell = (2 * stages + s) * m + done[2 * stages + s]
                key = due[cell] if prefer == DUE else arrival[cell]
                if weight < 0 or key < weight_due:
                    weight, weight_due = s, key
        # The choice: 0 F, 1 I or B, 2 W, -1 wait until `later`.
        choice = -1
        later = min(forward_later, backward_later)
        gap_is_known = True
        if forward >= 0 or backward >= 0:
            choice = 0 if backward < 0 else 1
            if forward >= 0 and backward >= 0:
                if prefer == OTHER:
                    choice = 0 if last[d] == 1 else 1
                elif prefer == FORWARD or (prefer == DUE and forward_due < backward_due):
                    choice = 0
            if prefer == DUE:
                length = lengths[forward] if choice == 0 else lengths[stages + backward]
                its_due = forward_due if choice == 0 else backward_due
                if patience > 0.0 and later < now + patience * length:
                    earlier = infinite
                    for i in range(first_local[d], first_local[d + 1]):
                        s = local_stage[i]
                        k = done[stages + s]
                        if k < m and done[s if s == stages - 1 else stages + s + 1] > k:
                            cell = (stages + s) * m + k
                            if arrival[cell] > now and due[cell] < its_due:
                                earlier = min(earlier, arrival[cell])
                    if earlier < now + patience * length:
                        choice, later, gap_is_known = -1, earlier, False
                if choice >= 0 and weight >= 0 and weight_due < its_due:
                    choice = 2
            elif choice == 0 and backward < 0 and (hold == ALWAYS or (hold == FIRST and done[stages + forward] == 0)):
                gives_way = backward_later < now + lengths[forward] - rounding
                if gives_way:
                    choice, later, gap_is_known = -1, backward_later, False
        if blocked and forward < 0 and weight >= 0 and make_room != 0:
            choice = 2
        if choice == -1 and weight >= 0:
            fits = now + lengths[2 * stages + weight] <= later + rounding
            if fits or (gap_is_known and short_gaps != 0):
                choice = 2
        if choice == -1:
            if later < infinite:
                heapq.heappush(events, (float(later), d))
            continue
        # Run it.
        s = weight if choice == 2 else (backward if choice == 1 else forward)
        end = now + lengths[choice * stages + s]
        k = done[choice * stages + s]
        codes[position[d]] = choice * stages + s
        starts[position[d]] = now
        position[d] += 1
        rows += 1
        done[choice * stages + s] += 1
        free[d] = end
        makespan = max(makespan, end)
        target = -1
        there = end
        if choice == 2:
            live[d] -= share[s] * kept[s]
        else:
            last[d] = choice
            if choice == 0:
                live[d] += share[s]
                target = s + 1 if s + 1 < stages else -1
                if target < 0:
                    arrival[(stages + s) * m + k] = end
            else:
                live[d] -= share[s] * (1.0 - kept[s]) if split else share[s]
                target = s - 1
                arrival[(2 * stages + s) * m + k] = end
            if target >= 0:
                there = end + waits[choice * stages + s]
                arrival[(choice * stages + target) * m + k] = there
        heapq.heappush(events, (float(end), d))
        if target >= 0 and device_of[target] != d and free[device_of[target]] <= there:
            heapq.heappush(events, (float(there), device_of[target]))
    return makespan if rows == list_offsets[devices] else infinite


def improve_lists(
    m, list_offsets, device_of, split, lengths, waits, share, kept, limits, codes, rounds, heat, seed, ends
):
    """Local search: move one action of a critical chain at a time, keep what is not longer; the lists stay runnable.

    Parameters beside those of `schedule_greedily`
    ----------------------------------------------
    codes : int32, read and written
        Lists that run within the limits; the best ones found in the end.
    rounds : int
        Moves that are tried.
    heat : float
        Seconds by which a list may get longer at first; it falls to 0 over the rounds.
    seed : int
        Of the random numbers.
    ends : float64, written
        End of each row of the best lists.

    Returns
    -------
    float : the last end, seconds.
    """
    infinite = float("inf")
    stages, devices, rows = len(device_of), len(list_offsets) - 1, list_offsets[len(list_offsets) - 1]
    now_codes = codes.copy()
    row_of = np.zeros(3 * stages * m, np.int64)
    when = np.zeros(rows, np.float64)
    via = np.zeros(rows, np.int64)  # the row that a row waited for, or -1
    chain = np.zeros(rows, np.int64)  # rows of the critical chain that follow the row before them
    links = 0
    done = np.zeros(3 * stages, np.int64)
    waiting = np.zeros(3 * stages, np.int64)  # the device that waits for the next result of a kind and stage
    position = np.zeros(devices, np.int64)
    live = np.zeros(devices, np.float64)
    stack = np.zeros(devices + 1, np.int64)
    state = seed % 2147483647 + 1
    current = infinite
    shortest = infinite
    moved_from = moved_to = -1
    for turn in range(rounds + 1):
        # Replay the lists.
        done[:] = 0
        waiting[:] = -1
        live[:] = 0.0
        height = 0
        for d in range(devices):
            position[d] = list_offsets[d]
            stack[height] = devices - 1 - d
            height += 1
        ran = 0
        makespan = 0.0
        last_row = -1
        broken = False
        bar = infinite if turn == 0 else max(current, shortest + heat * (1.0 - turn / rounds))
        while height > 0 and not broken:
            height -= 1
            d = stack[height]
            row = position[d]
            free = when[row - 1] if row > list_offsets[d] else 0.0
            while row < list_offsets[d + 1]:
                code = now_codes[row]
                kind, s = code // stages, code % stages
                k = done[code]
                need = -1
                wait = 0.0
                if kind == 0:
                    live_after = live[d] + share[s]
                    if live_after > limits[d] + ROUNDING:
                        broken = True
                        break
                    if s > 0:
                        need, wait = code - 1, waits[s - 1]
                elif kind == 1:
                    live_after = live[d] - (share[s] * (1.0 - kept[s]) if split else share[s])
                    if s == stages - 1:
                        need = s
                    else:
                        need, wait = code + 1, waits[stages + s + 1]
                        if done[s] <= k:
                            broken = True
                            break
                else:
                    live_after = live[d] - share[s] * kept[s]
                    need = stages + s
                start = free
                via[row] = row - 1 if row > list_offsets[d] else -1
                if need >= 0:
                    if done[need] <= k:
                        if device_of[need % stages] == d:
                            broken = True
                        else:
                            waiting[need] = d
                        break
                    source = row_of[need * m + k]
                    there = when[source] + wait
                    if there > start:
                        start = there
                        via[row] = source
                free = start + lengths[code]
                if free > bar:
                    broken = True
                    break
                live[d] = live_after
                when[row] = free
                row_of[code * m + k] = row
                done[code] += 1
                ran += 1
                if free > makespan:
                    makespan, last_row = free, row
                if waiting[code] >= 0:
                    stack[height] = waiting[code]
                    height += 1
                    waiting[code] = -1
                row += 1
            position[d] = row
        if broken or ran < rows:
            makespan = infinite
        if makespan <= bar and ran == rows:
            current = makespan
            if makespan < shortest:
                shortest = makespan
                codes[:] = now_codes
                ends[:] = when
            links = 0
            row = last_row
            while row >= 0:
                if via[row] == row - 1 and row > list_offsets[device_of[now_codes[row] % stages]]:
                    chain[links] = row
                    links += 1
                row = via[row]
        elif turn > 0:
            code = now_codes[moved_to]
            step = 1 if moved_from > moved_to else -1
            row = moved_to
            while row != moved_from:
                now_codes[row] = now_codes[row + step]
                row += step
            now_codes[moved_from] = code
        if turn == 0 and current == infinite:
            return infinite
        if turn == rounds or links == 0:
            break
        # The next move: an action of the chain some places earlier, or the one before it later.
        state = state * 48271 % 2147483647
        row = chain[state % links]
        state = state * 48271 % 2147483647
        distance = 1 + (state // 3) % (12 if state % 3 == 0 else 3)
        state = state * 48271 % 2147483647
        d = device_of[now_codes[row] % stages]
        if state % 2 == 0:
            moved_from, moved_to = row, max(list_offsets[d], row - distance)
        else:
            moved_from, moved_to = row - 1, min(list_offsets[d + 1] - 1, row - 1 + distance)
        code = now_codes[moved_from]
        step = 1 if moved_to > moved_from else -1
        row = moved_from
        while row != moved_to:
            now_codes[row] = now_codes[row + step]
            row += step
        now_codes[moved_to] = code
    return shortest
