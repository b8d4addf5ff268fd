"""Lowering: a schedule becomes a program, with transfers and sharding actions in its lists."""

from ppsim.lowering.transfers import has_transfers, insert_transfers
from ppsim.schedule import Program, Schedule

__all__ = ["has_transfers", "lower"]


def lower(schedule: Schedule) -> Program:
    """The program of a schedule: SEND and RECV inserted wherever producer and consumer sit on different devices.

    Raises ScheduleError for an invalid schedule; a program that already holds transfers is lowered from its compute
    actions again.
    """
    schedule.validate()
    return insert_transfers(schedule.schedule if isinstance(schedule, Program) else schedule)
