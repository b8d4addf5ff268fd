"""Profile: measured costs, fitted to traces and stored in a YAML file, which price schedules that were never run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.documents import UNITS, checked_by, nine_digits, read_record, record_of, yaml_text
from ppsim.base.errors import CostError, shown
from ppsim.base.files import write_atomically
from ppsim.base.immutable import short_repr
from ppsim.base.rules import Check, choice, declared, described, number, rule, whole_number
from ppsim.costs.given import BANDWIDTH, LARGEST
from ppsim.costs.pairs import equal_for_all_pairs
from ppsim.costs.spread import PRICED_BY_OTHERS, StepSpread
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns

SCHEMA = "ppsim.profile/1"
FIXED_KEYS = ("schema", "units", "provenance")  # equal in every profile
KINDS = ("F", "B", "I", "W")
AMOUNTS = ("overhead", "message_overhead", "latency", "bandwidth", "transfer_bytes", "jitter", "residual")
LAYERS = whole_number(1, 2**20)


@dataclass(frozen=True)
class LinkFit:
    """Fit of latency and bandwidth."""

    # sizes, seconds: bytes and median seconds of the transfers of each size that was measured
    sizes: list[float]
    seconds: list[float]
    # latency, bandwidth: 95 % confidence intervals, seconds and bytes per second
    latency: tuple[float, float]
    bandwidth: tuple[float, float]
    residual: float  # median relative difference between the transfers and the fitted line

    __repr__ = short_repr


@described
@dataclass(frozen=True)
class Profile:
    """Costs of a model split into any number of stages, measured on one machine."""

    devices: int = declared(
        "pipeline devices of the runs. With another number, a schedule uses `latency` and `bandwidth` for all its "
        "links."
    )
    seconds: dict[str, list[float]] = declared(
        "by kind: seconds of one microbatch through each of `len(list)` parts of the model, without `overhead`. A "
        "schedule with other stages uses the parts that its stages cover."
    )
    layers: list[int] = declared("layers of each of the parts in `seconds`; empty: equal numbers", factory=list)
    stage_layers: tuple[int, ...] = declared(
        "layers of each stage of the schedules to price; empty: the parts themselves if there are as many stages, "
        "else equal stages. `cut` sets it; it is not in the file.",
        default=(),
    )
    interval: dict[str, list[tuple[float, float]]] = declared(
        "by kind: 95 % confidence interval (low, high) of each median in `seconds`", factory=dict
    )
    once: dict[str, tuple[float, float]] = declared(
        "by kind: seconds within the (first, last) part that finer stages do not divide: embedding, head and loss",
        factory=dict,
    )
    overhead: float = declared(
        "seconds that every action costs in addition to its compute, whatever its size", default=0.0
    )
    message_overhead: float = declared("seconds of the host for each SEND and RECV, as in `CostTable`", default=0.0)
    stretch: dict[str, float] = declared(
        "by kind: factor of its seconds, 1 if missing: a step pays for slow actions, which medians do not show",
        factory=dict,
    )
    latency: float = declared("seconds of a transfer", default=0.0)
    bandwidth: float = declared(
        "bytes per second of a transfer; inf if only transfers of one size were measured", default=math.inf
    )
    links: dict[str, float] = declared(
        'seconds of one transfer between two devices by "sender-receiver", if measured', factory=dict
    )
    link_fit: LinkFit | None = declared(
        "intervals and residual of latency and bandwidth; None if nothing was transferred", default=None
    )
    transfer_bytes: float = declared("bytes of one transfer in the runs", default=0.0)
    jitter: float = declared(
        "standard deviation of log(seconds / median) of compute actions, robust (1.4826 x median absolute deviation)."
        " `ppsim.Jitter.measured(profile)` draws with it, and so does `jitter: {actions: measured}` in a config.",
        default=0.0,
    )
    residual: float = declared("median relative error of the fitted runs' action times", default=0.0)
    steps: StepSpread | None = declared(
        "spread of measured steps around predicted ones; None in profiles that were written without it", default=None
    )
    fitted: list[str] = declared(
        "schedules that were fitted, as `name p m`; `ppsim evaluate` calls all others held out", factory=list
    )
    source: str = declared("device name of the machine", default="unknown device")
    recorded: str = declared("date of the newest run", default="")

    @property
    def provenance(self) -> dict[str, str]:
        """Origin of each cost."""
        names = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
        measured = {names[kind]: "measured" for kind in self.seconds}
        return {name: measured.get(name, "derived") for name in names.values()} | {
            "latency": "measured",
            "bandwidth": "measured" if math.isfinite(self.bandwidth) else "not measured: one size of transfers",
            "transfer_bytes": "measured",
        }

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of `schedule`, on any number of devices.

        Raises CostError if a kind was not measured, or if `stage_layers` has another number of stages or layers.
        """
        stages, devices = schedule.num_stages, schedule.devices
        once, seconds = (
            completed({kind: [self.stretch.get(kind, 1.0) * value for value in values] for kind, values in one.items()})
            for one in (self.once, self.seconds)
        )
        if missing := [kind for kind in KINDS if kind not in seconds]:
            raise CostError(f"the profile has no seconds of {', '.join(missing)}; calibrate on a run that has them")
        part_edges, stage_edges = self._edges(stages)
        parts = {
            kind: seconds_of_stages(values, part_edges, stage_edges, once.get(kind, (0.0, 0.0)))
            for kind, values in seconds.items()
        }
        shares = np.round(np.diff(stage_edges), 9) / stage_edges[-1]  # equal stages are equal to the last bit
        return CostTable(
            seconds=np.stack([parts[kind] for kind in KINDS]) + self.overhead,
            overlap=None,
            latency=self._latency(devices),
            seconds_per_byte=equal_for_all_pairs(1.0 / self.bandwidth, devices),
            transfer_bytes=np.full((2, stages), self.transfer_bytes),
            stage_share=shares * devices,
            weight_grad_fraction=np.ones(stages),
            slice_fraction=np.full(schedule.slices, 1.0 / schedule.slices),
            overhead=np.full((len(KINDS), stages), self.overhead),
            message_overhead=self.message_overhead,
        )

    def cut(self, stage_layers: Sequence[int]) -> Profile:
        """Return these costs for stages with these numbers of layers; CostError if one is not an integer from 1 on."""
        return replace(self, stage_layers=tuple(map(LAYERS, stage_layers)))

    def with_link(self, **link: float) -> Profile:
        """Return these costs with another `latency`, `bandwidth` or `transfer_bytes` between all devices."""
        return replace(self, links={}, **link)

    def priced_by_others(self, schedule: ScheduleColumns | None = None) -> dict[str, bool]:
        """Return whether I and W are `halved`, as halves of B, and whether B is `summed` from I and W.

        Only kinds of the `schedule` count, if one is given.
        """
        kinds = KINDS if schedule is None else [name for name in KINDS if (schedule.kind == Kind[name]).any()]
        missing = {*kinds} - self.seconds.keys()
        return {"halved": bool({"I", "W"} & missing), "summed": "B" in missing}

    def assumptions(self, schedule: ScheduleColumns | None = None) -> list[str]:
        """Return a sentence for the kinds that were not measured (of the `schedule`, if given): how they are priced."""
        return [PRICED_BY_OTHERS[name] for name, is_so in self.priced_by_others(schedule).items() if is_so]

    def spread(self, schedule: ScheduleColumns) -> StepSpread | None:
        """Return the spread of a schedule's steps, wider if it has kinds that were not measured; None without one."""
        return None if self.steps is None else replace(self.steps, **self.priced_by_others(schedule))

    def _edges(self, stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the first layers of measured parts and of stages, and the end: (parts + 1,) and (stages + 1,)."""
        count = len(next(iter(self.seconds.values())))
        parts = _cumulative(self.layers or [1] * count)
        if not self.stage_layers:
            return parts, parts if stages == count else np.arange(stages + 1) * parts[-1] / stages
        cut = _cumulative(self.stage_layers)
        if len(self.stage_layers) != stages:
            raise CostError(
                f"stage_layers={shown(list(self.stage_layers))} are of {len(self.stage_layers)} stages, but the "
                f"schedule has {stages}; give one number per stage"
            )
        if self.layers and cut[-1] != parts[-1]:
            raise CostError(
                f"stage_layers={shown(list(self.stage_layers))} hold {cut[-1]:.0f} layers, but the profile was "
                f"measured on {parts[-1]:.0f}; spread those"
            )
        return parts * (cut[-1] / parts[-1]), cut

    def _latency(self, devices: int) -> np.ndarray:
        """Return the latency by [sender, receiver]; each link has its own if the devices are those of the runs."""
        latency = equal_for_all_pairs(float(self.latency), devices)
        if not self.links or devices != self.devices:
            return latency
        latency = latency.copy()
        for pair, seconds in self.links.items():
            sender, receiver = (int(number) for number in pair.split("-"))
            latency[sender, receiver] = max(seconds - self.transfer_bytes / self.bandwidth, 0.0)
        return latency


def completed(known: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return seconds by kind with those that follow: B = I + W, and I and W as halves of a lone B."""
    seconds = {kind: list(values) for kind, values in known.items()}
    if "B" not in seconds and {"I", "W"} <= seconds.keys():
        seconds["B"] = [i + w for i, w in zip(seconds["I"], seconds["W"], strict=True)]
    if "B" in seconds:
        for kind in ("I", "W"):
            seconds.setdefault(kind, [value / 2 for value in seconds["B"]])
    return seconds


def seconds_of_stages(
    seconds: Sequence[float], parts: np.ndarray, stages: np.ndarray, once: Sequence[float] = (0.0, 0.0)
) -> np.ndarray:
    """Return the seconds of each stage of a model whose parts take `seconds` each.

    `parts` and `stages` are their first layers, and the end. The seconds of `once` within the first and the last part
    stay undivided in the first and the last stage.
    """
    divided = np.array(seconds, float)
    divided[0] -= once[0]
    divided[-1] -= once[1]
    stage_seconds = np.diff(np.interp(stages, parts, _cumulative(divided)))
    stage_seconds[0] += once[0]
    stage_seconds[-1] += once[1]
    return stage_seconds


def _cumulative(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the sums of the first 0, 1, ... values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def write_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a profile atomically as YAML; the file gives the units."""
    write_atomically(path, yaml_text(profile_document(profile)))


def profile_document(profile: Profile) -> dict[str, Any]:
    """Return the document of a profile's file."""
    keys = (
        "source", "recorded", "devices", "fitted", *(["layers"] if profile.layers else []), "seconds", "interval",
        "once", "stretch", "links", *AMOUNTS,
    )  # fmt: skip
    document = {"schema": SCHEMA, "units": UNITS, "provenance": "measured"}
    document |= {key: getattr(profile, key) for key in keys}
    parts = {"link_fit": profile.link_fit, "steps": profile.steps}
    return nine_digits(document | {name: vars(part) for name, part in parts.items() if part})


def read_profile(path: str | PathLike[str]) -> Profile:
    """Return the profile in a file; raise ConfigError with the file, and the place of every fault."""
    found = read_record(path, SCHEMA, "a profile, as `ppsim calibrate` writes", _schema(), _faults)
    fit, steps = found.pop("link_fit"), found.pop("steps")
    return Profile(link_fit=fit and LinkFit(**dict(fit)), steps=steps and StepSpread(**dict(steps)), **found)


@cache
def _schema() -> Any:
    """Return the schema of a profile's file, with the rule of each value."""
    amount, pair, kind = checked_by(_amount), checked_by(_pair_of(_finite)), checked_by(choice(*KINDS))
    count, any_number, words = checked_by(whole_number(0)), checked_by(_finite), checked_by(str)
    fit = record_of(
        LinkFit, sizes=list[amount], seconds=list[amount], residual=amount, latency=pair,
        bandwidth=checked_by(_pair_of(BANDWIDTH)),
    )  # fmt: skip
    steps = record_of(
        StepSpread, errors=list[any_number], noise=amount, drift=any_number, steps=count, disturbed=count, halved=bool,
        summed=bool, reach=amount | None, ranks=amount,
    )  # fmt: skip
    return record_of(
        Profile, ignored=FIXED_KEYS,
        devices=checked_by(whole_number()), seconds=dict[kind, list[amount]], layers=list[checked_by(LAYERS)],
        interval=dict[kind, list[pair]], once=dict[kind, pair], stretch=dict[kind, amount], links=dict[str, amount],
        link_fit=fit | None, steps=steps | None, fitted=list[words], source=words, recorded=words,
        **{**dict.fromkeys(AMOUNTS, amount), "bandwidth": checked_by(BANDWIDTH)},
    )  # fmt: skip


def _faults(found: dict[str, Any]) -> list[str]:
    """Return the faults of values that are each legal by themselves."""
    counts = {len(values) for values in found["seconds"].values()}
    faults = []
    if not counts or 0 in counts:
        faults.append("seconds: a kind is empty, or all are missing; list one time a part of the model")
    elif len(counts) > 1:
        faults.append("seconds: the kinds have lists of different lengths; list one time a part of the model")
    if found["layers"] and counts != {len(found["layers"])}:
        faults.append("layers: must list the layers of each part of the model, as many as seconds lists")
    devices = found["devices"]
    for pair in found["links"]:
        ends = pair.split("-")
        if len(ends) != 2 or not all(end.isdecimal() and len(end) < 9 and int(end) < devices for end in ends):
            faults.append(f"links: {shown(pair)} must be two of the {devices} devices, such as 0-1")
    return faults


def _pair_of(check: Check) -> Check:
    """Return the check of two values, low and high, each by `check`."""
    pair = rule(lambda value: isinstance(value, list) and len(value) == 2, "must be two numbers, low and high")
    return lambda value: tuple(check(item) for item in pair(value))


_amount = number(lambda value: 0 <= value <= LARGEST, f"must be a finite number from 0 to {LARGEST:g}")
_finite = number(lambda value: abs(value) <= LARGEST, f"must be a finite number from {-LARGEST:g} to {LARGEST:g}")
