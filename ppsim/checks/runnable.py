"""What stops a valid schedule or program from running: crossed transfers, deadlocks of queues, PyTorch's own rules."""

from ppsim.base.errors import ConfigError, DeadlockError, ScheduleError, listing, shown
from ppsim.checks.deadlock import require_no_deadlock
from ppsim.checks.faults import validate
from ppsim.checks.program_faults import crossed_transfers
from ppsim.checks.pytorch import pytorch_faults
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.program import lower
from ppsim.lowering.rows import has_transfers
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.waiting import waiting_message


def check(schedule: ScheduleColumns, transport: str | None = None, *, pytorch: bool = False) -> None:
    """Raise ScheduleError where the lists are invalid or could not run; a schedule is lowered first.

    `ppsim.Schedule.check` says what is looked at. ConfigError for an unknown transport.
    """
    if transport is not None and transport not in TRANSPORTS:
        raise ConfigError(f"transport={shown(transport)} is not known; use one of: {', '.join(TRANSPORTS)}")
    validate(schedule)
    program = schedule if has_transfers(schedule) else lower(schedule, sharded=pytorch)
    faults = list(crossed_transfers(program))
    if pytorch:
        faults += pytorch_faults(program)
    if transport is not None:
        try:
            require_no_deadlock(program, transport)
        except DeadlockError as deadlock:
            if not faults:
                raise
            faults.append(waiting_message(f"it deadlocks under transport {transport!r}", deadlock.cycle))
    if faults:
        raise ScheduleError(listing(f"program {schedule.name!r} has {len(faults)} faults", faults), faults)
