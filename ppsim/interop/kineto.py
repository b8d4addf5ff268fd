"""Reader of PyTorch profiler (Kineto) traces of a pipeline, one file per rank, as a measured Trace."""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.documents import check_document, document_error, record
from ppsim.base.errors import ConfigError, PpsimError, error_at, shown
from ppsim.base.rules import is_number
from ppsim.interop.events import (
    NSIGHT,
    OTLP,
    Recording,
    processes,
    read_events,
    read_process,
    read_spans,
    spans_by_rank,
)
from ppsim.interop.primus_dumps import is_primus, read_primus
from ppsim.interop.ranges import (
    NO_PIPELINE,
    STEP,
    Match,
    Pattern,
    Span,
    by_action,
    named_ranges,
    outermost,
    pattern_of,
    whole_steps,
)
from ppsim.interop.ranks import on_one_clock, pipeline_group, refuse_other_pipelines, whole_pipelines
from ppsim.interop.traces import Trace, program_of, read_trace
from ppsim.lowering.rows import transfer_ends
from ppsim.schedule.columns import ScheduleColumns

SUFFIXES = (".json", ".json.gz", NSIGHT, *OTLP)
PREFIX, PYTORCH = "PP:", "PyTorch"  # of the names of its pipeline runtime's ranges, and their framework
RECEIVED = ("gloo:recv", "nccl:recv")  # ranges in which the host waits for a RECV
ENGINE = "autograd::engine::evaluate_function"  # ranges of backwards
GPU = "gpu_user_annotation"  # category of ranges on a GPU
LAUNCH, KERNEL = ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")  # categories
POINT_TO_POINT = "SendRecv"  # in the names of NCCL's point-to-point kernels, which wait for another rank
STAGE = re.compile(r"\(?(\d{1,10})[FBIW]\d")  # longer numbers are no actions
NOT_LAST_STAGE = re.compile(r"(\d{1,10})(SEND_F|RECV_B)\d")
MAX_NUMBER, MAX_NANOSECONDS = 1e18, 2**63  # of microseconds and launches, and of the base: far beyond any clock
MIN_WAIT = 1e-4  # seconds; if an action waited less for its input, the input may have arrived long before


class Launches:
    """Launches and kernels of a trace, collected event by event; ROCm's events have the same categories."""

    def __init__(self) -> None:
        self._launches, self._kernels = array("d"), array("d")

    def take(self, event: dict[str, Any]) -> bool:
        """Return whether an event is a launch or a kernel; store it if its numbers are valid."""
        category = event.get("cat")
        if category not in LAUNCH and category not in KERNEL:
            return False
        arguments = event.get("args")
        correlation = arguments.get("correlation") if isinstance(arguments, dict) else None
        numbers: list[Any] = [correlation, event.get("ts"), event.get("dur")]
        is_valid = all(is_number(value) and abs(value) < MAX_NUMBER for value in numbers) and numbers[2] >= 0
        if is_valid and POINT_TO_POINT not in str(event.get("name")):
            launch, start, duration = map(float, numbers)
            column = self._launches if category in LAUNCH else self._kernels
            column.extend((launch, start / 1e6, (start + duration) / 1e6))
        return True

    def on_gpu(self, spans: Iterable[Span]) -> list[Span]:
        """Return the (start, end) of each host range's kernels in seconds; a range without kernels itself."""
        launched, start, end = self._by_launch
        found = []
        for span in spans:
            first, last = np.searchsorted(launched, span)
            if last > first:
                span = (float(start[first:last].min()), float(end[first:last].max()))
            found.append(span)
        return found

    @cached_property
    def _by_launch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Launch time, start and end of each kernel in seconds, in the order of the launches."""
        launches, kernels = (np.array(column).reshape(-1, 3) for column in (self._launches, self._kernels))
        launches = launches[np.argsort(launches[:, 0], kind="stable")]
        launch = np.searchsorted(launches[:, 0], kernels[:, 0])
        known = np.flatnonzero(launch < len(launches))
        known = known[launches[launch[known], 0] == kernels[known, 0]]
        launched = launches[launch[known], 1]
        order = np.argsort(launched, kind="stable")
        return launched[order], kernels[known[order], 1], kernels[known[order], 2]


@dataclass(frozen=True)
class _Rank:
    """One rank's file; seconds count from `base` nanoseconds."""

    path: str
    rank: int
    base: int
    host: str
    device: str  # name of the hardware
    ranges: dict[str, list[Span]]  # by action, from ranges named `PP:<action>`, or found by a pattern
    received: np.ndarray  # waits for RECVs, as `_sorted_spans` returns them
    engine: np.ndarray  # autograd's ranges, likewise
    matches: list[list[Match]]  # by pattern: the ranges that it matches
    steps: list[float]  # starts of the profiler's steps
    world_size: int
    pipeline: tuple[int, ...]  # as `pipeline_group` returns it
    launches: Launches | None  # None if ranges on a GPU were recorded

    @cached_property
    def stages(self) -> frozenset[int]:
        """The stages in the names of its `PP:` ranges."""
        return frozenset(int(found[1]) for action in self.ranges if (found := STAGE.match(action)))

    @cached_property
    def num_stages(self) -> int:
        """The smallest number of stages that the ranges allow."""
        following = {int(found[1]) + 1 for action in self.ranges if (found := NOT_LAST_STAGE.match(action))}
        return 1 + max(self.stages | following, default=-1)


def read_any_trace(path: str | PathLike[str], ranges: tuple[str, str] | None = None) -> Trace:
    """Read a measured run: a trace file of the replay harness, a Primus dump, or profiler traces, one file per rank.

    `ranges` is as in `read_kineto`. Raises ConfigError with the path for anything else, ScheduleError for a faulty
    program.
    """
    is_path = isinstance(path, str | PathLike)  # `read_trace` reports anything else, and what does not exist
    is_folder, is_file = is_path and os.path.isdir(path), is_path and os.path.isfile(path)
    if is_file and str(path).endswith((".yaml", ".yml")):
        raise ConfigError(f"{path}: not a trace but a YAML file, such as a config; give a step's .json file or folder")
    if is_folder and is_primus(path):
        return read_primus(path)
    if is_folder or (is_file and str(path).endswith((NSIGHT, *OTLP))):
        return read_kineto(path, ranges)
    return read_trace(path)


def read_kineto(folder: str | PathLike[str], ranges: tuple[str, str] | None = None) -> Trace:
    """Read PyTorch profiler traces of a pipeline's ranks, Nsight Systems' SQLite exports, or Megatron-LM's spans.

    Each rank has one file, .json or .json.gz, in `folder`. Files are read event by event, as they may have gigabytes.
    Each process in an .sqlite export is a rank, in the order of file names and processes. Spans (.jsonl, .otlp.json)
    name their rank.

    - Ranges named `PP:<action>`, as `_PipelineScheduleRuntime` records, name their action; the n-th range of a name
      belongs to the n-th step. Without such ranges, names are matched with the patterns of `ppsim.interop.ranges`, or
      with `ranges`: two regular expressions for the names of forwards and of backwards.
    - Tensor and data parallelism run several pipelines at once; the first complete pipeline is read.
    - Clocks are shifted if there are several hosts, or if an action would start before its input exists.
    - An action starts when its input has arrived, not when the wait for the input begins.
    - Ranges on a GPU (`gpu_user_annotation`) replace ranges on the host. Ranges of functions exist only on the host;
      they last as long as the kernels that they launch.

    Raises ConfigError for files that are no such traces, ScheduleError if the ranges are no valid program.
    """
    place = Path(folder)
    candidates = [place] if place.is_file() else place.iterdir()
    files = sorted(path for path in candidates if path.name.endswith(SUFFIXES) and path.is_file())
    if not files:
        raise ConfigError(
            f"{folder}: {NO_PIPELINE}: it has no profiler trace; put one file per rank there: {', '.join(SUFFIXES)}"
        )
    patterns = pattern_of(ranges)
    recorded = sorted((_read_rank(*source, patterns) for source in _sources(files)), key=lambda rank: rank.rank)
    first, *others = _by_pipeline(recorded, str(folder))
    trace = _trace(folder, first, patterns, len(recorded))
    copies = []
    for ranks in others:
        with suppress(PpsimError):  # ranks that are no pipeline of their own are copies of those of the first one
            copies.append(_trace(folder, ranks, patterns, len(recorded)))
    return replace(trace, others=tuple(copies))


def _trace(folder: str | PathLike[str], ranks: list[_Rank], patterns: tuple[Pattern, ...], recorded: int) -> Trace:
    """Return the trace of one pipeline's ranks; `recorded` is the number of ranks in the folder."""
    if all(rank.ranges for rank in ranks):
        ranks, names_of = [replace(rank, ranges=_times_on_gpu(rank.ranges, rank)) for rank in ranks], PREFIX
    else:
        ranks, names_of = _named_by_pattern(folder, ranks, patterns)
    shifts = [(rank.base - ranks[0].base) / 1e9 for rank in ranks]
    whole = whole_steps([rank.ranges for rank in ranks], shifts)
    ranks = [replace(rank, ranges=named) for rank, named in zip(ranks, whole, strict=True)]
    orders = [list(rank.ranges) for rank in ranks]
    program = program_of(orders, Path(folder).resolve().name, f"{folder}: the {names_of} ranges are no valid program")
    hosts = len({rank.host for rank in ranks})
    start, end, moved = on_one_clock(program, *_times(program, ranks, shifts), hosts)
    refuse_other_pipelines(program, start, end, str(folder))
    return Trace.of_clock(
        str(folder),
        program,
        start,
        end,
        backend="profiler",
        ranges=names_of,
        framework=PYTORCH if names_of == PREFIX else next(one.framework for one in patterns if one.name == names_of),
        transport="directed" if program.is_program else "async",
        environment={"device": ranks[0].device},
        hosts=hosts,
        clocks_moved=moved,
        ranks=[rank.rank for rank in ranks],
        other_ranks=recorded - len(ranks),
    )


def _by_pipeline(ranks: list[_Rank], place: str) -> list[list[_Rank]]:
    """Return the ranks of each whole pipeline, in stage order."""
    for first, second in pairwise(ranks):
        if first.rank == second.rank:
            raise ConfigError(
                f"{second.path} is of rank {second.rank}, as {first.path} is; keep the files of one recording"
            )
    by_rank = {rank.rank: rank for rank in ranks}
    pipelines = whole_pipelines(
        {number: rank.pipeline for number, rank in by_rank.items()},
        {number: rank.stages for number, rank in by_rank.items()},
        max(rank.num_stages for rank in ranks),
        ranks[0].world_size,
        place,
    )
    return [[by_rank[number] for number in chosen] for chosen in pipelines]


def _named_by_pattern(
    folder: str | PathLike[str], ranks: list[_Rank], patterns: tuple[Pattern, ...]
) -> tuple[list[_Rank], str]:
    """Return the ranks with ranges named by the first pattern that matches ranges of all, and the pattern's name."""
    for number, pattern in enumerate(patterns):
        if all(rank.matches[number] for rank in ranks):
            with error_at(f"{folder}: {pattern.name} ranges: "):
                matches = [_without_waits(pattern, outermost(rank.matches[number]), rank.received) for rank in ranks]
                named = named_ranges(matches, [rank.steps for rank in ranks])
            executed = [replace(rank, ranges=_times_on_gpu(one, rank)) for rank, one in zip(ranks, named, strict=True)]
            return executed, pattern.name
    without = next(rank.path for rank in ranks if not rank.ranges)
    known = ", ".join(pattern.name for pattern in patterns)
    raise ConfigError(
        f"{without}: {NO_PIPELINE}: no range is named {PREFIX}<action>, as PyTorch's pipeline runtime names "
        f"them, and not every file has ranges of {known}; profile with with_stack=True, or give the names of your own, "
        "two regular expressions: --ranges FORWARD BACKWARD, in Python ranges=(FORWARD, BACKWARD)"
    )


def _times_on_gpu(ranges: dict[str, list[Span]], rank: _Rank) -> dict[str, list[Span]]:
    """Return the times of a rank's actions; for host ranges that launch kernels, the times on the GPU."""
    if rank.launches is None:
        return ranges
    return {action: rank.launches.on_gpu(spans) for action, spans in ranges.items()}


def _without_waits(pattern: Pattern, matches: list[Match], received: np.ndarray) -> list[Match]:
    """Return the ranges without their waits for inputs at the start."""
    if not pattern.receives:
        return matches
    after = []
    for start, end, what in matches:
        inside = received[(received[:, 0] >= start) & (received[:, 1] <= end)]
        after.append((float(inside[:, 1].max(initial=start)), end, what))
    return after


_HEAD = record(  # the entries of a file that are used, except its events
    "Head",
    ignored=None,
    distributedInfo=(record("Info", ignored=None, rank=(int, ...), world_size=(int, 0), pg_config=(Any, None)), ...),
    traceEvents=(None, ...),  # read one by one
    baseTimeNanoseconds=(int, 0),
    host_name=(str, ""),
    deviceProperties=(list[dict[str, Any]], []),
)


def _sources(files: list[Path]) -> Iterator[tuple[str, Recording]]:
    """Yield the place and the content of each rank: a file of the profiler, a process in an export, or spans."""
    exports = [path for path in files if path.name.endswith(NSIGHT)]
    exports.sort(key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)])
    runs = [(path, process) for path in exports for process in processes(path)]
    for rank, (path, process) in enumerate(runs):
        yield str(path), read_process(path, process, rank)
    recorded = [path for path in files if path.name.endswith(OTLP)]
    for rank, found in spans_by_rank(recorded).items():
        yield f"{recorded[0].parent}: rank {rank}", read_spans(found)
    for path in files:
        if not path.name.endswith((NSIGHT, *OTLP)):
            yield str(path), read_events(path)


class _Filter:
    """Filter of a trace's events: keeps the ranges that are used; launches and autograd's ranges only as numbers."""

    def __init__(self, patterns: tuple[Pattern, ...]):
        self.launches = Launches()
        self.engine = array("d")  # starts and ends of autograd's ranges; a trace has millions of these
        prefixes = (PREFIX, ENGINE, STEP)
        self._is_used = lru_cache(maxsize=2**16)(
            lambda name: name.startswith(prefixes) or name in RECEIVED or any(one.kind(name) for one in patterns)
        )

    def keep(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the entries of a range that is kept; None for another event."""
        name = event.get("name")
        if event.get("ph") != "X" or self.launches.take(event) or not isinstance(name, str) or not self._is_used(name):
            return None
        kept = {key: event.get(key) for key in ("name", "cat", "ts", "dur", "pid", "tid")}
        if name.startswith(ENGINE) and not any(_event_faults(0, kept)):
            self.engine.extend(_span(kept))
            return None
        return kept


def _checked_head(document: dict[str, Any], events: list[dict[str, Any]], place: str) -> Any:
    """Return the head of a file; raise ConfigError with all faults of its entries, or else of its events."""
    if str(document.get("schema")).startswith("ppsim.trace/"):
        raise ConfigError(f"{place}: a file of the replay harness holds all ranks; give this file, not its folder")
    if "distributedInfo" not in document:
        raise ConfigError(
            f"{place}: {NO_PIPELINE}: 'distributedInfo' is missing, so the file is of one process without ranks; "
            "record each rank of a pipeline after torch.distributed.init_process_group"
        )
    head = check_document(_HEAD, document, place, "a profiler trace of a distributed run")
    faults = [fault for number, event in enumerate(events) for fault in _event_faults(number, event)]
    if abs(head.baseTimeNanoseconds) > MAX_NANOSECONDS:
        base = shown(head.baseTimeNanoseconds)
        faults.append(f"baseTimeNanoseconds: {base} must be a whole number of at most {MAX_NANOSECONDS}")
    if faults:
        raise document_error(faults, place, "a profiler trace")
    return head


def _read_rank(place: str, recording: Recording, patterns: tuple[Pattern, ...]) -> _Rank:
    """Return one rank's recording; of its events, only those that are used."""
    used, (document, found) = _Filter(patterns), recording
    events = [kept for event in found if (kept := used.keep(event))]
    head = _checked_head(document, events, place)
    on_host = not any(event.get("cat") == GPU and not event["name"].startswith(STEP) for event in events)
    unique = [event for event in events if event.get("cat") != GPU] if on_host else _on_gpu_first(events)
    device = str((head.deviceProperties or [{}])[0].get("name", "CPU"))
    return _Rank(
        path=place,
        rank=head.distributedInfo.rank,
        base=head.baseTimeNanoseconds,
        host=head.host_name,
        device=device,
        ranges=_named_actions(unique),
        received=_sorted_spans([_span(event) for event in events if event["name"] in RECEIVED]),
        engine=_sorted_spans(used.engine),
        matches=[[(*_span(one), kind) for one in unique if (kind := each.kind(one["name"]))] for each in patterns],
        steps=sorted({_span(event)[0] for event in unique if event["name"].startswith(STEP)}),
        world_size=head.distributedInfo.world_size,
        pipeline=pipeline_group(head.distributedInfo.rank, head.distributedInfo.pg_config),
        launches=used.launches if on_host else None,
    )


def _event_faults(number: int, event: dict[str, Any]) -> Iterator[str]:
    """Yield the faults of a range's times; a schema would be too slow for so many events."""
    for name, minimum in (("ts", -MAX_NUMBER), ("dur", 0.0)):
        value: Any = event.get(name)
        if not (is_number(value) and minimum <= value <= MAX_NUMBER):
            fault = f"{name} {shown(value)} must be a finite number of microseconds, dur at least 0"
            yield f"range {number} ({shown(event['name'])}): {fault}"


def _on_gpu_first(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events of each name on the busiest of its GPU streams; for a name without any, those on the host.

    The profiler records a range on each stream that its kernels use, such as those of computation and of collectives.
    """
    on_gpu = [event for event in events if event.get("cat") == GPU]
    busy: dict[str, float] = {}
    for event in on_gpu:
        busy[_stream(event)] = busy.get(_stream(event), 0.0) + event["dur"]
    stream: dict[str, str] = {}
    for event in sorted(on_gpu, key=lambda one: (busy[_stream(one)], _stream(one))):
        stream[event["name"]] = _stream(event)  # the busiest comes last
    return [
        event for event in events
        if (event["name"] not in stream if event.get("cat") != GPU else stream[event["name"]] == _stream(event))
    ]  # fmt: skip


def _stream(event: dict[str, Any]) -> str:
    return f"{event['pid']} {event['tid']}"


def _named_actions(events: list[dict[str, Any]]) -> dict[str, list[Span]]:
    """Return the (start, end) of each action's `PP:` ranges in seconds, both in the order of their starts."""
    ordered = sorted(events, key=lambda one: (one["ts"], one["dur"], one["name"]))
    return by_action(
        (one["name"].removeprefix(PREFIX), _span(one)) for one in ordered if one["name"].startswith(PREFIX)
    )


def _sorted_spans(spans: Any) -> np.ndarray:
    """Return starts and ends in seconds, in time order, float64 (spans, 2)."""
    pairs = np.array(spans, float).reshape(-1, 2)
    return pairs[np.lexsort((pairs[:, 1], pairs[:, 0]))]


def _span(event: dict[str, Any]) -> Span:
    """Return start and end in seconds."""
    start = float(event["ts"])
    return start / 1e6, (start + float(event["dur"])) / 1e6


def _times(program: ScheduleColumns, ranks: list[_Rank], shifts: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of each row of each step, seconds on the first rank's time base; nan for unrecorded times.

    `shifts` are the seconds to add to each rank's times.
    """
    steps = max(len(spans) for rank in ranks for spans in rank.ranges.values())
    start, end = (np.full((steps, len(program.kind)), np.nan) for _ in range(2))
    ends = transfer_ends(program)
    for device, (rank, shift) in enumerate(zip(ranks, shifts, strict=True)):
        device_start = row = int(program.offsets[device])
        for action, spans in rank.ranges.items():
            parts = 2 if action.startswith("(") else 1
            for step, span in enumerate(spans):
                bounds = np.add(_bounds(program, row, parts, span, rank), shift)
                start[step, row : row + parts], end[step, row : row + parts] = bounds[:-1], bounds[1:]
            row += parts
        received = ~ends.is_send & (ends.row >= device_start) & (ends.row < row)
        _set_arrivals(ends.row[received], ends.consumer[received], rank.received + shift, start, end)
    return start, end


def _bounds(program: ScheduleColumns, row: int, parts: int, span: Span, rank: _Rank) -> list[float]:
    """Return the bounds of the actions of a range, in seconds; in a fused slot, autograd's ranges are the backward."""
    if parts == 1:
        return [span[0], span[1]]
    inside = rank.engine[(rank.engine[:, 0] >= span[0]) & (rank.engine[:, 1] <= span[1])]
    if not len(inside):
        return [span[0], np.nan, span[1]]
    return [span[0], inside[0, 0] if program.kind[row] == Kind.F else inside[-1, 1], span[1]]


def _set_arrivals(
    receives: np.ndarray, consumers: np.ndarray, waits: np.ndarray, start: np.ndarray, end: np.ndarray
) -> None:
    """Set the end of each RECV, and the start of its consumer, to the end of the host's wait for the RECV.

    On a GPU the host does not wait, so nothing changes.
    """
    for receive, consumer in zip(receives.tolist(), consumers.tolist(), strict=True):
        for step in range(len(start)):
            inside = np.flatnonzero((waits[:, 0] >= start[step, receive]) & (waits[:, 0] <= end[step, receive]))
            if not len(inside):
                continue
            arrived = float(waits[inside[0], 1])
            waited = arrived - start[step, consumer]
            end[step, receive] = arrived if waited > MIN_WAIT else np.nan
            if waited > 0 and not arrived > end[step, consumer]:
                start[step, consumer] = arrived
