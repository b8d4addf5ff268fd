"""Critical path, slack and sensitivities: which actions set the step time, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.graph import StepGraph, step_graph
from ppsim.timeline import Timeline


def critical_nodes(run: Timeline) -> tuple[StepGraph, list[int]]:
    """The chain of nodes that sets the makespan, first to last.

    Each starts the moment the one before it ends (in a measured run: no earlier). Where several chains are equally long
    the one through the device's own list is taken.
    """
    graph = step_graph(run)
    first, sources = graph.edges_into()
    rows = len(run.row_end)
    end = graph.end.tolist()
    ends = np.where(np.isnan(graph.end[:rows]), -np.inf, graph.end[:rows])
    node = int(np.argmax(ends))
    chain = [node]
    while True:
        before = sources[first[node] : first[node + 1]]
        if not before:
            return graph, chain[::-1]
        node = max(before, key=end.__getitem__)
        chain.append(node)


def critical_path(run: Timeline) -> np.ndarray:
    """Actions of the critical path in time order, as indices into `run.start` and `run.end` (int64)."""
    _, chain = critical_nodes(run)
    action = np.cumsum(~run.schedule.joined) - 1
    indices = action[[node for node in chain if node < len(action)]]
    return indices[np.append(True, np.diff(indices) != 0)]


def slack(run: Timeline) -> np.ndarray:
    """Seconds by which each action can grow without a longer makespan, one entry an action, like `run.start`."""
    of_node = _node_slack(step_graph(run))[: len(run.row_end)]
    second = np.flatnonzero(run.plan.fused)
    of_node[second] = of_node[second - 1]
    first_row = np.flatnonzero(~run.schedule.joined)
    return np.minimum.reduceat(of_node, first_row)


def _node_slack(graph: StepGraph) -> np.ndarray:
    """Latest end minus end of each node; nan where the node does not exist."""
    last = float(np.nanmax(graph.end))
    by_before = np.argsort(graph.before, kind="stable")
    targets = graph.after[by_before].tolist()
    first = np.concatenate([[0], np.cumsum(np.bincount(graph.before, minlength=len(graph.end)))]).tolist()
    start, end = graph.start.tolist(), graph.end.tolist()
    room = [np.nan] * len(end)
    for node in reversed(graph.order):
        # Room is carried along in differences, so that a chain without gaps keeps exactly zero slack.
        room[node] = min(
            (room[target] + (start[target] - end[node]) for target in targets[first[node] : first[node + 1]]),
            default=last - end[node],
        )
    return np.array(room)


@dataclass(frozen=True)
class Sensitivities:
    """Seconds of step per second of cost, on the critical path as it lies.

    Attributes
    ----------
    kind : mapping of kind name -> float
        Seconds of step gained when every action of the kind becomes one second longer ("transfer": every transfer).
    stage : float64 (stages,)
        The same for every compute action of a stage.
    device : float64 (devices,)
        The same for every compute action of a device.
    link : mapping of (sender, receiver) -> float
        The same for every transfer between two devices.
    """

    kind: dict[str, float]
    stage: np.ndarray
    device: np.ndarray
    link: dict[tuple[int, int], float]


def sensitivities(run: Timeline) -> Sensitivities:
    """Count the critical path by kind, stage, device and link: the derivative of the makespan for small changes."""
    _, chain = critical_nodes(run)
    schedule, rows = run.schedule, len(run.row_end)
    row = np.array([node for node in chain if node < rows], np.int64)
    consumer = np.array([node - rows for node in chain if node >= rows], np.int64)
    slot = np.append(run.plan.fused[1:], False)[row]
    names = [
        Kind.OVERLAP_F_B.name if timed else KIND_NAMES[schedule.kind[r]] for r, timed in zip(row, slot, strict=True)
    ]
    kind = {name: float(names.count(name)) for name in sorted(set(names))}
    kind["transfer"] = float(len(consumer))
    link: dict[tuple[int, int], float] = {}
    for receiver, sender in zip(schedule.device[consumer], schedule.device[run.plan.source[consumer]], strict=True):
        link[int(sender), int(receiver)] = link.get((int(sender), int(receiver)), 0.0) + 1.0
    return Sensitivities(
        kind,
        np.bincount(schedule.stage[row], minlength=schedule.num_stages).astype(np.float64),
        np.bincount(schedule.device[row], minlength=schedule.devices).astype(np.float64),
        link,
    )
