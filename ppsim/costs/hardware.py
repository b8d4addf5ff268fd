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
from ppsim.costs.operators import FITTED, FITTED_WORDS, OperatorLaw, Rates


def _source(what: str) -> Any:
    return declared(f"where {what} from", rules.text, "given", example="table 2 of the vendor's sheet")


@described
@dataclass(frozen=True)
class DeviceSheet:
    """One accelerator. Raises ConfigError with the field, its value and what is legal."""

    name: str = declared("name", rules.text, example="ours")
    peak: float = declared("FLOP/s, dense bf16 matrix products", rules.positive, unit="FLOP/s", example="400 TFLOP/s")
    memory: float = declared("bytes", rules.positive, unit="bytes", example="96 GB")
    achieved: float | None = declared(
        "part of `peak` that actions reach, transfers and collectives apart, above 0 to 1, in place of `operators`",
        rules.fraction,
        None,
        example="0.5",
        default_text="by `operators`",
    )
    source: str = _source("the numbers come")
    achieved_source: str = _source("`achieved` comes")
    memory_bandwidth: float | None = declared(
        "bytes per second; what element-wise operations and the optimizer step are priced by", rules.positive, None,
        unit="bytes per second", example="2.4 TB/s", default_text="not known",
    )  # fmt: skip
    operators: OperatorLaw | None = declared(
        "how fast matrix products, attention and element-wise operations run: a section, or a file of "
        "`ppsim calibrate --operators`",
        instance(OperatorLaw, "ppsim.costs.OperatorLaw(...) makes one"),
        None,
        example="{products: 0.8}",
        default_text="that of the known device; of another one `achieved` is needed",
    )

    def __post_init__(self) -> None:
        check_fields(self, f"; device {shown(self.name)}")
        if self.achieved is None and (self.operators is None or self.memory_bandwidth is None):
            raise ConfigError(
                f"device {shown(self.name)} gives no achieved and no operators with a memory_bandwidth; give one of "
                f"them, such as achieved 0.5"
            )

    @property
    def rates(self) -> Rates:
        """The device as its operators see it; only of a sheet without `achieved`."""
        assert self.operators is not None  # noqa: S101 - held by __post_init__, as the next
        assert self.memory_bandwidth is not None  # noqa: S101
        return Rates(self.operators, self.peak, self.memory_bandwidth)


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
    achieved: float = declared("part of `bandwidth` that collectives reach", rules.fraction, 1.0, example="0.8")

    def __post_init__(self) -> None:
        check_fields(self, f"; link {shown(self.name)}")

    @property
    def in_collectives(self) -> LinkSheet:
        """The link at the rate that collectives reach."""
        return replace(self, bandwidth=self.bandwidth * self.achieved, achieved=1.0) if self.achieved < 1 else self


_NCCL = "NCCL's tuning table, one hop of a ring, Simple protocol: github.com/NVIDIA/nccl, src/graph/tuning.cc, "
_ZOO = "stas00/ml-engineering, compute/accelerator/README.md"
_BEST = f"products: the best that a search over shapes measured (MAMF), {_ZOO}; "
_FLASH_2 = "attention: forward and backward together, causal, heads of 128, Dao-AILab/flash-attention, assets/"
_HOPPER = OperatorLaw(
    0.803, 0.50, 0.34, 0.145,
    f"{_BEST}{_FLASH_2}flash2_h100_fwd_bwd_benchmark.png; of the best kernel, the forward of flash3_fp16_fwd.png, its "
    "backward assumed three quarters as fast",
)  # fmt: skip


def _blackwell(products: float) -> OperatorLaw:
    return OperatorLaw(
        products, 0.50, 0.15, 0.065,
        f"{_BEST}attention: the best kernel the H100's part of the peak, the older ones its speed, assumed",
        sustained=FITTED["sustained_blackwell"],
    )  # fmt: skip


def _instinct(products: float) -> OperatorLaw:
    return OperatorLaw(
        products, 0.30, 0.25, 0.10, f"{_BEST}attention: assumed, no published figure was found"
    )  # fmt: skip


DEVICES: Mapping[str, DeviceSheet] = {
    sheet.name: sheet
    for sheet in (
        DeviceSheet(
            "A100 SXM", 312e12, 80e9, None,
            "NVIDIA A100 80GB data sheet (2021): bf16 312 TFLOP/s dense, 80 GB HBM2e at 2,039 GB/s",
            memory_bandwidth=2.039e12,
            operators=OperatorLaw(
                0.869, 0.625, 0.625, 0.26, f"{_BEST}{_FLASH_2}flash2_a100_fwd_bwd_benchmark.png",
            ),
        ),
        DeviceSheet(
            "H100 SXM", 989e12, 80e9, None,
            "NVIDIA H100 data sheet (2023): bf16 1,979 TFLOP/s with sparsity, half of it dense; 80 GB HBM3, 3.35 TB/s",
            memory_bandwidth=3.35e12, operators=_HOPPER,
        ),
        DeviceSheet(
            "H200 SXM", 989e12, 141e9, None,
            "NVIDIA H200 data sheet (2024): the H100's bf16 rate; 141 GB HBM3e at 4.8 TB/s",
            memory_bandwidth=4.8e12, operators=_HOPPER,
        ),
        DeviceSheet(
            "H800 SXM", 989e12, 80e9, None,
            "the H100's chip with fewer NVLinks: DeepSeek-V3 technical report, arXiv 2412.19437, section 3.1 and 3.2.2",
            memory_bandwidth=3.35e12, operators=_HOPPER,
        ),
        DeviceSheet(
            "H20", 148e12, 96e9, None,
            "no data sheet of the vendor was found; trade pages agree on 148 TFLOP/s fp16, 96 GB at 4.0 TB/s "
            "(willitrunai.com/es/gpus/h20-96gb)",
            memory_bandwidth=4.0e12, operators=_HOPPER,
        ),
        DeviceSheet(
            "B200 SXM", 2250e12, 180e9, None,
            "NVIDIA HGX B200 data sheet (2024): bf16 4.5 PFLOP/s with sparsity, half of it dense; HBM3e at 8 TB/s, of "
            "which 180 GB of 192 are usable",
            memory_bandwidth=8e12, operators=_blackwell(0.776),
        ),
        DeviceSheet(
            "GB200", 2450e12, 186e9, None,
            "one GPU: NVIDIA/dgxc-benchmarking README (bf16 2,450 TFLOP/s dense); 186 GB HBM3e at 8 TB/s, "
            "stas00/ml-engineering, compute/accelerator/README.md",
            memory_bandwidth=8e12, operators=_blackwell(0.744),
        ),
        DeviceSheet(
            "GB300", 2450e12, 279e9, None,
            f"one GPU: NVIDIA/dgxc-benchmarking README (bf16 2,450 TFLOP/s dense, 279 GB); 8 TB/s, {_ZOO}",
            memory_bandwidth=8e12, operators=_blackwell(0.744),
        ),
        DeviceSheet(
            "MI300X", 1307.4e12, 192e9, None,
            "AMD Instinct MI300X data sheet (2023): bf16 1,307.4 TFLOP/s dense, 192 GB HBM3 at 5.3 TB/s",
            memory_bandwidth=5.3e12, operators=_instinct(0.511),
        ),
        DeviceSheet(
            "MI355X", 2516.6e12, 288e9, None,
            "AMD Instinct MI355X: bf16 2,516.6 TFLOP/s dense, 288 GB HBM3E at 8 TB/s, as in stas00/ml-engineering, "
            "compute/accelerator/README.md",
            memory_bandwidth=8e12, operators=_instinct(0.622),
        ),
        DeviceSheet(
            "TPU v5p", 459e12, 95e9, None,
            "Google Cloud, docs.cloud.google.com/tpu/docs/v5p-training: one chip, bf16 459 TFLOP/s, 95 GB HBM2e at "
            "2,765 GB/s",
            memory_bandwidth=2.765e12,
            operators=OperatorLaw(
                0.83, 0.50, 0.50, 0.50,
                "products: square ones of 32,768 on TPU7x, AI-Hypercomputer/tpu-recipes, microbenchmarks/ironwood, "
                "taken over; attention: assumed",
            ),
        ),
    )
}  # fmt: skip

_RING = "; collectives: a ring's bus bandwidth with 16 GiB, stas00/ml-engineering, network/README.md: "
LINKS: Mapping[str, LinkSheet] = {
    sheet.name: sheet
    for sheet in (
        LinkSheet(
            "NVLink 3", 300e9, 3.4e-6, f"NVIDIA A100 data sheet: 600 GB/s both ways together{_RING}8 A100",
            _NCCL + "3.4 µs", 0.78,
        ),
        LinkSheet(
            "NVLink 4", 450e9, 3.4e-6, f"NVIDIA H100 data sheet: 900 GB/s both ways together{_RING}8 H200",
            _NCCL + "3.4 µs", 0.81,
        ),
        LinkSheet(
            "NVLink 4 H800", 200e9, 3.4e-6,
            "400 GB/s both ways together: trade pages; 160 GB/s are reached, DeepSeek-V3, arXiv 2412.19437, section "
            "3.2.2",
            _NCCL + "3.4 µs", 0.8,
        ),
        LinkSheet(
            "NVLink 5", 900e9, 3.4e-6, f"NVIDIA B200 data sheet: 1.8 TB/s both ways together{_RING}4 of 8 B200",
            _NCCL + "3.4 µs", 0.75,
        ),
        LinkSheet(
            "Infinity Fabric", 448e9, 3.4e-6,
            "AMD Instinct MI300X data sheet: 7 links of 128 GB/s both ways together, all in use at once",
            "assumed equal to NVLink's: no published figure was found", 0.8,
        ),
        LinkSheet(
            "Infinity Fabric 4", 535.5e9, 3.4e-6,
            "AMD Instinct MI355X: 7 links of 76.5 GB/s one way, stas00/ml-engineering, network/README.md",
            "assumed equal to NVLink's: no published figure was found", 0.8,
        ),
        LinkSheet(
            "TPU v5p ICI", 600e9, 1e-6,
            "Google Cloud, docs.cloud.google.com/tpu/docs/v5p-training: 1,200 GB/s both ways together, six links of a "
            "3D torus",
            "assumed: no published figure was found", 0.8,
        ),
        LinkSheet("PCIe 4", 32e9, 5.7e-6, "PCI Express 4.0, 16 lanes of 16 GT/s, before encoding", _NCCL + "5.7 µs"),
        LinkSheet("PCIe 5", 64e9, 5.7e-6, "PCI Express 5.0, 16 lanes of 32 GT/s, before encoding", _NCCL + "5.7 µs"),
        LinkSheet(
            "InfiniBand HDR", 25e9, 9.6e-6, f"InfiniBand HDR, one port of 200 Gb/s a card{_RING}4 nodes over EFA",
            _NCCL + "9.6 µs", 0.95,
        ),
        LinkSheet(
            "InfiniBand NDR", 50e9, 9.6e-6, f"InfiniBand NDR, one port of 400 Gb/s a card{_RING}4 nodes over EFA",
            _NCCL + "9.6 µs", 0.95,
        ),
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
    contention: float = declared(
        f"part of the seconds of a hidden collective by which the computation beside it grows ({FITTED_WORDS})",
        rules.weight,
        FITTED["contention"],
        example="0.3",
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
        link = self.link if size <= self.gpus_per_node else self.network_of_group(self.gpus_per_node)
        return link.in_collectives

    def link_of_ring(self, size: int, distance: int) -> LinkSheet:
        """The link of a ring over `size` GPUs that stand `distance` apart.

        Beyond a node, the `distance` rings that run through it side by side share all of its cards, and a ring is never
        faster than the link inside the node.
        """
        if size * distance <= self.gpus_per_node:
            return self.link.in_collectives
        share = self.network.in_collectives.bandwidth * self.cards / min(distance, self.gpus_per_node)
        return replace(self.network, bandwidth=min(share, self.link.in_collectives.bandwidth))
