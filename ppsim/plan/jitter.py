"""Jitter: random differences between the given costs and real devices and links, equal for all schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base import rules
from ppsim.base.errors import ConfigError, CostError, error_at, shown
from ppsim.base.rules import Check, argument, check_fields, declared, described, is_whole, number
from ppsim.costs.profile import Profile
from ppsim.plan.resolve import Plan

RANDOM = "actions", "transfers", "devices", "links"  # what gets drawn factors
_ACTIONS, _TRANSFERS, _DEVICES, _LINKS, _RECOMPUTES, _VOCABULARY = range(6)

sigma = number(lambda value: 0 <= value <= 3, "must be a relative spread from 0 to 3, such as 0.05 for about 5 %")
factor = number(lambda value: 0 < value < math.inf, "must be a factor above 0, such as 1.2 for 20 % slower")


def _factors(key: str, example: str) -> Check:
    """Return a check of a mapping to factors; it copies the mapping, which the caller may change later."""

    def check(value: Any) -> dict[Any, float]:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{shown(value)} must map {key} to a factor, such as {example}")
        with error_at(f"{shown(value)}: "):
            return {key: factor(length) for key, length in value.items()}

    return check


@described
@dataclass(frozen=True)
class Jitter:
    """Factors on the lengths of actions and transfers; every drawn factor is lognormal with mean 1.

    A drawn factor is exp(sigma z - sigma^2 / 2) with z from a standard normal; sigma is about the relative spread. A
    device's factor also scales its optimizer step; collectives of sharded and data parallelism have no noise. Raises
    CostError if a sigma or factor is not a legal number.
    """

    actions: float = declared("sigma of a factor for each action of each sample", sigma, 0.0)
    transfers: float = declared("sigma of a factor for each transfer of each sample", sigma, 0.0)
    devices: float = declared("sigma of a factor for each device, which holds for a whole sample", sigma, 0.0)
    links: float = declared("sigma of a factor for each pair of devices, which holds for a whole sample", sigma, 0.0)
    slow_devices: Mapping[int, float] = declared(
        "device -> factor of every action of the device in all samples, such as {3: 1.2}",
        _factors("a device", "{3: 1.2}"), factory=dict,
    )  # fmt: skip
    slow_links: Mapping[tuple[int, int], float] = declared(
        "(device, device) -> factor of every transfer between the two, both ways, in all samples",
        _factors("a pair of devices", "{(0, 1): 2.0}"), factory=dict,
    )  # fmt: skip

    @classmethod
    def measured(cls, profile: Profile) -> Jitter:
        """Return the noise of actions in the measurements of a profile.

        It serves the spread of steps only: the overhead was fitted to steps with that noise and contains its mean.
        """
        return cls(actions=profile.jitter)

    def __post_init__(self) -> None:
        with error_at("jitter ", CostError):
            check_fields(self)

    @property
    def is_random(self) -> bool:
        """True if factors are drawn, so that samples differ."""
        return any(getattr(self, name) for name in RANDOM)

    @property
    def min_factor(self) -> float:
        """Smallest factor that any action or transfer gets; 0 if factors are drawn."""
        return 0.0 if self.is_random else min([1.0, *self.slow_devices.values(), *self.slow_links.values()])


def check_jitter(jitter: Jitter | None, seed: int) -> None:
    """Raise ConfigError unless `jitter` is a Jitter or None, and `seed` an integer of at least 0."""
    if jitter is not None and not isinstance(jitter, Jitter):
        raise ConfigError(f"jitter={shown(jitter)} must be a ppsim.Jitter, such as ppsim.Jitter(actions=0.05)")
    argument("seed", seed, rules.seed)


class JitteredPlan:
    """Samples of one plan under jitter.

    The factor of an action depends on its kind, stage and microbatch, not on its position in a list. Two schedules with
    the same stages and microbatches therefore get the same factors in the same sample (common random numbers). B, I and
    W share one factor, so that each has the requested spread and B takes as long as its halves.
    """

    def __init__(self, plan: Plan, jitter: Jitter, seed: int):
        schedule = plan.schedule
        self.plan, self.jitter, self.seed = plan, jitter, seed
        self.shape = (schedule.num_stages, schedule.microbatches)
        self.remote = np.flatnonzero(plan.remote)
        producer = plan.source[self.remote]
        self.sender, self.receiver = schedule.device[producer], schedule.device[self.remote]
        self.sent_cell = self._cell(schedule.kind[producer] != Kind.F, producer) if jitter.transfers else None
        self.cell = self._cell(schedule.kind, slice(None)) if jitter.actions else None
        self.slow_device = _slow_devices(jitter, schedule.devices)
        self.slow_link = _slow_links(jitter, self.sender, self.receiver, schedule.devices)

    def sample(self, number: int) -> Plan:
        """Return the plan under the factors of sample `number`; the same number gives the same factors.

        Raises CostError if lengths overflow.
        """
        plan, device = self.plan, self.slow_device
        if self.jitter.devices:
            device = device * self._draw(_DEVICES, self.jitter.devices, number, device.shape)
        with np.errstate(over="ignore", invalid="ignore"):  # the plan rejects lengths that are not finite
            return replace(
                plan,
                row_lengths=plan.seconds * self._action_factors(number, device),
                transfer_lengths=self._transfer_seconds(number),
                optimizer_seconds=None if plan.optimizer_seconds is None else plan.optimizer_seconds * device,
                noise=asdict(self.jitter) | {"seed": self.seed, "sample": number},
            )

    def _cell(self, first: np.ndarray, rows: slice | np.ndarray) -> np.ndarray:
        schedule = self.plan.schedule
        stages, microbatches = self.shape
        return (first.astype(np.int64) * stages + schedule.stage[rows]) * microbatches + schedule.microbatch[rows]

    def _link_factors(self, number: int) -> np.ndarray:
        """Return the factor of each transfer's pair of devices.

        Factors are drawn separately for each distance between two devices, from device 0 on; these are few.
        """
        lower, distance = np.minimum(self.sender, self.receiver), np.abs(self.sender - self.receiver)
        factors = np.ones(len(lower))
        for length in np.flatnonzero(np.bincount(distance)):
            pairs = distance == length
            drawn = self._draw(_LINKS, self.jitter.links, number, (int(lower[pairs].max()) + 1,), int(length))
            factors[pairs] = drawn[lower[pairs]]
        return factors

    def _draw(self, quantity: int, sigma: float, number: int, shape: tuple[int, ...], *part: int) -> np.ndarray:
        normal = np.random.default_rng([self.seed, number, quantity, *part]).standard_normal(shape)
        return np.exp(sigma * normal - sigma**2 / 2)

    def _action_factors(self, number: int, device: np.ndarray) -> np.ndarray:
        factors = device[self.plan.schedule.device]
        if self.cell is not None:
            forward, backward = self._draw(_ACTIONS, self.jitter.actions, number, (2, *self.shape))
            by_kind = [forward, backward, backward, backward]
            if self.plan.schedule.recomputes:
                by_kind.append(self._draw(_RECOMPUTES, self.jitter.actions, number, self.shape))
            if self.plan.schedule.cuts_vocabulary:
                by_kind += [forward] * (Kind.S - len(by_kind))  # fills the index of R, which the lists lack
                by_kind += [*self._draw(_VOCABULARY, self.jitter.actions, number, (2, *self.shape))]
            factors = factors * np.stack(by_kind).ravel().take(self.cell)
        first, second = self.plan.slots[:2]
        factors[first] = (factors[first] + factors[second]) / 2
        return factors

    def _transfer_seconds(self, number: int) -> np.ndarray:
        factors = self.slow_link
        if self.jitter.links:
            factors = factors * self._link_factors(number)
        if self.sent_cell is not None:
            drawn = self._draw(_TRANSFERS, self.jitter.transfers, number, (2, *self.shape))
            factors = factors * drawn.ravel().take(self.sent_cell)
        seconds = self.plan.transfer_seconds.copy()
        seconds[self.remote] *= factors
        return seconds


def _slow_devices(jitter: Jitter, devices: int) -> np.ndarray:
    factors = np.ones(devices)
    for device, factor in jitter.slow_devices.items():
        factors[_device(device, devices, f"jitter.slow_devices names device {device!r}")] = factor
    return factors


def _slow_links(jitter: Jitter, sender: np.ndarray, receiver: np.ndarray, devices: int) -> np.ndarray:
    """Return the factor of each transfer."""
    factors = np.ones(len(sender))
    for link, factor in jitter.slow_links.items():
        if not isinstance(link, tuple) or len(link) != 2 or link[::-1] in jitter.slow_links:  # two devices, and once
            raise CostError(f"jitter slow_links names {link!r}; name a pair of devices once, such as (0, 1)")
        first, second = (_device(device, devices, f"jitter slow_links names device {device!r}") for device in link)
        factors[((sender == first) & (receiver == second)) | ((sender == second) & (receiver == first))] = factor
    return factors


def _device(device: int, devices: int, subject: str) -> int:
    if not is_whole(device) or device >= devices:
        raise CostError(f"{subject}, but the schedule has devices 0 to {devices - 1}")
    return int(device)
