"""Profile: measured costs, fitted from traces, kept in a YAML file and usable for schedules that were never run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike
from typing import Any

import numpy as np

from ppsim.base.documents import check_document, check_schema, checked_by, document_error, record, unknown_keys
from ppsim.base.errors import CostError, shown
from ppsim.base.files import MOST_OF_A_CONFIG, read_text, write_atomically
from ppsim.base.rules import Check, choice, number, rule, whole_number
from ppsim.base.short_repr import short_repr
from ppsim.costs.given import LARGEST, SMALLEST_BANDWIDTH
from ppsim.costs.pairs import of_all_pairs, of_nodes
from ppsim.costs.spread import StepSpread
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns

SCHEMA = "ppsim.profile/1"
WHAT = "a profile"
SAID_ONCE = ("schema", "units", "provenance")  # the same in every profile
FORMER = ("overlap_slowdown",)  # in files written before it was left out
KINDS = ("F", "B", "I", "W")
LAYERS = whole_number(1, 2**20)


@dataclass(frozen=True)
class LinkFit:
    """How latency and bandwidth were fitted.

    Attributes
    ----------
    sizes, seconds : lists of float
        Bytes and median seconds of the transfers of each size that was measured.
    latency, bandwidth : (low, high)
        95 % confidence intervals, seconds and bytes per second.
    residual : float
        Median relative distance of the transfers from the fitted line.
    """

    sizes: list[float]
    seconds: list[float]
    latency: tuple[float, float]
    bandwidth: tuple[float, float]
    residual: float

    __repr__ = short_repr


@dataclass(frozen=True)
class Profile:
    """Costs of a model cut into any number of stages, measured on one machine.

    Attributes
    ----------
    devices : int
        Pipeline devices of the runs. A schedule on another number takes `latency` and `bandwidth` for all its links.
    seconds : mapping kind -> list of float
        Seconds of one microbatch through each of `len(list)` parts of the model, without `overhead`. A schedule with
        other stages takes the parts that its stages cover.
    layers : list of int
        Layers of each of those parts; empty: as many in each.
    stage_layers : tuple of int
        Layers of each stage of the schedules to price; empty: the parts themselves where there are as many stages, else
        equal stages. `cut` sets it; it is no part of the file.
    interval : mapping kind -> list of (low, high)
        95 % confidence interval of each of those medians.
    once : mapping kind -> (first, last)
        Seconds within the first and the last part that a finer cut does not divide: embedding, head and loss.
    overhead : float
        Seconds that every action costs beside its compute, whatever its size.
    latency : float
    bandwidth : float
        Of a transfer: seconds, and bytes per second (inf where transfers of one size only were measured).
    links : mapping "sender-receiver" -> seconds
        Seconds of one transfer between two devices where they were measured.
    link_fit : LinkFit or None
        Intervals and residual of latency and bandwidth; None where nothing was transferred.
    transfer_bytes : float
        Bytes of one transfer in the runs.
    jitter : float
        Standard deviation of log(seconds / median) of compute actions, robust (1.4826 x median absolute deviation).
        `ppsim.Jitter.measured(profile)` draws with it, and so does `jitter: {actions: measured}` in a config.
    residual : float
        Median relative error of the fitted runs' action times.
    steps : StepSpread or None
        How far measured steps lie from predicted ones; None in profiles that were written without.
    fitted : list of str
        The schedules that were fitted, as `name p m`; `ppsim evaluate` calls all others held out.
    source : str
        Device name of the machine.
    recorded : str
        Date of the newest run.
    """

    devices: int
    seconds: dict[str, list[float]]
    layers: list[int] = field(default_factory=list)
    stage_layers: tuple[int, ...] = ()
    interval: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    once: dict[str, tuple[float, float]] = field(default_factory=dict)
    overhead: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf
    links: dict[str, float] = field(default_factory=dict)
    link_fit: LinkFit | None = None
    transfer_bytes: float = 0.0
    jitter: float = 0.0
    residual: float = 0.0
    steps: StepSpread | None = None
    fitted: list[str] = field(default_factory=list)
    source: str = "unknown device"
    recorded: str = ""

    __repr__ = short_repr

    @property
    def provenance(self) -> dict[str, str]:
        """Where each cost comes from."""
        names = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
        measured = {names[kind]: "measured" for kind in self.seconds}
        return {name: measured.get(name, "derived") for name in names.values()} | {
            "latency": "measured",
            "bandwidth": "measured" if math.isfinite(self.bandwidth) else "not measured: one size of transfers",
            "transfer_bytes": "measured",
        }

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """The costs of `schedule`, on any number of devices.

        CostError where a kind was not measured, or `stage_layers` are of another number of stages or layers.
        """
        stages, devices = schedule.num_stages, schedule.devices
        once, seconds = completed(self.once), self._needed()
        at, of = self._edges(stages)
        parts = {kind: covered(values, at, of, once.get(kind, (0.0, 0.0))) for kind, values in seconds.items()}
        return CostTable(
            seconds=np.stack([parts[kind] for kind in KINDS]) + self.overhead,
            overlap=None,
            latency=self._latency(devices),
            seconds_per_byte=of_all_pairs(1.0 / self.bandwidth, devices),
            transfer_bytes=np.full((2, stages), self.transfer_bytes),
            stage_share=np.round(np.diff(of), 9) / of[-1] * devices,  # equal stages are equal to the last bit
            weight_grad_fraction=np.ones(stages),
            slice_fraction=np.full(schedule.slices, 1.0 / schedule.slices),
            overhead=np.full((len(KINDS), stages), self.overhead),
        )

    def cut(self, stage_layers: Sequence[int]) -> Profile:
        """These costs for stages of so many layers each; CostError where they are no whole numbers of at least 1."""
        return replace(self, stage_layers=tuple(map(LAYERS, stage_layers)))

    def with_link(self, **link: float) -> Profile:
        """These costs with another `latency`, `bandwidth` or `transfer_bytes`, which then hold between all devices."""
        return replace(self, links={}, **link)

    def _edges(self, stages: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the measured parts begin and end, and where the stages do: (parts + 1) and (stages + 1) layers."""
        count = len(next(iter(self.seconds.values())))
        parts = _sums(self.layers or [1] * count)
        if not self.stage_layers:
            return parts, parts if stages == count else np.arange(stages + 1) * parts[-1] / stages
        cut = _sums(self.stage_layers)
        if len(self.stage_layers) != stages:
            raise CostError(
                f"stage_layers={shown(list(self.stage_layers))} are of {len(self.stage_layers)} stages, but the "
                f"schedule has {stages}; give one number a stage"
            )
        if self.layers and cut[-1] != parts[-1]:
            raise CostError(
                f"stage_layers={shown(list(self.stage_layers))} hold {cut[-1]:.0f} layers, but the profile was "
                f"measured on {parts[-1]:.0f}; spread those"
            )
        return parts * (cut[-1] / parts[-1]), cut

    def _latency(self, devices: int) -> Any:
        """Latency by [sender, receiver], with that of each link where the devices are those of the runs."""
        links = {}
        for pair, seconds in self.links.items() if devices == self.devices else ():
            sender, receiver = (int(number) for number in pair.split("-"))
            links[sender, receiver] = max(seconds - self.transfer_bytes / self.bandwidth, 0.0)
        return of_nodes(np.arange(devices), self.latency, self.latency, links)

    def completed(self) -> dict[str, list[float]]:
        """Seconds of the kinds that are known or follow: B = I + W, and of a lone B each half."""
        return completed(self.seconds)

    def _needed(self) -> dict[str, list[float]]:
        known = self.completed()
        if missing := [kind for kind in KINDS if kind not in known]:
            raise CostError(f"the profile has no seconds of {', '.join(missing)}; calibrate on a run that has them")
        return known


def completed(known: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Seconds by kind with what follows from them: B = I + W, and of a lone B each half."""
    seconds = {kind: list(values) for kind, values in known.items()}
    if "B" not in seconds and {"I", "W"} <= seconds.keys():
        seconds["B"] = [i + w for i, w in zip(seconds["I"], seconds["W"], strict=True)]
    if "B" in seconds:
        for kind in ("I", "W"):
            seconds.setdefault(kind, [value / 2 for value in seconds["B"]])
    return seconds


def covered(
    seconds: Sequence[float], parts: np.ndarray, stages: np.ndarray, once: Sequence[float] = (0.0, 0.0)
) -> np.ndarray:
    """Seconds of each of some stages of a model whose parts take `seconds` each.

    `parts` and `stages` are where they begin and end, in layers. The seconds of `once` within the first and the last
    part stay whole in the first and the last stage.
    """
    divided = np.array(seconds, float)
    divided[0] -= once[0]
    divided[-1] -= once[1]
    of_stages = np.diff(np.interp(stages, parts, _sums(divided)))
    of_stages[0] += once[0]
    of_stages[-1] += once[1]
    return of_stages


def _sums(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sums of the first 0, 1, ... values."""
    return np.concatenate([[0.0], np.cumsum(values)])


def write_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a profile as YAML, whole or not at all; units stand in the file."""
    from io import StringIO

    from ruamel.yaml import YAML

    document = profile_document(profile)
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] - keep the order written above
    text = StringIO()
    yaml.dump(document, text)
    write_atomically(path, text.getvalue())


def profile_document(profile: Profile) -> dict[str, Any]:
    """A profile as its file holds it."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "units": {"time": "seconds", "size": "bytes"},
        "provenance": "measured",
        "source": profile.source,
        "recorded": profile.recorded,
        "devices": profile.devices,
        "fitted": list(profile.fitted),
        **({"layers": list(profile.layers)} if profile.layers else {}),
        "seconds": {kind: [_short(value) for value in values] for kind, values in profile.seconds.items()},
        "interval": {
            kind: [[_short(low), _short(high)] for low, high in pairs] for kind, pairs in profile.interval.items()
        },
        "once": {kind: [_short(value) for value in pair] for kind, pair in profile.once.items()},
        "links": {pair: _short(value) for pair, value in profile.links.items()},
    }
    names = ("overhead", "latency", "bandwidth", "transfer_bytes", "jitter", "residual")
    document.update({name: _short(getattr(profile, name)) for name in names})
    for name, part in (("link_fit", profile.link_fit), ("steps", profile.steps)):
        if part:
            document[name] = {key: _shortened(value) for key, value in vars(part).items()}
    return document


def _shortened(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_short(item) for item in value]
    return _short(value) if isinstance(value, float) else value


def _short(value: float) -> float:
    return float(f"{value:.9g}")


def read_profile(path: str | PathLike[str]) -> Profile:
    """Read a profile; ConfigError naming the file, and every fault with its place, for anything that is not one."""
    from ppsim.base.yaml_text import read_yaml

    place = str(path)
    document = read_yaml(read_text(path, most=MOST_OF_A_CONFIG), place).value
    check_schema(document, SCHEMA, place, f"{WHAT}, as `ppsim calibrate` writes")
    schema = _schema()
    if faults := _unknown(document, schema):
        raise document_error(faults, place, WHAT)
    found = dict(check_document(schema, document, place, WHAT))
    if faults := _faults(found):
        raise document_error(faults, place, WHAT)
    fit, steps = found.pop("link_fit"), found.pop("steps")
    return Profile(link_fit=fit and LinkFit(**dict(fit)), steps=steps and StepSpread(**dict(steps)), **found)


def _schema() -> Any:
    """What a profile's file holds, with the rule of each value."""
    amount, pair, kind = checked_by(_amount), checked_by(_pair_of(_finite)), checked_by(choice(*KINDS))
    fit = record(
        "LinkFit",
        sizes=(list[amount], ...), seconds=(list[amount], ...), residual=(amount, ...), latency=(pair, ...),
        bandwidth=(checked_by(_pair_of(_bandwidth)), ...),
    )  # fmt: skip
    count, any_number = checked_by(whole_number(0)), checked_by(_finite)
    steps = record(
        "Steps", errors=(list[any_number], ...), noise=(amount, ...), drift=(any_number, ...), steps=(count, ...),
        disturbed=(count, 0), halved=(bool, False), reach=(amount | None, None),
    )  # fmt: skip
    amounts = dict.fromkeys(("overhead", "latency", "transfer_bytes", "jitter", "residual"), (amount, 0.0))
    return record(
        "Profile",
        devices=(checked_by(whole_number()), ...),
        seconds=(dict[kind, list[amount]], ...),
        layers=(list[checked_by(LAYERS)], []),
        interval=(dict[kind, list[pair]], {}),
        once=(dict[kind, pair], {}),
        bandwidth=(checked_by(_bandwidth), math.inf),
        links=(dict[str, amount], {}),
        link_fit=(fit | None, None),
        steps=(steps | None, None),
        fitted=(list[checked_by(str)], []),
        source=(checked_by(str), "unknown device"),
        recorded=(checked_by(str), ""),
        **amounts,
    )


def _unknown(document: dict[str, Any], schema: Any) -> list[str]:
    """The keys of a profile, and of its sections, that mean nothing."""
    current = {name: value for name, value in document.items() if name not in FORMER}
    faults = unknown_keys(current, [*SAID_ONCE, *schema.model_fields])
    for name, kind in (("link_fit", LinkFit), ("steps", StepSpread)):
        faults += unknown_keys(document.get(name), [item.name for item in fields(kind)], name)
    return faults


def _faults(found: dict[str, Any]) -> list[str]:
    """What is wrong with values that are each legal by themselves."""
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
    """Two values, low and high, each held to `check`."""
    pair = rule(lambda value: isinstance(value, list) and len(value) == 2, "must be two numbers, low and high")
    return lambda value: tuple(check(item) for item in pair(value))


_amount = number(lambda value: 0 <= value <= LARGEST, f"must be a finite number from 0 to {LARGEST:g}")
_finite = number(lambda value: abs(value) <= LARGEST, f"must be a finite number from {-LARGEST:g} to {LARGEST:g}")
_bandwidth = number(
    lambda value: value >= SMALLEST_BANDWIDTH,
    f"must be a number of bytes per second of at least {SMALLEST_BANDWIDTH:g}",
)
