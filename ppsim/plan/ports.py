"""Ports: what transfers share, and how many fit through at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.base.errors import CostError
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True)
class Ports:
    """Which ports each transfer goes through.

    Attributes
    ----------
    of_transfer : int32 (rows, ports on a way)
        By the row that consumes the transfer; -1 where the way has no more ports.
    capacity : int64 (ports,)
        Transfers that a port carries at once, each at its full rate.
    """

    of_transfer: np.ndarray
    capacity: np.ndarray


def make_ports(schedule: ScheduleColumns, table: CostTable, remote: np.ndarray) -> Ports | None:
    """The ports of a schedule's transfers, or None where the costs know none; CostError where they are faulty."""
    if table.link_ports is None or table.port_capacity is None or not remote.any():
        return None
    link_ports, capacity = np.asarray(table.link_ports), np.asarray(table.port_capacity)
    _check_ports(link_ports, capacity, schedule.devices)
    of_transfer = np.full((len(remote), link_ports.shape[2]), -1, np.int32)
    consumer = np.flatnonzero(remote)
    of_transfer[consumer] = link_ports[schedule.device[schedule.source[consumer]], schedule.device[consumer]]
    return Ports(of_transfer, capacity.astype(np.int64))


def _check_ports(link_ports: np.ndarray, capacity: np.ndarray, devices: int) -> None:
    shape = (devices, devices)
    if link_ports.ndim != 3 or link_ports.shape[:2] != shape or link_ports.dtype.kind not in "iu":
        raise CostError(
            f"link_ports has shape {link_ports.shape} of {link_ports.dtype}; give whole numbers by [sender, receiver, "
            f"port on the way], here {devices} x {devices} x any"
        )
    if capacity.ndim != 1 or capacity.dtype.kind not in "iu" or np.any(capacity < 1):
        raise CostError("port_capacity must list, for each port, how many transfers it carries at once, at least 1")
    if np.any((link_ports < -1) | (link_ports >= len(capacity))):
        wrong = link_ports[(link_ports < -1) | (link_ports >= len(capacity))][0]
        raise CostError(f"link_ports names port {wrong}; port_capacity has ports 0 to {len(capacity) - 1}, -1 is none")
    in_order = np.sort(link_ports, axis=2)
    twice = (in_order[:, :, 1:] == in_order[:, :, :-1]) & (in_order[:, :, 1:] >= 0)
    if twice.any():
        sender, receiver, _ = np.argwhere(twice)[0]
        raise CostError(f"link_ports names a port twice on the way from device {sender} to {receiver}; name it once")
