"""Ports: what transfers share, and how many fit through at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.base.immutable import EqualColumns
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True, eq=False)
class Ports(EqualColumns):
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


def make_ports(schedule: ScheduleColumns, table: CostTable) -> Ports | None:
    """The ports of a schedule's transfers, or None where the costs know none."""
    if table.link_ports is None or table.port_capacity is None or not crosses_devices(schedule).any():
        return None
    remote = crosses_devices(schedule)
    of_transfer = np.full((len(remote), table.port_columns.shape[2]), -1, np.int32)
    consumer = np.flatnonzero(remote)
    of_transfer[consumer] = table.port_columns[schedule.device[schedule.source[consumer]], schedule.device[consumer]]
    return Ports(of_transfer, np.asarray(table.port_capacity).astype(np.int64))
