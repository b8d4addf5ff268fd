"""A timeline as columns of boxes, the source of all charts: text, matplotlib, plotly and the viewer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.base.immutable import as_class, distinct
from ppsim.base.units import counted, time_unit
from ppsim.plan.jitter import RANDOM
from ppsim.plan.resolve import repriced
from ppsim.plots import palette, scale
from ppsim.plots.lanes import FILLS, STEPS, TITLES, LaneSpans, Spans, band, lane_spans
from ppsim.plots.palette import Theme, mixed
from ppsim.plots.scale import APART, DIGIT, LETTER, LOWEST_DETAIL, LOWEST_NUMBER, NEARLY, number_size
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns

_MINOR = 0.01  # of a device's time: transfers and lanes that take less are not among a title's derived costs
SECOND, REVERSE = "second stage of the device", "enters at the other end"  # what marks mean
_SLOW = 3  # slow devices that a title names
_EVEN = 0.02  # of a box: one this close to it is equal to it
_NUMBERED = 0.75  # of a device's boxes of a kind: if fewer hold a number, none has one


@dataclass(frozen=True)
class Boxes(Spans):
    """The boxes of a chart, one per action. An OVERLAP_F_B slot is one box if it is fused, else two.

    A fused slot has the stage, microbatch and kind of its first part.
    """

    timeline: TimelineColumns
    row: np.ndarray  # int64: row of the box in the schedule; the first of the two rows of a fused slot
    slot: np.ndarray  # bool: True for a fused OVERLAP_F_B slot
    microbatch: np.ndarray  # int32
    kind: np.ndarray  # int8
    # local, reverse: int32, bool: number of the stage among the device's stages of one direction, 0 for the first;
    # True if the microbatch enters at the other end of the pipeline. The marks of a box show both.
    local: np.ndarray
    reverse: np.ndarray
    high: float = np.inf  # pixels: height of a row
    reserved: frozenset[str] | None = None  # sorts of lanes with space in the rows of all charts of a picture
    apart: float = APART  # part of a row's height that lies between its boxes and those of the next row
    # of all charts of a picture, which look alike; 0: its own. Seconds: smallest median box; pixels per second: largest
    # scale at which a chart mixes its colours
    narrowest: float = 0.0
    mixing: float = 0.0
    sliced: bool = True  # numbers have slices; not beside a schedule without them

    def in_rows(self, pixels: float) -> Boxes:
        """Return the boxes as rows of this height show them, with their cached properties, which hold for both."""
        return as_class(Boxes, self, high=pixels, apart=APART if pixels < LOWEST_DETAIL else self.apart)

    @property
    def plain(self) -> bool:
        """True for low rows, which show actions alone: no lanes, and slots in the mean of their two colours."""
        return self.high < LOWEST_DETAIL

    @cached_property
    def median(self) -> float:
        """Median seconds of the boxes that take time; 0 if none does."""
        long = self.length[self.length > 0]
        return float(np.median(long)) if len(long) else 0.0

    @cached_property
    def period(self) -> float:
        """Seconds after which stages usually repeat an action; those of the median box if none does."""
        found, (_, after) = [0.0], self.repetitions
        for kind in distinct(self.kind).tolist():
            apart = after[(self.kind == kind) & ~np.isnan(after)]
            found.append(float(np.quantile(apart, 2 / 3, method="nearest")) if len(apart) else 0.0)
        return max(found) or self.median

    @cached_property
    def repetitions(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds between the begins of each box and of the last, and next, box of its kind and stage; nan: none."""
        (order, same), found = self._by_stage, np.full((2, len(self.kind)), np.nan)
        found[0, order[1:]] = found[1, order[:-1]] = np.where(same, np.diff(self.start[order]), np.nan)
        return found[0], found[1]

    @cached_property
    def _by_stage(self) -> tuple[np.ndarray, np.ndarray]:
        """The boxes of each device by kind and stage, and whether each but the first is like the one before it."""
        name = self.kind * np.int64(self.timeline.schedule.num_stages) + self.stage
        order = np.lexsort((name, self.device))
        return order, (np.diff(name[order]) == 0) & (np.diff(self.device[order]) == 0)

    @cached_property
    def is_even(self) -> bool:
        """True if most boxes are as long as the last one of their kind and stage; jitter makes them differ."""
        order, same = self._by_stage
        change, length = np.diff(self.length[order]), self.length[order][1:]
        return bool(2 * np.sum(same & (np.abs(change) <= _EVEN * length)) >= np.sum(same))

    @cached_property
    def offsets(self) -> np.ndarray:
        """Offsets by device: device d owns boxes `offsets[d]:offsets[d + 1]`, in time order."""
        return np.searchsorted(self.device, np.arange(self.timeline.schedule.devices + 1))

    @cached_property
    def locals(self) -> int:
        """Maximum number of stages per device and direction."""
        return int(self.local.max(initial=0)) + 1

    @cached_property
    def kinds(self) -> list[Kind]:
        """Kinds that occur, in the order of the legend."""
        present = set(distinct(self.kind).tolist())
        return [kind for kind in palette.TITLES if kind in present]

    def kinds_of_parts(self, half: int) -> np.ndarray:
        """Return the kind of each box (int8); for a fused slot, that of its first (0) or second (1) part."""
        return np.where(self.slot, self.timeline.schedule.kind[self.row + (half if self.slot.any() else 0) * self.slot],
                        self.kind)  # fmt: skip

    def stages_of_parts(self, half: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `local` and `reverse` of each box; for a fused slot, those of its first (0) or second (1) part."""
        if not (half and self.slot.any()):
            return self.local, self.reverse
        local, reverse = local_stage(self.timeline.schedule)
        return local[self.row + self.slot], reverse[self.row + self.slot]

    def is_marked(self, half: int) -> np.ndarray:
        """Return which boxes have a mark of direction (bool), or of a later stage if there is but one direction."""
        local, reverse = self.stages_of_parts(half)
        return reverse if reverse.any() else local > 0

    def has_marks(self, second: float) -> np.ndarray:
        """Return which boxes of a still have space for marks (bool): all but the narrowest of a kind, or none of it."""
        wide = self.length * second
        usual = {kind: np.median(wide[self.kind == kind]) for kind in distinct(self.kind).tolist()}
        with_space = [kind for kind in usual if usual[kind] >= scale.NARROWEST_MARK]
        return np.isin(self.kind, with_space) & (wide >= scale.NARROWEST_GAP)

    @cached_property
    def step_begins(self) -> np.ndarray:
        """Index of each device's first box of every iteration but the first."""
        schedule = self.timeline.schedule
        if schedule.iterations == 1:
            return np.empty(0, np.int64)
        iteration = self.microbatch // (schedule.slices * schedule.microbatches_of_a_step)
        name = self.device.astype(np.int64) * schedule.iterations + iteration
        _, first = np.unique(name, return_index=True)
        return first[iteration[first] > 0]

    def parts(self, chosen: np.ndarray) -> Iterator[tuple[Kind, np.ndarray, tuple[float, float]]]:
        """Yield each kind, its boxes among `chosen` (bool), and the top and bottom of the band that they fill.

        A fused slot appears twice: its first part fills the upper half of the band, its second part the lower half.
        """
        for half, slot in ((0, False), (0, True), (1, True)):
            kinds, mine = self.kinds_of_parts(half), chosen & (self.slot == slot)
            for kind in distinct(kinds[mine]).tolist():
                yield Kind(kind), np.flatnonzero(mine & (kinds == kind)), halves(self.band)[half] if slot else self.band

    @cached_property
    def every_lane(self) -> list[LaneSpans]:
        """Lanes of the gathers, reductions, copies, collectives and optimizer steps that take time."""
        return lane_spans(self.timeline)

    @property
    def lanes(self) -> list[LaneSpans]:
        """The lanes that rows show."""
        return [one for one in self.every_lane if not (self.plain and one.has_band)]

    @property
    def sorts(self) -> frozenset[str]:
        """Sorts of the lanes that have space in a row; others lie upon its boxes."""
        is_own = self.reserved is None or self.plain
        return frozenset(lane.sort for lane in self.lanes) if is_own else self.reserved or frozenset()

    @property
    def major_lanes(self) -> frozenset[str]:
        """Sorts of the lanes that take more than `_MINOR` of the step on a device."""
        return frozenset(lane.sort for lane in self.lanes if _takes(lane.device, lane.length, self.timeline) >= _MINOR)

    @property
    def divided(self) -> bool:
        """True if rows have lanes at their edges, or slots in two halves, and so need more height."""
        return self.band != band(()) or bool(self.slot.any())

    @property
    def band(self) -> tuple[float, float]:
        """Top and bottom of the boxes, downwards from the middle of a device's row, in heights of a row."""
        return band(self.sorts)

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
        """Return the microbatch of a row of the schedule, with the slice if all charts have slices, such as 3.1."""
        schedule = self.timeline.schedule
        microbatch, piece = divmod(int(schedule.microbatch[row]), schedule.slices)
        return f"{microbatch}.{piece}" if schedule.slices > 1 and self.sliced else str(microbatch)

    @cached_property
    def usual(self) -> dict[tuple[Kind, bool], np.ndarray]:
        """Median seconds of each device's boxes of a kind, nan without one; parts of fused slots (True) are apart."""
        found = dict[tuple[Kind, bool], np.ndarray]()
        for slot, half in ((False, 0), (True, 0), (True, 1)):
            kinds, lit = self.kinds_of_parts(half), (self.length > 0) & (self.slot == slot)
            for kind in distinct(kinds[lit]).tolist():
                mine = np.flatnonzero(lit & (kinds == kind))
                mine = mine[np.lexsort((self.length[mine], self.device[mine]))]
                device, first, count = np.unique(self.device[mine], return_index=True, return_counts=True)
                medians = found.setdefault((Kind(kind), slot), np.full(self.timeline.schedule.devices, np.nan))
                medians[device] = self.length[mine[first + count // 2]]
        return found

    def numbers(
        self, second: float, tall: float, digit: float = DIGIT, lettered: bool = False
    ) -> dict[tuple[Kind, bool], tuple[np.ndarray, str]]:
        """Return by kind the size of its boxes' numbers, 0 without one, and the letter before them.

        Boxes that hold the longest number of the chart have numbers, if nearly all of their kind and device do, unless
        most devices or one whose usual box is half as wide as the widest would have none. If `lettered`, the letter of
        the kind is before the numbers of all boxes that hold one, or of none if one has no space for it. A box that is
        nearly as wide as its device's usual one counts as that. All numbers have one size.
        """
        found = self._sizes(second, tall, digit, 0.0)
        if lettered:
            with_letters = self._sizes(second, tall, digit, 1.0 + LETTER * (Kind.W in self.kinds))  # kinds are alike
            lettered = all(np.array_equal(size > 0, with_letters[kind] > 0) for kind, size in found.items())
            found = with_letters if lettered else found
        least = min((float(size[size > 0].min()) for size in found.values() if size.any()), default=0.0)
        return {(kind, slot): (np.minimum(size, least), kind_letter(kind) * lettered)
                for (kind, slot), size in found.items()}  # fmt: skip

    def _sizes(self, second: float, tall: float, digit: float, letter: float) -> dict[tuple[Kind, bool], np.ndarray]:
        """Return by kind the size of its boxes' numbers, with `letter` characters before them."""
        found = dict[tuple[Kind, bool], np.ndarray]()
        for (kind, slot), usual in self.usual.items() if tall >= LOWEST_NUMBER else ():
            mine = (self.length > 0) & (self.slot == slot) & ((self.kind == kind) | slot)
            own = np.where(mine, usual[self.device], np.nan)
            wide = np.where(np.abs(self.length - own) < NEARLY * own, own, self.length) * (mine * second)
            high, characters = tall / (1 + slot), self._digits + letter
            number = number_size(characters, wide, high, digit)
            having = mine & (10 * self.length >= own)  # without those of a stage that takes nearly no time
            having, holding = (np.bincount(self.device[some], minlength=len(usual)) for some in (having, number > 0))
            holds = number_size(characters, usual * second, high, digit) > 0
            holds &= holding >= _NUMBERED * having  # single numbers looked like a code
            number *= holds[self.device]
            number *= 2 * holds.sum() >= (usual > 0).sum() and holds[2 * usual >= np.nanmax(usual)].all()
            found[kind, slot] = number
        return found

    @cached_property
    def _digits(self) -> int:
        """Characters of the longest number."""
        first = np.unique(self.timeline.schedule.microbatch, return_index=True)[1]
        return max((len(self.number(row)) for row in first.tolist()), default=1)

    def title(self, box: int) -> str:
        """Return the name of an action, and of its tower if the model has several, such as `0F2 of encoder`."""
        towers, schedule, row = self.timeline.table.towers, self.timeline.schedule, self.row[box]
        stage, microbatch = schedule.prefetched.T
        ahead = (stage > schedule.stage[row]) & (microbatch == schedule.microbatch[row])
        later = ", for the next step" if ahead.any() and schedule.kind[row] == Kind.F else ""
        return f"{self.name(box)} of {towers[self.stage[box]]}{later}" if towers else self.name(box)


def halves(edges: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the upper half of a band, for the first part of a slot, and the lower half, for the second."""
    middle = sum(edges) / 2
    return (edges[0], middle), (middle, edges[1])


def make_boxes(timeline: TimelineColumns) -> Boxes:
    """Return the boxes of a timeline, device by device in time order."""
    schedule, plan = timeline.schedule, timeline.plan
    row = plan.first_rows
    local, reverse = local_stage(schedule)
    kind = plan.kind[row].astype(np.int8)
    start = timeline.row_start[row]
    spans = schedule.device[row], schedule.stage[row], start - float(timeline.device_start.min())
    length, is_slot = timeline.row_end[row] - start, kind == Kind.OVERLAP_F_B
    return Boxes(*spans, length, timeline, row, is_slot, schedule.microbatch[row], kind, local[row], reverse[row])


def local_stage(schedule: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of each row's stage among its device's stages of one direction (int32), and its direction.

    The device that runs the first forward of a microbatch gives its direction: false for the lowest such device.
    """
    enters = (schedule.stage == 0) & (schedule.kind == Kind.F)
    first_device = int(schedule.device[enters].min(initial=schedule.devices))
    direction = np.zeros(schedule.microbatches, bool)
    direction[schedule.microbatch[enters]] = schedule.device[enters] != first_device
    reverse = direction[schedule.microbatch]
    stages = max(schedule.num_stages, 1)
    group = schedule.device.astype(np.int64) * 2 + reverse
    used = distinct(group * stages + schedule.stage)
    first_of_group = np.searchsorted(used, np.arange(2 * schedule.devices) * stages)
    number = np.searchsorted(used, group * stages + schedule.stage)
    return (number - first_of_group[group]).astype(np.int32), reverse


@dataclass(frozen=True)
class LegendEntry:
    """An entry of a legend: its words and its symbol."""

    # "kind", "slot" (in halves), "plain" (a slot without halves), "idle", "stage" and "reverse" (marks), "lane",
    # "cause", "steps"; "mixed" and "low" have no symbol
    sort: str
    text: str
    kind: Kind | None = None  # kind of the symbol
    lane: str | None = None  # sort of the lane, or the cause of idle time

    def swatch(self, theme: Theme) -> list[tuple[float, float, float, float, str]]:
        """Return the rectangles of the symbol: left, top, width and height in a square of 12 pixels, and colour."""
        if self.lane is not None:
            colour = {**theme.lanes, **theme.causes}[self.lane]
            top, tall = (3, 5) if self.sort == "lane" and self.lane not in (STEPS, FILLS) else (0, 12)
            return [(0, top, 12, tall, colour), *[(0, 0, 2, 12, theme.text)] * (self.lane == STEPS)]
        halves = theme.kinds[Kind.F], theme.kinds[Kind.B]
        if self.sort == "slot":
            return [(0, 0, 12, 6, halves[0]), (0, 6, 12, 6, halves[1])]
        if self.sort == "plain":
            return [(0, 0, 12, 12, mixed((half, 0.5) for half in halves))]
        if self.sort in ("low", "mixed"):
            return []
        if self.kind is None:
            line = [(5, 0, 2, 12, theme.text)] if self.sort == "steps" else []
            return [(0, 0, 12, 12, theme.idle), *line]
        mark = (1, 8 if self.sort == "stage" else 2, 10, 2, theme.on[self.kind])
        return [(0, 0, 12, 12, theme.kinds[self.kind]), *[mark] * (self.sort in ("stage", "reverse"))]


def legend_entries(every: Sequence[Boxes], marked: Mapping[str, Kind], until: float = np.inf) -> list[LegendEntry]:
    """Return the legend of what these charts draw up to `until` seconds: kinds, idle time, marks, lanes.

    `marked` has a kind whose boxes show marks of a later "stage", of "reverse", "longer" ones and "full" ones, if one
    does, and one whose boxes are too narrow, "bare". The last entry names the lanes that low rows leave out.
    """
    drawn = {kind for boxes in every for kind in distinct(boxes.kind[boxes.start < until]).tolist()}
    kinds = [kind for kind in palette.TITLES if kind in drawn]
    slot = "plain" if all(boxes.plain for boxes in every) else "slot"
    found = [LegendEntry(slot if kind == Kind.OVERLAP_F_B else "kind", palette.TITLES[kind], kind) for kind in kinds]
    if any(bubble_fraction(boxes.timeline) > 0 for boxes in every):
        found.append(LegendEntry("idle", palette.IDLE_TITLE))
    longer = "" if "longer" not in marked else ": longer line in wide actions" if "full" in marked else ": longer line"
    stage = f"later stage{longer}" if any(boxes.locals > 2 for boxes in every) else SECOND
    stage += " in wide actions" * ("bare" in marked and "wide" not in stage)
    words = {"stage": stage, "reverse": REVERSE}
    found += [LegendEntry(sort, text, marked[sort]) for sort, text in words.items() if sort in marked]
    if any((boxes.start[boxes.step_begins] < until).any() for boxes in every):
        found.append(LegendEntry("steps", "start of an iteration"))
    lanes = {lane.sort: lane.title for boxes in every for lane in boxes.lanes if lane.start.min() < until}
    found += [LegendEntry("lane", lanes[sort], lane=sort) for sort in TITLES if sort in lanes]
    hidden = {lane.sort: lane.title for boxes in every for lane in boxes.every_lane
              if lane.start.min() < until and lane.sort not in lanes}  # fmt: skip
    names = ", ".join(hidden[sort] for sort in TITLES if sort in hidden)
    return [*found, LegendEntry("low", f"rows too low for {names}")] if names else found


def device_labels(timeline: TimelineColumns, word: str = "") -> list[str]:
    """Return a label for each device: its number after `word`, or after the name of its tower if it runs only one."""
    schedule, names = timeline.schedule, [word] * timeline.schedule.devices
    towers = np.array(timeline.table.towers, object)
    for device in range(schedule.devices if len(towers) else 0):
        own = set(towers[schedule.stage[schedule.offsets[device] : schedule.offsets[device + 1]]])
        names[device] = own.pop() if len(own) == 1 else word
    return [f"{name} {device}".lstrip() for device, name in enumerate(names)]


def axis_of(labels: Sequence[str]) -> str:
    """Return the name of the axis of devices; empty if its labels have names of their own."""
    return "device" * (labels[0] == "0")


def title_text(timeline: TimelineColumns) -> str:
    """Return the config's name, if there is one, and the name and sizes of the schedule."""
    return ": ".join(filter(None, [timeline.name, sizes_text(timeline.schedule)]))


def common_title(timelines: Sequence[TimelineColumns]) -> str:
    """Return what timelines have in common: the name of their config, and their schedule or its sizes."""
    every = {sizes_text(one.schedule) for one in timelines}
    sizes = {(one.schedule.devices, one.schedule.microbatches_of_a_step) for one in timelines}
    names = {one.name for one in timelines if one.name is not None} - {one.schedule.name for one in timelines}
    devices, microbatches = min(sizes)
    text = f"{counted(devices, 'device')}, {counted(microbatches, 'microbatch')}"
    text = every.pop() if len(every) == 1 else text if len(sizes) == 1 else counted(len(timelines), "timeline")
    return ": ".join([*(names if len(names) == 1 else ()), text])


def costs_text(every: Sequence[Boxes]) -> str:
    """Return the usual seconds of each kind of action, of transfers and of lanes: `F 1–1.6 s · transfer 0.1 s`.

    They are a range if stages differ, without those that take nearly no time, and medians if times of a stage do.
    They are per stage if devices have several, but of a whole device if schedules differ in the number of stages.
    Derived transfers and lanes that take less than 1 % of a device's time are left out. Jitter follows the times
    without it.
    """
    stages_per_device = [one.timeline.schedule.num_stages / one.timeline.schedule.devices for one in every]
    per_device, usual, differ = len({*stages_per_device}) > 1, dict[str, list[float]](), False
    for boxes, stages in zip(every, stages_per_device, strict=True):
        for name, times, stage in _timed_parts(boxes, stages if per_device else 1.0):
            lit = np.flatnonzero(times > 0)
            order = lit[np.lexsort((times[lit], stage[lit]))]
            _, first, count = np.unique(stage[order], return_index=True, return_counts=True)
            medians = times[order][first + count // 2]
            differ |= bool(np.any(np.abs(times[order] - np.repeat(medians, count)) > 0.02 * times[order]))
            usual.setdefault(name, []).extend(medians[10 * medians >= medians.max(initial=0.0)].tolist())
    names = dict[tuple[bool, str], list[str]]()
    every_time = [time for times in usual.values() for time in times] or [0.0]
    common = time_unit(max(makespan(boxes.timeline) for boxes in every))
    if min(every_time) * common.factor < 0.099:  # the axis' unit does not fit all
        common = time_unit(max(every_time))
    kinds = [kind.name for kind in palette.TITLES]
    for name in [*filter(usual.get, kinds), *(one for one in usual if usual[one] and one not in kinds)]:
        low, high = min(usual[name]), max(usual[name])
        unit = common if high * common.factor > 0.099 else time_unit(high)
        ends = (low, high) if high > 1.02 * low else (float(np.median(usual[name])),)
        digits = 2 if name == "transfer" else 3
        texts = dict.fromkeys(f"{float(f'{end * unit.factor:.{digits}g}'):g}" for end in ends)
        names.setdefault((name in kinds, f"{'–'.join(texts)} {unit.symbol}"), []).append(name)
    actions, others = ([f"{', '.join(of)} {text}".replace("OVERLAP_F_B", "F + B") for (own, text), of in names.items()
                        if own == is_action] for is_action in (True, False))  # fmt: skip
    noise = {key: value for boxes in every for key, value in (boxes.timeline.plan.noise or {}).items()}
    slow = [one for one in noise.get("slow_devices", {}).items() if one[1] != 1]
    others += [f"device {device} takes {factor:g} x as long" for device, factor in slow[:_SLOW]]
    others += [f"jitter of {name} {100 * noise[name]:.3g} %" for name in RANDOM if noise.get(name)]
    part = "per device: " if per_device else "per stage: " if stages_per_device[0] > 1 else ""
    actions = [part + ", ".join(actions)] if part else actions
    return "median " * differ + " · ".join([*actions, *others])


def _timed_parts(boxes: Boxes, factor: float) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, seconds and stages of each kind, and of transfers and lanes unless they take little time.

    The seconds of actions are multiplied by `factor`.
    """
    timeline, length = boxes.timeline, boxes.length
    seconds = np.where(timeline.plan.remote, timeline.transfer_end - timeline.transfer_start, 0.0)
    if timeline.plan.noise:
        plain = repriced(timeline.plan, timeline.table)
        length, seconds = plain.seconds[boxes.row], np.where(plain.remote, plain.transfer_seconds, 0.0)
    for kind in boxes.kinds:
        yield kind.name, length * factor * (boxes.kind == kind), boxes.stage
    lanes = {re.split(" of | to ", one.title)[0]: (one.length, one)
             for one in boxes.every_lane if one.sort != FILLS}  # fmt: skip
    least = _MINOR * hasattr(timeline.costs, "stages")  # derived costs have many
    for name, (times, columns) in {"transfer": (seconds, timeline.schedule), **lanes}.items():
        if not _takes(columns.device, times, timeline) < least:
            yield name, times, columns.stage


def _takes(device: np.ndarray, seconds: np.ndarray, timeline: TimelineColumns) -> float:
    """Return the largest fraction of the step that these seconds take on a device."""
    return float(np.bincount(device, seconds).max(initial=0.0)) / (makespan(timeline) or 1.0)


def block_names(timelines: Sequence[TimelineColumns]) -> list[str]:
    """Return the schedules' names; equal names get what distinguishes the timelines: config or sizes."""
    names = [one.schedule.name for one in timelines]
    if len(set(names)) == len(names):
        return names
    configs = [one.name or "" for one in timelines]
    if len(set(configs)) == len(configs) and all(configs):
        return [f"{config}: {name}" for config, name in zip(configs, names, strict=True)]
    return [sizes_text(one.schedule) if names.count(one.schedule.name) > 1 else one.schedule.name for one in timelines]


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
