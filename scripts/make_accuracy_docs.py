"""Prices the published runs of docs/data/published_runs.yaml; writes docs/accuracy.md and ppsim/costs/spread.json.

`python scripts/make_accuracy_docs.py` takes about a minute. Each run is priced with the constants that the other
sources give: docs/data/left_out.json, written by scripts/fit_operators.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from accuracy_plots import reliability, scatter
from catalogue import relative_speed
from published import CONSTANTS, LEFT_OUT, Run, class_of_run, published_runs, read_runs, refused_runs
from published_memory import Peak, published_peaks

from ppsim import load_config
from ppsim.base.files import write_atomically
from ppsim.base.units import counted, format_quantity, percent_text, seconds_text
from ppsim.costs.operators import FITTED
from ppsim.costs.spread import DIMENSIONS, FP8, PER_DOUBLING, TABLE, beyond, scales

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "accuracy.md"
QUANTILES = (0.05, 0.95)
TIE, SMALLEST_SWEEP = 0.01, 3
LARGE, LARGE_HIDDEN = ("dense on A100", "dense on H100"), 4096
CONFIGS = ROOT / "configs"
PRODUCTION = ("llama-3-405b-16384xh100", "nemotron-4-340b-6144xh100")
SLOT, SLOT_EXCHANGE = 0.1285, 0.113  # seconds
EXCHANGES: Mapping[str, Mapping[str, Any]] = {
    "bf16, each token to each expert": {"fp8": "none", "fp8_dispatch": False, "expert_exchange": "all-to-all"},
    "bf16, once to each of at most 4 nodes": {"fp8": "none", "fp8_dispatch": False},
    "fp8, out in fp8 and back in bf16, once to each of at most 4 nodes": {},
}
JUDGED = "8B"  # model of nanotron's table that judges what the others chose
PAPER = "Qi et al. 2023 table 4"
OTHER_FRAMEWORK = (
    1.18  # a framework that no run of a class had: as one more source, `unseen_source` of the bf16 classes
)
IMAGES = ROOT / "docs" / "images"
CLAIMS = [number / 20 for number in range(1, 20)]  # parts that intervals of the reliability plot claim to hold
SET_ASIDE, SET_ASIDE_BEFORE = (ROOT / "docs" / "data" / f"{name}.yaml" for name in ("set_aside", "out_of_view"))
OUT_OF_VIEW, FURTHER, MODELS = (
    ROOT / "docs" / "data" / f"{name}.json" for name in ("out_of_view", "further_runs", "models_2026")
)
CALIBRATION = ROOT / "docs" / "data" / "calibration.json"  # by scripts/judge_calibration.py
NORMAL_90 = 1.645  # standard deviations of a normal distribution that hold 90 %


@dataclass(frozen=True)
class Priced:
    """A published run beside its simulation; seconds of one step, and what `ppsim.costs.spread` classes it by.

    `sweep` is what runs of one source share that differ in their layout or schedule; `by_sheet` what the data sheet
    predicts of a device whose kernels the source measured, `earlier` what earlier releases took.
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


def main() -> None:
    """Write the page and the table of the package."""
    runs = priced_runs()
    in_view, others = [*runs, *further_runs()], out_of_view_runs()
    table = spread_table([*in_view, *others])
    write_atomically(TABLE, table_text(table, orders(runs)))
    write_atomically(PAGE, page(runs, refused_runs(), table, published_peaks()))
    for name, drawing in plots(in_view, others).items():
        write_atomically(IMAGES / name, drawing)


def priced_runs() -> list[Priced]:
    """Every run with its prediction."""
    left_out = left_out_constants()
    return [priced(run, left_out) for run in published_runs()]


def left_out_constants() -> dict[str, dict[str, float]]:
    """By source: the constants that the runs of the others give."""
    return json.loads(LEFT_OUT.read_text(encoding="utf-8"))["constants"]


def priced(run: Run, left_out: Mapping[str, Mapping[str, float]]) -> Priced:
    """One run, priced with the constants that its source had no part in."""
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
    """Every run that was priced once: docs/data/out_of_view.json; none before that."""
    return listed_runs(OUT_OF_VIEW) if OUT_OF_VIEW.exists() else []


def further_runs() -> list[Priced]:
    """Every run of the sources that were out of view before, without those that crashed."""
    return listed_runs(FURTHER)


def listed_runs(path: Path) -> list[Priced]:
    """The runs of a file that scripts/price_out_of_view.py wrote."""
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


def spread_table(runs: Sequence[Priced]) -> dict[str, dict[str, Any]]:
    """By class: the 90 % interval of measured / predicted, how many runs and sources, and what they span."""
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
    """The interval of one more source: the percentiles of these, wider the fewer sources they have."""
    wider = unseen ** (1 / len({run.source for run in members}))
    low, high = quantiles(members)
    return low / wider, high * wider


def left_out_inside(runs: Sequence[Priced]) -> dict[str, list[bool]]:
    """By class: of each run of a class of several sources, if the interval of the other sources holds it."""
    unseen, found = unseen_source(in_bf16(runs)), dict[str, list[bool]]()
    for group, members in by(runs, "group").items():
        for left, own in by(members, "source").items():
            if others := [run for run in members if run.source != left]:
                low, high = interval_of(others, unseen)
                found.setdefault(group, []).extend(low <= run.ratio <= high for run in own)
    return found


def unseen_source(runs: Iterable[Priced]) -> float:
    """The factor by which the median of one more source may be off at 90 %: for classes that only one source measured.

    From the standard deviation of the logarithms of the sources' medians about their class, over the other classes.
    """
    squares, freedom = 0.0, 0
    for members in by(runs, "group").values():
        medians = np.log([np.median([run.ratio for run in own]) for own in by(members, "source").values()])
        squares += float(((medians - medians.mean()) ** 2).sum())
        freedom += len(medians) - 1
    return math.exp(NORMAL_90 * math.sqrt(squares / freedom))


def quantiles(members: Sequence[Priced], parts: tuple[float, float] = QUANTILES) -> tuple[float, float]:
    """5th and 95th percentile of measured / predicted, or others, each source weighing the same."""
    low, high = np.interp(parts, *_weighted(members))
    return float(low), float(high)


def _weighted(members: Sequence[Priced]) -> tuple[np.ndarray, list[float]]:
    """Where each measured / predicted lies among all, from 0 to 1, each source weighing the same; and these ratios."""
    ordered = sorted(members, key=lambda run: run.ratio)
    sizes = {source: len(own) for source, own in by(members, "source").items()}
    weights = np.array([1 / sizes[run.source] for run in ordered])
    return (np.cumsum(weights) - weights / 2) / weights.sum(), [run.ratio for run in ordered]


def in_bf16(runs: Iterable[Priced]) -> list[Priced]:
    """The runs whose products are in bf16 or fp16."""
    return [run for run in runs if run.group not in FP8]


def order_of_schedules(runs: Sequence[Priced]) -> dict[str, float]:
    """The factors that predicted ratios of two schedules' steps are off by, of pairs in bf16 on one model."""
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
    """The pairs of runs in bf16 of one sweep that differ as asked."""
    sweeps = by(in_bf16(runs), "sweep").values()
    every = (pair for members in sweeps for pair in combinations(members, 2) if pair[0].sweep)
    return [pair for pair in every if differ(*pair)]


def _order(found: Sequence[tuple[Priced, Priced]]) -> dict[str, float]:
    """The factor that half of the pairs are off by at most, the one of nine in ten, and the number of pairs."""
    errors = [abs(math.log(one.ratio / other.ratio)) for one, other in found]
    middle, apart = (round(math.exp(np.quantile(errors, part, method="higher")), 3) for part in (0.5, 0.9))
    return {"middle": middle, "apart": apart, "pairs": len(errors)}


def by(runs: Iterable[Priced], key: str) -> dict[str, list[Priced]]:
    """The runs by one of their fields, in order of its value."""
    found: dict[str, list[Priced]] = {}
    for run in sorted(runs, key=lambda run: (getattr(run, key), run.source, run.name)):
        found.setdefault(getattr(run, key), []).append(run)
    return found


def table_text(table: dict[str, dict[str, Any]], order: dict[str, dict[str, float]]) -> str:
    """The data file of the package, with where it comes from."""
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


def taus(runs: Sequence[Priced]) -> dict[str, tuple[float, int]]:
    """By sweep: Kendall's tau of the tokens per second and GPU, and the pairs that it is of.

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


def page(
    runs: Sequence[Priced], refused: Sequence[tuple[str, str]], table: dict[str, dict[str, Any]], peaks: Sequence[Peak]
) -> str:
    """docs/accuracy.md."""
    checks = [run for run in runs if run.group in FP8]
    bf16, in_view, others = in_bf16(runs), [*runs, *further_runs()], out_of_view_runs()
    return TEMPLATE.format(
        fp8=_lines(_source_rows(checks)),
        fp8_bf16=_lines(_speedup_rows(runs)),
        sheets=_lines(_sheet_rows(runs)),
        memory_part=percent_text(FITTED["memory"], 0),
        count=len(runs),
        sources=len({run.source for run in runs}),
        aims=_lines(_aim_rows(bf16, checks, peaks)),
        memory=_lines(_memory_rows(peaks)),
        peaks=_lines(_peak_rows(peaks)),
        in_gib=_percent(memory_error(peaks, 2**30 / 1e9)),
        by_class=_lines(_class_rows([*in_view, *others], table)),
        both=_lines(_both_rows(in_view, others, table)),
        goals=_lines(_goal_rows(in_view, others)),
        out_of_view=_lines(_source_rows(others)),
        further=_lines(_source_rows(further_runs())),
        set_aside=_lines(_set_aside_rows()),
        set_aside_before=_lines(_set_aside_before_rows()),
        priced=_set_aside()["priced"],
        date=_set_aside()["set_aside"],
        fits=_lines(_fit_rows()),
        calibration=_lines(_calibration_rows()),
        count_out=len(_set_aside()["runs"]),
        count_further=len(further_runs()),
        models=_lines(_source_rows(listed_runs(MODELS))),
        models_runs=_lines(_run_rows(listed_runs(MODELS))),
        models_count=len(listed_runs(MODELS)),
        models_error=_percent(_mean(listed_runs(MODELS))),
        held=_part([one for each in held(in_view, others).values() for one in each]),
        left_out_held=_part([one for each in left_out_inside(in_view).values() for one in each]),
        by_source=_lines(_source_rows(bf16)),
        constants=_lines(_constant_rows()),
        sweeps=_lines(_sweep_rows(bf16)),
        ranking=_lines(_ranking_rows()),
        order=_order_text(order_of_schedules(runs)),
        unseen=f"{unseen_source(in_bf16([*in_view, *others])):.2f}",
        slots=_lines(_slot_rows()),
        production=_lines(_production_rows()),
        refused=_lines([("run", "why"), *refused]),
        left_out=_lines(_left_out_rows()),
        pages=_lines(_page_rows()),
        runs=_lines(_run_rows(runs)),
    )


def memory_error(peaks: Sequence[Peak], unit: float = 1.0) -> float:
    """Mean of the absolute errors of peaks, each source weighing the same.

    `unit` is how many times larger than printed the peaks of the paper are taken to be.
    """
    errors: dict[str, list[float]] = {}
    for peak in peaks:
        scale = unit if peak.source == PAPER else 1.0
        if peak.counted:
            errors.setdefault(peak.source, []).append(abs(peak.predicted / (peak.measured * scale) - 1))
    return float(np.mean([np.mean(own) for own in errors.values()]))


def _memory_rows(peaks: Sequence[Peak]) -> Iterator[tuple[str, ...]]:
    yield ("source", *ERRORS)
    for source in dict.fromkeys(peak.source for peak in peaks):
        yield (source, *_errors([peak for peak in peaks if peak.source == source and peak.counted]))


def _peak_rows(peaks: Sequence[Peak]) -> Iterator[tuple[str, ...]]:
    yield ("run", "published", "predicted", "error")
    for peak in peaks:
        name = peak.name if peak.counted else f"{peak.name}, not counted"
        yield (name, *(format_quantity(size, "bytes") for size in (peak.measured, peak.predicted)), _signed(peak.error))


def _aim_rows(runs: Sequence[Priced], checks: Sequence[Priced], peaks: Sequence[Peak]) -> Iterator[tuple[str, ...]]:
    of_class, of_check = ([_mean(members) for members in by(which, "group").values()] for which in (runs, checks))
    large = [run for run in runs if run.group in LARGE and run.scales["hidden"] >= LARGE_HIDDEN]
    every = [tau for tau, _ in taus(runs).values()]
    yield ("what", "aim", "left out")
    yield (
        "mean of absolute errors, each class weighing the same",
        "at most 8 %",
        _percent(np.mean(of_class + of_check)),
    )
    again = [*runs, *checks]
    again += [replace(run, measured=seconds) for run in again for seconds in run.earlier]
    older = counted(len(again) - len(runs) - len(checks), "step")
    yield (
        f"the same, counting also {older} of earlier releases in the same layouts",
        "",
        _percent(np.mean([_mean(members) for members in by(again, "group").values()])),
    )
    yield ("the same of the classes in bf16 alone", "", _percent(np.mean(of_class)))
    yield ("the same of the classes in fp8, to which no constant was fitted", "", _percent(np.mean(of_check)))
    for group in LARGE:
        own = [run for run in large if run.group == group]
        yield (f"{group}, hidden of at least {LARGE_HIDDEN}: {len(own)} runs", "at most 5 %", _percent(_mean(own)))
    yield (f"Kendall's tau, mean over {len(every)} sweeps", "at least 0.8", f"{np.mean(every):.2f}")
    yield ("peak memory: mean of absolute errors, each source weighing the same", "at most 4 %",
           _percent(memory_error(peaks)))  # fmt: skip


def _order_text(order: Mapping[str, float]) -> str:
    pairs, apart = order["pairs"], order["apart"]
    return f"{pairs} pairs of schedules measured on one model, nine in ten lie within a factor {apart:.2f}"


def _ranking_rows() -> Iterator[tuple[str, ...]]:
    """By model of nanotron's table: how well its layouts are ranked within a number of nodes."""
    yield ("model", "played a part in choices", "nodes", "runs", "Kendall's tau, mean", "regret, middle", "largest")
    rows = json.loads(FURTHER.read_text(encoding="utf-8"))["ranking"]
    for model in dict.fromkeys(row[0] for row in rows):
        _, nodes, counts, tau, regret = zip(*(row for row in rows if row[0] == model), strict=True)
        yield (model, "no" if model == JUDGED else "yes", f"{min(nodes)} to {max(nodes)}", str(sum(counts)),
               f"{np.mean(tau):.2f}", percent_text(float(np.median(regret))), percent_text(max(regret)))  # fmt: skip


def _sweep_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("sweep", "pairs", "Kendall's tau")
    for sweep, (tau, pairs) in taus(runs).items():
        yield (sweep, str(pairs), f"{tau:.2f}")


def _constant_rows() -> Iterator[tuple[str, ...]]:
    yield ("without", *CONSTANTS)
    rows = {"nothing: what the package uses": FITTED} | left_out_constants()
    for name, constants in rows.items():
        yield (name, *(f"{constants[key]:.3g}" for key in CONSTANTS))


def _mean(runs: Sequence[Priced]) -> float:
    return float(np.mean([abs(run.error) for run in runs]))


def _percent(part: float) -> str:
    return percent_text(part)


def _class_rows(runs: Sequence[Priced], table: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield ("class", *ERRORS, "sources", "left out and inside", "interval of measured / predicted")
    inside = left_out_inside(runs)
    for group, members in by(runs, "group").items():
        row = table[group]
        part = percent_text(float(np.mean(inside[group])), 0) if group in inside else "one source only"
        yield (group, *_errors(members), str(row["sources"]), part, f"{row['low']:.2f} to {row['high']:.2f}")


def held(runs: Sequence[Priced], others: Sequence[Priced]) -> dict[str, list[bool]]:
    """By class: of each run out of view, if the interval of the runs in view holds it, as a config would have it."""
    table, inside = spread_table(runs), dict[str, list[bool]]()
    for run in others:
        if row := table.get(run.group):
            wider = PER_DOUBLING ** beyond(run.scales, row["measured"])
            wider *= 1.0 if run.framework in row["frameworks"] else OTHER_FRAMEWORK
            inside.setdefault(run.group, []).append(row["low"] / wider <= run.ratio <= row["high"] * wider)
    return inside


def plots(runs: Sequence[Priced], others: Sequence[Priced]) -> dict[str, str]:
    """The pictures of the page by the name of their file."""
    classes = {
        group: {kind: [(run.measured, run.predicted) for run in listed if run.group == group]
                for kind, listed in ((False, runs), (True, others))}
        for group in sorted({run.group for run in [*runs, *others]})
    }  # fmt: skip
    of_view = {group: by([run for run in runs if run.group == group], "source") for group in classes}
    kept = {group: [run for own in sources.values() for run in own] for group, sources in of_view.items()}
    known = [run for run in others if kept.get(run.group)]

    def inside(members: Mapping[str, Sequence[Priced]], part: float) -> float:
        ends = {group: quantiles(own, ((1 - part) / 2, (1 + part) / 2)) for group, own in members.items() if own}
        return float(np.mean([ends[run.group][0] <= run.ratio <= ends[run.group][1] for run in known]))

    lines = {"spread of the runs in view": [(part, inside(kept, part)) for part in CLAIMS]} if known else {}
    return {"accuracy-classes.svg": scatter(classes), "accuracy-intervals.svg": reliability(lines)}


def _both_rows(
    runs: Sequence[Priced], others: Sequence[Priced], table: Mapping[str, Mapping[str, Any]]
) -> Iterator[tuple[str, ...]]:
    yield ("class", "out of view: runs", "median error", "mean of absolute errors", "in view: runs", "median error",
           "mean of absolute errors", "interval of measured / predicted", "out of view inside")  # fmt: skip
    groups, means, inside = {}, ([], []), held(runs, others)
    for number, listed in enumerate((others, runs)):
        for group, members in by(listed, "group").items():
            groups.setdefault(group, [None, None])[number] = members
            means[number].append(_mean(members))
    for group in sorted(groups):
        cells, row = list[str](), table[group]
        for members in groups[group]:
            cells += _errors(members)[:3] if members else ("0", "", "")
        ends = f"{row['low']:.2f} to {row['high']:.2f}"
        yield (group, *cells, ends, percent_text(float(np.mean(inside[group])), 0) if group in inside else "")
    whole = [percent_text(float(np.mean(own))) if own else "" for own in means]
    yield ("all, each class weighing the same", str(len(others)), "", whole[0], str(len(runs)), "", whole[1], "", "")


def _goal_rows(in_view: Sequence[Priced], others: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("mean of absolute errors", "aim", "out of view", "in view")
    dense = [[run for run in runs if run.group == FP8[0]] for runs in (others, in_view)]
    for words, aims, lists in (
        ("each class weighing the same", "8 % out of view, 6 % in view", (others, in_view)),
        ("each class weighing the same, its middle error in place of the mean", "", (others, in_view)),
        ("dense in fp8", "4 %", dense),
    ):
        middle = "middle" in words
        classes = [by(runs, "group").values() for runs in lists]
        each = [[float(np.median([abs(run.error) for run in own])) if middle else _mean(own) for own in one]
                for one in classes]  # fmt: skip
        yield (words, aims, *(percent_text(float(np.mean(one))) if one else "" for one in each))


def _part(inside: Sequence[bool]) -> str:
    return percent_text(float(np.mean(inside)), 0) if inside else "none"


@cache
def _set_aside() -> dict[str, Any]:
    return yaml.safe_load(SET_ASIDE.read_text(encoding="utf-8"))


def _set_aside_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "published at", "what", "looked at before", "unsaid, and assumed")
    for row in _set_aside()["sources"].values():
        yield (row["name"], row["published_at"], row["covers"], row["known"], row["unsaid"])


def _set_aside_before_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "published at", "rows")
    for row in yaml.safe_load(SET_ASIDE_BEFORE.read_text(encoding="utf-8"))["sources"]:
        yield (row["name"], row["source"], row["rows"])


def _fit_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "crashed", "of these predicted not to fit", "ran", "of these predicted not to fit")
    for source, counts in json.loads(FURTHER.read_text(encoding="utf-8"))["fits"].items():
        ran, wrong, crashed, found = counts.values()
        yield (source, str(crashed), percent_text(found / crashed, 0) if crashed else "", str(ran),
               percent_text(wrong / ran, 0))  # fmt: skip


def _calibration_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "runs fitted", "draws", "median error without", "with", "draws that it hurt", "largest harm")
    for source, size, draws, *parts in json.loads(CALIBRATION.read_text(encoding="utf-8")):
        before, after, hurt, worst = (percent_text(part) for part in parts)
        yield source, str(size), str(draws), before, after, hurt, worst


def _source_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("source", "class", *ERRORS)
    for source, members in by(runs, "source").items():
        for group, own in by(members, "group").items():
            yield (source, group, *_errors(own))


def _sheet_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    """Runs on a device whose kernels the source measured, by those and by the data sheet."""
    yield ("source", "class", "runs", "mean of absolute errors, by its own kernels", "by the data sheet")
    own = [run for run in runs if run.by_sheet]
    for source, members in by(own, "source").items():
        for group, rows in by(members, "group").items():
            by_sheet = np.mean([abs(1 / run.ratio - 1) for run in rows])
            yield (source, group, str(len(rows)), _percent(_mean(rows)), _percent(float(by_sheet)))


def _speedup_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    """Pairs of runs that differ in their data type alone: how many times as fast the one in fp8 is."""
    yield ("run in fp8", "measured gain", "predicted gain")
    known = {run.name: run for run in runs}
    for run in runs:
        for word in ("-float8", "-fp8-cs", "-fp8"):
            other = known.get(run.name.removesuffix(word) + "-bf16") if run.name.endswith(word) else None
            if other and run.tokens == other.tokens:
                gains = (other.measured / run.measured, other.predicted / run.predicted)
                yield (run.name, *(f"{gain:.2f}" for gain in gains))


def _errors(members: Sequence[Priced | Peak]) -> tuple[str, ...]:
    errors = [run.error for run in members]
    worst = max(errors, key=abs)
    return (
        str(len(errors)),
        _signed(float(np.median(errors))),
        percent_text(float(np.mean(np.abs(errors))), 0),
        _signed(worst),
    )


def _run_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("run", "class", "published", "predicted", "error")
    for members in by(runs, "source").values():
        for run in members:
            seconds = (seconds_text(time, 3) for time in (run.measured, run.predicted))
            yield (run.name, run.group, *seconds, _signed(run.error))


def _slot_rows() -> Iterator[tuple[str, ...]]:
    """A slot of DeepSeek-V3's DualPipe, four blocks of mixtures of experts, by how tokens go to their experts."""
    yield ("exchange", "slot", "exchange of tokens", "computation")
    yield ("measured", f"{1e3 * SLOT:.1f} ms", f"{1e3 * SLOT_EXCHANGE:.0f} ms", "")
    for name, layout in EXCHANGES.items():
        overrides = {f"layout.{key}": value for key, value in layout.items()}
        config = load_config(CONFIGS / "deepseek-v3-2048xh800.yaml", overrides=overrides)
        table, stage = config.costs.table(config.build()), 5
        exchanged, whole = table.exchange_seconds[:2, stage].sum(), table.seconds[:2, stage].sum()
        yield (
            name,
            *(f"{1e3 * seconds:.1f} ms" for seconds in (table.overlap[stage, stage], exchanged, whole - exchanged)),
        )


def _production_rows() -> Iterator[tuple[str, ...]]:
    yield ("run", "predicted / published seconds")
    for name in PRODUCTION:
        config = load_config(CONFIGS / f"{name}.yaml", overrides={"engine": "compiled"})
        yield (name, f"{1 / relative_speed(config, config.simulate()):.2f}")


def _left_out_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "why", "runs")
    for row in read_runs()["left_out"]:
        yield (row["source"], row["why"], str(row["runs"]))


def _page_rows() -> Iterator[tuple[str, ...]]:
    yield ("group", "published at")
    pages = read_runs()
    yield from dict.fromkeys((run["group"], pages["sources"][run["source"]]) for run in pages["runs"])
    yield (PAPER, "arXiv 2401.10241, tests/references/zero_bubble_table_4.csv")


def _signed(error: float) -> str:
    return percent_text(error, 0, signed=True)


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    header, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rest))


ERRORS = ("runs", "median error", "mean of absolute errors", "worst")
TEMPLATE = """<!-- made by scripts/make_accuracy_docs.py -->
# Accuracy of derived step times

What the cost model predicts from shapes and data sheets, beside {count} published steps of {sources} sources. An
error is predicted over published seconds of a step, less 1: below 0 the prediction is too fast. Sources count FLOPs
in different ways, so steps are compared in seconds, or in tokens per second.

## Out of view, and in view

{count_out} steps of five sources were set aside on {date}, before the laws of that day were chosen
([set_aside.yaml](data/set_aside.yaml)); priced once: {priced}. The laws that priced them were chosen without them. The
steps **in view** were looked at while effects were chosen: {count} of
[published_runs.yaml](data/published_runs.yaml), and
{count_further} of five sources that were set aside before ([out_of_view.yaml](data/out_of_view.yaml)). These were
priced once on 2026-11-23, with a mean error of 18.7 %, and are in view since; here they have today's laws. nanotron's
1B is in view, too. A class weighs the same whatever its number of runs.

{goals}

{both}

![Predicted against measured seconds of a step by class](images/accuracy-classes.svg)

{out_of_view}

The sources that were in view since 2026-11-23, with today's laws:

{further}

What these runs taught, and what is still wrong:

- **A pipeline of nanotron waits on 64 nodes.** Each of its 143 steps there with 1B, 3B and 80B takes 0.25 s longer
  for each message between stages and microbatch, whatever the layers, tensors and messages are. So do 3 to 31 % of
  the steps on 2 to 32 nodes, and nothing in their layout tells which; so does a tensor-parallel group over four
  nodes. No source says why. The wait is priced from 64 nodes on (ppsim/frameworks/nanotron.py); the others are why
  the interval of eager kernels on several nodes is wide.
- **Norms of an eager framework** move nine times the bytes of a fused norm. Priced so, torchtitan without a compiler
  is within 4 %, and Hagemann et al. 12 % too fast in place of 19 %, more so over more
  tensor-parallel GPUs.
- **Megatron-Bridge 26.06** runs experts in MXFP8 as one kernel, with whole iterations under CUDA graphs and the
  exchange of tokens beside other microbatches. Its recipes say so; priced so, it is 12 % off in place of 29 %.
- **GB300** keeps its products up as H100 does; before, dense models were 20 % too slow on it.
- GPT OSS is a fifth too fast in bf16, DeepSeek-V3 on B200 a third too slow; why is not published.

And what the runs out of view taught when they were priced:

- **MLPerf** on 4,096 to 11,616 GPUs waits no longer for the last of 484 nodes than for the last of 64: a wait that
  grew with each node made its steps up to 85 % too long. Since then it grows to 64 nodes only, as far as it was
  measured; the table above has the errors before that.
- **Long sequences** on NeMo 24.03 are a fifth too fast: its attention kernels were older than those of the sheet.
- **InternEvo** is within 7 % on one node, and 15 % too slow on several: gradients are taken to be reduced in fp32.
- **nanotron's first benchmark**, of 2024, took a third longer than its later version would.

**Intervals.** That of a class goes from the 5th to the 95th percentile of measured over predicted seconds of all
runs, each source weighing the same, and is wider by {unseen} to the power of one over the number of its sources:
that is how far, at 90 %, the median of one more source lies from a class. Leaving out one source after the other in
view, the others' intervals hold {left_out_held} of its runs. Of the runs out of view, those in view hold {held}. An
interval is wider, by a tenth for each doubling, beyond the sizes, numbers of GPUs and peaks of a class, and by 1.18
for a framework whose host no run of the class had.

![Part of the runs out of view inside an interval](images/accuracy-intervals.svg)

Whether a run fits, by its predicted peak and the memory that its GPU has, without headroom:

{fits}

What these runs taught: nanotron keeps a bf16 gradient of every parameter; Hagemann's framework, Scaling, sums gradients
in bf16 and gathers its logits; so do Megatron-Bridge's recipes sum them; llm-foundry's loss holds its logits in bf16.
The runs of Megatron-Bridge that are still predicted not to fit copy activations to the host (Llama 3 70B: 20 to 40
layers) or keep Adam's moments in bf16 (DeepSeek-V3, some of Qwen3), which its tables do not print. Not every crash of
nanotron is for want of memory: the table does not tell; 20 trials of Hagemann that had no kernel are left out.

**Calibration.** Random runs of one source in view are fitted, others of it predicted; medians over draws. No prior was
chosen by them; [the how-to](howto/calibrate.md) has nanotron's 8B, which had no part in any choice.

{calibration}

The sources that were set aside:

{set_aside}

Those that were set aside before:

{set_aside_before}

## Models trained in 2026, unseen

{models_count} steps of hybrid, latent and delta-net models were written down on 2026-11-26 with their sources, before
any was priced ([models_2026.yaml](data/models_2026.yaml)), and priced once, with a mean error of {models_error}.
Nothing was chosen by them, and no interval and no table above holds them:

{models}

What they taught, and what is still wrong:

- **Latent experts** exchange tokens in the narrow width of the experts, which these predictions did not do. Priced so
  (after this table), Automodel's Super is 48 % too slow in place of 141 %, its Ultra 5 % too fast, Megatron-Bridge's
  Ultra a quarter too slow in place of a half, and its Super on GB300 27 % too fast.
- **Mamba-2 in fp8** is a quarter too fast on H100, B200, GB200 and GB300, from 8 to 2,048 GPUs alike, so it is neither
  the network nor the reductions; in bf16 Lightning, of the shape of Nano, is 1 and 8 % too fast. What fp8 costs beside
  scans is not known.
- **Automodel's Super** sends 22 copies of each token over 8 nodes; its dispatcher sends one to a node.

{models_runs}

## In view

**No figure here was fitted to its own run.** The operator law ([the cost model](cost-model.md)) has six constants
that no data sheet and no kernel benchmark gives. `scripts/fit_operators.py` fits them to these runs; each run below is
priced with the constants that the runs of **all other sources** give. Table 4 of Qi et al., the runs of
SimuMax and of GPT OSS, and all in fp8 have no part in the fit; nor has any configuration of `configs/`.
The constants were fitted before the law of collectives was written; a new fit moves the mean by less than 0.1 points.
What that law, the hosts and the messages of frameworks were chosen by: these runs, nanotron's 1B (The Ultra-Scale
Playbook) and the all-reduces over 1 to 64 nodes of the same book.
**Only the constants are left out**: the form of the law, which operators are priced, and what the sources leave
unsaid of a run (framework, kernel, recompute level) were chosen with all of these runs in view, and dense H100 has
one source. Memory has no fitted constant.

{aims}

The constants, and how far leaving one source out moves them (`launch` in seconds, `tail` the size of a matrix's
dimension, the others fractions):

{constants}

A calibrated profile, a device measured by yourself (`ppsim calibrate --operators`) or one fraction of the peak for
everything (`hardware.device: {{like: H100 SXM, achieved: 0.6}}`) takes the place of the default.

## By class

A run belongs to the first class that fits: an eager framework, on several nodes or on one; products in fp8, by
hidden size and experts; a mixture of experts; a hidden size of at most 2,048; sharded weights without a pipeline; a
dense model on the device whose peak is nearest.

{by_class}

**The interval** of a run with derived costs (`run.interval`, the summary, beside the makespan of charts, and with its
median as `quantiles` P5, P50 and P95 in JSON) is its step time times the interval of its class, as the first section
says. "Left out and inside" is the part of the runs that the interval of the other sources of their class holds; the
errors are of constants fitted without the source in any case. With so few sources both are rough.

What is wrong with a model or a machine is wrong with all its schedules: of {order}
of their predicted ratio. So `ppsim compare` calls a schedule slower for certain where its predicted step is longer by
more than that.

Hidden size, forward FLOPs of a block on one GPU, the number of GPUs and the peak of a GPU are compared with what the
runs of the class span. Each doubling beyond moves both ends apart by a tenth; that tenth is assumed. Costs that are
given have no interval.

## By source

{by_source}

The sources:

{pages}

### A node of B200 that is slower than its sheet

SimuMax printed, beside the steps of 43 runs, how fast the matrix products, the attention, the element-wise passes and
the collectives of that node are: of 514 products the best reaches 65 % of the peak and the middle 52 %, less their
bytes; passes reach 67 % of the memory's bandwidth. The sheet assumes 62 % in training and {memory_part}. So these
runs are priced by that node's own kernels, as `ppsim calibrate --operators` would; no step time of them was used in
it. That they are priced so was decided after their step errors by the sheet were seen. No cause in power or clocks is
published. The intervals take them by the sheet: who has not measured a node cannot know. So "left out and inside" is
0 % of dense runs on B200 and GB200: the two sources of that class disagree by more than either spreads.

{sheets}

What is left is most over 8 tensor-parallel GPUs (70B: up to a fifth), where products, passes and collectives of a
block are each some tens of microseconds.

### Experts

What the runs with experts do beside their products is priced from the code that they run and from measurements of
kernels, not from these runs:

- **A host starts the product of each expert.** In SimuMax's 108 measurements of grouped products on B200 one expert
  takes 8.6 µs or more, however small its product. Megatron-LM (Transformer Engine) starts products and casts of
experts   one by one, so that each lasts at least 9 µs (`start`); in fp8 with a scale for each tensor a cast is four
kernels. On   Grace the host of GB200 and GB300 takes 2.75 times as long for the same call (NVIDIA/TransformerEngine,
issue 2053:   37 µs and 13 µs), so 25 µs there.
- **Tokens are put in order twice.** An all-to-all brings tokens sorted by sender. A GPU with several experts sorts
them   again and back, and in fp8 pads them (Megatron-LM, `token_dispatcher.py`, `experts.py`).
- **GPT OSS** clamps what enters its activation in passes of its own, and weights the biases of its experts in fp32
  (`fused_bias_geglu.py`, `experts.py`); its recipes recompute norms and activations. It was 25 to 43 % too fast
without   these; fusing its kernels, later, made such a step 1.9 times as fast (developer.nvidia.com, "Boosting MoE
Training   Throughput with Advanced Fusion Kernels", 2026).

The largest remaining errors are those of experts with one sequence per microbatch, if all tokens are kept and CUDA
graphs cover only the router (Qwen3 on B200, and 30B on H100 in release 25.11). These runs took 9 to 17 ms per block,
twice as long as with dropped tokens (release 25.09), because the host then waits for the numbers of tokens. How long it
waits is not published.

## Products in fp8

`layout.fp8` prices the products of the blocks by the fp8 peak, with the casts around them ([the cost
model](cost-model.md#effects)). The host of Megatron (ppsim/frameworks/megatron.py) was chosen with the six steps of
Nemotron-4 340B on GB200 in view, which were 10 to 12 % too fast without it.
Nothing else was fitted: an fp8 product reaches the part of its peak that a
kernel benchmark measured, and the six constants are those of bf16.

{fp8}

Where a source measured the same run in both data types:

{fp8_bf16}

torchtitan's runs over long sequences with context parallelism are 13 to 39 % too fast, more the more GPUs share a
sequence: it passes keys and values on by rings, whose steps are kernels of their own with a merge in fp32. GB300 is
faster than GB200 by up to a quarter in these runs, though both have one bf16 rate. Of that the sheet has what follows
from more power (1.4 kW in place of 1.2) and from twice the exponentials a second, so that large dense models come out
up to a quarter too slow there.

## Memory

The peak of the fullest GPU, predicted over published, less 1:

{memory}

{peaks}

- What is counted, with its formulas, is in [the cost model](cost-model.md#bytes). Not counted: the CUDA context, what
  NCCL and the libraries of products hold (0.5 to 2 GB: the headroom of 10 % is for them), and what the allocator
  loses to fragments, except in nanotron and Scaling, whose peaks and crashes it was chosen by.
- torchtitan prints what PyTorch's allocator reserves, which is at least what is allocated. It runs without fused
  operations in the rows without `compile`; the memory of both is priced the same.
- SimuMax prints the bytes allocated on each of 8 GPUs, here the largest.
- Not counted are three runs that hold their loss in another way than priced. Over eight tensor-parallel GPUs (70B) it
  is a loss over split logits, before which the whole sequence is gathered: 2.1 GB that are held for the head's
  backward, and as much for its gradient (with AsyncTP, which gathers no whole sequence, the peak is 4.3 GiB lower).
  PyTorch's allocator also keeps the 4.2 GB of bf16 logits, which no fp32 tensor fits into. With these three it would
be   70.3 GB, 9 % too little; the rest is not explained. On H200 a later PyTorch (2.8) runs the loss as one kernel, it
  seems: with `loss_bytes: 0` the prediction is 4 % above.
- Qi et al. print GB, and `zb-1p` and `zb-2p` are ZB-H1 and ZB-H2 here. Were theirs GiB, the error of all would be
  {in_gib}.

## Ranking

Within a sweep (one source, model, sequence length and device; other layouts and numbers of GPUs) the order of the
tokens per second and GPU, of pairs that were measured more than 1 % apart; sweeps of at least three runs:

{sweeps}

nanotron's table has 1B, 3B, 8B and 80B on 1 to 64 nodes. Among the layouts that are predicted to fit with 10 % of the
memory free, as `ppsim choose` asks, regret is how much longer than the fastest published step the step of the layout
is that is predicted to be the fastest. The aims are a tau of 0.75 and a middle regret of 5 %:

{ranking}

## A slot of DeepSeek-V3

In the training profile that DeepSeek published (deepseek-ai/profile-data: experts over 64 GPUs, four blocks a chunk)
a fused F and B of DualPipe takes 128.5 ms, and its exchange of tokens 113 ms, hidden beside the computation:

{slots}

The run computes in fp8, limits a token to four nodes, sends it there in fp8 and brings it back in bf16, and
recomputes norms, activations and up-projections (the last row). The kernels of the trace (`train.json`) say what the
exchange is:

| kernels of the exchange | how many | seconds |
| --- | --- | --- |
| `dispatch`, out in fp8 | 8 | 31.0 ms |
| `combine`, back in bf16 | 8 | 49.4 ms |
| `notify`: each GPU waits until all 64 have said what they send | 16 | 32.6 ms |
| all three | | 113.0 ms |
| beside them, in streams of their own: computation | | 124.3 ms |

So 80 ms are transfers and 33 ms are waiting. Alone, over 64 GPUs, DeepSeek's kernels send 51 GB/s out and bring 50
back (deepseek-ai/DeepEP, docs/legacy.md), so that these transfers would take 50 to 57 ms, as here; beside the
computation they took 1.5 times as long. The waiting is priced as of any collective between nodes, 0.2 ms a node in
each pass (`hardware.node_wait`), which is half of it here. As the slot is as long as its computation, which the
exchange slows by the 20 of 132 multiprocessors that it holds and by its memory traffic, that factor is not priced:
what the exchange takes from the computation is `hardware.contention`. The wait was chosen with this trace in view.

## Production runs

{production}

The same models are priced within 1 % where a vendor measured them on 32 to 2,048 GPUs (above), so it is not their
computation that these predictions lack. What the production runs had on top: Llama 3 shards gradients (arXiv
2407.21783, section 3.3.2), so that they are reduced while microbatches run and not once a step, over a network that
16,384 GPUs share; both run for months, with slow GPUs, clocks that follow power and heat, and checkpoints. No
published figure says how much each is, and nothing is fitted to them: `run.interval`, widened for so many GPUs,
holds both.

## Assumed of these runs

- Where a source does not print recomputation (`recompute_printed: false` in
  [published_runs.yaml](data/published_runs.yaml)), none is assumed; partial recomputation is priced as `selective`,
  torchtitan's selective operators as `alternate`. NeMo Automodel's and fms-fsdp's follows from their recipes, and
from   printed hardware over model FLOPs. Megatron-Bridge prints none with its experts: what they recompute, overlap
and   exchange tokens with follows from the recipes of its releases r0.2.0 and r0.3.0 (`scripts/performance/configs`).
- A layout that Megatron-Bridge measured in several of the releases 25.11, 26.02 and 26.02.01 counts once, as it was
  measured last: Qwen3 30B on H100 was 1.8 times as fast in 26.02.01 as in 26.02. This rule was chosen with the errors
  in view, as the operators were that are priced, until the first figure of this page was within its aim; the second
  row of the table says what it comes to with the earlier steps. Later releases run other kernels.
- `layout.shard_copies` holds for PyTorch's `fully_shard` (torchtitan, Automodel), not for the older FSDP that
  llm-foundry and fms-fsdp used.
- What overlaps follows from `layout.framework`: NeMo, Megatron-Bridge and dgxc-benchmarking run as `megatron-core`,
  FSDP in PyTorch as `torchtitan`, papers of 2021 to 2023 as `megatron-lm`.
- The attention kernel is the one that a source names: llm-foundry measured its first tables with the Triton version
  of FlashAttention 1 and its large-scale table with FlashAttention-2; torchtitan and fms-fsdp FlashAttention-2 (what
  torchtitan's `attention.py` asks for on Hopper).
- NeMo and Megatron-Bridge run sequence parallel wherever they run tensor parallel, as their default is.
- A100 clusters have 200 Gb/s a GPU, later ones 400 Gb/s, 8 GPUs a node; GB200 and GB300 have 72 GPUs in one NVLink
  domain.
- torchtitan's H100 of 96 GB run at 500 of 700 W: their peak is taken as the cube root of that part.
- Narayanan et al. print TFLOP/s; seconds follow from the paper's own formula (3). Its other runs, and those of
  Korthikanti et al. with selective recomputation, are in `configs/`: these are their siblings.
- Transfers are `directed`; a sync optimizer step ends the step. Schedules are 1F1B, interleaved where virtual stages
  are printed; those of table 4 of Qi et al. are the nearest that ppsim builds.

## Not priced

Refused by the simulator:

{refused}

Collected, but not used:

{left_out}

## Every run

{runs}
"""


if __name__ == "__main__":
    main()
