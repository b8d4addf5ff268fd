"""What takes longer in a measured step than it should: stages, links, microbatches and single actions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES
from ppsim.base.short_repr import short_repr
from ppsim.plan.resolve import Plan
from ppsim.run.timelines import Timeline
from ppsim.studies.measured_plan import groups_of, links_of, medians_of, priced, waited

SLOW_STAGE, SLOW_LINK, SLOW_ACTION = 1.05, 1.25, 1.5  # times what is expected
SLOW_MICROBATCH = 1.03
ROBUST = 4.0  # standard deviations, 1.4826 x median absolute deviation, that a straggler is away from the others
MOST_ACTIONS_SHOWN = 10


@dataclass(frozen=True)
class Slow:
    """Something that takes longer than it should.

    Attributes
    ----------
    what : {"stage", "microbatch", "link", "action"}
    where : str
        Such as `7F` (stage and kind), `microbatch 3`, `0-1` (sender and receiver), `3F7`.
    seconds, expected : float
        Measured and expected seconds: of one action or transfer; of a microbatch, of all its actions.
    excess : float
        Device-seconds of the step beyond what is expected, all together.
    """

    what: str
    where: str
    seconds: float
    expected: float
    excess: float

    __repr__ = short_repr

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.seconds / self.expected if self.expected > 0 else float("inf")


def slow_parts(measured: Timeline, own: Plan, run: Timeline | None) -> list[Slow]:
    """Stages, actions, microbatches and links of a measured run that are slower than expected, the costliest first.

    `own` is the measured run with its own action times as costs. Expected is what the costs of `run` say, or without
    one what is usual in the measured run itself.
    """
    expected = None if run is None else priced(measured, run).plan
    found = [
        *_slow_stages(own, None if expected is None or expected.fused.any() else expected.seconds),
        *_slow_actions(own),
        *_slow_microbatches(own),
        *_slow_links(measured, own, None if expected is None else expected.transfer_seconds),
    ]
    return sorted(found, key=lambda one: -one.excess)


def _slow_stages(own: Plan, expected: np.ndarray | None) -> list[Slow]:
    """Kinds of a stage whose median is above what the costs say, or else above the median of all stages."""
    medians = medians_of(own.seconds, groups_of(own))
    found = []
    for kind in np.unique(own.kind):
        mine = own.kind == kind
        stages, row = np.unique(own.schedule.stage[mine], return_index=True)
        values = medians[mine][row]
        usual = np.full(len(stages), np.median(values)) if expected is None else expected[mine][row]
        counts = np.bincount(own.schedule.stage[mine], minlength=own.schedule.num_stages)[stages]
        for stage, seconds, normal, count in zip(stages.tolist(), values, usual, counts, strict=True):
            if seconds > SLOW_STAGE * normal:
                excess = float((seconds - normal) * count)
                found.append(Slow("stage", f"{stage}{KIND_NAMES[kind]}", float(seconds), float(normal), excess))
    return found


def _slow_microbatches(own: Plan) -> list[Slow]:
    """Microbatches whose actions are longer than the medians of their kinds and stages, and the others' are not."""
    medians, which = medians_of(own.seconds, groups_of(own)), own.schedule.microbatch
    seconds, expected = np.bincount(which, own.seconds), np.bincount(which, medians)
    excess = seconds - expected
    apart = ROBUST * 1.4826 * np.median(np.abs(excess - np.median(excess)))
    chosen = np.flatnonzero((seconds > SLOW_MICROBATCH * expected) & (excess - np.median(excess) > apart))
    return [
        Slow(
            "microbatch", f"microbatch {number}", float(seconds[number]), float(expected[number]), float(excess[number])
        )
        for number in chosen.tolist()
    ]


def _slow_links(measured: Timeline, own: Plan, expected_seconds: np.ndarray | None) -> list[Slow]:
    """Links whose transfers, where a device waited for them, take longer than the costs say, or than other links'."""
    blocked, links = waited(measured), links_of(measured)
    medians = {
        link: float(np.median(own.transfer_seconds[blocked & (links == link)])) for link in np.unique(links[blocked])
    }
    usual = float(np.median(list(medians.values()))) if medians else 0.0
    found = []
    for link, seconds in medians.items():
        mine = blocked & (links == link)
        expected = usual if expected_seconds is None else float(np.median(expected_seconds[mine]))
        if seconds > SLOW_LINK * expected:
            sender, receiver = divmod(int(link), own.schedule.devices)
            excess = (seconds - expected) * int(mine.sum())
            found.append(Slow("link", f"{sender}-{receiver}", seconds, expected, excess))
    return found


def _slow_actions(own: Plan) -> list[Slow]:
    """Single actions far longer than the median of their kind and stage: the worst of them."""
    medians = medians_of(own.seconds, groups_of(own))
    excess = own.seconds - medians
    worst = np.argsort(-excess, kind="stable")[:MOST_ACTIONS_SHOWN]
    return [
        Slow("action", own.schedule.label(row), float(own.seconds[row]), float(medians[row]), float(excess[row]))
        for row in worst.tolist()
        if own.seconds[row] > SLOW_ACTION * medians[row] > 0
    ]
