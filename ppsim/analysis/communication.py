"""Communication of each device: what it sends, and the time that goes to what nothing hides."""

from __future__ import annotations

import numpy as np

from ppsim.analysis.ledger import ledger
from ppsim.plan.lengths import by_kind_and_stage
from ppsim.timeline import TimelineColumns

IDLE_CAUSES = ("transfer", "queue", "sharding")


def exposed_communication(timeline: TimelineColumns) -> np.ndarray:
    """Seconds of each device in collectives inside its actions, and idle because of communication.

    The idle part is what the bubble ledger puts under transfer, queue and sharding.
    """
    idle = ledger(timeline)
    return collectives_inside(timeline) + sum(idle[cause] for cause in IDLE_CAUSES)


def collectives_inside(timeline: TimelineColumns) -> np.ndarray:
    """Seconds of each device in tensor-, context- and expert-parallel collectives that lengthen its actions.

    An OVERLAP_F_B slot hides its collectives behind the computation of both parts: exposed is what the slot is longer
    than that. Where noise or a slow device lengthens an action, its collectives take the same part of it as without.
    """
    schedule, table, plan = timeline.schedule, timeline.table, timeline.plan
    if table.exchange_seconds is None:
        return np.zeros(schedule.devices)
    computing = by_kind_and_stage(schedule, table.seconds - table.exchange_seconds)
    whole = by_kind_and_stage(schedule, table.seconds)
    first, second, forward, backward = plan.slots
    if len(second) and table.overlap is not None:
        computing[first] += computing[second]
        whole[first] = table.overlap[schedule.stage[forward], schedule.stage[backward]]
        whole[second] = computing[second] = 0.0
    part = np.divide(whole - computing, whole, out=np.zeros_like(whole), where=whole > 0)
    return np.add.reduceat(plan.seconds * np.clip(part, 0.0, 1.0), schedule.offsets[:-1])


def stages_held(timeline: TimelineColumns) -> np.ndarray:
    """Stages that each device runs."""
    return np.bincount(timeline.schedule.holdings[:, 0], minlength=timeline.schedule.devices)


def transfers_sent(timeline: TimelineColumns) -> np.ndarray:
    """Transfers that each device sends in one step."""
    schedule, plan = timeline.schedule, timeline.plan
    sent = np.bincount(schedule.device[plan.source[plan.remote]], minlength=schedule.devices)
    return sent // schedule.iterations
