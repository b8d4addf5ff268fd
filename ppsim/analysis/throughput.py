"""Throughput of a timeline: tokens a second and model FLOP utilisation, where the costs know the model."""

from __future__ import annotations

from ppsim.analysis.steady import iteration_time
from ppsim.timeline import TimelineColumns


def tokens_per_second(timeline: TimelineColumns) -> float | None:
    """Tokens of one step over its seconds, all data-parallel copies together; None where no model is known."""
    workload = timeline.table.workload
    return None if workload is None else _per_second(timeline, workload.tokens)


def model_flop_utilisation(timeline: TimelineColumns) -> float | None:
    """Model FLOPs of one step over what all GPUs could do in its seconds at their dense peak; None without a model.

    Attention counts in full and nothing recomputed counts: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B.
    """
    workload = timeline.table.workload
    return None if workload is None else _per_second(timeline, workload.flops) / (workload.gpus * workload.peak)


def _per_second(timeline: TimelineColumns, per_microbatch: float) -> float:
    schedule = timeline.schedule
    microbatches = schedule.microbatches / (schedule.slices * schedule.iterations)
    seconds = iteration_time(timeline)
    return microbatches * per_microbatch / seconds if seconds > 0 else float("inf")
