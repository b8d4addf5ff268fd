"""The bubble ledger: every idle second of every device under the one cause that it was waiting for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import KIND_NAMES
from ppsim.analysis.bubbles import device_idle
from ppsim.analysis.gaps import PHASES, WAITING, Gaps, idle_at_ends
from ppsim.base.host import need, require_memory
from ppsim.base.immutable import EqualColumns
from ppsim.base.short_repr import short_repr
from ppsim.base.tables import aligned
from ppsim.base.units import percent_text, seconds_text
from ppsim.engines.running import run_for_timeline
from ppsim.plan.resolve import Plan, repriced
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas


_KINDS = len(KIND_NAMES)
BYTES_AN_ENTRY = 64  # while waits are summed
_AT_A_TIME = 2**22  # waits, until those of the same pair and kind are summed
_MOST_LISTED, _LEAST_LISTED = 2**18, 64  # of all devices, and of each


@dataclass(frozen=True, eq=False)
class Blame(EqualColumns):
    """Seconds that devices waited for others to compute: an entry for each pair and kind that occurs, in that order.

    Attributes
    ----------
    waiting, holder, kind : int64
        The waiting device, or its group; the device that computed; the code of the kind that it computed.
    seconds : float64
    """

    waiting: np.ndarray
    holder: np.ndarray
    kind: np.ndarray
    seconds: np.ndarray

    def of(self, waiting: int) -> list[tuple[int, str, float]]:
        """(device, kind, seconds) that a device or group waited for, longest first."""
        some = slice(*np.searchsorted(self.waiting, [waiting, waiting + 1]))
        longest = np.argsort(-self.seconds[some], kind="stable")
        holder, kind, seconds = (column[some][longest].tolist() for column in (self.holder, self.kind, self.seconds))
        return [(*wait[:1], KIND_NAMES[wait[1]], wait[2]) for wait in zip(holder, kind, seconds, strict=True)]


def blame(run: TimelineColumns, factor: np.ndarray, group: np.ndarray | None = None) -> Blame:
    """Sum the waits of a run by waiting device, or by `group` of each device, int64; `factor` scales each device's."""
    sums = _Sums(run.schedule.devices, factor, np.arange(run.schedule.devices) if group is None else group)
    Gaps(run, sums.add).walk()
    return sums.blame()


def longest_waits(run: TimelineColumns, factor: np.ndarray) -> Iterator[tuple[int, int | None, str, float]]:
    """(waiting device, device that computed, kind, seconds) of all waits, each device's longest first.

    Where there are thousands of devices each lists its longest only; the others are summed by kind, with None in place
    of the device that computed. Memory then grows with devices, not with pairs of them.
    """
    devices = run.schedule.devices
    most, block = max(_MOST_LISTED // devices, _LEAST_LISTED), max(_AT_A_TIME // devices, 1)
    for first in range(0, devices, block):
        some = slice(first, first + block)
        sums = _Sums(devices, factor, np.arange(devices))
        Gaps(run, sums.add, some).walk()
        found = sums.blame()
        for device in range(devices)[some]:
            waits = found.of(device)
            yield from ((device, *wait) for wait in waits[:most])
            others: dict[str, float] = {}
            for _, kind, seconds in waits[most:]:
                others[kind] = others.get(kind, 0.0) + seconds
            yield from ((device, None, kind, seconds) for kind, seconds in others.items())


class _Sums:
    """Waits as they are reported, summed by cell: the number of (group, holder, kind)."""

    def __init__(self, devices: int, factor: np.ndarray, group: np.ndarray):
        self.devices, self.factor, self.group = devices, factor, group
        self.cells, self.seconds = [np.empty(0, np.int64)], [np.empty(0)]
        self.waits = 0

    def add(self, waiting: np.ndarray, holder: np.ndarray, kind: np.ndarray, seconds: np.ndarray) -> None:
        """Take in one report of `Gaps`."""
        some = seconds > 0
        self.cells.append(((self.group[waiting] * self.devices + holder) * _KINDS + kind)[some])
        self.seconds.append((seconds * self.factor[waiting])[some])
        self.waits += len(waiting)
        if self.waits > max(_AT_A_TIME, 2 * len(self.cells[0])):
            self._sum_up()

    def _sum_up(self) -> None:
        entries = sum(map(len, self.cells))
        require_memory(
            f"whom each of {self.devices} devices waited for, {entries} pairs or more,", entries * BYTES_AN_ENTRY,
            "use fewer devices, or read the ledger's table, which sums groups of devices",
        )  # fmt: skip
        cells, cell = np.unique(np.concatenate(self.cells), return_inverse=True)
        self.seconds = [np.bincount(cell, np.concatenate(self.seconds), len(cells))]
        self.cells, self.waits = [cells], 0

    def blame(self) -> Blame:
        """All that was taken in."""
        self._sum_up()
        pair, kind = np.divmod(self.cells[0], _KINDS)
        return Blame(*np.divmod(pair, self.devices), kind, self.seconds[0])


MOST_DEVICES = 16  # rows; of more devices, neighbours are summed
MOST_BLAMED = 3  # named for each device
_SEEN = 1e-9  # of all idle time; less is rounding


def ledger_text(
    ledger: Mapping[str, np.ndarray],
    definitions: Mapping[str, str],
    blame: Blame,
    waited: Mapping[str, np.ndarray],
) -> str:
    """A row a device and a column a cause that occurs, with totals and shares; what they mean; who was waited for.

    `ledger` has seconds by cause, one entry a device, and `definitions` says what each cause is; `waited` is that of
    `ppsim.analysis.ledger.Ledger`, and `blame` that of the groups of `device_groups`.
    """
    idle = np.sum(list(ledger.values()), axis=0)
    total = float(idle.sum())
    if total <= 0:
        return "no device is ever idle\n"
    causes = [cause for cause, seconds in ledger.items() if seconds.sum() > _SEEN * total]
    groups = device_groups(len(idle))
    columns = [ledger[cause] for cause in causes] + [idle]
    rows = [("idle time", *causes, "all")]
    rows += [(_name(group), *(_text(column[group], total) for column in columns)) for group in groups]
    rows.append(("all devices", *(_text(column, total) for column in columns)))
    rows.append(("share", *(percent_text(float(column.sum()) / total) for column in columns)))
    lines = [*aligned(rows, left=1), "", *aligned([(cause, definitions[cause]) for cause in causes])]
    blamed = [_blame_line(_name(group), blame.of(number), total) for number, group in enumerate(groups)]
    if any(blamed):
        lines += ["", "waited for another device to compute:", *_phase_lines(waited, total), *filter(None, blamed)]
    return "\n".join(lines) + "\n"


def device_groups(devices: int) -> list[np.ndarray]:
    """The devices of each row of the table."""
    return np.array_split(np.arange(devices), min(devices, MOST_DEVICES))


def _phase_lines(waited: Mapping[str, np.ndarray], total: float) -> list[str]:
    """When the devices waited, all together: a line a phase in which one did."""
    rows = [(f"  {phase}", _text(seconds, total), PHASES[phase]) for phase, seconds in waited.items()]
    return aligned([row for row, seconds in zip(rows, waited.values(), strict=True) if seconds.sum() > _SEEN * total])


def _text(seconds: np.ndarray, total: float) -> str:
    return seconds_text(float(seconds.sum()) if seconds.sum() > _SEEN * total else 0.0)


def _name(group: np.ndarray) -> str:
    return f"device {group[0]}" if len(group) == 1 else f"devices {group[0]}-{group[-1]}"


def _blame_line(name: str, blamed: list[tuple[int, str, float]], total: float) -> str:
    """Whom these devices waited for, longest first."""
    named = [
        f"device {holder} in {kind} {seconds_text(seconds)}"
        for holder, kind, seconds in blamed
        if seconds > _SEEN * total
    ]
    more = len(named) - MOST_BLAMED
    return f"  {name}: {', '.join(named[:MOST_BLAMED])}{f', and {more} more' * (more > 0)}" if named else ""


CAUSES = {
    "fill": "before a device's first action: the first microbatch is on its way to it",
    "drain": "after all that a device does in the step, until the last device is done",
    "dependency": "another device was computing what the next action needs",
    "recompute": "another device was computing again (R) before what the next action needs",
    "imbalance": "the part of dependency that goes away when all stages are equal",
    "transfer": "a transfer was on its way: latency and bytes",
    "queue": "a transfer stood behind others, or behind one that could not start",
    "sharding": "weights were gathered or gradients reduced, and no computing hid it",
    "reload": "an activation was on its way back, or had to leave to make room, and no computing hid it",
    "optimizer": "the optimizer step ran, or waited for the other devices' gradients",
    "jitter": "the part of dependency, transfer and queue that goes away without noise",
    "overhead": "all that the next action needs was there: the cost of starting it, in measured runs",
}


@dataclass(frozen=True, eq=False)
class Ledger(EqualColumns, Mapping[str, np.ndarray]):
    """Idle seconds by cause: `ledger["fill"]` has one entry a device; the causes sum to `run.device_idle`.

    `fill` and `drain` lie before a device's first and after its last action. The time between two actions is walked
    back from the later one: while the transfer that came last was on its way it is `transfer`; while that stood in a
    queue, posted at both ends, `queue`; before that, while the device whose action made it ready was computing,
    `dependency`; and where that device was idle itself, whatever it was waiting for in turn.

    Attributes
    ----------
    seconds : mapping cause -> float64 (devices,)
        In the order of `CAUSES`, which defines each; never negative.
    waited : mapping phase -> float64 (devices,)
        The same seconds by what the waiting device was at: `warm-up`, before its first backward; `steady`; `cool-down`,
        after its last forward. With `fill` and `drain`, warm-up and cool-down are the bubble of the textbooks.
    run : TimelineColumns
        Whose idle time this is.
    factor : float64 (devices,)
        By which the gaps of each device are rounded to its idle time.
    """

    seconds: dict[str, np.ndarray]
    waited: dict[str, np.ndarray]
    run: TimelineColumns
    factor: np.ndarray

    __repr__ = short_repr

    @cached_property
    def blame(self) -> Blame:
        """Idle seconds of each device by the device that was computing meanwhile and the kind of what it computed.

        A timed fused slot is OVERLAP_F_B. Sums to all that was waited for computing: dependency, recompute, imbalance
        and their part of jitter. Where nearly every device waits for nearly every other, as with a microbatch for each
        thousand devices, it has an entry for each pair; it is worked out when it is asked for.
        """
        return blame(self.run, self.factor)

    def __getitem__(self, cause: str) -> np.ndarray:
        return self.seconds[cause]

    def __iter__(self) -> Iterator[str]:
        return iter(self.seconds)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def total(self) -> np.ndarray:
        """Idle seconds of each device, all causes together."""
        return np.sum(list(self.seconds.values()), axis=0)

    def blamed(self, device: int) -> list[tuple[int, str, float]]:
        """(device, kind, seconds) that `device` waited for, longest first."""
        return self.blame.of(device)

    def table(self) -> str:
        """Idle time by device and cause as text with units, and whom each device waited for."""
        groups = device_groups(self.run.schedule.devices)
        group = np.repeat(np.arange(len(groups)), [len(devices) for devices in groups])
        return ledger_text(self.seconds, CAUSES, blame(self.run, self.factor, group), self.waited)

    def to_dict(self) -> dict[str, Any]:
        """Seconds by cause, in all and per device, with definitions, and who is blamed, as plain Python values.

        Of thousands of devices each lists those that it waited for longest; the others are one entry a kind, with None
        as `waited_for_device`.
        """
        names = ("device", "waited_for_device", "kind", "seconds")
        return {
            "schema": "ppsim.ledger/1",
            "unit": "seconds",
            "definitions": dict(CAUSES),
            "total": {cause: float(seconds.sum()) for cause, seconds in self.items()},
            "devices": {cause: seconds.tolist() for cause, seconds in self.items()},
            "waited": {phase: seconds.tolist() for phase, seconds in self.waited.items()},
            "blame": [dict(zip(names, wait, strict=True)) for wait in longest_waits(self.run, self.factor)],
        }

    def to_frame(self) -> pandas.DataFrame:
        """Seconds as a table with one row a device and one column a cause (needs pandas)."""
        pandas = need("pandas", "a table of a ledger")
        return pandas.DataFrame(self.seconds, index=pandas.RangeIndex(self.run.schedule.devices, name="device"))

    def _repr_html_(self) -> str:
        return f"<pre>{self.table()}</pre>"


def ledger(run: TimelineColumns) -> Ledger:
    """Partition the idle time of a run by cause; see `Ledger`.

    Jitter and imbalance compare with other runs of the same plan. Jitter is by how much a device's dependency, transfer
    and queue shrink when every action and transfer takes what the costs say (in a measured run: the mean of its kind
    and stage); imbalance by how much its dependency then shrinks further when every action takes the mean of its kind,
    transfers as they are. Neither exceeds what it is a part of.
    """
    gaps = Gaps(run).walk()
    seconds = {cause: np.zeros(run.schedule.devices) for cause in CAUSES}
    seconds.update(idle_at_ends(run, gaps))
    for cause in WAITING:
        seconds[cause] = seconds[cause] + gaps.seconds(cause)
    noiseless = _without_noise(run)
    if _differ(noiseless, run.plan):
        gaps_left = _gaps_under(run, noiseless)
        for cause in ("dependency", "transfer", "queue"):
            _move(seconds, cause, "jitter", seconds[cause] - gaps_left.seconds(cause))
    balanced = replace(noiseless, seconds=averaged(noiseless, _kinds(noiseless)))
    if _differ(balanced, noiseless):
        gaps_left = _gaps_under(run, balanced)
        _move(seconds, "dependency", "imbalance", seconds["dependency"] - gaps_left.seconds("dependency"))
    return _rounded(seconds, gaps)


def _gaps_under(run: TimelineColumns, plan: Plan) -> Gaps:
    """The gaps of the same run under another plan."""
    engine, times = run_for_timeline(plan, "auto" if run.engine == "measured" else run.engine)
    return Gaps(TimelineColumns(plan, run.table, run.costs, times, engine=engine)).walk()


def _move(seconds: dict[str, np.ndarray], source: str, target: str, amount: np.ndarray) -> None:
    moved = np.clip(amount, 0.0, seconds[source])
    seconds[source] = seconds[source] - moved
    seconds[target] = seconds[target] + moved


def _without_noise(run: TimelineColumns) -> Plan:
    """The run's plan at the costs it was priced by; of a measured run at the means of its own times."""
    plan, schedule = run.plan, run.schedule
    if run.engine != "measured":
        return repriced(plan, run.table)
    groups = _kinds(plan) * schedule.num_stages + schedule.stage
    return replace(
        plan,
        seconds=averaged(plan, groups),
        transfer_seconds=averaged(replace(plan, seconds=plan.transfer_seconds), np.where(plan.remote, groups, -1)),
    )


def _kinds(plan: Plan) -> np.ndarray:
    """A number for each kind of row: its kind and slice; -1 for the second row of a timed slot, which takes no time."""
    schedule = plan.schedule
    groups = plan.kind * schedule.slices + schedule.microbatch % schedule.slices
    groups[plan.slots.second] = -1
    return groups


def averaged(plan: Plan, groups: np.ndarray) -> np.ndarray:
    """Seconds of each row replaced by the mean of its group."""
    _, group = np.unique(groups, return_inverse=True)
    return (np.bincount(group, plan.seconds) / np.bincount(group))[group]


def _differ(one: Plan, other: Plan) -> bool:
    """Whether two plans differ by more than rounding."""
    return not all(
        np.allclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=0.0)
        for name in ("seconds", "transfer_seconds")
    )


def _rounded(seconds: dict[str, np.ndarray], gaps: Gaps) -> Ledger:
    """The ledger that sums to what is idle; gaps differ from it by rounding, and where measured actions overlap."""
    idle, total = device_idle(gaps.run), np.sum(list(seconds.values()), axis=0)
    seconds["overhead"] = np.where(total > 0, seconds["overhead"], idle)
    factor = np.divide(idle, total, out=np.ones_like(total), where=total > 0)
    return Ledger(
        {cause: column * factor for cause, column in seconds.items()},
        dict(zip(PHASES, gaps.waited * factor, strict=True)),
        gaps.run,
        factor,
    )
