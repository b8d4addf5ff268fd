"""Clocks of ranks: one host shares one; across hosts the offset is taken from the fastest round trip."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from validation.environment import host_name

ROUNDS = 64
USUAL = 0.9  # part of the messages that are no slower than `hop`


@dataclass(frozen=True)
class Clocks:
    """How a rank's clock relates to that of rank 0.

    Attributes
    ----------
    offset : seconds to add to a local time to get rank 0's
    fastest : seconds of the fastest message to rank 0 and back, halved (0 on rank 0); the offset is as exact as this
    hop : the same that nine messages of ten do not exceed
    method : "same host" or "round trip"
    """

    offset: float
    fastest: float
    hop: float
    method: str

    def joined(self, later: Clocks) -> Clocks:
        """What two measurements say together: the offset of the faster round trip, the slower hop."""
        best = min(self, later, key=lambda clocks: clocks.fastest)
        return Clocks(best.offset, best.fastest, max(self.hop, later.hop), best.method)


def measure_clocks(control: dist.ProcessGroup, rank: int, world: int) -> Clocks:
    """Ping-pong each rank with rank 0 in turn; on one host the monotonic clock is shared and the offset is 0."""
    hosts: list[str] = [""] * world
    dist.all_gather_object(hosts, host_name(), group=control)
    mine = Clocks(0.0, 0.0, 0.0, "same host")
    for other in range(1, world):
        if rank == 0:
            _answer(other, control)
        elif rank == other:
            mine = _ask(control)
    if hosts[0] == hosts[rank]:
        return Clocks(0.0, mine.fastest, mine.hop, "same host")
    return mine


def _ask(control: dist.ProcessGroup) -> Clocks:
    trips = []
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        asked = time.monotonic()
        dist.send(stamp, 0, group=control)
        dist.recv(stamp, 0, group=control)
        answered = time.monotonic()
        trips.append((answered - asked, float(stamp) - (asked + answered) / 2))
    trips.sort()
    return Clocks(trips[0][1], trips[0][0] / 2, trips[int(USUAL * (ROUNDS - 1))][0] / 2, "round trip")


def _answer(other: int, control: dist.ProcessGroup) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(stamp, other, group=control)
        stamp[0] = time.monotonic()
        dist.send(stamp, other, group=control)
