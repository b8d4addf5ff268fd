"""Data sheets of devices and links, the ones that ship with ppsim, and clusters of devices."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from ppsim.base import rules
from ppsim.base.errors import ConfigError, error_at, shown
from ppsim.base.rules import argument, check_fields, declared, described, instance
from ppsim.costs.operators import FITTED, FITTED_WORDS, OperatorLaw, Rates


def _source(what: str) -> Any:
    return declared(f"where {what} from", rules.text, "given", example="table 2 of the vendor's sheet")


@described
@dataclass(frozen=True)
class DeviceSheet:
    """One accelerator. Raises ConfigError with the field, its value and what is legal."""

    name: str = declared("name", rules.text, example="ours")
    peak: float = declared("FLOP/s, dense bf16 matrix products", rules.positive, unit="FLOP/s", example="400 TFLOP/s")
    memory: float = declared("bytes, from the vendor's sheet", rules.positive, unit="bytes", example="96 GB")
    achieved: float | None = declared(
        "fraction of `peak` that actions reach, without transfers and collectives, above 0 to 1; replaces `operators`",
        rules.fraction, None, example="0.5", default_text="by `operators`",
    )  # fmt: skip
    usable: float | None = declared(
        "bytes that programs can allocate, as the driver reports them; `fits`, `choose` and all others use it",
        rules.positive, None, unit="bytes", example="95 GB", default_text="`memory`",
    )  # fmt: skip
    gpus_per_host: int | None = declared(
        "GPUs of a host, on which launch scripts start a process each, if a node of `gpus_per_node` has several hosts",
        rules.whole_number(), None, example="4", default_text="`gpus_per_node`",
    )  # fmt: skip
    source: str = _source("the numbers come")
    achieved_source: str = _source("`achieved` comes")
    memory_bandwidth: float | None = declared(
        "bytes per second; prices element-wise operations and the optimizer step", rules.positive, None,
        unit="bytes per second", example="2.4 TB/s", default_text="not known",
    )  # fmt: skip
    peak_fp8: float | None = declared(
        "FLOP/s, dense fp8 matrix products; needed with `layout.fp8`", rules.positive, None,
        unit="FLOP/s", example="2 PFLOP/s", default_text="not known",
    )  # fmt: skip
    operators: OperatorLaw | None = declared(
        "rates of matrix products, attention and element-wise operations: a section, or a file of "
        "`ppsim calibrate --operators`",
        instance(OperatorLaw, "ppsim.costs.OperatorLaw(...) makes one"),
        None,
        example="{products: 0.8}",
        default_text="that of the known device; of another one `achieved` is needed",
    )

    def __post_init__(self) -> None:
        with error_at(f"device {shown(self.name)}: "):
            check_fields(self)
        if self.achieved is None and (self.operators is None or self.memory_bandwidth is None):
            raise ConfigError(
                f"device {shown(self.name)} gives no achieved and no operators with a memory_bandwidth; give one of "
                f"them, such as achieved 0.5"
            )

    @property
    def capacity(self) -> float:
        """Bytes that programs can allocate; a headroom comes off them."""
        return self.memory if self.usable is None else self.usable

    @property
    def rates(self) -> Rates:
        """Operator law with the peaks and the bandwidth of this device; only for a sheet without `achieved`."""
        assert self.operators is not None  # noqa: S101 - __post_init__ checked it, and the next
        assert self.memory_bandwidth is not None  # noqa: S101
        return Rates(self.operators, self.peak, self.memory_bandwidth, self.peak_fp8 or 0.0)


@described
@dataclass(frozen=True)
class LinkSheet:
    """One kind of link. Raises ConfigError with the field, its value and what is legal."""

    name: str = declared("name", rules.text, example="4 x 100G")
    bandwidth: float = declared(
        "bytes per second, one way: of one device inside a node, of one network card between nodes", rules.positive,
        unit="bytes per second", example="100 Gb/s",
    )  # fmt: skip
    latency: float = declared(
        "seconds of one message, or of one hop of a collective", rules.weight, unit="seconds", example="8 us"
    )
    source: str = _source("the numbers come")
    latency_source: str = _source("`latency` comes")
    achieved: float = declared("fraction of `bandwidth` that collectives reach", rules.fraction, 1.0, example="0.8")
    links: int | None = declared(
        "links of a device that make up `bandwidth`, one to each other device of a node without a switch: a group of "
        "n devices uses n - 1 of them",
        rules.whole_number(), None, example="3", default_text="a switch gives all of `bandwidth` to any device",
    )  # fmt: skip

    def __post_init__(self) -> None:
        with error_at(f"link {shown(self.name)}: "):
            check_fields(self)

    def among(self, devices: int) -> LinkSheet:
        """Return the link with the bandwidth that each of so many devices of a node has to the others of them."""
        if self.links is None or devices > self.links:
            return self
        return replace(self, bandwidth=self.bandwidth * max(devices - 1, 1) / self.links, links=None)

    @cached_property
    def in_collectives(self) -> LinkSheet:
        """Link with the bandwidth that collectives reach."""
        return replace(self, bandwidth=self.bandwidth * self.achieved, achieved=1.0) if self.achieved < 1 else self


# 256 MB over 2 to 64 nodes of H100 took 0.2 to 0.3 ms a node longer in the median than at best: The Ultra-Scale
# Playbook, pp_comm_bandwidth.html. DeepSeek's profile (train.json) waits 2.0 ms over 8 nodes before each exchange.
NODE_WAIT = 2e-4
PCIE_4 = 16e9 * 16 * 128 / 130 / 8  # 16 GT/s on 16 lanes, 128 of 130 bits are data (PCI Express 4.0)
_DEVICE_WANTED = instance(DeviceSheet, "ppsim.costs.DEVICES['H100 SXM'] is one")
_LINK_WANTED = instance(LinkSheet, "ppsim.costs.LINKS['NVLink 4'] is one")


@described
@dataclass(frozen=True)
class Cluster:
    """Devices in nodes: one link inside a node, network cards to other nodes.

    Raises ConfigError with the field, its value and what is legal.
    """

    device: DeviceSheet = declared("a name of `ppsim hardware`, or a section", _DEVICE_WANTED, example="H100 SXM")
    link: LinkSheet = declared("the link inside a node: a name, or a section", _LINK_WANTED, example="NVLink 4")
    network: LinkSheet = declared(
        "one network card of a node, in one direction: a name, or a section", _LINK_WANTED, example="InfiniBand NDR",
        default_text="none: needed for GPUs on several nodes",
    )  # fmt: skip
    gpus_per_node: int = declared("GPUs", rules.whole_number(), 8, example="4")
    cards_per_node: int | None = declared(
        "network cards of a node, shared by neighbouring GPUs; transfers on one card wait", rules.whole_number(),
        None, example="4", default_text="one per GPU, no waiting",
    )  # fmt: skip
    node_wait: float = declared(
        "seconds that each node adds to a collective, because all wait for the last one",
        rules.weight, NODE_WAIT, unit="seconds", example="100 us", default_text="200 us",
    )  # fmt: skip
    host_bandwidth: float = declared(
        "bytes per second between a GPU and its host's memory, one way, of OFFLOAD and RELOAD", rules.positive, PCIE_4,
        unit="bytes per second", example="63 GB/s", default_text="31.5 GB/s, PCIe 4.0 x16",
    )  # fmt: skip
    host_latency: float = declared(
        "seconds of an OFFLOAD or RELOAD in addition to its bytes", rules.weight, 0.0, unit="seconds", example="10 us"
    )
    contention: float = declared(
        f"slowdown of computation by a collective that overlaps it, per second of the collective ({FITTED_WORDS})",
        rules.weight, FITTED["contention"], example="0.3",
    )  # fmt: skip

    def __post_init__(self) -> None:
        check_fields(self)

    def nodes(self, devices: int, gpus_per_device: int) -> list[int]:
        """Return the node of each of `devices` pipeline devices, each standing for `gpus_per_device` GPUs."""
        argument("devices", devices, rules.device_count)
        return [device * gpus_per_device // self.gpus_per_node for device in range(devices)]

    @property
    def gpus_per_host(self) -> int:
        """GPUs of a node that one host starts: all of them, unless the device's hosts have fewer."""
        return min(self.device.gpus_per_host or self.gpus_per_node, self.gpus_per_node)

    @property
    def cards(self) -> int:
        """Network cards that the GPUs of a node use, at most one per GPU."""
        return min(self.cards_per_node or self.gpus_per_node, self.gpus_per_node)

    @property
    def gpus_per_card(self) -> int:
        """GPUs of a node that share a network card."""
        return -(-self.gpus_per_node // self.cards)

    def cards_of_devices(self, devices: int, gpus_per_device: int) -> list[tuple[int, int]]:
        """Return (node, card) of the first GPU of each device; neighbouring GPUs of a node share a card."""
        places = [divmod(device * gpus_per_device, self.gpus_per_node) for device in range(devices)]
        return [(node, gpu // self.gpus_per_card) for node, gpu in places]

    def network_of_group(self, group: int) -> LinkSheet:
        """Return the network as one GPU sees it while `group` neighbouring GPUs send at once."""
        argument("group", group, rules.whole_number())
        return replace(self.network, bandwidth=self.network.bandwidth / min(group, self.gpus_per_card))

    def link_of_group(self, size: int) -> LinkSheet:
        """Return the link that limits a collective of `size` neighbouring GPUs while all groups of a node run one."""
        is_inside = size <= self.gpus_per_node
        return (self.link.among(size) if is_inside else self.network_of_group(self.gpus_per_node)).in_collectives

    def link_of_ring(self, size: int, distance: int) -> LinkSheet:
        """Return the link of a ring over `size` GPUs at a `distance` of GPUs from each other.

        Beyond a node, its `distance` parallel rings share all of its cards; no ring is faster than the link inside it.
        """
        if size * distance <= self.gpus_per_node:
            return self.link.among(size).in_collectives
        share = self.network.in_collectives.bandwidth * self.cards / min(distance, self.gpus_per_node)
        return replace(self.network, bandwidth=min(share, self.link.in_collectives.bandwidth))


_SHEETS = json.loads(Path(__file__).with_name("sheets.json").read_text(encoding="utf-8"))


def _law(like: str | None = None, **numbers: Any) -> OperatorLaw:
    """Return the law of a sheet: its own numbers, and the rest from the law that it names."""
    known = {**_SHEETS["laws"].get(like, {}), **numbers}
    return OperatorLaw(**{name: FITTED.get(value, value) for name, value in known.items()})


DEVICES: Mapping[str, DeviceSheet] = {
    sheet["name"]: DeviceSheet(**{**sheet, "operators": _law(**sheet["operators"])}) for sheet in _SHEETS["devices"]
}
LINKS: Mapping[str, LinkSheet] = {sheet["name"]: LinkSheet(**sheet) for sheet in _SHEETS["links"]}

Sheet = TypeVar("Sheet", DeviceSheet, LinkSheet)


def find_device(name: str) -> DeviceSheet:
    """Return the sheet called `name`, in upper or lower case; raise ConfigError with the nearest names otherwise."""
    return _find("device", name, DEVICES)


def find_link(name: str) -> LinkSheet:
    """Return the sheet called `name`, in upper or lower case; raise ConfigError with the nearest names otherwise."""
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
