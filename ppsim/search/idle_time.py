"""R moved ahead into idle time, and F into the memory that recomputing frees."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import takewhile

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.costs.table import CostTable
from ppsim.engines.ready import ReadyModel
from ppsim.engines.running import makespan_of
from ppsim.plan.dispatch import Choices, in_order, make_choices
from ppsim.plan.holding import ActivationMemory
from ppsim.plan.resolve import Plan, make_plan
from ppsim.schedule.columns import ScheduleColumns

_ROUNDING = 1e-9
_FILLERS = ((Kind.R,), (Kind.R, Kind.F), (Kind.F, Kind.R))  # kinds that go into idle time, the preferred one first


def in_idle_time(
    schedule: ScheduleColumns, table: CostTable, limits: np.ndarray, pull_forwards: bool
) -> ScheduleColumns:
    """Return the lists with each R, and if requested each F, moved ahead into time that its device would be idle.

    The step does not get longer: if no move helps, the lists stay as they are. The schedule is valid, with each R
    directly before its backward. `limits`, float64 (devices,), are the activations that a device may hold, in device
    shares; if its list holds more, the list sets the limit. Raises BuildError if the lists hold fused slots, S or T.
    """
    if schedule.joined.any() or schedule.cuts_vocabulary:
        what = (
            "OVERLAP_F_B slots, which are not torn apart" if schedule.joined.any() else "S or T, which wait for others"
        )
        raise BuildError(
            f"schedule {schedule.name!r} holds {what}; place R directly before its backward, or use another schedule"
        )
    plan = replace(make_plan(schedule, table, "async"), ports=None)
    choices = make_choices(
        plan, table, np.maximum(limits, ActivationMemory(schedule, table, table.stage_share).peaks())
    )
    candidates = [schedule]
    for kinds in _FILLERS if pull_forwards else _FILLERS[:1]:
        order = IdleTimeModel(plan, choices, kinds).run()
        candidates.append(in_order(plan, table, choices, order).schedule)
    return min(candidates, key=lambda made: makespan_of(made, table))


class IdleTimeModel(ReadyModel):
    """Devices that run their lists in order; a waiting device runs a later R or F (a filler) if that delays nothing.

    A filler ends before the input for which the device waits can arrive. Dispatch "ready", which runs the first ready
    row, would start long fillers just before that input arrives and so make steps longer.
    """

    def __init__(self, plan: Plan, choices: Choices, fillers: tuple[Kind, ...]):
        super().__init__(choices)
        self.source = plan.source.tolist()
        self.transfer_seconds = plan.transfer_seconds.tolist()
        self.ends: dict[int, float] = {}
        self.free_at = [0.0] * len(self.free)
        needed, needing = plan.schedule.device[plan.source[plan.remote]], plan.schedule.device[plan.remote]
        self.waiting_for: list[set[int]] = [set() for _ in self.free]  # by device: devices with inputs from it
        for device, other in set(zip(needed.tolist(), needing.tolist(), strict=True)):
            self.waiting_for[device].add(other)
        self.fillers = [
            [[slot for slot in reversed(slots) if plan.schedule.kind[slot] == kind] for kind in fillers]
            for slots in self.left
        ]

    def begin(self, device: int, slot: int) -> None:
        """Start a slot, and store its end; devices that wait for another one now have time for longer fillers."""
        super().begin(device, slot)
        self.ends[slot] = self.free_at[device] = self.env.now + self.choices.seconds[slot]
        for other in self.waiting_for[device]:
            heapq.heappush(self.may_choose, other)

    def first_ready(self, device: int) -> int | None:
        """Return the next slot of the list if it is ready, else a filler, or None."""
        if not self.left[device]:
            return None
        head = self.left[device][0]
        if self.waits[head] == 0:
            return head
        arrival = self.earliest_arrival(head)
        for slots in self.fillers[device]:
            while slots and slots[-1] in self.ends:
                slots.pop()
            if slots and self.fits_before(arrival, device, slots[-1]):
                return slots[-1]
        return None

    def earliest_arrival(self, slot: int) -> float:
        """Return the time before which the input of a slot cannot arrive."""
        source = self.source[slot]
        end = self.ends.get(source)
        if end is None:
            end = max(self.env.now, self.free_at[self.device[source]]) + self.choices.seconds[source]
        return end + self.transfer_seconds[slot]

    def fits_before(self, arrival: float, device: int, slot: int) -> bool:
        """Return whether a slot is ready, ends by `arrival`, and leaves memory for the slots before it in the list."""
        choices, limit, level = self.choices, self.choices.limit[device], self.held[device]
        adds, net = choices.adds[slot], choices.net[slot]
        if self.waits[slot] > 0 or self.env.now + choices.seconds[slot] > arrival + _ROUNDING or level + adds > limit:
            return False
        for earlier in takewhile(lambda other: other != slot, self.left[device]):
            if level + choices.adds[earlier] + net > limit:
                return False
            level += choices.net[earlier]
        return True
