"""Critical path, slack and sensitivities: which actions set the step time, and by how much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.graph import COLLECTIVE, OPTIMIZER, StepGraph, grouped, step_graph
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.immutable import EqualColumns, distinct, latest_of_each
from ppsim.base.rules import declared, described
from ppsim.base.tables import html_table
from ppsim.schedule.barriers import spans_devices
from ppsim.timeline import TimelineColumns


def critical_path(run: TimelineColumns) -> np.ndarray:
    """Return the actions of the critical path in time order, as indices into `run.start` and `run.end` (int64)."""
    _, chain = critical_nodes(run)
    action = run.schedule.action_of_row
    indices = action[[node for node in chain if node < len(action)]]
    return indices[np.append(True, np.diff(indices) != 0)]


def critical_nodes(run: TimelineColumns) -> tuple[StepGraph, list[int]]:
    """Return the chain of nodes that sets the makespan, first to last.

    Each node starts when the node before it ends (in a measured run: no earlier). If several chains are equally long,
    the result is the chain through the device's own list.
    """
    graph = step_graph(run)
    before = latest_before(graph)
    chain = [int(np.nanargmax(graph.end))]
    while before[chain[-1]] >= 0:
        chain.append(int(before[chain[-1]]))
    return graph, chain[::-1]


def latest_before(graph: StepGraph) -> np.ndarray:
    """Return for each node the predecessor that ended last, or -1 (int64)."""
    before, after = graph.before[::-1], graph.after[::-1]  # the earlier edge wins among equal ends
    return latest_of_each(after, graph.end[before] + graph.delay[::-1], before, len(graph.end))


def slack(run: TimelineColumns) -> np.ndarray:
    """Return the seconds by which each action can grow without a longer makespan, one entry per action.

    The parts of a fused slot without a time of its own run one after the other; the slot has the smaller of their
    slacks. If transfers share ports, they keep the order of this run; an action that grows may change the order.
    """
    of_row = node_slack(step_graph(run))[run.plan.slot_of_row]
    return np.maximum(np.minimum.reduceat(of_row, run.schedule.first_rows), 0.0)


def node_slack(graph: StepGraph) -> np.ndarray:
    """Return latest end - end of each node; nan if the node does not exist."""
    slack = np.full(len(graph.end), np.nan)
    last = float(np.nanmax(graph.end))
    backwards = graph.order[::-1].copy()
    edges = *graph.edges_out, graph.after, graph.delay
    call_fastest(slack_of_nodes, len(slack), backwards, *edges, graph.start, graph.end, last, slack)
    return slack


@kernel
def slack_of_nodes(backwards, first, edges, after, delay, start, end, last, slack):
    """Fill `slack`, the last nodes first.

    It is passed on by differences, so that a chain without gaps keeps exactly zero slack.
    """
    for node in backwards:
        smallest = np.inf
        for index in range(first[node], first[node + 1]):
            target = after[edges[index]]
            smallest = min(smallest, slack[target] + (start[target] - end[node] - delay[edges[index]]))
        slack[node] = last - end[node] if first[node] == first[node + 1] else smallest


_TIED = 1e-11  # fraction of the makespan by which equally long chains differ through rounding
_COLUMNS_PER_NODE = 4  # a node counts in its kind, device and one or two stages, or in its kind and link
_TOTALS_AT_ONCE = 2**25  # totals of nodes and columns in memory
_COLUMNS_PER_ROW = 16  # this number of columns takes about as long as a row of a schedule in other kernels


@described
@dataclass(frozen=True, eq=False)
class Sensitivities(EqualColumns):
    """Sensitivities of the makespan: its growth in seconds per second of growth of a cost.

    Each is the number of such actions on the critical path. If several chains are equally long, the largest number
    counts, because the longest chain sets the new makespan. The kind "transfer" also holds the collectives of several
    devices, the kind "optimizer" holds the optimizer steps. An OVERLAP_F_B slot belongs to both its stages.
    """

    kind: dict[str, float] = declared("growth per second of every action of a kind, by its name")
    stage: np.ndarray = declared("float64 (stages,): growth per second of every compute action of the stage")
    device: np.ndarray = declared("float64 (devices,): growth per second of every compute action of the device")
    link: dict[tuple[int, int], float] = declared("growth per second of every transfer, by (sender, receiver)")

    def _repr_html_(self) -> str:
        rows = [(f"every {kind}", growth) for kind, growth in self.kind.items()]
        rows += [(f"every action of stage {stage}", growth) for stage, growth in enumerate(self.stage.tolist())]
        cells = [[name, f"{growth:g}"] for name, growth in sorted(rows, key=lambda row: -row[1])]
        return html_table(["if each takes a second longer", "the step takes longer by (s)"], cells)


def sensitivities(run: TimelineColumns) -> Sensitivities:
    """Return the derivatives of the makespan by growing costs, from the chains that set the makespan."""
    schedule, remote = run.schedule, np.flatnonzero(run.plan.remote)
    graph, chain = critical_nodes(run)
    row_kind = run.plan.kind
    in_streams = graph.stream_kind[graph.stream_kind >= 0]
    kinds = distinct(np.concatenate([row_kind[run.plan.first_rows], in_streams])).tolist()
    ends = schedule.device[run.plan.source[remote]].astype(np.int64) * schedule.devices + schedule.device[remote]
    links, link = np.unique(ends, return_inverse=True)
    transfer, optimizer = len(KIND_NAMES), len(KIND_NAMES) + 1
    first_stage = len(KIND_NAMES) + 2  # the kinds, these two, then the stages, the devices, the links
    first_device = first_stage + schedule.num_stages
    first_link = first_device + schedule.devices
    rows = len(row_kind)
    counted = np.full((len(graph.seconds), _COLUMNS_PER_NODE), -1, np.int32)
    counted[:rows, 0], counted[:rows, 1] = row_kind, first_device + schedule.device
    counted[:rows, 2] = first_stage + schedule.stage
    second = np.append(schedule.stage[1:], -1)
    two_stages = (row_kind == Kind.OVERLAP_F_B) & (second != schedule.stage)
    counted[:rows, 3] = np.where(two_stages, first_stage + second, -1)
    counted[rows : 2 * rows, 0] = transfer
    counted[rows + remote, 1] = first_link + link
    of_stream = graph.stream_kind.astype(np.int32)
    of_stream[of_stream == OPTIMIZER] = optimizer
    if run.plan.barriers is not None:
        shared = spans_devices(schedule, run.plan.barriers)
        of_stream[of_stream == COLLECTIVE] = np.where(shared, transfer, -1)
    counted[2 * rows :, 0] = np.maximum(of_stream, -1)

    largest = _largest_counts(graph, chain, counted, first_link + len(links))
    by_kind = {KIND_NAMES[kind]: float(largest[kind]) for kind in kinds} | {"transfer": float(largest[transfer])}
    if run.plan.optimizer is not None:
        by_kind["optimizer"] = float(largest[optimizer])
    pairs = (divmod(pair, schedule.devices) for pair in links.tolist())
    by_link = {pair: float(value) for pair, value in zip(pairs, largest[first_link:], strict=True)}
    return Sensitivities(by_kind, largest[first_stage:first_device], largest[first_device:first_link], by_link)


def _largest_counts(graph: StepGraph, chain: list[int], counted: np.ndarray, columns: int) -> np.ndarray:
    """Return the largest count of each column on one of the longest chains, float64 (columns,).

    `counted` lists the columns in which each node counts. Each pass over the nodes counts some columns.
    """
    before, after = _critical_edges(graph, chain)
    on_chain = np.zeros(len(graph.seconds), bool)
    on_chain[[chain[0], *before, *after]] = True
    nodes = graph.order[on_chain[graph.order]]
    position = np.empty(len(graph.seconds), np.int64)
    position[nodes] = np.arange(len(nodes))
    edges = grouped(position[after], position[before], len(nodes))
    width, largest = max(_TOTALS_AT_ONCE // len(nodes), 1), []
    for first in range(0, columns, width):
        totals = np.zeros((len(nodes), min(width, columns - first)), np.int32)
        call_fastest(count_on_chains, totals.size // _COLUMNS_PER_ROW, *edges, counted[nodes] - first, totals)
        largest.append(totals.max(axis=0))
    return np.concatenate(largest).astype(np.float64)


@kernel
def count_on_chains(first, sources, counted, totals):
    """Fill `totals`, zeros by node and column, with the largest counts on a chain that ends at the node."""
    for node in range(len(counted)):
        own = totals[node]
        for edge in range(first[node], first[node + 1]):
            other = totals[sources[edge]]
            for column in range(len(own)):
                own[column] = max(own[column], other[column])
        for column in counted[node]:
            if 0 <= column < len(own):
                own[column] += 1


def _critical_edges(graph: StepGraph, chain: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges of all longest chains, including every edge of `chain`."""
    slack = node_slack(graph)
    tied = _TIED * float(np.nanmax(graph.end))
    critical = slack[graph.after] + (graph.start[graph.after] - graph.end[graph.before]) <= tied
    follows = np.full(len(slack), -1)
    follows[chain[:-1]] = chain[1:]
    critical |= follows[graph.before] == graph.after
    return graph.before[critical], graph.after[critical]
