"""The check of what a cost model gives: every column of a CostTable, whoever made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import numpy as np

from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import Check, positive, weight
from ppsim.costs.pairs import LinkRule, WayRule, values_between
from ppsim.costs.table import CostTable, Workload
from ppsim.schedule.columns import ScheduleColumns

ROUNDING = 1e-9
_MAY_BE_NONE = frozenset(
    ("overlap", "overhead", "activation_bytes", "state_bytes", "exchange_seconds", "recompute_bytes",
     "unshard_seconds", "reduce_seconds", "optimizer_seconds",
     "recompute_seconds", "input_fraction", "offload_bytes", "microbatch_scale",
     "vocabulary_seconds", "vocabulary_bytes")
)  # fmt: skip
_FRACTIONS = ("weight_grad_fraction", "slice_fraction", "input_fraction")


def check_table(table: CostTable, schedule: ScheduleColumns) -> None:
    """Refuse a table that does not fit a schedule with a CostError that names column, place, value and a legal one.

    Every column must have the shape that `CostTable` says and hold finite numbers of at least 0, fractions at most 1;
    the slice fractions sum to 1. Ports are checked where both of their columns are given.
    """
    if not isinstance(table, CostTable):
        raise CostError(f"the cost model gave {shown(table)} for a table; return a ppsim.costs.CostTable")
    for name, shape in _shapes(schedule).items():
        column = getattr(table, name)
        if column is None and name in _MAY_BE_NONE:
            continue
        _check_column(name, column, shape, 1.0 if name in _FRACTIONS else np.inf)
    for name in ("offload_latency", "offload_seconds_per_byte", "vocabulary_reduce_seconds"):
        _check_number(name, getattr(table, name))
    if table.vocabulary_statistics_seconds is not None:
        _check_number("vocabulary_statistics_seconds", table.vocabulary_statistics_seconds)
    if table.workload is not None:
        if not isinstance(table.workload, Workload):
            raise CostError(f"workload is {shown(table.workload)}, and must be a ppsim.costs.table.Workload, or None")
        for item in fields(Workload):
            divides = item.name in ("gpus", "peak")
            _check_number(f"workload.{item.name}", getattr(table.workload, item.name), positive if divides else weight)
    if table.offload_switch is not None and not (type(table.offload_switch) is int and table.offload_switch >= 2):
        raise CostError(f"offload_switch is {shown(table.offload_switch)}, and must be a whole number of at least 2")
    total = float(table.slice_fraction.sum())
    if abs(total - 1.0) > ROUNDING:
        slices = schedule.slices
        raise CostError(f"slice_fraction sums to {total:g}; the parts of a microbatch sum to 1, such as {1 / slices:g}")
    if table.link_ports is not None and table.port_capacity is not None:
        _check_ports(table.ways, np.asarray(table.port_capacity), schedule.devices)


def _check_number(name: str, value: object, check: Check = weight) -> None:
    try:
        check(value)
    except ConfigError as wrong:
        raise CostError(f"{name}={wrong}") from None


def _shapes(schedule: ScheduleColumns) -> Mapping[str, tuple[int, ...]]:
    stages, links = (schedule.num_stages,), (schedule.devices, schedule.devices)
    of_stage = (
        "stage_share", "weight_grad_fraction", "activation_bytes", "recompute_bytes", "unshard_seconds",
        "reduce_seconds", "optimizer_seconds", "recompute_seconds", "input_fraction", "vocabulary_bytes",
        "offload_bytes",
    )  # fmt: skip
    return {
        **dict.fromkeys(("seconds", "overhead", "exchange_seconds"), (4, *stages)),
        "overlap": stages * 2,
        **dict.fromkeys(("latency", "seconds_per_byte"), links),
        **dict.fromkeys(("transfer_bytes", "vocabulary_seconds"), (2, *stages)),
        **dict.fromkeys(of_stage, stages),
        "state_bytes": (3, *stages),
        "slice_fraction": (schedule.slices,),
        "microbatch_scale": (schedule.num_stages, schedule.microbatches_of_a_step),
    }


def _check_column(name: str, column: object, shape: tuple[int, ...], largest: float) -> None:
    legal = f"give finite numbers from 0 to 1, such as {1.0 / shape[-1]:g}" if largest == 1.0 else "give such as 1.0"
    if isinstance(column, LinkRule) and column.shape == shape:
        column = values_between(column)
    elif not isinstance(column, np.ndarray) or column.dtype != np.float64 or column.shape != shape:
        found = shown(column)
        if isinstance(column, np.ndarray):
            found = f"of shape {column.shape} and type {column.dtype}"
        raise CostError(
            f"{name} is {found}, but the schedule needs a float64 array of shape {shape}; "
            f"give such as np.full({shape}, {1.0 / shape[-1] if largest == 1.0 else 1.0!r})"
        )
    if not any(column.strides):
        column = column[(slice(1),) * column.ndim]
    if not column.size or (column.min() >= 0 and column.max() <= min(largest, np.finfo(np.float64).max)):
        return
    place = np.argwhere(~((column >= 0) & (column <= largest) & np.isfinite(column)))[0].tolist()
    raise CostError(
        f"{name}{place} is {column[tuple(place)]:g}, and must be a finite number of at least 0"
        f"{' and at most 1' if largest == 1.0 else ''}; {legal}"
    )


def _check_ports(link_ports: np.ndarray | WayRule, capacity: np.ndarray, devices: int) -> None:
    shape = (devices, devices)
    if len(link_ports.shape) != 3 or link_ports.shape[:2] != shape or link_ports.dtype.kind not in "iu":
        raise CostError(
            f"link_ports has shape {link_ports.shape} of {link_ports.dtype}; give whole numbers by [sender, receiver, "
            f"port on the way], here {devices} x {devices} x any"
        )
    if capacity.ndim != 1 or capacity.dtype.kind not in "iu" or np.any(capacity < 1):
        raise CostError("port_capacity must list, for each port, how many transfers it carries at once, at least 1")
    named = link_ports.ports() if isinstance(link_ports, WayRule) else link_ports
    wrong = named[(named < -1) | (named >= len(capacity))]
    if wrong.size:
        raise CostError(
            f"link_ports names port {wrong[0]}; port_capacity has ports 0 to {len(capacity) - 1}, -1 is none"
        )
    if isinstance(link_ports, WayRule):
        return
    in_order = np.sort(link_ports, axis=2)
    twice = (in_order[:, :, 1:] == in_order[:, :, :-1]) & (in_order[:, :, 1:] >= 0)
    if twice.any():
        sender, receiver, _ = np.argwhere(twice)[0]
        raise CostError(f"link_ports names a port twice on the way from device {sender} to {receiver}; name it once")
