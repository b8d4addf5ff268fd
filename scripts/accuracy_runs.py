"""Published runs with their predictions, and statistics of their errors: intervals of classes, orders of schedules.

docs/accuracy.md and ppsim/costs/spread.json have the figures; scripts/make_accuracy_docs.py writes both.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from published import DATA, LEFT_OUT, Run, class_of_run, published_runs

from ppsim.costs.spread import DIMENSIONS, FP8, PER_DOUBLING, beyond, scales

QUANTILES = (0.05, 0.95)
TIE, SMALLEST_SWEEP = 0.01, 3
FEWEST_SOURCES = 4  # of a class, so that one run may be left out of its interval
OTHER_FRAMEWORK = (
    1.18  # a framework that no run of a class had: as one more source, `unseen_source` of the bf16 classes
)
NORMAL_90 = 1.645  # standard deviations of a normal distribution that hold 90 %
OUT_OF_VIEW, FURTHER, MODELS = (DATA / f"{name}.json" for name in ("out_of_view", "further_runs", "models_2026"))


@dataclass(frozen=True)
class Priced:
    """Published run with its prediction: seconds of one step, and the sizes by which `ppsim.costs.spread` classes it.

    Runs of one `sweep` differ in their layout or schedule alone. `by_sheet` is the prediction of the data sheet for a
    device whose kernels the source measured; `earlier` has the seconds of earlier releases.
    """

    name: str
    source: str
    measured: float
    predicted: float
    group: str
    scales: dict[str, float]
    by_sheet: float | None = None
    sweep: str = ""
    tokens: float = 1.0
    schedule: str = ""
    earlier: tuple[float, ...] = ()
    groups: tuple[int, ...] = ()
    framework: str = ""

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds, by the data sheet: above 1 where the prediction is too fast."""
        return self.measured / (self.by_sheet or self.predicted)

    @property
    def error(self) -> float:
        """Predicted over measured seconds, less 1: below 0 where the prediction is too fast."""
        return self.predicted / self.measured - 1


def priced_runs() -> list[Priced]:
    """Return every run with its prediction."""
    left_out = left_out_constants()
    return [priced(run, left_out) for run in published_runs()]


def left_out_constants() -> dict[str, dict[str, float]]:
    """Return by source the constants that the runs of the others give."""
    return json.loads(LEFT_OUT.read_text(encoding="utf-8"))["constants"]


def priced(run: Run, left_out: Mapping[str, Mapping[str, float]]) -> Priced:
    """Return a run, priced with the constants that its source had no part in."""
    timeline = run.simulated(left_out[run.source])
    sheet = run.by_sheet.simulate().iteration_time if run.by_sheet else None
    workload = timeline.table.workload
    assert workload is not None  # noqa: S101 - every config here has a model
    layout = run.costs.layout
    return Priced(
        run.name, run.source, run.measured, timeline.iteration_time, class_of_run(run),
        scales(run.costs, timeline.schedule.devices), sheet, run.sweep,
        workload.tokens * timeline.schedule.microbatches / workload.gpus, timeline.schedule.name, run.earlier,
        (timeline.schedule.devices, layout.tensor, layout.context, layout.data, layout.expert),
        layout.run_by.facts.name.lower(),
    )  # fmt: skip


def out_of_view_runs() -> list[Priced]:
    """Return every run that was priced once: docs/data/out_of_view.json; none before that."""
    return listed_runs(OUT_OF_VIEW) if OUT_OF_VIEW.exists() else []


def further_runs() -> list[Priced]:
    """Return every run of the sources that were out of view before, without those that crashed."""
    return listed_runs(FURTHER)


def listed_runs(path: Path) -> list[Priced]:
    """Return the runs of a file that scripts/price_out_of_view.py wrote."""
    found = json.loads(path.read_text(encoding="utf-8"))
    rows = [dict(zip(found["columns"], row, strict=True)) for row in found["runs"]]
    return [
        Priced(
            row["name"], row["source"], row["measured"], row["predicted"], row["group"],
            dict(zip(DIMENSIONS, row["scales"], strict=True)),
            sweep=row["sweep"], tokens=row["tokens"], framework=row["framework"],
        )
        for row in rows
    ]  # fmt: skip


def by(runs: Iterable[Priced], key: str) -> dict[str, list[Priced]]:
    """Return the runs by one of their fields, in order of its value."""
    found: dict[str, list[Priced]] = {}
    for run in sorted(runs, key=lambda run: (getattr(run, key), run.source, run.name)):
        found.setdefault(getattr(run, key), []).append(run)
    return found


def in_bf16(runs: Iterable[Priced]) -> list[Priced]:
    """Return the runs whose products are in bf16 or fp16."""
    return [run for run in runs if run.group not in FP8]


def mean_error(runs: Sequence[Priced]) -> float:
    """Return the mean of the absolute errors of some runs."""
    return float(np.mean([abs(run.error) for run in runs]))


def middle_error(runs: Sequence[Priced]) -> float:
    """Return the median of the absolute errors of some runs."""
    return float(np.median([abs(run.error) for run in runs]))


def mean_of_classes(runs: Sequence[Priced], error: Callable[[Sequence[Priced]], float] = mean_error) -> float:
    """Return the mean error of the classes, each of which weighs the same."""
    return float(np.mean([error(members) for members in by(runs, "group").values()]))


def spread_table(runs: Sequence[Priced]) -> dict[str, dict[str, Any]]:
    """Return by class the 90 % interval of measured / predicted, its runs and sources, and what they span."""
    unseen = unseen_source(in_bf16(runs))
    return {group: _row(members, unseen) for group, members in by(runs, "group").items()}


def _row(members: list[Priced], unseen: float) -> dict[str, Any]:
    low, high = interval_of(members, unseen)
    return {
        "low": round(low, 3),
        "high": round(high, 3),
        "middle": round(float(np.interp(0.5, *_weighted(members))), 3),
        "runs": len(members),
        "sources": len({run.source for run in members}),
        "frameworks": sorted({run.framework for run in members}),
        "measured": {
            name: [float(f"{limit(run.scales[name] for run in members):.6g}") for limit in (min, max)]
            for name in DIMENSIONS
        },
    }


def interval_of(members: Sequence[Priced], unseen: float) -> tuple[float, float]:
    """Return the interval of one more source: the percentiles of these, wider the fewer sources they have.

    No single run sets an end: with four sources or more each end is what remains without the run that moves it most.
    """
    sources = by(members, "source")
    wider, ends = unseen ** (1 / len(sources)), [quantiles(members)]
    if len(sources) >= FEWEST_SOURCES:
        ends = [quantiles([run for run in members if run is not one]) for one in _lone(members)]
    return max(low for low, _ in ends) / wider, min(high for _, high in ends) * wider


def _lone(members: Sequence[Priced]) -> list[Priced]:
    """Return the runs without which a percentile changes most: the first and last of each source, by their ratios."""
    of_sources = (sorted(own, key=lambda run: run.ratio) for own in by(members, "source").values())
    return [run for own in of_sources for run in (own[0], own[-1])]


def left_out_inside(runs: Sequence[Priced]) -> dict[str, list[bool]]:
    """Return by class of several sources whether the interval of the other sources contains each run."""
    unseen, found = unseen_source(in_bf16(runs)), dict[str, list[bool]]()
    for group, members in by(runs, "group").items():
        for left, own in by(members, "source").items():
            if others := [run for run in members if run.source != left]:
                low, high = interval_of(others, unseen)
                found.setdefault(group, []).extend(low <= run.ratio <= high for run in own)
    return found


def held(runs: Sequence[Priced], others: Sequence[Priced]) -> dict[str, list[bool]]:
    """Return by class whether the interval that the runs in view give a config contains each run out of view."""
    table, inside = spread_table(runs), dict[str, list[bool]]()
    for run in others:
        if row := table.get(run.group):
            wider = PER_DOUBLING ** beyond(run.scales, row["measured"])
            wider *= 1.0 if run.framework in row["frameworks"] else OTHER_FRAMEWORK
            inside.setdefault(run.group, []).append(row["low"] / wider <= run.ratio <= row["high"] * wider)
    return inside


def unseen_source(runs: Iterable[Priced]) -> float:
    """Return the factor by which the median of one more source may be off, at 90 %.

    From the standard deviation of the logarithms of the sources' medians about their class, over the other classes.
    """
    squares, freedom = 0.0, 0
    for members in by(runs, "group").values():
        medians = np.log([np.median([run.ratio for run in own]) for own in by(members, "source").values()])
        squares += float(((medians - medians.mean()) ** 2).sum())
        freedom += len(medians) - 1
    return math.exp(NORMAL_90 * math.sqrt(squares / freedom))


def quantiles(members: Sequence[Priced], parts: tuple[float, float] = QUANTILES) -> tuple[float, float]:
    """Return two percentiles of measured / predicted (default: 5th and 95th), each source weighing the same."""
    low, high = np.interp(parts, *_weighted(members))
    return float(low), float(high)


def _weighted(members: Sequence[Priced]) -> tuple[np.ndarray, list[float]]:
    """Return the rank of each measured / predicted, from 0 to 1 with equal weight per source, and these ratios."""
    ordered = sorted(members, key=lambda run: run.ratio)
    sizes = {source: len(own) for source, own in by(members, "source").items()}
    weights = np.array([1 / sizes[run.source] for run in ordered])
    return (np.cumsum(weights) - weights / 2) / weights.sum(), [run.ratio for run in ordered]


def order_of_schedules(runs: Sequence[Priced]) -> dict[str, float]:
    """Return the factors by which predicted ratios of two schedules' steps are off, for pairs in bf16 on one model."""
    return _order(pairs(runs, lambda one, other: one.schedule != other.schedule))


def orders(runs: Sequence[Priced]) -> dict[str, dict[str, float]]:
    """Return `order_of_schedules`, also for pairs with other parallel groups, or other options, of the same job."""
    same_job = [
        (one, other)
        for one, other in pairs(runs, lambda one, other: one.schedule == other.schedule)
        if one.scales["gpus"] == other.scales["gpus"] and math.isclose(one.tokens, other.tokens)
    ]
    return {
        "schedules": order_of_schedules(runs),
        "layouts": _order([(one, other) for one, other in same_job if one.groups != other.groups]),
        "options": _order([(one, other) for one, other in same_job if one.groups == other.groups]),
    }


def pairs(runs: Sequence[Priced], differ: Callable[[Priced, Priced], bool]) -> list[tuple[Priced, Priced]]:
    """Return the pairs of runs in bf16 of one sweep for which `differ` holds."""
    sweeps = by(in_bf16(runs), "sweep").values()
    every = (pair for members in sweeps for pair in combinations(members, 2) if pair[0].sweep)
    return [pair for pair in every if differ(*pair)]


def _order(found: Sequence[tuple[Priced, Priced]]) -> dict[str, float]:
    """Return the largest error of the better half of the pairs, of the best nine in ten, and the number of pairs."""
    errors = [abs(math.log(one.ratio / other.ratio)) for one, other in found]
    middle, apart = (round(math.exp(np.quantile(errors, part, method="higher")), 3) for part in (0.5, 0.9))
    return {"middle": middle, "apart": apart, "pairs": len(errors)}


def taus(runs: Sequence[Priced]) -> dict[str, tuple[float, int]]:
    """Return by sweep Kendall's tau of the tokens per second and GPU, and the number of its pairs.

    Pairs that were measured within `TIE` of each other have no order to predict.
    """
    found = {}
    for sweep, members in by(runs, "sweep").items():
        if len(members) < SMALLEST_SWEEP:
            continue
        pairs = [
            (math.log(one.tokens / one.measured * other.measured / other.tokens),
             math.log(one.tokens / one.predicted * other.predicted / other.tokens))
            for one, other in combinations(members, 2)
        ]  # fmt: skip
        signs = [math.copysign(1, was * said) for was, said in pairs if abs(was) > TIE]
        if signs:
            found[sweep] = float(np.mean(signs)), len(signs)
    return found


def table_text(table: dict[str, dict[str, Any]], order: dict[str, dict[str, float]]) -> str:
    """Return the text of the package's data file, with its origin."""
    about = (
        "By class of run: ends and middle of the 90 % interval of measured / predicted seconds of a step, and what the "
        "runs span (forward FLOPs of a block on one GPU, dense peak in FLOP/s). Written by "
        "scripts/make_accuracy_docs.py from docs/data/published_runs.yaml and table 4 of arXiv 2401.10241; "
        "docs/accuracy.md says how. order: the factors that predicted ratios of two schedules', layouts' "
        "or options' steps on one model and machine are off by: half of the pairs by less than middle, nine in ten by "
        "less than apart."
    )
    document = {"about": about, "order": order, "other_framework": OTHER_FRAMEWORK, "classes": table}
    return json.dumps(document, indent=2) + "\n"
