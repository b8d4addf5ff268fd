"""What ends a step, in the event model: gradient reductions and optimizer steps as processes of their own."""

from __future__ import annotations

from collections.abc import Generator

import simpy

from ppsim.plan.resolve import Plan


class Ending:
    """A reduction stream a device, and an optimizer step behind it.

    Reductions of a device run one after the other; each waits for the row whose end completes its gradients. An
    optimizer step waits until its device has done all its actions and reductions, under "sync" until all devices have.
    Source of the other, "post-validated": arXiv 2401.10241, section 4.

    Attributes
    ----------
    completed : mapping of row -> event
        To be set off when the row ends.
    reduce_start, reduce_end : lists of seconds, one entry a reduction of the plan
    step_start, step_end : lists of seconds, one entry a device; empty without an optimizer step
    """

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env, self.plan = env, plan
        self.completed: dict[int, simpy.Event] = {}
        self.streams: list[list[tuple[int, int, float]]] = [[] for _ in range(plan.schedule.devices)]
        if plan.reductions is not None:
            columns = (plan.reductions.device, plan.reductions.after, plan.reductions.seconds)
            for number, (device, after, seconds) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
                self.completed[after] = env.event()
                self.streams[device].append((number, after, seconds))
        reductions = sum(map(len, self.streams))
        self.reduce_start, self.reduce_end = [0.0] * reductions, [0.0] * reductions
        self.step_seconds = [] if plan.optimizer_seconds is None else plan.optimizer_seconds.tolist()
        self.step_start, self.step_end = [0.0] * len(self.step_seconds), [0.0] * len(self.step_seconds)

    def follow(self, walks: list[simpy.Process]) -> None:
        """Begin the processes that follow those of the devices."""
        streams = [self.env.process(self.reduce(stream)) for stream in self.streams if stream]
        if not self.step_seconds:
            return
        everything = self.env.all_of([*walks, *streams])
        reduced = iter(streams)
        for device, walk in enumerate(walks):
            own = [walk, next(reduced)] if self.streams[device] else [walk]
            self.env.process(self.step(device, everything if self.plan.optimizer == "sync" else self.env.all_of(own)))

    def reduce(self, stream: list[tuple[int, int, float]]) -> Generator[simpy.Event]:
        """The life of the reduction stream of a device."""
        for number, after, seconds in stream:
            if self.completed[after].callbacks is not None:
                yield self.completed[after]
            self.reduce_start[number] = self.env.now
            yield self.env.timeout(seconds)
            self.reduce_end[number] = self.env.now

    def step(self, device: int, gradients_ready: simpy.Event) -> Generator[simpy.Event]:
        """The optimizer step of a device."""
        yield gradients_ready
        self.step_start[device] = self.env.now
        yield self.env.timeout(self.step_seconds[device])
        self.step_end[device] = self.env.now
