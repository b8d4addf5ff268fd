"""Errors of the simulator: predicted against measured step times, for fitted and for held-out runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.interval import spread
from ppsim.base.errors import ConfigError
from ppsim.base.immutable import short_repr
from ppsim.base.tables import Tabular
from ppsim.costs.profile import Profile
from ppsim.interop.traces import Trace
from ppsim.studies.calibration import predict, run_name
from ppsim.timeline import TimelineColumns

GROUPS = ("fitted", "held_out", "all")


@dataclass(frozen=True)
class RunError:
    """Prediction of one run."""

    name: str  # schedule and size of the run, as in a profile
    fitted: bool  # True if the profile was fitted to this run
    # measured, predicted: step time in seconds; measured is the median over steps
    measured: float
    predicted: float
    error: float  # predicted / measured - 1, signed
    # mean over actions of |predicted start - measured start| / measured step time, of the median step
    action_error: float
    # by kind: median over actions of predicted / measured seconds - 1, without the profile's overhead and stretch
    kind_error: dict[str, float]
    # steps, inside: number of measured steps, and of those within the predicted 90 % interval; None if there is none
    steps: int
    inside: int | None

    __repr__ = short_repr


@dataclass(frozen=True)
class Evaluation(Tabular):
    """Predictions of all runs and their errors."""

    runs: list[RunError]
    # by group: mean absolute percentage error of the step time, as a fraction, over "fitted", "held_out" and "all" runs
    mape: dict[str, float | None]
    # by group: rank correlation of predicted and measured step times. None if a group has too few runs.
    kendall_tau: dict[str, float | None]
    # by group: fraction of the measured steps within the 90 % interval of their prediction
    inside: dict[str, float | None]
    notes: list[str]  # data that was missing from traces
    assumptions: list[str]  # how the profile prices kinds of these runs that it was not fitted to

    __repr__ = short_repr

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        common = set.intersection(*(set(run.name.split()[1:]) for run in self.runs))
        units = {"measured": "seconds", "predicted": "seconds", "error": "change"}
        rows = [
            {"run": " ".join(word for word in run.name.split() if word not in common), "fitted": run.fitted}
            | {key: getattr(run, key) for key in units}
            for run in self.runs
        ]
        return rows, units


def evaluate(traces: Sequence[Trace], profile: Profile) -> Evaluation:
    """Predict the step of every trace with the profile, and return the errors.

    Raises ConfigError if a trace's steps take no time, CostError if the profile does not fit it, or DeadlockError.
    """
    runs = [_run_error(trace, profile) for trace in traces]
    chosen = {name: [run for run in runs if name == "all" or run.fitted == (name == "fitted")] for name in GROUPS}
    mape = {name: float(np.mean([abs(run.error) for run in runs])) if runs else None for name, runs in chosen.items()}
    tau = {name: kendall_tau([r.predicted for r in runs], [r.measured for r in runs]) for name, runs in chosen.items()}
    inside = {name: _fraction_inside(group) for name, group in chosen.items()}
    assumed = [sentence for trace in traces for sentence in profile.assumptions(trace.program)]
    notes = [note for trace in traces for note in trace.notes]
    return Evaluation(runs, mape, tau, inside, notes, list(dict.fromkeys(assumed)))


def _fraction_inside(runs: Sequence[RunError]) -> float | None:
    inside = [run.inside for run in runs if run.inside is not None]
    return sum(inside) / sum(run.steps for run in runs) if runs and len(inside) == len(runs) else None


def _run_error(trace: Trace, profile: Profile) -> RunError:
    predicted = predict(trace, profile)
    step = predicted.makespan - profile.overhead
    measured = float(np.median(trace.step_seconds))
    if not measured > 0:
        raise ConfigError(
            f"{trace.path}: the median step takes {measured:g} s, but must be above 0 s; record the trace again"
        )
    actual = trace.timeline()
    shift = np.abs((predicted.row_start - predicted.row_start.min()) - (actual.row_start - actual.row_start.min()))
    name = run_name(trace)
    return RunError(
        name=name,
        fitted=name in profile.fitted,
        measured=measured,
        predicted=step,
        error=step / measured - 1.0,
        action_error=float(shift.mean() / measured),
        kind_error=_kind_errors(actual, predicted, profile),
        steps=len(trace.step_seconds),
        inside=_inside(trace, predicted, step),
    )


def _inside(trace: Trace, predicted: TimelineColumns, step: float) -> int | None:
    """Return the number of measured steps in the 90 % interval around a predicted `step`."""
    interval = spread(predicted)
    if interval is None:
        return None
    low, high, seconds = step * interval.low, step * interval.high, trace.step_seconds
    return int(np.count_nonzero((seconds >= low) & (seconds <= high)))


def _kind_errors(actual: TimelineColumns, predicted: TimelineColumns, profile: Profile) -> dict[str, float]:
    """Return by kind the median over measured actions of the profile's median / measured seconds - 1."""
    real, simulated = (run.row_end - run.row_start for run in (actual, predicted))
    errors = {}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        rows = (actual.schedule.kind == kind) & (real > 0)
        if rows.any():
            medians = (simulated[rows] - profile.overhead) / profile.stretch.get(kind.name, 1.0)
            errors[kind.name] = float(np.median(medians / real[rows])) - 1.0
    return errors


def kendall_tau(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return Kendall's tau-a of two rankings: (concordant - discordant) pairs / all pairs; None below two values."""
    if len(first) < 2:
        return None
    low, high = np.triu_indices(len(first), 1)
    left, right = np.asarray(first), np.asarray(second)
    agreement = np.sign(left[high] - left[low]) * np.sign(right[high] - right[low])
    return float(agreement.mean())
