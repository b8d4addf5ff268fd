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

from ppsim.costs.spread import DIMENSIONS, FP8, PER_DOUBLING, doublings_beyond, scales

QUANTILES = (0.05, 0.5, 0.95)
TIE, SMALLEST_SWEEP = 0.01, 3
AVERAGE_SOURCES = 10  # a class counts as if it had so many sources of the average class besides its own
OTHER_FRAMEWORK = 1.18  # assumed: a framework that no run of a class had
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


def out_of_view_runs(last: bool = True) -> list[Priced]:
    """Return the runs that were priced last, or those that were priced before them; all as they were priced once."""
    sources = json.loads(OUT_OF_VIEW.read_text(encoding="utf-8"))["fits"]
    return [run for run in listed_runs(OUT_OF_VIEW) if (run.source in sources) is last]


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


def errors_of_sources(runs: Iterable[Priced]) -> dict[str, list[float]]:
    """Return by class the mean of the absolute errors of each source."""
    return {
        group: [mean_error(own) for own in by(members, "source").values()]
        for group, members in by(runs, "group").items()
    }


def mean_of_classes(runs: Sequence[Priced], error: Callable[[Sequence[Priced]], float] = mean_error) -> float:
    """Return the mean error of the classes, each of which weighs the same."""
    return float(np.mean([error(members) for members in by(runs, "group").values()]))


def spread_table(runs: Sequence[Priced]) -> dict[str, dict[str, Any]]:
    """Return by class the 90 % interval of measured / predicted, its runs and sources, and what they span.

    The runs are those that were priced once, before a law was chosen with them.
    """
    ends = percentiles(runs)
    return {group: _row(members, ends[group]) for group, members in by(runs, "group").items()}


def _row(members: list[Priced], ends: np.ndarray) -> dict[str, Any]:
    low, middle, high = (round(float(end), 3) for end in ends)
    return {
        "low": low,
        "high": high,
        "middle": middle,
        "runs": len(members),
        "sources": len({run.source for run in members}),
        "frameworks": sorted({run.framework for run in members}),
        "measured": {
            name: [float(f"{limit(run.scales[name] for run in members):.6g}") for limit in (min, max)]
            for name in DIMENSIONS
        },
    }


def percentiles(runs: Sequence[Priced], parts: Sequence[float] = QUANTILES) -> dict[str, np.ndarray]:
    """Return by class percentiles of measured / predicted for one more source, each source weighing the same.

    A class has a centre, the mean of log(measured / predicted), and a size, the mean distance from it. Sources are few,
    so `AVERAGE_SOURCES` of the average class count besides its own. The shape, distances in sizes, is that of all runs.
    """
    logs = {
        (group, source): np.log([run.ratio for run in own])
        for group, members in by(runs, "group").items()
        for source, own in by(members, "source").items()
    }
    centre = _of_classes({key: float(own.mean()) for key, own in logs.items()})
    size = _of_classes({key: float(np.abs(own - centre[key[0]]).mean()) for key, own in logs.items()})
    far = np.concatenate([(own - centre[group]) / (size[group] or 1.0) for (group, _), own in logs.items()])
    order, weights = np.argsort(far), np.concatenate([np.full(len(own), 1 / len(own)) for own in logs.values()])
    ranks = (np.cumsum(weights[order]) - weights[order] / 2) / weights.sum()
    shape = np.interp(parts, ranks, far[order])
    return {group: np.exp(centre[group] + size[group] * shape) for group in centre}


def _of_classes(values: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Return the mean of each class from values by class and source, with `AVERAGE_SOURCES` of the average."""
    average, sums = float(np.mean([*values.values()])), dict[str, list[float]]()
    for (group, _), value in values.items():
        sums.setdefault(group, []).append(value)
    return {group: (sum(own) + AVERAGE_SOURCES * average) / (len(own) + AVERAGE_SOURCES) for group, own in sums.items()}


def contained(
    known: Sequence[Priced], runs: Sequence[Priced], claims: Sequence[float] = (0.9,)
) -> dict[tuple[str, str], np.ndarray]:
    """Return by class and source the part of the steps inside intervals made from other runs, for each claimed part."""
    table, found = spread_table(known), dict[tuple[str, str], list[np.ndarray]]()
    ends = percentiles(known, [(1 + side * claim) / 2 for side in (-1, 1) for claim in claims])
    for run in runs:
        if row := table.get(run.group):
            wider = PER_DOUBLING ** doublings_beyond(run.scales, row["measured"])
            wider *= 1.0 if run.framework in row["frameworks"] else OTHER_FRAMEWORK
            low, high = np.split(ends[run.group], 2)
            inside = (low / wider <= run.ratio) & (run.ratio <= high * wider)
            found.setdefault((run.group, run.source), []).append(inside)
    return {key: np.mean(inside, axis=0) for key, inside in found.items()}


def left_out(runs: Sequence[Priced], claims: Sequence[float] = (0.9,)) -> dict[tuple[str, str], np.ndarray]:
    """Return `contained` for the steps of each source, in the intervals of all other sources."""
    found = dict[tuple[str, str], np.ndarray]()
    for source, own in by(runs, "source").items():
        found |= contained([run for run in runs if run.source != source], own, claims)
    return found


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
        "scripts/make_accuracy_docs.py from docs/data/out_of_view.json; docs/accuracy.md says how. order, from "
        "docs/data/published_runs.yaml and table 4 of arXiv 2401.10241: the factors that predicted ratios of two "
        "schedules', layouts' or options' steps on one model and machine are off by: half of the pairs by less than "
        "middle, nine in ten by less than apart."
    )
    document = {"about": about, "order": order, "other_framework": OTHER_FRAMEWORK, "classes": table}
    return json.dumps(document, indent=2) + "\n"
