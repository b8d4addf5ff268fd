"""`ppsim advise`: single changes of a config, best first, each with the cause of idle time that it removes."""

from __future__ import annotations

from typing import Any

from ppsim.analysis.memory import fit_of
from ppsim.base.tables import paragraph
from ppsim.base.units import counted, more_lines, percent_text
from ppsim.commands import cells, options
from ppsim.commands.options import read_config
from ppsim.commands.reporting import answer, command
from ppsim.launch import named_framework
from ppsim.studies import advise as study
from ppsim.studies.advise import AdviceList
from ppsim.studies.points import peak_of
from ppsim.studies.reasons import limiting_factors

MAX_CHANGES = 8  # of the page


@command
@options.shared_options()
def advise(
    flags: dict[str, Any],
    headroom: options.Headroom = options.DEFAULT_HEADROOM,
    framework: options.Framework = None,
    research: options.Research = False,
    workers: options.Workers = None,
    verbose: options.Verbose = False,
    json: options.JsonTarget = None,
) -> None:
    """Say which single change of a config helps most, and why."""
    found = study.advise(
        read_config(**flags), options.read_headroom(headroom), framework=framework, research=research, workers=workers
    )
    answer(_document(found), json, lambda: "\n".join(page(found, verbose)))


def page(found: AdviceList, verbose: bool = False) -> list[str]:
    """Return the lines of the page: the answer, the changes, why, and what became of the other changes."""
    better, hardware = found.better, found.better_hardware
    lines = _answer(found)
    if better:
        shown = [one for one in found.advice if one.fits is not False] if verbose else better[:MAX_CHANGES]
        others = [one for one in shown if found.needs_other(one)]
        lines += ["", *cells.candidate_table("change", shown, found.config, others)]
        if verbose:
            lines += ["", *cells.lines_of_changes(shown, found.config, whole=True)]
        else:
            lines += more_lines(len(better) - len(shown), ": -v")
        if others:
            lines.append(f"{cells.OTHER} {named_framework(found.config)} does not run it")
        lines += cells.launch_fault(found.config)
    lines += ["", *paragraph("; ".join(limiting_factors(found.run)), "why  ")]
    for one in hardware[:2]:
        lines.append(
            f"     {one.words}: {cells.step_text(one.step)} ({cells.versus(one.step, found.run.iteration_time)})"
        )
    if not hardware and any(one.kind == "hardware" for one in found.advice):
        lines.append("     no certain gain from faster links")
    return [*lines, "", *_counts(found)]


def _answer(found: AdviceList) -> list[str]:
    """Return the answer: the best change with its effect and its keys, or that there is none."""
    run, better = found.run, [one for one in found.better if not found.needs_other(one)]
    whose = f" that {named_framework(found.config)} runs" if found.better and not better else ""
    peak = peak_of(run), fit_of(run, found.headroom), found.config
    now, within = cells.peak_text(*peak), cells.peak_text(*peak, found.headroom)
    before = f"{cells.step_text(run.iteration_time)}, {within}"
    if found.fits is False and not better:
        return [f"does not fit: {before}; no single change{whose} makes it fit"]
    if not better:
        return [f"no single change{whose} is certain to help: {before}"]
    best = better[0]
    steps = " -> ".join(map(cells.step_text, (run.iteration_time, best.step)))
    step = f"{steps} ({cells.versus(best.step, run.iteration_time)})"
    if found.fits is False:
        lines = [
            f"does not fit: {within}",
            f"{best.words} fits: {step}, {cells.peak_text(best.memory, best.fit, found.config)}",
        ]
    else:
        peak = cells.peak_text(best.memory, best.fit, found.config, found.headroom)
        memory = f"memory as before, {peak}" if best.memory == peak_of(run) else f"memory {now} -> {peak}"
        lines = [f"{best.words}: {step}", f"  {memory}"]
    return [*lines, *cells.change_lines(best, found.config)]


def _counts(found: AdviceList) -> list[str]:
    software = [one for one in found.advice if one.kind != "hardware"]
    helping = [one for one in software if one.fits is not False and (found.fits is False or found.is_certain(one))]
    helps = "make it fit" if found.fits is False else "help"
    lines = [f"{len(helping)} of {counted(len(software), 'change')} {helps}; {cells.LEGEND}"]
    errors = {kind: found.error_of(kind) - 1 for kind in ("layouts", "schedules", "options")}
    if found.fits is not False and any(error > cells.SAME for error in errors.values()):
        texts = ", ".join(f"{percent_text(error)} ({kind})" for kind, error in errors.items())
        lines.append(f"gains below {texts} are not certain and do not count")
    return lines


def _document(found: AdviceList) -> dict[str, Any]:
    return {
        "schema": "ppsim.advise/1",
        "step": found.run.iteration_time,
        "fits": found.fits,
        "headroom": found.headroom,
        "layout_string": found.run.layout_string,
        "limits": list(limiting_factors(found.run)),
        "advice": found.rows(),
        "better": [one.what for one in (*found.better, *found.better_hardware)],
        "refused": dict(found.refused),
        "units": {
            "step": "seconds", "step_difference": "seconds", "tokens_per_second": "tokens per second",
            "peak": "bytes of the fullest device; live activations where bytes are not known",
            "removes": "seconds of idle time of the mean device, by cause",
        },
    }  # fmt: skip
