"""`ppsim explain TRACE [CONFIG]`: the time of a measured step by cause, compared with its simulation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ppsim.analysis.interval import bounds_text
from ppsim.base.errors import ConfigError, CostError
from ppsim.base.tables import NO_BREAK, aligned, escaped, even_scale, html_table, paragraph, with_remarks
from ppsim.base.units import counted, first_names, more_lines, percent_text, seconds_text, value_text
from ppsim.commands import options
from ppsim.commands.cells import DIGITS, SAME, memory_text
from ppsim.commands.options import read_case
from ppsim.commands.reporting import OutputOption, answer, command, say, write_files
from ppsim.costs.profile import write_profile
from ppsim.frameworks import SCHEDULES, runner_named
from ppsim.interop.kineto import read_any_trace
from ppsim.interop.replays import Trace
from ppsim.plots.chart_files import SUFFIXES, is_page, save_figure, save_gantt
from ppsim.plots.viewer import Iterations
from ppsim.run.timelines import Timeline
from ppsim.studies import explain as study
from ppsim.studies.calibration import calibrate
from ppsim.studies.explain import OUTSIDE, ROUGH, VARIANTS, Explanation
from ppsim.studies.reasons import idle_shares
from ppsim.studies.slow_parts import MeasuredStep, Slow, replayed_plan, slow_parts, stalls

MAX_SLOW, MAX_RANKS = 12, 8
MAX_DRAWN = 4  # other pipelines on a page
MAX_ROWS = 65_536  # actions of all steps that a page can show
MAX_SUSPECTS = 2
Row = tuple[str, str, str]  # label, value and remark
COSTS = {  # what is absent from a hypothetical step
    "no overhead": "Overhead between actions costs", "no stragglers": "Stragglers cost",
    "equal stages": "Unequal stages cost", "free links": "Transfers cost",
}  # fmt: skip
SUSPECTS = {"equal stages": ("stage",), "no stragglers": ("action", "microbatch"), "free links": ("link",)}


@command
@options.draws
def explain(
    recording: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A file of the replay harness or Nsight Systems, or a folder of Primus or a profiler."
        ),
    ],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG.yaml", help="Config to compare with. [default: the run's own median times]"),
    ] = None,
    settings: options.Settings = None,
    step: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Step to explain. [default: the median one]")
    ] = None,
    ranges: Annotated[
        tuple[str, str] | None,
        typer.Option(metavar="F B", help="Regular expressions of the names of forwards' and backwards' ranges."),
    ] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=runner_named,
            help=f"Look for a better schedule among those of {', '.join(SCHEDULES)}. [default: the trace's]",
        ),
    ] = None,
    gantt: Annotated[
        Path | None, OutputOption("Draw the measured step next to the simulated one", endings=SUFFIXES)
    ] = None,
    profile: Annotated[
        Path | None, OutputOption("Write the costs of all steps, as `ppsim calibrate` does.", metavar="FILE.yaml")
    ] = None,
    json: options.JsonTarget = None,
    verbose: options.Verbose = False,
    *,
    drawing: dict[str, Any],
) -> None:
    """Say where a measured step's time goes, and where its simulation differs."""
    if settings and config is None:
        raise ConfigError(f"--set {settings[0]} changes a config; give one after the trace")
    recorded = read_any_trace(recording, ranges)
    for note in recorded.notes:
        say(note)
    measured = Timeline.of(recorded.timeline(step))
    run = None if config is None else read_case(config, settings).simulate()
    costs = None
    with suppress(CostError):  # some stage has no recorded time
        costs = calibrate([recorded])
    explanation = study.explain(measured, run, framework=framework, profile=costs, trace=recorded)
    readings = functools.cache(functools.partial(_reading, recorded))
    steps = _steps(recorded, step, readings)
    explanation = replace(explanation, notes=[*steps, *explanation.notes])
    write_files(
        (profile, lambda path: write_profile(costs or calibrate([recorded]), path)),
        (gantt, lambda path: _draw(explanation, steps, path, recorded, step, readings, drawing)),
    )
    answer(explanation.to_dict(), json, lambda: explanation_text(explanation, steps, verbose))


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
    note = f"step {shown} of {_numbers(recorded)} ({which}) is explained"
    if shown == longest:
        return [f"{note}; it is the longest"]
    slow = readings(longest).slow
    straggler = [f", {one.in_words}" for one in slow if one.what == "action"][:1]
    return ["".join([f"{note}; step {longest} is the longest: {seconds_text(seconds.max(), DIGITS)}", *straggler])]


def _draw(
    explanation: Explanation, steps: list[str], path: Path, recorded: Trace, step: int | None,
    readings: Callable[[int], MeasuredStep], drawing: dict[str, Any],
) -> None:  # fmt: skip
    """Draw the measured Gantt chart above the simulated one; without a config, the costs are the step's medians.

    A page can show the other steps too, marks what is slow, and has the other pipelines of the job.
    """
    sizes, shown = explanation.heading, recorded.median_step if step is None else step
    if not is_page(path):
        drawing.setdefault("title", f"{sizes}, measured step {shown} (of {_numbers(recorded).replace('-', '–')})")
        save_figure(lambda: explanation.plot(**drawing), path)
        return
    drawn, others = explanation.drawn, recorded.others[:MAX_DRAWN]
    titles = [*drawn, *(f"measured, ranks {', '.join(map(str, one.document['ranks']))}" for one in others)]
    run = Path(recorded.path).stem
    drawing.setdefault("title", sizes if run == sizes.split(",")[0] else f"{run}: {sizes}")
    save_gantt(
        [*drawn.values(), *(Timeline.of(one.timeline()) for one in others)], path, titles=titles,
        shown=("differences", "ledger"), marks=[explanation.step.marks], words=_html(explanation, steps),
        lead=_lead(explanation, f"step {shown}" if len(recorded.usable_steps) > 1 else "the step"),
        iterations=_iterations(recorded, shown, explanation.step, readings), **drawing,
    )  # fmt: skip


def _numbers(recorded: Trace) -> str:
    """Return the first and last number of the recorded steps."""
    steps = recorded.usable_steps.tolist()
    return f"{steps[0]}-{steps[-1]}" if len(steps) > 1 else str(steps[0])


def _iterations(
    recorded: Trace, step: int, chosen: MeasuredStep, readings: Callable[[int], MeasuredStep]
) -> Iterations:
    """Return the recorded steps for a page: the chosen one, the shortest, the longest, and the first others."""
    numbers, seconds = recorded.usable_steps.tolist(), recorded.step_seconds
    if (step := step % len(recorded.end)) not in numbers:  # some of its actions are missing
        return Iterations([step], [chosen.timeline.makespan], 0, {0: (chosen.timeline, chosen.marks)})
    shown = numbers.index(step)
    wanted = [*dict.fromkeys([shown, int(seconds.argmin()), int(seconds.argmax()), *range(len(numbers))])]
    found = {at: readings(numbers[at]) for at in wanted[1 : max(MAX_ROWS // len(chosen.timeline.row_start), 3)]}
    timelines = {index: (one.timeline, one.marks) for index, one in {shown: chosen, **found}.items()}
    return Iterations(numbers, seconds.tolist(), shown, timelines)


def explanation_text(explanation: Explanation, steps: list[str], verbose: bool = False) -> str:
    """Return the answer as labelled rows; `verbose` adds the tables and notes."""
    sizes = [explanation.heading] if verbose else []
    parts = [[*sizes, *with_remarks(_answer(explanation, steps, verbose))]]
    tables = _tables(explanation, _idle(explanation), _variants(explanation, with_reasons=False)) if verbose else []
    for table in tables:
        plus = "+" if table.signed else ""
        cells = [[_cell(cell, plus) for cell in row.values()] for row in table.rows]
        parts.append([*aligned([[*map(str.strip, table.rows[0])], *cells], left=table.left), *table.more])
    parts.append([line for note in _notes(explanation, steps) if verbose for line in paragraph(note)])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _html(explanation: Explanation, steps: list[str]) -> str:
    """Return gains, facts, tables, better schedule, notes as HTML, without idle time by cause, which the page shows."""
    facts = html_table(("measured run", "value", "remark"), [*_facts(explanation, steps), _trust(explanation, True)])
    gains, *others = map(_page_table, [_variants(explanation, with_reasons=True), *_tables(explanation)])
    notes = [f"Better schedule: {_schedule_gain(explanation)[1]}", *_notes(explanation, steps)]
    page = "".join([gains, facts, *others, *(f"<p>{escaped(note[0].upper() + note[1:])}</p>" for note in notes)])
    page = page.replace(">-<", ">\N{EM DASH}<").replace(" %", f"{NO_BREAK}%")
    return page.replace(" x<", f"{NO_BREAK}\N{MULTIPLICATION SIGN}<")


def _page_table(table: _Table) -> str:
    """Return a table and its further lines as HTML; all its seconds have one unit."""
    times = [cell for row in table.rows for cell in row.values() if isinstance(cell, float)]
    (factor, symbol), places = even_scale(times, "seconds", min(filter(None, map(abs, times)), default=0.0))
    heads = [f"{head} ({symbol})" * isinstance(cell, float) or head for head, cell in table.rows[0].items()]
    rows = [
        [cell if isinstance(cell, str) else f"{cell * factor:,.{places}f}" for cell in row.values()]
        for row in table.rows
    ]
    return "".join([html_table(heads, rows), *(f"<p>{escaped(line)}</p>" for line in table.more)])


def _answer(explanation: Explanation, steps: list[str], verbose: bool) -> list[Row]:
    """Return the step and its idle time by cause, what would shorten it, and how far to trust this."""
    gains = [("", value, remark) for value, remark in _gain_texts(explanation)]
    return [
        *_facts(explanation, steps),
        ("", "", ""),
        ("gain", *gains[0][1:]),
        *gains[1:],
        _trust(explanation, verbose),
    ]


def _facts(explanation: Explanation, steps: list[str]) -> list[Row]:
    """Return the measured and the simulated step, idle time by cause, and the facts that the recording gives."""
    measured, run, whole = explanation.measured, explanation.simulated, explanation.measured.makespan
    rows = [("step", seconds_text(whole, DIGITS), "; ".join(["measured", *steps]))]
    if run:
        causes = sorted(explanation.difference.items(), key=lambda item: -abs(item[1]))
        texts = [f"{cause} {_cell(seconds, '+')}" for cause, seconds in causes if abs(seconds) > SAME * whole]
        reason = f"; measured - simulated: {', '.join(texts)}" if texts else ""
        reason += f"; memory {memory}" if (memory := memory_text(run)) else ""
        rows.append(("simulated", seconds_text(run.makespan, DIGITS), _change(run.makespan, whole) + reason))
    rows.append(("bubble", percent_text(measured.bubble_fraction), f"idle / total device time: {_shares(measured)}"))
    return [*rows, *_recorded(explanation)]


def _gain_texts(explanation: Explanation) -> list[tuple[str, str]]:
    """Return the step of the better schedule, then of each hypothetical one, and what is known of it."""
    whole = explanation.measured.makespan
    gains = [
        (seconds, f"{_change(seconds, whole)}  {name}: {_suspects(explanation, name)}")
        for seconds, name in _gains(explanation)
    ]
    every = [_schedule_gain(explanation), *gains]
    return [(seconds_text(seconds, DIGITS) if seconds else "", text) for seconds, text in every]


def _trust(explanation: Explanation, verbose: bool) -> Row:
    """Return how far the step replayed from its own times is off, and what warns of it."""
    replayed = f"replayed from its own times: {seconds_text(explanation.replayed, DIGITS)}"
    warnings = [note for note in explanation.notes if note == ROUGH or note.startswith(OUTSIDE)]
    more = [] if verbose else [*warnings, "-v prints every cause, suspect and assumption"]
    return "trust", _change(explanation.replayed, explanation.measured.makespan), "; ".join([replayed, *more])


def _notes(explanation: Explanation, steps: list[str]) -> list[str]:
    """Return the time in transfers, whether no part is slow, and the notes of the explanation."""
    total, exposed = (seconds_text(explanation.communication[name], DIGITS) for name in ("total", "exposed"))
    communication = f"{total} in transfers of all devices; exposed (the device only waits for one): {exposed}"
    even = [] if explanation.slow else ["no stage, microbatch, link or action stands out"]
    return [communication, *even, *(note for note in explanation.notes if note not in steps)]


def _gains(explanation: Explanation) -> list[tuple[float, str]]:
    """Return the hypothetical steps that are shorter, and their names, the shortest first."""
    whole = explanation.measured.makespan
    return sorted(
        (seconds, name)
        for name, seconds in explanation.variants.items()
        if VARIANTS[name] and seconds < (1 - SAME) * whole
    )


def _lead(explanation: Explanation, step: str) -> str:
    """Return what costs most, or the better schedule if it gains more, and how rough this is; "" if nothing does."""
    better, whole = explanation.better, explanation.measured.makespan
    found = []
    for seconds, name in _gains(explanation)[:1]:
        why = _suspects(explanation, name)
        because = f": {why}" * (why != VARIANTS[name])
        found.append((seconds / whole, f"{COSTS[name]} {percent_text(1 - seconds / whole)} of {step}{because}"))
    if better:
        share, sure = better.step / better.step_now, ", but this is uncertain" * (not better.certain)
        found.append((share, f"{better.schedule} would take {percent_text(1 - share)} less time{sure}"))
    if not found:
        return ""
    rough = f"; rough, as the step replayed from its own times is {_change(explanation.replayed, whole)} off"
    return min(found)[1] + rough * (ROUGH in explanation.notes)


def _change(seconds: float, before: float) -> str:
    """Return a time against another in per cent."""
    return percent_text(seconds / before - 1, signed=True) if before else "-"


def _shares(run: Timeline) -> str:
    """Return the causes of idle time with their share of all devices' time, largest first."""
    shares = idle_shares(run)
    shown = [cause for cause, share in shares.items() if share > SAME * sum(shares.values())]
    return ", ".join(f"{cause} {percent_text(shares[cause])}" for cause in shown) or "none"


def _suspects(explanation: Explanation, variant: str) -> str:
    """Return what a hypothetical step lacks; the costliest slow parts of this kind if there are some."""
    found = [one for one in explanation.slow if one.what in SUSPECTS.get(variant, ())]
    names = [one.in_words for one in found[:MAX_SUSPECTS]]
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


class _Table(NamedTuple):
    """Rows of cells by head; a float is seconds."""

    rows: list[dict[str, str | float]]
    left: int | None = 1
    """Columns that are flush left in text; None: all."""
    signed: bool = False
    """Whether seconds above 0 have a plus sign in text."""
    more: Sequence[str] = ()
    """Lines below the rows."""


def _cell(cell: str | float, plus: str) -> str:
    return cell if isinstance(cell, str) else plus * (cell > 0) + seconds_text(cell)


def _tables(explanation: Explanation, *between: _Table) -> list[_Table]:
    slow, waits = _slow(explanation.slow, "expected"), _slow(explanation.stalls, "usual")
    return [part for part in (_pipelines(explanation), _difference(explanation), *between, slow, waits) if part]


def _recorded(explanation: Explanation) -> list[Row]:
    """Return rows about the order of the step, all steps, the time between them, and the slowest other pipeline."""
    found, steps, others = explanation.recognized, explanation.steps, explanation.pipelines
    rows = [("family", "none", "no family has these actions on these devices")]
    if found is not None:
        far = f"{found.moved} of {found.actions} actions are elsewhere" if found.moved else "the same order"
        rows = [("family", found.family, f"{counted(found.stages_per_device, 'stage')} per device; {far}")]
    if steps is not None and steps.count > 1:
        low, high = (seconds_text(one, DIGITS) for one in (steps.shortest, steps.longest))
        words = f"mean of {low} and {high}" if steps.count == 2 else f"median of {steps.count}, {low} to {high}"
        rows.append(("steps", seconds_text(steps.median, DIGITS), words))
    if steps is not None and steps.between is not None:
        why = "median time between two steps: optimizer, data, exposed reductions"
        rows.append(("between", seconds_text(steps.between, DIGITS), why))
    if others:
        slowest = max(others, key=lambda one: one.step)
        ranks = first_names(list(map(str, slowest.ranks)), MAX_RANKS)
        why = f"slowest of {counted(len(others), 'other pipeline')} of the job: ranks {ranks}"
        rows.append(("others", seconds_text(slowest.step, DIGITS), why))
    return rows


def _pipelines(explanation: Explanation) -> _Table | None:
    """Return a table of the other pipelines of the job, slowest first."""
    others = sorted(explanation.pipelines, key=lambda one: -one.step)
    if not others:
        return None
    rows: list[dict[str, str | float]] = [
        {
            "other pipelines": f"ranks {first_names(list(map(str, one.ranks)), MAX_RANKS)}",
            "median step": one.step,
            "bubble": percent_text(one.bubble_fraction),
        }
        for one in others[:MAX_SLOW]
    ]
    return _Table(rows, more=more_lines(len(others) - MAX_SLOW, ""))


def _difference(explanation: Explanation) -> _Table | None:
    if not explanation.difference:
        return None
    found = {
        cause: seconds
        for cause, seconds in explanation.difference.items()
        if abs(seconds) > 1e-6 * explanation.measured.makespan
    }
    whole = {**found, "all": sum(explanation.difference.values())}
    rows: list[dict[str, str | float]] = [
        {"measured - simulated": cause, "step": seconds, "": study.DIFFERENCE.get(cause, "")}
        for cause, seconds in whole.items()
    ]
    return _Table(rows, left=None, signed=True)


def _idle(explanation: Explanation) -> _Table:
    """Return a table of idle device-seconds by cause, measured and simulated."""
    runs = {"measured": explanation.measured, "simulated": explanation.simulated}
    idle = {name: run.ledger().by_cause for name, run in runs.items() if run}
    rows: list[dict[str, str | float]] = []
    for cause in idle["measured"]:
        seconds = {name: by_cause[cause] for name, by_cause in idle.items()}
        if max(seconds.values()) > 1e-6 * explanation.measured.makespan:
            rows.append({"idle by cause": cause, **seconds})
    whole = {name: float(run.device_idle.sum()) for name, run in runs.items() if run}
    return _Table([*rows, {"idle by cause": "all", **whole}])


def _variants(explanation: Explanation, with_reasons: bool) -> _Table:
    whole = explanation.measured.makespan
    rows: list[dict[str, str | float]] = [
        {"the step would be": name, "time": seconds, "change": _change(seconds, whole)}
        | ({"that is": _suspects(explanation, name)} if with_reasons else {})
        for name, seconds in explanation.variants.items()
    ]
    return _Table(rows)


def _slow(found: list[Slow], expected: str) -> _Table | None:
    """Return a table of parts that take longer than `expected`."""
    if not found:
        return None
    rows: list[dict[str, str | float]] = []
    for one in found[:MAX_SLOW]:
        parts: dict[str, str | float] = {"slower than it should be": one.what, "where": one.where}
        ratio = value_text(one.ratio if one.expected > 0 else None, "times")
        times = {"measured": one.seconds, expected: one.expected, "ratio": ratio, "in all": one.excess}
        rows.append((parts if one.what != "stall" else {"long wait before": one.where}) | times)
    return _Table(rows, left=len(rows[0]) - 4, more=more_lines(len(found) - MAX_SLOW, ""))
