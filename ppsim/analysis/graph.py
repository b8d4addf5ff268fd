"""Dependency graph of a timeline: its actions, transfers and collectives as nodes, with edges as columns."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.immutable import EqualColumns, offsets_of
from ppsim.plan.resolve import Plan, Posts
from ppsim.plan.streams import RELOADS, Ports, SideStream
from ppsim.timeline import TimelineColumns

# Nodes of streams that are not actions: the wait of a "sync" optimizer for all devices, its steps, and the collectives
# of an output layer cut over devices.
BARRIER, OPTIMIZER, COLLECTIVE = -2, -1, -3
Edges = tuple[np.ndarray, np.ndarray]  # each first node ends before its second node starts


@dataclass(frozen=True, eq=False)
class StepGraph(EqualColumns):
    """Graph of everything that takes time in a step; an edge leads from a node to a node that waits for it.

    The nodes are the rows of the schedule (0..n-1), then the transfers (n + consuming row), then the other streams.
    These hold UNSHARDs, gradient reductions, the barrier of a "sync" optimizer, one optimizer step per device, copies,
    and the collectives of an output layer that is cut over devices.
    """

    # The second row of a timed fused slot is not a node: its edges belong to the first.
    before: np.ndarray  # int64 array, one entry per edge: the node that ends first
    after: np.ndarray  # int64 array, one entry per edge: the node that starts no earlier than that end
    delay: np.ndarray  # float64 array, one entry per edge: seconds that the host needs for messages between the two
    seconds: np.ndarray  # float64 array, one entry per node: nan if the node does not exist; so too `start` and `end`
    start: np.ndarray
    end: np.ndarray
    # int8, per node from 2 n on: Kind.UNSHARD, REDUCE_GRAD, OFFLOAD, RELOAD, or `BARRIER`, `OPTIMIZER`, `COLLECTIVE`
    stream_kind: np.ndarray
    stream_device: np.ndarray  # int64 array, likewise: -1 if the node belongs to several devices
    stream_stage: np.ndarray  # int64 array, likewise: -1 if it belongs to no stage, or to several
    stream_microbatch: np.ndarray  # int64 array, likewise: -1 if it belongs to no microbatch, or to several

    @cached_property
    def order(self) -> np.ndarray:
        """The existing nodes in topological order; int64."""
        return topological_order(self.before, self.after, ~np.isnan(self.seconds))

    @cached_property
    def edges_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Pair (first, edges); `edges[first[i]:first[i + 1]]` are the edges that leave node i."""
        return grouped(self.before, np.arange(len(self.before)), len(self.seconds))


def grouped(key: np.ndarray, value: np.ndarray, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """Return (first, values): the values of key i, in the order given, are `values[first[i]:first[i + 1]]`."""
    return offsets_of(np.bincount(key, minlength=keys)), value[np.argsort(key, kind="stable")]


def topological_order(before: np.ndarray, after: np.ndarray, exists: np.ndarray) -> np.ndarray:
    """Return the existing nodes in topological order (Kahn's algorithm); int64."""
    nodes = len(exists)
    waits, order = np.bincount(after, minlength=nodes), np.empty(nodes, np.int64)
    ready = np.flatnonzero((waits == 0) & exists)
    stack = np.concatenate([ready, np.empty(nodes, np.int64)])
    edges = grouped(before, after, nodes)
    return order[: call_fastest(in_topological_order, nodes, *edges, waits, stack, len(ready), order)]


@kernel
def in_topological_order(first, targets, waits, stack, height, order):
    """Fill `order` from the ready nodes on the stack; return the number of nodes in it."""
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


def step_graph(run: TimelineColumns, at_ports: bool = True) -> StepGraph:
    """Return the graph of a run, with the order of its queues and, unless `at_ports` is False, its order at ports."""
    plan, node = run.plan, run.plan.slot_of_row
    rows = len(plan.seconds)
    streams, stream_edges = _stream_nodes(run, node)
    edges = [_list_edges(plan, node), *_transfer_edges(plan, node)]
    delays = [plan.row_delay[edges[0][1]], *(np.zeros(len(before)) for before, _ in edges[1:])]
    if plan.posts is not None:
        posted = np.flatnonzero(plan.posts.before > plan.schedule.offsets[plan.posts.device])
        edges += _queue_edges(plan, plan.posts, posted, node)
        delays.append(plan.post_delay[posted])
    if at_ports and plan.ports is not None and plan.posts is not None:
        starts = np.concatenate([run.row_start, run.transfer_start, streams.start])
        depth = _depth_at_equal_starts(starts, [*edges, *stream_edges])[rows : 2 * rows]
        edges.append(_port_edges(run, plan.ports, plan.posts, _latest_ends(run, edges), depth))
    seconds, start, end = (
        _by_node(plan, of_row, of_transfer, of_stream)
        for of_row, of_transfer, of_stream in (
            (plan.seconds, plan.transfer_seconds, streams.seconds),
            (run.row_start, run.transfer_start, streams.start),
            (run.row_end, run.transfer_end, streams.end),
        )
    )
    before, after = _joined([*edges, *stream_edges])
    delay = np.concatenate(delays)
    delay = np.append(delay, np.zeros(len(before) - len(delay)))
    return StepGraph(before, after, delay, seconds, start, end, streams.kind, *streams[4:])


def _by_node(plan: Plan, of_row: np.ndarray, of_transfer: np.ndarray, of_stream: np.ndarray) -> np.ndarray:
    return np.concatenate([np.where(plan.fused, np.nan, of_row), np.where(plan.remote, of_transfer, np.nan), of_stream])


def node_seconds(run: TimelineColumns, plan: Plan) -> np.ndarray:
    """Return the seconds of each node of a run's graph under another plan of equal structure."""
    streams, _ = _stream_nodes(run.changed(plan=plan), plan.slot_of_row)
    return _by_node(plan, plan.seconds, plan.transfer_seconds, streams.seconds)


def _joined(edges: list[Edges]) -> Edges:
    before, after = (np.concatenate(ends).astype(np.int64) for ends in zip(*edges, strict=True))
    return before, after


def _list_edges(plan: Plan, node: np.ndarray) -> Edges:
    """Return an edge to each row from the row before it on its device."""
    first_of_device = np.zeros(len(node), bool)
    first_of_device[plan.schedule.offsets[:-1]] = True
    later = np.flatnonzero(~first_of_device & ~plan.fused)
    return node[later - 1], later


def _transfer_edges(plan: Plan, node: np.ndarray) -> list[Edges]:
    """Return an edge from the producer to each transfer, and one from the transfer to its consumer."""
    consumer = np.flatnonzero(plan.remote)
    transfer = len(node) + consumer
    return [(node[plan.source[consumer]], transfer), (transfer, node[consumer])]


def _queue_edges(plan: Plan, posts: Posts, posted: np.ndarray, node: np.ndarray) -> list[Edges]:
    """Return edges to each transfer from the row before its post and from the transfer before it in its queue.

    A blocking SEND also has an edge to the row after it. `posted` are the posts that wait for a row of their device.
    """
    offsets, transfer = plan.schedule.offsets, len(node) + posts.transfer
    before, after = posts.following()
    edges = [(node[posts.before[posted] - 1], transfer[posted]), (len(node) + before, len(node) + after)]
    if plan.blocking:
        blocking = np.flatnonzero(posts.is_send & (posts.before < offsets[posts.device + 1]))
        edges.append((transfer[blocking], node[posts.before[blocking]]))
    return edges


def _port_edges(run: TimelineColumns, ports: Ports, posts: Posts, ready: np.ndarray, depth: np.ndarray) -> Edges:
    """Return an edge between two transfers if the later one took the channel of the earlier one at a port.

    A transfer may also start because the transfer before it in a line started. It then also follows the transfers that
    had delayed that one. The order is that of this run; other costs may give another order. `ready` is the time at
    which each transfer joined its lines. `depth` orders transfers without length that start at the same time.
    """
    post = np.zeros(len(ready), np.int64)
    post[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
    through = np.flatnonzero((ports.of_transfer >= 0).any(axis=1))
    through = through[np.lexsort((post[through], depth[through], ready[through], run.transfer_start[through]))]
    channels = [[(-np.inf, -1)] * count for count in ports.capacity.tolist()]
    last_in_line: dict[int, int] = {}
    let_in: dict[int, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    starts, ends, joined = run.transfer_start.tolist(), run.transfer_end.tolist(), ready.tolist()
    for transfer, lines in zip(through.tolist(), ports.of_transfer[through].tolist(), strict=True):
        start, end = starts[transfer], ends[transfer]
        used = [port for port in lines if port >= 0]
        free = [heapq.heappop(channels[port]) for port in used]
        let_in[transfer] = [before for until, before in free if until == start]
        if start > joined[transfer] and not let_in[transfer]:
            heads = {last_in_line[port] for port in used if port in last_in_line}
            let_in[transfer] = [before for head in heads if starts[head] == start for before in let_in[head]]
        earlier = {before for until, before in free if before >= 0 and until <= start}
        pairs += [(before, transfer) for before in sorted(earlier | {*let_in[transfer]} - {-1})]
        for port in used:
            heapq.heappush(channels[port], (end, transfer))
            last_in_line[port] = transfer
    before, after = np.array(pairs, np.int64).reshape(-1, 2).T
    return len(ready) + before, len(ready) + after


def _latest_ends(run: TimelineColumns, edges: list[Edges]) -> np.ndarray:
    """Return for each transfer the latest end of the nodes that it waits for."""
    ends = np.concatenate([run.row_end, run.transfer_end])
    latest = np.full(len(ends), -np.inf)
    for before, after in edges:
        np.maximum.at(latest, after, ends[before])
    return latest[len(run.row_end) :]


def _depth_at_equal_starts(starts: np.ndarray, edges: list[Edges]) -> np.ndarray:
    """Return the length of the longest chain of nodes with the same start that ends at each node.

    It is 0 for every node if all nodes take time.
    """
    before, after = _joined(edges)
    same = starts[before] == starts[after]
    depth = np.zeros(len(starts), np.int64)
    if not same.any():
        return depth
    nodes, compact = np.unique(np.concatenate([before[same], after[same]]), return_inverse=True)
    before, after = compact.reshape(2, -1)
    first, targets = (column.tolist() for column in grouped(before, after, len(nodes)))
    depth_of = [0] * len(nodes)
    for node in topological_order(before, after, np.ones(len(nodes), bool)).tolist():
        for target in targets[first[node] : first[node + 1]]:
            depth_of[target] = max(depth_of[target], depth_of[node] + 1)
    depth[nodes] = depth_of
    return depth


class _Streams(NamedTuple):
    kind: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    device: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray


def _stream_nodes(run: TimelineColumns, node: np.ndarray) -> tuple[_Streams, list[Edges]]:
    """Return the nodes of the streams and their edges; `node` is the node of each row.

    The numbers of these nodes follow those of the transfers.
    """
    plan, edges = run.plan, []
    found = [_Streams(np.empty(0, np.int8), *np.empty((3, 0)), *np.empty((3, 0), np.int64))]
    count = 2 * len(node)

    def add(kind: int | np.ndarray, *columns: np.ndarray | int) -> np.ndarray:
        """Add nodes with the columns of `_Streams`; return their numbers."""
        nonlocal count
        first, length = count, np.size(columns[0])
        count += length
        found.append(_Streams(*(np.broadcast_to(column, length) for column in (kind, *columns))))
        return np.arange(first, count)

    def add_stream(
        kind: int | np.ndarray,
        stream: SideStream,
        start: np.ndarray,
        end: np.ndarray,
        microbatch: np.ndarray | int = -1,
    ) -> np.ndarray:
        """Add the nodes of a stream and the edges to and from them; return their numbers."""
        own = add(kind, stream.seconds, start, end, stream.device, stream.stage, microbatch)
        late, needed = stream.before > run.schedule.offsets[stream.device], stream.user >= 0
        edges.append((node[stream.before[late] - 1], own[late]))
        edges.extend((own[other[other >= 0]], own[other >= 0]) for other in (stream.previous, stream.after))
        edges.append((own[needed], node[stream.user[needed]]))
        return own

    if plan.gathers is not None:
        add_stream(Kind.UNSHARD, plan.gathers, run.unshard_start, run.unshard_end)
    reduced = np.empty(0, np.int64)
    if plan.reductions is not None:
        reduced = add_stream(Kind.REDUCE_GRAD, plan.reductions, run.reduce_start, run.reduce_end)
    if run.optimizer_steps is not None and plan.optimizer_seconds is not None:
        exists = plan.optimizer == "sync"
        ready = np.array([run.gradients_ready.max() if exists else np.nan])
        barrier = add(BARRIER, np.array([0.0 if exists else np.nan]), ready, ready, -1, -1, -1)
        devices = np.arange(run.schedule.devices)
        step = add(OPTIMIZER, plan.optimizer_seconds, run.step_start, run.step_end, devices, -1, -1)
        edges += _optimizer_edges(run, node, reduced, barrier, step)
    if (copies := plan.copies) is not None:
        kind = np.where(copies.direction == RELOADS, Kind.RELOAD, Kind.OFFLOAD)
        add_stream(kind, copies, run.copy_start, run.copy_end, copies.microbatch)
    if (barriers := plan.barriers) is not None:
        own = add(COLLECTIVE, barriers.seconds, run.barrier_start, run.barrier_end, -1, -1, barriers.microbatch)
        before, after = barriers.edges(len(node))
        edges.append((np.append(node, own)[before], np.append(node, own)[after]))
    return _Streams(*map(np.concatenate, zip(*found, strict=True))), edges


def _optimizer_edges(
    run: TimelineColumns, node: np.ndarray, reduced: np.ndarray, barrier: np.ndarray, step: np.ndarray
) -> list[Edges]:
    """Return edges to a device's step from its last row and reduction; under "sync" through one barrier of all."""
    last_row = node[run.schedule.offsets[1:] - 1]
    device = run.reductions.device
    last = np.flatnonzero(np.append(device[1:] != device[:-1], True)[: len(device)])
    if run.plan.optimizer == "sync":
        ends = np.concatenate([last_row, reduced[last]])
        return [(ends, np.repeat(barrier, len(ends))), (np.repeat(barrier, len(step)), step)]
    return [(last_row, step), (reduced[last], step[device[last]])]
