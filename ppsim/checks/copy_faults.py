"""Faults of OFFLOAD and RELOAD: what is missing, doubled, on the wrong device or out of order."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.checks.sentences import first_faults, place
from ppsim.schedule.columns import ScheduleColumns

_RULES = {
    (Kind.OFFLOAD, Kind.F): "an activation leaves after its forward",
    (Kind.RELOAD, Kind.OFFLOAD): "an activation comes back after it has left",
    (Kind.R, Kind.RELOAD): "R needs the stored input back",
    (Kind.B, Kind.RELOAD): "a backward needs its activation back",
    (Kind.I, Kind.RELOAD): "a backward needs its activation back",
}


def copy_faults(program: ScheduleColumns) -> Iterator[str]:
    """One sentence for each fault of the copies to host memory and back; those of the compute actions are others'.

    In the list of one device an activation's actions read: F, OFFLOAD, RELOAD, then R where there is one, backward.
    """
    rows_of = {kind: _rows_by_pair(program, program.kind == kind) for kind in (Kind.OFFLOAD, Kind.RELOAD)}
    if not any(len(pairs) for pairs, _ in rows_of.values()):
        return
    for pairs, rows in rows_of.values():
        again = rows[1:][pairs[1:] == pairs[:-1]]
        yield from first_faults(lambda row: f"{place(program, row)} appears twice; an activation leaves once", again)
    yield from _unpaired(program, rows_of[Kind.OFFLOAD], rows_of[Kind.RELOAD])
    yield from _foreign(program)
    for (late, early), rule in _RULES.items():
        yield from _late(program, early, late, rule)


def _pairs(program: ScheduleColumns, rows: np.ndarray) -> np.ndarray:
    """One number for stage and microbatch of each row."""
    return program.stage[rows].astype(np.int64) * program.microbatches + program.microbatch[rows]


def _rows_by_pair(program: ScheduleColumns, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stage and microbatch as one number, sorted, and the row of each."""
    rows = np.flatnonzero(chosen)
    pairs = _pairs(program, rows)
    order = np.argsort(pairs, kind="stable")
    return pairs[order], rows[order]


def _unpaired(
    program: ScheduleColumns, offloads: tuple[np.ndarray, np.ndarray], reloads: tuple[np.ndarray, np.ndarray]
) -> Iterator[str]:
    for own, other, missing in ((offloads, reloads, Kind.RELOAD), (reloads, offloads, Kind.OFFLOAD)):
        alone = own[1][~np.isin(own[0], other[0])]
        yield from first_faults(
            lambda row, missing=missing: (
                f"{place(program, row)} stands without {program.stage[row]}{missing.name}{program.microbatch[row]}: "
                f"what leaves for host memory comes back before its backward"
            ),
            alone,
        )


def _foreign(program: ScheduleColumns) -> Iterator[str]:
    """Copies on a device that does not run the forward."""
    pairs, rows = _rows_by_pair(program, program.kind == Kind.F)
    copies = np.flatnonzero((program.kind == Kind.OFFLOAD) | (program.kind == Kind.RELOAD))
    wanted = _pairs(program, copies)
    found = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
    here = (pairs[found] == wanted) & (program.device[rows[found]] == program.device[copies])
    yield from first_faults(
        lambda row: (
            f"{place(program, row)} has nothing to copy: no {program.stage[row]}F{program.microbatch[row]} runs on "
            f"the device"
        ),
        copies[~here],
    )


def _late(program: ScheduleColumns, early: Kind, late: Kind, rule: str) -> Iterator[str]:
    """Pairs of rows of one activation on one device in the wrong order."""
    (early_pairs, early_rows), (late_pairs, late_rows) = (
        _rows_by_pair(program, program.kind == kind) for kind in (early, late)
    )
    _, at_early, at_late = np.intersect1d(early_pairs, late_pairs, return_indices=True)
    before, after = early_rows[at_early], late_rows[at_late]
    wrong = (program.device[before] == program.device[after]) & (before > after)
    yield from first_faults(
        lambda after, before: f"{place(program, after)} stands before {place(program, before)}: {rule}",
        after[wrong],
        before[wrong],
    )
