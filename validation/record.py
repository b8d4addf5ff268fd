"""Recorder of a training step: `with record_step("trace/"):` around a step of a pipeline; then `ppsim explain trace/`.

The file needs only PyTorch, so that it can be copied next to a training script. Each rank writes `rank-N.json`, a trace
in the format of PyTorch's profiler, with one range per action, named by stage, kind and microbatch, such as `PP:2F0`.
Waits for transfers are ranges of their own. It works with all schedule classes of torch.distributed.pipelining, so with
torchtitan too, on CPU and CUDA.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining.stage import _PipelineStageBase

KINDS = ("F", "B", "I", "W")
WAIT = "wait for transfers"


class Recorder:
    """The ranges of one rank, as (name, begin, end): nanoseconds of the host, or CUDA events."""

    def __init__(self) -> None:
        self.cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        self.ranges: list[tuple[str, Any, Any]] = []
        self.pipeline: list[int] = []
        if self.cuda:
            torch.cuda.synchronize()
        self.base, self.origin = time.time_ns(), self.now()

    def now(self) -> Any:
        """Return the time: an event on the current CUDA stream, or the host's nanoseconds."""
        if not self.cuda:
            return time.perf_counter_ns()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextmanager
    def action(self, stage: int, kind: str, microbatch: int) -> Iterator[None]:
        """Record one action of a training loop of your own; `kind` is F, B, I or W."""
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r} is not known; use one of: {', '.join(KINDS)}")
        begin = self.now()
        yield
        self.ranges.append((f"PP:{stage}{kind}{microbatch}", begin, self.now()))

    def recorded(self, kind_of: Callable[..., str], method: Callable) -> Callable:
        """Return a method of PyTorch's stages that also records its action."""

        @functools.wraps(method)
        def recording(stage: Any, microbatch: int, *args: Any, **kwargs: Any) -> Any:
            if not self.pipeline and dist.is_initialized():
                self.pipeline = dist.get_process_group_ranks(stage.group or dist.group.WORLD)
            with self.action(stage.stage_index, kind_of(*args, **kwargs), microbatch):
                return method(stage, microbatch, *args, **kwargs)

        return recording

    def waiting(self, wait: Callable) -> Callable:
        """Return PyTorch's wait for transfers, which also records itself."""

        @functools.wraps(wait)
        def recording(work: list[Any]) -> Any:
            begin = self.now()
            result = wait(work)
            if work:
                self.ranges.append((WAIT, begin, self.now()))
            return result

        return recording

    def document(self) -> dict[str, Any]:
        """Return the trace of this rank; times are microseconds since `baseTimeNanoseconds`."""
        if self.cuda:
            torch.cuda.synchronize()
        rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        groups = [{"pg_desc": "mesh_pp", "ranks": self.pipeline}] if self.pipeline else []
        events = []
        for name, begin, end in self.ranges:
            start, stop = self._microseconds(begin), self._microseconds(end)
            where = {"cat": "gpu_user_annotation" if self.cuda else "user_annotation", "pid": rank, "tid": 0}
            events.append({"ph": "X", "name": name, "ts": start, "dur": stop - start, **where})
        document: dict[str, Any] = {
            "schemaVersion": 1,
            "distributedInfo": {"rank": rank, "world_size": size, "pg_config": groups},
            "baseTimeNanoseconds": self.base,
            "traceEvents": events,
        }
        if self.cuda:
            document["deviceProperties"] = [{"name": torch.cuda.get_device_name()}]
        return document

    def _microseconds(self, moment: Any) -> float:
        return self.origin.elapsed_time(moment) * 1e3 if self.cuda else (moment - self.origin) / 1e3


@contextmanager
def record_step(folder: str | Path) -> Iterator[Recorder]:
    """Record what runs inside, one step or several whole ones, and write this rank's file into `folder`.

    A loop that calls neither PyTorch's schedules nor its stages names its actions itself, with
    `with step.action(stage, "F", microbatch):`, where `step` is what this yields. Nothing is written if the step fails.
    """
    recorder = Recorder()
    kinds: dict[str, Callable[..., str]] = {
        "forward_one_chunk": lambda *_, **__: "F",
        "backward_one_chunk": lambda loss=None, full_backward=True, **_: "B" if full_backward else "I",
        "backward_weight_one_chunk": lambda *_, **__: "W",
    }
    methods = {name: getattr(_PipelineStageBase, name) for name in kinds}
    wait = schedules._wait_batch_p2p
    try:
        for name, kind_of in kinds.items():
            setattr(_PipelineStageBase, name, recorder.recorded(kind_of, methods[name]))
        schedules._wait_batch_p2p = recorder.waiting(wait)
        yield recorder
    finally:
        for name, method in methods.items():
            setattr(_PipelineStageBase, name, method)
        schedules._wait_batch_p2p = wait
    document = recorder.document()
    Path(folder).mkdir(parents=True, exist_ok=True)
    target = Path(folder) / f"rank-{document['distributedInfo']['rank']}.json"
    target.write_text(json.dumps(document))
