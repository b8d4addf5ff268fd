"""The graph behind a timeline: what had to end before what could start, as plain edge columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.analysis.port_order import port_edges
from ppsim.analysis.stream_nodes import stream_nodes
from ppsim.base.compiling import run_where_it_pays
from ppsim.base.immutable import EqualColumns
from ppsim.plan.resolve import Plan, Posts
from ppsim.timeline import TimelineColumns


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
        Kind.UNSHARD, REDUCE_GRAD, OFFLOAD, RELOAD, or one of `stream_nodes.BARRIER`, `OPTIMIZER` and `COLLECTIVE`.
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
    return order[: run_where_it_pays(in_topological_order, nodes, *edges, waits, stack, len(ready), order)]


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
