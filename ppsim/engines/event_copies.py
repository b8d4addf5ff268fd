"""Copies to host memory or another device and back in the event model: one process a copy, a line a device and way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import simpy

from ppsim.plan.resolve import Plan


class CopyStreams:
    """The copies of each device; each waits for the one before it, a RELOAD for an OFFLOAD too, then for its switch.

    A copy that could start joins the line of its switch once everything else of the moment has happened: `arbitrate` is
    called to have `start_first` called then.
    """

    def __init__(self, env: simpy.Environment, plan: Plan, arbitrate: Callable[[], None]):
        self.env, self.arbitrate = env, arbitrate
        self.unposted: list[deque[tuple[int, int]]] = [deque() for _ in range(plan.schedule.devices)]
        self.seconds: list[float] = []
        self.copied: list[simpy.Event] = []
        self.needed_first: list[list[int]] = []
        self.of_row: dict[int, simpy.Event] = {}
        self.line_of: list[int] = []
        self.lines: list[deque[simpy.Event]] = []
        self.ready: list[tuple[int, simpy.Event]] = []
        copies = plan.copies
        if copies is not None:
            self.seconds = copies.seconds.tolist()
            self.copied = [env.event() for _ in self.seconds]
            waits = zip(copies.behind.tolist(), copies.after.tolist(), strict=True)
            self.needed_first = [[other for other in both if other >= 0] for both in waits]
            of_row = zip(copies.user.tolist(), self.copied, strict=True)
            self.of_row = {user: copied for user, copied in of_row if user >= 0}
            self.line_of = copies.line.tolist()
            self.lines = [deque() for _ in range(copies.lines)]
            for number, (device, before) in enumerate(zip(copies.device, copies.before.tolist(), strict=True)):
                self.unposted[device].append((before, number))
        self.free = [True] * len(self.lines)
        self.changed: list[int] = []
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def needed(self, row: int, end: int) -> list[simpy.Event]:
        """What the slot of rows `row` to `end` waits for."""
        return [self.of_row[part] for part in range(row, end) if part in self.of_row]

    def post(self, device: int, row: int) -> None:
        """Begin the copies that stand before a row of a device."""
        unposted = self.unposted[device]
        while unposted and unposted[0][0] <= row:
            self.env.process(self.copy(unposted.popleft()[1]))

    def copy(self, number: int) -> Generator[simpy.Event]:
        """The life of a copy."""
        for other in self.needed_first[number]:
            if self.copied[other].callbacks is not None:
                yield self.copied[other]
        line = self.line_of[number]
        if line >= 0:
            turn = self.env.event()
            self.ready.append((number, turn))
            self.arbitrate()
            yield turn
        self.start[number] = self.env.now
        yield self.env.timeout(self.seconds[number])
        self.end[number] = self.env.now
        self.copied[number].succeed()
        if line >= 0:
            self.free[line] = True
            self.changed.append(line)
            self.arbitrate()

    def start_first(self) -> None:
        """Let all that are ready join their lines, lower device first, then what heads a line whose switch is free."""
        for number, turn in sorted(self.ready, key=lambda one: one[0]):
            self.lines[self.line_of[number]].append(turn)
            self.changed.append(self.line_of[number])
        self.ready.clear()
        while self.changed:
            line = self.changed.pop()
            if self.free[line] and self.lines[line]:
                self.free[line] = False
                self.lines[line].popleft().succeed()
