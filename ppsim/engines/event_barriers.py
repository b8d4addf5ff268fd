"""Collectives of an output layer in the event model: each begins when its rows and the one before it have ended."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from ppsim.plan.resolve import Plan


class BarrierStreams:
    """The barriers of a plan; a device posts that its rows have ended, and a row waits for the end of its barrier."""

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env = env
        self.feeds: dict[int, int] = {}
        self.of_row: dict[int, simpy.Event] = {}
        self.seconds: list[float] = []
        self.behind = plan.schedule.offsets[:-1].tolist()  # the first row of each device that has not been posted
        barriers = plan.barriers
        if barriers is not None and plan.barrier_seconds is not None:
            self.seconds = plan.barrier_seconds.tolist()
            self.following = barriers.following.tolist()
            self.waits = (barriers.first[1:] - barriers.first[:-1]).tolist()
            for one in filter(lambda one: one >= 0, self.following):
                self.waits[one] += 1
            self.passed = [env.event() for _ in self.seconds]
            self.feeds = dict(zip(barriers.producer.tolist(), barriers.of_producer.tolist(), strict=True))
            self.of_row = {row: self.passed[one] for row, one in enumerate(barriers.needs.tolist()) if one >= 0}
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def needed(self, row: int, end: int) -> list[simpy.Event]:
        """What the slot of rows `row` to `end` waits for."""
        return [self.of_row[part] for part in range(row, end) if part in self.of_row]

    def post(self, device: int, row: int) -> None:
        """Count the rows of a device below `row`, which have ended; the last of a barrier's begins it."""
        for ended in range(self.behind[device], row):
            barrier = self.feeds.get(ended, -1)
            if barrier >= 0:
                self._count_off(barrier)
        self.behind[device] = row

    def _count_off(self, barrier: int) -> None:
        """One more of what a barrier waits for has ended."""
        self.waits[barrier] -= 1
        if self.waits[barrier] == 0:
            self.start[barrier] = self.env.now
            self.end[barrier] = self.env.now + self.seconds[barrier]
            self.env.process(self._pass(barrier))

    def _pass(self, barrier: int) -> Generator[simpy.Event]:
        yield self.env.timeout(self.seconds[barrier])
        self.passed[barrier].succeed()
        if self.following[barrier] >= 0:
            self._count_off(self.following[barrier])
