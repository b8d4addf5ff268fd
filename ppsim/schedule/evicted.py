"""Evicted activations: the rows at which they leave their device and come back to it."""

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.schedule.columns import ScheduleColumns


def evicted_rows(schedule: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """The rows at which `schedule.evicted` leave and are back: at the end of an F and at the start of its B or I.

    Two int64 columns, one entry an eviction. The entries name actions of the schedule.
    """
    stage, microbatch, _ = schedule.evicted.T.astype(np.int64)
    wanted = stage * schedule.microbatches + microbatch
    cell = schedule.stage.astype(np.int64) * schedule.microbatches + schedule.microbatch
    return (
        _rows_of(cell, np.flatnonzero(schedule.kind == Kind.F), wanted),
        _rows_of(cell, np.flatnonzero(is_backward(schedule.kind)), wanted),
    )


def with_visits(
    times: np.ndarray, levels: np.ndarray, arrive: np.ndarray, depart: np.ndarray, amount: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The step curve (times, levels) with visits on top: `amount[i]` more from `arrive[i]` until `depart[i]`.

    Returns times and levels with one entry at each time at which either changes; at one time, what leaves leaves first.
    """
    moved = np.concatenate([arrive, depart])
    order = np.argsort(moved, kind="stable")
    visiting = np.cumsum(np.concatenate([amount, -amount])[order])
    both = np.union1d(times, moved)
    own_at, visits_at = (np.searchsorted(at, both, "right") for at in (times, moved[order]))
    return both, np.append(0.0, levels)[own_at] + np.append(0.0, visiting)[visits_at]


def _rows_of(cell: np.ndarray, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    order = rows[np.argsort(cell[rows])]
    return order[np.searchsorted(cell[order], wanted)]
