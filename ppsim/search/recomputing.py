"""Schedules whose makers move recomputing into idle time: RiPipe and Mario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppsim.families.interleaved import interleaved_one_forward_one_backward
from ppsim.families.one_forward_one_backward import one_forward_one_backward
from ppsim.families.registry import family, require_choice
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.memory_actions import NEEDED, recomputed

if TYPE_CHECKING:
    from ppsim.costs import CostModel


@family(
    "ripipe",
    title="Interleaved 1F1B with R in idle time (RiPipe)",
    idea="Interleaved 1F1B in which R is an action of its own. In mode `in-bubble` only what goes beyond p v live "
    "stages is made again, as far as it can in time that would be idle. In mode `in-advance` all stages are made again "
    "but where a backward directly follows its forward, and R moves ahead into idle time, so that it does not wait for "
    "the gradient. What is idle follows from `costs`.",
    constraints="those of interleaved-1f1b",
    makespan="<= interleaved-1f1b's with backwards longer by what they recompute",
    peak_activations="<= p (p v stages)",
    source="Ascend/MindSpeed, docs/en/features/recompute_independent_pipelining.md and "
    "mindspeed/core/pipeline_parallel/ripipe_schedules.py: --recompute-in-bubble, --recompute-in-advance",
)
def ripipe(p: int, m: int, v: int = 2, *, mode: str = "in-bubble", costs: CostModel | None = None) -> ScheduleColumns:
    """Interleaved 1F1B, with R put in and moved ahead."""
    require_choice("mode", mode, ("in-bubble", "in-advance"))
    plain = ScheduleColumns.from_blocks(interleaved_one_forward_one_backward(p, m, v), name="ripipe")
    stages = NEEDED if mode == "in-bubble" else "all"
    return recomputed(plain, stages, "idle", costs, float(p))


@family(
    "mario",
    title="1F1B with R in idle time and forwards pulled ahead (Mario)",
    idea="1F1B that recomputes every stage but where a backward directly follows its forward. R runs before the "
    "gradient arrives, and further ahead where the device is idle; forwards go ahead into idle time as far as the "
    "memory that recomputing freed holds them: no device holds more than in 1F1B without it. What is idle follows from "
    "`costs`.",
    makespan="<= 1F1B's with backwards longer by a forward",
    peak_activations="<= min(m, p-r)",
    source="Liu et al. 2025, Mario: Near Zero-cost Activation Checkpointing in Pipeline Parallelism, doi "
    "10.1145/3710848.3710878",
)
def mario(p: int, m: int, v: int, *, costs: CostModel | None = None) -> ScheduleColumns:
    """1F1B, with R put in and R and F moved ahead."""
    plain = ScheduleColumns.from_blocks(one_forward_one_backward(p, m, v), name="mario")
    return recomputed(plain, "all", "idle+forwards", costs)
