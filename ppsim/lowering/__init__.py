"""Lowering: a schedule becomes a program, with transfers and sharding actions in its lists."""

from ppsim.errors import ConfigError
from ppsim.lowering.rows import TransferEnds, has_transfers, transfer_ends
from ppsim.lowering.sharding import insert_sharding
from ppsim.lowering.transfers import insert_transfers, postpone_receives
from ppsim.schedule import Program, Schedule

RECEIVES = ("early", "just-in-time")

__all__ = ["RECEIVES", "TransferEnds", "has_transfers", "lower", "transfer_ends"]


def lower(schedule: Schedule, sharded: bool = False, receive: str = "early") -> Program:
    """The program of a schedule, in the order in which PyTorch's pipeline runtime lowers it.

    SEND and RECV stand wherever producer and consumer sit on different devices.

    Parameters
    ----------
    schedule : Schedule or Program
        Of a program the compute actions alone are taken.
    sharded : bool
        Also insert UNSHARD before first use, with a look-ahead of three stages, RESHARD where a stage leaves it, and
        REDUCE_GRAD after a stage's last backward, as sharded data parallelism needs.
    receive : {"early", "just-in-time"}
        A RECV is posted at the moment its SEND is, or as late as the action that needs it and the order of the pair's
        SENDs and RECVs allow (PyTorch's `defer_pp_recv=True`, where that does not cross receives).

    Raises
    ------
    ScheduleError
        The schedule is invalid.
    DeadlockError
        The two parts of a fused slot wait for each other through another device.
    ConfigError
        Unknown `receive`.
    """
    if receive not in RECEIVES:
        raise ConfigError(f"receive={receive!r} is not known; use one of: {', '.join(RECEIVES)}")
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"lower takes a Schedule or a Program, not {type(schedule).__name__}; see ppsim.build")
    schedule.validate()
    compute = schedule.schedule if isinstance(schedule, Program) else schedule
    program = insert_transfers(insert_sharding(compute) if sharded else compute)
    return postpone_receives(program) if receive == "just-in-time" else program
