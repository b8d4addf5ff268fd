"""The graph behind a timeline: what had to end before what could start, as plain edge columns."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.immutable import EqualColumns
from ppsim.plan.host_copies import RELOADS, Copies
from ppsim.plan.ports import Ports
from ppsim.plan.resolve import Plan, Posts
from ppsim.plan.streams import Gathers
from ppsim.timeline import TimelineColumns


def port_edges(
    run: TimelineColumns, ports: Ports, posts: Posts, ready: np.ndarray, depth: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of transfers (before, after) where the later one took the place of the earlier, both by consuming row.

    A transfer that reached the head of a line because another let it pass also counts behind what had held that one up.
    `ready` is when each transfer joined its lines; of those that take no time and start at one moment, `depth` says
    which wait for others, and those come later. The order is that of this run: with other costs it may be another.
    """
    turn = np.zeros(len(ready), np.int64)
    turn[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
    through = np.flatnonzero((ports.of_transfer >= 0).any(axis=1))
    through = through[np.lexsort((turn[through], depth[through], ready[through], run.transfer_start[through]))]
    places = [[(-np.inf, -1)] * count for count in ports.capacity.tolist()]
    last_in_line: dict[int, int] = {}
    let_in: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    starts, ends, joined = run.transfer_start.tolist(), run.transfer_end.tolist(), ready.tolist()
    for transfer, lines in zip(through.tolist(), ports.of_transfer[through].tolist(), strict=True):
        start, end = starts[transfer], ends[transfer]
        used = [port for port in lines if port >= 0]
        free = [heapq.heappop(places[port]) for port in used]
        let_in[transfer] = [before for until, before in free if until == start]
        if start > joined[transfer] and not let_in[transfer]:
            heads = {last_in_line[port] for port in used if port in last_in_line}
            let_in[transfer] = [before for head in heads if starts[head] == start for before in let_in[head]]
        earlier = {before for until, before in free if before >= 0 and until <= start}
        pairs += [(before, transfer) for before in sorted(earlier | {*let_in[transfer]} - {-1})]
        for port in used:
            heapq.heappush(places[port], (end, transfer))
            last_in_line[port] = transfer
    before, after = np.array(pairs, np.int64).reshape(-1, 2).T
    return before, after


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


@dataclass(frozen=True, eq=False)
class StepGraph(EqualColumns):
    """Nodes are all that takes time; an edge says "ends before".

    First the rows of the schedule (0..n-1), then the transfers (n + consuming row), then what runs on other streams:
    UNSHARDs, gradient reductions, the barrier of a "sync" optimizer, one optimizer step a device, copies, and the
    collectives of an output layer that is cut over devices.

    Attributes
    ----------
    before, after : int64 arrays, one entry an edge
        Node `after` starts no earlier than node `before` ends. The second row of a timed fused slot is no node: its
        edges belong to the first.
    seconds, start, end : float64 arrays, one entry a node
        nan where the node does not exist.
    stream_kind : int8 array, one entry a node from 2 n on
        Kind.UNSHARD, REDUCE_GRAD, OFFLOAD, RELOAD, or one of `BARRIER`, `OPTIMIZER` and `COLLECTIVE`.
    """

    before: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    stream_kind: np.ndarray

    @cached_property
    def order(self) -> np.ndarray:
        """The existing nodes, each after all that end before it; int64."""
        return topological_order(self.before, self.after, ~np.isnan(self.seconds))

    @cached_property
    def edges_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Followers of node i: `targets[first[i]:first[i + 1]]`, as (first, targets)."""
        return grouped(self.before, self.after, len(self.seconds))


def grouped(key: np.ndarray, value: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """The values of key i in the order given: `values[first[i]:first[i + 1]]`, as (first, values)."""
    by_key = np.argsort(key, kind="stable")
    return np.concatenate([[0], np.cumsum(np.bincount(key, minlength=keys))]), value[by_key]


def topological_order(before: np.ndarray, after: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """The nodes that exist, each after all that have an edge to it (Kahn's algorithm); int64."""
    nodes = len(exists)
    waits, order = np.bincount(after, minlength=nodes), np.empty(nodes, np.int64)
    ready = np.flatnonzero((waits == 0) & exists)
    stack = np.concatenate([ready, np.empty(nodes, np.int64)])
    edges = grouped(before, after, nodes)
    return order[: call_fastest(in_topological_order, nodes, *edges, waits, stack, len(ready), order)]


@kernel
def in_topological_order(first, targets, waits, stack, height, order):
    """Fill `order`, from the ready nodes on the stack; the number of nodes in it."""
    count = 0
    while height > 0:
        height -= 1
        node = stack[height]
        order[count] = node
        count += 1
        for edge in range(first[node], first[node + 1]):
            target = targets[edge]
            waits[target] -= 1
            if waits[target] == 0:
                stack[height] = target
                height += 1
    return count


def step_graph(run: TimelineColumns) -> StepGraph:
    """The graph of a run; under a queued transport with each queue's order, and with ports the order of this run."""
    plan = run.plan
    rows = len(plan.seconds)
    node = plan.slot_of_row
    streams = stream_nodes(run, node)
    edges = [_list_edges(plan, node), _transfer_edges(plan, node, rows)]
    if plan.posts is not None:
        edges.append(_queue_edges(plan, plan.posts, node, rows))
    if plan.ports is not None and plan.posts is not None:
        starts = np.concatenate([run.row_start, run.transfer_start, streams.start])
        depth = _depth_of_instant(starts, [*edges, (streams.before, streams.after)])[rows : 2 * rows]
        before, after = port_edges(run, plan.ports, plan.posts, _latest_ends(run, edges), depth)
        edges.append((rows + before, rows + after))
    edges.append((streams.before, streams.after))
    gone, none = plan.fused, ~plan.remote
    columns = [
        (plan.seconds, plan.transfer_seconds, streams.seconds),
        (run.row_start, run.transfer_start, streams.start),
        (run.row_end, run.transfer_end, streams.end),
    ]
    seconds, start, end = (
        np.concatenate([np.where(gone, np.nan, of_row), np.where(none, np.nan, of_transfer), of_stream])
        for of_row, of_transfer, of_stream in columns
    )
    before, after = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    return StepGraph(before, after, seconds, start, end, streams.kind)


def _latest_ends(run: TimelineColumns, edges: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """For each transfer the latest end of what has to end before it."""
    ends = np.concatenate([run.row_end, run.transfer_end])
    latest = np.full(len(ends), -np.inf)
    for before, after in edges:
        np.maximum.at(latest, after, ends[before])
    return latest[len(run.row_end) :]


def _depth_of_instant(starts: np.ndarray, edges: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """How many nodes that start at the same moment each node waits for, one after the other; 0 where all take time."""
    before, after = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    same = starts[before] == starts[after]
    depth = np.zeros(len(starts), np.int64)
    if not same.any():
        return depth
    nodes, compact = np.unique(np.concatenate([before[same], after[same]]), return_inverse=True)
    before, after = compact.reshape(2, -1)
    edges_from = np.argsort(before, kind="stable")
    first = np.searchsorted(before[edges_from], np.arange(len(nodes) + 1)).tolist()
    targets, deep = after[edges_from].tolist(), [0] * len(nodes)
    for node in topological_order(before, after, np.ones(len(nodes), bool)).tolist():
        for target in targets[first[node] : first[node + 1]]:
            deep[target] = max(deep[target], deep[node] + 1)
    depth[nodes] = deep
    return depth


def _list_edges(plan: Plan, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each row after the row before it on its device."""
    first_of_device = np.zeros(len(node), bool)
    first_of_device[plan.schedule.offsets[:-1]] = True
    later = np.flatnonzero(~first_of_device & ~plan.fused)
    return node[later - 1], later


def _transfer_edges(plan: Plan, node: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Producer before transfer before consumer."""
    consumer = np.flatnonzero(plan.remote)
    transfer = rows + consumer
    return (
        np.concatenate([node[plan.source[consumer]], transfer]),
        np.concatenate([transfer, node[consumer]]),
    )


def _queue_edges(plan: Plan, posts: Posts, node: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute before a post, the transfer before it in its queue, and what a blocking SEND holds up."""
    offsets = plan.schedule.offsets
    after_compute = np.flatnonzero(posts.before > offsets[posts.device])
    by_queue = np.argsort(posts.queue, kind="stable")
    follows = np.flatnonzero(posts.queue[by_queue][1:] == posts.queue[by_queue][:-1])
    before = [node[posts.before[after_compute] - 1], rows + posts.transfer[by_queue[follows]]]
    after = [rows + posts.transfer[after_compute], rows + posts.transfer[by_queue[follows + 1]]]
    if plan.blocking:
        holding = np.flatnonzero(posts.is_send & (posts.before < offsets[posts.device + 1]))
        before.append(rows + posts.transfer[holding])
        after.append(node[posts.before[holding]])
    return np.concatenate(before), np.concatenate(after)
