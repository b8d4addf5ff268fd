"""CostTable: the costs of one schedule as columns, which the plan and the measures read; and the check of a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np

from ppsim.base.errors import CostError, shown
from ppsim.base.immutable import EqualColumns, short_repr
from ppsim.base.rules import argument, positive, weight, whole_number
from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True)
class Workload:
    """Size of a step for the model and the devices; throughput and memory limits follow from it."""

    tokens: float  # tokens of one microbatch, summed over all data-parallel copies of the pipeline
    # model FLOPs of one microbatch's forward and backward, of all copies; full s x s attention, no recomputation
    flops: float
    gpus: int  # GPUs of the whole job
    peak: float  # FLOP/s of one GPU, dense
    memory: float  # bytes of one GPU
    masked_flops: float = 0.0  # part of `flops` for pairs of tokens that a causal mask leaves out

    __repr__ = short_repr


@dataclass(frozen=True, eq=False)
class CostTable(EqualColumns):
    """Costs of one schedule, resolved per stage and per pair of devices."""

    # float64 (4, stages): seconds of F, B, I and W of one whole microbatch on each stage; row = code of the kind
    seconds: np.ndarray
    # float64 (stages, stages): seconds of an OVERLAP_F_B slot by [stage of F, stage of B]; None: no fused kernel
    overlap: np.ndarray | None
    # latency, seconds_per_byte: float64 (devices, devices): by [sender, receiver]
    latency: np.ndarray
    seconds_per_byte: np.ndarray
    # float64 (2, stages): bytes that F (row 0) and B or I (row 1) of a stage send for one whole microbatch
    transfer_bytes: np.ndarray
    # float64 (stages,): activations of one microbatch on each stage, in device shares (1/devices of the model)
    stage_share: np.ndarray
    # float64 (stages,): part of those activations that lives until W; I frees the rest
    weight_grad_fraction: np.ndarray
    # float64 (slices,): part of a microbatch's time in each of its slices; sums to 1
    slice_fraction: np.ndarray = field(default_factory=lambda: np.ones(1))
    # float64 (stages,): bytes of one whole microbatch's live activations on each stage; None: no model was given
    activation_bytes: np.ndarray | None = None
    # float64 (3, stages): bytes of weights, gradients and optimizer state of each stage; None: no model was given
    state_bytes: np.ndarray | None = None
    # float64 (3, 2, stages): `state_bytes` of the embedding and of the head; stages of a device share them; None: none
    copied_bytes: np.ndarray | None = None
    workload: Workload | None = None  # None: no model was given
    # float64 (4, stages): part of `seconds` in tensor-, context- and expert-parallel collectives inside actions
    exchange_seconds: np.ndarray | None = None
    # float64 (stages,): bytes that a backward of a whole microbatch adds to activations: recomputed ones, or the loss's
    recompute_bytes: np.ndarray | None = None
    # unshard_seconds, reduce_seconds, optimizer_seconds: float64 (stages,): seconds of gathering a stage's weights,
    # reducing its gradients over the data-parallel copies, and stepping its parameters. None: these are free.
    unshard_seconds: np.ndarray | None = None
    reduce_seconds: np.ndarray | None = None
    optimizer_seconds: np.ndarray | None = None
    host_seconds: float = 0.0  # seconds that each device waits for its host before it steps, if it waits for all others
    # int32 (devices, devices, ports of a pair): ports of a transfer by [sender, receiver]; -1 fills pairs with fewer
    link_ports: np.ndarray | None = None
    # int64 (ports,): transfers that each port carries at once, each at its full rate; None: nothing is shared
    port_capacity: np.ndarray | None = None
    # float64 (4, stages): part of `seconds` that every action takes whole, whatever its size. Each slice of a
    # microbatch takes all of it, and a fused slot, which is one action, the larger one of its two parts. None: 0.
    overhead: np.ndarray | None = None
    # host seconds of each SEND and RECV that a device posts. Its next action and its later posts wait for them. A SEND
    # counts as posted before them, a RECV after them.
    message_overhead: float = 0.0
    # float64 (stages,): seconds of R of one whole microbatch; None: as long as F
    recompute_seconds: np.ndarray | None = None
    # float64 (stages,): part of an activation that a stored input holds, from which R recomputes it; None: 0
    input_fraction: np.ndarray | None = None
    # offload_latency, offload_seconds_per_byte: costs of a copy between a device and its host's memory, one way
    offload_latency: float = 0.0
    offload_seconds_per_byte: float = 0.0
    # float64 (stages,): bytes of one whole microbatch that an OFFLOAD moves; None: `activation_bytes`, if known
    offload_bytes: np.ndarray | None = None
    # number of neighbouring devices (0 to n-1, n to 2n-1 ...) that share a switch, through which one copy to host
    # memory and one back go at a time; None: each device has its own path
    offload_switch: int | None = None
    # float64 (stages, microbatches of a step): factors of seconds, bytes and activations on each stage; None: 1
    microbatch_scale: np.ndarray | None = None
    # float64 (2, stages): seconds of S and T of one whole microbatch; None: 0. If the lists have no T, S lasts both
    vocabulary_seconds: np.ndarray | None = None
    # seconds of reducing the input gradient over the parts of an output layer; without T, with the statistics
    vocabulary_reduce_seconds: float = 0.0
    # seconds of reducing the softmax statistics if the lists have T; None: `vocabulary_reduce_seconds`
    vocabulary_statistics_seconds: float | None = None
    # float64 (stages,): bytes of one whole microbatch that S holds until its T ends, or without T itself; None: 0
    vocabulary_bytes: np.ndarray | None = None
    # name of the tower that each stage belongs to, for charts; empty if the model has one tower
    towers: tuple[str, ...] = ()

    __repr__ = short_repr

    def scale_of(self, schedule: ScheduleColumns, stage: np.ndarray, microbatch: np.ndarray) -> Any:
        """Return the factor of each (stage, microbatch or slice) of a schedule; 1.0 if microbatches are equal."""
        if self.microbatch_scale is None:
            return 1.0
        return self.microbatch_scale[stage, microbatch // schedule.slices % schedule.microbatches_of_a_step]

    def with_equal_microbatches(self) -> CostTable:
        """Return costs of equal microbatches that take as long together, each of which holds as much as the largest."""
        scale = self.microbatch_scale
        if scale is None:
            return self
        mean, largest = scale.mean(axis=1), scale.max(axis=1)
        return replace(
            self, seconds=self.seconds * mean, transfer_bytes=self.transfer_bytes * mean,
            stage_share=self.stage_share * largest, microbatch_scale=None,
            activation_bytes=None if self.activation_bytes is None else self.activation_bytes * largest,
        )  # fmt: skip


class CostModel(Protocol):
    """Object that prices a schedule: given numbers, a model on a device sheet, a measured profile."""

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of this schedule; raise CostError if they do not fit it."""
        ...


@dataclass(frozen=True)
class TableCosts:
    """Cost model that is one table, for whichever schedule."""

    priced: CostTable

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the table."""
        return self.priced


def is_cost_model(costs: object) -> bool:
    """Return whether `costs` prices schedules; a class does not, only its instances do."""
    return not isinstance(costs, type) and callable(getattr(costs, "table", None))


# The check of a table, from whichever cost model.

ROUNDING = 1e-9
_FRACTIONS = ("weight_grad_fraction", "slice_fraction", "input_fraction")
# Columns with one value per stage, or several: the sizes before the stages.
BY_STAGE: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("seconds", "overhead", "exchange_seconds"), (4,)), "state_bytes": (3,), "copied_bytes": (3, 2),
    **dict.fromkeys(("transfer_bytes", "vocabulary_seconds"), (2,)),
    **dict.fromkeys((
        "stage_share", "weight_grad_fraction", "activation_bytes", "recompute_bytes", "unshard_seconds",
        "reduce_seconds", "optimizer_seconds", "recompute_seconds", "input_fraction", "vocabulary_bytes",
        "offload_bytes",
    ), ()),
}  # fmt: skip
_NUMBERS = (
    "message_overhead", "offload_latency", "offload_seconds_per_byte", "vocabulary_reduce_seconds",
    "vocabulary_statistics_seconds", "host_seconds",
)  # fmt: skip


def as_table(table: Any) -> CostTable:
    """Return a table that a cost model gave; raise CostError if it is none."""
    if not isinstance(table, CostTable):
        raise CostError(f"the cost model gave {shown(table)} for a table; return a ppsim.costs.CostTable")
    return table


def check_table(table: CostTable, schedule: ScheduleColumns) -> None:
    """Raise CostError if a table does not fit a schedule: it names column, place, value and a legal value.

    Every column must have the shape that `CostTable` gives and hold finite numbers of at least 0, fractions at most 1;
    the slice fractions sum to 1. Ports are checked if both of their columns are given.
    """
    as_table(table)
    optional = {item.name for item in fields(CostTable) if item.default is None} | {"overlap"}
    for name, shape in _shapes(schedule).items():
        column = getattr(table, name)
        if column is not None or name not in optional:
            _check_column(name, column, shape, 1.0 if name in _FRACTIONS else np.inf)
    for name in _NUMBERS:
        if getattr(table, name) is not None or name not in optional:
            argument(name, getattr(table, name), weight, CostError)
    if table.workload is not None:
        if not isinstance(table.workload, Workload):
            raise CostError(f"workload is {shown(table.workload)}, and must be a ppsim.costs.table.Workload, or None")
        for item in fields(Workload):
            check = positive if item.name in ("gpus", "peak") else weight
            argument(f"workload.{item.name}", getattr(table.workload, item.name), check, CostError)
    if table.offload_switch is not None:
        argument("offload_switch", table.offload_switch, whole_number(2), CostError)
    total = float(table.slice_fraction.sum())
    if abs(total - 1.0) > ROUNDING:
        slices = schedule.slices
        raise CostError(f"slice_fraction sums to {total:g}; the parts of a microbatch sum to 1, such as {1 / slices:g}")
    if table.link_ports is not None and table.port_capacity is not None:
        _check_ports(np.asarray(table.link_ports), np.asarray(table.port_capacity), schedule.devices)


def _shapes(schedule: ScheduleColumns) -> Mapping[str, tuple[int, ...]]:
    return {
        **{name: (*sizes, schedule.num_stages) for name, sizes in BY_STAGE.items()},
        "overlap": (schedule.num_stages, schedule.num_stages),
        **dict.fromkeys(("latency", "seconds_per_byte"), (schedule.devices, schedule.devices)),
        "slice_fraction": (schedule.slices,),
        "microbatch_scale": (schedule.num_stages, schedule.microbatches_of_a_step),
    }


def _check_column(name: str, column: object, shape: tuple[int, ...], largest: float) -> None:
    legal = f"give finite numbers from 0 to 1, such as {1.0 / shape[-1]:g}" if largest == 1.0 else "give such as 1.0"
    if isinstance(column, np.ma.MaskedArray):
        raise CostError(f"{name} is a masked array; give an array with every number, such as {name}.filled(0.0)")
    if not isinstance(column, np.ndarray) or column.dtype != np.float64 or column.shape != shape:
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


def _check_ports(link_ports: np.ndarray, capacity: np.ndarray, devices: int) -> None:
    shape = (devices, devices)
    if len(link_ports.shape) != 3 or link_ports.shape[:2] != shape or link_ports.dtype.kind not in "iu":
        raise CostError(
            f"link_ports has shape {link_ports.shape} of {link_ports.dtype}; give whole numbers by [sender, receiver, "
            f"port on the way], here {devices} x {devices} x any"
        )
    if capacity.ndim != 1 or capacity.dtype.kind not in "iu" or np.any(capacity < 1):
        raise CostError("port_capacity must list, for each port, how many transfers it carries at once, at least 1")
    wrong = link_ports[(link_ports < -1) | (link_ports >= len(capacity))]
    if wrong.size:
        raise CostError(
            f"link_ports names port {wrong[0]}; port_capacity has ports 0 to {len(capacity) - 1}, -1 is none"
        )
    in_order = np.sort(link_ports, axis=2)
    twice = (in_order[:, :, 1:] == in_order[:, :, :-1]) & (in_order[:, :, 1:] >= 0)
    if twice.any():
        sender, receiver, _ = np.argwhere(twice)[0]
        raise CostError(f"link_ports names a port twice on the way from device {sender} to {receiver}; name it once")
