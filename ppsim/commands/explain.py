"""`ppsim explain TRACE [CONFIG]`: the time of a measured step by cause, compared with its simulation."""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ppsim.analysis.interval import bounds_text
from ppsim.base.errors import CostError
from ppsim.base.tables import WIDTH, aligned, with_remarks
from ppsim.base.units import counted, first_names, more_lines, percent_text, seconds_text, value_text
from ppsim.commands import options
from ppsim.commands.cells import DIGITS, SAME, memory_text
from ppsim.commands.options import read_case
from ppsim.commands.reporting import OutputOption, answer, check_endings, command, say, write_files
from ppsim.costs.profile import Profile, write_profile
from ppsim.frameworks import SCHEDULES
from ppsim.interop.kineto import read_any_trace
from ppsim.interop.replays import Trace
from ppsim.plots.boxes import sizes_text
from ppsim.plots.chart_files import SUFFIXES, is_page, save_figure
from ppsim.plots.viewer import Iterations, save_html
from ppsim.run.timelines import Timeline
from ppsim.studies import explain as study
from ppsim.studies.calibration import calibrate
from ppsim.studies.explain import OUTSIDE, ROUGH, VARIANTS, Explanation, Steps
from ppsim.studies.slow_parts import MeasuredStep, Slow, replayed_plan, slow_parts, stalls

MAX_SLOW, MAX_RANKS = 12, 8
MAX_DRAWN = 4  # other pipelines on a page
MAX_ROWS = 65_536  # actions of all steps that a page can show
MAX_SUSPECTS = 2
SUSPECTS = {"equal stages": ("stage",), "no stragglers": ("action", "microbatch"), "free links": ("link",)}


@command
def explain(
    recording: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A file of the replay harness or Nsight Systems, or a folder of Primus or a profiler."
        ),
    ],
    config: options.ConfigFile = None,
    settings: options.Settings = None,
    step: Annotated[int | None, typer.Option(metavar="N", help="Measured step. [default: the median one]")] = None,
    ranges: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="F B", help="Regular expressions of the names of forwards' and backwards' ranges."),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(help=f"Look for a better schedule among those of {', '.join(SCHEDULES)}. [default: the trace's]"),
    ] = None,
    gantt: Annotated[Path | None, OutputOption("Measured beside simulated: FILE.png, .svg, .pdf or .html.")] = None,
    profile: Annotated[
        Path | None,
        OutputOption("Write the costs of all steps, as `ppsim calibrate` does.", metavar="FILE.yaml"),
    ] = None,
    json: options.JsonTarget = None,
    verbose: options.Verbose = False,
) -> None:
    """Say where a measured step's time goes, and where its simulation differs."""
    check_endings(("--gantt", gantt, SUFFIXES))
    recorded = read_any_trace(recording, ranges)
    for note in recorded.notes:
        say(note)
    measured = Timeline.of(recorded.timeline(step))
    run = None if config is None else read_case(config, settings).simulate()
    costs = _costs_of_all_steps(recorded)
    explanation = study.explain(measured, run, framework=framework, profile=costs, trace=recorded)
    readings = functools.cache(functools.partial(_reading, recorded))
    steps = _steps(recorded, step, readings)
    explanation = replace(explanation, notes=[*steps, *explanation.notes])
    write_files(
        (profile, lambda path: write_profile(costs or calibrate([recorded]), path)),
        (gantt, lambda path: _draw(explanation, path, recorded, step, readings)),
    )
    text = explanation_text if verbose else functools.partial(_answer, steps=steps)
    answer(explanation.to_dict(), json, lambda: text(explanation))


def _reading(recorded: Trace, step: int) -> MeasuredStep:
    """Return a recorded step as a timeline, with its slow parts and its stalls, by its own medians."""
    timeline = Timeline.of(recorded.timeline(step))
    own = replayed_plan(timeline)
    return MeasuredStep(timeline, slow_parts(timeline, own, None), stalls(timeline, own))


def _steps(recorded: Trace, step: int | None, readings: Callable[[int], MeasuredStep]) -> list[str]:
    """Return a line that names the shown step, and the longest with its worst straggler; nothing for a single step."""
    steps, seconds = recorded.usable_steps.tolist(), recorded.step_seconds
    if len(steps) == 1:
        return []
    which = "the median one" if len(steps) % 2 else "the nearest to the median"
    if step is not None or len(steps) == 2:
        which = "the shorter one" if step is None else "chosen"
    shown, longest = recorded.median_step if step is None else step, steps[int(seconds.argmax())]
    note = f"step {shown} ({which}) of {len(steps)} is shown"
    if shown == longest:
        return [f"{note}; it is the longest"]
    slow = readings(longest).slow
    straggler = [f", {one.where} takes {one.with_usual}" for one in slow if one.what == "action"][:1]
    return ["".join([f"{note}; step {longest} is the longest: {seconds_text(seconds.max(), DIGITS)}", *straggler])]


def _costs_of_all_steps(recorded: Trace) -> Profile | None:
    """Return a profile fitted to all recorded steps; None if some stage has no recorded time."""
    try:
        return calibrate([recorded])
    except CostError:
        return None


def _draw(
    explanation: Explanation, path: Path, recorded: Trace, step: int | None, readings: Callable[[int], MeasuredStep]
) -> None:
    """Draw the measured Gantt chart above the simulated one; without a config, the costs are the step's medians.

    A page can show the other steps too, marks what is slow, and has the other pipelines of the job.
    """
    if not is_page(path):
        save_figure(explanation.plot, path)
        return
    others = recorded.others[:MAX_DRAWN]
    titles = [*explanation.drawn, *(f"measured, ranks {', '.join(map(str, one.document['ranks']))}" for one in others)]
    run, sizes, gains = Path(recorded.path).stem, sizes_text(explanation.measured.schedule), _gains(explanation)
    save_html(
        [*explanation.drawn.values(), *(Timeline.of(one.timeline()) for one in others)], path, titles,
        shown=("differences", "ledger"), marks=[explanation.step.marks], text=explanation_text(explanation),
        title=sizes if run == sizes.split(",")[0] else f"{run}: {sizes}",
        lead=f"Largest gain: {gains[0][1].replace('  ', ', ')}" if gains else "",
        iterations=_iterations(recorded, recorded.median_step if step is None else step, explanation.step, readings),
    )  # fmt: skip


def _iterations(
    recorded: Trace, step: int, chosen: MeasuredStep, readings: Callable[[int], MeasuredStep]
) -> Iterations:
    """Return the recorded steps for a page: the chosen one, the shortest, the longest, and the first others."""
    numbers, seconds = recorded.usable_steps.tolist(), recorded.step_seconds
    if (step := step % len(recorded.end)) not in numbers:  # some of its actions are missing
        return Iterations([step], [chosen.timeline.makespan], 0, {0: (chosen.timeline, chosen.marks)})
    shown = numbers.index(step)
    wanted = [*dict.fromkeys([shown, int(seconds.argmin()), int(seconds.argmax()), *range(len(numbers))])]
    found = {
        index: readings(numbers[index]) for index in wanted[1 : max(MAX_ROWS // len(chosen.timeline.row_start), 3)]
    }
    timelines = {index: (one.timeline, one.marks) for index, one in {shown: chosen, **found}.items()}
    return Iterations(numbers, seconds.tolist(), shown, timelines)


def _answer(explanation: Explanation, steps: list[str]) -> str:
    """Return the step and its idle time by cause, what would shorten it, and how far to trust this."""
    measured, run, whole = explanation.measured, explanation.simulated, explanation.measured.makespan
    rows = [("step", seconds_text(whole, DIGITS), "; ".join(["measured", *steps]))]
    if run:
        causes = sorted(explanation.difference.items(), key=lambda item: -abs(item[1]))
        texts = [f"{cause} {_signed(seconds)}" for cause, seconds in causes if abs(seconds) > SAME * whole]
        reason = f"; measured - simulated: {', '.join(texts)}" if texts else ""
        reason += f"; memory {memory}" if (memory := memory_text(run)) else ""
        rows.append(("simulated", seconds_text(run.makespan, DIGITS), _change(run.makespan, whole) + reason))
    rows.append(("bubble", percent_text(measured.bubble_fraction), f"idle / total: {_shares(measured)}"))
    rows += _recorded(explanation)
    rows += [("", "", "")] + [
        ("gain" if number == 0 else "", seconds_text(seconds, DIGITS) if seconds else "", text)
        for number, (seconds, text) in enumerate([_schedule_gain(explanation), *_gains(explanation)])
    ]
    replayed = f"replayed from its own times: {seconds_text(explanation.replayed, DIGITS)}"
    warnings = [note for note in explanation.notes if note == ROUGH or note.startswith(OUTSIDE)]
    more = "-v prints every cause, suspect and assumption"
    rows.append(("trust", _change(explanation.replayed, whole), "; ".join([replayed, *warnings, more])))
    return "\n".join(with_remarks(rows))


def _gains(explanation: Explanation) -> list[tuple[float, str]]:
    """Return the hypothetical steps that are shorter, and what they lack, the shortest first."""
    whole = explanation.measured.makespan
    return sorted(
        (seconds, f"{_change(seconds, whole)}  {name}: {_suspects(explanation, name)}")
        for name, seconds in explanation.variants.items()
        if VARIANTS[name] and seconds < (1 - SAME) * whole
    )


def _change(seconds: float, before: float, places: int = 1) -> str:
    """Return a time against another in per cent."""
    return percent_text(seconds / before - 1, places, signed=True) if before else "-"


def _shares(run: Timeline) -> str:
    """Return the causes of idle time with their share of it, largest first."""
    idle = {cause: float(seconds.sum()) for cause, seconds in run.ledger().items()}
    total = sum(idle.values())
    causes = sorted((one for one in idle if idle[one] > SAME * total), key=lambda one: -idle[one])
    return ", ".join(f"{cause} {percent_text(idle[cause] / total, 0)}" for cause in causes) or "none"


def _suspects(explanation: Explanation, variant: str) -> str:
    """Return what a hypothetical step lacks; the costliest slow parts of this kind if there are some."""
    found = [one for one in explanation.slow if one.what in SUSPECTS.get(variant, ())]
    names = [f"{one.where} takes {one.with_usual}" for one in found[:MAX_SUSPECTS]]
    return "; ".join(names) or VARIANTS[variant]


def _schedule_gain(explanation: Explanation) -> tuple[float, str]:
    """Return the step of the better schedule and what is known of it; 0 s if there is none."""
    better = explanation.better
    if better is None:
        return 0.0, "no schedule that can be run is faster within this activation peak"
    change = _change(better.step, better.step_now)
    if abs(better.step_now / explanation.measured.makespan - 1) > SAME:
        change += f" of a step of {seconds_text(better.step_now, DIGITS)}"
    sure = "" if better.certain or better.interval is None else "; uncertain, as the intervals overlap"
    return better.step, (
        f"{change}  {better.schedule} with {counted(better.stages_per_device, 'stage')} per device, no larger "
        f"activation peak{bounds_text(better.interval)}{sure}"
    )


def explanation_text(explanation: Explanation) -> str:
    """Return the explanation as tables, with units."""
    parts = [
        [sizes_text(explanation.measured.schedule)],
        _headline(explanation),
        _pipelines(explanation),
        _difference(explanation),
        _idle(explanation),
        _variants(explanation),
        _slow(explanation.slow),
        _stalls(explanation.stalls),
        textwrap.wrap(_better(explanation), WIDTH),
        [line for note in explanation.notes for line in textwrap.wrap(note, WIDTH)],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _headline(explanation: Explanation) -> list[str]:
    measured, run = explanation.measured, explanation.simulated
    lines = [f"measured step   {seconds_text(measured.makespan)}, bubble {percent_text(measured.bubble_fraction)}"]
    error = _change(explanation.replayed, measured.makespan, 2)
    lines.append(f"replayed        {seconds_text(explanation.replayed)} ({error}), from its own action times")
    if run:
        error, bubble = _change(run.makespan, measured.makespan, 2), percent_text(run.bubble_fraction)
        lines.append(f"simulated step  {seconds_text(run.makespan)} ({error}), bubble {bubble}")
    total, exposed = (explanation.communication[name] for name in ("total", "exposed"))
    lines += [f"{label:<15} {value}; {remark}" for label, value, remark in _recorded(explanation)]
    lines.append(
        f"communication   {seconds_text(total)} in transfers of all devices; exposed, with nothing to do but wait for "
        f"one: {seconds_text(exposed)}"
    )
    return lines


def _recorded(explanation: Explanation) -> list[tuple[str, str, str]]:
    """Return rows about the order of the step, all steps, the time between them, and the slowest other pipeline."""
    found, steps, others = explanation.recognized, explanation.steps, explanation.pipelines
    rows = [("family", "none", "no family has these actions on these devices")]
    if found is not None:
        far = f"{found.moved} of {found.actions} actions are elsewhere" if found.moved else "the same order"
        rows = [("family", found.family, f"{counted(found.stages_per_device, 'stage')} per device; {far}")]
    if steps is not None and steps.count == 2:
        rows.append(("steps", seconds_text(steps.median, DIGITS), f"mean of {_range(steps, 'and')}"))
    elif steps is not None and steps.count > 2:
        rows.append(("steps", seconds_text(steps.median, DIGITS), f"median of {steps.count}, {_range(steps, 'to')}"))
    if steps is not None and steps.between is not None:
        why = "median time between two steps: optimizer, data, exposed reductions"
        rows.append(("between", seconds_text(steps.between, DIGITS), why))
    if others:
        slowest = max(others, key=lambda one: one.step)
        ranks = first_names(list(map(str, slowest.ranks)), MAX_RANKS)
        why = f"slowest of {counted(len(others), 'other pipeline')} of the job: ranks {ranks}"
        rows.append(("others", seconds_text(slowest.step, DIGITS), why))
    return rows


def _range(steps: Steps, word: str) -> str:
    return f"{seconds_text(steps.shortest, DIGITS)} {word} {seconds_text(steps.longest, DIGITS)}"


def _pipelines(explanation: Explanation) -> list[str]:
    """Return a table of the other pipelines of the job, slowest first."""
    others = sorted(explanation.pipelines, key=lambda one: -one.step)
    if not others:
        return []
    rows = [("other pipelines", "median step", "bubble")]
    for one in others[:MAX_SLOW]:
        ranks = first_names(list(map(str, one.ranks)), MAX_RANKS)
        rows.append((f"ranks {ranks}", seconds_text(one.step), percent_text(one.bubble_fraction)))
    return [*aligned(rows, left=1), *more_lines(len(others) - MAX_SLOW, "")]


def _difference(explanation: Explanation) -> list[str]:
    if not explanation.difference:
        return []
    rows = [("measured - simulated", "step", "")]
    rows += [
        (cause, _signed(seconds), study.DIFFERENCE[cause])
        for cause, seconds in explanation.difference.items()
        if abs(seconds) > 1e-6 * explanation.measured.makespan
    ]
    return aligned([*rows, ("all", _signed(sum(explanation.difference.values())), "")])


def _signed(seconds: float) -> str:
    return ("+" if seconds > 0 else "") + seconds_text(seconds)


def _idle(explanation: Explanation) -> list[str]:
    """Return a table of idle device-seconds by cause, measured and simulated."""
    runs = [run for run in (explanation.measured, explanation.simulated) if run is not None]
    ledgers = [run.ledger() for run in runs]
    negligible = 1e-6 * runs[0].makespan
    rows = [("idle by cause", *("measured", "simulated")[: len(runs)])]
    for cause in ledgers[0]:
        seconds = [float(ledger[cause].sum()) for ledger in ledgers]
        if max(seconds) > negligible:
            rows.append((cause, *map(seconds_text, seconds)))
    return aligned([*rows, ("all", *(seconds_text(float(run.device_idle.sum())) for run in runs))], left=1)


def _variants(explanation: Explanation) -> list[str]:
    whole, variants = explanation.measured.makespan, explanation.variants.items()
    rows = [(name, seconds_text(seconds), _change(seconds, whole)) for name, seconds in variants]
    return aligned([("the step would be", "", ""), *rows], left=1)


def _slow(slow: list[Slow]) -> list[str]:
    if not slow:
        return ["no stage, microbatch, link or action stands out"]
    rows = [("slower than it should be", "", "measured", "expected", "", "in all"), *map(_slow_row, slow[:MAX_SLOW])]
    return [*aligned(rows, left=2), *more_lines(len(slow) - MAX_SLOW, "")]


def _stalls(stalled: list[Slow]) -> list[str]:
    if not stalled:
        return []
    rows = [("waits longer than usual", "", "measured", "usual", "", "in all"), *map(_slow_row, stalled)]
    return aligned(rows, left=2)


def _slow_row(one: Slow) -> tuple[str, ...]:
    ratio = value_text(one.ratio if one.expected > 0 else None, "times")
    return one.what, one.where, seconds_text(one.seconds), seconds_text(one.expected), ratio, seconds_text(one.excess)


def _better(explanation: Explanation) -> str:
    better = explanation.better
    if better is None:
        return "no schedule that could be run is faster within this activation peak, at the measured costs"
    peak, peak_now = (value_text(peak, "activations") for peak in (better.peak, better.peak_now))
    sure = "" if better.certain or better.interval is None else "; the intervals meet, so this is not certain"
    return (
        f"faster within this memory: {better.schedule} with {counted(better.stages_per_device, 'stage')} a device, "
        f"{seconds_text(better.step)}{bounds_text(better.interval)} instead of {seconds_text(better.step_now)} "
        f"({_change(better.step, better.step_now)}), activation peak {peak} instead of {peak_now}{sure}"
    )
