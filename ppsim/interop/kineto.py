"""PyTorch profiler (Kineto) traces of its pipeline runtime, one file a rank, read as a measured Trace.

The runtime wraps every action in a range named `PP:<action>` (torch/distributed/pipelining/schedules.py).
"""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.files import read_text
from ppsim.checks.faults import validate
from ppsim.interop.replays import Trace, read_trace
from ppsim.lowering.rows import transfer_ends
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import read_orders

PREFIX = "PP:"
RECEIVED = ("gloo:recv", "nccl:recv")
ENGINE = "autograd::engine::evaluate_function"
SUFFIXES = (".json", ".json.gz")
BLOCKED = 1e-4  # seconds; an action that waited less for its input shows no arrival, as that may have been long before


@dataclass(frozen=True)
class _Rank:
    """One rank's file: absolute seconds since `base` nanoseconds."""

    path: str
    rank: int
    base: int
    host: str
    device: str
    ranges: dict[str, list[tuple[float, float]]]
    received: np.ndarray
    engine: np.ndarray


def read_any_trace(path: str | PathLike[str]) -> Trace:
    """A trace file of the replay harness, or a folder with one Kineto file a rank.

    Raises ConfigError naming the file for anything else, ScheduleError for a faulty program.
    """
    return read_kineto(path) if Path(path).is_dir() else read_trace(path)


def read_kineto(folder: str | PathLike[str]) -> Trace:
    """Read PyTorch profiler traces of a run of `_PipelineScheduleRuntime`.

    Each rank has one file, .json or .json.gz, in `folder`; the n-th range of an action's name is that of the n-th
    step. Clocks are the hosts' own. An action starts when its input has arrived, not when it began to wait for it.
    Ranges on a GPU (`gpu_user_annotation`) are taken before those on the host.

    Raises ConfigError for files that are no such traces, ScheduleError where the ranges are no valid program.
    """
    files = sorted(path for path in Path(folder).iterdir() if path.name.endswith(SUFFIXES))
    if not files:
        raise ConfigError(f"{folder}: holds no profiler trace; put one {' or '.join(SUFFIXES)} file a rank there")
    ranks = sorted((_read_rank(path) for path in files), key=lambda rank: rank.rank)
    if [rank.rank for rank in ranks] != list(range(len(ranks))):
        found = ", ".join(str(rank.rank) for rank in ranks)
        raise ConfigError(f"{folder}: has files of ranks {found}; one file is needed for each rank from 0 on")
    try:
        program = read_orders([list(rank.ranges) for rank in ranks], Path(folder).resolve().name)
        validate(program)
    except PpsimError as error:
        raise type(error)(f"{folder}: the {PREFIX} ranges are no valid program: {error}") from None
    start, end = _times(program, ranks)
    origin = np.nanmin(start, axis=1, keepdims=True)
    document = {
        "backend": "profiler",
        "transport": "directed",
        "environment": {"device": ranks[0].device},
        "hosts": len({rank.host for rank in ranks}),
    }
    return Trace(str(folder), program, start - origin, start - origin, end - origin, 0.0, document)


def _read_rank(path: Path) -> _Rank:
    try:
        text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else read_text(path)
        document = json.loads(text)
        events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
        rank = int(document["distributedInfo"]["rank"])
        base = int(document.get("baseTimeNanoseconds", 0))
        ranges = _ranges(events)
        received = _spans(events, lambda event: event["name"] in RECEIVED)
        engine = _spans(events, lambda event: str(event["name"]).startswith(ENGINE))
        devices = document.get("deviceProperties") or [{}]
        device = str(devices[0].get("name", "CPU"))
    except KeyError as error:
        raise ConfigError(f"{path}: not a profiler trace of a distributed run: {error.args[0]!r} is missing") from None
    except (OSError, EOFError, zlib.error, RecursionError, TypeError, ValueError, AttributeError, LookupError) as error:
        raise ConfigError(f"{path}: not a profiler trace: {error}") from None
    if not ranges:
        raise ConfigError(f"{path}: holds no range named {PREFIX}<action>, as PyTorch's pipeline runtime records")
    return _Rank(str(path), rank, base, str(document.get("host_name", "")), device, ranges, received, engine)


def _ranges(events: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """(start, end) in seconds of each action's ranges in time order, actions in the order of their first range."""
    named = [event for event in events if str(event["name"]).startswith(PREFIX)]
    on_gpu = {event["name"] for event in named if event.get("cat") == "gpu_user_annotation"}
    named = [e for e in named if e["name"] not in on_gpu or e.get("cat") == "gpu_user_annotation"]
    ranges: dict[str, list[tuple[float, float]]] = {}
    for start, length, name in sorted((float(e["ts"]), float(e["dur"]), str(e["name"])) for e in named):
        ranges.setdefault(name.removeprefix(PREFIX), []).append((start / 1e6, (start + length) / 1e6))
    return ranges


def _spans(events: list[dict[str, Any]], wanted: Any) -> np.ndarray:
    """(spans, 2) starts and ends in seconds, in time order."""
    spans = [(float(e["ts"]) / 1e6, (float(e["ts"]) + float(e["dur"])) / 1e6) for e in events if wanted(e)]
    return np.array(sorted(spans)).reshape(-1, 2)


def _times(program: ScheduleColumns, ranks: list[_Rank]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each row of each step, seconds on rank 0's time base; nan where nothing was recorded."""
    steps = max(len(spans) for rank in ranks for spans in rank.ranges.values())
    start, end = (np.full((steps, len(program.kind)), np.nan) for _ in range(2))
    for device, rank in enumerate(ranks):
        shift = (rank.base - ranks[0].base) / 1e9
        row = int(program.offsets[device])
        for action, spans in rank.ranges.items():
            parts = 2 if action.startswith("(") else 1
            for step, span in enumerate(spans):
                edges = _edges(program, row, parts, span, rank)
                start[step, row : row + parts] = edges[:-1]
                end[step, row : row + parts] = edges[1:]
            row += parts
        rows = slice(int(program.offsets[device]), row)
        start[:, rows] += shift
        end[:, rows] += shift
        received = rank.received + shift
        _set_arrivals(program, rows, received, start, end)
    return start, end


def _edges(program: ScheduleColumns, row: int, parts: int, span: tuple[float, float], rank: _Rank) -> list[float]:
    """Where the actions of one range begin and end; the backward of a fused one is where autograd runs."""
    if parts == 1:
        return [span[0], span[1]]
    inside = rank.engine[(rank.engine[:, 0] >= span[0]) & (rank.engine[:, 1] <= span[1])]
    if not len(inside):
        return [span[0], np.nan, span[1]]
    return [span[0], inside[0, 0] if program.kind[row] == Kind.F else inside[-1, 1], span[1]]


def _set_arrivals(
    program: ScheduleColumns, rows: slice, received: np.ndarray, start: np.ndarray, end: np.ndarray
) -> None:
    """A RECV ends when its wait returned, and the action that needs it starts then.

    On a GPU, where no wait is on the host, the ranges stay as they are.
    """
    ends = transfer_ends(program)
    mine = ~ends.is_send & (ends.row >= rows.start) & (ends.row < rows.stop)
    for receive, consumer in zip(ends.row[mine].tolist(), ends.consumer[mine].tolist(), strict=True):
        for step in range(len(start)):
            inside = np.flatnonzero((received[:, 0] >= start[step, receive]) & (received[:, 0] <= end[step, receive]))
            if not len(inside):
                continue
            arrived = float(received[inside[0], 1])
            waited = arrived - start[step, consumer]
            end[step, receive] = arrived if waited > BLOCKED else np.nan
            if waited > 0 and not arrived > end[step, consumer]:
                start[step, consumer] = arrived
