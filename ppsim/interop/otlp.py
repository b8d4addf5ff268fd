"""Reader of Megatron-LM's OpenTelemetry spans in OTLP JSON, as events of PyTorch's profiler.

These spans hold times of the host: they begin and end when a microbatch's kernels are launched, not when the GPU runs
them. Source of the names: Megatron-LM, pull request 6438 and its observability guide; of the format: OTLP 1, JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.files import read_text

SUFFIXES = (".otlp.json", ".jsonl")
NAMES = {  # of a span -> of the range of Megatron-LM's timers, which `ppsim.interop.ranges` knows
    "megatron.microbatch.forward": "forward-compute",
    "megatron.microbatch.backward": "backward-compute",
    "megatron.train_step": "ProfilerStep#",
}
RANK = "dl.rank"
Keep = Callable[[dict[str, Any]], dict[str, Any] | None]


def spans_by_rank(paths: list[Path]) -> dict[int, list[dict[str, Any]]]:
    """Return the known spans of all files as ranges by rank; ConfigError for a file that is no OTLP JSON."""
    found: dict[int, list[dict[str, Any]]] = {}
    for path in paths:
        try:
            for rank, event in _known_spans(path):
                found.setdefault(rank, []).append(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"{path}: no OTLP JSON: a span is damaged ({error!r}); export it again") from None
    return found


def _known_spans(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rank and the range of each span that is a step or a part of one."""
    for resource in _resources(path):
        rank = _attribute(resource.get("resource", {}), RANK)
        for span in (one for scope in resource.get("scopeSpans", []) for one in scope.get("spans", [])):
            if span.get("name") not in NAMES:
                continue
            of = _attribute(span, RANK) if rank is None else rank
            if of is None:
                raise ConfigError(f"{path}: a span has no {RANK}, so its rank is unknown; export it as an attribute")
            yield of, _event(span, of)


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


def _attribute(holder: dict[str, Any], name: str) -> int | None:
    for one in holder.get("attributes", []):
        if one.get("key") == name:
            return int(one["value"]["intValue"])
    return None


def _event(span: dict[str, Any], rank: int) -> dict[str, Any]:
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    name = {"name": NAMES[span["name"]], "pid": rank, "tid": 0, "cat": "user_annotation", "ph": "X"}
    return {**name, "start": start, "end": end}


def read_spans(rank: int, spans: list[dict[str, Any]], keep: Keep) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the head of a profiler's document for one rank, and the events that `keep` returns."""
    base = min(span["start"] for span in spans)
    head = {"distributedInfo": {"rank": rank}, "traceEvents": None, "baseTimeNanoseconds": base}
    events = ({**one, "ts": (one["start"] - base) / 1e3, "dur": (one["end"] - one["start"]) / 1e3} for one in spans)
    return head, [kept for event in events if (kept := keep(event))]
