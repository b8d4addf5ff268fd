"""Holds a replay of timed sleeps to the simulator: measured over predicted step time, where the machine can tell."""

from __future__ import annotations

from dataclasses import dataclass

import ppsim
from validation.actions import COMPUTE, actions_of

LONGEST_HOP = 1e-3  # seconds; on a machine that delays messages more than this, step times say nothing of the simulator


@dataclass(frozen=True)
class Verdict:
    """How a replay compares with the simulation of its program under the costs that it slept.

    Attributes
    ----------
    ratio : float
        Measured over predicted step time, of the fastest step.
    hop : float
        Seconds of the slowest rank's usual message.
    steps : int
        Measured steps.
    queued : bool
        Whether the simulation posted the transfers where the program does. No queues allow sends and receives of a pair
        that cross; there the simulation sends each result at once, and may well be ahead of the program.
    """

    ratio: float
    hop: float
    steps: int
    queued: bool

    @property
    def judged(self) -> bool:
        """Whether the simulation is of what ran, and messages are fast enough to judge the ratio."""
        return self.queued and self.hop < LONGEST_HOP

    @property
    def sentence(self) -> str:
        """What a report says."""
        said = f"measured / predicted step time {self.ratio:.3f} (best of {self.steps})"
        hop = f"messages take up to {self.hop * 1e3:.2f} ms"
        if not self.queued:
            return f"{said}, not judged: sends and receives cross, and the simulator sends each result at once"
        return f"{said}, {hop}" if self.judged else f"{said}, not judged: {hop}, {LONGEST_HOP * 1e3:g} ms is the limit"


def verdict(document: dict, costs: ppsim.Costs) -> Verdict:
    """Compare the trace document of a sleeping replay with the simulation of its program."""
    program, transport = ppsim.Schedule.from_orders(document["orders"]), document["transport"]
    predicted = ppsim.simulate(program, costs, transport=transport).makespan
    hop = max(float(clock["hop"]) for clock in document["clocks"])
    seconds = [_step_seconds(step, document["orders"]) for step in document["steps"]]
    return Verdict(min(seconds) / predicted, hop, len(seconds), queued=transport != "async")


def _step_seconds(step: dict, orders: list[list[str]]) -> float:
    """Last end - first start of the compute actions of one step."""
    times = [
        (start, end)
        for order, *columns in zip(orders, step["start"], step["end"], strict=True)
        for action, start, end in zip(actions_of(order), *columns, strict=True)
        if action.kind in COMPUTE
    ]
    return max(end for _, end in times) - min(start for start, _ in times)
