"""The compiled engine: the same timeline as the event model, bit for bit, some thousand times faster."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ppsim.base.compiling import call_compiled
from ppsim.checks.deadlock import deadlock_error
from ppsim.engines import kernels
from ppsim.engines.ending import run_optimizer, run_reductions
from ppsim.engines.kernel_columns import (
    BarrierColumns,
    CopyColumns,
    Devices,
    GatherColumns,
    PortColumns,
    Queues,
    Rows,
    RowTimes,
    apart,
)
from ppsim.engines.plain_queues import is_plain, run_plain, walk_and_move
from ppsim.engines.times import Times, Unqueued
from ppsim.plan.ports import Ports
from ppsim.plan.resolve import Plan, Posts
from ppsim.schedule.recurrence import PricedLists, sweep, walk


def main_kernel(plan: Plan) -> Callable:
    """The kernel that takes longest to compile of those that run a plan, or one that takes as long."""
    if plan.posts is not None:
        return walk_and_move if is_plain(plan) else kernels.walk_and_post
    return walk if plan.prices is None else sweep


class CompiledModel:
    """Runs a plan by following who waits for whom, without a clock.

    A time is the largest of a few earlier times plus a length, in whatever order the times are worked out. Only where
    transfers share ports, or copies a switch, does that order matter.
    """

    def __init__(self, plan: Plan):
        self.plan = plan
        offsets = plan.schedule.offsets
        self.row_end = np.full(int(offsets[-1]), -1.0, np.float64)
        self.position = offsets[:-1].copy()
        self.posted = np.zeros(plan.schedule.devices, np.int64)
        self.gathers = _gather_columns(plan)
        self.copies = _copy_columns(plan)
        self.barriers = _barrier_columns(plan)

    def run(self) -> Times:
        """The times of all that the plan holds; DeadlockError."""
        plan = self.plan
        if plan.posts is None:
            row_start, transfer_start, transfer_end = self._run_unqueued()
        else:
            row_start, transfer_start, transfer_end = self._run_queued(plan.posts)
        if not np.array_equal(self.position, plan.schedule.offsets[1:]):
            state = self.position, self.posted, self._arrived(transfer_end)
            raise deadlock_error(plan.schedule, plan.transport, plan.posts, plan.fused, *state)
        reduce = run_reductions(plan, self.row_end)
        step = run_optimizer(plan, self.row_end, reduce[1])
        gathers, copies = self.gathers, self.copies
        transfers = transfer_start, transfer_end, gathers.start, gathers.end
        return Times(
            row_start,
            self.row_end,
            *transfers,
            *reduce,
            *step,
            copies.start,
            copies.end,
            self.barriers.start,
            self.barriers.end,
        )

    def _run_unqueued(self) -> tuple[Any, ...]:
        plan, schedule, prices = self.plan, self.plan.schedule, self.plan.prices
        state = self.position, self.row_end
        if prices is not None:
            rows, busy = (schedule.offsets, schedule.kind, schedule.stage, schedule.source), np.zeros(schedule.devices)
            call_compiled(sweep, PricedLists(*rows, *prices), *state, busy)
            if np.array_equal(self.position, schedule.offsets[1:]):
                plan.keep_device_seconds(busy)
        if not np.array_equal(self.position, schedule.offsets[1:]):
            links = plan.source, plan.remote, plan.transfer_seconds
            any_fused = bool(plan.fused.any())
            call_compiled(walk, schedule.offsets, plan.seconds, plan.fused, any_fused, *links, *state)
        return Unqueued(plan, self.row_end).parts

    def _run_queued(self, posts: Posts) -> tuple[Any, ...]:
        plan = self.plan
        queues = Queues(
            posts.offsets, posts.transfer, posts.is_send, posts.before, posts.queue,
            apart(len(self.row_end), 4, np.int32),
        )  # fmt: skip
        call_compiled(kernels.link_queues, queues)
        if is_plain(plan):
            return run_plain(plan, queues, self.position, self.posted, self.row_end).parts
        rows = Rows(
            plan.schedule.offsets, plan.schedule.device, plan.seconds, plan.fused, plan.source, plan.remote,
            plan.transfer_seconds, plan.blocking,
        )  # fmt: skip
        # Start and end of a transfer beside each other, as they are looked at together.
        times = RowTimes(np.empty(len(plan.seconds)), self.row_end, *np.empty((len(plan.seconds), 2)).T)
        devices = self._devices(posts)
        if plan.ports is None and not len(self.copies.free):
            call_compiled(kernels.walk_and_post, rows, queues, self.gathers, self.copies, self.barriers, devices, times)
        else:
            from ppsim.engines.contention import run_in_time_order

            ports = _port_columns(plan.ports, posts, len(plan.seconds))
            call_compiled(
                run_in_time_order, rows, queues, self.gathers, self.copies, self.barriers, ports, devices, times
            )
        return times.row_start, times.transfer_start, times.transfer_end

    def _devices(self, posts: Posts) -> Devices:
        """All devices at their beginning."""
        count = self.plan.schedule.devices
        return Devices(
            position=self.position,
            posted=self.posted,
            waiting_for=np.full(count, -1, np.int64),
            running_until=np.full(count, -1, np.int64),
            free_at=np.zeros(count),
            sends_done=posts.offsets[:-1].copy(),
            sent_at=np.zeros(count),
            next_gather=self.gathers.offsets[:-1].copy(),
            gathered_at=np.zeros(count),
            next_copy=self.copies.offsets[:-1].copy(),
            copied_at=np.zeros((count, 2)),
            waiting_at=np.full(count, -1, np.int64),
        )

    def _arrived(self, transfer_end: Any) -> np.ndarray:
        """Transfers that have ended at a standstill, by consuming row."""
        ended = ~np.isnan(transfer_end) if isinstance(transfer_end, np.ndarray) else transfer_end.of.transfers_ended
        return self.plan.remote & ended


def _gather_columns(plan: Plan) -> GatherColumns:
    """The gathers, with times to be filled."""
    gathers, offsets = plan.gathers, plan.schedule.offsets
    if gathers is None:
        none = np.empty(0, np.int32)
        return GatherColumns(np.zeros(len(offsets), np.int64), none, np.empty(0), np.empty(0), np.empty(0), none)
    of_row = np.full(int(offsets[-1]), -1, np.int32)
    of_row[gathers.user] = np.arange(len(gathers.user))
    start, end = np.empty((2, len(gathers.stage)))
    return GatherColumns(gathers.offsets, gathers.before, gathers.seconds, start, end, of_row)


def _copy_columns(plan: Plan) -> CopyColumns:
    """The copies, with times to be filled."""
    copies, offsets = plan.copies, plan.schedule.offsets
    if copies is None:
        ways, numbers, seconds = (np.empty(0, kind) for kind in (np.int8, np.int32, np.float64))
        followers = numbers, numbers, ways, np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool)
        begin = np.zeros(len(offsets), np.int64)
        return CopyColumns(begin, ways, numbers, numbers, seconds, seconds, seconds, numbers, *followers)
    of_row = np.full(int(offsets[-1]), -1, np.int32)
    needed = np.flatnonzero(copies.user >= 0)
    of_row[copies.user[needed]] = needed
    behind = copies.behind
    next_of_engine, reload = np.full((2, len(behind)), -1)
    next_of_engine[behind[behind >= 0]] = np.flatnonzero(behind >= 0)
    late = np.flatnonzero(copies.after >= 0)
    reload[copies.after[late]] = late
    waits = 1 + (behind >= 0) + (copies.after >= 0)
    start, end = np.full((2, len(behind)), np.nan)
    columns = copies.offsets, copies.way, copies.before, copies.after, copies.seconds, start, end, of_row
    followers = copies.device, copies.line, waits.astype(np.int8), next_of_engine, reload, np.ones(copies.lines, bool)
    return CopyColumns(*columns, *followers)


def _barrier_columns(plan: Plan) -> BarrierColumns:
    """The barriers, with times to be filled."""
    barriers = plan.barriers
    if barriers is None or plan.barrier_seconds is None:
        none = np.empty(0, np.int32)
        return BarrierColumns(none, none, none, none, np.empty(0), np.empty(0), np.empty(0))
    feeds = np.full(len(barriers.needs), -1, np.int32)
    feeds[barriers.producer] = barriers.of_producer
    following = barriers.following
    waits = np.diff(barriers.first).astype(np.int32)
    waits[following[following >= 0]] += 1
    start, end = np.zeros(len(barriers)), np.full(len(barriers), np.inf)
    return BarrierColumns(barriers.needs, feeds, following, waits, plan.barrier_seconds, start, end)


def _port_columns(ports: Ports | None, posts: Posts, rows: int) -> PortColumns:
    """The ports, and the SEND of each transfer."""
    if ports is None:
        return PortColumns(np.full((rows, 1), -1, np.int32), np.empty(0, np.int64), np.empty(0, np.int64))
    send_post = np.zeros(len(ports.of_transfer), np.int64)
    send_post[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
    return PortColumns(ports.of_transfer, ports.capacity, send_post)
