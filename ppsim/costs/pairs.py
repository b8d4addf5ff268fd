"""Values by pair of devices, [sender, receiver]: a matrix for few devices, a rule for many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.immutable import EqualColumns, unwritable

_FEW_DEVICES = 256  # their matrix takes half a megabyte


class PairRule(EqualColumns, ABC):
    """Rule that reads like a matrix by [sender, receiver]; each entry is computed when it is read.

    `np.asarray` gives the whole matrix.
    """

    node: np.ndarray

    @abstractmethod
    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """Return the entries of these pairs."""

    def __getitem__(self, pair: Any) -> Any:
        sender, receiver = pair if isinstance(pair, tuple) else (pair, slice(None))
        every = np.arange(len(self.node))
        return self.at(every[sender], every[receiver])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        every = np.arange(len(self.node))
        return np.asarray(self.at(every[:, None], every[None, :]), dtype)


@dataclass(frozen=True, eq=False)
class LinkRule(PairRule):
    """One number for pairs inside a node, one for pairs between nodes, and own numbers for listed pairs."""

    node: np.ndarray  # int64 (devices,)
    inside: float
    between: float
    number: np.ndarray  # int64 (devices,): number of each device in the listed pairs
    # listed, value: int64, float64 (listed pairs,): `sender * count + receiver` in rising order; the number of the pair
    listed: np.ndarray
    value: np.ndarray
    count: int  # devices that the listed pairs were numbered among

    @property
    def shape(self) -> tuple[int, int]:
        """(devices, devices)."""
        return len(self.node), len(self.node)

    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """Return the numbers of these pairs."""
        found = np.where(self.node[sender] == self.node[receiver], self.inside, self.between)
        if not len(self.listed):
            return found
        pair = self.number[sender] * self.count + self.number[receiver]
        index = np.minimum(np.searchsorted(self.listed, pair), len(self.listed) - 1)
        return np.where(self.listed[index] == pair, self.value[index], found)

    def between_devices(self, devices: np.ndarray) -> LinkRule:
        """Return the rule for a selection of devices."""
        return replace(self, node=self.node[devices], number=self.number[devices])

    def values(self) -> np.ndarray:
        """Return the numbers that pairs of two different devices may have."""
        nodes = len(np.unique(self.node))
        return np.concatenate([self.value, [self.inside] * (nodes < len(self.node)), [self.between] * (nodes > 1)])


@dataclass(frozen=True, eq=False)
class PortRule(PairRule):
    """Ports that each pair's transfers use: those out of the sender, then those into the receiver."""

    node: np.ndarray  # int64 (devices,)
    # out, into: int32 (devices, ports): no port is in both, and none twice in one row
    out: np.ndarray
    into: np.ndarray
    # bool (ports out + ports in,): ports that only transfers between nodes use; other pairs have -1 there
    between: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """(devices, devices, ports of a pair)."""
        return len(self.node), len(self.node), len(self.between)

    @property
    def dtype(self) -> np.dtype:
        """Type of the port numbers."""
        return self.out.dtype

    def ports(self) -> np.ndarray:
        """Return every port that a pair may use, one column."""
        return np.concatenate([self.out.ravel(), self.into.ravel()])

    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """Return the ports of these pairs, int32, along the last axis."""
        sender, receiver = np.broadcast_arrays(sender, receiver)
        used = np.concatenate([self.out[sender], self.into[receiver]], axis=-1)
        same = self.node[sender] == self.node[receiver]
        return np.where(same[..., None] & self.between, np.int32(-1), used)


def equal_for_all_pairs(value: float, devices: int) -> np.ndarray:
    """Return a read-only matrix of one value, (devices, devices), in the memory of that value."""
    # A closed base: CostTable would copy a view of an array that can be written.
    return np.broadcast_to(unwritable(np.array(value)), (devices, devices))


def by_sender(value: np.ndarray) -> np.ndarray:
    """Return a read-only matrix by [sender, receiver] of the senders' values, (devices,), in the memory of these."""
    if np.all(value == value[0]):
        return equal_for_all_pairs(float(value[0]), len(value))
    return np.broadcast_to(unwritable(value[:, None]), (len(value), len(value)))


def values_by_node(
    node: np.ndarray, inside: float, between: float, listed: Mapping[tuple[int, int], float] | None = None
) -> np.ndarray | LinkRule:
    """Return values by [sender, receiver] for devices in these nodes, int64; `listed` pairs have their own."""
    pairs = np.array(list(listed or ()), np.int64).reshape(-1, 2)
    number = pairs[:, 0] * len(node) + pairs[:, 1]
    order = np.argsort(number)
    value = np.array(list((listed or {}).values()), np.float64)[order]
    return _matrix_if_small(LinkRule(node, inside, between, np.arange(len(node)), number[order], value, len(node)))


def ports_by_node(node: np.ndarray, out: np.ndarray, into: np.ndarray, between: np.ndarray) -> np.ndarray | PortRule:
    """Return ports by [sender, receiver, port of the pair]; the arguments are `PortRule`'s."""
    return _matrix_if_small(PortRule(node, out.astype(np.int32), into.astype(np.int32), between))


def _matrix_if_small(rule: Any) -> Any:
    return np.asarray(rule) if len(rule.node) <= _FEW_DEVICES else rule


def between_devices(by_pair: Any, devices: np.ndarray) -> Any:
    """Return the entries by [sender, receiver] for a selection of devices."""
    if isinstance(by_pair, LinkRule):
        return by_pair.between_devices(devices)
    if not any(by_pair.strides[:2]):
        return equal_for_all_pairs(float(by_pair[0, 0]), len(devices))
    return by_pair[np.ix_(devices, devices)]


def distinct_values(by_pair: Any) -> np.ndarray:
    """Return the values that pairs of different devices may have, one column; for one device its own value."""
    if isinstance(by_pair, LinkRule):
        return by_pair.values()
    if len(by_pair) == 1 or not any(by_pair.strides):
        return by_pair[0, :1]
    if not by_pair.strides[1]:  # by sender
        return by_pair[:, 0]
    return by_pair[~np.eye(len(by_pair), dtype=bool)]
