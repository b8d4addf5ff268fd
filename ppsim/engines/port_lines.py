"""The lines in which transfers wait before the ports that they share."""

from __future__ import annotations

from collections import deque

from ppsim.plan.streams import Ports


class PortLines:
    """The lines before ports: first come, first served, without overtaking.

    Transfers that become ready at one time join together, each the lines of all its ports at once, in the order of
    `turn`. A transfer starts when it heads all its lines and each of its ports has a free place, which it keeps until
    it ends. No two transfers can therefore wait for each other.
    """

    def __init__(self, ports: Ports, turn: dict[int, int]):
        self.ports_of = [[port for port in row if port >= 0] for row in ports.of_transfer.tolist()]
        self.free = ports.capacity.tolist()
        self.lines: list[deque[int]] = [deque() for _ in self.free]
        self.turn = turn
        self.ready: list[int] = []
        self.changed: list[int] = []

    def leave(self, transfer: int) -> None:
        """Give the places of a transfer that has ended back."""
        for port in self.ports_of[transfer]:
            self.free[port] += 1
            self.changed.append(port)

    def start(self) -> list[int]:
        """Let all that are ready join, and take out what can start."""
        for transfer in sorted(self.ready, key=self.turn.__getitem__):
            for port in self.ports_of[transfer]:
                self.lines[port].append(transfer)
                self.changed.append(port)
        self.ready.clear()
        started = []
        while self.changed:
            line = self.lines[self.changed.pop()]
            if line and self._may_start(line[0]):
                transfer = line[0]
                started.append(transfer)
                for port in self.ports_of[transfer]:
                    self.lines[port].popleft()
                    self.free[port] -= 1
                    self.changed.append(port)
        return started

    def _may_start(self, transfer: int) -> bool:
        return all(self.free[port] and self.lines[port][0] == transfer for port in self.ports_of[transfer])
