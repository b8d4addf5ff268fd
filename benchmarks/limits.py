"""What the engines are measured against: the limit, a bare compiled replay, and a plain SimPy model."""

from itertools import pairwise

import numpy as np
import simpy

from ppsim.base.compiling import compiled, kernel
from ppsim.plan.resolve import Plan


class Replay:
    """A compiled loop over the lists of a plan that writes ends into memory that is already there: the limit.

    Lengths, sources and places are columns that were made beforehand, so that nothing is left but to follow who waits
    for whom: a device walks its rows until it needs a row that has not run, and whoever runs that puts it back.
    """

    def __init__(self, plan: Plan):
        schedule = plan.schedule
        self.columns = schedule.offsets, plan.source, plan.remote, plan.seconds, plan.transfer_seconds
        self.ends = np.empty(len(plan.seconds))
        self.kernel = compiled(replay)
        self()

    def __call__(self) -> None:
        self.ends.fill(-1.0)
        self.kernel(*self.columns, self.ends)


@kernel(allocates=True)
def replay(offsets, source, remote, seconds, transfer_seconds, ends):
    """Fill `ends`: -1 where a row has not run, -2 - d where device d waits for it (one device at a time can)."""
    devices = len(offsets) - 1
    position, free_at = offsets[:-1].copy(), np.zeros(devices)
    stack, height = np.arange(devices - 1, -1, -1), devices
    while height > 0:
        height -= 1
        device = stack[height]
        row, free = position[device], free_at[device]
        while row < offsets[device + 1]:
            if remote[row]:
                sent = ends[source[row]]
                if sent < 0:
                    ends[source[row]] = -2.0 - device
                    break
                free = max(free, sent + transfer_seconds[row])
            waiting = ends[row]
            free += seconds[row]
            ends[row] = free
            if waiting < -1.0:
                stack[height] = int(-2.0 - waiting)
                height += 1
            row += 1
        position[device], free_at[device] = row, free


def plain_simpy(plan: Plan) -> list[float]:
    """The ends of all rows from a plain SimPy model: one process a device, one event an action, transfers that wait."""
    env = simpy.Environment()
    seconds, source, passing = plan.seconds.tolist(), plan.source.tolist(), plan.transfer_seconds.tolist()
    done, ends = [env.event() for _ in seconds], [0.0] * len(seconds)

    def device(first, last):
        for row in range(first, last):
            if source[row] >= 0:
                if not done[source[row]].processed:
                    yield done[source[row]]
                still_passing = ends[source[row]] + passing[row] - env.now
                if still_passing > 0:
                    yield env.timeout(still_passing)
            yield env.timeout(seconds[row])
            ends[row] = env.now
            done[row].succeed()

    offsets = plan.schedule.offsets.tolist()
    for first, last in pairwise(offsets):
        env.process(device(first, last))
    env.run()
    return ends
