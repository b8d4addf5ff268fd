"""Prices the published runs of docs/data/published_runs.yaml; writes docs/accuracy.md and ppsim/costs/spread.json.

`python scripts/make_accuracy_docs.py` takes about a minute.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
import zero_bubble_table

from ppsim import DerivedCosts, PpsimError, Timeline
from ppsim.base.files import write_atomically
from ppsim.config.config import make_config
from ppsim.costs import DEVICES
from ppsim.costs.spread import DIMENSIONS, TABLE, class_of, scales

ROOT = Path(__file__).resolve().parents[1]
RUNS = ROOT / "docs" / "data" / "published_runs.yaml"
PAGE = ROOT / "docs" / "accuracy.md"
QUANTILES = (0.05, 0.95)
NORMAL_90 = 1.645  # standard deviations of a normal distribution that hold 90 %


@dataclass(frozen=True)
class Priced:
    """A published run beside its simulation; seconds of one step, and what `ppsim.costs.spread` classes it by."""

    name: str
    source: str
    measured: float
    predicted: float
    group: str
    scales: dict[str, float]

    @property
    def ratio(self) -> float:
        """Measured over predicted seconds: above 1 where the prediction is too fast."""
        return self.measured / self.predicted

    @property
    def error(self) -> float:
        """Predicted over measured seconds, less 1: below 0 where the prediction is too fast."""
        return self.predicted / self.measured - 1


def main() -> None:
    """Write the page and the table of the package."""
    runs, refused = priced_runs()
    table = spread_table(runs)
    write_atomically(TABLE, table_text(table))
    write_atomically(PAGE, page(runs, refused, table))


def read_runs() -> dict[str, Any]:
    """The data file: models, devices, sources, runs and what was left out."""
    return yaml.safe_load(RUNS.read_text(encoding="utf-8"))


def priced_runs() -> tuple[list[Priced], list[tuple[str, str]]]:
    """Every run with its prediction, and (run, rule) of those that the simulator refuses."""
    data, done, refused = read_runs(), [], []
    for run in data["runs"]:
        try:
            done.append(priced(data, run))
        except PpsimError as error:
            refused.append((run["id"], str(error)))
    return done + list(zero_bubble_runs()), refused


def priced(data: dict[str, Any], run: dict[str, Any]) -> Priced:
    """One run of the data file; PpsimError where it cannot be simulated."""
    return _beside(
        run["id"], run["group"], run["step_seconds"], make_config(config_of(data, run), place=run["id"]).simulate()
    )


def config_of(data: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """The config of one run of the data file."""
    return {
        "model": data["models"][run["model"]] | {"sequence": run["sequence"]},
        "hardware": data["devices"][run["device"]] | {"gpus": run["gpus"]},
        "layout": run["layout"],
        "schedule": run["schedule"],
        "transport": "directed",
        "optimizer": "sync",
        "engine": "compiled",
    }


def zero_bubble_runs() -> Iterator[Priced]:
    """Table 4 of the zero-bubble paper, less the row that configs/ has."""
    for row, run in zero_bubble_table.rows():
        if (row["model"], row["schedule"]) != ("28.3B", "zb-1p"):
            measured = run.iteration_time * zero_bubble_table.rate_of(run) / float(row["samples_per_gpu_second"])
            yield _beside(f"{row['model']}-{row['schedule']}", "Qi et al. 2023 table 4", measured, run)


def _beside(name: str, source: str, measured: float, run: Timeline) -> Priced:
    costs, devices = run.costs, run.schedule.devices
    assert isinstance(costs, DerivedCosts)  # noqa: S101 - every config here has a model
    return Priced(name, source, measured, run.iteration_time, class_of(costs, devices), scales(costs, devices))


def spread_table(runs: Sequence[Priced]) -> dict[str, dict[str, Any]]:
    """By class: the the 90 % interval of measured / predicted, how many runs and sources, and what they span."""
    unseen = unseen_source(runs)
    return {group: _row(members, unseen) for group, members in by(runs, "group").items()}


def _row(members: list[Priced], unseen: float) -> dict[str, Any]:
    needed = left_out_needs(members)
    wider = float(np.quantile(needed, 0.9, method="higher")) if needed else unseen
    low, high = (end * factor for end, factor in zip(quantiles(members), (1 / wider, wider), strict=True))
    return {
        "low": round(low, 3),
        "high": round(high, 3),
        "widened": round(wider, 3),
        "runs": len(members),
        "sources": len({run.source for run in members}),
        "measured": {
            name: [float(f"{limit(run.scales[name] for run in members):.6g}") for limit in (min, max)]
            for name in DIMENSIONS
        },
    }


def left_out_needs(members: Sequence[Priced]) -> list[float]:
    """For each run the factor by which the interval of the other sources must widen to hold it; 1 where it does.

    Empty for a class of one source.
    """
    needs = []
    for left, own in by(members, "source").items():
        others = [run for run in members if run.source != left]
        if others:
            low, high = quantiles(others)
            needs += [max(low / run.ratio, run.ratio / high, 1.0) for run in own]
    return needs


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


def quantiles(members: Sequence[Priced]) -> tuple[float, float]:
    """5th and 95th percentile of measured / predicted, each source weighing the same."""
    ordered = sorted(members, key=lambda run: run.ratio)
    sizes = {source: len(own) for source, own in by(members, "source").items()}
    weights = np.array([1 / sizes[run.source] for run in ordered])
    middle = (np.cumsum(weights) - weights / 2) / weights.sum()
    low, high = np.interp(QUANTILES, middle, [run.ratio for run in ordered])
    return float(low), float(high)


def by(runs: Iterable[Priced], key: str) -> dict[str, list[Priced]]:
    """The runs by one of their fields, in order of its value."""
    found: dict[str, list[Priced]] = {}
    for run in sorted(runs, key=lambda run: (getattr(run, key), run.source, run.name)):
        found.setdefault(getattr(run, key), []).append(run)
    return found


def table_text(table: dict[str, dict[str, Any]]) -> str:
    """The data file of the package, with where it comes from."""
    about = (
        "By class of run: ends of the 90 % interval of measured / predicted seconds of a step, and what the runs span "
        "(forward FLOPs of a block on one GPU, dense peak in FLOP/s). Written by scripts/make_accuracy_docs.py from "
        "docs/data/published_runs.yaml and table 4 of arXiv 2401.10241; docs/accuracy.md says how."
    )
    return json.dumps({"about": about, "classes": table}, indent=2) + "\n"


def page(runs: Sequence[Priced], refused: Sequence[tuple[str, str]], table: dict[str, dict[str, Any]]) -> str:
    """docs/accuracy.md."""
    return TEMPLATE.format(
        count=len(runs),
        sources=len({run.source for run in runs}),
        by_class=_lines(_class_rows(runs, table)),
        by_source=_lines(_source_rows(runs)),
        unseen=f"{unseen_source(runs):.2f}",
        refused=_lines([("run", "why"), *refused]),
        left_out=_lines(_left_out_rows()),
        pages=_lines(_page_rows()),
        runs=_lines(_run_rows(runs)),
        fitted=_lines(_fitted_rows()),
    )


def _class_rows(runs: Sequence[Priced], table: dict[str, dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    yield ("class", *ERRORS, "sources", "left out and inside", "widened by", "interval of measured / predicted")
    for group, members in by(runs, "group").items():
        row, needs = table[group], left_out_needs(members)
        inside = f"{100 * np.mean(np.array(needs) == 1):.0f} %" if needs else "one source only"
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        yield (group, *_errors(members), str(row["sources"]), inside, f"{row['widened']:.2f}", interval)


def _source_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("source", "class", *ERRORS)
    for source, members in by(runs, "source").items():
        for group, own in by(members, "group").items():
            yield (source, group, *_errors(own))


def _errors(members: Sequence[Priced]) -> tuple[str, ...]:
    errors = [run.error for run in members]
    worst = max(errors, key=abs)
    return (
        str(len(errors)),
        _signed(float(np.median(errors))),
        f"{100 * float(np.mean(np.abs(errors))):.0f} %",
        _signed(worst),
    )


def _run_rows(runs: Sequence[Priced]) -> Iterator[tuple[str, ...]]:
    yield ("run", "class", "published", "predicted", "error")
    for members in by(runs, "source").values():
        for run in members:
            yield (run.name, run.group, f"{run.measured:.3g} s", f"{run.predicted:.3g} s", _signed(run.error))


def _left_out_rows() -> Iterator[tuple[str, ...]]:
    yield ("source", "why", "runs")
    for row in read_runs()["left_out"]:
        yield (row["source"], row["why"], str(row["runs"]))


def _page_rows() -> Iterator[tuple[str, ...]]:
    yield ("group", "published at")
    pages = read_runs()
    yield from dict.fromkeys((run["group"], pages["sources"][run["source"]]) for run in pages["runs"])
    yield ("Qi et al. 2023 table 4", "arXiv 2401.10241, tests/references/zero_bubble_table_4.csv")


def _fitted_rows() -> Iterator[tuple[str, ...]]:
    yield ("device", "achieved", "where it comes from")
    for sheet in DEVICES.values():
        yield (sheet.name, f"{sheet.achieved:g}", sheet.achieved_source)


def _signed(error: float) -> str:
    return f"{100 * error:+.0f} %"


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    header, *rest = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ("---",) * len(header), *rest))


ERRORS = ("runs", "median error", "mean of absolute errors", "worst")
TEMPLATE = """<!-- made by scripts/make_accuracy_docs.py -->
# Accuracy of derived step times

What the cost model predicts from shapes and data sheets, beside {count} published steps of {sources} sources. An
error is predicted over published seconds of a step, less 1: below 0 the prediction is too fast. Sources count FLOPs
in different ways, so steps are compared in seconds, or in tokens per second.

**Nothing was fitted to these runs.** None of them is in `configs/`. Only the achieved fractions of the device sheets
were fitted, to the published runs of `configs/`, as [the cost model](cost-model.md) shows; every other number is a
shape or a data sheet:

{fitted}

The errors are large. A calibrated profile or a fraction fitted to your own run (`hardware.device: {{like: H100 SXM,
achieved: 0.6}}`) takes the place of the default.

## By class

A run belongs to the first class that fits: a mixture of experts; a hidden size of at most 2,048; sharded weights
without a pipeline; a dense model on the device whose peak is nearest.

{by_class}

**The interval** of a run with derived costs (`run.interval`, the summary, JSON) is its step time times the interval
of its class: from the 5th to the 95th percentile of published over predicted seconds, each source weighing the same,
widened at both ends. How far follows from leaving out one source after the other: "left out and inside" is the part
of the runs that lie inside the percentiles of the other sources of their class, and "widened by" the factor that
brings nine in ten of them inside. A class that one source alone measured is widened by {unseen}: that is how far, at
90 %, the median of a source lies from its class, by the spread of the medians in the other classes. With so few
sources both are rough.

Hidden size, forward FLOPs of a block on one GPU, the number of GPUs and the peak of a GPU are compared with what the
runs of the class span. Each doubling beyond moves both ends apart by a tenth; that tenth is assumed. Costs that are
given have no interval.

## By source

{by_source}

The sources:

{pages}

## Assumed of these runs

- Where a source does not print recomputation (`recompute_printed: false` in
  [published_runs.yaml](data/published_runs.yaml)), none is assumed; partial recomputation is priced as `selective`.
- NeMo and Megatron-Bridge run sequence parallel wherever they run tensor parallel, as their default is.
- A100 clusters have 200 Gb/s a GPU, later ones 400 Gb/s, 8 GPUs a node; GB200 and GB300 have 72 GPUs in one NVLink
  domain.
- GB200 and GB300 have no sheet in ppsim: they take the B200's with a dense peak of 2,450 TFLOP/s.
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
