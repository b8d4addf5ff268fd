"""Fits the few constants of the operator law to the published runs, and once more without each source in turn.

`python scripts/fit_operators.py` takes some minutes. It writes ppsim/costs/operators.json, what the package uses, and
docs/data/left_out.json: for each source the constants that the runs of all others give, with which docs/accuracy.md
prices that source's runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from published import CONSTANTS, LEFT_OUT, Run, class_of_run, published_runs

from ppsim.base.files import write_atomically
from ppsim.costs.operators import FITTED, FITTED_FILE

# Where the fit starts, and logarithms by which a constant may move at little cost: no run says much of a launch
START = {"sustained": 0.85, "sustained_blackwell": 0.85, "tail": 64.0, "memory": 0.8, "launch": 4e-6, "contention": 0.3}
PRIOR = {"sustained": 0.3, "sustained_blackwell": 0.3, "tail": 0.7, "memory": 0.2, "launch": 0.7, "contention": 0.7}
PRIOR_WEIGHT = 1 / 400
FRACTIONS = ("sustained", "sustained_blackwell", "memory")
SMALLEST = 0.04  # an error below weighs no more than this one: a median would hold on to single runs
STEP, LARGEST_STEP, STEPS = 0.03, 0.4, 5


def main() -> None:
    """Fit, write both files, print what was found."""
    runs = published_runs()
    weights = weights_of(runs) * [not run.only_checked for run in runs]
    theta = np.zeros(len(CONSTANTS))
    for _ in range(STEPS):
        errors, slopes = around(runs, theta)
        print(
            f"weighted error {np.average(np.abs(np.expm1(errors)), weights=weights):.4f}", constants(theta), flush=True
        )
        theta = theta + step(errors, slopes, theta, weights)
    errors, slopes = around(runs, theta)
    left_out = {}
    for source in sorted({run.source for run in runs}):
        kept = np.array([run.source != source for run in runs])
        left_out[source] = constants(theta + without(errors, slopes, theta, weights * kept))
        print(source, left_out[source], flush=True)
    write_atomically(FITTED_FILE, _text({"about": ABOUT, **constants(theta)}))
    write_atomically(LEFT_OUT, _text({"about": ABOUT_LEFT_OUT, "constants": left_out}))


def constants(theta: np.ndarray) -> dict[str, float]:
    """The constants at a point of the search, rounded as they are written."""
    factors = np.exp(theta)
    values = {name: float(f"{START[name] * factor:.4g}") for name, factor in zip(CONSTANTS, factors, strict=True)}
    return values | {name: min(values[name], 1.0) for name in FRACTIONS}


def around(runs: Sequence[Run], theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log(predicted / published) of each run at `theta`, and its slopes (runs x constants)."""
    here = errors_of(runs, constants(theta))
    moved = (errors_of(runs, constants(theta + STEP * axis)) for axis in np.eye(len(theta)))
    return here, np.stack([(there - here) / STEP for there in moved], axis=1)


def errors_of(runs: Sequence[Run], values: Mapping[str, float]) -> np.ndarray:
    """log(predicted / published) seconds of each run with these constants."""
    return np.log([run.simulated(values).iteration_time / run.measured for run in runs])


def weights_of(runs: Sequence[Run]) -> np.ndarray:
    """Each class weighs the same, in it each source, in it each run; they sum to 1."""
    groups = [(class_of_run(run), run.source) for run in runs]
    of_group, sources = Counter(groups), Counter(group for group, _ in set(groups))
    return np.array([1 / (of_group[group] * sources[group[0]] * len(sources)) for group in groups])


def step(errors: np.ndarray, slopes: np.ndarray, theta: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A Gauss-Newton step for the weighted absolute error, by weights that fall with the error, and the prior."""
    row = weights / np.maximum(np.abs(errors), SMALLEST)
    prior = PRIOR_WEIGHT / np.array([PRIOR[name] for name in CONSTANTS]) ** 2
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
    "runs of docs/data/published_runs.yaml; docs/accuracy.md says how. tail: size of a dimension; launch: seconds; the "
    "others: fractions."
)
ABOUT_LEFT_OUT = "By source: the constants fitted to the runs of all other sources, by scripts/fit_operators.py."

if __name__ == "__main__":
    assert set(START) == set(CONSTANTS) <= set(FITTED)  # noqa: S101
    main()
