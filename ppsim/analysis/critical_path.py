"""Critical path and slack: which actions set the step time, and how far the others are from it."""

from __future__ import annotations

import numpy as np

from ppsim.analysis.graph import StepGraph, step_graph
from ppsim.base.compiling import run_where_it_pays
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
    run_where_it_pays(
        room_of_nodes, len(room), graph.order[::-1].copy(), *graph.edges_out, graph.start, graph.end, last, room
    )
    return room


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
