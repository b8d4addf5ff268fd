"""Analyses: pure views of a timeline, columns in and columns out."""

from ppsim.analysis.bubbles import device_idle
from ppsim.analysis.interval import constant_slopes
from ppsim.analysis.ledger import CAUSES, PHASES
from ppsim.analysis.measures import MEASURES, Measure, guarded, pareto_front, shown_in
from ppsim.analysis.static_bounds import (
    ScheduleSummary,
    layout_memory_bound,
    layout_step_bound,
    memory_bound,
    step_bound,
)

__all__ = [
    "CAUSES", "MEASURES", "PHASES", "Measure", "ScheduleSummary", "constant_slopes", "device_idle",
    "guarded", "layout_memory_bound", "layout_step_bound", "memory_bound", "pareto_front", "shown_in", "step_bound",
]  # fmt: skip
