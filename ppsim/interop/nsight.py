"""Reader of Nsight Systems' SQLite export: NVTX ranges, CUDA launches and kernels, as events of PyTorch's profiler.

Source of the schema: NVIDIA, Nsight Systems User Guide, "SQLite Schema Reference" and "Common SQLite Examples".
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.interop.events import Event, Keep
from ppsim.interop.ranges import NO_PIPELINE

SUFFIX = ".sqlite"
RANGES = (59, 60)  # eventType of ranges that are pushed and popped, and that are started and ended
THREAD_BITS = 24  # of globalTid and globalPid: below them is the thread, above them the process
APPENDED = re.compile(r", (?:seq|op_id|sizes) = .*", re.DOTALL)  # by torch.autograd.profiler.emit_nvtx


def processes(path: Path) -> list[int]:
    """Return the processes of an export that have NVTX ranges, in ascending order; ConfigError if none has any."""
    query = "SELECT DISTINCT globalTid >> ? FROM NVTX_EVENTS WHERE end IS NOT NULL"
    found = sorted(int(process) for (process,) in _rows(path, query, THREAD_BITS, optional=True))
    if not found:
        next(_rows(path, "SELECT 1 FROM StringIds"), None)  # each export has this table
        raise ConfigError(
            f"{path}: {NO_PIPELINE}: the export has no NVTX ranges; name the actions, as PyTorch does with "
            "torch.autograd.profiler.emit_nvtx(), and record with `nsys profile -t cuda,nvtx`"
        )
    return found


def read_process(path: Path, process: int, rank: int, keep: Keep) -> tuple[dict[str, Any], list[Event]]:
    """Return the head of a profiler's document for one process of an export, and the events that `keep` returns."""
    head: dict[str, Any] = {"distributedInfo": {"rank": rank}, "traceEvents": None, "baseTimeNanoseconds": 0}
    for key, query in (
        ("baseTimeNanoseconds", "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"),
        ("host_name", "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"),
        ("device", "SELECT name FROM TARGET_INFO_GPU"),
    ):
        for (value,) in _rows(path, query, optional=True):
            head[key] = value
    head["deviceProperties"] = [{"name": head.pop("device", "CPU")}]
    return head, [kept for event in _events(path, process) if (kept := keep(event))]


def _events(path: Path, process: int) -> Iterator[Event]:
    """Yield the ranges, launches and kernels of a process as the profiler would write them, times in microseconds."""
    columns = {name for _, name, *_ in _rows(path, "PRAGMA table_info(NVTX_EVENTS)")}
    name = "COALESCE(n.text, s.value)" if "textId" in columns else "n.text"
    joined = "LEFT JOIN StringIds s ON s.id = n.textId" if "textId" in columns else ""
    chosen = f"AND n.eventType IN {RANGES}" if "eventType" in columns else ""
    queries = (
        ("user_annotation", f"SELECT n.start, n.end, {name}, n.globalTid, NULL FROM NVTX_EVENTS n {joined} "  # noqa: S608
         f"WHERE n.end IS NOT NULL AND n.globalTid >> ? = ? {chosen}", False),
        ("cuda_runtime", "SELECT start, end, '', globalTid, correlationId FROM CUPTI_ACTIVITY_KIND_RUNTIME "
         "WHERE globalTid >> ? = ?", True),
        ("kernel", "SELECT k.start, k.end, s.value, k.globalPid, k.correlationId FROM CUPTI_ACTIVITY_KIND_KERNEL k "
         "LEFT JOIN StringIds s ON s.id = k.demangledName WHERE k.globalPid >> ? = ?", True),
    )  # fmt: skip
    for category, query, optional in queries:
        for start, end, text, thread, correlation in _rows(path, query, THREAD_BITS, process, optional=optional):
            yield {
                "ph": "X", "cat": category, "name": APPENDED.sub("", text or ""), "ts": start / 1e3,
                "dur": (end - start) / 1e3, "pid": process, "tid": thread, "args": {"correlation": correlation},
            }  # fmt: skip


def _rows(path: Path, query: str, *values: int, optional: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query; if it is `optional`, none for a table that the export lacks."""
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            yield from database.execute(query, values)
    except sqlite3.Error as error:
        if optional and "no such table" in str(error):
            return
        raise ConfigError(
            f"{path}: not an SQLite export of Nsight Systems, or a damaged one ({error}); write it with "
            "`nsys export --type sqlite`"
        ) from None
