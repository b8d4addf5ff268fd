"""Profile: measured costs, fitted from traces, kept in a YAML file and usable for schedules that were never run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.costs.table import CostTable
from ppsim.errors import ConfigError, CostError
from ppsim.files import read_text, write_atomically

if TYPE_CHECKING:
    from ppsim.schedule import Schedule

SCHEMA = "ppsim.profile/1"
KINDS = ("F", "B", "I", "W")


@dataclass(frozen=True)
class Profile:
    """Costs of a model cut into any number of stages, measured on one machine.

    Attributes
    ----------
    devices : int
        Pipeline devices of the runs.
    seconds : mapping kind -> list of float
        Seconds of one microbatch through each of `len(list)` equal parts of the model, without `overhead`. A schedule
        with other stages takes the parts that its stages cover.
    interval : mapping kind -> list of (low, high)
        95 % confidence interval of each of those medians.
    overhead : float
        Seconds that every action costs beside its compute, whatever its size.
    latency : float
    bandwidth : float
        Of a transfer: seconds, and bytes per second (inf where transfers of one size only were measured).
    links : mapping "sender-receiver" -> seconds
        Seconds of one transfer between two devices where they were measured.
    transfer_bytes : float
        Bytes of one transfer in the runs.
    jitter : float
        Standard deviation of log(seconds / median) of compute actions, robust (1.4826 x median absolute deviation).
    overlap_slowdown : float
        Seconds of an action with a transfer under way on its device / seconds without one, median over kinds.
    residual : float
        Median relative error of the fitted runs' action times.
    fitted : list of str
        The schedules that were fitted, as `name p m`; `ppsim evaluate` calls all others held out.
    source : str
        Device name of the machine.
    """

    devices: int
    seconds: dict[str, list[float]]
    interval: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    overhead: float = 0.0
    latency: float = 0.0
    bandwidth: float = math.inf
    links: dict[str, float] = field(default_factory=dict)
    transfer_bytes: float = 0.0
    jitter: float = 0.0
    overlap_slowdown: float = 1.0
    residual: float = 0.0
    fitted: list[str] = field(default_factory=list)
    source: str = "unknown device"

    @property
    def provenance(self) -> dict[str, str]:
        """Where each cost comes from."""
        names = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
        measured = {names[kind]: "measured" for kind in self.seconds}
        return {name: measured.get(name, "derived") for name in names.values()} | dict.fromkeys(
            ("latency", "bandwidth", "transfer_bytes"), "measured"
        )

    def table(self, schedule: Schedule) -> CostTable:
        """The costs of `schedule`; CostError when it runs on another number of devices than the profile."""
        if schedule.devices != self.devices:
            raise CostError(
                f"the profile was measured on {self.devices} devices and the schedule has {schedule.devices}; "
                f"calibrate on {schedule.devices} devices"
            )
        stages, devices = schedule.num_stages, schedule.devices
        parts = {kind: covered(values, stages) for kind, values in self._completed().items()}
        latency = np.full((devices, devices), self.latency)
        for pair, seconds in self.links.items():
            sender, receiver = (int(number) for number in pair.split("-"))
            latency[sender, receiver] = seconds - (self.transfer_bytes / self.bandwidth)
        return CostTable(
            seconds=np.stack([parts[kind] for kind in KINDS]) + self.overhead,
            overlap=None,
            latency=np.maximum(latency, 0.0),
            seconds_per_byte=np.full((devices, devices), 1.0 / self.bandwidth),
            transfer_bytes=np.full((2, stages), self.transfer_bytes),
            stage_share=np.full(stages, devices / stages),
            weight_grad_fraction=np.ones(stages),
            slice_fraction=np.full(schedule.slices, 1.0 / schedule.slices),
        )

    def _completed(self) -> dict[str, list[float]]:
        """All four kinds: B = I + W, and of a lone B each half."""
        known = dict(self.seconds)
        if "B" not in known and {"I", "W"} <= known.keys():
            known["B"] = [i + w for i, w in zip(known["I"], known["W"], strict=True)]
        if "B" in known:
            for kind in ("I", "W"):
                known.setdefault(kind, [value / 2 for value in known["B"]])
        if missing := [kind for kind in KINDS if kind not in known]:
            raise CostError(f"the profile has no seconds of {', '.join(missing)}; calibrate on a run that has them")
        return known


def covered(parts: list[float], stages: int) -> np.ndarray:
    """Seconds of each of `stages` equal stages of a model whose equal parts take `parts` seconds each."""
    edges = np.concatenate([[0.0], np.cumsum(parts)])
    at = np.interp(np.arange(stages + 1) * len(parts) / stages, np.arange(len(parts) + 1), edges)
    return np.diff(at)


def write_profile(profile: Profile, path: str | PathLike[str]) -> None:
    """Write a profile as YAML, whole or not at all; units stand in the file."""
    from io import StringIO

    from ruamel.yaml import YAML

    document: dict[str, Any] = {
        "schema": SCHEMA,
        "units": {"time": "seconds", "size": "bytes"},
        "provenance": "measured",
        "source": profile.source,
        "devices": profile.devices,
        "fitted": list(profile.fitted),
        "seconds": {kind: [_short(value) for value in values] for kind, values in profile.seconds.items()},
        "interval": {
            kind: [[_short(low), _short(high)] for low, high in pairs] for kind, pairs in profile.interval.items()
        },
        "links": {pair: _short(value) for pair, value in profile.links.items()},
    }
    names = ("overhead", "latency", "bandwidth", "transfer_bytes", "jitter", "overlap_slowdown", "residual")
    document.update({name: _short(getattr(profile, name)) for name in names})
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment] - keep the order written above
    text = StringIO()
    yaml.dump(document, text)
    write_atomically(path, text.getvalue())


def _short(value: float) -> float:
    return float(f"{value:.9g}")


def read_profile(path: str | PathLike[str]) -> Profile:
    """Read a profile; ConfigError naming the file and the field for anything that is not one."""
    from ppsim.yaml_text import read_yaml

    document = read_yaml(read_text(path), str(path)).value
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else type(document).__name__
        raise ConfigError(
            f"{path}: not a profile: schema is {found!r}, expected {SCHEMA!r}, as `ppsim calibrate` writes"
        )
    try:
        seconds = {
            kind: [_time(value, f"seconds.{kind}") for value in document["seconds"][kind]]
            for kind in document["seconds"]
        }
        if unknown := [kind for kind in seconds if kind not in KINDS]:
            raise ValueError(f"seconds.{unknown[0]}: unknown kind; use {', '.join(KINDS)}")
        if empty := [kind for kind, values in seconds.items() if not values]:
            raise ValueError(f"seconds.{empty[0]}: is empty; list one time a part of the model")
        names = ("overhead", "latency", "transfer_bytes", "jitter", "overlap_slowdown", "residual")
        numbers = {name: _time(document[name], name) for name in names if name in document}
        bandwidth = float(document.get("bandwidth", math.inf))
        if not bandwidth > 0:
            raise ValueError(f"bandwidth: {bandwidth!r} must be above 0 bytes per second")
        return Profile(
            devices=int(document["devices"]),
            seconds=seconds,
            interval={
                kind: [(low, high) for low, high in pairs] for kind, pairs in document.get("interval", {}).items()
            },
            bandwidth=bandwidth,
            links={_pair(pair): _time(value, f"links.{pair}") for pair, value in document.get("links", {}).items()},
            fitted=[str(name) for name in document.get("fitted", [])],
            source=str(document.get("source", "unknown device")),
            **numbers,
        )
    except KeyError as error:
        raise ConfigError(f"{path}: not a whole profile: {error.args[0]!r} is missing") from None
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{path}: not a profile: {error}") from None


def _time(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name}: {value!r} must be a finite number of at least 0")
    return float(value)


def _pair(text: Any) -> str:
    sender, _, receiver = str(text).partition("-")
    if not (sender.isdecimal() and receiver.isdecimal()):
        raise ValueError(f"links: {text!r} must be two devices, such as 0-1")
    return f"{int(sender)}-{int(receiver)}"
