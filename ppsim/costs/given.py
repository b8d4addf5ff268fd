"""Costs: numbers that the caller gives, for all stages or stage by stage, at equal work."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.costs.table import CostTable
from ppsim.errors import CostError

if TYPE_CHECKING:
    from ppsim.schedule import Schedule

PerStage = float | Sequence[float] | np.ndarray
PROVENANCES = ("given", "derived", "measured")


@dataclass(frozen=True)
class Costs:
    """Seconds, bytes sent and bytes held of the actions of one microbatch.

    Times are seconds of one microbatch through one device's share of the model (1/devices), so that a stage costs
    `value x devices / num_stages` and schedules with more stages do the same work; `per="stage"` gives them per stage.
    A list holds one value a stage.

    Parameters
    ----------
    forward, backward, input_grad, weight_grad : seconds >= 0, number or list
        Missing parts follow: backward = input_grad + weight_grad; of a lone backward each part is half.
        Nothing given: forward 1, backward 2.
    overlap : seconds, number, list or matrix, optional
        Length of an OVERLAP_F_B slot. A matrix is indexed [stage of F, stage of B]; with a list, a slot of two
        stages takes the mean of their values. Without it the parts run one after the other.
    latency : seconds >= 0
        Of each transfer, beside `transfer_bytes / bandwidth`.
    transfer_bytes : bytes >= 0, number or list
        Sent by a forward, and by a backward, of one microbatch at the border of each stage. Never scaled.
    bandwidth : bytes per second > 0
    weight_grad_fraction_of_activation : 0..1, number or list
        Part of an activation that W needs; I frees the rest. Default 1: I frees nothing.
    slice_costs : list, optional
        Relative time of each slice of a microbatch, for schedules that cut sequences. Default: equal.
    activation_bytes, weight_bytes, gradient_bytes, optimizer_bytes : bytes per stage, optional
        Held for one microbatch, and for the stage's parameters. Never scaled. Without them memory is not known.
    provenance : mapping of parameter name -> "given", "derived" or "measured"
        Where each value comes from; "given" unless said, "default" for what nobody gave.

    Raises
    ------
    CostError
        Names the parameter, its value and what is legal.
    """

    forward: PerStage | None = None
    backward: PerStage | None = None
    input_grad: PerStage | None = None
    weight_grad: PerStage | None = None
    overlap: PerStage | Sequence[Sequence[float]] | None = None
    latency: float = 0.0
    transfer_bytes: PerStage = 0.0
    bandwidth: float = math.inf
    per: str = "device"
    weight_grad_fraction_of_activation: PerStage = 1.0
    slice_costs: Sequence[float] | None = None
    activation_bytes: PerStage | None = None
    weight_bytes: PerStage | None = None
    gradient_bytes: PerStage | None = None
    optimizer_bytes: PerStage | None = None
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.per not in ("device", "stage"):
            raise CostError(f"per={self.per!r} is not known; use 'device' (equal work) or 'stage'")
        times = {
            name: _column(name, getattr(self, name), "seconds")
            for name in ("forward", "backward", "input_grad", "weight_grad")
        }
        times = _complete(times)
        provenance = {
            name: "given" if getattr(self, name) is not None else "default" if self._none_given() else "derived"
            for name in ("backward", "input_grad", "weight_grad")
        }
        provenance["forward"] = "given" if self.forward is not None else "default"
        for name, value in times.items():
            object.__setattr__(self, name, _plain(value))
        if self.overlap is not None:
            _column("overlap", self.overlap, "seconds", dimensions=2)
            provenance["overlap"] = "given"
        for name, unit in (("latency", "seconds"), ("transfer_bytes", "bytes")):
            provenance[name] = "given" if np.any(_column(name, getattr(self, name), unit)) else "default"
        if np.ndim(self.latency):
            raise CostError(f"latency={self.latency!r} must be one number of seconds")
        if not (_is_number(self.bandwidth) and self.bandwidth > 0):
            raise CostError(f"bandwidth={self.bandwidth!r} must be a number of bytes per second above 0")
        provenance["bandwidth"] = "given" if math.isfinite(self.bandwidth) else "default"
        fraction = _column("weight_grad_fraction_of_activation", self.weight_grad_fraction_of_activation, "")
        if np.any(fraction > 1):
            raise CostError(
                f"weight_grad_fraction_of_activation={self.weight_grad_fraction_of_activation!r} must lie from 0 to 1"
            )
        for name in ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes"):
            if getattr(self, name) is not None:
                _column(name, getattr(self, name), "bytes")
                provenance[name] = "given"
        if self.slice_costs is not None:
            weights = _column("slice_costs", self.slice_costs, "")
            if weights.ndim != 1 or not weights.sum() > 0:
                raise CostError(
                    f"slice_costs={self.slice_costs!r} must be a list with a positive sum, one value a slice"
                )
        for name, origin in self.provenance.items():
            if name not in provenance and not hasattr(self, name):
                raise CostError(f"provenance names {name!r}, which is no cost; use one of: {', '.join(provenance)}")
            if origin not in (*PROVENANCES, "default"):
                raise CostError(f"provenance of {name} is {origin!r}; use one of: {', '.join(PROVENANCES)}")
        object.__setattr__(self, "provenance", {**provenance, **self.provenance})

    def _none_given(self) -> bool:
        return self.backward is None and self.input_grad is None and self.weight_grad is None

    def table(self, schedule: Schedule) -> CostTable:
        """The costs of `schedule`; CostError where a list does not have one value a stage (or slice)."""
        stages, devices = schedule.num_stages, schedule.devices
        scale = devices / stages if self.per == "device" else 1.0

        def per_stage(name: str) -> np.ndarray:
            return _spread(name, getattr(self, name), stages)

        held = (self.weight_bytes, self.gradient_bytes, self.optimizer_bytes)
        return CostTable(
            seconds=np.stack([per_stage(n) for n in ("forward", "backward", "input_grad", "weight_grad")]) * scale,
            overlap=None if self.overlap is None else _overlap_matrix(self.overlap, stages) * scale,
            latency=np.full((devices, devices), float(self.latency)),
            seconds_per_byte=np.full((devices, devices), 1.0 / self.bandwidth),
            transfer_bytes=np.stack([per_stage("transfer_bytes")] * 2),
            stage_share=np.full(stages, devices / stages),
            weight_grad_fraction=per_stage("weight_grad_fraction_of_activation"),
            slice_fraction=self._slice_fraction(schedule.slices),
            activation_bytes=None if self.activation_bytes is None else per_stage("activation_bytes"),
            state_bytes=None
            if all(value is None for value in held)
            else np.stack([_spread("bytes", 0.0 if value is None else value, stages) for value in held]),
        )

    def _slice_fraction(self, slices: int) -> np.ndarray:
        if self.slice_costs is None:
            return np.full(slices, 1.0 / slices)
        weights = _spread("slice_costs", self.slice_costs, slices, "slices")
        return weights / weights.sum()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def _column(name: str, value: Any, unit: str, dimensions: int = 1) -> np.ndarray | None:
    """`value` as a float array of finite numbers >= 0, or None; CostError otherwise."""
    if value is None:
        return None
    legal = (
        f"must be a finite number{f' of {unit}' if unit else ''} of at least 0, or a list of such numbers, one a stage"
    )
    try:
        column = np.array(value)
        if column.dtype.kind not in "iuf":
            raise ValueError
        column = column.astype(np.float64)
    except (ValueError, TypeError, OverflowError):
        raise CostError(f"{name}={value!r:.80} {legal}") from None
    if column.ndim > dimensions or column.size == 0:
        raise CostError(f"{name}={value!r:.80} {legal}")
    wrong = column[~(np.isfinite(column) & (column >= 0))]
    if wrong.size:
        raise CostError(f"{name}={value!r:.80} holds {wrong.flat[0]:g}; it {legal}")
    return column


def _complete(times: dict[str, np.ndarray | None]) -> dict[str, np.ndarray]:
    """Fill in the times that were not given."""
    forward, backward, input_grad, weight_grad = times.values()
    if backward is None:
        if (input_grad is None) != (weight_grad is None):
            given, missing = ("input_grad", "weight_grad") if weight_grad is None else ("weight_grad", "input_grad")
            raise CostError(f"{given} is given without {missing}; give {missing} or backward too")
        backward = np.array(2.0) if input_grad is None else _add("input_grad, weight_grad", input_grad, weight_grad)
    if input_grad is None and weight_grad is None:
        input_grad = weight_grad = backward / 2
    elif weight_grad is None or input_grad is None:
        given = input_grad if weight_grad is None else weight_grad
        name = "input_grad" if weight_grad is None else "weight_grad"
        rest = _add(f"backward, {name}", backward, -given)
        if np.any(rest < 0):
            raise CostError(
                f"{name} is longer than backward ({_plain(given)} > {_plain(backward)}); it is a part of it"
            )
        input_grad, weight_grad = (given, rest) if weight_grad is None else (rest, given)
    return {
        "forward": np.array(1.0) if forward is None else forward,
        "backward": backward,
        "input_grad": input_grad,
        "weight_grad": weight_grad,
    }


def _add(names: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    try:
        return first + second
    except ValueError:
        raise CostError(
            f"{names} are lists of {len(first)} and {len(second)} values; both need one value a stage"
        ) from None


def _plain(value: np.ndarray) -> Any:
    return value.tolist()


def _spread(name: str, value: Any, count: int, of: str = "stages") -> np.ndarray:
    column = np.asarray(value, np.float64)
    if column.ndim and len(column) != count:
        raise CostError(
            f"{name} lists {len(column)} values, but the schedule has {count} {of}; list {count}, or give one number"
        )
    return np.broadcast_to(column, (count,)).astype(np.float64)


def _overlap_matrix(overlap: Any, stages: int) -> np.ndarray:
    matrix = np.asarray(overlap, np.float64)
    if matrix.ndim < 2:
        column = _spread("overlap", matrix, stages)
        return (column[:, None] + column[None, :]) / 2
    if matrix.shape != (stages, stages):
        raise CostError(
            f"overlap is a matrix of {matrix.shape[0]} x {matrix.shape[1]}, but the schedule has {stages} stages; "
            f"give {stages} x {stages} values, indexed [stage of F, stage of B], or one number"
        )
    return matrix
