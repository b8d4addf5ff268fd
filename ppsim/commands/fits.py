"""`ppsim fits`: a config's peak memory compared with its devices, and changes that make it fit."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.base.tables import layout_lines
from ppsim.base.units import percent_text, seconds_text, value_text
from ppsim.commands.options import DEFAULT_HEADROOM, Headroom, JsonTarget, Settings, read_case, read_headroom
from ppsim.commands.reporting import ANSWER_IS_NO, answer, command
from ppsim.run.timelines import Timeline
from ppsim.studies.advise import what_fits
from ppsim.studies.points import Candidate

SCHEMA = "ppsim.fits/1"


@command
def fits(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Configuration with a model and hardware.")],
    headroom: Headroom = DEFAULT_HEADROOM,
    settings: Settings = None,
    json: JsonTarget = None,
) -> None:
    """Say whether a config fits its devices; if not, what would, and exit with status 1.

    The answer names the first recompute level and the first number of microbatches that fit, and the fastest other
    schedules and layouts of the same GPUs.
    """
    fraction = read_headroom(headroom)
    case = read_case(config, settings)
    run = case.simulate()
    memory = run.memory()
    does_fit = memory.fits(fraction)
    found = [] if does_fit else what_fits(case, fraction)
    document = _document(run, fraction, does_fit, found)
    answer(document, json, lambda: memory.summary() + "\n" + "\n".join(_verdict(run, fraction, does_fit, found)))
    if not does_fit:
        raise typer.Exit(ANSWER_IS_NO)


def _speed(found: Candidate, tokens: float) -> str:
    """Return the tokens per second, and the step time, or the fraction of the batch if it has changed."""
    speed = value_text(found.tokens_per_second, "tokens per second")
    assert found.run is not None  # noqa: S101 - candidates that fit were simulated
    batch = _tokens(found.run) / tokens
    return f"{speed}, step {seconds_text(found.step)}" if batch == 1 else f"{speed} with {batch:.3g} of the batch"


def _tokens(run: Timeline) -> float:
    """Return the tokens of one step, summed over data-parallel copies."""
    assert run.table.workload is not None  # noqa: S101 - known memory implies a known model
    return run.table.workload.tokens * run.schedule.microbatches_of_a_step


def _shell(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return shlex.quote(text)


def _verdict(run: Timeline, headroom: float, does_fit: bool, found: list[Candidate]) -> Iterator[str]:
    memory, tokens = run.memory(), _tokens(run)
    spare = float(memory.spare(headroom).min())
    device = int(memory.spare(headroom).argmin())
    condition = f"with {percent_text(headroom)} of the memory kept free"
    if does_fit:
        yield f"fits {condition}: {value_text(spare, 'bytes')} left on device {device}, the fullest"
        yield from layout_lines(run.layout_string)
        return
    yield f"does not fit {condition}: device {device} is {value_text(-spare, 'bytes')} over"
    yield from layout_lines(run.layout_string)
    for fitting in found:
        changes = " ".join(f"--set {key}={_shell(value)}" for key, value in fitting.changes.items())
        yield f"  fits with {changes}: {_speed(fitting, tokens)}, {value_text(fitting.spare, 'bytes')} left"
        yield from (f"    {line}" for line in layout_lines(fitting.layout_string))
    if not found:
        yield "  no recompute level, fewer microbatches or other schedule alone makes it fit"


def _document(run: Timeline, headroom: float, does_fit: bool, found: list[Candidate]) -> dict[str, Any]:
    memory = run.memory()
    return {
        "schema": SCHEMA,
        "fits": does_fit,
        "headroom": headroom,
        "spare": memory.spare(headroom).tolist(),
        "memory": memory.to_dict(),
        "layout_string": run.layout_string,
        "fits_with": [
            {
                "changes": dict(one.changes),
                "iteration_time": one.step,
                "tokens_per_second": one.tokens_per_second,
                "spare": one.spare,
                "layout_string": one.layout_string,
            }
            for one in found
        ],
        "units": {
            "headroom": "fraction of a device's memory", "spare": "bytes per device", "memory": "bytes per device",
            "memory.moment": "seconds", "iteration_time": "seconds", "tokens_per_second": "tokens per second",
        },
    }  # fmt: skip
