"""A schedule as columns: its lists, their text forms, and the waits between rows."""

from ppsim.schedule.barriers import spans_devices
from ppsim.schedule.blocks import Block, backward_run, concatenate, forward_run, fuse
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import read_csv

__all__ = [
    "Block", "ScheduleColumns", "backward_run", "concatenate", "forward_run", "fuse", "read_csv", "spans_devices",
]  # fmt: skip
