"""Asynchronous 1F1B: iterations follow each other without a drain, on versions of the weights (PipeDream)."""

import numpy as np

from ppsim.base.errors import BuildError
from ppsim.families.one_forward_one_backward import one_forward_one_backward
from ppsim.families.registry import family
from ppsim.schedule.columns import ScheduleColumns

MIN_ITERATIONS = 3


def _continuous(name: str, p: int, m: int, iterations: int | None, weight_versions: np.ndarray) -> ScheduleColumns:
    """Return 1F1B over the microbatches of all iterations; microbatch k of iteration i is number i m + k."""
    least = max(MIN_ITERATIONS, -(-(p + 2) // m))  # each device runs a pair of F and B between its fill and drain
    count = least if iterations is None else iterations
    if count < least:
        raise BuildError(
            f"{name}: iterations={count} with devices={p}, microbatches={m} only fill and drain; a steady part needs "
            f"at least {least} iterations; use {least}"
        )
    return ScheduleColumns.from_blocks(
        one_forward_one_backward(p, m * count, 1), iterations=count, weight_versions=weight_versions
    )


@family(
    "pipedream",
    group="asynchronous",
    title="PipeDream (asynchronous 1F1B)",
    idea="1F1B that never drains. Weights are updated while microbatches are in progress, so device r keeps the p-r "
    "versions with which those started. The lists hold `iterations` of m microbatches each, numbered on "
    "(microbatch k of iteration i is i m + k); the default is the fewest that show a steady part, at least 3.",
    constraints="iterations >= max(3, ceil((p+2)/m))",
    makespan="= (m iterations + p-1)(F+B); steady bubble fraction 0, {one iteration every|iteration time} m(F+B)",
    peak_activations="= p-r",
    source="Narayanan et al. 2019, PipeDream, SOSP 2019, arXiv 1806.03377",
    asynchronous=True,
)
def pipedream(p: int, m: int, v: int, *, iterations: int | None = None) -> ScheduleColumns:
    """Return 1F1B over all iterations, with p-r weight versions on device r."""
    return _continuous("pipedream", p, m, iterations, p - np.arange(p))


@family(
    "pipedream-2bw",
    group="asynchronous",
    title="PipeDream-2BW",
    idea="PipeDream with gradients accumulated over the m >= p microbatches of an iteration. The weights change once "
    "per iteration, so that every device needs only two versions of them.",
    constraints="m >= p; iterations >= 3",
    makespan="= (m iterations + p-1)(F+B); steady bubble fraction 0, {one iteration every|iteration time} m(F+B)",
    peak_activations="= p-r",
    source="Narayanan et al. 2021, Memory-Efficient Pipeline-Parallel DNN Training, arXiv 2006.09503",
    asynchronous=True,
)
def pipedream_2bw(p: int, m: int, v: int, *, iterations: int | None = None) -> ScheduleColumns:
    """Return 1F1B over all iterations, with two weight versions on every device."""
    if m < p:
        raise BuildError(
            f"pipedream-2bw: microbatches={m} with devices={p}: two weight versions suffice only when an iteration is "
            f"at least as long as the pipeline; use at least {p} microbatches, or pipedream"
        )
    return _continuous("pipedream-2bw", p, m, iterations, np.full(p, 2))
