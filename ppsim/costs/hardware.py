"""Data sheets of devices and links, each number with its source; users add their own in the config."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ppsim.base import rules
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import changed_fields, check_fields, choice, declared, described, instance
from ppsim.costs.collectives import ALL_REDUCES


def _source(what: str) -> Any:
    return declared(f"where {what} from", rules.text, "given", example="table 2 of the vendor's sheet")


@described
@dataclass(frozen=True)
class DeviceSheet:
    """One accelerator. Raises ConfigError with the field, its value and what is legal."""

    name: str = declared("name", rules.text, example="ours")
    peak: float = declared("FLOP/s, dense bf16 matrix products", rules.positive, unit="FLOP/s", example="400 TFLOP/s")
    memory: float = declared("bytes", rules.positive, unit="bytes", example="96 GB")
    achieved: float = declared(
        "part of `peak` that actions reach, transfers and collectives apart, above 0 to 1",
        rules.fraction,
        example="0.5",
    )
    source: str = _source("the numbers come")
    achieved_source: str = _source("`achieved` comes")
    memory_bandwidth: float | None = declared(
        "bytes per second; what the optimizer step is priced by", rules.positive, None,
        unit="bytes per second", example="2.4 TB/s", default_text="not known",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self, f"; device {shown(self.name)}")


@described
@dataclass(frozen=True)
class LinkSheet:
    """One kind of link. Raises ConfigError with the field, its value and what is legal."""

    name: str = declared("name", rules.text, example="4 x 100G")
    bandwidth: float = declared(
        "bytes per second, one way: of one device inside a node, of one network card between nodes",
        rules.positive,
        unit="bytes per second",
        example="100 Gb/s",
    )
    latency: float = declared(
        "seconds of one message, or of one hop of a collective", rules.weight, unit="seconds", example="8 us"
    )
    source: str = _source("the numbers come")
    latency_source: str = _source("`latency` comes")

    def __post_init__(self) -> None:
        check_fields(self, f"; link {shown(self.name)}")


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


_DEVICE_WANTED = instance(DeviceSheet, "ppsim.costs.DEVICES['H100 SXM'] is one")
_LINK_WANTED = instance(LinkSheet, "ppsim.costs.LINKS['NVLink 4'] is one")


@described
@dataclass(frozen=True, repr=False)
class Cluster:
    """Devices in nodes: one link inside a node, network cards to other nodes.

    Raises ConfigError with the field, its value and what is legal.
    """

    device: DeviceSheet = declared("a name of `ppsim hardware`, or a section", _DEVICE_WANTED, example="H100 SXM")
    link: LinkSheet = declared("the link inside a node: a name, or a section", _LINK_WANTED, example="NVLink 4")
    network: LinkSheet = declared(
        "one network card of a node, one way: a name, or a section",
        _LINK_WANTED,
        example="InfiniBand NDR",
        default_text="`link`",
    )
    gpus_per_node: int = declared("GPUs", rules.whole_number(), 8, example="4")
    node_of_device: tuple[int, ...] | None = declared(
        "node of each pipeline device",
        rules.whole_numbers,
        None,
        example="[0, 0, 1, 1]",
        default_text="one behind the other, in Megatron-LM's order of GPUs",
    )
    cards_per_node: int | None = declared(
        "network cards that neighbouring GPUs share, on which transfers wait for each other",
        rules.whole_number(),
        None,
        example="4",
        default_text="one a GPU, no waiting",
    )
    all_reduce: str = declared("`ring`, `tree`, `fastest` of both", choice(*ALL_REDUCES), "ring", example="fastest")

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        check_fields(self)

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
