"""The compiled engine: the same timeline as the event model, bit for bit, some thousand times faster."""

from collections.abc import Callable

import numpy as np

from ppsim.base.compiling import call_compiled
from ppsim.base.immutable import unwritable
from ppsim.checks.deadlock import deadlock_error
from ppsim.engines import kernels
from ppsim.engines.kernels import (
    NEXT,
    RECEIVER,
    ROW_END,
    TRANSFER_END,
    TRANSFER_START,
    WAITS,
    Devices,
    Items,
    Posted,
    Rows,
)
from ppsim.engines.times import RowEnds, Times, first_starts
from ppsim.lowering.posts import Posts
from ppsim.plan.resolve import Plan
from ppsim.plan.streams import SideStream
from ppsim.schedule.barriers import Barriers
from ppsim.schedule.recurrence import Lengths, run_rows, run_with_lengths


def main_kernel(plan: Plan) -> Callable:
    """Return the kernel that takes longest to compile of those that run a plan, or one that takes as long."""
    return run_rows if plan.posts is None else kernels.run_queues


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
    posted, items, seconds = _posted_items(plan, posts)
    times, devices = np.empty((len(items.links), 4)), _devices(plan, posted)
    by_kind = plan.transfer_lengths.ndim == plan.row_lengths.ndim == 2 and not in_time_order
    columns = Rows(
        schedule.offsets, schedule.device, schedule.source, plan.fused, _lengths(plan, by_kind), plan.blocking,
        plan.message_overhead,
    )  # fmt: skip
    if not in_time_order:
        times[rows:, TRANSFER_START], times[rows:, TRANSFER_END] = 0.0, seconds
        scratch = np.arange(schedule.devices - 1, -1, -1, dtype=np.int32), np.empty(len(times), np.int32)
        call_compiled(kernels.run_queues, columns, posted, items, devices, *scratch, times)
    else:
        from ppsim.engines.contention import make_lines, run_in_time_order

        items, lines = make_lines(plan, posts, items)
        waits = np.concatenate([columns.lengths.waits, seconds])
        columns = columns._replace(lengths=columns.lengths._replace(waits=waits))
        call_compiled(run_in_time_order, columns, posted, items, lines, devices, times)
    if not np.array_equal(devices.position, schedule.offsets[1:]):
        arrived = plan.remote & (items.links[:rows, RECEIVER] < 0)
        of_transfers = np.append(0, np.cumsum(posted.item < rows))
        made = of_transfers[devices.next_post] - of_transfers[posted.offsets[:-1]]
        raise deadlock_error(schedule, plan.transport, posts, plan.fused, devices.position, made, arrived)
    times = unwritable(times)  # so that a timeline need not copy its columns
    first_copy = rows + (0 if plan.gathers is None else len(plan.gathers.seconds))
    of_rows, gathers, copies, barriers = (part.T for part in np.split(times, [rows, first_copy, items.first_barrier]))
    unshard, copy, barrier = (part[TRANSFER_START:] for part in (gathers, copies, barriers))
    return Times(
        *of_rows, **_step_end(plan, of_rows[ROW_END]), unshard_start=unshard[0], unshard_end=unshard[1],
        copy_start=copy[0], copy_end=copy[1], barrier_start=barrier[0], barrier_end=barrier[1],
    )  # fmt: skip


def _posted_items(plan: Plan, posts: Posts) -> tuple[Posted, Items, np.ndarray]:
    """Return what the devices of a plan post, its items, and the seconds of the items that are not transfers."""
    schedule, rows = plan.schedule, len(plan.schedule.kind)
    links = np.empty((rows, 4), np.int32)
    call_compiled(kernels.link_queues, posts.offsets, posts.transfer, posts.is_send, posts.queue, links)
    posted = Posted(posts.offsets, posts.transfer, posts.is_send, posts.before)
    if plan.gathers is None and plan.copies is None and plan.barriers is None:
        return posted, Items(links, np.empty((0, 3), np.int32), rows), np.empty(0)
    needed, count = np.full((rows, 3), -1, np.int32), rows
    tables, seconds, made = [links], [], [(posts.device, posts.before, posts.transfer)]
    for column, stream in enumerate((plan.gathers, plan.copies)):
        if stream is not None:
            number = count + np.arange(len(stream.seconds))
            used = stream.user >= 0
            needed[stream.user[used], column] = number[used]
            tables.append(_stream_links(stream, count))
            seconds.append(stream.seconds)
            made.append((stream.device, stream.before, number))
            count += len(number)
    if (barriers := plan.barriers) is not None:
        needed[:, 2] = np.where(barriers.needs >= 0, count + barriers.needs, -1)
        tables.append(_barrier_links(barriers, count))
        seconds.append(barriers.seconds)
        # Before other posts at the same row: messages may take time of the host.
        made.insert(0, (schedule.device[barriers.producer], barriers.producer + 1, count + barriers.of_producer))
    items = Items(np.concatenate(tables), needed, count)
    return _in_program_order(plan, posted, made), items, np.concatenate(seconds)


def _in_program_order(plan: Plan, ends: Posted, made: list[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Posted:
    """Return posts, given by device, next row and item, device by device; at equal rows they keep the order given.

    `ends` are the posts of transfers alone.
    """
    device, before, item = (np.concatenate(column) for column in zip(*made, strict=True))
    if plan.fused.any():
        before = before + np.append(plan.fused, False)[before]  # no device posts within a slot
    key = device + before  # rises within a device, and from device to device
    order = np.argsort(key, kind="stable")
    item = item[order].astype(np.int32)
    is_send = np.zeros(len(item), bool)
    is_send[item < len(plan.schedule.kind)] = ends.is_send  # they stay in program order
    first_keys = np.append(plan.schedule.offsets[:-1] + np.arange(plan.schedule.devices), key.max() + 1)
    return Posted(np.searchsorted(key[order], first_keys), item, is_send, before[order].astype(np.int32))


def _stream_links(stream: SideStream, first: int) -> np.ndarray:
    """Return the links of gathers or copies, whose numbers begin with `first`."""
    links = np.full((len(stream.seconds), 4), -1, np.int32)
    links[:, WAITS] = 1  # its post
    links[:, RECEIVER] = stream.device
    for column, before in enumerate((stream.previous, stream.after), NEXT):
        waiting = np.flatnonzero(before >= 0)
        links[waiting, WAITS] += 1
        links[before[waiting], column] = first + waiting
    return links


def _barrier_links(barriers: Barriers, first: int) -> np.ndarray:
    """Return the links of barriers, whose numbers begin with `first`; each device may wait for a barrier."""
    links = np.full((len(barriers), 4), -1, np.int32)
    links[:, WAITS] = np.diff(barriers.first)
    links[barriers.followed + 1, WAITS] += 1
    links[barriers.followed, NEXT] = first + barriers.followed + 1
    return links


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


def _devices(plan: Plan, posted: Posted) -> Devices:
    """Return the state of all devices before their first row."""
    count = plan.schedule.devices
    return Devices(
        position=plan.schedule.offsets[:-1].copy(),
        next_post=posted.offsets[:-1].copy(),
        waiting_for=np.full(count, -1, np.int64),
        running_until=np.full(count, -1, np.int64),
        free_at=np.zeros(count),
        sends_done=posted.offsets[:-1].copy(),
        sent_at=np.zeros(count),
    )
