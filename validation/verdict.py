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
    trace = trace_of(document, "replay")
    predicted = ppsim.simulate(trace.program, costs, transport=trace.transport).makespan
    hop = max(float(clock["hop"]) for clock in document["clocks"])
    ratio = float(trace.step_seconds.min()) / predicted
    return Verdict(ratio, hop, len(trace.step_seconds), queued=trace.transport != "async")
