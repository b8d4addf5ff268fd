"""Trace: a measured run, the times of every row of a program; reader of the replay harness' trace files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.base.documents import check_document, check_schema, checked_by, document_error, path_text, read_json, record
from ppsim.base.errors import ConfigError, PpsimError, ScheduleError, shown
from ppsim.base.files import read_text
from ppsim.base.immutable import EqualColumns, short_repr
from ppsim.base.rules import checked_methods, choice, is_whole, weight
from ppsim.base.units import counted
from ppsim.checks.faults import validate
from ppsim.costs.profile import Profile
from ppsim.engines.times import Times
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.rows import crosses_devices, has_transfers, transfer_ends
from ppsim.plan.resolve import make_plan
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import read_orders
from ppsim.timeline import TimelineColumns

SCHEMA = "ppsim.trace/1"
WHAT = "a trace"
COLUMNS = ("issue", "start", "end")
UNKNOWN = "unknown device"
MAX_SECONDS = 1e9


@checked_methods
@dataclass(frozen=True, eq=False)
class Trace(EqualColumns):
    """A measured run: times of every row of a program in each step."""

    path: str  # the file or folder
    program: ScheduleColumns  # the program that ran
    # start, end: float64 (steps, rows of the program), seconds since the begin of the step; nan for unrecorded times
    start: np.ndarray
    end: np.ndarray
    transfer_bytes: float  # bytes of a transfer
    document: dict[str, Any]  # the other entries of the file: compute, environment, clocks, backend ...
    others: tuple[Trace, ...] = ()  # the other pipelines of the same job, such as its data-parallel copies

    __repr__ = short_repr

    @classmethod
    def of_clock(
        cls, path: str, program: ScheduleColumns, start: np.ndarray, end: np.ndarray, consecutive: bool = True,
        **rest: Any
    ) -> Trace:  # fmt: skip
        """Return the trace of another tool, with seconds on one clock over all steps and no bytes of transfers.

        `consecutive` says that no step is missing between two recorded ones.
        """
        origin = np.nanmin(start, axis=1, keepdims=True)
        gaps = origin[1:, 0] - np.fmax.reduce(end, axis=1)[:-1]  # NaN for a step without an end
        if consecutive:
            rest["between_steps"] = gaps[gaps > 0].tolist()
        return cls(path, program, start - origin, end - origin, 0.0, rest)

    @property
    def device_name(self) -> str:
        """Name of the hardware."""
        environment = self.document.get("environment")
        return str(environment.get("device", UNKNOWN)) if isinstance(environment, dict) else UNKNOWN

    @property
    def framework(self) -> str:
        """The training framework, or empty if it is unknown."""
        return str(self.document.get("framework", ""))

    @property
    def transport(self) -> str:
        """The transport of the transfers, as in `ppsim.simulate`."""
        return str(self.document.get("transport", "async"))

    @property
    def recorded(self) -> str:
        """Date of the run, or empty if it is unknown."""
        return str(self.document.get("recorded", ""))

    @cached_property
    def compute(self) -> np.ndarray:
        """Rows of the program that are compute actions, int64."""
        return np.flatnonzero(self.program.kind < FIRST_TRANSFER)

    @cached_property
    def notes(self) -> list[str]:
        """Sentences about missing or uncertain facts."""
        missing = np.isnan(self.start) | np.isnan(self.end)
        actions, steps = missing[:, self.compute], int(missing[:, self.compute].any(axis=1).sum())
        notes = []
        if actions.any():
            notes.append(
                f"{self.path}: {int(actions.sum())} of {counted(actions.size, 'action')} are missing, in "
                f"{counted(steps, 'step')}; used as far as it goes"
            )
        if transfers := int(missing.sum()) - int(actions.sum()):
            is_profiler = self.document.get("backend") == "profiler"
            why = "; a profiler shows those that an action waited for" * is_profiler
            notes.append(
                f"{self.path}: {transfers} of {missing.size - actions.size} ends of transfers are missing{why}"
            )
        if self.document.get("hosts", 1) != 1:
            how = "set by what passes between them" if "clocks_moved" in self.document else "taken as they are"
            notes.append(f"{self.path}: ran on {self.document['hosts']} hosts; their clocks are {how}")
        if self.document.get("other_ranks"):
            ranks = ", ".join(map(str, self.document["ranks"]))
            shown = f" in detail, and {counted(len(self.others), 'other')} by step" if self.others else ""
            notes.append(f"{self.path}: holds files of several pipelines; that of ranks {ranks} is read{shown}")
        if self.times_only:
            notes.append(
                f"{self.path}: begin and end of single transfers are not recorded; the time from the end of an action "
                f"to the start of what waited for it is taken as transfer"
            )
        return notes

    @cached_property
    def usable_steps(self) -> np.ndarray:
        """The steps whose compute actions are all recorded, or else the steps with any record; int64."""
        known = ~(np.isnan(self.start) | np.isnan(self.end))[:, self.compute]
        whole = np.flatnonzero(known.all(axis=1))
        return whole if len(whole) else np.flatnonzero(known.any(axis=1))

    @cached_property
    def step_seconds(self) -> np.ndarray:
        """Measured time of each of `usable_steps`: last end - first start of its compute actions."""
        start, end = (times[np.ix_(self.usable_steps, self.compute)] for times in (self.start, self.end))
        return np.nanmax(end, axis=1) - np.nanmin(start, axis=1)

    @property
    def between_steps(self) -> list[float]:
        """Seconds from the last recorded end of a step to the first start of the next one; empty if unknown."""
        return self.document.get("between_steps", [])

    @cached_property
    def median_step(self) -> int:
        """The step of `usable_steps` whose time is nearest to the median; the shorter of two."""
        order = self.usable_steps[np.argsort(self.step_seconds, kind="stable")]
        return int(order[(len(order) - 1) // 2])

    @cached_property
    def transfers(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Consuming row in `program.compute`, SEND row and RECV row of each transfer.

        Without transfers in the program: all rows with an input from another device, and -1 as SEND and RECV rows.
        """
        if self.times_only:
            consumer = np.flatnonzero(crosses_devices(self.program.compute))
            return consumer, np.full_like(consumer, -1), np.full_like(consumer, -1)
        ends = transfer_ends(self.program)
        compute_row = np.cumsum(self.program.kind < FIRST_TRANSFER) - 1
        send, receive = (np.full(len(self.program.kind), -1, np.int64) for _ in range(2))
        send[ends.consumer[ends.is_send]] = ends.row[ends.is_send]
        receive[ends.consumer[~ends.is_send]] = ends.row[~ends.is_send]
        consumer = np.flatnonzero((send >= 0) & (receive >= 0))
        return compute_row[consumer], send[consumer], receive[consumer]

    @cached_property
    def times_only(self) -> bool:
        """True if stages are on several devices and no transfer between them was recorded."""
        return not has_transfers(self.program) and bool(crosses_devices(self.program).any())

    def transfer_times(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return when each of `transfers` could begin (posted at both ends) and when it had arrived; seconds or nan.

        If no transfers were recorded, each begins at the end of its producer. If its consumer's device was idle, it
        arrives at the start of the consumer. The others take the median time of these, but arrive before their use.
        """
        consumer, send, receive = self.transfers
        if not self.times_only:
            begin = np.maximum(self.start[step, send], self.start[step, receive])
            return begin, self.end[step, receive]
        schedule, ends = self.program.compute, self.end[step, self.compute]
        begin, start = ends[schedule.source[consumer]], self.start[step, self.compute][consumer]
        previous_end = np.roll(ends, 1)
        previous_end[schedule.offsets[:-1]] = -np.inf
        was_idle = previous_end[consumer] < begin
        typical = max(0.0, known_median((start - begin)[was_idle]))
        return np.minimum(begin, start), np.where(was_idle, start, np.minimum(begin + typical, start))

    def timeline(self, step: int | None = None) -> TimelineColumns:
        """Return a measured step (default: `median_step`) as a timeline, like a simulated one.

        Actions without times take 0 s at the end of the action before them.
        """
        step = self.median_step if step is None else step
        if not (is_whole(step, -len(self.end)) and step < len(self.end)):
            raise ConfigError(
                f"{self.path}: step {shown(step)} was not recorded; the file holds steps 0 to {len(self.end) - 1}"
            )
        schedule = self.program.compute
        start, end = _filled(schedule, self.start[step, self.compute], self.end[step, self.compute])
        transfer_start, transfer_end = np.full(len(start), np.nan), np.full(len(start), np.nan)
        consumer = self.transfers[0]
        begin, arrived = self.transfer_times(step)
        arrived = np.where(np.isnan(arrived), start[consumer], arrived)
        transfer_start[consumer] = np.fmin(begin, arrived)
        transfer_end[consumer] = arrived
        costs = self._costs(step)
        table = costs.table(schedule)
        plan = replace(
            make_plan(schedule, table, "async"),
            row_lengths=end - start,
            transfer_lengths=np.nan_to_num(transfer_end - transfer_start),
            barriers=None,  # a trace has no times of the collectives of an output layer
        )
        times = Times(start, end, transfer_start, transfer_end)
        return TimelineColumns(plan, table, costs, times, engine="measured", framework=self.framework)

    def _costs(self, step: int) -> Profile:
        """Return the median seconds of a step's actions by kind and stage; without records, of the kind on all stages.

        A kind without records takes 0 s, like its actions in the timeline.
        """
        schedule = self.program.compute
        durations = (self.end - self.start)[step, self.compute]
        seconds = {}
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            chosen = schedule.kind == kind
            if chosen.any():
                median = known_median(durations[chosen])
                by_stage = (durations[chosen & (schedule.stage == stage)] for stage in range(schedule.num_stages))
                seconds[kind.name] = [known_median(values, median) for values in by_stage]
        begin, arrived = self.transfer_times(step)
        return Profile(
            devices=schedule.devices,
            seconds=seconds,
            latency=max(0.0, known_median(arrived - begin)),
            transfer_bytes=self.transfer_bytes,
            source=self.device_name,
            recorded=self.recorded,
        )


def read_trace(path: str | PathLike[str]) -> Trace:
    """Read a trace file that validation/replay.py wrote.

    Raises ConfigError with file and field for an invalid file, ScheduleError for a faulty program.
    """
    return trace_of(read_json(read_text(path), str(path), WHAT), str(path))


def program_of(orders: list[list[str]], name: str, complaint: str) -> ScheduleColumns:
    """Return the valid program of a trace; raise ConfigError or ScheduleError, which begins with `complaint`."""
    try:
        program = read_orders(orders, name)
        validate(program)
    except PpsimError as error:
        kind = ScheduleError if isinstance(error, ScheduleError) else ConfigError
        raise kind(f"{complaint}: {error}") from None
    return program


def _schema() -> Any:
    """Return the schema of the entries that are checked; a Trace holds the others in `document`."""
    times = (list[list[float | None]], ...)
    return record(
        "Trace",
        ignored=None,
        orders=(list[list[str | None]], ...),
        steps=(list[record("Step", ignored=None, **dict.fromkeys(COLUMNS, times))], ...),
        transfer_bytes=(checked_by(weight), 0.0),
        transport=(checked_by(choice(*TRANSPORTS)), "async"),
        schedule=(checked_by(str), "custom"),
    )


def trace_of(document: Any, place: str) -> Trace:
    """Return the trace in a document of the harness; the errors of `read_trace` begin with `place`."""
    what = f"{WHAT} that validation/replay.py wrote (give another tool's as a folder with one file per rank)"
    check_schema(document, SCHEMA, place, what)
    found = check_document(_schema(), document, place, WHAT)
    program = program_of(found.orders, found.schedule, place)
    if faults := _shape_faults(found.steps, program):
        raise document_error(faults, place, WHAT)
    start, end = (_column(found.steps, name, program) for name in ("start", "end"))
    rest = {key: value for key, value in document.items() if key not in ("orders", "steps")}
    trace = Trace(place, program, start, end, found.transfer_bytes, rest)
    _refuse_backward_times(trace)
    if not len(trace.usable_steps):
        raise ConfigError(f"{place}: holds the times of no action; record it again")
    return trace


def _refuse_backward_times(trace: Trace) -> None:
    """Raise ConfigError with the first action that ends before it starts."""
    step, position = np.nonzero(trace.end[:, trace.compute] < trace.start[:, trace.compute])
    if len(step):
        row = int(trace.compute[position[0]])
        begin, done = float(trace.start[step[0], row]), float(trace.end[step[0], row])
        raise ConfigError(
            f"{trace.path}: step {step[0]}, {trace.program.label(row)} on device {trace.program.device[row]} starts at "
            f"{begin:g} s and ends at {done:g} s; an action must end no earlier than it starts"
        )


def _shape_faults(steps: list[Any], program: ScheduleColumns) -> list[str]:
    """Return a fault for each wrong number of devices, and each device with more entries than actions."""
    if not steps:
        return ["'steps' holds no step"]
    actions, faults = np.diff(program.offsets).tolist(), []
    for number, step in enumerate(steps):
        for name in COLUMNS:
            lengths = list(map(len, getattr(step, name)))
            place = path_text(("steps", number, name))
            if len(lengths) != len(actions):
                faults.append(f"{place} has {counted(len(lengths), 'device')}, the program has {len(actions)}")
                continue
            for device, (found, expected) in enumerate(zip(lengths, actions, strict=True)):
                if found > expected:
                    faults.append(f"{place}[{device}] has {found} entries for {counted(expected, 'action')}")
    return faults


def _column(steps: list[Any], name: str, program: ScheduleColumns) -> np.ndarray:
    """Return the values of all steps, float64 (steps, rows); nan for rows that a device did not record."""
    column = np.full((len(steps), len(program.kind)), np.nan)
    for number, step in enumerate(steps):
        for first, values in zip(program.offsets[:-1].tolist(), getattr(step, name), strict=True):
            column[number, first : first + len(values)] = np.array(values, float)  # None becomes nan
    column[~(np.abs(column) < MAX_SECONDS)] = np.nan  # infinite and unrealistic times count as missing
    return column


def known_median(values: np.ndarray, otherwise: float = 0.0) -> float:
    """Return the median of the values that are not nan, or `otherwise`."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else otherwise


def _filled(schedule: ScheduleColumns, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return times without nan: an action without times takes 0 s at the end of the action before it."""
    start, end = start.copy(), end.copy()
    for device in range(schedule.devices):
        first, last = int(schedule.offsets[device]), int(schedule.offsets[device + 1])
        known = start[first:last][~np.isnan(start[first:last])]
        before = float(known[0]) if len(known) else 0.0
        for row in (first + np.flatnonzero(np.isnan(start[first:last]) | np.isnan(end[first:last]))).tolist():
            start[row] = end[row] = float(end[row - 1]) if row > first else before
    return start, end


def action_errors(measured: TimelineColumns, predicted: TimelineColumns) -> dict[str, np.ndarray]:
    """Return measured and predicted start and end of each action in seconds, and their differences, as columns.

    Both timelines must be of the same orders; ConfigError otherwise.
    """
    if measured.schedule != predicted.schedule:
        raise ConfigError("the two timelines are of different orders; simulate the trace's own program")
    return {
        "measured_start": measured.start,
        "predicted_start": predicted.start,
        "start_error": predicted.start - measured.start,
        "measured_end": measured.end,
        "predicted_end": predicted.end,
        "end_error": predicted.end - measured.end,
        "measured_seconds": measured.end - measured.start,
        "predicted_seconds": predicted.end - predicted.start,
    }
