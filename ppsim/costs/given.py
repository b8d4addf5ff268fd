"""Costs: numbers that the caller gives, for all stages or per stage, at equal work."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import CostError, shown
from ppsim.base.immutable import call_text
from ppsim.base.rules import argument, choice, declarations, declared, described, is_number, rule, whole_number
from ppsim.costs.microbatches import (
    CAUSAL,
    ORDERS,
    causal_slice_costs,
    check_microbatch_scale,
    check_slice_costs,
    microbatch_factors,
)
from ppsim.costs.pairs import by_sender, distinct_values, equal_for_all_pairs
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns

PerStage = float | Sequence[float] | np.ndarray
PROVENANCES = ("given", "derived", "measured")

# Far beyond any machine, and low enough that sums and products of costs cannot overflow float64.
LARGEST = 1e100
SMALLEST_BANDWIDTH = 1e-100
BANDWIDTH = rule(
    lambda value: float(value) >= SMALLEST_BANDWIDTH if is_number(value) else type(value) is int and value > 0,
    "must be a number of bytes per second above 0",
    lambda value: float(value) if is_number(value) else math.inf,  # an int beyond every float
)


def _cost(
    group: str, what: str, default_text: str, example: str, unit: str, of: str, note: str, column: str,
    row: int | None = None, *, default: Any = None, check: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """Declare a cost that a `column` of a table has, or a `row` of it."""
    shown_as = {"note": note} if note else {}
    return declared(
        what, check, default, default_text=default_text, example=example, group=group, unit=unit, of=of, column=column,
        row=row, **shown_as, **more,
    )  # fmt: skip


_ACTION = "seconds", " per microbatch and stage", "one microbatch through one stage", "seconds"
_STAGE = "bytes", " per stage", "one stage", "state_bytes"
_VOCABULARY = (
    "seconds", " per microbatch and part", "one microbatch on one part of the output layer", "vocabulary_seconds"
)  # fmt: skip
_STATE = "bytes of {} that a stage holds all the time"
_DERIVED = "not known, or derived"


@described
@dataclass(frozen=True, repr=False)
class Costs:
    """Seconds, bytes sent and bytes held of the actions of one microbatch.

    Times are seconds of one microbatch through one device's share of the model (1/devices), so that a stage costs
    `value x devices / num_stages` and schedules with more stages do the same work; `per="stage"` gives them per stage.
    Bytes are never scaled. A list holds one value per stage. A list of times may instead hold one value per device, so
    that it fits any number of stages: a stage takes the value of the device that holds it, or the mean if several do.
    Raises CostError with the parameter, its value and what is legal.
    """

    # Config, summary, JSON and pages read these declarations. `group` is action, slot, again (R), vocabulary (S and
    # T), copy, transfer, step, held or share; `of` ends the unit in JSON; `note` describes the cost in the summary.
    forward: PerStage | None = _cost("action", "seconds of F", "1 s, or derived", "12 ms", *_ACTION, Kind.F)
    backward: PerStage | None = _cost(
        "action", "seconds of B", "`input_grad` + `weight_grad`; else 2 s, or derived", "24 ms", *_ACTION, Kind.B
    )
    input_grad: PerStage | None = _cost(
        "action", "seconds of I", "half of `backward`, or derived", "[1.0, 1.0, 1.0, 1.4]", *_ACTION, Kind.I
    )
    weight_grad: PerStage | None = _cost(
        "action", "seconds of W", "half of `backward`, or derived", "10 ms", *_ACTION, Kind.W
    )
    overlap: PerStage | Sequence[Sequence[float]] | None = _cost(
        "slot", "seconds of an OVERLAP_F_B slot; number, list (a slot of two stages takes the mean of their values), "
        "or matrix [stage of F, stage of B]", "none: its parts run one after the other", "30 ms",
        "seconds", " per microbatch and stage, by [stage of F, stage of B]", "one OVERLAP_F_B slot", "overlap", depth=2,
    )  # fmt: skip
    latency: float | Sequence[float] = _cost(
        "transfer", "seconds of each transfer, in addition to `transfer_bytes / bandwidth`; number, or list by sending "
        "device", "0 s, or the link's", "5 us", "seconds", " per transfer", "each transfer", "latency", default=0.0,
        depth=0, lists="sending device",
    )  # fmt: skip
    transfer_bytes: PerStage = _cost(
        "transfer", "bytes that a stage sends for one microbatch, the same in F and in B", "0 B, or derived", "16 MB",
        "bytes", " per transfer, by [F or B, stage]", "each transfer of one microbatch", "transfer_bytes", default=0.0,
    )  # fmt: skip
    bandwidth: float = _cost(
        "transfer", "bytes per second, one way", "unlimited, or the link's", "25 GB/s", "bytes per second",
        "; null is unlimited", "one way", "seconds_per_byte", default=math.inf, check=BANDWIDTH, depth=0,
    )  # fmt: skip
    per: str = declared(
        "unit of work of the times: `device`, `stage`", choice("device", "stage"), "device", example="stage"
    )
    weight_grad_fraction_of_activation: PerStage = _cost(
        "share", "fraction of an activation that lives until W, 0 to 1; I frees the rest", "1, or derived", "0.94",
        "", "fraction", "", "weight_grad_fraction", default=1.0,
    )  # fmt: skip
    recompute: PerStage | None = _cost(
        "again", "seconds of R, a forward again without its transfer", "`forward`", "11 ms", "seconds",
        " per microbatch and stage", "recomputing one microbatch through one stage", "recompute_seconds",
    )  # fmt: skip
    input_fraction_of_activation: PerStage = _cost(
        "share", "fraction of an activation that the stored input holds between F and R, 0 to 1", "0, or derived",
        "0.03", "", "fraction", "", "input_fraction", default=0.0,
    )  # fmt: skip
    offload_latency: float = _cost(
        "copy", "seconds of each OFFLOAD and RELOAD, in addition to `offload_bytes / offload_bandwidth`", "0 s",
        "20 us", "seconds", " per copy", "each copy to host memory or back", "offload_latency", default=0.0, depth=0,
    )  # fmt: skip
    offload_bandwidth: float = _cost(
        "copy", "bytes per second between a device and its host's memory, each way", "unlimited", "25 GB/s",
        "bytes per second", "; null is unlimited", "each way", "offload_seconds_per_byte", default=math.inf,
        check=BANDWIDTH, depth=0,
    )  # fmt: skip
    offload_bytes: PerStage | None = _cost(
        "copy", "bytes that an OFFLOAD moves for one microbatch; the rest of the activation stays on the device",
        "`activation_bytes`", "0.8 GB", "bytes", " per microbatch and stage", "one microbatch on one stage",
        "offload_bytes",
    )  # fmt: skip
    offload_switch: int | None = _cost(
        "copy", "neighbouring devices that share a switch, which lets one OFFLOAD and one RELOAD through at a time",
        "none: each has its own way", "2", "", "neighbouring devices", "neighbours that share a way to host memory",
        "offload_switch", check=whole_number(2), depth=0,
    )  # fmt: skip
    vocabulary_forward: PerStage = _cost(
        "vocabulary", "seconds of S, one device's part of the output layer forward", "0 s, or derived", "4 ms",
        *_VOCABULARY, 0, default=0.0,
    )  # fmt: skip
    vocabulary_backward: PerStage = _cost(
        "vocabulary", "seconds of T, its backward; without T in the lists, S lasts as long as both", "0 s, or derived",
        "8 ms", *_VOCABULARY, 1, default=0.0,
    )  # fmt: skip
    vocabulary_reduce: float = _cost(
        "vocabulary", "seconds of reducing the input gradient, together with the softmax statistics if the lists hold "
        "no T, over all parts of the output layer", "0 s, or derived", "0.5 ms", "seconds", " per reduction",
        "reducing the input gradient over all parts of the output layer", "vocabulary_reduce_seconds", default=0.0,
        depth=0,
    )  # fmt: skip
    vocabulary_statistics: float | None = _cost(
        "vocabulary", "seconds of reducing the softmax statistics, if the lists hold T, over all parts of the output "
        "layer", "`vocabulary_reduce`, or derived", "60 us", "seconds", " per reduction",
        "reducing the softmax statistics over all parts of the output layer", "vocabulary_statistics_seconds", depth=0,
    )  # fmt: skip
    slice_costs: Sequence[float] | Mapping[str, float] | str | None = declared(
        "relative times of a microbatch's slices; `{attention: part}` where attention is causal and that part of the "
        "time, `causal` by the attention of the model", check_slice_costs, None, default_text="equal",
        example="[1, 1.1, 1.2]",
    )  # fmt: skip
    microbatch_scale: Sequence[float] | Sequence[Sequence[float]] | Mapping[str, Any] | None = _cost(
        "", "factors on the seconds, bytes and activations of microbatches: one per microbatch, a list per stage, or a "
        "distribution to draw them", "1 each", "{distribution: lognormal, spread: 0.3, seed: 0}", "",
        "factor, by stage and microbatch", "", "microbatch_scale", check=check_microbatch_scale,
    )  # fmt: skip
    microbatch_order: str = declared(
        "order of the microbatches of `microbatch_scale`: `given`, `longest-first`, `zigzag`",
        choice(*ORDERS), "given", example="zigzag",
    )  # fmt: skip
    unshard: PerStage | None = _cost(
        "step", "seconds of gathering the weights of one device share; without a model it also makes the run sharded",
        "none, or derived", "8 ms", "seconds", " per gather of a stage's weights", "gathering the weights of one stage",
        "unshard_seconds",
    )  # fmt: skip
    reduce_grad: PerStage | None = _cost(
        "step", "seconds of reducing its gradients over data-parallel copies, once per step", "none, or derived",
        "50 ms", "seconds", " per step and stage", "reducing the gradients of one stage, once a step", "reduce_seconds",
    )  # fmt: skip
    optimizer_step: PerStage | None = _cost(
        "step", "seconds of its optimizer step, if `optimizer` is given", "none, or derived", "10 ms", "seconds",
        " per step and stage", "stepping one stage, where the step has an optimizer", "optimizer_seconds",
    )  # fmt: skip
    activation_bytes: PerStage | None = _cost(
        "held", "bytes a stage holds for one microbatch", _DERIVED, "1.2 GB", "bytes", " per microbatch and stage",
        "one microbatch on one stage", "activation_bytes",
    )  # fmt: skip
    weight_bytes: PerStage | None = _cost("held", _STATE.format("weights"), _DERIVED, "2 GB", *_STAGE, 0)
    gradient_bytes: PerStage | None = _cost("held", _STATE.format("gradients"), _DERIVED, "4 GB", *_STAGE, 1)
    optimizer_bytes: PerStage | None = _cost("held", _STATE.format("optimizer state"), _DERIVED, "12 GB", *_STAGE, 2)
    provenance: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        origins = self.provenance
        given = [name for name in PARAMETERS if origins.get(name, "default") != "default" or name == "per"]
        return call_text("Costs", ((name, getattr(self, name)) for name in given))

    def __post_init__(self) -> None:
        columns, origins = dict[str, Any](), dict[str, str]()
        for item in declarations(Costs):
            name, value, check = item.name, getattr(self, item.name), item.metadata["check"]
            if value is None and item.default is None:
                continue
            column = _column(name, value, item.metadata) if check is None else argument(name, value, check, CostError)
            if item.metadata.get("group") == "share" and np.any(column > 1):
                raise CostError(f"{name}={shown(value)} must lie from 0 to 1")
            is_default = item.default is not None and np.all(column == item.default)
            columns[name], origins[name] = column, "default" if is_default else "given"
        follows = "derived" if {*TIMES[1:]} & columns.keys() else "default"
        origins = {"forward": "default", **dict.fromkeys(TIMES[1:], follows)} | origins
        del origins["per"]
        columns |= _complete(*map(columns.get, TIMES))
        for name, column in columns.items():  # plain numbers, independent of the caller's list
            object.__setattr__(self, name, column.tolist() if isinstance(column, np.ndarray | np.generic) else column)
        object.__setattr__(self, "provenance", origins | self._stated_origins())

    def _stated_origins(self) -> dict[str, str]:
        if not isinstance(self.provenance, Mapping):
            raise CostError(
                f"provenance={shown(self.provenance)} must map names of costs to where they come from, such as "
                f"{{'forward': 'measured'}}"
            )
        costs = [name for name in PARAMETERS if name != "per"]
        for name, origin in self.provenance.items():
            if name not in costs:
                raise CostError(f"provenance names {shown(name)}, which is not a cost; use one of: {', '.join(costs)}")
            if origin not in (*PROVENANCES, "default"):
                raise CostError(f"provenance of {name} is {shown(origin)}; use one of: {', '.join(PROVENANCES)}")
        return dict(self.provenance)

    def without_each(self) -> Iterator[tuple[str, Any, Costs]]:
        """Yield (key, value, costs without it) for each given cost; skip one that the others need."""
        given = {name: getattr(self, name) for name, origin in self.provenance.items() if origin == "given"}
        for name, value in given.items():
            with suppress(CostError):
                others = Costs(**{key: other for key, other in given.items() if key != name}, per=self.per)
                if getattr(others, name) != value:
                    yield f"costs.{name}", value, others

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of `schedule`; raise CostError if a list does not have one value per stage (or slice)."""
        stages, devices = schedule.num_stages, schedule.devices
        scale = devices / stages if self.per == "device" else 1.0

        def per_stage(name: str) -> np.ndarray:
            value = getattr(self, name)
            if self.per == "device" and name in SCALED and np.shape(value) == (devices,) != (stages,):
                device, stage = schedule.holdings.T  # of a stage that several devices hold, the mean of their values
                return np.bincount(stage, np.asarray(value, np.float64)[device]) / np.bincount(stage)
            return _for_each(name, value, stages)

        def known(name: str) -> np.ndarray | None:
            return None if getattr(self, name) is None else per_stage(name) * (scale if name in SCALED else 1.0)

        state = vocabulary = scales = None
        parts = [known(name) for name in BYTES[1:]]
        if any(part is not None for part in parts):
            state = np.stack([np.zeros(stages) if part is None else part for part in parts])
        if schedule.cuts_vocabulary:
            vocabulary = np.stack([per_stage("vocabulary_forward"), per_stage("vocabulary_backward")])
        if self.microbatch_scale is not None:
            work, count = per_stage("forward") + per_stage("backward"), schedule.microbatches_of_a_step
            scales = microbatch_factors(self.microbatch_scale, self.microbatch_order, work, count)
        optional: dict[str, Any] = {PARAMETERS[name]["column"]: known(name) for name in OPTIONAL}
        return CostTable(
            seconds=np.stack([per_stage(name) for name in TIMES]) * scale,
            overlap=None if self.overlap is None else _overlap_matrix(self.overlap, stages, scale),
            latency=by_sender(_for_each("latency", self.latency, devices, "devices")),
            seconds_per_byte=equal_for_all_pairs(1.0 / self.bandwidth, devices),
            transfer_bytes=np.stack([per_stage("transfer_bytes")] * 2),
            stage_share=np.full(stages, devices / stages),
            weight_grad_fraction=per_stage("weight_grad_fraction_of_activation"),
            offload_latency=float(self.offload_latency),
            offload_seconds_per_byte=1.0 / self.offload_bandwidth,
            offload_switch=self.offload_switch,
            input_fraction=per_stage("input_fraction_of_activation"),
            vocabulary_seconds=vocabulary,
            vocabulary_reduce_seconds=float(self.vocabulary_reduce),
            vocabulary_statistics_seconds=self.vocabulary_statistics,
            slice_fraction=self._slice_fraction(schedule.slices),
            microbatch_scale=scales,
            state_bytes=state,
            **optional,
        )

    def _slice_fraction(self, slices: int) -> np.ndarray:
        if self.slice_costs is None:
            return np.full(slices, 1.0 / slices)
        if self.slice_costs == CAUSAL:
            raise CostError("slice_costs=causal needs a model; give its part of the time, such as {attention: 0.2}")
        if isinstance(self.slice_costs, Mapping):
            return np.array(causal_slice_costs(slices, self.slice_costs["attention"]))
        weights = _for_each("slice_costs", self.slice_costs, slices, "slices")
        return weights / weights.sum()


PARAMETERS = {parameter.name: parameter.metadata for parameter in declarations(Costs)}


def values_in(table: CostTable, name: str) -> np.ndarray | None:
    """Return the values of a cost in a table; None if it has none, or if no column has them."""
    cost = PARAMETERS[name]
    values = getattr(table, cost["column"]) if "column" in cost else None
    if values is None or (cost["group"] == "vocabulary" and table.vocabulary_seconds is None):
        return None
    if cost["group"] == "transfer" and cost.get("depth") == 0:  # a value per pair of devices
        values = np.unique(distinct_values(values))
    if cost["unit"] == "bytes per second":  # its column has seconds per byte
        with np.errstate(divide="ignore"):
            values = np.sort(1.0 / np.asarray(values), axis=None)
    return np.atleast_1d(values if cost["row"] is None else values[cost["row"]])


def _in_group(*groups: str) -> tuple[str, ...]:
    return tuple(name for name, parameter in PARAMETERS.items() if parameter.get("group") in groups)


TIMES, BYTES = _in_group("action"), _in_group("held")
SCALED = _in_group("action", "slot", "again", "step")  # seconds that `per` applies to
OPTIONAL = (*_in_group("again", "step"), "offload_bytes", "activation_bytes")  # columns that a table may lack


def _column(name: str, value: Any, parameter: Mapping[str, Any]) -> np.ndarray:
    """Return `value` as a new float array of finite numbers >= 0; raise CostError for others."""
    unit, each = parameter.get("unit"), parameter.get("lists", "stage")
    dimensions = 1 if "lists" in parameter else parameter.get("depth", 1)
    legal = f"must be a finite number{f' of {unit}' if unit else ''} from 0 to {LARGEST:g}"
    legal += f", or a list of such numbers, one per {each}" if dimensions else ", one for all transfers"
    if np.ma.is_masked(value):
        raise CostError(f"{name}={shown(value)} holds masked numbers; it {legal}")
    try:
        column = np.array(value)
    except MemoryError:
        raise
    except Exception:  # a ragged list, or a foreign object whose conversion may raise anything
        column = np.array(None)
    if column.dtype == object and all(type(number) is int for number in column.flat):
        column = np.array([min(number, 10**300) for number in column.flat], np.float64).reshape(column.shape)
    if column.dtype.kind not in "iuf" or column.ndim > dimensions or column.size == 0:
        raise CostError(f"{name}={shown(value)} {legal}")
    column = column.astype(np.float64)
    wrong = column[~((column >= 0) & (column <= LARGEST))]
    if wrong.size:
        culprit = f" holds {wrong.flat[0]:g}; it" if column.ndim else ""
        raise CostError(f"{name}={shown(value)}{culprit} {legal}")
    return column


def _complete(
    forward: np.ndarray | None,
    backward: np.ndarray | None,
    input_grad: np.ndarray | None,
    weight_grad: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Return all four times; those that were not given follow from the others."""
    if forward is None:
        forward = np.array(1.0)
    if backward is None and input_grad is None and weight_grad is None:
        backward = np.array(2.0)
    elif backward is None:
        if input_grad is None or weight_grad is None:
            given, missing = ("input_grad", "weight_grad") if weight_grad is None else ("weight_grad", "input_grad")
            raise CostError(f"{given} is given without {missing}; give {missing} or backward too")
        backward = _add("input_grad, weight_grad", input_grad, weight_grad)
    if input_grad is None:
        input_grad = backward / 2 if weight_grad is None else _rest_of(backward, "weight_grad", weight_grad)
    if weight_grad is None:
        weight_grad = _rest_of(backward, "input_grad", input_grad)
    return {"forward": forward, "backward": backward, "input_grad": input_grad, "weight_grad": weight_grad}


def _rest_of(backward: np.ndarray, name: str, part: np.ndarray) -> np.ndarray:
    """Return the other part of a backward; 0 if the two are equal up to rounding."""
    rest = _add(f"backward, {name}", backward, -part)
    rest = np.where(np.abs(rest) <= 1e-12 * backward, 0.0, rest)
    if np.any(rest < 0):
        raise CostError(
            f"{name} is longer than backward ({shown(part.tolist())} > {shown(backward.tolist())}); it is a part of it"
        )
    return rest


def _add(names: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    if first.ndim and second.ndim and len(first) != len(second):
        raise CostError(f"{names} are lists of {len(first)} and {len(second)} values; both need one value per stage")
    return first + second


def _for_each(name: str, value: Any, count: int, of: str = "stages") -> np.ndarray:
    column = np.asarray(value, np.float64)
    if column.ndim and len(column) != count:
        raise CostError(
            f"{name} lists {len(column)} values, but the schedule has {count} {of}; list {count}, or give one number"
        )
    return np.full(count, column)


def _overlap_matrix(overlap: Any, stages: int, scale: float) -> np.ndarray:
    matrix = np.asarray(overlap, np.float64)
    if matrix.ndim == 0:
        return equal_for_all_pairs(float(matrix) * scale, stages)
    if matrix.ndim < 2:
        column = _for_each("overlap", matrix, stages)
        return (column[:, None] + column[None, :]) / 2 * scale
    if matrix.shape != (stages, stages):
        raise CostError(
            f"overlap is a matrix of {matrix.shape[0]} x {matrix.shape[1]}, but the schedule has {stages} stages; "
            f"give {stages} x {stages} values, indexed [stage of F, stage of B], or one number"
        )
    return matrix * scale


def named_costs(given: Any) -> dict[str, Any]:
    """Return costs given by name, checked; CostError if one is unknown or illegal."""
    if not isinstance(given, Mapping):
        raise CostError(f"given={shown(given)} must map names of costs to values, such as {{'forward': 0.01}}")
    unknown = [name for name in given if name not in PARAMETERS]
    if unknown:
        raise CostError(f"given names {shown(unknown[0])}, which is not a cost; use one of: {', '.join(PARAMETERS)}")
    if given:
        Costs(**given)
    return dict(given)
