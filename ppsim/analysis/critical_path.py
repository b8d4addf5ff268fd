"""Critical path, slack and sensitivities: which actions set the step time, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.graph import COLLECTIVE, OPTIMIZER, StepGraph, grouped, step_graph
from ppsim.base.arrays import distinct
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.immutable import EqualColumns
from ppsim.base.short_repr import short_repr
from ppsim.schedule.barriers import spans_devices
from ppsim.timeline import TimelineColumns


def critical_nodes(run: TimelineColumns) -> tuple[StepGraph, list[int]]:
    """The chain of nodes that sets the makespan, first to last.

    Each starts the moment the one before it ends (in a measured run: no earlier). Where several chains are equally long
    the one through the device's own list is taken.
    """
    graph = step_graph(run)
    before = latest_before(graph)
    chain = [int(np.nanargmax(graph.end))]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return graph, chain[::-1]


def latest_before(graph: StepGraph) -> np.ndarray:
    """Of all nodes that had to end before each node the one that ended last, -1 where there is none (int64)."""
    order = np.lexsort((-graph.end[graph.before], graph.after))  # stable: of equal ends the earlier edge
    nodes, first = np.unique(graph.after[order], return_index=True)
    latest = np.full(len(graph.end), -1)
    latest[nodes] = graph.before[order[first]]
    return latest


def critical_path(run: TimelineColumns) -> np.ndarray:
    """Actions of the critical path in time order, as indices into `run.start` and `run.end` (int64)."""
    _, chain = critical_nodes(run)
    action = run.schedule.action_of_row
    indices = action[[node for node in chain if node < len(action)]]
    return indices[np.append(True, np.diff(indices) != 0)]


def slack(run: TimelineColumns) -> np.ndarray:
    """Seconds by which each action can grow without a longer makespan, one entry an action, like `run.start`.

    Of a fused slot without a time of its own, whose parts run one after the other, the smaller of the two. Where
    transfers share ports, who goes first is taken as in this run; an action that grows may change it.
    """
    of_node = node_slack(step_graph(run))[: len(run.row_end)]
    first, second = run.plan.slots[:2]
    of_node[second] = of_node[first]
    return np.maximum(np.minimum.reduceat(of_node, run.schedule.first_rows), 0.0)


def node_slack(graph: StepGraph) -> np.ndarray:
    """Latest end minus end of each node; nan where the node does not exist."""
    room = np.full(len(graph.end), np.nan)
    last = float(np.nanmax(graph.end))
    call_fastest(
        room_of_nodes, len(room), graph.order[::-1].copy(), *graph.edges_out, graph.start, graph.end, last, room
    )
    return room


@kernel
def room_of_nodes(backwards, first, targets, start, end, last, room):
    """Fill `room`, the last nodes first.

    Room is carried along in differences, so that a chain without gaps keeps exactly zero slack.
    """
    for node in backwards:
        most = np.inf
        for edge in range(first[node], first[node + 1]):
            target = targets[edge]
            most = min(most, room[target] + (start[target] - end[node]))
        room[node] = last - end[node] if first[node] == first[node + 1] else most


_TIED = 1e-11  # of the makespan: chains that differ by less are equally long but for rounding

_MOST_COUNTED = 4  # columns in which a node counts: its kind, its device and one or two stages, or its kind and link
_LIKE_A_ROW = 16  # columns that take about as long as a row of a schedule elsewhere


@dataclass(frozen=True, eq=False)
class Sensitivities(EqualColumns):
    """Seconds of step per second of cost: by how much the makespan grows when something takes a little longer.

    Each is the number of such actions on the critical path; where several chains are equally long, the largest number
    on any of them, because the longest chain sets the new makespan.

    Attributes
    ----------
    kind : mapping of kind name -> float
        When every action of the kind takes one second longer; "transfer": every transfer, and every collective of
        several devices; "optimizer": every device's optimizer step. A timed fused slot is OVERLAP_F_B.
    stage : float64 (stages,)
        When every compute action of the stage does; a timed fused slot belongs to both of its stages.
    device : float64 (devices,)
        When every compute action of the device does.
    link : mapping of (sender, receiver) -> float
        When every transfer between the two does.
    """

    kind: dict[str, float]
    stage: np.ndarray
    device: np.ndarray
    link: dict[tuple[int, int], float]

    __repr__ = short_repr


def sensitivities(run: TimelineColumns) -> Sensitivities:
    """The derivative of the makespan for costs that grow, from the chains that set it."""
    schedule, remote = run.schedule, np.flatnonzero(run.plan.remote)
    graph, chain = critical_nodes(run)
    of_row = run.plan.kind
    kinds = distinct(np.concatenate([of_row[run.plan.first_rows], graph.stream_kind[graph.stream_kind >= 0]])).tolist()
    ends = schedule.device[run.plan.source[remote]].astype(np.int64) * schedule.devices + schedule.device[remote]
    links, link = np.unique(ends, return_inverse=True)
    transfer, optimizer = len(KIND_NAMES), len(KIND_NAMES) + 1
    first_stage = len(KIND_NAMES) + 2  # the kinds, these two, then the stages, the devices, the links
    first_device = first_stage + schedule.num_stages
    first_link = first_device + schedule.devices
    rows = len(of_row)
    number = np.full(rows, -1)
    number[remote] = first_link + link
    counted = np.full((len(graph.seconds), _MOST_COUNTED), -1, np.int32)
    slot = of_row == Kind.OVERLAP_F_B
    second = np.append(schedule.stage[1:], -1)
    counted[:rows, 0], counted[:rows, 1] = of_row, first_device + schedule.device
    counted[:rows, 2] = first_stage + schedule.stage
    counted[:rows, 3] = np.where(slot & (second != schedule.stage), first_stage + second, -1)
    counted[rows : 2 * rows, 0], counted[rows : 2 * rows, 1] = transfer, number
    of_stream = graph.stream_kind.astype(np.int32)
    of_stream[of_stream == OPTIMIZER] = optimizer
    if run.plan.barriers is not None:
        shared = spans_devices(run.schedule, run.plan.barriers)
        of_stream[of_stream == COLLECTIVE] = np.where(shared, transfer, -1)
    counted[2 * rows :, 0] = np.maximum(of_stream, -1)

    most = _most_on_a_chain(graph, chain, counted, first_link + len(links))
    by_kind = {KIND_NAMES[kind]: float(most[kind]) for kind in kinds} | {"transfer": float(most[transfer])}
    if run.plan.optimizer is not None:
        by_kind["optimizer"] = float(most[optimizer])
    pairs = (divmod(pair, schedule.devices) for pair in links.tolist())
    by_link = {pair: float(value) for pair, value in zip(pairs, most[first_link:], strict=True)}
    return Sensitivities(by_kind, most[first_stage:first_device], most[first_device:first_link], by_link)


def _most_on_a_chain(graph: StepGraph, chain: list[int], counted: np.ndarray, columns: int) -> np.ndarray:
    """How often each column counts on the longest chains, the most of all of them; `counted` has the columns of nodes.

    One pass over the nodes of the chains, each with a row of totals for as long as nodes that follow have to read it.
    """
    before, after = _critical_edges(graph, chain)
    is_there = np.zeros(len(graph.seconds), bool)
    is_there[[chain[0], *before, *after]] = True
    nodes = graph.order[is_there[graph.order]]
    place = np.empty(len(graph.seconds), np.int64)
    place[nodes] = np.arange(len(nodes))
    first, sources = grouped(place[after], place[before], len(nodes))
    followers = np.bincount(sources, minlength=len(nodes))
    row, free = np.empty((2, len(nodes)), np.int32)
    rows = call_fastest(lend_rows, len(nodes), first, sources, followers.copy(), free, row)
    totals, most = np.zeros((rows, columns), np.int32), np.zeros(columns, np.int32)
    work = len(nodes) * columns // _LIKE_A_ROW
    call_fastest(count_on_chains, work, first, sources, followers == 0, row, counted[nodes], totals, most)
    return most.astype(np.float64)


@kernel
def lend_rows(first, sources, waiting, free, row):
    """Fill `row`, the row of totals of each node, which others get when `waiting` nodes have read it; how many rows."""
    rows = height = 0
    for node in range(len(row)):
        if height > 0:
            height -= 1
            row[node] = free[height]
        else:
            row[node] = rows
            rows += 1
        for edge in range(first[node], first[node + 1]):
            waiting[sources[edge]] -= 1
            if waiting[sources[edge]] == 0:
                free[height] = row[sources[edge]]
                height += 1
        if waiting[node] == 0:
            free[height] = row[node]
            height += 1
    return rows


@kernel
def count_on_chains(first, sources, is_end, row, counted, totals, most):
    """Fill `most` with the largest counts at nodes that end a chain; `totals` is scratch."""
    for node in range(len(counted)):
        own = totals[row[node]]
        for column in range(len(own)):
            own[column] = 0
        for edge in range(first[node], first[node + 1]):
            other = totals[row[sources[edge]]]
            for column in range(len(own)):
                own[column] = max(own[column], other[column])
        for number in counted[node]:
            if number >= 0:
                own[number] += 1
        if is_end[node]:
            for column in range(len(own)):
                most[column] = max(most[column], own[column])


def _critical_edges(graph: StepGraph, chain: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The edges of all longest chains; always those of `chain`."""
    room = node_slack(graph)
    tied = _TIED * float(np.nanmax(graph.end))
    critical = room[graph.after] + (graph.start[graph.after] - graph.end[graph.before]) <= tied
    follows = np.full(len(room), -1)
    follows[chain[:-1]] = chain[1:]
    critical |= follows[graph.before] == graph.after
    return graph.before[critical], graph.after[critical]
