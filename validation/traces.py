"""The trace file: when every row of a program was issued, started and ended, and where that was measured."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import ppsim
from ppsim import Program
from validation.clocks import Clocks
from validation.failures import ReplayError

SCHEMA = "ppsim.trace/1"
DECIMALS = 7


def step_columns(stamps, origin: float, offset: float) -> dict[str, list[float | None]]:
    """Stamps of one rank and step as seconds since its own origin, with the origin in rank 0's clock."""
    columns: dict[str, list[float | None]] = {
        name: [None if value is None else value - origin for value in getattr(stamps, name)]
        for name in ("issue", "start", "end")
    }
    columns["origin"] = [origin + offset]
    return columns


def trace_document(
    program: Program,
    gathered: list,
    clocks: list[Clocks],
    bytes_sent: int,
    environment: dict,
    options: argparse.Namespace,
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
        "backend": options.backend,
        "transport": transport_of(program, options),
        "compute": compute,
        "recorded": datetime.now(UTC).date().isoformat(),
        "environment": environment,
        "clocks": [asdict(clock) for clock in clocks],
        "steps": steps,
    }


def transport_of(program: Program, options: argparse.Namespace) -> str:
    """How transfers queue: NCCL's as their communicators, others by sender and receiver.

    With gloo, transfers of one pair may overtake each other; that matters only where the queues would deadlock.
    """
    if options.blocking:
        return "blocking"
    transport = options.layout if options.backend == "nccl" else "directed"
    try:
        ppsim.simulate(program, transport=transport)
    except ppsim.DeadlockError:
        return "async"
    return transport


def _shift(value: float | None, by: float) -> float | None:
    return None if value is None else round(value + by, DECIMALS)


def write_trace(path: str, document: dict) -> None:
    """Write the trace whole or not at all, a device such as /dev/stdout directly; ReplayError names the file."""
    target = Path(path)
    part = target if target.exists() and not target.is_file() else target.with_name(f".{target.name}.part")
    try:
        part.write_text(json.dumps(document, separators=(",", ":")))
        if part != target:
            os.replace(part, target)
    except OSError as error:
        if part != target:
            part.unlink(missing_ok=True)
        raise ReplayError(f"{path}: cannot be written: {error.strerror}") from None
