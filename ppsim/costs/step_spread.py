"""How far measured steps lie from those that a profile predicts: what a calibration learns about its own error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ppsim.base.units import percent_text

# 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; beyond them the normal distribution's.
STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
NORMAL = 1.645
ASSUMED = 0.02  # error of the step of a schedule that was not measured, where fewer than two runs could be left out
HALVED = 0.1  # assumed: what halving a lone B adds to the error of a schedule that splits it

HALVES = (
    "I and W were not measured: schedules that split the backward are priced with each as half of B; on real models W "
    "has been 40 % off such a half. One run of zb-h1 settles it"
)


@dataclass(frozen=True)
class StepSpread:
    """Measured over predicted seconds of a step, from the traces that a profile was fitted to.

    The 90 % interval has two parts that do not depend on each other, so that their squares add up: the errors of runs,
    of which there are few, by Student's t with as many degrees of freedom as runs were left out; and the noise from
    step to step, which many steps show, by the normal distribution.

    Attributes
    ----------
    errors : list of float
        log(measured / predicted) of the median step of each run that could be left out of the fit of the others.
    noise : float
        Standard deviation of log(step / median step of its run).
    drift : float
        log(median of the second half of the steps / median of the first), the median over runs.
    steps : int
        Steps of all runs.
    disturbed : int
        Steps beside them that were dropped: see `ppsim.studies.calibration.undisturbed`.
    halved : bool
        Whether I and W were taken as halves of B.
    """

    errors: list[float]
    noise: float
    drift: float
    steps: int
    disturbed: int
    halved: bool = False

    @property
    def runs(self) -> int:
        """Runs whose error was left out of their own prediction."""
        return len(self.errors)

    @property
    def half(self) -> float:
        """Half of the interval of log(measured / predicted)."""
        known = self.runs > 1
        between = math.sqrt(sum(error**2 for error in self.errors) / self.runs) if known else ASSUMED
        quantile = STUDENT[self.runs - 1] if known and self.runs <= len(STUDENT) else NORMAL
        return math.hypot(quantile * between, NORMAL * self.noise) + (HALVED if self.halved else 0.0)

    @property
    def low(self) -> float:
        """P5 of measured / predicted."""
        return math.exp(-self.half)

    @property
    def middle(self) -> float:
        """P50 of measured / predicted: 1, which the fitted overhead brings about."""
        return 1.0

    @property
    def high(self) -> float:
        """P95 of measured / predicted."""
        return math.exp(self.half)

    @property
    def sentence(self) -> str:
        """Where the interval comes from."""
        if self.runs > 1:
            source = f"errors of {self.runs} runs, each left out of the fit, and noise of {self.steps} steps"
        else:
            unknown = f"{percent_text(ASSUMED, 0)} assumed for a schedule that was not measured"
            source = f"{unknown}, and noise of {self.steps} steps"
        widened = f"; {percent_text(HALVED, 0)} assumed for I and W as halves of B, which one run of zb-h1 settles"
        return f"calibrated: {source}{widened if self.halved else ''}"

    def of_whole_backward(self) -> StepSpread:
        """The spread of a schedule without I and W, for which it does not matter how B divides."""
        return replace(self, halved=False)
