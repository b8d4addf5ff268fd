"""`ppsim fits`: a config's peak memory compared with its devices, and changes that make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.analysis.memory import PARTS, Memory, fit_within, usable_part
from ppsim.base.tables import paragraph
from ppsim.commands.cells import LEGEND, candidate_table, gigabytes, lines_of_changes
from ppsim.commands.options import DEFAULT_HEADROOM, Headroom, JsonTarget, Settings, Verbose, read_config, read_headroom
from ppsim.commands.reporting import ANSWER_IS_NO, answer, command
from ppsim.config import Config
from ppsim.run.timelines import Timeline
from ppsim.studies.advise import what_fits
from ppsim.studies.points import Candidate


@command
def fits(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Config with a model and hardware.")],
    headroom: Headroom = DEFAULT_HEADROOM,
    settings: Settings = None,
    verbose: Verbose = False,
    json: JsonTarget = None,
) -> None:
    """Say whether a config fits its devices, and if not, which single changes would."""
    fraction = read_headroom(headroom)
    job = read_config(config, settings)
    run = job.simulate()
    does_fit = run.memory().fits(fraction)
    changes = [] if does_fit else what_fits(job, fraction)
    document = _document(run, fraction, does_fit, changes)
    answer(document, json, lambda: "\n".join(_page(job, run, fraction, changes, verbose)))
    if not does_fit:
        raise typer.Exit(ANSWER_IS_NO)


def _page(config: Config, run: Timeline, headroom: float, changes: list[Candidate], verbose: bool) -> Iterator[str]:
    memory = run.memory()
    device = int(memory.peak.argmax())
    yield from paragraph(_verdict(memory, headroom, device))
    sizes = [(name, float(getattr(memory, name)[device])) for name in PARTS]
    parts = sorted(sizes, key=lambda part: -part[1])
    texts = (f"{name.replace('_', ' ')} {gigabytes(size)}" for name, size in parts if size)
    yield from paragraph(f"device {device}: {', '.join(texts)}")
    if changes:
        yield ""
        yield from candidate_table("would fit", changes, config)
        yield ""
        yield from lines_of_changes(changes if verbose else changes[:1], config, verbose)
        yield LEGEND
    elif not memory.fits(headroom):
        yield "no single change makes it fit; ppsim choose looks for another layout"
    if verbose:
        yield ""
        yield memory.summary().rstrip()


def _verdict(memory: Memory, headroom: float, device: int) -> str:
    assert memory.capacity is not None  # noqa: S101 - `fits` has raised otherwise
    peak, usable = float(memory.peak[device]), usable_part(memory.capacity, headroom)
    state = fit_within(peak, usable, memory.capacity)
    if state == "fits":
        return f"YES: device {device}, the fullest, needs {gigabytes(peak)} of {gigabytes(usable)} usable"
    needs = f"device {device} needs {gigabytes(peak)}"
    needs = f"NO (tight): {needs} of its {gigabytes(memory.capacity)}" if state == "tight" else f"NO: {needs}"
    over, devices, others = memory.peak[memory.peak > usable], len(memory.peak), ""
    if len(over) > 1:
        number = f"all {devices}" if len(over) == devices else f"{len(over)} of {devices}"
        others = f"; {number} are over ({gigabytes(float(over.min()))} to {gigabytes(peak)})"
    return f"{needs}, {gigabytes(peak - usable)} over the {gigabytes(usable)} usable{others}"


def _document(run: Timeline, headroom: float, does_fit: bool, changes: list[Candidate]) -> dict[str, Any]:
    memory = run.memory()
    return {
        "schema": "ppsim.fits/1",
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
            for one in changes
        ],
        "units": {
            "headroom": "fraction of a device's memory", "spare": "bytes per device", "memory": "bytes per device",
            "memory.moment": "seconds", "iteration_time": "seconds", "tokens_per_second": "tokens per second",
        },
    }  # fmt: skip
