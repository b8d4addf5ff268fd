"""Collectives: seconds of ring and all-to-all exchanges over one link, as latency per hop plus bytes over bandwidth.

Source of the ring algorithms: Thakur, Rabenseifner, Gropp 2005, Optimization of Collective Communication Operations in
MPICH.
"""

from ppsim.costs.hardware import LinkSheet


def all_gather(size: int, total_bytes: float, link: LinkSheet) -> float:
    """Ring: size - 1 hops, each of total_bytes / size. A reduce-scatter takes as long."""
    return (size - 1) * (link.latency + total_bytes / size / link.bandwidth)


def all_reduce(size: int, total_bytes: float, link: LinkSheet) -> float:
    """Ring: a reduce-scatter and an all-gather."""
    return 2 * all_gather(size, total_bytes, link)


def all_to_all(size: int, sent_bytes: float, link: LinkSheet) -> float:
    """Each member sends sent_bytes / size to each other member, one pair after the other."""
    return (size - 1) * (link.latency + sent_bytes / size / link.bandwidth)
