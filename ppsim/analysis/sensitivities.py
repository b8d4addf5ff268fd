"""Sensitivities: seconds of step per second of each kind, stage, device and link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.critical_path import critical_nodes, node_slack
from ppsim.analysis.graph import StepGraph
from ppsim.analysis.stream_nodes import OPTIMIZER
from ppsim.base.immutable import EqualColumns
from ppsim.timeline import TimelineColumns

_TIED = 1e-11  # of the makespan: chains that differ by less are equally long but for rounding


@dataclass(frozen=True, eq=False)
class Sensitivities(EqualColumns):
    """Seconds of step per second of cost: by how much the makespan grows when something takes a little longer.

    Each is the number of such actions on the critical path; where several chains are equally long, the largest number
    on any of them, because the longest chain sets the new makespan.

    Attributes
    ----------
    kind : mapping of kind name -> float
        When every action of the kind takes one second longer; "transfer": every transfer; "optimizer": every device's
        optimizer step. A timed fused slot is OVERLAP_F_B.
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


def sensitivities(run: TimelineColumns) -> Sensitivities:
    """The derivative of the makespan for costs that grow, from the chains that set it."""
    schedule, remote = run.schedule, np.flatnonzero(run.plan.remote)
    graph, chain = critical_nodes(run)
    of_row = run.plan.kind
    kinds = np.unique(np.concatenate([of_row[run.plan.first_rows], graph.stream_kind[graph.stream_kind >= 0]])).tolist()
    ends = np.stack([schedule.device[run.plan.source[remote]], schedule.device[remote]], axis=1)
    links, link = np.unique(ends, axis=0, return_inverse=True)
    transfer, optimizer = len(KIND_NAMES), len(KIND_NAMES) + 1
    first_stage = len(KIND_NAMES) + 2  # the kinds, these two, then the stages, the devices, the links
    first_device = first_stage + schedule.num_stages
    first_link = first_device + schedule.devices
    rows = len(of_row)
    number = np.full(rows, -1)
    number[remote] = first_link + link.ravel()

    def counts(node: int) -> set[int]:
        if node >= 2 * rows:
            kind = int(graph.stream_kind[node - 2 * rows])
            return {kind} if kind >= 0 else {optimizer} if kind == OPTIMIZER else set()
        if node >= rows:
            return {transfer, int(number[node - rows])}
        slot = of_row[node] == Kind.OVERLAP_F_B
        stages = schedule.stage[node : node + 1 + slot].tolist()
        return {int(of_row[node]), int(first_device + schedule.device[node]), *(first_stage + s for s in stages)}

    most = np.zeros(first_link + len(links))
    for totals in _chain_totals(graph, chain, counts, len(most)):
        np.maximum(most, totals, out=most)
    by_kind = {KIND_NAMES[kind]: float(most[kind]) for kind in kinds} | {"transfer": float(most[transfer])}
    if run.plan.optimizer is not None:
        by_kind["optimizer"] = float(most[optimizer])
    by_link = {tuple(pair): float(value) for pair, value in zip(links.tolist(), most[first_link:], strict=True)}
    return Sensitivities(by_kind, most[first_stage:first_device], most[first_device:first_link], by_link)


def _chain_totals(graph: StepGraph, chain: list[int], counts, columns: int) -> Iterator[np.ndarray]:
    """For the end of each longest chain, how often each column counts on the way to it, the most of all ways."""
    before, after = _critical_edges(graph, chain)
    targets, waiting = _grouped(before, after), dict(zip(*np.unique(after, return_counts=True), strict=True))
    reached: dict[int, np.ndarray] = {node: np.zeros(columns) for node in {chain[0], *before} - set(waiting)}
    ready = list(reached)
    while ready:
        node = ready.pop()
        totals = reached.pop(node)  # what all targets have taken is let go, so that few are held at a time
        totals[list(counts(node))] += 1.0
        if node not in targets:
            yield totals
        for target in targets.get(node, ()):
            if target in reached:
                np.maximum(reached[target], totals, out=reached[target])
            else:
                reached[target] = totals.copy()
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)


def _critical_edges(graph: StepGraph, chain: list[int]) -> tuple[list[int], list[int]]:
    """The edges of all longest chains, once each; always those of `chain`."""
    room = node_slack(graph)
    tied = _TIED * float(np.nanmax(graph.end))
    critical = room[graph.after] + (graph.start[graph.after] - graph.end[graph.before]) <= tied
    follows = np.full(len(room), -1)
    follows[chain[:-1]] = chain[1:]
    critical |= follows[graph.before] == graph.after
    edges = np.unique(np.stack([graph.before[critical], graph.after[critical]], axis=1), axis=0)
    return edges[:, 0].tolist(), edges[:, 1].tolist()


def _grouped(before: list[int], after: list[int]) -> dict[int, list[int]]:
    targets: dict[int, list[int]] = {}
    for node, target in zip(before, after, strict=True):
        targets.setdefault(node, []).append(target)
    return targets
