"""Data sheets of devices and links, each number with its source; users add their own in the config."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ppsim.base.errors import ConfigError, shown
from ppsim.costs.collectives import ALL_REDUCES


@dataclass(frozen=True)
class DeviceSheet:
    """One accelerator.

    Attributes
    ----------
    name : str
    peak : FLOP/s
        Dense bf16 matrix products.
    memory : bytes
    achieved : 0..1
        Part of `peak` that the actions of a pipeline reach, transfers and collectives apart.
    source, achieved_source : str
        Where the numbers come from.
    memory_bandwidth : bytes per second, optional
        What the optimizer step is priced by; None where it is not known.
    """

    name: str
    peak: float
    memory: float
    achieved: float
    source: str = "given"
    achieved_source: str = "given"
    memory_bandwidth: float | None = None

    def __post_init__(self) -> None:
        _require_positive(self, "peak", "memory", "achieved")
        if self.memory_bandwidth is not None:
            _require_positive(self, "memory_bandwidth")
        if self.achieved > 1:
            raise ConfigError(f"achieved={self.achieved!r} of device {self.name} must be above 0 and at most 1")


@dataclass(frozen=True)
class LinkSheet:
    """One kind of link.

    Attributes
    ----------
    name : str
    bandwidth : bytes per second
        One way: of one device inside a node, of one network card between nodes.
    latency : seconds
        Of one message, or one hop of a collective.
    source, latency_source : str
    """

    name: str
    bandwidth: float
    latency: float
    source: str = "given"
    latency_source: str = "given"

    def __post_init__(self) -> None:
        _require_positive(self, "bandwidth")
        if not (math.isfinite(self.latency) and self.latency >= 0):
            raise ConfigError(f"latency={self.latency!r} of link {self.name} must be a number of seconds of at least 0")


def _require_positive(sheet: DeviceSheet | LinkSheet, *names: str) -> None:
    for name in names:
        value = getattr(sheet, name)
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value!r} of {sheet.name} must be a finite number above 0")


_A100_ACHIEVED = (
    "the median of the fractions, 0.48 to 0.71, at which this cost model reproduces published steps on A100; "
    "docs/cost-model.md has the table"
)
_H100_ACHIEVED = (
    "between the fractions, 0.51 and 0.55, at which this cost model reproduces two published steps on H100; "
    "docs/cost-model.md has the table"
)
_NCCL = "NCCL's tuning table, one hop of a ring, Simple protocol: github.com/NVIDIA/nccl, src/graph/tuning.cc, "

DEVICES: Mapping[str, DeviceSheet] = {
    sheet.name: sheet
    for sheet in (
        DeviceSheet(
            "A100 SXM", 312e12, 80e9, 0.60,
            "NVIDIA A100 80GB data sheet (2021): bf16 312 TFLOP/s dense, 80 GB HBM2e at 2,039 GB/s", _A100_ACHIEVED,
            2.039e12,
        ),
        DeviceSheet(
            "H100 SXM", 989e12, 80e9, 0.52,
            "NVIDIA H100 data sheet (2023): bf16 1,979 TFLOP/s with sparsity, half of it dense; 80 GB HBM3, 3.35 TB/s",
            _H100_ACHIEVED, 3.35e12,
        ),
        DeviceSheet(
            "H200 SXM", 989e12, 141e9, 0.52,
            "NVIDIA H200 data sheet (2024): the H100's bf16 rate; 141 GB HBM3e at 4.8 TB/s",
            "taken from the H100, the same chip", 4.8e12,
        ),
        DeviceSheet(
            "B200 SXM", 2250e12, 180e9, 0.52,
            "NVIDIA HGX B200 data sheet (2024): bf16 4.5 PFLOP/s with sparsity, half of it dense; HBM3e at 8 TB/s, of "
            "which 180 GB of 192 are usable",
            "assumed equal to the H100's: no published figure was found", 8e12,
        ),
        DeviceSheet(
            "MI300X", 1307.4e12, 192e9, 0.47,
            "AMD Instinct MI300X data sheet (2023): bf16 1,307.4 TFLOP/s dense, 192 GB HBM3 at 5.3 TB/s",
            "about 620 TFLOP/s of bare bf16 matrix products, SemiAnalysis, MI300X vs H100 vs H200 (Dec 2024): "
            "whole layers reach less",
            5.3e12,
        ),
    )
}  # fmt: skip

LINKS: Mapping[str, LinkSheet] = {
    sheet.name: sheet
    for sheet in (
        LinkSheet("NVLink 3", 300e9, 3.4e-6, "NVIDIA A100 data sheet: 600 GB/s both ways together", _NCCL + "3.4 µs"),
        LinkSheet("NVLink 4", 450e9, 3.4e-6, "NVIDIA H100 data sheet: 900 GB/s both ways together", _NCCL + "3.4 µs"),
        LinkSheet("NVLink 5", 900e9, 3.4e-6, "NVIDIA B200 data sheet: 1.8 TB/s both ways together", _NCCL + "3.4 µs"),
        LinkSheet(
            "Infinity Fabric", 448e9, 3.4e-6,
            "AMD Instinct MI300X data sheet: 7 links of 128 GB/s both ways together, all in use at once",
            "assumed equal to NVLink's: no published figure was found",
        ),
        LinkSheet("PCIe 4", 32e9, 5.7e-6, "PCI Express 4.0, 16 lanes of 16 GT/s, before encoding", _NCCL + "5.7 µs"),
        LinkSheet("PCIe 5", 64e9, 5.7e-6, "PCI Express 5.0, 16 lanes of 32 GT/s, before encoding", _NCCL + "5.7 µs"),
        LinkSheet("InfiniBand HDR", 25e9, 9.6e-6, "InfiniBand HDR, one port of 200 Gb/s a card", _NCCL + "9.6 µs"),
        LinkSheet("InfiniBand NDR", 50e9, 9.6e-6, "InfiniBand NDR, one port of 400 Gb/s a card", _NCCL + "9.6 µs"),
    )
}  # fmt: skip

Sheet = TypeVar("Sheet", DeviceSheet, LinkSheet)


def find_device(name: str) -> DeviceSheet:
    """The sheet called `name`, upper and lower case alike; ConfigError with the nearest names otherwise."""
    return _find("device", name, DEVICES)


def find_link(name: str) -> LinkSheet:
    """The sheet called `name`, upper and lower case alike; ConfigError with the nearest names otherwise."""
    return _find("link", name, LINKS)


def _find(word: str, name: str, sheets: Mapping[str, Sheet]) -> Sheet:
    known = {key.lower(): sheet for key, sheet in sheets.items()}
    known |= {key.split()[0].lower(): sheet for key, sheet in sheets.items() if word == "device"}
    wanted = str(name).lower().strip()
    if wanted in known:
        return known[wanted]
    near = dict.fromkeys(known[key].name for key in difflib.get_close_matches(wanted, known, n=2))
    hint = f"did you mean {' or '.join(near)}?" if near else f"the known ones are: {', '.join(sheets)}"
    raise ConfigError(f"unknown {word} {shown(name)}; {hint}")


@dataclass(frozen=True)
class Cluster:
    """Devices in nodes: one link inside a node, network cards to other nodes.

    Attributes
    ----------
    device : DeviceSheet
    link, network : LinkSheet
        Inside a node and between nodes.
    gpus_per_node : int >= 1
    node_of_device : tuple of int, optional
        Node of each pipeline device. Default: pipeline devices follow each other at a distance of the GPUs that one
        pipeline device's tensor-, context- and data-parallel group takes, Megatron-LM's order of ranks.
    cards_per_node : int >= 1, optional
        Network cards of a node, shared by neighbouring GPUs. Default: one a GPU.
    all_reduce : {"ring", "tree", "fastest"}
        How all-reduces go.
    """

    device: DeviceSheet
    link: LinkSheet
    network: LinkSheet
    gpus_per_node: int = 8
    node_of_device: tuple[int, ...] | None = None
    cards_per_node: int | None = None
    all_reduce: str = "ring"

    def __post_init__(self) -> None:
        for name in ("gpus_per_node", "cards_per_node"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError(f"{name}={shown(value)} must be a whole number of at least 1")
        if self.all_reduce not in ALL_REDUCES:
            raise ConfigError(f"all_reduce={shown(self.all_reduce)} is not known; use one of: {', '.join(ALL_REDUCES)}")

    def nodes(self, devices: int, gpus_per_device: int) -> list[int]:
        """Node of each of `devices` pipeline devices, each standing for `gpus_per_device` GPUs."""
        if self.node_of_device is None:
            return [device * gpus_per_device // self.gpus_per_node for device in range(devices)]
        if len(self.node_of_device) != devices:
            raise ConfigError(
                f"node_of_device lists {len(self.node_of_device)} devices, but the schedule has {devices}; "
                f"list {devices} nodes"
            )
        return list(self.node_of_device)

    @property
    def cards(self) -> int:
        """Network cards that the GPUs of a node use, at most one a GPU."""
        return min(self.cards_per_node or self.gpus_per_node, self.gpus_per_node)

    @property
    def gpus_per_card(self) -> int:
        return -(-self.gpus_per_node // self.cards)

    def card_of_devices(self, devices: int, gpus_per_device: int) -> list[tuple[int, int]]:
        """(node, card) of the first GPU of each pipeline device; neighbouring GPUs of a node share a card."""
        found, before = [], {}
        for node in self.nodes(devices, gpus_per_device):
            first_gpu = before.get(node, 0)
            before[node] = first_gpu + gpus_per_device
            found.append((node, first_gpu % self.gpus_per_node // self.gpus_per_card))
        return found

    def network_of_group(self, group: int) -> LinkSheet:
        """The network as one GPU sees it while the `group` neighbouring GPUs that do the same send at once."""
        return replace(self.network, bandwidth=self.network.bandwidth / min(group, self.gpus_per_card))

    def link_of_group(self, size: int) -> LinkSheet:
        """The link that a collective of `size` neighbouring GPUs is bound by while all groups of a node run theirs."""
        return self.link if size <= self.gpus_per_node else self.network_of_group(self.gpus_per_node)

    def link_of_ring(self, size: int, distance: int) -> LinkSheet:
        """The link of a ring over `size` GPUs that stand `distance` apart.

        Beyond a node, the `distance` rings that run through it side by side share all of its cards, and a ring is never
        faster than the link inside the node.
        """
        if size * distance <= self.gpus_per_node:
            return self.link
        share = self.network.bandwidth * self.cards / min(distance, self.gpus_per_node)
        return replace(self.network, bandwidth=min(share, self.link.bandwidth))
