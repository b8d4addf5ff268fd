"""Holds a replay of timed sleeps to the simulator: measured over predicted step time, where the machine can tell."""

from __future__ import annotations

from dataclasses import dataclass

import ppsim
from ppsim.interop.replays import trace_of

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
    """

    ratio: float
    hop: float
    steps: int

    @property
    def judged(self) -> bool:
        """Whether messages are fast enough to judge the ratio."""
        return self.hop < LONGEST_HOP

    @property
    def sentence(self) -> str:
        """What a report says."""
        said = f"measured / predicted step time {self.ratio:.3f} (best of {self.steps})"
        hop = f"messages take up to {self.hop * 1e3:.2f} ms"
        return f"{said}, {hop}" if self.judged else f"{said}, not judged: {hop}, {LONGEST_HOP * 1e3:g} ms is the limit"


def verdict(document: dict, costs: ppsim.Costs) -> Verdict:
    """Compare the trace document of a sleeping replay with the simulation of its program."""
    trace = trace_of(document, "replay")
    predicted = ppsim.simulate(trace.program, costs, transport=trace.transport).makespan
    hop = max(float(clock["hop"]) for clock in document["clocks"])
    return Verdict(float(trace.step_seconds.min()) / predicted, hop, len(trace.step_seconds))
