"""The bubble ledger: every idle second of every device under the one cause that it was waiting for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import KIND_NAMES, Kind, is_backward
from ppsim.analysis.bubbles import device_idle
from ppsim.analysis.graph import COLLECTIVE, StepGraph, step_graph
from ppsim.base.errors import UnknownNameError, shown
from ppsim.base.host import need, require_memory
from ppsim.base.immutable import EqualColumns, latest_of_each
from ppsim.base.rules import checked_methods, declared, described
from ppsim.base.tables import aligned, even_scale, paragraph
from ppsim.plan.jitter import Jitter, JitteredPlan
from ppsim.plan.resolve import Plan, repriced
from ppsim.timeline import TimelineColumns, timeline_of_plan

if TYPE_CHECKING:
    import pandas

CAUSES = {
    "fill": "before a device's first action",
    "drain": "after a device's last action",
    "dependency": "another device computes what is needed next",
    "recompute": "another device recomputes what is needed next",
    "imbalance": "waits that equal stages would remove",
    "transfer": "a transfer is on its way: latency and bytes",
    "queue": "a transfer waits behind another one",
    "sharding": "weight gathers, gradient reductions",
    "reload": "an activation moves to or from host memory",
    "optimizer": "optimizer step, or wait for others' gradients",
    "jitter": "waits that would go away without noise",
    "overhead": "starting the next action (measured costs)",
}

WAITING = ("dependency", "recompute", "transfer", "queue", "sharding", "reload", "overhead")
_CAUSE = {name: number for number, name in enumerate(WAITING)}
PHASES = {
    "warm-up": "before a device's first backward",
    "steady": "between its first backward and its last forward",
    "cool-down": "after its last forward",
}
_CURSOR = ("row", "device", "begin", "until", "phase")
Report = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


@described
@dataclass(frozen=True, eq=False)
class LedgerColumns(EqualColumns, Mapping[str, np.ndarray]):
    """Idle seconds by cause: `ledger["fill"]` has one entry per device; the causes sum to `run.device_idle`.

    `fill` and `drain` lie before a device's first and after its last action. The time between two actions is traced
    back from the later action. It is `transfer` while the transfer that came last was on its way, and `queue` while
    that transfer was posted at both ends but waited in a queue. Before that it is `dependency` while the device whose
    action made the transfer ready was computing. If that device was idle itself, its own cause counts.

    `waited` has the same seconds by the phase of the waiting device: `warm-up`, before its first backward; `steady`;
    `cool-down`, after its last forward. The bubble of textbooks is fill, drain, warm-up and cool-down together.
    """

    seconds: dict[str, np.ndarray] = declared("by cause, in the order of `CAUSES`, which defines each; never negative")
    waited: dict[str, np.ndarray] = declared("by phase")
    run: TimelineColumns = declared("the run with this idle time")
    factor: np.ndarray = declared("float64 (devices,): rounds the gaps of each device to its idle time")

    @cached_property
    def blame(self) -> Blame:
        """Idle seconds of each device by the device that was computing meanwhile and the kind of its action.

        A timed fused slot is OVERLAP_F_B. The sum is all waiting for computing: dependency, recompute, imbalance and
        their part of jitter. The entries are computed on first access.
        """
        return blame(self.run, self.factor)

    def __getitem__(self, cause: str) -> np.ndarray:
        try:
            return self.seconds[cause]
        except (KeyError, TypeError):
            known = ", ".join(self.seconds)
            raise UnknownNameError(f"{shown(cause)} is not a cause of idle time; use one of: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.seconds)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def total(self) -> np.ndarray:
        """Idle seconds of each device, all causes together."""
        return np.sum(list(self.seconds.values()), axis=0)

    @property
    def by_cause(self) -> dict[str, float]:
        """Idle seconds of each cause, all devices together."""
        return {cause: float(seconds.sum()) for cause, seconds in self.seconds.items()}

    def table(self) -> str:
        """Return idle time by device and cause as text, in one unit, and the longest waits of each device."""
        rows, notes = ledger_parts(self)
        return "\n".join([*aligned(rows, left=1), "", *notes] if notes else rows[0]) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """Return seconds by cause, in total and per device, with definitions, and the blame, as plain Python values."""
        names, devices = ("device", "waited_for_device", "kind", "seconds"), range(self.run.schedule.devices)
        return {
            "schema": "ppsim.ledger/1",
            "unit": "seconds",
            "definitions": dict(CAUSES),
            "total": self.by_cause,
            "devices": {cause: seconds.tolist() for cause, seconds in self.items()},
            "waited": {phase: seconds.tolist() for phase, seconds in self.waited.items()},
            "blame": [
                dict(zip(names, (device, *wait), strict=True)) for device in devices for wait in self.blame.of(device)
            ],
        }

    def to_frame(self) -> pandas.DataFrame:
        """Return seconds as a table with one row per device and one column per cause (needs pandas)."""
        pandas = need("pandas", "a table of a ledger")
        return pandas.DataFrame(self.seconds, index=pandas.RangeIndex(self.run.schedule.devices, name="device"))


def ledger(run: TimelineColumns) -> LedgerColumns:
    """Partition the idle time of a run by cause; see `LedgerColumns`.

    Jitter and imbalance compare with other runs of the same plan. Jitter is the decrease of a device's dependency,
    transfer and queue if nothing is drawn at random (in a measured run: if every action and transfer has the mean
    length of its kind and stage). Devices and links that were set slower stay so. Imbalance is the further decrease of
    its dependency if every action has the mean length of its kind, with unchanged transfers. Neither exceeds the cause
    that contains it.
    """
    gaps = Gaps(run)
    seconds = {cause: np.zeros(run.schedule.devices) for cause in CAUSES}
    seconds.update(idle_at_ends(run, gaps))
    for cause in WAITING:
        seconds[cause] = seconds[cause] + gaps.seconds(cause)
    noiseless = _without_noise(run)
    if _differ(noiseless, run.plan):
        gaps_left = _gaps_under(run, noiseless)
        for cause in ("dependency", "transfer", "queue"):
            _move(seconds, cause, "jitter", seconds[cause] - gaps_left.seconds(cause))
    balanced = replace(noiseless, row_lengths=averaged(noiseless, _kinds(noiseless)))
    if _differ(balanced, noiseless):
        gaps_left = _gaps_under(run, balanced)
        _move(seconds, "dependency", "imbalance", seconds["dependency"] - gaps_left.seconds("dependency"))
    return _rounded(seconds, gaps)


def _gaps_under(run: TimelineColumns, plan: Plan) -> Gaps:
    """Return the gaps of the same run under another plan."""
    engine = "auto" if run.engine == "measured" else run.engine
    return Gaps(timeline_of_plan(TimelineColumns, plan, run.table, run.costs, engine))


def _move(seconds: dict[str, np.ndarray], source: str, target: str, amount: np.ndarray) -> None:
    """Move an amount of the seconds under one cause, at most all of them, to another cause."""
    amount = np.clip(amount, 0.0, seconds[source])
    seconds[source] = seconds[source] - amount
    seconds[target] = seconds[target] + amount


def _without_noise(run: TimelineColumns) -> Plan:
    """Return the run's plan without what was drawn at random; for a measured run at the means of its own times."""
    plan, schedule = run.plan, run.schedule
    if run.engine != "measured":
        noiseless = repriced(plan, run.table)
        fixed = {key: (plan.noise or {}).get(key, {}) for key in ("slow_devices", "slow_links")}
        return JitteredPlan(noiseless, Jitter(**fixed), seed=0).sample(0) if any(fixed.values()) else noiseless
    groups = _kinds(plan) * schedule.num_stages + schedule.stage
    return replace(
        plan,
        row_lengths=averaged(plan, groups),
        transfer_lengths=averaged(replace(plan, row_lengths=plan.transfer_seconds), np.where(plan.remote, groups, -1)),
    )


def _kinds(plan: Plan) -> np.ndarray:
    """Return a number for each row's kind and slice; -1 for the second row of a timed slot, which takes no time."""
    schedule = plan.schedule
    groups = plan.kind * schedule.slices + schedule.microbatch % schedule.slices
    groups[plan.slots.second] = -1
    return groups


def averaged(plan: Plan, groups: np.ndarray) -> np.ndarray:
    """Return for each row the mean seconds of its group."""
    _, group = np.unique(groups, return_inverse=True)
    return (np.bincount(group, plan.seconds) / np.bincount(group))[group]


def _differ(one: Plan, other: Plan) -> bool:
    """Return whether two plans differ by more than rounding."""
    return not all(
        np.allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=0.0)
        for name in ("seconds", "transfer_seconds")
    )


def _rounded(seconds: dict[str, np.ndarray], gaps: Gaps) -> LedgerColumns:
    """Return the ledger scaled to sum to the idle time.

    The gaps differ from the idle time by rounding, or if measured actions overlap.
    """
    idle, total = device_idle(gaps.run), np.sum(list(seconds.values()), axis=0)
    seconds["overhead"] = np.where(total > 0, seconds["overhead"], idle)
    factor = np.divide(idle, total, out=np.ones_like(total), where=total > 0)
    return LedgerColumns(
        {cause: column * factor for cause, column in seconds.items()},
        {phase: waited * factor for phase, waited in zip(PHASES, gaps.waited, strict=True)},
        gaps.run,
        factor,
    )


# Idle time at the ends of devices, and the gaps between actions


class Gaps:
    """Idle seconds between a device's actions, by cause.

    Each gap has a cursor: a row and a time `until`. A round attributes the seconds just before `until` to their causes
    and moves the cursor back, over idle time and a row, up to the beginning of the gap. All cursors move at once.

    `report`, if given, is called each round with columns of waiting device, computing device, kind and seconds.
    """

    def __init__(self, run: TimelineColumns, report: Report | None = None):
        self.run, self.report = run, report
        plan, schedule = run.plan, run.schedule
        self.previous_end, self.kind = previous_ends(run), plan.kind
        self._find_waits(step_graph(run, at_ports=False))
        self.cause = np.full(len(self.kind), _CAUSE["dependency"])
        self.cause[self.kind == Kind.R] = _CAUSE["recompute"]
        before = self.previous_end
        self.row = np.flatnonzero((run.row_start > before) & np.isfinite(before) & ~plan.fused)
        self.device = schedule.device[self.row]
        self.begin, self.until = before[self.row], run.row_start[self.row]
        self.idle = np.zeros((len(WAITING), schedule.devices))  # seconds by cause
        self.phase = _phases(run)[self.row]
        # Seconds that a device waited for another to compute, by the phase of the waiting device.
        self.waited = np.zeros((len(PHASES), schedule.devices))
        while len(self.row):
            self._pass_idle_time()
            self._pass_row()

    def _find_waits(self, graph: StepGraph) -> None:
        """Find what each row waits for, and what makes each transfer ready; collectives count as transfers here."""
        rows, before, after = len(self.kind), graph.before, graph.after
        is_transfer = np.ones(len(graph.end), bool)
        is_transfer[:rows] = False
        is_transfer[2 * rows :] = graph.stream_kind == COLLECTIVE
        # The transfer of each row that ended last, or -1; of equal ones that of the slot's first part.
        needed = np.flatnonzero((after < rows) & is_transfer[before])[::-1]
        self.transfer = latest_of_each(after[needed], graph.end[before[needed]], before[needed], rows)
        self.sent, self.received = graph.start, graph.end
        # The row whose end made each transfer ready, and the host's seconds between the two.
        making = np.flatnonzero((before < rows) & is_transfer[after])
        edge = latest_of_each(after[making], (graph.end[before] + graph.delay)[making], making, len(graph.end))
        self.producer, self.delay = np.where(edge >= 0, before[edge], 0), graph.delay[edge]
        # The last end of the UNSHARDs and copies that each row waits for, or -inf.
        gathered, reloaded = ends = np.full((2, rows), -np.inf)
        needed = np.flatnonzero((after < rows) & (before >= 2 * rows) & ~is_transfer[before])
        way = np.isin(graph.stream_kind[before[needed] - 2 * rows], (Kind.OFFLOAD, Kind.RELOAD)).astype(int)
        np.maximum.at(ends, (way, after[needed]), graph.end[before[needed]])
        self.stream_end = np.maximum(gathered, reloaded)
        self.stream_cause = np.where(reloaded > gathered, _CAUSE["reload"], _CAUSE["sharding"])

    def seconds(self, cause: str) -> np.ndarray:
        """Return the idle seconds of each device under one of `WAITING`."""
        return self.idle[_CAUSE[cause]]

    def _attribute(self, cause: int | np.ndarray, back_to: np.ndarray) -> np.ndarray:
        """Attribute the time from `back_to` (or the gap's beginning) to `until`, and move the cursor to its start."""
        back_to = np.clip(back_to, self.begin, self.until)
        seconds = self.until - back_to
        np.add.at(self.idle, (np.broadcast_to(cause, self.device.shape), self.device), seconds)
        self.until = back_to
        return seconds

    def _keep(self, chosen: np.ndarray) -> None:
        for name in _CURSOR:
            setattr(self, name, getattr(self, name)[chosen])

    def _pass_idle_time(self) -> None:
        """Move from each row over the idle time before it, to the row that ended it; without any, to the row before.

        The time in which the row waited only for an UNSHARD or RELOAD comes first. Then its transfer was on its way, in
        a queue or on the host, and the row that made the transfer ready ran before. If the row waited for no transfer,
        the cursor moves to the row before: a measured action may start late.
        """
        transfer, before = self.transfer[self.row], self.previous_end[self.row]
        arrival = np.where(transfer >= 0, self.received[transfer], -np.inf)
        stream_end = self.stream_end[self.row]
        self._attribute(_CAUSE["overhead"], np.maximum(np.maximum(arrival, stream_end), before))
        until_arrival = np.where(stream_end > arrival, np.maximum(arrival, before), self.until)
        self._attribute(self.stream_cause[self.row], until_arrival)
        waited = (transfer >= 0) & (arrival > before)
        self._attribute(_CAUSE["transfer"], np.where(waited, self.sent[transfer], self.until))
        producer = self.producer[transfer]
        ready = self.run.row_end[producer]
        self._attribute(_CAUSE["queue"], np.where(waited, ready + self.delay[transfer], self.until))
        self._attribute(_CAUSE["overhead"], np.where(waited, ready, self.until))
        self.row = np.where(waited, producer, self.run.plan.slot_of_row[self.row - 1])
        self._keep((waited | np.isfinite(before)) & (self.until > self.begin))

    def _pass_row(self) -> None:
        """Move each cursor from the end of its row to the start."""
        seconds = self._attribute(self.cause[self.row], self.run.row_start[self.row])
        if self.report is not None:
            self.report(self.device, self.run.schedule.device[self.row], self.kind[self.row], seconds)
        np.add.at(self.waited, (self.phase, self.device), seconds)
        self._keep(self.until > self.begin)


def previous_ends(run: TimelineColumns) -> np.ndarray:
    """Return the end of the action before each row on its device; -inf for the first row."""
    ends = np.concatenate([[0.0], run.row_end[:-1]])[run.plan.slot_of_row]
    ends[run.schedule.offsets[:-1]] = -np.inf
    return ends


def _phases(run: TimelineColumns) -> np.ndarray:
    """Return the phase of each row's device before that row, as its index in `PHASES`."""
    schedule, row = run.schedule, np.arange(len(run.row_end))
    backward = is_backward(schedule.kind) | (schedule.kind == Kind.R)
    first_backward = np.minimum.reduceat(np.where(backward, row, len(row)), schedule.offsets[:-1])
    last_forward = np.maximum.reduceat(np.where(schedule.kind == Kind.F, row, -1), schedule.offsets[:-1])
    steady_or_later = 1 + (row > last_forward[schedule.device])
    return np.where(row <= first_backward[schedule.device], 0, steady_or_later)


def idle_at_ends(run: TimelineColumns, gaps: Gaps) -> dict[str, np.ndarray]:
    """Return the seconds of each device under fill, drain, sharding and optimizer.

    Before the first action, sharding is the time by which an UNSHARD ends later than the action's input arrives; the
    rest is fill. After the last action, sharding lasts while gradients are reduced. Then optimizer lasts until the end
    of the optimizer step, under "sync" including the wait for other devices; the rest is drain.
    """
    first = run.schedule.offsets[:-1]
    start, begin = run.row_start[first], run.device_start.min()
    transfer = gaps.transfer[first]
    arrival = np.where(transfer >= 0, gaps.received[transfer], begin)
    gathering = np.clip(gaps.stream_end[first] - np.maximum(arrival, begin), 0.0, start - begin)
    last = run.row_end[run.schedule.offsets[1:] - 1]
    return {
        "fill": start - begin - gathering,
        "sharding": gathering + (run.gradients_ready - last),
        "optimizer": run.device_end - run.gradients_ready,
        "drain": run.device_end.max() - run.device_end,
    }


# Waits by the device that was computing


@checked_methods
@dataclass(frozen=True, eq=False)
class Blame(EqualColumns):
    """Seconds that devices waited for others to compute, sorted by waiting device, computing device and kind."""

    waiting: np.ndarray  # int64: the waiting device, or its group
    holder: np.ndarray  # int64: the device that computed
    kind: np.ndarray  # int64: the code of the kind that it computed
    seconds: np.ndarray  # float64

    def of(self, waiting: int) -> list[tuple[int, str, float]]:
        """Return (device, kind, seconds) of the computing that a device or group waited for, longest first."""
        rows = slice(*np.searchsorted(self.waiting, [waiting, waiting + 1]))
        longest = np.argsort(-self.seconds[rows], kind="stable")
        columns = (column[rows][longest].tolist() for column in (self.holder, self.kind, self.seconds))
        return [(holder, KIND_NAMES[kind], seconds) for holder, kind, seconds in zip(*columns, strict=True)]


def blame(run: TimelineColumns, factor: np.ndarray, group: np.ndarray | None = None) -> Blame:
    """Return the summed waits of a run by waiting device, or by the `group` of each device, int64, in rising order.

    `factor` scales the waits of each device. Raises ConfigError if the sums for all pairs of devices need more memory
    than this machine has.
    """
    devices, kinds = run.schedule.devices, len(KIND_NAMES)
    group = np.arange(devices) if group is None else group
    shape = int(group[-1]) + 1, devices, kinds
    require_memory(
        f"the blame of {devices} devices", 8 * math.prod(shape),
        "use fewer devices, or read the ledger's table, which sums groups of devices",
    )  # fmt: skip
    sums = np.zeros(math.prod(shape))

    def add(waiting: np.ndarray, holder: np.ndarray, kind: np.ndarray, seconds: np.ndarray) -> None:
        """Add one report of `Gaps`."""
        np.add.at(sums, (group[waiting] * devices + holder) * kinds + kind, seconds * factor[waiting])

    Gaps(run, add)
    cells = np.flatnonzero(sums)
    waiting, holder, kind = np.unravel_index(cells, shape)
    return Blame(waiting, holder, kind, sums[cells])


# The ledger as text

MAX_ROWS = 16  # with more devices, neighbours are summed
MAX_BLAMED = 3  # waits that the table names for each device
_SHOWN = 1e-9  # fraction of all idle time; less is rounding


def ledger_parts(found: LedgerColumns) -> tuple[list[list[str]], list[str]]:
    """Return a table of idle time by device and cause, with totals and shares; and notes: definitions and blame."""
    total = float(found.total.sum())
    if total <= 0:
        return [["no device is ever idle"]], []
    named = {cause: seconds for cause, seconds in found.items() if seconds.sum() > _SHOWN * total}
    columns = np.array([*named.values(), found.total])
    groups = np.array_split(np.arange(columns.shape[1]), min(columns.shape[1], MAX_ROWS))
    cells = np.array([columns[:, devices].sum(axis=1) for devices in groups])
    scale, places = even_scale(
        np.where(cells > _SHOWN * total, cells, 0.0).ravel().tolist(), "seconds", float(cells.max())
    )

    def text(seconds: float) -> str:
        return f"{seconds * scale.factor:,.{places}f}"

    rows = [[f"idle time ({scale.symbol})", *named, "all"]]
    rows += [[_name(devices), *map(text, row)] for devices, row in zip(groups, cells, strict=True)]
    rows.append(["all devices", *map(text, columns.sum(axis=1))])
    rows.append(["share (%)", *(f"{100 * seconds / total:.1f}" for seconds in columns.sum(axis=1))])
    notes = aligned([(cause, CAUSES[cause]) for cause in named])
    waits = blame(found.run, found.factor, np.repeat(np.arange(len(groups)), [len(devices) for devices in groups]))
    smallest_shown = max(_SHOWN * total, 0.5 * 10**-places / scale.factor)  # less would be shown as 0
    phases = [(f"  {name}", f"{text(waited.sum())} {scale.symbol}", PHASES[name])
              for name, waited in found.waited.items() if waited.sum() > smallest_shown]  # fmt: skip
    if phases:
        notes += ["", "waited for another device to compute:", *aligned(phases, left={0, 2})]
    for number, devices in enumerate(groups):
        blamed = [f"device {holder} in {kind} {text(seconds)} {scale.symbol}"
                  for holder, kind, seconds in waits.of(number) if seconds > smallest_shown]  # fmt: skip
        rest = f", and {len(blamed) - MAX_BLAMED} more" * (len(blamed) > MAX_BLAMED)
        notes += paragraph(", ".join(blamed[:MAX_BLAMED]) + rest, f"  {_name(devices)}: ") if blamed else []
    return rows, notes


def _name(devices: np.ndarray) -> str:
    return f"device {devices[0]}" if len(devices) == 1 else f"devices {devices[0]}-{devices[-1]}"
