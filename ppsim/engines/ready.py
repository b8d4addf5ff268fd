"""Dispatch "ready": the order in which devices that choose run their slots (`ppsim.plan.dispatch`), in both engines.

Free devices choose after everything that ends at a time has ended. At 65,536 actions of 1F1B the event model takes over
45 s, the compiled engine 0.05 s.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import simpy

from ppsim.base.compiling import call_compiled, kernel
from ppsim.base.immutable import list_numbers
from ppsim.engines.event import LastOfTime
from ppsim.plan.dispatch import Choices


class ReadyModel:
    """Devices that choose from their lists; running fills `order` and, by slot, `start`."""

    def __init__(self, choices: Choices):
        devices = len(choices.limit)
        self.choices = choices
        self.env = simpy.Environment(0.0)
        self.left = [list(range(*choices.offsets[device : device + 2])) for device in range(devices)]
        self.device = list_numbers(choices.offsets).tolist()
        self.waits = choices.waits.tolist()
        self.held = [0.0] * devices
        self.free = [True] * devices
        self.may_choose = list(range(devices))  # heap of devices for which something has changed since they last chose
        self.order: list[list[int]] = [[] for _ in range(devices)]
        self.start = [0.0] * len(self.device)
        self.last = LastOfTime(self.env)

    def run(self) -> np.ndarray:
        """Return the slots of all devices that ran, in the order in which they ran, device by device."""
        self.last.request(self.choose)
        self.env.run()
        return np.concatenate([np.array(slots, np.int64) for slots in self.order])

    def choose(self) -> None:
        """Start on each free device its first slot that is ready and leaves memory for the rest."""
        while self.may_choose:
            device = heapq.heappop(self.may_choose)
            slot = self.first_ready(device) if self.free[device] else None
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
        self.request_choice(device)

    def request_choice(self, device: int) -> None:
        """Let a device choose after everything else of this time."""
        heapq.heappush(self.may_choose, device)
        self.last.request(self.choose)

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
            self.request_choice(self.device[slot])


# The compiled engine


class ReadyLists(NamedTuple):
    """Input of the kernel: the choices, each slot's device, and by device the minimum `adds` and `net` of its takers.

    A taker is a slot that adds to the memory of its device when it starts.
    """

    choices: Choices
    device: np.ndarray
    min_adds: np.ndarray
    min_net: np.ndarray


class Progress(NamedTuple):
    """State of slots and devices."""

    waits: np.ndarray  # by slot: the number of inputs that it waits for
    begun: np.ndarray  # by slot: True if it has begun
    head: np.ndarray  # by device: the first remaining slot
    held: np.ndarray  # by device: the memory held
    free: np.ndarray  # by device: True if it runs nothing
    position: np.ndarray  # by device: the index of its next slot in `order`
    ready: np.ndarray  # by device and [slot is a taker]: the number of slots that are ready


def ready_order(choices: Choices) -> np.ndarray:
    """Return the slots of all devices that run, in the order in which they run, device by device."""
    offsets, devices, slots = choices.offsets, len(choices.limit), len(choices.row)
    device = list_numbers(offsets)
    takes = choices.adds > 0
    min_adds, min_net = np.full(devices, np.inf), np.full(devices, np.inf)
    np.minimum.at(min_adds, device[takes], choices.adds[takes])
    np.minimum.at(min_net, device[takes], choices.net[takes])
    ready = np.zeros((devices, 2), np.int64)
    at_once = choices.waits[:slots] == 0
    np.add.at(ready, (device[at_once], takes[at_once].astype(np.int64)), 1)
    lists = ReadyLists(choices, device, min_adds, min_net)
    progress = Progress(
        choices.waits.copy(), np.zeros(slots, bool), offsets[:-1].copy(), np.zeros(devices), np.ones(devices, bool),
        offsets[:-1].copy(), ready,
    )  # fmt: skip
    order = np.full(slots, -1)
    call_compiled(run_ready, lists, progress, order)
    return order[order >= 0]


@kernel(allocates=True)
def run_ready(lists, progress, order):
    """Fill `order`: everything that ends at a time ends, then free devices choose, then the next time comes.

    `run_rows` and `run_queues` need lists that are already in order; here the order is the result.
    """
    slots, devices = len(lists.choices.seconds), len(lists.choices.limit)
    events = [(0.0, np.int64(0))]
    events.clear()
    now = 0.0
    while True:
        while len(events) > 0 and events[0][0] == now:
            _, code = heapq.heappop(events)
            if code >= slots:
                arrive(lists.choices.target[code - slots], now, events, lists, progress)
                continue
            progress.free[lists.device[code]] = True
            send_result(code, now, events, lists)
        for device in range(devices):
            slot = first_ready(device, lists, progress) if progress.free[device] else -1
            if slot >= 0:
                begin(device, slot, lists, progress)
                order[progress.position[device]] = slot
                progress.position[device] += 1
                heapq.heappush(events, (now + lists.choices.seconds[slot], np.int64(slot)))
        if len(events) == 0:
            return
        now = events[0][0]


@kernel(allocates=True)
def send_result(slot, now, events, lists):
    """Send the result of a slot or collective to those that wait for it."""
    for edge in range(lists.choices.first_edge[slot], lists.choices.first_edge[slot + 1]):
        heapq.heappush(events, (now + lists.choices.delay[edge], np.int64(len(lists.device) + edge)))


@kernel(allocates=True)
def arrive(slot, now, events, lists, progress):
    """Count one more input of a slot or collective; a collective begins with the last."""
    progress.waits[slot] -= 1
    if progress.waits[slot] > 0:
        return
    if slot >= len(lists.device):
        send_result(slot, now, events, lists)
    else:
        progress.ready[lists.device[slot], 1 if lists.choices.adds[slot] > 0 else 0] += 1


@kernel(allocates=True)
def first_ready(device, lists, progress):
    """Return the first remaining slot of a device that is ready and leaves memory for the rest, or -1.

    The search ends when it has seen all slots that are ready, or when only takers are left and none fits.
    """
    givers, takers = progress.ready[device, 0], progress.ready[device, 1]
    limit, held, slot = lists.choices.limit[device], progress.held[device], progress.head[device]
    level, peak = held, 0.0  # if the slots before `slot` ran in list order
    while givers + takers > 0:
        if not progress.begun[slot]:
            adds, net = lists.choices.adds[slot], lists.choices.net[slot]
            if progress.waits[slot] == 0:
                if held + adds <= limit and peak + net <= limit:
                    return slot
                if adds > 0:
                    takers -= 1
                else:
                    givers -= 1
            peak = max(peak, level + adds)
            level += net
            full = held + lists.min_adds[device] > limit or peak + lists.min_net[device] > limit
            if givers == 0 and full:
                return -1
        slot += 1
    return -1


@kernel(allocates=True)
def begin(device, slot, lists, progress):
    """Remove a slot from its device's list."""
    progress.begun[slot] = True
    progress.free[device] = False
    progress.held[device] += lists.choices.net[slot]
    progress.ready[device, 1 if lists.choices.adds[slot] > 0 else 0] -= 1
    last = lists.choices.offsets[device + 1]
    head = progress.head[device]
    while head < last and progress.begun[head]:
        head += 1
    progress.head[device] = head
