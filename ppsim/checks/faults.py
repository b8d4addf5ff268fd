"""The one validator: every fault of a schedule's compute actions, as sentences with position and rule."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind, is_backward
from ppsim.base.arrays import distinct, list_of_rows
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.errors import DeadlockError, ScheduleError, listing
from ppsim.checks.deadlock import find_waiting_cycle
from ppsim.checks.program_faults import program_faults
from ppsim.checks.sentences import MAX_FAULTS_PER_RULE, first_faults, located, position
from ppsim.schedule.barriers import find_barriers
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.waiting import waiting_message


def validate(schedule: ScheduleColumns) -> None:
    """Raise ScheduleError with every fault of a schedule or program.

    Raise DeadlockError if a waiting cycle is the only fault.
    """
    if schedule.is_valid:
        return
    compute = schedule.compute
    if len(compute.kind) == 0:
        raise ScheduleError(
            f"schedule {schedule.name!r} is empty: it needs at least one device with at least one compute action, "
            f"such as [['0F0', '0B0']]"
        )
    faults, cycle = _compute_faults(compute)
    if schedule.is_program and not any(_number_faults(compute)):
        faults += program_faults(schedule)
    if cycle:
        message = waiting_message(f"schedule {schedule.name!r} deadlocks", cycle)
        if not faults:
            raise DeadlockError(message, cycle)
        faults.append(message)
    if faults:
        raise ScheduleError(listing(f"schedule {schedule.name!r} has {len(faults)} faults", faults), faults)
    schedule.mark_valid()


def _compute_faults(compute: ScheduleColumns) -> tuple[list[str], list[str]]:
    """Return every fault of compute actions, and the cycle of waits among them."""
    if compute.is_valid:
        return [], []
    source = source_of_valid(compute)
    if source is not None:
        compute.mark_valid(source)
        return [], []
    gaps = [*_number_faults(compute)]
    faults = [*gaps, *_device_faults(compute), *_set_faults(compute, dense=not gaps)]
    faults += [*_split_faults(compute), *_order_faults(compute)]
    if gaps and compute.cuts_vocabulary:  # collectives are found in tables by microbatch
        return [*faults, *_slice_faults(compute)], []
    faults += [*_output_faults(compute), *_slice_faults(compute)]
    return faults, find_waiting_cycle(compute)


def _number_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield faults of numbers below 0, and of numbers too large for the number of actions."""
    for word, column, size in (
        ("stage", schedule.stage, schedule.num_stages),
        ("microbatch", schedule.microbatch, schedule.microbatches),
    ):
        if column.min() < 0:
            lowest = int(np.argmin(column))
            yield f"{located(schedule, lowest)} names {word} {column[lowest]}; {word} numbers run 0, 1, 2 ..."
        if size > len(schedule.kind):
            present = distinct(column)
            absent = int(np.argmax(present != np.arange(len(present))))
            yield (
                f"{located(schedule, int(np.argmax(column)))} names {word} {size - 1}, but no action names "
                f"{word} {absent}; {word} numbers run 0, 1, 2 ... without gaps"
            )


def _device_faults(schedule: ScheduleColumns) -> Iterator[str]:
    return first_faults(
        lambda device: f"device {device} has no actions; every device of a pipeline runs at least one stage",
        np.flatnonzero(np.diff(schedule.offsets) == 0),
    )


def _pairs(schedule: ScheduleColumns) -> np.ndarray:
    """Return one number for stage and microbatch of each row."""
    return schedule.stage.astype(np.int64) * schedule.microbatches + schedule.microbatch


def _set_faults(schedule: ScheduleColumns, *, dense: bool) -> Iterator[str]:
    """Yield doubled and missing actions, and a B next to its I or W; without `dense` no F counts as missing."""
    pairs = _pairs(schedule)
    rows_of = {kind: np.flatnonzero(schedule.kind == kind) for kind in Kind if kind < FIRST_TRANSFER}
    for rows in rows_of.values():
        yield from _doubled(schedule, rows, pairs[rows])
    present = {kind: distinct(pairs[rows]) for kind, rows in rows_of.items()}
    if dense:
        yield from _missing_forwards(schedule, present[Kind.F])
    yield from _backward_faults(schedule, present)
    yield from _vocabulary_faults(schedule, present)


def _doubled(schedule: ScheduleColumns, rows: np.ndarray, pairs: np.ndarray) -> Iterator[str]:
    doubled, counts = np.unique(pairs, return_counts=True)

    def sentence(pair: int, count: int) -> str:
        places = rows[pairs == pair].tolist()
        where = " and ".join(position(schedule, row) for row in places[:4])
        times = "twice" if count == 2 else f"{count} times"
        return f"{schedule.label(places[0])} appears {times}: {where}; each action appears once"

    return first_faults(sentence, doubled[counts > 1], counts[counts > 1])


def _missing_forwards(schedule: ScheduleColumns, present: np.ndarray) -> Iterator[str]:
    stages, microbatches = schedule.num_stages, schedule.microbatches
    gaps = stages * microbatches - len(present)
    shown = _first_absent(present, min(gaps, MAX_FAULTS_PER_RULE))
    for pair in shown:
        name = _name(schedule, Kind.F, pair)
        yield f"{name} is missing: {stages} stages x {microbatches} microbatches each need one F"
    if gaps > len(shown):
        yield f"{gaps - len(shown)} more F are missing"


def _backward_faults(schedule: ScheduleColumns, present: dict[Kind, np.ndarray]) -> Iterator[str]:
    full, inputs, weights = present[Kind.B], present[Kind.I], present[Kind.W]

    def name(kind: Kind, pair: int) -> str:
        return _name(schedule, kind, pair)

    for kind, parts in ((Kind.I, inputs), (Kind.W, np.setdiff1d(weights, inputs, assume_unique=True))):
        yield from first_faults(
            lambda pair, kind=kind: (
                f"{name(Kind.B, pair)} stands beside {name(kind, pair)}: a microbatch's backward is either one B or "
                f"one I and one W"
            ),
            np.intersect1d(full, parts, assume_unique=True),
        )
    yield from first_faults(
        lambda pair: f"{name(Kind.I, pair)} is missing: {name(Kind.W, pair)} needs it",
        np.setdiff1d(weights, np.concatenate([inputs, full]), assume_unique=True),
    )
    yield from first_faults(
        lambda pair: f"{name(Kind.W, pair)} is missing: {name(Kind.I, pair)} stands without it",
        np.setdiff1d(inputs, np.concatenate([weights, full]), assume_unique=True),
    )
    yield from first_faults(
        lambda pair: (
            f"the backward of {name(Kind.F, pair)} is missing: add {name(Kind.B, pair)}, or {name(Kind.I, pair)} and "
            f"{name(Kind.W, pair)}"
        ),
        np.setdiff1d(present[Kind.F], np.concatenate([full, inputs, weights]), assume_unique=True),
    )


def _vocabulary_faults(schedule: ScheduleColumns, present: dict[Kind, np.ndarray]) -> Iterator[str]:
    """Yield stages with a part of the output layer that miss S of a microbatch, or T if the lists hold T."""
    kinds = (Kind.S, Kind.T) if len(present[Kind.T]) else (Kind.S,)
    found = [np.divmod(present[kind], schedule.microbatches) for kind in kinds]
    parts = distinct(np.concatenate([stage for stage, _ in found]))
    numbers = distinct(present[Kind.F] % schedule.microbatches)
    for kind, (stage, microbatch) in zip(kinds, found, strict=True):
        counted = np.isin(microbatch, numbers)
        counts = np.bincount(np.searchsorted(parts, stage[counted]), minlength=len(parts))
        for part in parts[counts < len(numbers)][:MAX_FAULTS_PER_RULE].tolist():
            absent = np.setdiff1d(numbers, microbatch[stage == part])
            yield (
                f"{part}{kind.name}{absent[0]} is missing: stage {part} holds a part of the output layer, so it needs "
                f"one {kind.name} of every microbatch"
            )


def _split_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield actions of one stage and microbatch on two devices."""
    pairs, device = _pairs(schedule), schedule.device
    order = np.argsort(pairs, kind="stable")
    first, second = order[:-1], order[1:]
    split = (pairs[first] == pairs[second]) & (device[first] != device[second])
    return first_faults(
        lambda first, second: (
            f"{schedule.label(first)} stands on device {device[first]} and {schedule.label(second)} on device "
            f"{device[second]}: all actions of one stage and microbatch run on one device"
        ),
        first[split],
        second[split],
    )


def _order_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield wrong orders on one device: backward or R before forward, W before I, backward before R."""
    pairs = _pairs(schedule)
    for early, late, rule in (
        (Kind.F, Kind.B, "a backward follows its forward"),
        (Kind.F, Kind.I, "a backward follows its forward"),
        (Kind.F, Kind.W, "a backward follows its forward"),
        (Kind.I, Kind.W, "W follows the I of its microbatch"),
        (Kind.F, Kind.R, "R repeats a forward, so it follows it"),
        (Kind.R, Kind.B, "a backward follows the R of its microbatch"),
        (Kind.R, Kind.I, "a backward follows the R of its microbatch"),
        (Kind.S, Kind.T, "T is the gradient of what S made"),
    ):
        early_rows, late_rows = np.flatnonzero(schedule.kind == early), np.flatnonzero(schedule.kind == late)
        _, at_early, at_late = np.intersect1d(pairs[early_rows], pairs[late_rows], return_indices=True)
        earlier, later = early_rows[at_early], late_rows[at_late]
        wrong = (schedule.device[earlier] == schedule.device[later]) & (earlier > later)
        yield from first_faults(
            lambda late, early, rule=rule: (
                f"{located(schedule, late)} stands before {located(schedule, early)}: {rule}"
            ),
            later[wrong],
            earlier[wrong],
        )


def _output_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield S before the F that makes their input on one device, and collectives in two orders."""
    barriers = find_barriers(schedule)
    if barriers is None:
        return
    wrong = np.flatnonzero(barriers.has > np.arange(len(barriers.has)))
    yield from first_faults(
        lambda part, output: (
            f"{located(schedule, part)} stands before {located(schedule, output)}: S needs the output of the last stage"
        ),
        wrong,
        barriers.has[wrong],
    )
    device, barrier = schedule.device[barriers.producer].astype(np.int64), barriers.of_producer
    order = np.lexsort((barriers.producer, barrier, device))
    last = order[np.append(np.diff((device * len(barriers) + barrier)[order]) > 0, True)]
    row, of_row = barriers.producer[last], list_of_rows(barriers.streams)[barrier[last]]
    swapped = (np.diff(row) < 0) & (np.diff(device[last]) == 0) & (np.diff(of_row) == 0)
    yield from first_faults(
        lambda early, late: (
            f"{located(schedule, early)} stands before {located(schedule, late)}, and on the device that sends their "
            f"input it is the other way round: the collectives of one sender run in one order on all devices"
        ),
        row[1:][swapped],
        row[:-1][swapped],
    )


def _slice_faults(schedule: ScheduleColumns) -> Iterator[str]:
    """Yield slices out of order: on each stage, forwards rise and backwards fall within a microbatch."""
    if schedule.slices == 1:
        return
    if schedule.microbatches % schedule.slices:
        yield f"{schedule.microbatches} slices do not make whole microbatches of {schedule.slices} slices each"
    whole = schedule.microbatch // schedule.slices
    for rows, step, rule in (
        (schedule.kind == Kind.F, 1, "a slice's F follows the F of the slice before it"),
        (is_backward(schedule.kind), -1, "a slice's backward follows the backward of the slice after it"),
    ):
        rows = np.flatnonzero(rows)
        rows = rows[np.lexsort((rows, whole[rows], schedule.stage[rows]))]
        before, after = rows[:-1], rows[1:]
        same = (schedule.stage[before] == schedule.stage[after]) & (whole[before] == whole[after])
        late = same & ((schedule.microbatch[after] - schedule.microbatch[before]) * step < 0)
        yield from first_faults(lambda row, rule=rule: f"{located(schedule, row)} comes too late: {rule}", after[late])


def _first_absent(present: np.ndarray, count: int) -> list[int]:
    """Return the `count` smallest numbers >= 0 that the sorted array does not hold."""
    absent: list[int] = []
    expected = 0
    for value in present.tolist():
        while expected < value and len(absent) < count:
            absent.append(expected)
            expected += 1
        if len(absent) == count:
            return absent
        expected = value + 1
    return absent + list(range(expected, expected + count - len(absent)))


def _name(schedule: ScheduleColumns, kind: Kind, pair: int) -> str:
    stage, microbatch = divmod(pair, schedule.microbatches)
    return f"{stage}{kind.name}{microbatch}"


_F, _I, _W, _R = (int(kind) for kind in (Kind.F, Kind.I, Kind.W, Kind.R))


def source_of_valid(schedule: ScheduleColumns) -> np.ndarray | None:
    """Return `schedule.source`, int32, if compute actions have no fault and run to their end, else None.

    Lists with S or T give None too, because some of their rows wait for many rows.
    """
    stages, microbatches, rows = schedule.num_stages, schedule.microbatches, len(schedule.kind)
    cells = stages * microbatches
    if (
        schedule.cuts_vocabulary or not 0 < 2 * cells <= rows
    ):  # each needs an F and a backward, and the tables stay as small as the columns
        return None
    source, row_of = np.empty(rows, np.int32), np.full(2 * cells, -1, np.int32)
    weights, again = np.full(cells, False, bool), np.zeros(cells if schedule.recomputes else 0, bool)
    valid = call_fastest(
        follow, rows, schedule.offsets, schedule.kind, schedule.stage, schedule.microbatch, stages, microbatches,
        row_of, weights, again, source,
    )  # fmt: skip
    return source if valid and _slices_in_order(schedule, row_of) else None


def _slices_in_order(schedule: ScheduleColumns, row_of: np.ndarray) -> bool:
    """Return whether each microbatch's slices run forward in rising and backward in falling order."""
    if schedule.slices == 1:
        return True
    if schedule.microbatches % schedule.slices:
        return False
    forward, backward = np.diff(row_of.reshape(2, -1, schedule.slices))
    return bool((forward > 0).all() and (backward < 0).all())


@kernel(allocates=True)
def follow(offsets, kind, stage, microbatch, stages, microbatches, row_of, weights, again, source):
    """Run the lists and fill `source`; return False at the first fault or a deadlock.

    Sweeps over the devices, up and down, let each run as far as it can. `row_of`, by stage * microbatches + microbatch,
    first F and then B or I, holds the row once it has run, -1 before. `weights` is True once W has run, `again` once R
    has. Sweeps in which few devices can run end with False: the time of the other checks does not grow with sweeps.
    The other checks would find every fault alone. With this pass, building, simulating and measuring a million valid
    actions takes a tenth of the time: 40 to 60 ms instead of 430 to 1,000 ms.
    """
    devices, cells = len(offsets) - 1, stages * microbatches
    position = offsets[:-1].copy()
    forwards = inputs = weight_grads = recomputes = 0
    left, visits, step = offsets[-1], -64 * devices, 1
    while left > 0:
        before = left
        device = 0 if step > 0 else devices - 1
        while 0 <= device < devices:
            first, last, begin = offsets[device], offsets[device + 1], position[device]
            if first == last:
                return False
            row = begin
            while row < last:
                code, at, number = kind[row], stage[row], microbatch[row]
                if at < 0 or number < 0:
                    return False
                own = at * microbatches + number
                need = -1
                if code == _W:
                    made = row_of[cells + own]
                    if made < first or kind[made] != _I or weights[own]:
                        return False
                    weights[own] = True
                    weight_grads += 1
                elif code == _R:
                    if row_of[own] < first or row_of[own] >= last or row_of[cells + own] >= 0 or again[own]:
                        return False
                    again[own] = True
                    recomputes += 1
                else:
                    if code == _F:
                        if at > 0:
                            need = row_of[own - microbatches]
                            if need < 0:
                                break
                        forwards += 1
                    else:
                        if row_of[own] < first or row_of[own] >= last:
                            return False
                        own += cells
                        if at + 1 < stages:
                            need = row_of[own + microbatches]
                            if need < 0:
                                break
                        inputs += code == _I
                    if row_of[own] >= 0:
                        return False
                    row_of[own] = row
                source[row] = need
                row += 1
            position[device] = row
            left -= row - begin
            device += step
        visits += devices
        if left == before or visits > 8 * (offsets[-1] - left):
            return False
        step = -step
    counted = 2 * forwards + inputs + recomputes == offsets[-1]
    return counted and forwards == cells and inputs == weight_grads
