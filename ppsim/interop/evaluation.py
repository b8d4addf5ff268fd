"""How wrong the simulator is: predicted against measured step times, of fitted and of held-out runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.costs.profile import Profile
from ppsim.engines import simulate
from ppsim.interop.calibration import run_name
from ppsim.interop.replays import Trace
from ppsim.timeline import Timeline


@dataclass(frozen=True)
class RunError:
    """One run's prediction.

    Attributes
    ----------
    name : str
    fitted : bool
        Whether the profile was fitted to it.
    measured, predicted : float
        Step time in seconds; measured is the median over steps.
    error : float
        predicted / measured - 1, signed.
    action_error : float
        Mean over actions of |predicted start - measured start| / measured step time, of the median step.
    """

    name: str
    fitted: bool
    measured: float
    predicted: float
    error: float
    action_error: float


@dataclass(frozen=True)
class Evaluation:
    """All runs' predictions and what they come to.

    `mape` is the mean absolute percentage error of the step time, as a fraction, and `kendall_tau` the rank correlation
    of predicted and measured step times; both over "fitted", "held_out" and "all" runs.
    Where a group has too few runs the value is None.
    """

    runs: list[RunError]
    mape: dict[str, float | None]
    kendall_tau: dict[str, float | None]
    notes: list[str]


def evaluate(traces: Sequence[Trace], profile: Profile) -> Evaluation:
    """Predict every trace's program with the profile and compare."""
    runs = [_run_error(trace, profile) for trace in traces]
    groups = {
        "fitted": [run for run in runs if run.fitted],
        "held_out": [run for run in runs if not run.fitted],
        "all": runs,
    }
    mape = {
        name: float(np.mean([abs(run.error) for run in group])) if group else None for name, group in groups.items()
    }
    tau = {
        name: kendall_tau([r.predicted for r in group], [r.measured for r in group]) for name, group in groups.items()
    }
    return Evaluation(runs, mape, tau, [note for trace in traces for note in trace.notes])


def predict(trace: Trace, profile: Profile) -> Timeline:
    """The trace's own program under the profile's costs; gloo queues nothing, NCCL as its communicators do."""
    if trace.document.get("backend") == "nccl":
        transport = "blocking" if trace.document.get("blocking") else str(trace.document.get("layout", "directed"))
        return simulate(trace.program, profile, transport=transport)
    return simulate(trace.program, profile, transport="blocking" if trace.document.get("blocking") else "async")


def _run_error(trace: Trace, profile: Profile) -> RunError:
    predicted = predict(trace, profile)
    measured = float(np.median(trace.step_seconds))
    actual = trace.timeline()
    shift = np.abs((predicted.start - predicted.start.min()) - (actual.start - actual.start.min()))
    name = run_name(trace)
    return RunError(
        name,
        name in profile.fitted,
        measured,
        predicted.makespan,
        predicted.makespan / measured - 1.0,
        float(shift.mean() / measured),
    )


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Kendall's tau-a of two rankings: (concordant - discordant) pairs / all pairs; None below two values."""
    if len(first) < 2:
        return None
    low, high = np.triu_indices(len(first), 1)
    one, other = np.asarray(first), np.asarray(second)
    agreement = np.sign(one[high] - one[low]) * np.sign(other[high] - other[low])
    return float(agreement.mean())
