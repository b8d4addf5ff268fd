"""The compiled engine's loop where transfers queue and nothing else happens: as few columns as that takes.

Like `ppsim.engines.kernels.walk_and_post`, which knows fused slots, SENDs that block, gathers, copies and barriers too.
A transfer frees the queues of two devices, so that under `rank` each step of the walk is on another one, out of the
caches: half as many columns take two thirds of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_compiled, kernel
from ppsim.engines.kernel_columns import NEXT_OF_RECV, NEXT_OF_SEND, RECEIVER, WAITS, Queues, apart, place
from ppsim.engines.times import Queued
from ppsim.plan.resolve import Plan

_START, _END = 0, 1


class Lengths(NamedTuple):
    """Seconds of rows and of their transfers: by [kind, stage], flat, or where `stages` is 0 by row."""

    kind: np.ndarray
    stage: np.ndarray
    stages: int
    seconds: np.ndarray
    transfer_seconds: np.ndarray


class Walk(NamedTuple):
    """Where each device stands: its row, the next post, when it is free, the transfer that it waits for or -1.

    `stack` holds the devices that can go on, `moving` the transfers that are to run; both are scratch.
    """

    position: np.ndarray
    post: np.ndarray
    free_at: np.ndarray
    waiting_for: np.ndarray
    stack: np.ndarray
    moving: np.ndarray


def is_plain(plan: Plan) -> bool:
    """Whether transfers queue in a plan, and nothing else happens beside actions."""
    others = plan.gathers, plan.copies, plan.barriers, plan.ports
    return plan.posts is not None and not plan.blocking and others == (None,) * 4 and not plan.fused.any()


def run_plain(plan: Plan, queues: Queues, position: np.ndarray, posted: np.ndarray, row_end: np.ndarray) -> Queued:
    """Fill `row_end`, `position` and `posted` of a plan whose queues are linked; the times of its transfers."""
    devices, rows = plan.schedule.devices, len(row_end)
    walk = Walk(
        position, posted, np.zeros(devices), np.full(devices, -1), np.arange(devices - 1, -1, -1),
        np.empty(rows, np.int32),
    )  # fmt: skip
    times = apart(rows, 2, np.float64)
    posted += queues.offsets[:-1]
    call_compiled(walk_and_move, plan.schedule.offsets, _lengths(plan), queues, walk, times, row_end)
    posted -= queues.offsets[:-1]
    if (position < plan.schedule.offsets[1:]).any():
        times[queues.links[:, RECEIVER] >= 0, _END] = np.nan
    return Queued(plan, row_end, times)


def _lengths(plan: Plan) -> Lengths:
    schedule, prices = plan.schedule, plan.prices
    if prices is None:
        return Lengths(schedule.kind, schedule.stage, 0, plan.seconds, plan.transfer_seconds)
    return Lengths(schedule.kind, schedule.stage, schedule.num_stages, *(values.ravel() for values in prices))


@kernel
def walk_and_move(offsets, lengths, queues, walk, times, row_end):
    """Fill `times`, start and end by transfer, and `row_end`; `walk` tells where devices stand in the end.

    The start of a transfer is the latest of what it has waited for until it starts, its end its length until it ends.
    """
    fill_lengths(lengths, queues, times, row_end)
    height = len(walk.stack)
    while height > 0:
        height -= 1
        device = walk.stack[height]
        row, last, free = walk.position[device], offsets[device + 1], walk.free_at[device]
        post, last_post = walk.post[device], queues.offsets[device + 1]
        while True:
            while post < last_post and queues.before[post] <= row:
                number = queues.transfer[post]
                times[place(number), _START] = max(times[place(number), _START], free)
                queues.links[place(number), WAITS] -= 1
                if queues.links[place(number), WAITS] == 0:
                    height = move(number, queues, walk, times, height)
                post += 1
            if row == last:
                break
            if queues.links[place(row), RECEIVER] >= 0:
                walk.waiting_for[device] = row
                break
            arrived = times[place(row), _END]
            if arrived > free:  # not where it is nan, of a row that needs no transfer
                free = arrived
            free += lengths.seconds[cell(row, lengths)]
            row_end[row] = free
            row += 1
        walk.position[device], walk.free_at[device], walk.post[device] = row, free, post


@kernel
def cell(row, lengths):
    """Where the lengths of a row stand."""
    return lengths.kind[row] * lengths.stages + lengths.stage[row] if lengths.stages else row


@kernel
def fill_lengths(lengths, queues, times, row_end):
    """Give each transfer its length, and nan to rows that need none."""
    for row in range(len(row_end)):
        times[place(row), _START] = times[place(row), _END] = np.nan
        if queues.links[place(row), RECEIVER] >= 0:
            times[place(row), _START], times[place(row), _END] = 0.0, lengths.transfer_seconds[cell(row, lengths)]


@kernel
def move(first, queues, walk, times, height):
    """Run transfer `first`, which waits for nothing any more, and what that lets go; returns the height of the stack.

    A device that waits for a transfer that ends goes on the stack.
    """
    walk.moving[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = walk.moving[count]
        end = times[place(number), _START] + times[place(number), _END]
        times[place(number), _END] = end
        holder = queues.links[place(number), RECEIVER]
        queues.links[place(number), RECEIVER] = -1
        if walk.waiting_for[holder] == number:
            walk.waiting_for[holder] = -1
            walk.stack[height] = holder
            height += 1
        for side in (NEXT_OF_SEND, NEXT_OF_RECV):
            follower = queues.links[place(number), side]
            if follower >= 0:
                times[place(follower), _START] = max(times[place(follower), _START], end)
                queues.links[place(follower), WAITS] -= 1
                if queues.links[place(follower), WAITS] == 0:
                    walk.moving[count] = follower
                    count += 1
    return height
