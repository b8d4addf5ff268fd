"""What links are like, by [sender, receiver]: written out for few devices, a rule for many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.immutable import EqualColumns

_FEW_DEVICES = 256  # whose matrix by pair takes half a megabyte


class Rule(EqualColumns):
    """Reads as a matrix by [sender, receiver] does; the entries are worked out where they are read.

    `np.asarray` writes all of them out.
    """

    node: np.ndarray

    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """The entries of these pairs."""
        raise NotImplementedError

    def __getitem__(self, pair: Any) -> Any:
        sender, receiver = pair if isinstance(pair, tuple) else (pair, slice(None))
        every = np.arange(len(self.node))
        return self.at(every[sender], every[receiver])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        every = np.arange(len(self.node))
        return np.asarray(self.at(every[:, None], every[None, :]), dtype)


@dataclass(frozen=True, eq=False)
class LinkRule(Rule):
    """One number for pairs of devices inside a node, one for those between nodes, and others for pairs that are listed.

    Attributes
    ----------
    node : int64 (devices,)
    inside, between : float
    number : int64 (devices,)
        What the listed pairs call each device.
    listed, value : int64 and float64 (listed pairs,)
        `sender * most + receiver` in rising order, and the number of the pair.
    most : int
    """

    node: np.ndarray
    inside: float
    between: float
    number: np.ndarray
    listed: np.ndarray
    value: np.ndarray
    most: int

    @property
    def shape(self) -> tuple[int, int]:
        """(devices, devices)."""
        return len(self.node), len(self.node)

    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """The numbers of these pairs."""
        found = np.where(self.node[sender] == self.node[receiver], self.inside, self.between)
        if not len(self.listed):
            return found
        pair = self.number[sender] * self.most + self.number[receiver]
        place = np.minimum(np.searchsorted(self.listed, pair), len(self.listed) - 1)
        return np.where(self.listed[place] == pair, self.value[place], found)

    def among(self, devices: np.ndarray) -> LinkRule:
        """The rule of these devices."""
        return replace(self, node=self.node[devices], number=self.number[devices])

    def values(self) -> np.ndarray:
        """The numbers of the rule that pairs of two devices may have."""
        nodes = len(np.unique(self.node))
        return np.concatenate([self.value, [self.inside] * (nodes < len(self.node)), [self.between] * (nodes > 1)])


@dataclass(frozen=True, eq=False)
class WayRule(Rule):
    """The ports on the way of each pair: those out of the sender, then those into the receiver.

    Attributes
    ----------
    node : int64 (devices,)
    out, into : int32 (devices, ports)
        No port is in both, and none twice in one row.
    between : bool (ports out + ports in,)
        Ports that only ways between nodes have; other ways have -1 there.
    """

    node: np.ndarray
    out: np.ndarray
    into: np.ndarray
    between: np.ndarray

    @property
    def shape(self) -> tuple[int, int, int]:
        """(devices, devices, ports on a way)."""
        return len(self.node), len(self.node), len(self.between)

    @property
    def dtype(self) -> np.dtype:
        """Of the numbers of ports."""
        return self.out.dtype

    def ports(self) -> np.ndarray:
        """Every port that a way may have, one column."""
        return np.concatenate([self.out.ravel(), self.into.ravel()])

    def at(self, sender: np.ndarray, receiver: np.ndarray) -> np.ndarray:
        """The ports of these pairs, int32, along the last axis."""
        sender, receiver = np.broadcast_arrays(sender, receiver)
        ways = np.concatenate([self.out[sender], self.into[receiver]], axis=-1)
        same = self.node[sender] == self.node[receiver]
        return np.where(same[..., None] & self.between, np.int32(-1), ways)


def of_all_pairs(value: float, devices: int) -> np.ndarray:
    """One value for every pair of devices, (devices, devices); of many devices in the memory of one, and read-only."""
    shape = devices, devices
    return np.full(shape, value) if devices <= _FEW_DEVICES else np.broadcast_to(np.float64(value), shape)


def of_nodes(
    node: np.ndarray, inside: float, between: float, listed: Mapping[tuple[int, int], float] | None = None
) -> np.ndarray | LinkRule:
    """Values by [sender, receiver] of devices in these nodes, int64, beside those that are `listed`."""
    pairs = np.array(list(listed or ()), np.int64).reshape(-1, 2)
    number = pairs[:, 0] * len(node) + pairs[:, 1]
    order = np.argsort(number)
    value = np.array(list((listed or {}).values()), np.float64)[order]
    return _written(LinkRule(node, inside, between, np.arange(len(node)), number[order], value, len(node)))


def of_ways(node: np.ndarray, out: np.ndarray, into: np.ndarray, between: np.ndarray) -> np.ndarray | WayRule:
    """Ports by [sender, receiver, port on the way], as `WayRule` takes them."""
    return _written(WayRule(node, out.astype(np.int32), into.astype(np.int32), between))


def _written(rule: Any) -> Any:
    return np.asarray(rule) if len(rule.node) <= _FEW_DEVICES else rule


def among(by_pair: Any, devices: np.ndarray) -> Any:
    """The entries of these devices of something by [sender, receiver]."""
    if isinstance(by_pair, LinkRule):
        return by_pair.among(devices)
    if not any(by_pair.strides[:2]):
        return of_all_pairs(float(by_pair[0, 0]), len(devices))
    return by_pair[np.ix_(devices, devices)]


def values_between(by_pair: Any) -> np.ndarray:
    """The numbers that may differ of a matrix by pair of devices, one column; of one device its own."""
    if isinstance(by_pair, LinkRule):
        return by_pair.values()
    if len(by_pair) == 1 or not any(by_pair.strides):
        return by_pair[0, :1]
    return by_pair[~np.eye(len(by_pair), dtype=bool)]
