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
from make_towers_docs import predictions
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
CALIBRATED = {name: f"nanotron {name}, up to 64 nodes" for name in ("1B", "3B", "80B", "8B")} | {
    "hagemann": "Hagemann et al. 2023", "llm_foundry": "llm-foundry, the other rows", "internevo": "InternEvo 7B",
    "bloom": "BLOOM, before its training", "flagperf": "FlagPerf", "bridge": "Megatron-Bridge 26.04 and later",
}  # fmt: skip
CALIBRATED_NODES = ("all", "1 to 64")
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
        priced=_set_aside_day("priced")[:10],
        date=_set_aside_day("set_aside"),
        fits=_lines(_fit_rows()),
        calibration=_lines(_calibration_rows()),
        count_out=len(others),
        sources_out=len(_set_aside()),
        sources_before=len(by(further_runs(), "source")),
        count_further=len(further_runs()),
        models=_lines(_source_rows(listed_runs(MODELS))),
        models_runs=_lines(_run_rows(listed_runs(MODELS))),
        towers=_lines(_tower_rows()),
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
def _set_aside() -> dict[str, dict[str, Any]]:
    """Return the sources that were priced last: those out of view."""
    sources = yaml.safe_load(SET_ASIDE.read_text(encoding="utf-8"))["sources"]
    last = max(day for source in sources.values() if (day := str(source["priced"])) != "not yet")
    return {name: source for name, source in sources.items() if str(source["priced"]) == last}


def _set_aside_day(key: str) -> str:
    return str(next(iter(_set_aside().values()))[key])


def _set_aside_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "published at", "what", "looked at before", "unsaid, and assumed")
    for row in _set_aside().values():
        yield (row["name"], row["published_at"], row["covers"], row["known"], row["unsaid"])


def _set_aside_before_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "published at", "rows")
    for row in yaml.safe_load(SET_ASIDE_BEFORE.read_text(encoding="utf-8"))["sources"]:
        yield (row["name"], row["source"], row["rows"])
    for name, row in yaml.safe_load(SET_ASIDE.read_text(encoding="utf-8"))["sources"].items():
        if name not in _set_aside() and str(row["priced"]) != "not yet":
            yield (row["name"], row["published_at"], row["covers"])


def _fit_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "crashed", "of these predicted not to fit", "ran", "of these predicted not to fit")
    for source, counts in json.loads(FURTHER.read_text(encoding="utf-8"))["fits"].items():
        ran, wrong, crashed, found = counts.values()
        yield (source, str(crashed), percent_text(found / crashed, 0) if crashed else "", str(ran),
               percent_text(wrong / ran, 0))  # fmt: skip


def _calibration_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "chose the rule", "runs fitted", "draws", "median error without", "with", "draws that it hurt",
           "largest harm", "inside 90 %")  # fmt: skip
    for row in sorted(json.loads(CALIBRATION.read_text(encoding="utf-8")), key=lambda row: not row["judged"]):
        if row["nodes"] in CALIBRATED_NODES:
            ends = percent_text(row["harm"], signed=True), percent_text(row["inside"])
            parts = (percent_text(part) for part in (*row["seconds"], row["hurt"]))
            chose = "no" if row["judged"] else "yes"
            yield CALIBRATED[row["name"]], chose, str(row["fitted"]), str(row["draws"]), *parts, *ends


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


def _tower_rows() -> Iterator[tuple[str, ...]]:
    """Published and predicted steps with an encoder on its own GPU, against one in the first stage."""
    yield "sequence, batch", "published ratio", "predicted ratio", "error"
    for (sequence, batch), gain, first, own in predictions():
        published = 1 - gain / 100
        error = percent_text(own / first / published - 1, 0, signed=True)
        yield f"{sequence}, {batch}", f"{published:.3f}", f"{own / first:.3f}", error


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    header, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rest))


ERRORS = ("runs", "median error", "mean of absolute errors", "worst")
TEMPLATE = """<!-- made by scripts/make_accuracy_docs.py -->
# Accuracy of derived step times

This page compares predictions, made from shapes and data sheets, with {count} published steps of {sources} sources.
An error is predicted / published seconds of a step, less 1: below 0 the prediction is too fast. Sources count FLOPs
in different ways, so steps are compared in seconds or in tokens per second.

## Out of view, and in view

{count_out} steps of {sources_out} sources were set aside on {date}, before the laws of that day were chosen
([set_aside.yaml](data/set_aside.yaml)). They were priced once, on {priced}, by laws that were chosen without them.
Nothing was changed after that. The steps **in view** were seen while effects were chosen. They are {count} of
[published_runs.yaml](data/published_runs.yaml), and {count_further} of {sources_before} sources that were set aside
before ([out_of_view.yaml](data/out_of_view.yaml), and the other ones of set_aside.yaml). When they were priced once,
their mean errors were 18.7 % on 2026-11-23, 17.2 % on 2026-11-26, and 18.4 and 13.8 % earlier on 2026-11-28. They
are in view since then; here today's laws price them. nanotron's 1B is in view, too. All classes weigh the same,
whatever their number of runs.

{goals}

{both}

![Predicted against measured steps by class, as their ratio](images/accuracy-classes.svg)

{out_of_view}

The sources that were out of view before, priced with today's laws:

{further}

Lessons from these runs, and the remaining errors:

- **nanotron's benchmark polled some messages.** Each of its 143 pipelines of 1B, 3B and 80B on 64 nodes takes 0.2 to
  0.27 s longer per message between stages, for all layers, tensors and message sizes. So do 3 to 31 % of those on 2 to
  32 nodes. The branch with which the benchmark repeated runs waits for both headers of a message by looking every
  0.1 s (huggingface/nanotron, nouamane/bench2@67c5ebb6, parallel/pipeline_parallel/p2p.py). Peaks of memory show that
  these runs had other stages, too. Nothing in a layout shows which runs were repeated. Polls are priced from 64 nodes
  on, unless a config names a version of nanotron: no release polls. The others make the interval of eager kernels
  wide.
- **nanotron's own kernels.** Its source shows what its loss moves (38 bytes a logit in F, 14 in B), and that a
  gradient in bf16 is added to one in fp32 by a kernel of its own; no forward starts before its optimizer has gathered
  all weights. Its last stage has the head. With this, and starts of the host that depend on tensor parallelism, 1B is
  within 5 % (median) instead of 8 %, 3B within 6 % instead of 11 %, and 80B within 7 % instead of 14 %.
- **Norms of an eager framework** move nine times the bytes of a fused norm. With this price, torchtitan without a
  compiler is within 4 %. Scaling's take as long as sixteen times: 22 pairs of trials with and without a kernel for
  norms differ by 300 bytes a value and block (median). With that, trials without the kernel are 6 % too fast, as those
  with it are, and not 13 %.
- **Scaling gathers its logits**, and each GPU of a tensor-parallel group computes the loss of all of them; its source
  says so. Before that was priced, Hagemann et al. were 9 % too fast with tensor 1 and 18 % with 8; now 9 to 11 %.
  Attention of separate PyTorch operators, in 24 of 401 trials, is priced as one with a fused softmax: 29 % too fast.
- **PyTorch's own FlashAttention 2** is slower than the package on H100: 287 to 304 TFLOP/s where the package has 370
  (pytorch/benchmark, pull request 2296). torchtitan and fms-fsdp run it. Their mean error is 5 % instead of 7 %, and
  torchtitan's in fp8 7 % instead of 13 %.
- **Megatron-Bridge 26.06** runs experts in MXFP8 as one kernel. Its CUDA graphs hold whole iterations, and the
  exchange of tokens overlaps other microbatches. Its recipes say so. Priced like this, its error is 12 % instead of
  29 %.
- **GB300** sustains its matrix products as H100 does. Before that was priced, dense models were 20 % too slow on it.
- **DeepSeek-V3** takes a token's experts from 4 of 8 groups, so that a copy goes to 3.1 of 4 nodes on average. With
  that, and the stages, CUDA graphs and HybridEP of its recipes, it is within 8 % on 256 B200, GB200 and GB300 instead
  of up to 41 %; an earlier release on B200 is 13 % too fast.
- GPT OSS is a fifth too fast in bf16. No source gives a reason. Two steps of it in 26.06.01 are left out: its page
  marks them as a regression (a kernel ten times too slow, issue 256 of NVIDIA/cudnn-frontend).
- **MLPerf** on 4,096 to 11,616 GPUs waits no longer for the last of 484 nodes than for the last of 64. So the wait
  grows up to 64 nodes only, as far as it was measured. NVIDIA's recipe of GPT-3 gathers weights in fp8 and reduces
  gradients in bf16. With both, the error is 8 % instead of 17 %. Some steps of round 4.0 are still predicted a fifth
  too slow.
- **NeMo's launcher sets `NVTE_FUSED_ATTN: 0`** in releases 24.03 and 24.07, so FlashAttention 2 runs. With it, long
  sequences are within 5 % on average instead of 22 %. Release 24.07 also reduces gradients in bf16.
- **NeMo Megatron 22.08** printed the table that the launcher repeats a year later. Its own layouts, of 2022, have no
  flash attention and other microbatches. With them, 5B is 7 % too fast instead of 32 %, and 175B 26 %, for a reason
  that is not known.
- **FlagPerf** turns no overlap of Megatron-Core on. Priced like that, it is 4 to 10 % too fast on A800 and 8 to 21 %
  on H100. Its attention has dropout, whose random numbers take time on H100 (arXiv 2410.07531); no law prices them.
  Its mixtures of experts are 23 and 36 % too fast: version 0.6 gathers tokens and adds them in separate operators.
- **Pax** ran 126M without flash attention, as a note below its table says. With full attention it is 10 % too fast
  instead of 47 %.
- **OLMo-core** is within 7 % in bf16. In fp8 7B, 8B and 13B are 14 to 19 % too slow, and 1B is exact.
- **InternEvo** reduces the bf16 gradients of its weights as they are. With that, the mean error is 6 % instead of
  15 %. If optimizer states are split over 512 GPUs and more, it is still up to 31 % too slow.
- **nanotron's first benchmark**, of 2024, took a third longer than the prediction, which is for a later version.
- **MLPerf 5.0** (Llama 3.1 405B in fp8, 256 to 8,192 H100 and GB200) is 2 to 4 % too fast in all 11 steps.
- **BLOOM** on 384 A100 is 5 to 37 % too fast, half of its 56 steps by more than 14 %. The error grows with the
  tensor-parallel GPUs, and with fewer pipeline devices: 5 % with 48 devices and 31 to 33 % with 2.
- **Qwen3 235B of the ModelZoo** is within 12 % in three of seven steps: the pipelines with DeepEP or HybridEP on H100
  and GB200. The plain all-to-all and tensor 4 are 19 and 34 % too fast, MXFP8 without a pipeline 18 %. Megatron's FSDP
  is 33 % too slow instead of 78 %: sharded weights are exchanged beside recomputed forwards, too.
- **MaxText** on H100 with TCP is 10 to 15 % too fast, and exact in a later version on one node. **TinyLlama** is
  7 % too fast.

Lessons from the runs out of view when they were priced:

- **MLPerf 6.0** (DeepSeek-V3 in MXFP8) is exact on 256 and 512 GB300 and 13 % too fast on 512 GB200. The error grows
  with the GPUs, to 40 % on 8,192. Its routers are trained, and not forced to balance tokens; no law prices the waits.
  GPT OSS 20B is within 7 % on 8 and 72 GPUs, and a third too slow on 64.
- **torchtitan on B200** is 27 % too fast with the plain all-to-all, and by half with DeepEP.
- **Megatron-LM on Alps** is a fifth too fast in all steps of 3B and 8B, on 4 as on 256 GPUs, so that no network is the
  cause. A model of 6 blocks takes 3.5 times its prediction; no source says why. It alone makes the interval of small
  models reach upwards.
- **Megatron-LLaMA** is within 7 % with its own optimizer. With Megatron's of 2023 it is a quarter too fast.
- **Google's recipes** are 16 and 20 % too fast, by one line of a log each.

**Intervals.** The interval of a class goes from the 5th to the 95th percentile of measured / predicted seconds of all
its runs, with equal weight per source. It is then widened by {unseen} to the power of one over the number of its
sources. That factor is the distance, at 90 %, between a class and the median of one more source. If each source in
view is left out in turn, the intervals of the others contain {left_out_held} of its runs. The intervals of the runs
in view contain {held} of the runs out of view. An interval is a tenth wider for each doubling beyond the sizes,
numbers of GPUs and peaks of a class. It is wider by 1.18 for a framework that no run of the class used.

![Part of the runs out of view inside an interval](images/accuracy-intervals.svg)

Whether a run fits, judged by its predicted peak and its GPU's memory, without headroom:

{fits}

Lessons from these runs: nanotron keeps a bf16 gradient of every parameter. Hagemann's framework, Scaling, sums
gradients in bf16 and gathers its logits. Megatron-Bridge's recipes also sum gradients in bf16. llm-foundry's loss
holds its logits in bf16. Some runs of Megatron-Bridge are still predicted not to fit. They copy activations to the
host (Llama 3 70B: 20 to 40 layers) or keep Adam's moments in bf16 (DeepSeek-V3, some of Qwen3); its tables do not
print this. A crash of nanotron may have another cause than memory; its table does not say. 20 trials of Hagemann that
had no kernel are left out.

**Calibration.** Random runs of one source are fitted, of nanotron those of one and two nodes (80B: up to eight), and
other runs of that source predicted. The numbers are medians over draws; `scripts/judge_calibration.py` has their seed.
A draw has hurt if its median error grew by half a point or more. The widths of the priors, and the rule how far
constants may change, come from sources in view with at least seven runs: nanotron's 1B, 3B and 80B, Hagemann et al.,
BLOOM, InternEvo, FlagPerf and smaller ones. nanotron's 8B, llm-foundry's other rows and Megatron-Bridge 26.04 and later
chose nothing; earlier releases of Megatron-Bridge did, and errors of 8B and llm-foundry under earlier rules had been
seen. One fault was noticed on a draw of 8B: a single run that hung bent a constant, because the prior allowed four
times its width. The sources in view judged its mending: the largest harm is smaller, and the gain is the same.

{calibration}

The sources that were set aside:

{set_aside}

The sources that were set aside before:

{set_aside_before}

## Models trained in 2026, unseen

{models_count} steps of hybrid, latent and delta-net models were recorded with their sources on 2026-11-26, before any
was priced ([models_2026.yaml](data/models_2026.yaml)). They were priced once, with a mean error of {models_error}.
They influenced no choice, and no interval and no table above includes them:

{models}

Lessons from these steps, and the remaining errors:

- **Latent experts** exchange tokens in the narrow width of the experts; these predictions used the full width. With
  the narrow width, priced after this table, Automodel's Super is 48 % too slow instead of 141 %, and its Ultra 5 %
  too fast. Megatron-Bridge's Ultra is a quarter too slow instead of a half, and its Super on GB300 27 % too fast.
- **Mamba-2 in fp8** is a quarter too fast on H100, B200, GB200 and GB300, from 8 to 2,048 GPUs. So neither the
  network nor the reductions are the cause. A part is the states that a scan writes and reads for each chunk of tokens,
  in fp32. With them, priced after this table, Nemotron-H is a fifth too fast, and Nano on GB200 within 2 %; in bf16,
  Lightning, which has the shape of Nano, is within 7 %. The rest is not known.
- **Automodel's Super** sends 22 copies of each token over 8 nodes; its dispatcher sends one to a node.

{models_runs}

The gain of an encoder's own GPU was predicted on 2026-11-26, before it was compared, for the four runs of
Megatron-Bridge's tutorial on Qwen3.5 27B ([towers](howto/towers.md)). It influenced no choice. The source publishes the
ratio of two steps, and neither step. The error is that of the ratio:

{towers}

## In view

**No figure here was fitted to its own run.** The operator law ([the cost model](cost-model.md)) has six constants
that no data sheet and no kernel benchmark gives. `scripts/fit_operators.py` fits them to these runs. Each run below
is priced with constants fitted to the runs of **all other sources**. Table 4 of Qi et al., the runs of SimuMax and of
GPT OSS, and all runs in fp8 have no part in the fit, nor has any configuration of `configs/`. The constants were
fitted before the law of collectives was written; a new fit moves the mean by less than 0.1 points. That law, and the
hosts and messages of frameworks, were chosen with three sets of data: these runs, nanotron's 1B (The Ultra-Scale
Playbook), and the all-reduces over 1 to 64 nodes of the same book. **Only the constants are left out.** All of these
runs were in view for three other choices: the form of the law, the operators that are priced, and the facts that a
source does not give (framework, kernel, recompute level). Dense H100 has one source. Memory has no fitted constant.

{aims}

The constants, and how far they move if one source is left out. `launch` is in seconds, `tail` is a size of a matrix's
dimension, and the others are fractions:

{constants}

Three things can replace the default: a calibrated profile, your own measurement of a device (`ppsim calibrate
--operators`), or one fraction of the peak for everything (`hardware.device: {{like: H100 SXM, achieved: 0.6}}`).

## By class

A run belongs to the first class that fits: an eager framework, on several nodes or on one; products in fp8, by
hidden size and experts; a mixture of experts; a hidden size of at most 2,048; sharded weights without a pipeline; a
dense model on the device whose peak is nearest.

{by_class}

**The interval** of a run with derived costs is its step time times the interval of its class, as the first section
explains. It is in `run.interval`, in the summary, next to the makespan in charts, and in JSON as `quantiles` P5, P50
and P95. "Left out and inside" is the fraction of a class's runs that lie in the interval of its other sources. The
errors always come from constants fitted without the source. With so few sources both are rough.

An error in a model or a machine affects all its schedules alike: of
{order}
of their predicted ratio. So `ppsim compare` calls a schedule certainly slower if its predicted step is longer by more
than that.

Four properties are compared with the range of the class's runs: hidden size, forward FLOPs of a block on one GPU, the
number of GPUs, and the peak of a GPU. Each doubling beyond the range moves both bounds outwards by a tenth; this
tenth is assumed. Given costs have no interval.

## By source

{by_source}

The sources:

{pages}

### A node of B200 that is slower than its sheet

With the steps of 43 runs, SimuMax printed the speed of that node's matrix products, attention, element-wise passes
and collectives. Of 514 products the best reaches 65 % of the peak and the median 52 %, without the time for their
bytes. Passes reach 67 % of the memory bandwidth. The sheet assumes 62 % in training and {memory_part}. So these runs
are priced with that node's own kernels, as `ppsim calibrate --operators` does; no step time of them was used for it.
This was decided after their step errors with the sheet were seen. No cause in power or clocks is published. The
intervals use the sheet for these runs, because a user who has not measured a node cannot know.

{sheets}

The remaining error is largest with 8 tensor-parallel GPUs (70B: up to a fifth). There each product, pass and
collective of a block takes some tens of microseconds.

### Experts

Runs with experts also do work other than products. It is priced from their code and from measurements of kernels, not
from these runs:

- **A host starts the product of each expert.** In SimuMax's 108 measurements of grouped products on B200 one expert
  takes 8.6 µs or more, however small its product. Megatron-LM (Transformer Engine) starts the products and casts of
  experts one by one, so each lasts at least 9 µs (`start`). In fp8 with a scale for each tensor, a cast is four
  kernels. Grace, the host of GB200 and GB300, takes 2.75 times as long for the same call (NVIDIA/TransformerEngine,
  issue 2053: 37 µs and 13 µs), so 25 µs are assumed there.
- **Tokens are put in order twice.** An all-to-all delivers tokens sorted by sender. A GPU with several experts sorts
  them by expert and back, and in fp8 pads them (Megatron-LM, `token_dispatcher.py`, `experts.py`).
- **GPT OSS** clamps the inputs of its activation in separate passes, and weights the biases of its experts in fp32
  (`fused_bias_geglu.py`, `experts.py`). Its recipes recompute norms and activations. Without these prices it was 25
  to 43 % too fast. Later, fusing its kernels made such a step 1.9 times as fast (developer.nvidia.com, "Boosting MoE
  Training Throughput with Advanced Fusion Kernels", 2026).

- **In fp8 the host also prepares each expert's tensors.** Eight products of 128 tokens in a block-scaled format last
  0.272 ms with one call each, and the GPU needs 1 µs for each (NVIDIA/TransformerEngine, pull request 3134): 34 µs of
  the host per product, and the same is taken for each kernel of a cast. We looked for the cause because of runs in view
  (Qwen3 on B200 and H100, up to 54 % too fast), but the number is not fitted to them. Megatron-Bridge's maintainers
  call it CPU overhead: Qwen3 235B in MXFP8 was slower than in bf16 (16.9 and 16.0 s; pull request 1760).

Qwen3 235B on B200 remains 22 % too fast, and 37 % with overlapped exchanges (17.2 s in bf16, 20.1 s in MXFP8). The host
then also waits for the numbers of tokens, and launches two streams. How long that takes is not published.

**Dispatchers over two nodes.** Megatron-Bridge timed Qwen3 30B in bf16 on 16 H100, experts over all of them, without
overlap (067f987, skills/nemo-mbridge-perf-moe-comm-overlap/SKILL.md): 24.7 s with HybridEP, 41.3 s with an all-to-all.
A test keeps both predictions within 10 %. Neither step influenced a choice.

## Products in fp8

`layout.fp8` prices the products of the blocks with the fp8 peak, and adds the casts around them ([the cost
model](cost-model.md#effects)). The host of Megatron (ppsim/frameworks/megatron.py) was chosen with six steps of
Nemotron-4 340B on GB200 in view; without it they were 10 to 12 % too fast. Nothing else was fitted. An fp8 product
reaches the fraction of its peak that a kernel benchmark measured, and the six constants are those of bf16.

{fp8}

Where a source measured the same run in both data types:

{fp8_bf16}

torchtitan's runs over long sequences are within 4 % if one or two GPUs share a sequence, and 21 and 24 % too fast if
four or eight do. It passes keys and values around a ring, and each step of the ring is separate kernels with a
merge in fp32. GB300 is faster than GB200 by up to a quarter in these runs, though both have the same bf16 rate. The
sheet includes only the effects of more power (1.4 kW instead of 1.2) and of twice the exponentials per second. So
large dense models are predicted up to a quarter too slow there.

## Memory

The peak of the fullest GPU, predicted over published, less 1:

{memory}

{peaks}

- What is counted, with its formulas, is in [the cost model](cost-model.md#bytes). Not counted are the CUDA context
  and the memory of NCCL and of the matrix libraries (0.5 to 2 GB; the headroom of 10 % is for them). Fragments of the
  allocator are counted only in nanotron and Scaling; their size was chosen with the peaks and crashes of these two.
- torchtitan prints the memory that PyTorch's allocator reserves, which is at least the allocated memory. In the rows
  without `compile` it runs without fused operations; the memory of both is priced the same.
- SimuMax prints the bytes allocated on each of 8 GPUs; the table has the largest.
- Not counted are three runs that hold their loss in another way than priced. Over eight tensor-parallel GPUs (70B) it
  is a loss over split logits, before which the whole sequence is gathered: 2.1 GB that are held for the head's
  backward, and as much for its gradient (with AsyncTP, which gathers no whole sequence, the peak is 4.3 GiB lower).
  PyTorch's allocator also keeps the 4.2 GB of bf16 logits, which no fp32 tensor fits into. With these three it would
be   70.3 GB, 9 % too little; the rest is not explained. On H200 a later PyTorch (2.8) runs the loss as one kernel, it
  seems: with `loss_bytes: 0` the prediction is 4 % above.
- Qi et al. print GB, and `zb-1p` and `zb-2p` are ZB-H1 and ZB-H2 here. If their unit was GiB, the error of all would
  be {in_gib}.

## Ranking

A sweep has one source, model, sequence length and device, with several layouts and numbers of GPUs. The table
compares the predicted and measured order of tokens per second and GPU, for pairs that were measured more than 1 %
apart. Sweeps have at least three runs:

{sweeps}

nanotron's table has 1B, 3B, 8B and 80B on 1 to 64 nodes. Only layouts that are predicted to fit with 10 % of the
memory free count, as in `ppsim choose`. Regret compares the published step of the layout predicted to be the fastest
with the fastest published step: it says how much longer it is. The aims are a tau of 0.75 and a median regret of 5 %:

{ranking}

## A slot of DeepSeek-V3

DeepSeek published a training profile (deepseek-ai/profile-data: experts over 64 GPUs, four blocks per chunk). There a
fused F and B of DualPipe takes 128.5 ms. Its exchange of tokens takes 113 ms and overlaps the computation:

{slots}

The run computes in fp8 and limits a token to four nodes. It sends tokens in fp8, brings them back in bf16, and
recomputes norms, activations and up-projections (the last row). The kernels of the trace (`train.json`) show the
parts of the exchange:

| kernels of the exchange | how many | seconds |
| --- | --- | --- |
| `dispatch`, out in fp8 | 8 | 31.0 ms |
| `combine`, back in bf16 | 8 | 49.4 ms |
| `notify`: each GPU waits until all 64 have said what they send | 16 | 32.6 ms |
| all three | | 113.0 ms |
| beside them, in streams of their own: computation | | 124.3 ms |

So 80 ms are transfers and 33 ms are waiting. Alone, over 64 GPUs, DeepSeek's kernels send 51 GB/s out and bring 50
GB/s back (deepseek-ai/DeepEP, docs/legacy.md). At these rates the transfers take 50 to 57 ms, as predicted here;
overlapping the computation they took 1.5 times as long. The waiting is priced as for any collective between nodes:
0.2 ms per node in each pass (`hardware.node_wait`), which is half of the waiting here. The factor 1.5 is not priced,
because the slot is as long as its computation. The exchange slows that computation by its memory traffic and by the
20 of 132 multiprocessors that it uses; `hardware.contention` prices this. The wait was chosen with this trace in
view.

## Production runs

{production}

A vendor measured the same models on 32 to 2,048 GPUs (above), and those predictions are within 1 %. So the
computation is not the missing part. The production runs had additional costs. Llama 3 shards gradients (arXiv
2407.21783, section 3.3.2), so they are reduced while microbatches run and not once per step, over a network that
16,384 GPUs share. Both ran for months, with slow GPUs, clocks that follow power and heat, and checkpoints. No
published figure gives the size of each, and nothing is fitted to them. `run.interval`, widened for so many GPUs,
contains both.

## Assumed of these runs

- If a source does not print recomputation (`recompute_printed: false` in
  [published_runs.yaml](data/published_runs.yaml)), none is assumed. Partial recomputation is priced as `selective`,
  torchtitan's selective operators as `alternate`. For NeMo Automodel and fms-fsdp it follows from their recipes, and
  from the printed ratio of hardware to model FLOPs. Megatron-Bridge prints none for its experts. Their recomputation,
  overlap and exchange of tokens follow from the recipes of its releases r0.2.0 and r0.3.0
  (`scripts/performance/configs`).
- Megatron-Bridge measured some layouts in several of the releases 25.11, 26.02 and 26.02.01. Such a layout counts
  once, with its last measurement: Qwen3 30B on H100 was 1.8 times as fast in 26.02.01 as in 26.02. This rule and the
  priced operators were chosen with the errors in view, until the first figure of this page was within its aim. The
  second row of the table has the figure with the earlier steps. Later releases run other kernels.
- `layout.shard_copies` holds for PyTorch's `fully_shard` (torchtitan, Automodel), not for the older FSDP that
  llm-foundry and fms-fsdp used.
- `layout.framework` sets the overlap: NeMo, Megatron-Bridge and dgxc-benchmarking run as `megatron-core`, FSDP in
  PyTorch as `torchtitan`, papers of 2021 to 2023 as `megatron-lm`.
- The attention kernel is the one that a source names: llm-foundry measured its first tables with the Triton version
  of FlashAttention 1 and its large-scale table with FlashAttention-2; torchtitan and fms-fsdp use PyTorch's own
  (torchtitan's `attention.py` requests it on Hopper), which is slower on H100 than the package of FlashAttention-2.
- NeMo and Megatron-Bridge use sequence parallelism whenever they use tensor parallelism; this is their default.
- A100 clusters have 200 Gb/s per GPU, later ones 400 Gb/s, with 8 GPUs per node. GB200 and GB300 have 72 GPUs in one
  NVLink domain.
- torchtitan's H100 with 96 GB run at 500 of 700 W. Their peak is assumed to fall by the cube root of that ratio.
- Narayanan et al. print TFLOP/s; seconds follow from the paper's own formula (3). Its other runs, and those of
  Korthikanti et al. with selective recomputation, are in `configs/`.
- Transfers are `directed`, and a sync optimizer step ends the step. Schedules are 1F1B, or interleaved 1F1B if
  virtual stages are printed. For table 4 of Qi et al. they are the nearest schedules that ppsim builds.

## Not priced

Rejected by the simulator:

{refused}

Collected, but not used:

{left_out}

## Every run

{runs}
"""


if __name__ == "__main__":
    main()
