"""Calibration from measured steps: the constants of the cost laws by a maximum a posteriori fit.

The logarithm of each constant has a normal prior (`CONSTANTS`), and log(measured / predicted) of each run follows
Student's t, so that one bad run cannot pull the fit: Lange, Little and Taylor 1989, Robust statistical modeling using
the t distribution, section 3. The fit is used only as far as it predicts unseen runs better. Each run is predicted by a
fit to the others. The constants move towards the fit by the fraction for which the lower 90 % bound of the mean
improvement of these predictions is highest, if it is above 0. The normal approximation there gives the remaining
uncertainty.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ppsim.analysis.interval import constant_slopes, step_interval
from ppsim.base.documents import checked_entry, nine_digits, read_yaml_file
from ppsim.base.errors import ConfigError, PpsimError, error_at, shown
from ppsim.base.rules import checked_call
from ppsim.base.units import parse_quantity
from ppsim.config import AnyConfig, Config, as_config, value_at
from ppsim.costs.calibrated import (
    CONSTANTS,
    DEGREES_OF_FREEDOM,
    MIN_RUNS,
    PRIOR_ERROR,
    PRIOR_RUNS,
    Calibration,
    MeasuredRun,
    Support,
    prior_covariance,
    scaled,
    value_of,
)
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.spread import DIMENSIONS, scales, student_quantile
from ppsim.plan.lengths import structure
from ppsim.plan.resolve import make_plan, repriced
from ppsim.run.timelines import Timeline
from ppsim.search.partitions import with_stages_of_run
from ppsim.studies.free_keys import Key
from ppsim.studies.space import search_space
from ppsim.timeline import timeline_of_plan

KEYS = ("config", "seconds", "peak_memory")
LARGEST = {"seconds": 1e8, "bytes": 1e15}  # legal values of a step: three years, and a thousand of the largest GPUs
ROUNDS = 12  # Gauss-Newton steps of a fit, at most
MAX_LOG_CHANGE = 0.7  # largest change of a logarithm in one step
CONVERGED = 3e-3  # the fit ends if no logarithm changes by more
STALE_SLOPES = 0.1  # slopes are recomputed when the largest changes of logarithms add up to more than this
FRACTIONS = np.arange(1, 21) / 20  # of a fit, of which one is used
MIN_GROWTH = 1.1  # a run determines a constant if without the run the constant's deviation grows by this factor or more
OF_TIME, OF_MEMORY = (tuple(name for name in CONSTANTS if CONSTANTS[name].of_memory == of) for of in (False, True))
CLEARLY_BETTER = 2.0  # log likelihood ratio from which peaks count as those of the first device, not the fullest
MAX_TRIED = 16  # layouts that are tried for the next run
SMALL_CHANGE = 0.02  # of the logarithm of a constant, to find the slope of a peak


class StepRun(NamedTuple):
    """A config with the measured seconds of a step, and the measured peak memory in bytes or None."""

    config: Config
    seconds: float
    peak_memory: float | None

    @property
    def name(self) -> str:
        """Name of the config, and its file if the name is another: configs of one job often have one name."""
        file, name = os.path.basename(self.config.path), self.config.name
        is_other = os.path.isfile(self.config.path) and os.path.splitext(file)[0] != name
        return f"{name}, {file}" if is_other else name


@checked_call()
def calibrate_steps(runs: Sequence[Mapping[str, Any]]) -> Calibration:
    """Fit the constants of the cost laws to measured steps.

    Parameters
    ----------
    runs : list of mappings
        Each has `config` (a path, a dict or a Config), `seconds` of a measured step, and perhaps `peak_memory`: bytes
        of the fullest GPU, or of the first device if that fits all runs better. Numbers may be text with a unit.

    Raises
    ------
    ConfigError
        A run is incomplete, wrong or listed twice, or its config does not load or has no derived costs.

    Examples
    --------
    >>> jobs = {"job.yaml": 14.2, "wider.yaml": 9.8, "deeper.yaml": 11.5}
    >>> calibration = ppsim.calibrate_steps([{"config": job, "seconds": seconds} for job, seconds in jobs.items()])
    >>> calibration.save("calibration.yaml")
    >>> ppsim.load_config("job.yaml").changed({"calibration": "calibration.yaml"}).simulate().interval
    """
    return calibration_of_runs(read_step_runs(runs))


# Input


def load_step_runs(path: str | PathLike[str]) -> list[StepRun]:
    """Return the runs that a YAML file lists; paths of configs are relative to it. Raises ConfigError."""
    place = str(path)
    return read_step_runs(read_yaml_file(path).value, place, os.path.dirname(place))


def read_step_runs(listed: Any, place: str = "runs", folder: str = "") -> list[StepRun]:
    """Return checked runs; ConfigError names `place`, the number of the run and its fault."""
    if not isinstance(listed, list | tuple | None):
        raise ConfigError(f"{place}: {shown(listed)} must be a list of runs, {EXAMPLE}")
    if not listed:
        raise ConfigError(f"{place}: is empty; list runs, {EXAMPLE}")
    runs, first = [], dict[str, int]()
    for number, one in enumerate(listed):
        run = _read_run(one, f"{place}[{number}]", folder)
        key = repr((sorted(run.config.data.items(), key=repr), run.seconds))
        if key in first:
            raise ConfigError(
                f"{place}[{number}]: repeats {place}[{first[key]}] with the same config and seconds; list a run once"
            )
        first[key] = number
        runs.append(run)
    return runs


def _read_run(one: Any, place: str, folder: str) -> StepRun:
    entry = checked_entry(one, place, f"a run, {EXAMPLE}", KEYS, KEYS[:2])
    seconds = _amount(entry["seconds"], "seconds", f"{place}: seconds", "14.2")
    peak = entry.get("peak_memory")
    peak = None if peak is None else _amount(peak, "bytes", f"{place}: peak_memory", "61 GB")
    return StepRun(_config_of(entry["config"], place, folder), seconds, peak)


def _amount(value: Any, unit: str, place: str, example: str) -> float:
    with error_at(f"{place}: "):
        amount = parse_quantity(value, unit)
    if not 0 < amount <= LARGEST[unit]:
        most = f"{LARGEST[unit]:.0e} {unit}"
        raise ConfigError(f"{place}: {shown(value)} must be above 0 and at most {most}, such as {example}")
    return amount


def _config_of(given: AnyConfig, place: str, folder: str) -> Config:
    """Return the config of a run without calibration and jitter; ConfigError unless its costs are derived."""
    try:
        config = as_config(os.path.join(folder, given) if isinstance(given, str | PathLike) else given)
        if "calibration" in config.data:
            config = config.changed({"calibration": None})
        config = replace(config, jitter=None)
        if not isinstance(config.costs, DerivedCosts) or config.costs.spread(1) is None:
            raise ConfigError("gives its own times, which nothing calibrates; give model and hardware instead")
        config.simulate()
    except PpsimError as wrong:
        raise ConfigError(f"{place}: config: {wrong}") from None
    return config


EXAMPLE = "such as {config: job.yaml, seconds: 14.2, peak_memory: 61 GB}"


# Pricing


class PricedRun:
    """A measured run whose step can be simulated again under other constants."""

    def __init__(self, run: StepRun):
        config = run.config
        self.run, self.config, self.schedule = run, config, config.lowered(config.build())
        self.costs: Any = with_stages_of_run(config.costs, self.schedule, config.transport, config.optimizer)
        self.table = self.costs.table(self.schedule.compute)
        self.plan = make_plan(self.schedule, self.table, config.transport, config.optimizer)

    @cached_property
    def before(self) -> Timeline:
        """The simulated step with unchanged constants."""
        return self._simulated(self.costs)

    def under(self, logs: Mapping[str, float]) -> Timeline:
        """Return the simulated step with the constants multiplied by exp(logs)."""
        factors = {name: math.exp(log) for name, log in logs.items() if log}
        return self._simulated(scaled(self.costs, factors)) if factors else self.before

    def _simulated(self, costs: Any) -> Timeline:
        table = costs.table(self.schedule.compute)
        if self.config.dispatch != "list" or structure(table) != structure(self.table):
            return replace(self.config, costs=costs).simulate()
        return timeline_of_plan(Timeline, repriced(self.plan, table), table, costs, self.config.engine)


class Peaks:
    """Peak bytes of each device of a simulated step under other constants of memory; a peak is linear in each."""

    def __init__(self, run: Timeline):
        self.now = np.asarray(run.peak_memory)
        assert run.derived is not None  # noqa: S101 - `_config_of` accepts derived costs only
        tables = [scaled(run.derived, {name: 2.0}).table(run.schedule) for name in OF_MEMORY]
        doubled = [Timeline(run.plan, table, run.costs, run.times, engine=run.engine) for table in tables]
        self.growth = np.array([np.asarray(other.peak_memory) - self.now for other in doubled])

    def under(self, logs: np.ndarray) -> np.ndarray:
        """Return the peaks with the constants multiplied by exp(logs)."""
        return self.now + np.expm1(logs) @ self.growth


# The fit


@dataclass
class Fit:
    """Constants that a fit found."""

    logs: np.ndarray  # logarithms of the factors
    covariance: np.ndarray
    error: float  # standard deviation of log(measured / predicted) that the constants do not explain
    residual: np.ndarray  # log(measured / predicted) of each run
    weight: np.ndarray  # of each run
    slopes: np.ndarray  # (runs, constants)
    support: Support


Predicted = Callable[[np.ndarray], np.ndarray]


def fit_constants(measured: np.ndarray, names: Sequence[str], predict: Predicted, slopes: Predicted) -> Fit:
    """Return the constants to the fraction of the fit that left-out runs support, and their remaining uncertainty.

    `measured` has logarithms. `predict` and `slopes` take the constants' logarithms. They return the logarithms of the
    predictions, and their derivatives, (runs, constants).
    """
    fit, start = _most_probable(measured, names, predict, slopes), np.zeros(len(names))
    # The mean of the slopes at both ends: constants may move far, and slopes with them.
    support = _support(names, measured - predict(start), (slopes(start) + fit.slopes) / 2, fit.error)
    logs = support.part * fit.logs
    return replace(_fit_at(logs, measured - predict(logs), fit.error, slopes(logs), names), support=support)


def _support(names: Sequence[str], unfitted: np.ndarray, slopes: np.ndarray, error: float) -> Support:
    """Return the fraction of a fit that left-out runs support, from log(measured / predicted) without the fit.

    It has the highest lower 90 % bound of the mean improvement. The deviation of the improvements has the fit's error
    as its prior, with the weight of `PRIOR_RUNS` runs. Slopes are taken as constant.
    """
    runs, predicted = len(unfitted), np.zeros(len(unfitted))
    if runs < MIN_RUNS:
        return Support(runs, 0, 0.0)
    for run, slope in enumerate(slopes):
        others, given = np.delete(unfitted, run), np.delete(slopes, run, 0)
        predicted[run] = slope @ _most_probable(others, names, given.__matmul__, lambda _, given=given: given).logs
    gains = np.abs(unfitted) - np.abs(unfitted - FRACTIONS[:, None] * predicted)
    degrees = runs - 1 + PRIOR_RUNS
    variance = (runs * gains.var(axis=1) + PRIOR_RUNS * error**2) / degrees
    surely = gains.mean(axis=1) - student_quantile(degrees) * np.sqrt(variance / runs)
    best = int(surely.argmax())
    fraction = float(FRACTIONS[best]) if surely[best] > 0 else 0.0
    return Support(runs, int(np.sum(unfitted * predicted > 0)), fraction)


def _most_probable(measured: np.ndarray, names: Sequence[str], predict: Predicted, slopes: Predicted) -> Fit:
    """Return the most probable constants, by Gauss-Newton steps with reweighted runs."""
    precision = np.linalg.inv(prior_covariance(names))
    logs, error = np.zeros(len(names)), PRIOR_ERROR
    residual, jacobian = measured - predict(logs), slopes(logs)
    changed = 0.0  # largest changes of logarithms since the slopes were found, added up
    for _ in range(ROUNDS):
        error = _error(residual, error)
        weight = _weights(residual, error)
        if changed > STALE_SLOPES:
            jacobian, changed = slopes(logs), 0.0
        curvature = jacobian.T @ (weight[:, None] * jacobian) / error**2 + precision
        gradient = jacobian.T @ (weight * residual) / error**2 - precision @ logs
        step = np.linalg.solve(curvature, gradient)
        step *= min(1.0, MAX_LOG_CHANGE / max(np.abs(step).max(initial=0.0), 1e-300))
        logs, largest = logs + step, float(np.abs(step).max(initial=0.0))
        residual, changed = measured - predict(logs), changed + largest
        if largest < CONVERGED:
            break
    return _fit_at(logs, residual, error, slopes(logs), names)


def _fit_at(logs: np.ndarray, residual: np.ndarray, error: float, slopes: np.ndarray, names: Sequence[str]) -> Fit:
    """Return the normal approximation at some constants."""
    error = _error(residual, error)
    weight = _weights(residual, error)
    curvature = slopes.T @ (weight[:, None] * slopes) / error**2 + np.linalg.inv(prior_covariance(names))
    return Fit(logs, np.linalg.inv(curvature), error, residual, weight, slopes, Support(len(residual), len(residual)))


def _weights(residual: np.ndarray, error: float) -> np.ndarray:
    return (DEGREES_OF_FREEDOM + 1) / (DEGREES_OF_FREEDOM + (residual / error) ** 2)


def _error(residual: np.ndarray, error: float) -> float:
    """Return the scale of the residuals, with the prior's weight of `PRIOR_RUNS` runs."""
    for _ in range(20):
        squares = float(_weights(residual, error) @ residual**2)
        error = math.sqrt((PRIOR_RUNS * PRIOR_ERROR**2 + squares) / (PRIOR_RUNS + len(residual)))
    return error


def fit_time(runs: Sequence[PricedRun]) -> tuple[Fit, list[Timeline]]:
    """Return the fitted constants of time, and the simulated step of each run under them."""

    @cache
    def simulated(*logs: float) -> list[Timeline]:
        return [run.under(dict(zip(OF_TIME, logs, strict=True))) for run in runs]

    fit = fit_constants(
        np.log([one.run.seconds for one in runs]),
        OF_TIME,
        lambda logs: np.log([one.iteration_time for one in simulated(*logs.tolist())]),
        lambda logs: np.array([constant_slopes(one)[: len(OF_TIME)] for one in simulated(*logs.tolist())]),
    )
    return fit, simulated(*fit.logs.tolist())


def fit_memory(measured: Sequence[float], peaks: Sequence[Peaks], first_device: bool) -> Fit:
    """Return the fitted constants of memory, for measured peaks of the fullest device or of the `first_device`."""

    def predict(logs: np.ndarray) -> np.ndarray:
        return np.log([one[0] if first_device else one.max() for one in (run.under(logs) for run in peaks)])

    def slopes(logs: np.ndarray) -> np.ndarray:
        steps = SMALL_CHANGE * np.eye(len(OF_MEMORY))
        return np.array([(predict(logs + one) - predict(logs)) / SMALL_CHANGE for one in steps]).T

    return fit_constants(np.log(measured), OF_MEMORY, predict, slopes)


# The answer


def calibration_of_runs(runs: Sequence[StepRun]) -> Calibration:
    """Return the calibration of checked runs, with the next run whose measurement would narrow the constants most."""
    priced = [PricedRun(run) for run in runs]
    calibration = calibration_of_priced(priced)
    return replace(calibration, **_next_run(calibration, priced))


def calibration_of_priced(priced: Sequence[PricedRun]) -> Calibration:
    """Return the calibration of priced runs, without a next run."""
    runs = [one.run for one in priced]
    fit, simulated = fit_time(priced)
    fits, first_device = [(OF_TIME, fit)], False
    peaks = {number: run.peak_memory for number, run in enumerate(runs) if run.peak_memory is not None}
    if peaks and all(simulated[number].peak_memory is not None for number in peaks):
        peaks_of_runs = [Peaks(simulated[number]) for number in peaks]
        memory_fits = [fit_memory([*peaks.values()], peaks_of_runs, first_device) for first_device in (False, True)]
        first_device = len(peaks) * math.log(memory_fits[0].error / memory_fits[1].error) > CLEARLY_BETTER
        fits.append((OF_MEMORY, memory_fits[first_device]))
    logs, covariance = dict.fromkeys(CONSTANTS, 0.0), prior_covariance(CONSTANTS)
    for names, one in fits:
        logs |= dict(zip(names, one.logs.tolist(), strict=True))
        indices = [list(CONSTANTS).index(name) for name in names]
        covariance[np.ix_(indices, indices)] = one.covariance
    before, after = [run.before for run in priced], [run.under(logs) for run in priced]
    first_costs, factors = priced[0].costs, {name: math.exp(log) for name, log in logs.items()}
    sizes = [scales(one.costs, run.schedule.devices) for one, run in zip(priced, after, strict=True)]
    return Calibration(
        factors=factors,
        covariance=tuple(map(tuple, covariance.tolist())),
        error=nine_digits(fit.error),  # as in a saved file; the last bits differ from process to process
        values={
            name: (value_of(first_costs, name), value_of(scaled(first_costs, factors), name)) for name in CONSTANTS
        },
        measured=tuple(_measured(run, fit, number, before, after, first_device) for number, run in enumerate(runs)),
        ranges={name: (min(one[name] for one in sizes), max(one[name] for one in sizes)) for name in DIMENSIONS},
        support={what: one.support for (_, one), what in zip(fits, ("steps", "peaks"), strict=False)},
    )


def _measured(
    run: StepRun, fit: Fit, number: int, before: Sequence[Timeline], after: Sequence[Timeline], first_device: bool
) -> MeasuredRun:
    def peak(one: Timeline) -> float | None:
        peaks = one.peak_memory
        return None if peaks is None or run.peak_memory is None else float(peaks[0] if first_device else peaks.max())

    information = fit.weight[number] * np.outer(fit.slopes[number], fit.slopes[number]) / fit.error**2
    without = np.linalg.inv(np.linalg.inv(fit.covariance) - information)
    growth = np.sqrt(np.diag(without) / np.diag(fit.covariance))
    return MeasuredRun(
        name=run.name,
        seconds=run.seconds,
        before=before[number].iteration_time,
        after=after[number].iteration_time,
        weight=min(float(fit.weight[number]), 1.0),
        tells=OF_TIME[int(growth.argmax())] if growth.max() >= MIN_GROWTH else "",
        peak_memory=run.peak_memory,
        memory_before=peak(before[number]),
        memory_after=peak(after[number]),
    )


# The next run


def _next_run(calibration: Calibration, priced: Sequence[PricedRun]) -> dict[str, Any]:
    """Return the layout whose predicted step is most uncertain, on the GPUs of the first run.

    Layouts differ in tensor groups, pipeline devices and microbatch size.
    """
    config = calibrated_config(priced[0].config, calibration)
    if "name" not in config.schedule:
        return {}
    widest, found = 0.0, {}
    layouts = list(search_space(config, [Key.TENSOR, Key.DEVICES, Key.MICROBATCH_SIZE]).layouts())
    for changes in layouts[:: -(-len(layouts) // MAX_TRIED) or 1]:
        try:
            other = calibrated_config(config.changed(changes), calibration)
            run = other.simulate()
        except PpsimError:
            continue
        interval, capacity = step_interval(run), run.table.workload and run.table.workload.memory
        if interval is None or (run.peak_memory is not None and capacity and run.peak_memory.max() > capacity):
            continue
        if interval[1] / interval[0] > widest:
            widest = interval[1] / interval[0]
            other = {key: value for key, value in changes.items() if value_at(config.data, key) != value}
            found = {"next_run": other, "next_interval": interval}
    return found


def calibrated_config(config: Config, calibration: Calibration) -> Config:
    """Return a config of derived costs with the constants of a calibration."""
    costs: Any = config.costs
    return replace(config, costs=calibration.applied(costs))
