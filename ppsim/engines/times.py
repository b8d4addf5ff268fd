"""Times: what an engine returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

NONE = np.empty(0)


class Times(NamedTuple):
    """Start and end of all that a plan runs; float64 arrays, seconds.

    Attributes
    ----------
    row_start, row_end : one entry a row of the schedule
    transfer_start, transfer_end : one entry a row
        Of the transfer that the row consumes; nan where it consumes none.
    unshard_start, unshard_end : one entry a gather of the plan
    reduce_start, reduce_end : one entry a reduction of the plan
    copy_start, copy_end : one entry a copy of the plan
    step_start, step_end : one entry a device
        Of its optimizer step; empty where none was asked for.
    """

    row_start: np.ndarray
    row_end: np.ndarray
    transfer_start: np.ndarray
    transfer_end: np.ndarray
    unshard_start: np.ndarray = NONE
    unshard_end: np.ndarray = NONE
    reduce_start: np.ndarray = NONE
    reduce_end: np.ndarray = NONE
    step_start: np.ndarray = NONE
    step_end: np.ndarray = NONE
    copy_start: np.ndarray = NONE
    copy_end: np.ndarray = NONE
