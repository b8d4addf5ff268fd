"""Collectives: seconds of ring, tree and all-to-all exchanges over one link, by latency per hop and bandwidth.

Sources: rings, Thakur, Rabenseifner, Gropp 2005, Optimization of Collective Communication Operations in MPICH; trees,
Sanders, Speck, Traeff 2009, Two-tree algorithms for full bandwidth broadcast, reduction and scan, which NCCL uses.
"""

from __future__ import annotations

import math
from typing import Protocol

ALL_REDUCES = ("ring", "tree", "fastest")


class Link(Protocol):
    """What a collective asks of a link: seconds of one hop, bytes per second one way."""

    @property
    def latency(self) -> float: ...

    @property
    def bandwidth(self) -> float: ...


def all_gather(size: int, total_bytes: float, link: Link) -> float:
    """Ring: size - 1 hops, each of total_bytes / size. A reduce-scatter takes as long."""
    return (size - 1) * (link.latency + total_bytes / size / link.bandwidth)


def all_reduce(size: int, total_bytes: float, link: Link, algorithm: str = "ring") -> float:
    """Of `algorithm` "ring", "tree", or "fastest", the shorter of both."""
    if size == 1:
        return 0.0
    if algorithm == "ring":
        return ring_all_reduce(size, total_bytes, link)
    tree = tree_all_reduce(size, total_bytes, link)
    return tree if algorithm == "tree" else min(ring_all_reduce(size, total_bytes, link), tree)


def ring_all_reduce(size: int, total_bytes: float, link: Link) -> float:
    """A reduce-scatter and an all-gather: least bytes, a hop for each member."""
    return 2 * all_gather(size, total_bytes, link)


def tree_all_reduce(size: int, total_bytes: float, link: Link) -> float:
    """Up and down two trees that carry half of the bytes each: few hops, all bytes twice."""
    return 2 * (math.ceil(math.log2(size)) * link.latency + total_bytes / link.bandwidth)
