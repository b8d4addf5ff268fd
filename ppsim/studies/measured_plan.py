"""A measured step as a plan: its actions and transfers at their own lengths, and at what is usual of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ppsim.engines.running import run_plan
from ppsim.plan.resolve import Plan
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline


def step_of(plan: Plan) -> float:
    """Step time of a plan."""
    _, times = run_plan(plan, "auto")
    return float(times.row_end.max() - times.row_start.min())


def replayed_plan(measured: Timeline) -> Plan:
    """The measured step as a plan of its actions' and transfers' own lengths, nothing queueing.

    The end of a transfer for which no device waited is not known: it is taken to last no longer than the median of
    those of its link (or of all links) for which one did.
    """
    plan = measured.plan
    seconds, known_end = plan.transfer_seconds.copy(), waited(measured)
    links = links_of(measured)
    of_all = float(np.median(seconds[known_end])) if known_end.any() else 0.0
    for link in np.unique(links[plan.remote]):
        mine = (links == link) & plan.remote
        known = seconds[mine & known_end]
        usual = float(np.median(known)) if len(known) else of_all
        seconds = np.where(mine & ~known_end, np.minimum(seconds, usual), seconds)
    return replace(
        plan, transport="async", transfer_seconds=seconds, posts=None, ports=None, gathers=None, reductions=None,
        blocking=False, optimizer=None, optimizer_seconds=None,
    )  # fmt: skip


def start_overhead(run: Timeline) -> float:
    """Median seconds from the end of an action to the start of the next on its device, which waited for no transfer.

    0 where every action waited for one.
    """
    following = np.ones(len(run.row_start), bool)
    following[run.schedule.offsets[:-1]] = False
    gaps = (run.row_start[1:] - run.row_end[:-1])[(following & ~waited(run))[1:]]
    return max(0.0, float(np.median(gaps))) if len(gaps) else 0.0


def waited(run: Timeline) -> np.ndarray:
    """Rows for whose transfer an idle device waited."""
    before = np.concatenate([[-np.inf], run.row_end[:-1]])
    before[run.schedule.offsets[:-1]] = -np.inf
    return run.plan.remote & (np.nan_to_num(run.transfer_end, nan=-np.inf) > before)


def links_of(run: Timeline) -> np.ndarray:
    """A number for the (sender, receiver) of each row's transfer."""
    device = run.schedule.device.astype(np.int64)
    return device[run.plan.source] * run.schedule.devices + device


def groups_of(plan: Plan) -> np.ndarray:
    """A number for the kind and stage of each row."""
    return plan.kind * plan.schedule.num_stages + plan.schedule.stage


def usual_seconds(measured: Timeline, own: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of actions and of transfers, each the median of its kind and stage, or link."""
    links = np.where(own.remote, links_of(measured), -1)
    return medians_of(own.seconds, groups_of(own)), medians_of(own.transfer_seconds, links)


def priced(measured: Timeline, run: Timeline) -> Timeline:
    """The measured order under the costs of a simulation; itself where that is what was simulated."""
    plain_run = run.plan.noise is None and run.plan.optimizer is None and run.plan.reductions is None
    if run.schedule == measured.schedule and plain_run and run.plan.gathers is None:
        return run
    return simulate(measured.schedule, run.costs, transport=run.transport)


def medians_of(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Each value replaced by the median of its group."""
    _, group = np.unique(groups, return_inverse=True)
    order = np.lexsort((values, group))
    counts = np.bincount(group)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    ranked = values[order]
    middle = (ranked[first + (counts - 1) // 2] + ranked[first + counts // 2]) / 2
    return middle[group]
