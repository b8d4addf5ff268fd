"""The compiled engine: the same timeline as the event model, bit for bit, some thousand times faster."""

from collections.abc import Callable

import numpy as np

from ppsim.base.compiling import call_compiled
from ppsim.base.immutable import unwritable
from ppsim.checks.deadlock import deadlock_error
from ppsim.engines import kernels
from ppsim.engines.kernels import (
    RECEIVER,
    ROW_END,
    TRANSFER_END,
    TRANSFER_START,
    BarrierColumns,
    Devices,
    Queues,
    Rows,
    StreamColumns,
    Streams,
)
from ppsim.engines.times import RowEnds, Times, first_starts
from ppsim.lowering.posts import Posts
from ppsim.plan.resolve import Plan
from ppsim.plan.streams import SideStream, no_copies
from ppsim.schedule.recurrence import Lengths, run_rows, run_with_lengths


def main_kernel(plan: Plan) -> Callable:
    """Return the kernel that takes longest to compile of those that run a plan, or one that takes as long."""
    if plan.posts is None:
        return run_rows
    return kernels.run_queues


def run_compiled(plan: Plan) -> Times | RowEnds:
    """Return the times of everything in a plan by following dependencies, without a clock; DeadlockError.

    A time is the largest of a few earlier times plus a length, in whatever order the times are computed. Only if
    transfers share ports, or copies a switch, does that order matter.
    """
    return _run_unqueued(plan) if plan.posts is None else _run_queued(plan, plan.posts)


def _run_unqueued(plan: Plan) -> RowEnds:
    schedule = plan.schedule
    lengths = _lengths(plan, plan.transfer_lengths.ndim == plan.row_lengths.ndim == 2)
    position, row_end, busy = run_with_lengths(
        schedule.offsets, schedule.source, lengths, plan.fused, always_compiled=True
    )
    if not np.array_equal(position, schedule.offsets[1:]):
        posted = np.zeros(schedule.devices, np.int64)
        arrived = plan.remote & (row_end[plan.source] >= 0)
        raise deadlock_error(schedule, plan.transport, None, plan.fused, position, posted, arrived)
    return RowEnds(row_end, busy, first_starts(plan, row_end), **_step_end(plan, row_end))


def _lengths(plan: Plan, by_kind: bool) -> Lengths:
    schedule = plan.schedule
    if not by_kind:
        return Lengths.by_row(plan.seconds, plan.transfer_seconds)
    values = plan.row_lengths.ravel(), plan.transfer_lengths.ravel()
    return Lengths(schedule.kind, schedule.stage, schedule.num_stages, *values)


def _run_queued(plan: Plan, posts: Posts) -> Times:
    schedule, rows = plan.schedule, len(plan.schedule.kind)
    in_time_order = plan.ports is not None or (plan.copies is not None and plan.copies.lines > 0)
    links = np.empty((rows, 4), np.int32)
    queues = Queues(posts.offsets, posts.transfer, posts.is_send, posts.before, posts.queue, links)
    call_compiled(kernels.link_queues, queues)
    by_kind = plan.transfer_lengths.ndim == plan.row_lengths.ndim == 2 and not in_time_order
    lengths = _lengths(plan, by_kind)
    columns = Rows(
        schedule.offsets, schedule.device, schedule.source, plan.fused, lengths, plan.blocking, plan.message_overhead
    )
    times, devices = np.empty((len(links), 4)), _devices(plan, posts)
    scratch = np.arange(schedule.devices - 1, -1, -1, dtype=np.int32), np.empty(len(links), np.int32)
    streams = _streams(plan)
    if not in_time_order:
        call_compiled(kernels.run_queues, columns, queues, streams, devices, *scratch, times)
    else:
        from ppsim.engines.contention import make_items, port_capacity, run_in_time_order

        items, links = make_items(plan, posts, links, streams.barriers)
        queues, times = queues._replace(links=links), np.empty((len(links), 4))
        waits = lengths.waits, streams.copies.seconds, streams.barriers.seconds
        columns = columns._replace(lengths=lengths._replace(waits=np.concatenate(waits)))
        call_compiled(run_in_time_order, columns, queues, *streams, items, port_capacity(plan), devices, times)
        cuts = items.first_copy, items.first_barrier
        _, streams.copies.start[:], streams.barriers.start[:] = np.split(times[:, TRANSFER_START], cuts)
        _, streams.copies.end[:], streams.barriers.end[:] = np.split(times[:, TRANSFER_END], cuts)
    if not np.array_equal(devices.position, schedule.offsets[1:]):
        arrived = plan.remote & (queues.links[:rows, RECEIVER] < 0)
        state = devices.position, devices.next_post - posts.offsets[:-1], arrived
        raise deadlock_error(schedule, plan.transport, posts, plan.fused, *state)
    of_rows = unwritable(times)[:rows].T  # a timeline need not copy columns of a table that nobody can write to
    gathers, copies, barriers = streams
    return Times(
        *of_rows, unshard_start=gathers.start, unshard_end=gathers.end, copy_start=copies.start, copy_end=copies.end,
        barrier_start=barriers.start, barrier_end=barriers.end, **_step_end(plan, of_rows[ROW_END]),
    )  # fmt: skip


def _step_end(plan: Plan, row_end: np.ndarray) -> dict[str, np.ndarray]:
    """Return start and end of each gradient reduction and of each device's optimizer step, seconds.

    A reduction starts when its gradients and the reduction before it are complete. An optimizer step starts when the
    gradients of its device are complete ("post-validated", arXiv 2401.10241, section 4), or of all devices ("sync").
    """
    ready, times = row_end[plan.schedule.offsets[1:] - 1], {}
    if (reductions := plan.reductions) is not None:
        start = row_end[reductions.before - 1]
        end = np.empty_like(start)
        waits = zip(reductions.previous.tolist(), reductions.seconds, strict=True)
        for number, (previous, seconds) in enumerate(waits):
            if previous >= 0:
                start[number] = max(start[number], end[previous])
            end[number] = start[number] + seconds
        np.maximum.at(ready, reductions.device, end)
        times |= {"reduce_start": start, "reduce_end": end}
    if plan.optimizer_seconds is not None:
        start = np.full_like(ready, ready.max()) if plan.optimizer == "sync" else ready
        times |= {"step_start": start, "step_end": start + plan.optimizer_seconds}
    return times


def _devices(plan: Plan, posts: Posts) -> Devices:
    """Return the state of all devices before their first row."""
    count = plan.schedule.devices
    return Devices(
        position=plan.schedule.offsets[:-1].copy(),
        next_post=posts.offsets[:-1].copy(),
        waiting_for=np.full(count, -1, np.int64),
        running_until=np.full(count, -1, np.int64),
        free_at=np.zeros(count),
        sends_done=posts.offsets[:-1].copy(),
        sent_at=np.zeros(count),
    )


def _streams(plan: Plan) -> Streams:
    return Streams(_stream_columns(plan, plan.gathers), _stream_columns(plan, plan.copies), _barrier_columns(plan))


def _stream_columns(plan: Plan, stream: SideStream | None) -> StreamColumns:
    """Return the gathers or copies of a plan, with times to be filled."""
    devices = plan.schedule.devices
    stream = no_copies(devices) if stream is None else stream
    count = len(stream.seconds)
    of_row = np.full(len(plan.schedule.kind) if count else 0, -1, np.int32)
    needed = np.flatnonzero(stream.user >= 0)
    of_row[stream.user[needed]] = needed
    start, end = np.full((2, count), np.nan)
    return StreamColumns(
        stream.offsets, stream.way, stream.before, stream.after, stream.seconds, start, end, of_row,
        stream.offsets[:-1].copy(), np.zeros((devices, 2)),
    )  # fmt: skip


def _barrier_columns(plan: Plan) -> BarrierColumns:
    """Return the barriers, with times to be filled."""
    barriers = plan.barriers
    if barriers is None or plan.barrier_seconds is None:
        none, needs, seconds = np.empty(0, np.int32), unwritable(np.empty(0, np.int32)), unwritable(np.empty(0))
        return BarrierColumns(needs, none, none, none, seconds, np.empty(0), np.empty(0))
    feeds = np.full(len(barriers.needs), -1, np.int32)
    feeds[barriers.producer] = barriers.of_producer
    following = barriers.following
    waits = np.diff(barriers.first).astype(np.int32)
    waits[following[following >= 0]] += 1
    start, end = np.zeros(len(barriers)), np.full(len(barriers), np.inf)
    return BarrierColumns(barriers.needs, feeds, following, waits, plan.barrier_seconds, start, end)
