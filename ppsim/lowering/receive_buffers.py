"""Receive buffers of a program: how long each one lives, and a slot for each that is free at that time."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, shown
from ppsim.base.immutable import EqualColumns
from ppsim.base.short_repr import short_repr
from ppsim.lowering.rows import row_table, row_tables, transfer_ends
from ppsim.schedule.columns import ScheduleColumns

POOLS = ("stage", "direction", "device")


@dataclass(frozen=True, eq=False)
class ReceiveBuffers(EqualColumns):
    """Buffers that receives write to, one entry per RECV of a program, in list order.

    Attributes
    ----------
    device, stage, microbatch : int32 (receives,)
    is_activation : bool (receives,)
        True for RECV_F, False for the gradients of RECV_B.
    first, last : int64 (receives,)
        Rows of the program from the RECV to the action that frees the buffer: the B or W of its stage. Autograd keeps
        a received activation until then, and PyTorch the gradient of a stage's output.
    slot : int32 (receives,)
        The lowest slot of its pool that is free; lifetimes include both ends.
    slots : int64 (devices,)
        Slots of all pools of a device.
    peak : int64 (devices,)
        Most buffers alive at once: what a device holds if each buffer is allocated when its RECV is posted.
    received : int64 (devices,)
        Receives of a step: what a device holds if each has a buffer of its own.
    """

    device: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    is_activation: np.ndarray
    first: np.ndarray
    last: np.ndarray
    slot: np.ndarray
    slots: np.ndarray
    peak: np.ndarray
    received: np.ndarray

    __repr__ = short_repr


def find_receive_buffers(program: ScheduleColumns, pool: str = "stage") -> ReceiveBuffers:
    """Return the receive buffers of a valid program, as `ppsim.Program.receive_buffers`.

    The pool "stage" is that of pytorch/pytorch pull request 196465.
    """
    if not isinstance(pool, str) or pool not in POOLS:
        raise ConfigError(f"pool={shown(pool)} is not known; use one of: {', '.join(POOLS)}")
    ends = transfer_ends(program)
    first = ends.row[~ends.is_send]
    device, stage, microbatch = program.device[first], program.stage[first], program.microbatch[first]
    activation = program.kind[first] == Kind.RECV_F
    weight = row_table(program, program.kind == Kind.W)[stage, microbatch]
    last = np.where(weight >= 0, weight, row_tables(program)[1][stage, microbatch])
    direction = 2 * device.astype(np.int64) + activation
    pools = {"stage": direction * program.num_stages + stage, "direction": direction, "device": device}
    slot, slots = _assigned(first, last, pools[pool], device, program.devices)
    _, peak = _assigned(first, last, device, device, program.devices)
    received = np.bincount(device, minlength=program.devices)
    return ReceiveBuffers(device, stage, microbatch, activation, first, last, slot, slots, peak, received)


def _assigned(
    first: np.ndarray, last: np.ndarray, pool: np.ndarray, device: np.ndarray, devices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slot of each interval in its pool, and the slots of each device; the fewest, as intervals allow."""
    slot, slots = np.empty(len(first), np.int32), np.zeros(devices, np.int64)
    count: dict[int, int] = {}
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    for index, (start, end, of, on) in enumerate(
        zip(first.tolist(), last.tolist(), pool.tolist(), device.tolist(), strict=True)
    ):
        unused, used = free.setdefault(of, []), busy.setdefault(of, [])
        while used and used[0][0] < start:
            heappush(unused, heappop(used)[1])
        if unused:
            slot[index] = heappop(unused)
        else:
            slot[index] = count.get(of, 0)
            count[of] = count.get(of, 0) + 1
            slots[on] += 1
        heappush(used, (end, int(slot[index])))
    return slot, slots
