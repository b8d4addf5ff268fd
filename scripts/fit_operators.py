"""Fits a constant of the operator law to all steps in view, and once more without each source in turn.

`python scripts/fit_operators.py FOLDER` takes some minutes; FOLDER is that of price_out_of_view.py. It writes
ppsim/costs/operators.json, what the package uses, and docs/data/left_out.json: for each source the constants that the
runs of all others give, with which docs/accuracy-runs.md prices that source's runs, and the errors with them.

Only `memory_hbm3` moves. The others stay as an earlier fit to docs/data/published_runs.yaml found them: if they
move too, the error of a source that is left out is larger.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from price_out_of_view import NOT_YET, SET_ASIDE, Found, bridge, hagemann, llm_foundry, nemo, playbook, set_aside
from published import LEFT_OUT, Run, class_of_run, published_runs, read_runs

from ppsim import PpsimError
from ppsim.base.files import write_atomically
from ppsim.config import ConfigSource
from ppsim.costs.operators import FITTED, FITTED_FILE

EARLIER = {"memory_hbm3": 0.8558}  # that of all devices, fitted to docs/data/published_runs.yaml alone
# Where the fit starts, and logarithms by which a constant may move at little cost
START, PRIOR = {"memory_hbm3": 0.8}, {"memory_hbm3": 0.2}
PRIOR_WEIGHT = 1 / 100
SMALLEST = 0.04  # an error below weighs no more than this one: a median would hold on to single runs
STEP, LARGEST_STEP, STEPS, ROUNDS = 0.03, 0.4, 5, 2


def main(folder: str) -> None:
    """Fit, write both files, print what was found."""
    runs = [*published_runs(), *further_runs(Path(folder))]
    weights, theta = weights_of(runs), np.zeros(len(START))
    before = errors_of(runs, {**FITTED, **EARLIER})
    errors, slopes = before, np.zeros((len(runs), len(START)))
    for _ in range(ROUNDS):
        errors, slopes = around(runs, theta)
        print(f"{class_error(runs, errors):.4f}", constants(theta), flush=True)
        moved = without(errors, slopes, theta, weights)
        errors, theta = errors + slopes @ moved, theta + moved
    left_out, unseen = {}, np.empty(len(runs))
    for source in sorted({run.source for run in runs}):
        own = np.array([run.source == source for run in runs])
        moved = without(errors, slopes, theta, weights_of(runs, source))
        left_out[source] = constants(theta + moved)
        unseen[own] = (errors + slopes @ moved)[own]
    measures = {"before": before, "fitted": errors, "left_out": unseen}
    measured = {name: round(class_error(runs, found), 4) for name, found in measures.items()}
    by_source = {name: round(class_error(runs, found, by_source=True), 4) for name, found in measures.items()}
    print(measured, by_source)
    write_atomically(FITTED_FILE, _text({"about": ABOUT, **constants(theta)}))
    document = {"about": ABOUT_LEFT_OUT, "errors": measured, "errors_by_source": by_source, "constants": left_out}
    write_atomically(LEFT_OUT, _text(document))


def further_runs(folder: Path) -> Iterator[Run]:
    """The runs of all sources that were set aside and priced once, less those that the simulator refuses."""
    data = read_runs()
    found: list[Found] = [
        run for source in (hagemann, nemo, bridge, llm_foundry, playbook) for run in source(folder, data)
    ]
    sources = read_runs(SET_ASIDE)["sources"].values()
    for day in sorted({str(source["priced"]) for source in sources} - {NOT_YET}):
        found += set_aside(day)
    for run in found:
        if run.seconds is None:
            continue
        try:
            more = {"transport": "directed", "optimizer": "sync", "engine": "compiled"}
            config = ConfigSource({**run.config, **more}, run.name).config()
            config.costs.table(config.build())
        except PpsimError:
            continue
        yield Run(run.name, run.source, config, run.seconds, run.sweep)


def constants(theta: np.ndarray) -> dict[str, float]:
    """All constants at a point of the search, rounded as they are written."""
    moved = dict(zip(START, np.exp(theta), strict=True))
    return {
        name: float(f"{START[name] * moved[name]:.4g}") if name in moved else value
        for name, value in FITTED.items()
        if name != "about"
    }


def around(runs: Sequence[Run], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted / published) of each run at `theta`, and its slopes (runs x constants)."""
    here = errors_of(runs, constants(theta))
    moved = (errors_of(runs, constants(theta + STEP * axis)) for axis in np.eye(len(theta)))
    return here, np.stack([(there - here) / STEP for there in moved], axis=1)


def errors_of(runs: Sequence[Run], values: Mapping[str, float]) -> np.ndarray:
    """log(predicted / published) seconds of each run with these constants."""
    return np.log([run.simulated(values).iteration_time / run.measured for run in runs])


def weights_of(runs: Sequence[Run], without: str = "") -> np.ndarray:
    """Each class weighs the same, in it each source but one that is left out, in it each run; they sum to 1."""
    groups = [(class_of_run(run), run.source) for run in runs]
    of_group = Counter(groups)
    sources = Counter(group for group, source in of_group if source != without)
    return np.array(
        [
            0.0 if source == without else 1 / (of_group[group, source] * sources[group] * len(sources))
            for group, source in groups
        ]
    )


def class_error(runs: Sequence[Run], errors: np.ndarray, by_source: bool = False) -> float:
    """Mean over classes of the mean absolute error of their runs, or of their sources, each weighing the same."""
    size = np.abs(np.expm1(errors))
    if by_source:
        return float(weights_of(runs) @ size)
    groups = np.array([class_of_run(run) for run in runs])
    return float(np.mean([size[groups == group].mean() for group in set(groups)]))


def step(errors: np.ndarray, slopes: np.ndarray, theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A Gauss-Newton step for the weighted absolute error, by weights that fall with the error, and the prior."""
    row = weights / np.maximum(np.abs(errors), SMALLEST)
    prior = PRIOR_WEIGHT / np.array([PRIOR[name] for name in START]) ** 2
    wanted = slopes.T @ (row * errors) + prior * theta
    curvature = slopes.T @ (slopes * row[:, None]) + np.diag(prior)
    return np.clip(np.linalg.solve(curvature, -wanted), -LARGEST_STEP, LARGEST_STEP)


def without(errors: np.ndarray, slopes: np.ndarray, theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """How far the optimum moves with other weights, on the straight lines through `errors`."""
    moved = np.zeros(len(theta))
    for _ in range(STEPS):
        moved = moved + step(errors + slopes @ moved, slopes, theta + moved, weights)
    return moved


def _text(document: Mapping[str, object]) -> str:
    return json.dumps(document, indent=2) + "\n"


ABOUT = (
    "Constants of the operator law (ppsim/costs/operators.py), fitted by scripts/fit_operators.py to the published "
    "steps in view; docs/accuracy-runs.md says how. tail: size of a dimension; launch: seconds; the others: fractions."
)
ABOUT_LEFT_OUT = (
    "By source: the constants fitted to the runs of all other sources, by scripts/fit_operators.py. errors: the mean "
    "of class errors before the fit, after it, and with the constants of all other sources; by_source: with each "
    "source of a class weighing the same."
)

if __name__ == "__main__":
    main(sys.argv[1])
