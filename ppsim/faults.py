"""The one validator: every fault of a schedule's compute actions, as sentences that name the place and the rule."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.errors import DeadlockError, ScheduleError
from ppsim.schedule import Program, Schedule, listing
from ppsim.waiting import find_waiting_cycle, waiting_message

MOST_OF_ONE_RULE = 50


def find_faults(schedule: Schedule) -> None:
    """Raise ScheduleError with every fault of `schedule`; DeadlockError when a waiting cycle is the only one."""
    compute = schedule.schedule if isinstance(schedule, Program) else schedule
    faults = _size_faults(compute)
    if not faults:
        faults = [*_device_faults(compute), *_set_faults(compute), *_order_faults(compute), *_slice_faults(compute)]
        if isinstance(schedule, Program):
            from ppsim.lowering.check import transfer_faults

            faults += transfer_faults(schedule)
        cycle = find_waiting_cycle(compute)
        if cycle:
            message = waiting_message(f"schedule {schedule.name!r} deadlocks", cycle)
            if not faults:
                raise DeadlockError(message, cycle)
            faults.append(message)
    if faults:
        raise ScheduleError(listing(f"schedule {schedule.name!r} has {len(faults)} faults", faults), faults)


def _size_faults(schedule: Schedule) -> list[str]:
    """Numbers so large that no list could hold every action they ask for."""
    if schedule.devices == 0 or len(schedule.kind) == 0:
        return [
            "the schedule is empty: it needs at least one device with at least one action, such as [['0F0', '0B0']]"
        ]
    faults = []
    for word, column, size in (
        ("stage", schedule.stage, schedule.num_stages),
        ("microbatch", schedule.microbatch, schedule.microbatches),
    ):
        if size > len(schedule.kind):
            row = int(np.argmax(column))
            present = np.unique(column)
            absent = int(np.argmax(present != np.arange(len(present)))) if present[-1] >= len(present) else size
            faults.append(
                f"{_place(schedule, row)} names {word} {size - 1}, but no action names {word} {absent}; "
                f"{word}s are numbered 0, 1, 2 ... without gaps"
            )
    return faults


def _device_faults(schedule: Schedule) -> Iterator[str]:
    for device in np.flatnonzero(np.diff(schedule.offsets) == 0).tolist():
        yield f"device {device} has no actions; every device of a pipeline runs at least one stage"


def _set_faults(schedule: Schedule) -> Iterator[str]:
    """Doubled and missing actions, a full backward beside its parts, a pair on two devices."""
    stages, microbatches = schedule.num_stages, schedule.microbatches
    pairs = schedule.stage.astype(np.int64) * microbatches + schedule.microbatch
    present: dict[Kind, np.ndarray] = {}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        rows = np.flatnonzero(schedule.kind == kind)
        present[kind], first, counts = np.unique(pairs[rows], return_index=True, return_counts=True)
        for index in np.flatnonzero(counts > 1)[:MOST_OF_ONE_RULE].tolist():
            places = rows[pairs[rows] == present[kind][index]]
            where = " and ".join(_position(schedule, row) for row in places[:4].tolist())
            yield f"{schedule.label(int(rows[first[index]]))} stands {counts[index]} times: {where}; each action stands once"

    def name(pair: int, kind: Kind) -> str:
        return f"{pair // microbatches}{kind.name}{pair % microbatches}"

    gaps = stages * microbatches - len(present[Kind.F])
    if gaps:
        shown = _first_absent(present[Kind.F], min(gaps, MOST_OF_ONE_RULE))
        for pair in shown:
            yield f"{name(pair, Kind.F)} is missing: {stages} stages x {microbatches} microbatches each need one F"
        if gaps > len(shown):
            yield f"{gaps - len(shown)} more F are missing"

    full, inputs, weights = present[Kind.B], present[Kind.I], present[Kind.W]
    for pair in np.intersect1d(full, np.union1d(inputs, weights))[:MOST_OF_ONE_RULE].tolist():
        part = Kind.I if pair in inputs else Kind.W
        yield (
            f"{name(pair, Kind.B)} stands beside {name(pair, part)}: a microbatch's backward is either one B "
            f"or one I and one W"
        )
    for pair in np.setdiff1d(weights, np.union1d(inputs, full))[:MOST_OF_ONE_RULE].tolist():
        yield f"{name(pair, Kind.I)} is missing: {name(pair, Kind.W)} needs it"
    for pair in np.setdiff1d(inputs, np.union1d(weights, full))[:MOST_OF_ONE_RULE].tolist():
        yield f"{name(pair, Kind.W)} is missing: {name(pair, Kind.I)} stands without it"

    backward = np.union1d(np.union1d(full, inputs), weights)
    without = np.setdiff1d(present[Kind.F], backward)
    for pair in without[:MOST_OF_ONE_RULE].tolist():
        yield f"the backward of {name(pair, Kind.F)} is missing: add {name(pair, Kind.B)}, or {name(pair, Kind.I)} and {name(pair, Kind.W)}"
    if len(without) > MOST_OF_ONE_RULE:
        yield f"{len(without) - MOST_OF_ONE_RULE} more backwards are missing"

    order = np.argsort(pairs, kind="stable")
    split = np.flatnonzero(
        (pairs[order][1:] == pairs[order][:-1]) & (schedule.device[order][1:] != schedule.device[order][:-1])
    )
    for index in split[:MOST_OF_ONE_RULE].tolist():
        first, second = int(order[index]), int(order[index + 1])
        yield (
            f"{schedule.label(first)} stands on device {schedule.device[first]} and {schedule.label(second)} on device "
            f"{schedule.device[second]}: all actions of one stage and microbatch run on one device"
        )


def _order_faults(schedule: Schedule) -> Iterator[str]:
    """On one device: backward before forward, W before I."""
    pairs = schedule.stage.astype(np.int64) * schedule.microbatches + schedule.microbatch
    for early, late, rule in (
        (Kind.F, Kind.B, "a backward follows its forward"),
        (Kind.F, Kind.I, "a backward follows its forward"),
        (Kind.F, Kind.W, "a backward follows its forward"),
        (Kind.I, Kind.W, "W follows the I of its microbatch"),
    ):
        early_rows, late_rows = np.flatnonzero(schedule.kind == early), np.flatnonzero(schedule.kind == late)
        _, at_early, at_late = np.intersect1d(pairs[early_rows], pairs[late_rows], return_indices=True)
        before, after = early_rows[at_early], late_rows[at_late]
        wrong = np.flatnonzero((schedule.device[before] == schedule.device[after]) & (before > after))
        for index in wrong[:MOST_OF_ONE_RULE].tolist():
            yield (
                f"{schedule.label(int(after[index]))} ({_position(schedule, int(after[index]))}) stands before "
                f"{schedule.label(int(before[index]))} ({_position(schedule, int(before[index]))}): {rule}"
            )


def _slice_faults(schedule: Schedule) -> Iterator[str]:
    """Slices of one microbatch: forward in rising order, backward in falling order, on each stage."""
    if schedule.slices == 1:
        return
    if schedule.microbatches % schedule.slices:
        yield f"{schedule.microbatches} slices do not make whole microbatches of {schedule.slices} slices each"
    for kinds, step, rule in (
        ((Kind.F,), 1, "a slice's F follows the F of the slice before it"),
        ((Kind.B, Kind.I), -1, "a slice's backward follows the backward of the slice after it"),
    ):
        rows = np.flatnonzero(np.isin(schedule.kind, kinds))
        order = np.lexsort((rows, schedule.microbatch[rows] // schedule.slices, schedule.stage[rows]))
        rows = rows[order]
        same = (schedule.stage[rows][1:] == schedule.stage[rows][:-1]) & (
            schedule.microbatch[rows][1:] // schedule.slices == schedule.microbatch[rows][:-1] // schedule.slices
        )
        wrong = same & (np.diff(schedule.microbatch[rows]) * step < 0)
        for index in np.flatnonzero(wrong)[:MOST_OF_ONE_RULE].tolist():
            yield f"{_place(schedule, int(rows[index + 1]))} comes too late: {rule}"


def _first_absent(present: np.ndarray, count: int) -> list[int]:
    """The `count` smallest numbers >= 0 that the sorted array does not hold."""
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


def _position(schedule: Schedule, row: int) -> str:
    device = int(schedule.device[row])
    first = int(schedule.offsets[device])
    position = row - first - int(np.count_nonzero(schedule.joined[first : row + 1]))
    return f"device {device}, position {position}"


def _place(schedule: Schedule, row: int) -> str:
    return f"{schedule.label(row)} ({_position(schedule, row)})"
