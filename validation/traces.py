"""The trace file: when every row of a program was issued, started and ended, and where that was measured."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from ppsim.schedule import Program

SCHEMA = "ppsim.trace/1"
DECIMALS = 9


def step_columns(stamps, origin: float, offset: float) -> dict[str, list[float | None]]:
    """Stamps of one rank and step as seconds since its own origin, with the origin in rank 0's clock."""
    columns: dict[str, list[float | None]] = {
        name: [None if value is None else value - origin for value in getattr(stamps, name)]
        for name in ("issue", "start", "end")
    }
    columns["origin"] = [origin + offset]
    return columns


def trace_document(
    program: Program, gathered: list, clocks: list, bytes_sent: int, environment: dict, options: argparse.Namespace
) -> dict:
    """The document that `ppsim.Timeline.from_trace` reads; times are seconds since the first rank began the step."""
    steps = []
    for number in range(len(gathered[0])):
        ranks = [columns[number] for columns in gathered]
        first = min(rank["origin"][0] for rank in ranks)
        steps.append(
            {
                name: [[_shift(value, rank["origin"][0] - first) for value in rank[name]] for rank in ranks]
                for name in ("issue", "start", "end")
            }
        )
    compute = {
        name: getattr(options, name)
        for name in ("compute", "forward", "backward", "input_grad", "weight_grad", "layers", "hidden", "heads",
                     "sequence", "batch", "dtype")
        if getattr(options, name, None) is not None
    }  # fmt: skip
    return {
        "schema": SCHEMA,
        "schedule": program.name,
        "devices": program.devices,
        "num_stages": program.num_stages,
        "microbatches": program.microbatches,
        "units": {"time": "seconds", "size": "bytes"},
        "orders": program.orders(),
        "transfer_bytes": bytes_sent,
        "backend": getattr(options, "backend", "streams"),
        "layout": getattr(options, "layout", "directed"),
        "blocking": bool(getattr(options, "blocking", False)),
        "compute": compute,
        "environment": environment,
        "clocks": [{"offset": offset, "hop": hop, "method": method} for offset, hop, method in clocks],
        "steps": steps,
    }


def _shift(value: float | None, by: float) -> float | None:
    return None if value is None else round(value + by, DECIMALS)


def write_trace(path: str, document: dict) -> None:
    """Write the trace whole or not at all; OSError names the file."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.resolve().parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(document, file, separators=(",", ":"))
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise OSError(f"{path}: the trace could not be written: {error.strerror or error}") from None
