"""Clocks of ranks: one host shares one; across hosts the offset is taken from the fastest round trip."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from validation.environment import host_name

ROUNDS = 64


@dataclass(frozen=True)
class Clocks:
    """How a rank's clock relates to that of rank 0.

    Attributes
    ----------
    offset : seconds to add to a local time to get rank 0's
    hop : seconds of the fastest message to rank 0 and back, halved (0 on rank 0)
    method : "same host" or "round trip"
    """

    offset: float
    hop: float
    method: str


def measure_clocks(control: dist.ProcessGroup, rank: int, world: int) -> Clocks:
    """Ping-pong each rank with rank 0 in turn; on one host the monotonic clock is shared and the offset is 0."""
    hosts: list[str] = [""] * world
    dist.all_gather_object(hosts, host_name(), group=control)
    mine = Clocks(0.0, 0.0, "same host")
    for other in range(1, world):
        if rank == 0:
            _answer(other, control)
        elif rank == other:
            offset, hop = _ask(control)
            mine = Clocks(0.0, hop, "same host") if hosts[0] == hosts[rank] else Clocks(offset, hop, "round trip")
    return mine


def _ask(control: dist.ProcessGroup) -> tuple[float, float]:
    best = (float("inf"), 0.0)
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        asked = time.monotonic()
        dist.send(stamp, 0, group=control)
        dist.recv(stamp, 0, group=control)
        answered = time.monotonic()
        best = min(best, (answered - asked, float(stamp) - (asked + answered) / 2))
    return best[1], best[0] / 2


def _answer(other: int, control: dist.ProcessGroup) -> None:
    stamp = torch.zeros(1, dtype=torch.float64)
    for _ in range(ROUNDS):
        dist.recv(stamp, other, group=control)
        stamp[0] = time.monotonic()
        dist.send(stamp, other, group=control)
