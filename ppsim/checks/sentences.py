"""How a fault is said: the action, where it stands in the lists, and how many more there are like it."""

from collections.abc import Callable, Iterator

import numpy as np

from ppsim.schedule.columns import ScheduleColumns

MAX_FAULTS_PER_RULE = 50


def first_faults(sentence: Callable[..., str], *columns: np.ndarray) -> Iterator[str]:
    """A sentence for each of the first entries of equally long columns, and how many more there are."""
    for entries in zip(*(column[:MAX_FAULTS_PER_RULE].tolist() for column in columns), strict=True):
        yield sentence(*entries)
    more = len(columns[0]) - MAX_FAULTS_PER_RULE
    if more > 0:
        yield f"{more} more faults like: {sentence(*(column[-1].item() for column in columns))}"


def position(schedule: ScheduleColumns, row: int) -> str:
    """Where a row stands, as in `schedule.orders()`: both parts of a fused slot share one position."""
    device = int(schedule.device[row])
    first = int(schedule.offsets[device])
    index = row - first - int(np.count_nonzero(schedule.joined[first : row + 1]))
    return f"device {device}, position {index}"


def located(schedule: ScheduleColumns, row: int) -> str:
    """A row's text and where it stands."""
    return f"{schedule.label(row)} ({position(schedule, row)})"
