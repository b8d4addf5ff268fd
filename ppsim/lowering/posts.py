"""How transfers queue: the SENDs and RECVs of a program, when its devices post them and which FIFO they join."""

from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.lowering.rows import transfer_ends
from ppsim.schedule.columns import ScheduleColumns

TRANSPORTS = ("async", "directed", "pair", "rank", "blocking")


@dataclass(frozen=True)
class Posts:
    """SENDs and RECVs in program order; device d owns posts `offsets[d]:offsets[d + 1]`.

    Attributes
    ----------
    offsets : int64 (devices + 1,)
    transfer : int32 (posts,)
        The transfer posted, named by the row that consumes it.
    is_send : bool (posts,)
    before : int32 (posts,)
        The post waits for all rows of its device below this one.
    queue : int64 (posts,)
        The FIFO that the post joins on its own device; the numbers tell queues apart and mean nothing else.
    """

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray


def queued_posts(program: ScheduleColumns, transport: str) -> Posts:
    """The posts of a valid program under a transport other than `async`."""
    devices = program.devices
    ends = transfer_ends(program)
    owner = program.device[ends.row].astype(np.int64)
    queue = {
        "directed": (owner * devices + ends.peer) * 2 + ends.is_send,
        "pair": owner * devices + ends.peer,
        "rank": owner,
    }["directed" if transport == "blocking" else transport]
    compute_before = np.concatenate([[0], np.cumsum(program.kind < FIRST_TRANSFER)]).astype(np.int32)
    return Posts(
        np.searchsorted(ends.row, program.offsets),
        compute_before[ends.consumer],
        ends.is_send,
        compute_before[ends.row],
        queue,
    )


def unqueued_posts(compute: ScheduleColumns, remote: np.ndarray) -> Posts:
    """Each SEND directly behind its producer, each RECV where its device begins, and each in a queue of its own.

    `remote` is `crosses_devices(compute)`.
    """
    consumer = np.flatnonzero(remote).astype(np.int32)
    producer = compute.source[consumer]
    owner = np.concatenate([compute.device[consumer], compute.device[producer]])
    before = np.concatenate([compute.offsets[compute.device[consumer]], producer + 1]).astype(np.int32)
    order = np.lexsort((before, owner))
    return Posts(
        np.searchsorted(owner[order], np.arange(compute.devices + 1)),
        np.tile(consumer, 2)[order],
        np.repeat([False, True], len(consumer))[order],
        before[order],
        np.arange(len(order)),
    )
