"""The nodes of UNSHARDs, gradient reductions, copies and optimizer steps in the graph behind a timeline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.base.immutable import EqualColumns
from ppsim.plan.host_copies import RELOADS, Copies
from ppsim.plan.streams import Gathers
from ppsim.timeline import TimelineColumns

BARRIER, OPTIMIZER, COLLECTIVE = -2, -1, -3  # of a "sync" optimizer; its steps; of an output layer cut over devices


@dataclass(frozen=True, eq=False)
class StreamNodes(EqualColumns):
    """One entry a node, numbered on from the rows and transfers; and the edges from and to them.

    Attributes
    ----------
    kind : int8
        Kind.UNSHARD, Kind.REDUCE_GRAD, BARRIER, OPTIMIZER, Kind.OFFLOAD, Kind.RELOAD or COLLECTIVE.
    seconds, start, end : float64
    before, after : int64 arrays, one entry an edge
    """

    kind: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    before: np.ndarray
    after: np.ndarray


def stream_nodes(run: TimelineColumns, node: np.ndarray) -> StreamNodes:
    """The nodes of a run's streams; `node` names the node of each row."""
    steps = run.optimizer_steps
    spans = [(Kind.UNSHARD, run.unshards), (Kind.REDUCE_GRAD, run.reductions)]
    kind = [np.full(len(span), code, np.int8) for code, span in spans]
    start, end = [span.start for _, span in spans], [span.end for _, span in spans]
    seconds = [ending - starting for starting, ending in zip(start, end, strict=True)]
    if run.plan.gathers is not None:
        seconds[0] = run.plan.gathers.seconds
    if run.plan.reductions is not None:
        seconds[1] = run.plan.reductions.seconds
    first_gather = 2 * len(node)
    first_reduction = first_gather + len(run.unshards)
    edges = _gather_edges(run, node, first_gather) + _reduction_edges(run, node, first_reduction)
    if steps is not None and run.plan.optimizer_seconds is not None:
        barrier = first_reduction + len(run.reductions)
        kind.append(np.array([BARRIER] + [OPTIMIZER] * len(steps), np.int8))
        ready = run.gradients_ready.max() if run.plan.optimizer == "sync" else np.nan
        seconds += [np.array([0.0 if ready == ready else np.nan]), run.plan.optimizer_seconds]
        start += [np.array([ready]), steps.start]
        end += [np.array([ready]), steps.end]
        edges += _optimizer_edges(run, node, first_reduction, barrier)
    if run.plan.copies is not None:
        edges += _copy_edges(run, node, 2 * len(node) + sum(map(len, kind)))
        kind.append(np.where(run.plan.copies.way == RELOADS, Kind.RELOAD, Kind.OFFLOAD).astype(np.int8))
        seconds.append(run.plan.copies.seconds)
        start.append(run.copy_start)
        end.append(run.copy_end)
    if run.plan.barrier_seconds is not None:
        edges += _barrier_edges(run, node, 2 * len(node) + sum(map(len, kind)))
        kind.append(np.full(len(run.plan.barrier_seconds), COLLECTIVE, np.int8))
        seconds.append(run.plan.barrier_seconds)
        start.append(run.barrier_start)
        end.append(run.barrier_end)
    before, after = (np.concatenate(ends).astype(np.int64) for ends in zip(*edges, strict=True))
    columns = [np.concatenate(column) for column in (kind, seconds, start, end)]
    return StreamNodes(columns[0], columns[1], columns[2], columns[3], before, after)


Edges = list[tuple[np.ndarray, np.ndarray]]


def _one_after_the_other(device: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """Each node of a stream after the one before it on its device."""
    later = np.flatnonzero(device[1:] == device[:-1]) + 1
    return first + later - 1, first + later


def _after_what_stands_before(
    run: TimelineColumns, stream: Gathers | Copies, node: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The row before each of what is posted on a stream, where there is one."""
    posted = stream.before > run.schedule.offsets[stream.device]
    return node[stream.before[posted] - 1], number[posted]


def _gather_edges(run: TimelineColumns, node: np.ndarray, first: int) -> Edges:
    """What stands before an UNSHARD, and the row that waits for it."""
    gathers = run.plan.gathers
    if gathers is None:
        return []
    number = first + np.arange(len(gathers.stage))
    return [
        _after_what_stands_before(run, gathers, node, number),
        (number, node[gathers.user]),
        _one_after_the_other(gathers.device, first),
    ]


def _copy_edges(run: TimelineColumns, node: np.ndarray, first: int) -> Edges:
    """What stands before a copy, the copy before it, the OFFLOAD before a RELOAD, and the row that waits for a copy."""
    copies = run.plan.copies
    if copies is None:
        return []
    number = first + np.arange(len(copies.stage))
    needed, late, behind = copies.user >= 0, copies.after >= 0, copies.behind
    return [
        _after_what_stands_before(run, copies, node, number),
        (first + behind[behind >= 0], number[behind >= 0]),
        (first + copies.after[late], number[late]),
        (number[needed], node[copies.user[needed]]),
    ]


def _barrier_edges(run: TimelineColumns, node: np.ndarray, first: int) -> Edges:
    """The rows that a barrier needs, the barrier before it in its stream, and the rows that wait for it."""
    barriers = run.plan.barriers
    if barriers is None:
        return []
    waiting, earlier = np.flatnonzero(barriers.needs >= 0), np.flatnonzero(barriers.following >= 0)
    return [
        (node[barriers.producer], first + barriers.of_producer),
        (first + earlier, first + earlier + 1),
        (first + barriers.needs[waiting], node[waiting]),
    ]


def _reduction_edges(run: TimelineColumns, node: np.ndarray, first: int) -> Edges:
    """The row that completes the gradients before their reduction; an empty pair where nothing is reduced."""
    reductions = run.plan.reductions
    if reductions is None:
        return [(np.empty(0, np.int64), np.empty(0, np.int64))]
    number = first + np.arange(len(reductions.stage))
    return [(node[reductions.after], number), _one_after_the_other(reductions.device, first)]


def _optimizer_edges(run: TimelineColumns, node: np.ndarray, first_reduction: int, barrier: int) -> Edges:
    """A device's last row and reduction before its step, or under "sync" all of them before the barrier before all."""
    step = barrier + 1 + np.arange(run.schedule.devices)
    last_row = node[run.schedule.offsets[1:] - 1]
    device = run.reductions.device
    last = np.flatnonzero(np.append(device[1:] != device[:-1], True)[: len(device)])
    if run.plan.optimizer == "sync":
        ends = np.concatenate([last_row, first_reduction + last])
        return [(ends, np.full(len(ends), barrier)), (np.full(len(step), barrier), step)]
    return [(last_row, step), (first_reduction + last, step[device[last]])]
