"""A timeline as columns of boxes, the source of all charts: text, matplotlib, plotly and the viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.bubbles import bubble_fraction, iteration_time, makespan, steady_bubble_fraction
from ppsim.analysis.interval import short_interval
from ppsim.base.arrays import distinct
from ppsim.base.errors import ConfigError
from ppsim.base.units import counted, percent_text, seconds_text
from ppsim.plots import palette
from ppsim.plots.lanes import STEPS, LaneSpans, Spans, band, lane_spans
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns

NOTHING, DEVICE, TRANSFER, SENDING = range(4)
SHORTEST = 1e-200  # seconds; for shorter timelines, pixels per second overflow


@dataclass(frozen=True)
class Boxes(Spans):
    """The boxes of a chart, one per action. An OVERLAP_F_B slot is one box if it is fused, else two.

    Attributes
    ----------
    device, stage, start, length
        As in Spans; a fused slot has the stage of its first part.
    timeline : TimelineColumns
    row : int64
        Row of the box in the schedule; the first of the two rows of a fused slot.
    slot : bool
        True for a fused OVERLAP_F_B slot.
    microbatch, kind : int32, int8
        A fused slot has the microbatch of its first part.
    shade : int32
        0 for the first local stage of the device, 1 for the next ...; bidirectional schedules count by direction first.
        If there are several iterations and one stage per device: 1 in every second iteration.
    """

    timeline: TimelineColumns
    row: np.ndarray
    slot: np.ndarray
    microbatch: np.ndarray
    kind: np.ndarray
    shade: np.ndarray

    @cached_property
    def offsets(self) -> np.ndarray:
        """Offsets by device: device d owns boxes `offsets[d]:offsets[d + 1]`, in time order."""
        return np.searchsorted(self.device, np.arange(self.timeline.schedule.devices + 1))

    @cached_property
    def shades(self) -> int:
        """Number of shades in use."""
        return int(self.shade.max(initial=0)) + 1

    @cached_property
    def kinds(self) -> list[Kind]:
        """Kinds that occur, in the order of the legend."""
        present = set(distinct(self.kind).tolist())
        return [kind for kind in palette.COLOURS if kind in present]

    @cached_property
    def colours(self) -> dict[Kind, np.ndarray]:
        """Colours (#rrggbb) of each kind, one per shade."""
        shades = range(self.shades)
        return {
            kind: np.array([palette.shade_colour(kind, shade, self.shades) for shade in shades])
            for kind in palette.COLOURS
        }

    def colour(self, box: int, part: int = 0) -> str:
        """Return the colour of a box; for an OVERLAP_F_B slot, of its first (0) or second (1) part."""
        kind = self.timeline.schedule.kind[self.row[box] + part]
        return str(self.colours[Kind(int(kind))][self.shade[box]])

    def parts(self, chosen: np.ndarray) -> Iterator[tuple[Kind, np.ndarray, tuple[float, float]]]:
        """Yield each kind, its boxes among `chosen` (bool), and the top and bottom of the band that they fill.

        A fused slot appears twice: its first part fills the upper half of the band, its second part the lower half.
        """
        for kind in self.kinds:
            mine = np.flatnonzero((self.kind == kind) & chosen)
            if kind != Kind.OVERLAP_F_B:
                yield kind, mine, self.band
                continue
            for second, half in enumerate(halves(self.band)):
                kinds = self.timeline.schedule.kind[self.row[mine] + second]
                for part in distinct(kinds).tolist():
                    yield Kind(part), mine[kinds == part], half

    @cached_property
    def lanes(self) -> list[LaneSpans]:
        """Lanes of the gathers, reductions, copies, collectives and optimizer steps that take time."""
        return lane_spans(self.timeline)

    @property
    def laned(self) -> bool:
        """True if rows have lanes at their edges: for gathers, reductions, copies or collectives."""
        return any(lane.sort != STEPS for lane in self.lanes)

    @property
    def band(self) -> tuple[float, float]:
        """Top and bottom of the boxes, downwards from the middle of a device's row, in heights of a row."""
        return band(self.lanes)

    @cached_property
    def action(self) -> np.ndarray:
        """Index of each box in `timeline.start`."""
        return self.timeline.schedule.action_of_row[self.row]

    def name(self, box: int) -> str:
        """Return the action as text, such as `2F0`; a slot as `(3F1;2B0)OVERLAP_F_B`."""
        schedule, row = self.timeline.schedule, int(self.row[box])
        if self.slot[box]:
            return f"({schedule.label(row)};{schedule.label(row + 1)}){Kind.OVERLAP_F_B.name}"
        return schedule.label(row)

    def number(self, row: int) -> str:
        """Return the microbatch of a row of the schedule, with the slice if there are slices, such as 3.1."""
        schedule = self.timeline.schedule
        microbatch, piece = divmod(int(schedule.microbatch[row]), schedule.slices)
        return str(microbatch) if schedule.slices == 1 else f"{microbatch}.{piece}"

    def short_label(self, box: int) -> str:
        """Return the microbatch of a box; both microbatches of a slot, first part first, such as 5/2."""
        row = int(self.row[box])
        return f"{self.number(row)}/{self.number(row + 1)}" if self.slot[box] else self.number(row)

    @cached_property
    def waited(self) -> tuple[np.ndarray, np.ndarray]:
        """Last wait of each box: its cause, and the row of the schedule that it concerns, or -1.

        NOTHING: the box is its device's first and needs no input. DEVICE: the row before it on its device.
        TRANSFER: its input, sent by the row given. SENDING: SENDs of its own device, under the transport `blocking`.
        If the device and the input became ready at the same time, the cause is the device.
        """
        run, schedule = self.timeline, self.timeline.schedule
        previous = self.row - 1
        first = self.row == schedule.offsets[self.device]
        free = np.where(first, -np.inf, run.row_end[previous])
        arrival, carrier = self._last_arrival()
        by_transfer = (arrival > free) & (carrier >= 0)
        delayed = run.row_start[self.row] > np.maximum(free, arrival)
        by_sending = delayed & run.plan.blocking & ~first & (run.engine != "measured")
        cause = np.select([by_sending, by_transfer, ~first], [SENDING, TRANSFER, DEVICE], NOTHING).astype(np.int8)
        needed = np.select([cause == TRANSFER, cause == DEVICE], [run.plan.source[carrier], previous], -1)
        return cause, needed

    def _last_arrival(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for each box the end of its last transfer, or -inf, and the row that consumes it, or -1."""
        ends = self.timeline.transfer_end
        ends = np.where(self.timeline.plan.remote & ~np.isnan(ends), ends, -np.inf)
        second = np.minimum(self.row + 1, len(ends) - 1)
        of_second = np.where(self.slot, ends[second], -np.inf)
        arrival = np.maximum(ends[self.row], of_second)
        carrier = np.where(of_second > ends[self.row], second, self.row)
        return arrival, np.where(np.isneginf(arrival), -1, carrier)

    def waited_text(self, box: int) -> str:
        """Return what the box waited for last, in words."""
        cause, needed = (int(column[box]) for column in self.waited)
        schedule = self.timeline.schedule
        if cause == TRANSFER:
            return f"its input from {schedule.label(needed)} on device {schedule.device[needed]}"
        if cause == DEVICE:
            return f"the device, busy with {schedule.label(needed)}"
        return "the SENDs of its own device" if cause == SENDING else "nothing, the first of its device"


def halves(edges: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the upper half of a band, for the first part of a slot, and the lower half, for the second."""
    middle = sum(edges) / 2
    return (edges[0], middle), (middle, edges[1])


def make_boxes(timeline: TimelineColumns) -> Boxes:
    """Return the boxes of a timeline, device by device in time order; ConfigError if it is too short to draw."""
    if 0 < makespan(timeline) < SHORTEST:
        raise ConfigError(f"a makespan of {makespan(timeline):g} s is too short to draw; give costs in seconds")
    schedule, plan = timeline.schedule, timeline.plan
    row = plan.first_rows
    kind = plan.kind[row].astype(np.int8)
    start = timeline.row_start[row]
    return Boxes(
        device=schedule.device[row],
        stage=schedule.stage[row],
        start=start - float(timeline.device_start.min()),
        length=timeline.row_end[row] - start,
        timeline=timeline,
        row=row,
        slot=kind == Kind.OVERLAP_F_B,
        microbatch=schedule.microbatch[row],
        kind=kind,
        shade=_shade(schedule)[row],
    )


def _shade(schedule: ScheduleColumns) -> np.ndarray:
    """Return the shade of each row: its local stage, or if devices have one stage, its iteration modulo 2."""
    if _shows_iterations(schedule):
        return schedule.microbatch // (schedule.slices * schedule.microbatches_of_a_step) % 2
    return local_stage(schedule)


def _shows_iterations(schedule: ScheduleColumns) -> bool:
    return schedule.iterations > 1 and schedule.num_stages == schedule.devices


def local_stage(schedule: ScheduleColumns) -> np.ndarray:
    """Return the number of each row's stage among the stages of its device (int32), by direction, then by stage.

    The device that runs the first forward of a microbatch gives its direction.
    """
    enters = (schedule.stage == 0) & (schedule.kind == Kind.F)
    entry_devices, number = np.unique(schedule.device[enters], return_inverse=True)
    _, name = np.unique(schedule.microbatch, return_inverse=True)
    direction = np.zeros(int(name.max(initial=0)) + 1, np.int64)
    direction[name[enters]] = number
    order = direction[name] * max(schedule.num_stages, 1) + schedule.stage
    span = max(len(entry_devices), 1) * max(schedule.num_stages, 1)
    used, number = np.unique(schedule.device.astype(np.int64) * span + order, return_inverse=True)
    first_of_device = np.searchsorted(used // span, np.arange(schedule.devices))
    return (number - first_of_device[schedule.device]).astype(np.int32)


def second_cue(schedule: ScheduleColumns) -> str:
    """Return the meaning of a paler colour, for the legend; empty if all boxes have the same shade."""
    if _shows_iterations(schedule):
        return "paler: every second iteration"
    enters = (schedule.stage == 0) & (schedule.kind == Kind.F)
    if len(distinct(schedule.device[enters])) > 1:
        return "paler: microbatches that enter at the other end"
    return "paler: later stage of the same device" if schedule.num_stages > schedule.devices else ""


def legend_entries(every: Sequence[Boxes]) -> list[tuple[str, str]]:
    """Return the legend of these charts as (colour, text): kinds, idle time, the meaning of paler colours, lanes."""
    kinds = [kind for kind in palette.COLOURS if any(kind in boxes.kinds for boxes in every)]
    cues = dict.fromkeys(second_cue(boxes.timeline.schedule) for boxes in every)
    lanes = {lane.sort: lane for boxes in every for lane in boxes.lanes}
    return [
        *((palette.COLOURS[kind], palette.TITLES[kind]) for kind in kinds),
        (palette.IDLE, palette.IDLE_TITLE),
        *((palette.shade_colour(kinds[0], 1, 2), cue) for cue in cues if cue),
        *((lane.colour, lane.title) for lane in lanes.values()),
    ]


def title_text(timeline: TimelineColumns) -> str:
    """Return the config's name, if there is one, and the name and sizes of the schedule."""
    sizes = sizes_text(timeline.schedule)
    return sizes if timeline.name is None else f"{timeline.name}: {sizes}"


def without_repeated_names(timelines: Sequence[TimelineColumns]) -> list[TimelineColumns]:
    """Return the timelines, for charts below each other; only the first of successive runs keeps a config's name."""
    names = [None, *(timeline.name for timeline in timelines)]
    return [run.named(None) if run.name == before else run for before, run in zip(names, timelines, strict=False)]


def headline(timeline: TimelineColumns) -> str:
    """Return schedule, sizes, step time and bubble in one line; of several iterations, the steady bubble."""
    if timeline.schedule.iterations > 1:
        return (
            f"{title_text(timeline)}: "
            f"step {seconds_text(iteration_time(timeline))}{short_interval(timeline)}, "
            f"bubble fraction {percent_text(steady_bubble_fraction(timeline))} in the steady part"
        )
    step, whole = iteration_time(timeline), makespan(timeline)
    if_shorter = f", step {seconds_text(step)}" if step < whole else ""
    return (
        f"{title_text(timeline)}: makespan {seconds_text(whole)}{if_shorter}{short_interval(timeline)}, "
        f"bubble fraction {percent_text(bubble_fraction(timeline))}"
    )


def sizes_text(schedule: ScheduleColumns) -> str:
    """Return the name and sizes of a schedule, such as `1f1b, 4 devices, 8 microbatches`."""
    microbatches = schedule.microbatches_of_a_step
    texts = [schedule.name, counted(schedule.devices, "device")]
    if schedule.num_stages != schedule.devices:
        texts.append(counted(schedule.num_stages, "stage"))
    texts.append(counted(microbatches, "microbatch"))
    if schedule.slices > 1:
        texts.append(f"{schedule.slices} slices each")
    if schedule.iterations > 1:
        texts.append(f"{schedule.iterations} iterations")
    return ", ".join(texts)


def kind_letter(kind: int) -> str:
    """Return the letter of a kind in text; an OVERLAP_F_B slot is X."""
    return "X" if kind == Kind.OVERLAP_F_B else KIND_NAMES[kind]
