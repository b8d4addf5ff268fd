"""`ppsim explain TRACE [CONFIG]`: the time of a measured step by cause, compared with its simulation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.analysis.interval import bounds_text
from ppsim.base.errors import ConfigError, CostError
from ppsim.base.tables import NO_BREAK, aligned, escaped, html_table, page_table, paragraph, with_remarks
from ppsim.base.units import counted, difference_text, first_names, more_lines, percent_text, seconds_text, value_text
from ppsim.commands import options
from ppsim.commands.cells import DIGITS, SAME, memory_text
from ppsim.commands.options import read_config
from ppsim.commands.reporting import OutputOption, answer, command, say, write_files
from ppsim.costs.profile import write_profile
from ppsim.frameworks import SCHEDULES, runner_named
from ppsim.interop.kineto import read_any_trace
from ppsim.interop.traces import Trace
from ppsim.plots.chart_files import SUFFIXES, is_page, save_figure, save_gantt
from ppsim.plots.viewer import Iterations
from ppsim.run.timelines import Timeline
from ppsim.studies import explain as study
from ppsim.studies.calibration import calibrate
from ppsim.studies.explain import OUTSIDE, ROUGH, VARIANTS, Explanation, Pipeline
from ppsim.studies.reasons import idle_shares
from ppsim.studies.slow_parts import MeasuredStep, Slow, replayed_plan, slow_parts, stalls

MAX_ROWS, MAX_RANKS, MAX_SUSPECTS = 13, 8, 2  # a table has all causes of idle time and their sum
MAX_PIPELINES = 4  # other pipelines on a page
MAX_ACTIONS = 65_536  # of all steps that a page can show
Fact = tuple[str, str, str]  # label, value and remark
Rows = list[dict[str, Any]]  # of a table: cells by the head of their column
UNITS = {"change": "change", "bubble": "fraction", "ratio": "times"}  # of a table's numbers; others are seconds
VARIANT = "the step would be"
COSTS = {  # what is absent from a hypothetical step
    "no overhead": "Overhead between actions costs", "no stragglers": "Stragglers cost",
    "equal stages": "Unequal stages cost", "free links": "Transfers cost",
}  # fmt: skip
SUSPECTS = {"equal stages": ("stage",), "no stragglers": ("action", "microbatch"), "free links": ("link",)}


@command
@options.shared_options()
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
    trace = read_any_trace(recording, ranges)
    for note in trace.notes:
        say(note)
    steps = _Steps(trace, step)
    run = None if config is None else read_config(config, settings).simulate()
    costs = None
    with suppress(CostError):  # some stage has no recorded time
        costs = calibrate([trace])
    explanation = study.explain(steps.timeline, run, framework=framework, profile=costs, trace=trace)
    explanation = replace(explanation, notes=[*steps.in_words, *explanation.notes])
    write_files(
        (profile, lambda path: write_profile(costs or calibrate([trace]), path)),
        (gantt, lambda path: _draw(explanation, steps, path, drawing)),
    )
    answer(explanation.to_dict(), json, lambda: "\n".join(_answer(explanation, steps.in_words, verbose)))


class _Steps:
    """The recorded steps of a trace, of which one is explained: the given one, or the median one."""

    def __init__(self, trace: Trace, step: int | None):
        self.trace, self.numbers, self.seconds = trace, trace.usable_steps.tolist(), trace.step_seconds
        self.timeline, self.is_chosen = Timeline.of(trace.timeline(step)), step is not None
        self.shown = trace.median_step if step is None else step
        self.range = "-".join(map(str, dict.fromkeys((self.numbers[0], self.numbers[-1]))))
        self.reading = functools.cache(self._read)

    def _read(self, step: int) -> MeasuredStep:
        """Return a step as a timeline, with its slow parts and its stalls, by its own medians."""
        timeline = Timeline.of(self.trace.timeline(step))
        replay = replayed_plan(timeline)
        return MeasuredStep(timeline, slow_parts(timeline, replay, None), stalls(timeline, replay))

    @functools.cached_property
    def in_words(self) -> list[str]:
        """A line that names the shown step, and the longest with its worst straggler; none for a single step."""
        count, longest = len(self.numbers), self.numbers[int(self.seconds.argmax())]
        if count == 1:
            return []
        which = "the median one" if count % 2 else "the shorter one" if count == 2 else "the nearest to the median"
        note = f"step {self.shown} of {self.range} ({'chosen' if self.is_chosen else which}) is explained"
        if self.shown == longest:
            return [f"{note}; it is the longest"]
        note = f"{note}; step {longest} is the longest: {seconds_text(self.seconds.max(), DIGITS)}"
        straggler = [one.in_words for one in self.reading(longest).slow if one.what == "action"][:1]
        return [", ".join([note, *straggler])]

    def on_page(self, chosen: MeasuredStep) -> Iterations:
        """Return the steps for a page: the chosen one, the shortest, the longest, and the first others."""
        if self.shown not in self.numbers:  # some of its actions are missing
            return Iterations([self.shown], [chosen.timeline.makespan], 0, {0: (chosen.timeline, chosen.marks)})
        shown, count = self.numbers.index(self.shown), max(MAX_ACTIONS // len(chosen.timeline.row_start), 3)
        extremes = int(self.seconds.argmin()), int(self.seconds.argmax())
        wanted = dict.fromkeys([shown, *extremes, *range(len(self.numbers))])
        steps = {index: chosen if index == shown else self.reading(self.numbers[index]) for index in [*wanted][:count]}
        timelines = {index: (step.timeline, step.marks) for index, step in steps.items()}
        return Iterations(self.numbers, self.seconds.tolist(), shown, timelines)


def _draw(explanation: Explanation, steps: _Steps, path: Path, drawing: dict[str, Any]) -> None:
    """Draw the measured Gantt chart above the simulated one; without a config, the costs are the step's medians.

    A page can show the other steps too, marks what is slow, and has the other pipelines of the job.
    """
    if not is_page(path):
        numbers = steps.range.replace("-", "–")
        drawing.setdefault("title", f"{explanation.heading}, measured step {steps.shown} (of {numbers})")
        save_figure(lambda: explanation.plot(**drawing), path)
        return
    drawn, others, name = explanation.drawn, steps.trace.others[:MAX_PIPELINES], Path(steps.trace.path).stem
    titles = [*drawn, *(f"measured, ranks {', '.join(map(str, one.document['ranks']))}" for one in others)]
    is_named = name == explanation.heading.split(",")[0]
    drawing.setdefault("title", explanation.heading if is_named else f"{name}: {explanation.heading}")
    save_gantt(
        [*drawn.values(), *(Timeline.of(one.timeline()) for one in others)], path, titles=titles,
        shown=("differences", "ledger"), marks=[explanation.step.marks], words=_page(explanation, steps.in_words),
        lead=_lead(explanation, f"step {steps.shown}" if len(steps.numbers) > 1 else "the step"),
        iterations=steps.on_page(explanation.step), **drawing,
    )  # fmt: skip


def _answer(explanation: Explanation, steps: list[str], verbose: bool) -> Iterator[str]:
    """Yield the lines of the answer: the step, its idle time, what would shorten it, and how far to trust this.

    `verbose` adds the tables and notes.
    """
    yield from [explanation.heading] * verbose
    seconds, text = _schedule_gain(explanation)
    gains = [("gain", seconds_text(seconds, DIGITS) if seconds else "", text)]
    for seconds, name in _shorter_variants(explanation):
        text = f"{_against(seconds, explanation.measured.makespan)}  {name}: {_suspects(explanation, name)}"
        gains.append(("", seconds_text(seconds, DIGITS), text))
    yield from with_remarks([*_facts(explanation, steps), ("", "", ""), *gains, _trust(explanation, verbose)])
    for rows in _tables(explanation).values() if verbose else ():
        is_text = {number for number, cell in enumerate(rows[0].values()) if isinstance(cell, str)}
        lines = [[_cell(head, cell) for head, cell in row.items()] for row in rows[:MAX_ROWS]]
        yield from ("", *aligned([[*map(str.strip, rows[0])], *lines], is_text), *more_lines(len(rows) - MAX_ROWS, ""))
    yield from [""] * verbose
    yield from (line for note in _notes(explanation, steps) if verbose for line in paragraph(note))


def _page(explanation: Explanation, steps: list[str]) -> str:
    """Return gains, facts, tables, better schedule, notes as HTML, without idle time by cause, which the page shows."""
    tables = {name: rows for name, rows in _tables(explanation).items() if name != "idle"}
    gains = [{**row, "that is": _suspects(explanation, str(row[VARIANT]))} for row in tables.pop("variants")]
    facts = [*_facts(explanation, steps), _trust(explanation, verbose=True)]
    parts = [_html(gains), html_table(("measured run", "value", "remark"), facts), *map(_html, tables.values())]
    notes = [f"Better schedule: {_schedule_gain(explanation)[1]}", *_notes(explanation, steps)]
    parts += [f"<p>{escaped(note[0].upper() + note[1:])}</p>" for note in notes]
    return "".join(parts).replace(" %", f"{NO_BREAK}%")


def _html(rows: Rows) -> str:
    more = "".join(f"<p>{line}</p>" for line in more_lines(len(rows) - MAX_ROWS, ""))
    return page_table(rows[:MAX_ROWS], {head: UNITS.get(head, "seconds") for head in rows[0]}) + more


def _cell(head: str, value: str | float | None) -> str:
    if isinstance(value, str):
        return value
    if head == "step":
        return difference_text(value, "seconds")
    if head == "change" and value is not None:
        return percent_text(value, signed=True)
    return value_text(value, UNITS.get(head, "seconds"))


def _facts(explanation: Explanation, steps: list[str]) -> Iterator[Fact]:
    """Yield the measured and the simulated step, idle time by cause, and the facts that the recording gives."""
    measured, run, whole = explanation.measured, explanation.simulated, explanation.measured.makespan
    yield "step", seconds_text(whole, DIGITS), "; ".join(["measured", *steps])
    if run:
        causes = sorted(explanation.difference.items(), key=lambda item: -abs(item[1]))
        texts = [f"{cause} {_cell('step', seconds)}" for cause, seconds in causes if abs(seconds) > SAME * whole]
        reasons = [f"measured - simulated: {', '.join(texts)}"] * bool(texts)
        reasons += [f"memory {memory}" for memory in [memory_text(run)] if memory]
        yield "simulated", seconds_text(run.makespan, DIGITS), "; ".join([_against(run.makespan, whole), *reasons])
    shares = idle_shares(measured)
    causes = [cause for cause, share in shares.items() if share > SAME * sum(shares.values())]
    idle = ", ".join(f"{cause} {percent_text(shares[cause])}" for cause in causes) or "none"
    yield "bubble", percent_text(measured.bubble_fraction), f"idle / total device time: {idle}"
    family, recorded = explanation.recognized, explanation.steps
    if family is None:
        yield "family", "none", "no family has these actions on these devices"
    else:
        far = f"{family.moved} of {family.actions} actions are elsewhere" if family.moved else "the same order"
        yield "family", family.family, f"{counted(family.stages_per_device, 'stage')} per device; {far}"
    if recorded is not None and recorded.count > 1:
        low, high = (seconds_text(one, DIGITS) for one in (recorded.shortest, recorded.longest))
        of_two, of_all = f"mean of {low} and {high}", f"median of {recorded.count}, {low} to {high}"
        yield "steps", seconds_text(recorded.median, DIGITS), of_two if recorded.count == 2 else of_all
    if recorded is not None and recorded.between is not None:
        remark = "median time between two steps: optimizer, data, exposed reductions"
        yield "between", seconds_text(recorded.between, DIGITS), remark
    if explanation.pipelines:
        slowest = max(explanation.pipelines, key=lambda one: one.step)
        remark = f"slowest of {counted(len(explanation.pipelines), 'other pipeline')} of the job: {_ranks(slowest)}"
        yield "others", seconds_text(slowest.step, DIGITS), remark


def _schedule_gain(explanation: Explanation) -> tuple[float, str]:
    """Return the step of the better schedule and what is known of it; 0 s if there is none."""
    better = explanation.better
    if better is None:
        return 0.0, "no schedule that can be run is faster within this activation peak"
    change = _against(better.step, better.step_now)
    if abs(better.step_now / explanation.measured.makespan - 1) > SAME:
        change += f" of a step of {seconds_text(better.step_now, DIGITS)}"
    sure = "" if better.certain or better.interval is None else "; uncertain, as the intervals overlap"
    return better.step, (
        f"{change}  {better.schedule} with {counted(better.stages_per_device, 'stage')} per device, no larger "
        f"activation peak{bounds_text(better.interval)}{sure}"
    )


def _shorter_variants(explanation: Explanation) -> list[tuple[float, str]]:
    """Return the hypothetical steps that are shorter, and their names, the shortest first."""
    longest = (1 - SAME) * explanation.measured.makespan
    return sorted((step, name) for name, step in explanation.variants.items() if VARIANTS[name] and step < longest)


def _suspects(explanation: Explanation, variant: str) -> str:
    """Return what a hypothetical step lacks; the costliest slow parts of this kind if there are some."""
    slow = [one.in_words for one in explanation.slow if one.what in SUSPECTS.get(variant, ())]
    return "; ".join(slow[:MAX_SUSPECTS]) or VARIANTS[variant]


def _lead(explanation: Explanation, step: str) -> str:
    """Return what costs most, or the better schedule if it gains more, and how rough this is; "" if nothing does."""
    better, whole = explanation.better, explanation.measured.makespan
    gains = []
    for seconds, name in _shorter_variants(explanation)[:1]:
        why = _suspects(explanation, name)
        because = f": {why}" * (why != VARIANTS[name])
        gains.append((seconds / whole, f"{COSTS[name]} {percent_text(1 - seconds / whole)} of {step}{because}"))
    if better:
        share, sure = better.step / better.step_now, ", but this is uncertain" * (not better.certain)
        gains.append((share, f"{better.schedule} would take {percent_text(1 - share)} less time{sure}"))
    if not gains:
        return ""
    rough = f"; rough, as the step replayed from its own times is {_against(explanation.replayed, whole)} off"
    return min(gains)[1] + rough * (ROUGH in explanation.notes)


def _trust(explanation: Explanation, verbose: bool) -> Fact:
    """Return how far the step replayed from its own times is off, and what warns of it."""
    replayed = f"replayed from its own times: {seconds_text(explanation.replayed, DIGITS)}"
    warnings = [note for note in explanation.notes if note == ROUGH or note.startswith(OUTSIDE)]
    more = [] if verbose else [*warnings, "-v prints every cause, suspect and assumption"]
    return "trust", _against(explanation.replayed, explanation.measured.makespan), "; ".join([replayed, *more])


def _notes(explanation: Explanation, steps: list[str]) -> Iterator[str]:
    """Yield the time in transfers, whether no part is slow, and the notes of the explanation."""
    total, exposed = (seconds_text(explanation.communication[name], DIGITS) for name in ("total", "exposed"))
    yield f"{total} in transfers of all devices; exposed (the device only waits for one): {exposed}"
    yield from ["no stage, microbatch, link or action stands out"] * (not explanation.slow)
    yield from (note for note in explanation.notes if note not in steps)


def _against(seconds: float, before: float) -> str:
    """Return a time against another in per cent."""
    return percent_text(seconds / before - 1, signed=True) if before else "-"


def _ranks(pipeline: Pipeline) -> str:
    return f"ranks {first_names(list(map(str, pipeline.ranks)), MAX_RANKS)}"


def _tables(explanation: Explanation) -> dict[str, Rows]:
    """Return the tables that have rows, by name."""
    measured, run, whole = explanation.measured, explanation.simulated, explanation.measured.makespan
    difference = {cause: seconds for cause, seconds in explanation.difference.items() if abs(seconds) > 1e-6 * whole}
    difference |= {"all": sum(explanation.difference.values())} if explanation.difference else {}
    idle = {name: {**one.ledger().by_cause, "all": float(one.device_idle.sum())}
            for name, one in (("measured", measured), ("simulated", run)) if one}  # fmt: skip
    idle_rows = [
        {"idle by cause": cause, **{name: by_cause[cause] for name, by_cause in idle.items()}}
        for cause in idle["measured"]
        if cause == "all" or max(by_cause[cause] for by_cause in idle.values()) > 1e-6 * whole
    ]
    tables = {
        "pipelines": [
            {"other pipelines": _ranks(one), "median step": one.step, "bubble": one.bubble_fraction}
            for one in sorted(explanation.pipelines, key=lambda one: -one.step)
        ],
        "difference": [
            {"measured - simulated": cause, "step": seconds, "": study.DIFFERENCE.get(cause, "")}
            for cause, seconds in difference.items()
        ],
        "idle": idle_rows,
        "variants": [
            {VARIANT: name, "time": seconds, "change": seconds / whole - 1 if whole else None}
            for name, seconds in explanation.variants.items()
        ],
        "slow": [
            {"slower than it should be": one.what, "where": one.where, **_excess(one, "expected")}
            for one in explanation.slow
        ],
        "stalls": [{"long wait before": one.where, **_excess(one, "usual")} for one in explanation.stalls],
    }
    return {name: rows for name, rows in tables.items() if rows}


def _excess(one: Slow, expected: str) -> dict[str, float | None]:
    ratio = one.ratio if one.expected > 0 else None
    return {"measured": one.seconds, expected: one.expected, "ratio": ratio, "in all": one.excess}
