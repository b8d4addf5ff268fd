"""Dispatch "ready" in the event model: at each moment, when all that ends has ended, free devices choose."""

from __future__ import annotations

import numpy as np
import simpy
from simpy.events import EventPriority

from ppsim.base.arrays import list_of_rows
from ppsim.plan.dispatch import Choices

LAST = 2  # a priority behind SimPy's own: after everything else that happens at the same time


class ReadyModel:
    """Devices that choose from their lists; `order` and `start` fill up as they do, by slot."""

    def __init__(self, choices: Choices):
        devices = len(choices.limit)
        self.choices = choices
        self.env = simpy.Environment()
        self.left = [list(range(*choices.offsets[device : device + 2])) for device in range(devices)]
        self.device = list_of_rows(choices.offsets).tolist()
        self.waits = choices.waits.tolist()
        self.held = [0.0] * devices
        self.free = [True] * devices
        self.order: list[list[int]] = [[] for _ in range(devices)]
        self.start = [0.0] * len(self.device)
        self.choosing = False

    def run(self) -> np.ndarray:
        """The slots of all devices that ran, in the order in which they did, device by device."""
        self.choose_later()
        self.env.run()
        return np.concatenate([np.array(slots, np.int64) for slots in self.order])

    def choose_later(self) -> None:
        """Let free devices choose once everything else of this moment has happened."""
        if not self.choosing:
            self.choosing = True
            moment = simpy.Event(self.env)
            moment._ok, moment._value = True, None
            moment.callbacks.append(self.choose)
            self.env.schedule(moment, EventPriority(LAST), 0.0)

    def choose(self, _: simpy.Event) -> None:
        """Each free device starts its first slot that is ready and leaves room."""
        self.choosing = False
        for device, free in enumerate(self.free):
            slot = self.first_ready(device) if free else None
            if slot is not None:
                self.begin(device, slot)

    def first_ready(self, device: int) -> int | None:
        """The first slot left of a device that is ready and after which the rest still has room."""
        choices, limit = self.choices, self.choices.limit[device]
        level, most = self.held[device], 0.0  # of the slots before the one looked at
        for slot in self.left[device]:
            adds, net = choices.adds[slot], choices.net[slot]
            if self.waits[slot] == 0 and self.held[device] + adds <= limit and most + net <= limit:
                return slot
            most = max(most, level + adds)
            level += net
        return None

    def begin(self, device: int, slot: int) -> None:
        """Start a slot; what it holds is counted until its end as at its start."""
        self.left[device].remove(slot)
        self.order[device].append(slot)
        self.start[slot] = self.env.now
        self.free[device] = False
        self.held[device] += self.choices.net[slot]
        ended = self.env.timeout(float(self.choices.seconds[slot]))
        ended.callbacks.append(lambda _: self.end(device, slot))

    def end(self, device: int, slot: int) -> None:
        """Free the device and hand the slot's result to those that wait for it."""
        self.free[device] = True
        self.hand_on(slot)
        self.choose_later()

    def hand_on(self, slot: int) -> None:
        """Send what a slot or collective makes to those that wait for it."""
        for edge in range(*self.choices.first_edge[slot : slot + 2]):
            target = int(self.choices.target[edge])
            sent = self.env.timeout(float(self.choices.delay[edge]))
            sent.callbacks.append(lambda _, target=target: self.arrive(target))

    def arrive(self, slot: int) -> None:
        """One of the things that a slot or collective waits for has come; a collective begins with the last."""
        self.waits[slot] -= 1
        if self.waits[slot] > 0:
            return
        if slot >= len(self.device):
            self.hand_on(slot)
        elif self.free[self.device[slot]]:
            self.choose_later()
