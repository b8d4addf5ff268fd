"""`ppsim hardware`: the data sheets of devices and links that a config can name, each number with its source."""

from __future__ import annotations

import dataclasses

from ppsim.base.units import percent_text, value_text
from ppsim.commands.options import JsonTarget
from ppsim.commands.reporting import answer, command
from ppsim.costs.hardware import DeviceSheet, LinkSheet
from ppsim.costs.sheets import DEVICES, LINKS

SCHEMA = "ppsim.hardware/1"
UNITS = {
    "peak": "FLOP/s, dense bf16",
    "peak_fp8": "FLOP/s, dense fp8",
    "memory": "bytes",
    "achieved": "fraction of peak, or of the bandwidth in collectives",
    "operators": "products, attention, flash_2, flash_1: fractions of peak; products_fp8: of peak_fp8; launch: seconds",
    "memory_bandwidth": "bytes per second",
    "bandwidth": "bytes per second, one way",
    "latency": "seconds a message",
}


@command
def hardware(json: JsonTarget = None) -> None:
    """List the known devices and links with their sources."""
    sheets = {"devices": DEVICES, "links": LINKS}
    lists = {word: [dataclasses.asdict(sheet) for sheet in group.values()] for word, group in sheets.items()}
    text = ["devices", *map(_device_text, DEVICES.values()), "", "links", *map(_link_text, LINKS.values())]
    answer({"schema": SCHEMA, **lists, "units": UNITS}, json, lambda: "\n".join(text))


def _device_text(sheet: DeviceSheet) -> str:
    memory = value_text(sheet.memory, "bytes")
    if sheet.memory_bandwidth is not None:
        memory += f" at {value_text(sheet.memory_bandwidth, 'bytes per second')}"
    narrow = f" and {value_text(sheet.peak_fp8, 'FLOP/s')} fp8" if sheet.peak_fp8 else ""
    law = sheet.operators
    reached = (
        f"; of it {percent_text(law.products * law.sustained, 0)} in large matrix products and "
        f"{percent_text(law.attention, 0)} in attention ({law.source})"
        if law
        else ""
    )
    return f"  {sheet.name}: {value_text(sheet.peak, 'FLOP/s')} dense bf16{narrow}, {memory} ({sheet.source}){reached}"


def _link_text(sheet: LinkSheet) -> str:
    return (
        f"  {sheet.name}: {value_text(sheet.bandwidth, 'bytes per second')} one way ({sheet.source}); "
        f"{value_text(sheet.latency, 'seconds')} a message ({sheet.latency_source})"
    )
