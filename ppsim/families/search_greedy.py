"""Greedy list scheduling of F, I and W under a memory limit, one stage a device."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.table import CostTable
from ppsim.schedule.blocks import Block, occurrence, run

F, I, W = int(Kind.F), int(Kind.I), int(Kind.W)  # noqa: E741 - the field's letter for the input gradient
WAIT = -1
ROUNDING = 1e-9  # shares that sum up to a limit may differ from it by this much, times by this part of the longest


@dataclass(frozen=True)
class StageTimes:
    """What the search knows of the costs, one entry a device (of its one stage).

    Attributes
    ----------
    forward, input_grad, weight_grad : list of seconds
    forward_transfer, backward_transfer : list of seconds
        Of F's result to the next device, and of I's to the one before.
    share, kept : list of float
        Activations that F adds, in device shares, and the part of them that lives until W.
    """

    forward: list[float]
    input_grad: list[float]
    weight_grad: list[float]
    forward_transfer: list[float]
    backward_transfer: list[float]
    share: list[float]
    kept: list[float]

    @classmethod
    def equal(cls, p: int) -> StageTimes:
        """F = I = W = 1 s, free transfers, W frees all."""
        ones, zeros = [1.0] * p, [0.0] * p
        return cls(ones, ones, ones, zeros, zeros, ones, ones)

    @classmethod
    def from_table(cls, table: CostTable) -> StageTimes:
        """The true times of each stage; stage s runs on device s."""
        stages = np.arange(len(table.stage_share))
        ahead, back = np.minimum(stages + 1, stages[-1]), np.maximum(stages - 1, 0)
        transfers = (
            table.latency[stages, peer] + table.transfer_bytes[row] * table.seconds_per_byte[stages, peer]
            for row, peer in ((0, ahead), (1, back))
        )
        columns = (*table.seconds[[F, I, W]], *transfers, table.stage_share, table.weight_grad_fraction)
        return cls(*(column.tolist() for column in columns))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.forward)


class Progress:
    """How far each device of a one-stage pipeline has come, and when what it needs arrives.

    Attributes, one entry a device
    ------------------------------
    forwards, inputs, weights : int
        F, I and W done; each kind runs in microbatch order.
    live : float
        Activations held, in device shares.
    began, free : float
        Start of the first action and end of the last, seconds.
    forward_arrivals, input_arrivals : list of seconds
        When the next F's and I's inputs are there, as far as their producers have started.
    kinds : bytearray
        Kind of each action so far.
    """

    def __init__(self, times: StageTimes, m: int):
        p = times.devices
        self.times = times
        self.m = m
        self.forwards, self.inputs, self.weights = [0] * p, [0] * p, [0] * p
        self.live, self.began, self.free = [0.0] * p, [math.inf] * p, [0.0] * p
        self.forward_arrivals: list[list[float]] = [[0.0] * m, *([] for _ in range(p - 1))]
        self.input_arrivals: list[list[float]] = [[] for _ in range(p)]
        self.kinds = [bytearray() for _ in range(p)]

    @property
    def span(self) -> float:
        """Largest time of one device from its first start to its last end, seconds."""
        return max(end - start for start, end in zip(self.began, self.free, strict=True))

    @property
    def makespan(self) -> float:
        """Last end over all devices, seconds; the first start is 0."""
        return max(self.free)

    def forward_arrival(self, d: int) -> float:
        """When device d's next F has its input; inf where its producer has not started or no F is left."""
        done, arrivals = self.forwards[d], self.forward_arrivals[d]
        return arrivals[done] if done < len(arrivals) else math.inf

    def input_arrival(self, d: int) -> float:
        """When device d's next I has its input; inf where its producer has not started or no I is left."""
        done, arrivals = self.inputs[d], self.input_arrivals[d]
        return arrivals[done] if done < len(arrivals) else math.inf

    def perform(self, d: int, kind: int, now: float) -> tuple[int, float]:
        """Run device d's next action of a kind from `now`; returns the device its result goes to, or -1, and when."""
        times = self.times
        if not self.kinds[d]:
            self.began[d] = now
        self.kinds[d].append(kind)
        if kind == F:
            self.forwards[d] += 1
            self.live[d] += times.share[d]
            self.free[d] = end = now + times.forward[d]
            if d + 1 == times.devices:
                self.input_arrivals[d].append(end)
                return -1, end
            arrival = end + times.forward_transfer[d]
            self.forward_arrivals[d + 1].append(arrival)
            return d + 1, arrival
        if kind == W:
            self.weights[d] += 1
            self.live[d] -= times.share[d] * times.kept[d]
            self.free[d] = end = now + times.weight_grad[d]
            return -1, end
        self.inputs[d] += 1
        self.live[d] -= times.share[d] * (1.0 - times.kept[d])
        self.free[d] = end = now + times.input_grad[d]
        if d == 0:
            return -1, end
        arrival = end + times.backward_transfer[d]
        self.input_arrivals[d - 1].append(arrival)
        return d - 1, arrival

    def blocks(self) -> list[Block]:
        """The lists of all devices."""
        kinds = (np.frombuffer(codes, np.uint8).astype(np.int8) for codes in self.kinds)
        return [_block(kind, device) for device, kind in enumerate(kinds)]


def _block(kind: np.ndarray, device: int) -> Block:
    rows = run(Kind.F, device, occurrence(kind))
    return Block(kind, rows.stage, rows.microbatch)


def replay(blocks: list[Block], times: StageTimes, m: int) -> Progress:
    """Run lists as they are, each action as early as it can; the lists do not wait for each other in a cycle."""
    progress = Progress(times, m)
    lists = [bytes(block.kind.astype(np.uint8)) for block in blocks]
    ready = list(range(times.devices))
    while ready:
        d = ready.pop()
        for kind in lists[d][len(progress.kinds[d]) :]:
            arrival = 0.0
            if kind != W:
                arrival = progress.forward_arrival(d) if kind == F else progress.input_arrival(d)
            if arrival == math.inf:
                break
            receiver, _ = progress.perform(d, kind, max(arrival, progress.free[d]))
            if receiver >= 0:
                ready.append(receiver)
    return progress


@dataclass(frozen=True)
class Policy:
    """Switches of the greedy choice.

    Attributes
    ----------
    prefer : "I", "F" or "other"
        What runs where both an F and an I could: "other" is the kind that did not run last.
    hold : "never", "first" or "always"
        Whether an F gives way to an I that would arrive while it runs: never, only to the device's first I, always.
    short_gaps : bool
        Whether a W goes into a gap known to be shorter than it.
    ahead : 0, 1 or 2
        Device r runs at most ahead x (p-r-1) + 1 microbatches ahead of its I; 0: the memory alone decides.
    make_room : bool
        Whether a W goes before an I when an F waits for memory.
    """

    prefer: str
    hold: str
    short_gaps: bool
    ahead: int
    make_room: bool


# Ordered by what each adds to those before it, over even and uneven stages, latencies and limits of p/4 to m.
POLICIES = (
    Policy("other", "first", False, 0, True),
    Policy("other", "never", True, 0, True),
    Policy("F", "never", False, 1, True),
    Policy("I", "first", True, 0, False),
    Policy("other", "always", False, 0, True),
    Policy("F", "never", True, 1, True),
    Policy("I", "first", False, 2, True),
    Policy("other", "first", True, 0, True),
    Policy("other", "always", False, 1, True),
    Policy("F", "never", False, 2, True),
    Policy("F", "never", True, 1, False),
    Policy("I", "never", False, 0, True),
)


class Greedy:
    """One run of list scheduling: whoever is free takes what its policy likes best among what it could start now."""

    def __init__(self, times: StageTimes, m: int, limits: list[float], policy: Policy):
        p = times.devices
        self.progress = Progress(times, m)
        self.policy = policy
        self.room = [limit - share + ROUNDING for limit, share in zip(limits, times.share, strict=True)]
        self.rounding = ROUNDING * max(*times.forward, *times.input_grad, *times.weight_grad)
        self.last = [F] * p
        self.most_ahead = [policy.ahead * (p - r - 1) + 1 if policy.ahead else m for r in range(p)]

    def run(self) -> Progress:
        """Schedule everything; events are free devices and arrivals, in time order, lower device first."""
        progress = self.progress
        free = progress.free
        events = [(0.0, 0)]
        while events:
            now, d = heapq.heappop(events)
            if free[d] > now:
                continue
            kind, later = self.choose(d, now)
            if kind == WAIT:
                if later < math.inf:
                    heapq.heappush(events, (later, d))
                continue
            if kind != W:
                self.last[d] = kind
            receiver, arrival = progress.perform(d, kind, now)
            heapq.heappush(events, (free[d], d))
            if receiver >= 0 and free[receiver] <= arrival:
                heapq.heappush(events, (arrival, receiver))
        return progress

    def choose(self, d: int, now: float) -> tuple[int, float]:
        """The kind that device d starts now; or WAIT and the time of the next arrival that it knows of."""
        progress, policy = self.progress, self.policy
        done_inputs = progress.inputs[d]
        forward, backward = progress.forward_arrival(d), progress.input_arrival(d)
        has_weight = done_inputs > progress.weights[d]
        if progress.live[d] > self.room[d] or progress.forwards[d] - done_inputs >= self.most_ahead[d]:
            if has_weight and policy.make_room and forward <= now:
                return W, now
            forward = math.inf
        if backward <= now:
            return (self._of_both(d) if forward <= now else I), now
        if forward <= now:
            holds = policy.hold == "always" or (policy.hold == "first" and done_inputs == 0)
            if not holds or backward >= now + progress.times.forward[d] - self.rounding:
                return F, now
            fits = now + progress.times.weight_grad[d] <= backward + self.rounding
            return (W if has_weight and fits else WAIT), backward
        later = min(forward, backward)
        if has_weight and (policy.short_gaps or now + progress.times.weight_grad[d] <= later + self.rounding):
            return W, now
        return WAIT, later

    def _of_both(self, d: int) -> int:
        if self.policy.prefer == "other":
            return F if self.last[d] == I else I
        return I if self.policy.prefer == "I" else F
