"""Texts of faults: the action, its position in the lists, and the count of similar faults."""

from collections.abc import Callable, Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import cell_text

MAX_FAULTS_PER_RULE = 50


def first_faults(sentence: Callable[..., str], *columns: np.ndarray) -> Iterator[str]:
    """Yield a sentence for each of the first entries of equally long columns, and the count of the rest."""
    for entries in zip(*(column[:MAX_FAULTS_PER_RULE].tolist() for column in columns), strict=True):
        yield sentence(*entries)
    more = len(columns[0]) - MAX_FAULTS_PER_RULE
    if more > 0:
        yield f"{more} more faults like: {sentence(*(column[-1].item() for column in columns))}"


def position(schedule: ScheduleColumns, row: int) -> str:
    """Return a row's cell in the schedule's table; both parts of a fused slot share one."""
    device = int(schedule.device[row])
    first = int(schedule.offsets[device])
    column = row - first - int(np.count_nonzero(schedule.joined[first : row + 1]))
    for idle in np.sort(schedule.idle[schedule.idle[:, 0] == device, 1]).tolist():
        column += idle <= column
    return cell_text(device, column)


def located(schedule: ScheduleColumns, row: int) -> str:
    """Return a row's text and its position."""
    return f"{schedule.label(row)} ({position(schedule, row)})"


def pairs_of(schedule: ScheduleColumns, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
    """Return one number for stage and microbatch of each of these rows."""
    return schedule.stage[rows].astype(np.int64) * schedule.microbatches + schedule.microbatch[rows]


def late_rows(schedule: ScheduleColumns, early: Kind, late: Kind, rule: str) -> Iterator[str]:
    """Yield actions of the kind `early` after one of the kind `late`, of one activation on one device."""
    earlier, later = np.flatnonzero(schedule.kind == early), np.flatnonzero(schedule.kind == late)
    both = np.intersect1d(pairs_of(schedule, earlier), pairs_of(schedule, later), return_indices=True)
    earlier, later = earlier[both[1]], later[both[2]]
    wrong = (schedule.device[earlier] == schedule.device[later]) & (earlier > later)
    yield from first_faults(
        lambda late, early: f"{located(schedule, late)} stands before {located(schedule, early)}: {rule}",
        later[wrong],
        earlier[wrong],
    )
