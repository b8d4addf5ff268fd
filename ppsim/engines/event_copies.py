"""Copies to host memory and back in the event model: one process a copy, one line a device and way."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator

import simpy

from ppsim.plan.resolve import Plan


class CopyStreams:
    """The OFFLOADs and RELOADs of each device; each waits for the one before it, a RELOAD for its OFFLOAD too."""

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env = env
        self.unposted: list[deque[tuple[int, int]]] = [deque() for _ in range(plan.schedule.devices)]
        self.seconds: list[float] = []
        self.copied: list[simpy.Event] = []
        self.needed_first: list[list[int]] = []
        self.of_row: dict[int, simpy.Event] = {}
        copies = plan.copies
        if copies is not None:
            self.seconds = copies.seconds.tolist()
            self.copied = [env.event() for _ in self.seconds]
            waits = zip(copies.behind.tolist(), copies.origin.tolist(), strict=True)
            self.needed_first = [[other for other in both if other >= 0] for both in waits]
            of_row = zip(copies.user.tolist(), self.copied, strict=True)
            self.of_row = {user: copied for user, copied in of_row if user >= 0}
            for number, (device, before) in enumerate(zip(copies.device, copies.before.tolist(), strict=True)):
                self.unposted[device].append((before, number))
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
        self.start[number] = self.env.now
        yield self.env.timeout(self.seconds[number])
        self.end[number] = self.env.now
        self.copied[number].succeed()
