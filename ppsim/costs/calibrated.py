"""Constants of the cost laws that measured steps calibrate, and Calibration: their values and what is still unknown."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from os import PathLike
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ppsim.base.documents import checked_by, nine_digits, read_record, record, record_of, yaml_text
from ppsim.base.files import write_atomically
from ppsim.base.host import note_calibration
from ppsim.base.immutable import short_repr
from ppsim.base.rules import choice, declared, described, fraction, number, positive, rule, share
from ppsim.base.tables import escaped, html_table
from ppsim.base.units import counted, percent_text, seconds_text, value_text
from ppsim.costs.setup import Setup
from ppsim.costs.spread import DIMENSIONS, PER_DOUBLING, Spread, student_quantile

SCHEMA = "ppsim.calibration/1"
PRIOR_RUNS = 2  # weight of the prior error, in runs
PRIOR_ERROR = 0.08  # standard deviation of log(measured / predicted) that no constant explains, before any run
PRIOR_FRACTION = 0.9  # fraction of the prior's deviation above which the runs show nothing about a constant
DEGREES_OF_FREEDOM = 4  # of Student's t, which that error follows
SLOWER_PER_DOUBLING = 1.2  # factor of the upper bound: runs beyond those of a fit are more often slower than faster
MIN_RUNS = 3  # minimum number of runs that can support a fit: of two runs, each is predicted by a fit to only one
OUTLIER_WEIGHT = 0.3  # weight in the fit below which a run counts as an outlier
Costs = TypeVar("Costs", bound=Setup)


class Constant(NamedTuple):
    """One constant of the laws."""

    what: str
    unit: str
    deviation: float  # standard deviation of the logarithm of its own factor before any run is known: the prior
    # numbers of the cluster that its factor multiplies, as paths of fields; the first one is shown. Empty: the law
    # reads the factor by `Setup.factor`.
    paths: tuple[str, ...] = ()
    of_memory: bool = False  # True if it changes bytes, else seconds


LAW = "device.operators"
KERNELS = ("attention", "flash_2", "flash_1")
# A new law adds a row: what its factor multiplies. Deviations lie near those that make the seen published runs the most
# probable, where each source has constants of its own (type II maximum likelihood); docs/howto/calibrate.md.
CONSTANTS: Mapping[str, Constant] = {
    "products": Constant(
        "rate of products over the peak", "", 0.1, (f"{LAW}.products", f"{LAW}.products_fp8", "device.achieved")
    ),
    "attention": Constant("rate of attention over the peak", "", 0.3, tuple(f"{LAW}.{name}" for name in KERNELS)),
    "memory": Constant("part of the memory bandwidth that passes reach", "", 0.25, (f"{LAW}.memory",)),
    "host": Constant("time of the host to start a kernel", "seconds", 0.5, (f"{LAW}.start",)),
    "drift": Constant("waits of tensor groups for hosts that drift apart", "", 0.2),
    "link": Constant("bandwidth inside a node", "bytes per second", 0.35, ("link.bandwidth",)),
    "network": Constant("bandwidth between nodes", "bytes per second", 0.45, ("network.bandwidth",)),
    "latency": Constant("latency between nodes", "seconds", 0.5, ("network.latency",)),
    "wait": Constant("wait of a collective for each of its nodes", "seconds", 0.6, ("node_wait",)),
    "exposed": Constant("part of hidden communication that costs time", "", 0.3, ("contention",)),
    "activations": Constant("bytes of activations over those predicted", "", 0.1, of_memory=True),
    "state": Constant("bytes of weights and optimizer over those predicted", "", 0.03, of_memory=True),
}
RATES, RATES_DEVIATION = ("products", "attention", "memory"), 0.2  # share a factor: some software is slow as a whole


def prior_covariance(names: Collection[str]) -> np.ndarray:
    """Return the covariance of the logarithms of these constants before any run is known."""
    shared = RATES_DEVIATION * np.array([name in RATES for name in names])
    return np.diag([CONSTANTS[name].deviation ** 2 for name in names]) + np.outer(shared, shared)


def scaled(costs: Costs, factors: Mapping[str, float]) -> Costs:
    """Return derived costs whose constants are multiplied by factors; a part of a whole stays at most 1."""
    cluster, own = costs.cluster, dict(costs.factors)
    for name, factor in factors.items():
        for path in CONSTANTS[name].paths:
            cluster = _scaled_at(cluster, path.split("."), factor)
        if not CONSTANTS[name].paths:
            own[name] = own.get(name, 1.0) * factor
    return replace(costs, cluster=cluster, factors=own)


def _scaled_at(holder: Any, path: Sequence[str], factor: float) -> Any:
    """Return a dataclass with the number at a path of fields multiplied; None, for a law that it lacks, stays."""
    name, *inner = path
    value = getattr(holder, name)
    if value is None or factor == 1:
        return holder
    if inner:
        return replace(holder, **{name: _scaled_at(value, inner, factor)})
    is_fraction = any(item.name == name and item.metadata.get("check") is fraction for item in fields(holder))
    return replace(holder, **{name: min(value * factor, 1.0) if is_fraction else value * factor})


def value_of(costs: Any, name: str) -> float:
    """Return the value of a constant in some costs; 0 if they do not have it."""
    if not CONSTANTS[name].paths:
        return costs.factor(name)
    value = costs.cluster
    for key in CONSTANTS[name].paths[0].split("."):
        value = getattr(value, key, None)
    return value or 0.0


@dataclass(frozen=True)
class MeasuredRun:
    """One measured run of a calibration, and its part in the fit."""

    name: str  # the config's file or name
    # seconds, before, after: measured step, and the step predicted without and with the calibration
    seconds: float
    before: float
    after: float
    weight: float  # weight of the run in the fit: near 1, and near 0 for a run that does not fit
    tells: str = ""  # constant whose uncertainty grows most without the run; "" if none grows by a tenth
    # peak_memory, memory_before, memory_after: bytes, measured and predicted
    peak_memory: float | None = None
    memory_before: float | None = None
    memory_after: float | None = None

    __repr__ = short_repr

    @property
    def error(self) -> float:
        """Predicted over measured seconds, minus 1."""
        return self.after / self.seconds - 1

    @property
    def fits(self) -> bool:
        """False if the fit gave the run little weight, as an outlier."""
        return self.weight >= OUTLIER_WEIGHT


class Support(NamedTuple):
    """Evidence for a fit: runs that a fit to the others predicts better, and the fraction of the fit that is used."""

    runs: int
    better: int  # runs whose prediction a fit to the others moves towards the measured value
    part: float = 1.0

    def words(self, what: str) -> str:
        """Return these numbers in words, with the name of what is predicted."""
        used = f"{percent_text(self.part, 0)} of the fit is" if self.part else "fit not"
        return f"{self.better} of {self.runs} {what}" + (f" ({used} used)" if self.part < 1 else "")


@described
@dataclass(frozen=True)
class Calibration:
    """Constants of the cost laws as measured steps set them; the result of `ppsim.calibrate_steps`."""

    factors: Mapping[str, float] = declared(
        "factor of each constant's value before the calibration, by constant; `CONSTANTS` describes them"
    )
    covariance: tuple[tuple[float, ...], ...] = declared(
        "covariance of the logarithms of these factors, in their order"
    )
    error: float = declared("standard deviation of log(measured / predicted) that no constant explains")
    values: Mapping[str, tuple[float, float]] = declared(
        "value before and after, by constant, on the cluster of the runs"
    )
    measured: tuple[MeasuredRun, ...] = declared("the runs, and the part of each in the fit")
    ranges: Mapping[str, tuple[float, float]] = declared(
        "(smallest, largest) of each of `ppsim.costs.spread.DIMENSIONS` among the runs"
    )
    support: Mapping[str, Support] = declared(
        "of steps and of peaks: how many runs fits to the others predict better, and the part of the fit used"
    )
    next_run: Mapping[str, Any] | None = declared(
        "config keys to change in the first run's config for the run to measure next; None if there is none to try",
        default=None,
    )
    next_interval: tuple[float, float] | None = declared(
        "90 % interval (low, high) of that run's step in seconds", default=None
    )

    @property
    def runs(self) -> int:
        """Number of runs that it is fitted to."""
        return len(self.measured)

    @property
    def name(self) -> str:
        """Text for outputs: "calibrated with 10 runs"."""
        return f"calibrated with {counted(self.runs, 'run')}"

    @property
    def sentence(self) -> str:
        """The assumption: which constants the runs changed by more than a twentieth."""
        changed = (f"{name} x {factor:.2f}" for name, factor in self.factors.items() if abs(math.log(factor)) > 0.05)
        return f"{self.name}: {', '.join(changed) or 'no constant changed by more than 5 %'}"

    @property
    def fields(self) -> set[str]:
        """Names of the cluster's fields that it changes."""
        return {path.partition(".")[0] for name in self.factors for path in CONSTANTS[name].paths}

    def applied(self, costs: Costs) -> Costs:
        """Return derived costs with these constants, which know their calibration."""
        return replace(scaled(costs, self.factors), calibration=self)

    def deviation(self, name: str) -> float:
        """Return the standard deviation of the logarithm of a constant."""
        index = list(self.factors).index(name)
        return math.sqrt(self.covariance[index][index])

    def constants(self) -> list[tuple[str, ...]]:
        """Return a table of the constants as text: before, now, how well each is known, and what it is."""
        rows: list[tuple[str, ...]] = [("constant", "without", "now", "uncertainty", "")]
        for (name, constant), variance in zip(CONSTANTS.items(), np.diag(prior_covariance(CONSTANTS)), strict=True):
            deviation = self.deviation(name)
            is_still_prior = deviation > PRIOR_FRACTION * math.sqrt(variance)
            known = "as before" if is_still_prior else f"± {percent_text(math.expm1(deviation), 0)}"
            values = (value_text(one, constant.unit) if constant.unit else f"{one:.3g}" for one in self.values[name])
            rows.append((name, *values, known, constant.what))
        return rows

    def errors(self, limit: int | None = None) -> list[tuple[str, ...]]:
        """Return a table of at most `limit` runs as text, those with the largest errors first."""
        rows: list[tuple[str, ...]] = [("run", "measured", "without", "now", "error", "")]
        for run in sorted(self.measured, key=lambda run: -abs(math.log(run.after / run.seconds)))[:limit]:
            note = "does not fit the others" if not run.fits else f"determines {run.tells} most" if run.tells else ""
            seconds = (seconds_text(one, 3) for one in (run.seconds, run.before, run.after))
            rows.append((run.name, *seconds, percent_text(run.error, signed=True), note))
        return rows

    @property
    def support_words(self) -> str:
        """Text for outputs: the evidence for the fits of time and memory, and the fraction of them that is used."""
        each = ", ".join(support.words(what) for what, support in self.support.items())
        return f"predicted better by a fit to the other runs: {each}"

    @property
    def next_words(self) -> str:
        """Text for outputs: the run to do next, and the 90 % interval of its step; empty if there is none."""
        if not (self.next_run and self.next_interval):
            return ""
        low, high = (seconds_text(one, 3) for one in self.next_interval)
        changes = ", ".join(f"{key} {value}" for key, value in self.next_run.items())
        return f"next: measure a run with {changes}; its step is the least certain: 90 % interval {low} to {high}"

    def _repr_html_(self) -> str:
        heads, *rows = self.constants()
        changed, rest = ([row for row in rows if (row[1] == row[2]) is still] for still in (False, True))
        fold = f"<details><summary>unchanged constants: {len(rest)}</summary>{html_table(heads, rest)}</details>"
        names, *runs = self.errors()
        table = html_table(heads, changed) if changed else ""
        notes = "<br>".join(map(escaped, (self.support_words, self.next_words)))
        return "".join([table, fold, html_table(names, runs), notes])

    def spread(self, slopes: np.ndarray, doublings: float) -> Spread:
        """Return the spread of a step from its slopes, d log(step) / d log(factor), and its distance from the runs."""
        known = float(slopes @ np.array(self.covariance) @ slopes)
        half = student_quantile(min(self.runs + PRIOR_RUNS, DEGREES_OF_FREEDOM)) * math.sqrt(known + self.error**2)
        low, high = math.exp(-half) / PER_DOUBLING**doublings, math.exp(half) * SLOWER_PER_DOUBLING**doublings
        return Spread(low, 1.0, high, self.name, doublings)  # the runs set the constants, so the middle is 1

    def save(self, path: str | PathLike[str]) -> None:
        """Write the calibration atomically as YAML, for the key `calibration` of a config."""
        write_atomically(path, yaml_text(calibration_document(self)))


# The file


def calibration_document(calibration: Calibration) -> dict[str, Any]:
    """Return the document of a calibration's file."""
    constants = {
        name: {
            "what": CONSTANTS[name].what,
            "unit": CONSTANTS[name].unit,
            "prior": calibration.values[name][0],
            "value": calibration.values[name][1],
            "factor": factor,
            "deviation": calibration.deviation(name),
        }
        for name, factor in calibration.factors.items()
    }
    optional = {"next_run": calibration.next_run, "next_interval": calibration.next_interval}
    document = {
        "schema": SCHEMA,
        "units": {"time": "seconds", "size": "bytes"},
        "constants": constants,
        "covariance": calibration.covariance,
        "error": calibration.error,
        "ranges": calibration.ranges,
        "support": {what: support._asdict() for what, support in calibration.support.items()},
        "measured": [vars(run) for run in calibration.measured],
    }
    return nine_digits(document | {name: value for name, value in optional.items() if value is not None})


def read_calibration(path: str | PathLike[str]) -> Calibration:
    """Return the calibration in a file; raise ConfigError with the file, and the place of every fault."""
    found = read_record(path, SCHEMA, "a calibration, as `ppsim calibrate --steps` writes", _schema(), _faults)
    constants = {name: dict(each) for name, each in found.pop("constants").items()}
    calibration = Calibration(
        factors={name: each["factor"] for name, each in constants.items()},
        values={name: (each["prior"], each["value"]) for name, each in constants.items()},
        covariance=tuple(map(tuple, found.pop("covariance"))),
        measured=tuple(MeasuredRun(**dict(each)) for each in found.pop("measured")),
        support={what: Support(**dict(each)) for what, each in found.pop("support").items()},
        **found,
    )
    note_calibration(calibration.name)
    return calibration


def _schema() -> Any:
    """Return the schema of a calibration's file."""
    above, any_number, words = checked_by(positive), checked_by(_finite), checked_by(_text)
    part, pair = checked_by(share), tuple[above, above]
    run = record_of(
        MeasuredRun, name=words, seconds=above, before=above, after=above, weight=any_number, tells=words,
        peak_memory=above | None, memory_before=above | None, memory_after=above | None,
    )  # fmt: skip
    constant = record(
        "Constant", what=(words, ""), unit=(words, ""), prior=(any_number, ...), value=(any_number, ...),
        factor=(above, ...), deviation=(any_number, 0.0),
    )  # fmt: skip
    support = record("Support", runs=(int, ...), better=(int, ...), part=(part, ...))
    return record(
        "Calibration", ignored=("schema", "units"), constants=(dict[checked_by(choice(*CONSTANTS)), constant], ...),
        covariance=(list[list[any_number]], ...), error=(above, ...), ranges=(dict[words, pair], ...),
        measured=(list[run], ...), support=(dict[words, support], ...), next_run=(dict[words, Any] | None, None),
        next_interval=(pair | None, None),
    )  # fmt: skip


def _faults(found: Mapping[str, Any]) -> list[str]:
    """Return the faults of values that are each legal by themselves."""
    faults, size = [], len(found["constants"])
    matrix = found["covariance"]
    if [len(row) for row in matrix] != [size] * size:
        faults.append(f"covariance: must have {size} rows of {size} numbers, one per constant")
    elif not np.allclose(matrix, np.transpose(matrix)) or np.linalg.eigvalsh(matrix).min(initial=0.0) < -1e-9:
        faults.append("covariance: must be symmetric, with no negative variance")
    missing = [name for name in DIMENSIONS if name not in found["ranges"]]
    faults += [f"ranges.{name}: is missing; give the smallest and the largest among the runs" for name in missing]
    return faults if found["measured"] else [*faults, "measured: is empty; list the runs"]


_finite = number(math.isfinite, "must be a finite number")
_text = rule(lambda value: isinstance(value, str), "must be text")
