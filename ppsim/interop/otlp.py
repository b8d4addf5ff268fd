"""Reader of Megatron-LM's OpenTelemetry spans in OTLP JSON, as events of PyTorch's profiler.

These spans hold times of the host: they begin and end when a microbatch's kernels are launched, not when the GPU runs
them. Source of the names: Megatron-LM, pull request 6438 and its observability guide; of the format: OTLP 1, JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_text
from ppsim.interop.events import Event, Keep
from ppsim.interop.ranges import NO_PIPELINE

SUFFIXES = (".otlp.json", ".jsonl")
NAMES = {  # of a span -> of the range of Megatron-LM's timers, which `ppsim.interop.ranges` knows
    "megatron.microbatch.forward": "forward-compute",
    "megatron.microbatch.backward": "backward-compute",
    "megatron.train_step": "ProfilerStep#",
}
RANK, RANKS, STAGES = "dl.rank", "dl.world_size", "dl.pipeline_parallel.size"
MAX_STAGES = 10**6  # of a pipeline; more are taken for damage
Spans = tuple[dict[str, Any], list[dict[str, Any]]]  # of a rank: the profiler's `distributedInfo`, and its ranges


def spans_by_rank(paths: list[Path]) -> dict[int, Spans]:
    """Return the known spans of all files as ranges by rank; ConfigError for a file that is no OTLP JSON."""
    found: dict[int, Spans] = {}
    for path in paths:
        try:
            for info, event in _known_spans(path):
                found.setdefault(info["rank"], (info, []))[1].append(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}: no OTLP JSON: a span is damaged ({error!r}); export it again") from None
    steps = NAMES["megatron.train_step"]
    if paths and all(event["name"] == steps for _, events in found.values() for event in events):
        raise ConfigError(
            f"{paths[0].parent}: {NO_PIPELINE}: no span is named megatron.microbatch.forward or .backward; run with "
            "--otel-span-groups step,microbatch"
        )
    return found


def _known_spans(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the `distributedInfo` of its rank and the range of each span that is a step or a part of one."""
    for resource in _resources(path):
        of_process = resource.get("resource", {})
        for span in (one for scope in resource.get("scopeSpans", []) for one in scope.get("spans", [])):
            if span.get("name") not in NAMES:
                continue
            rank = _attribute(of_process, RANK, _attribute(span, RANK))
            if rank is None:
                raise ConfigError(f"{path}: a span has no {RANK}, so its rank is unknown; export it as an attribute")
            yield _distributed_info(rank, of_process), _event(span, rank)


def _distributed_info(rank: int, of_process: dict[str, Any]) -> dict[str, Any]:
    """Return the profiler's entry for a rank; the stages of a pipeline are Megatron-LM's slowest dimension."""
    ranks, stages = _attribute(of_process, RANKS, 0), _attribute(of_process, STAGES, 0)
    apart = ranks // stages if 0 < stages <= min(ranks, MAX_STAGES) else 0
    pipeline = [{"pg_desc": "pipeline", "ranks": list(range(rank % apart, ranks, apart))}] if apart else []
    return {"rank": rank, "world_size": ranks, "pg_config": pipeline}


def _resources(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the resources of a file: one JSON document per line, as the collector's file exporter writes, or one."""
    text = read_text(path)
    try:
        documents = [json.loads(text)]
    except ValueError:
        try:
            documents = [json.loads(line) for line in text.splitlines() if line.strip()]
        except ValueError:
            raise ConfigError(f"{path}: no OTLP JSON; use the collector's file exporter with format: json") from None
    for document in documents:
        if not isinstance(document, dict) or not isinstance(document.get("resourceSpans"), list):
            raise ConfigError(f"{path}: no OTLP JSON: 'resourceSpans' is missing; export traces, not metrics")
        yield from document["resourceSpans"]


def _attribute(holder: dict[str, Any], name: str, default: Any = None) -> Any:
    for one in holder.get("attributes", []):
        if one.get("key") == name:
            return int(one["value"]["intValue"])
    return default


def _event(span: dict[str, Any], rank: int) -> dict[str, Any]:
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    name = {"name": NAMES[span["name"]], "pid": rank, "tid": 0, "cat": "user_annotation", "ph": "X"}
    return {**name, "start": start, "end": end}


def read_spans(of_rank: Spans, keep: Keep) -> tuple[dict[str, Any], list[Event]]:
    """Return the head of a profiler's document for one rank, and the events that `keep` returns."""
    info, spans = of_rank
    base = min(span["start"] for span in spans)
    head = {"distributedInfo": info, "traceEvents": None, "baseTimeNanoseconds": base}
    events = ({**one, "ts": (one["start"] - base) / 1e3, "dur": (one["end"] - one["start"]) / 1e3} for one in spans)
    return head, [kept for event in events if (kept := keep(event))]
