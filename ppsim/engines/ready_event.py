"""Dispatch "ready" in the event model: free devices choose after everything that ends at a time has ended."""

from __future__ import annotations

import numpy as np
import simpy

from ppsim.base.immutable import list_numbers
from ppsim.engines.event_resources import LAST, Arrival
from ppsim.plan.dispatch import Choices


class ReadyModel:
    """Devices that choose from their lists; running fills `order` and, by slot, `start`."""

    def __init__(self, choices: Choices):
        devices = len(choices.limit)
        self.choices = choices
        self.env = simpy.Environment()
        self.left = [list(range(*choices.offsets[device : device + 2])) for device in range(devices)]
        self.device = list_numbers(choices.offsets).tolist()
        self.waits = choices.waits.tolist()
        self.held = [0.0] * devices
        self.free = [True] * devices
        self.order: list[list[int]] = [[] for _ in range(devices)]
        self.start = [0.0] * len(self.device)
        self.choosing = False

    def run(self) -> np.ndarray:
        """Return the slots of all devices that ran, in the order in which they ran, device by device."""
        self.choose_later()
        self.env.run()
        return np.concatenate([np.array(slots, np.int64) for slots in self.order])

    def choose_later(self) -> None:
        """Let free devices choose after everything else of this time has happened."""
        if not self.choosing:
            self.choosing = True
            choice = Arrival(self.env)
            choice.callbacks.append(self.choose)
            choice.after(0.0, LAST)

    def choose(self, _: simpy.Event) -> None:
        """Start on each free device its first slot that is ready and leaves memory for the rest."""
        self.choosing = False
        for device, free in enumerate(self.free):
            slot = self.first_ready(device) if free else None
            if slot is not None:
                self.begin(device, slot)

    def first_ready(self, device: int) -> int | None:
        """Return the first remaining slot of a device that is ready and leaves memory for the rest, or None."""
        choices, limit = self.choices, self.choices.limit[device]
        level, peak = self.held[device], 0.0  # if the slots before `slot` ran in list order
        for slot in self.left[device]:
            adds, net = choices.adds[slot], choices.net[slot]
            if self.waits[slot] == 0 and self.held[device] + adds <= limit and peak + net <= limit:
                return slot
            peak = max(peak, level + adds)
            level += net
        return None

    def begin(self, device: int, slot: int) -> None:
        """Start a slot; until its end the device holds what the slot leaves at its end."""
        self.left[device].remove(slot)
        self.order[device].append(slot)
        self.start[slot] = self.env.now
        self.free[device] = False
        self.held[device] += self.choices.net[slot]
        ended = self.env.timeout(float(self.choices.seconds[slot]))
        ended.callbacks.append(lambda _: self.end(device, slot))

    def end(self, device: int, slot: int) -> None:
        """End a slot: free the device and send the result to those that wait for it."""
        self.free[device] = True
        self.send_result(slot)
        self.choose_later()

    def send_result(self, slot: int) -> None:
        """Send the result of a slot or collective to those that wait for it."""
        for edge in range(*self.choices.first_edge[slot : slot + 2]):
            target = int(self.choices.target[edge])
            sent = self.env.timeout(float(self.choices.delay[edge]))
            sent.callbacks.append(lambda _, target=target: self.arrive(target))

    def arrive(self, slot: int) -> None:
        """Count one more input of a slot or collective; a collective begins with the last."""
        self.waits[slot] -= 1
        if self.waits[slot] > 0:
            return
        if slot >= len(self.device):
            self.send_result(slot)
        elif self.free[self.device[slot]]:
            self.choose_later()
