"""Texts of faults: the action, its position in the lists, and the count of similar faults."""

from collections.abc import Callable, Iterator

import numpy as np

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
