"""From a schedule to a program: the steps in their order."""

from ppsim.base.errors import ConfigError
from ppsim.lowering.sharding import insert_sharding
from ppsim.lowering.transfers import insert_transfers, postpone_receives
from ppsim.schedule.columns import ScheduleColumns

RECEIVES = ("early", "just-in-time")


def lower(schedule: ScheduleColumns, sharded: bool = False, receive: str = "early") -> ScheduleColumns:
    """The program of a valid schedule, or of the compute actions and copies of a program; see `ppsim.lower`.

    Raises DeadlockError where the two parts of a fused slot wait for each other through another device, ConfigError
    for an unknown `receive`.
    """
    if receive not in RECEIVES:
        raise ConfigError(f"receive={receive!r} is not known; use one of: {', '.join(RECEIVES)}")
    lists = schedule.unlowered
    program = insert_transfers(insert_sharding(lists) if sharded else lists)
    return postpone_receives(program) if receive == "just-in-time" else program
