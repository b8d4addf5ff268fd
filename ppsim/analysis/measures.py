"""The measures that every document of a timeline holds: their names, units and definitions, each told once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ppsim.analysis import bubbles
from ppsim.analysis.communication import exposed_communication
from ppsim.analysis.occupancy import peak_activations, peak_memory
from ppsim.analysis.steady import iteration_time, steady_bubble_fraction
from ppsim.analysis.throughput import model_flop_utilisation, tokens_per_second
from ppsim.timeline import TimelineColumns


class Measure(NamedTuple):
    """One measure of a timeline: its name there and in every document, its unit, and what it means."""

    name: str
    unit: str
    definition: str
    of: Callable[[TimelineColumns], Any]


MEASURES = (
    Measure("makespan", "seconds", "last end - first start over all devices", bubbles.makespan),
    Measure("span", "seconds", "max over devices of (last end - first start)", bubbles.span),
    Measure(
        "bubble_fraction", "fraction", "1 - sum(busy) / (devices x makespan): idle / total", bubbles.bubble_fraction
    ),
    Measure("bubble_ratio", "fraction", "sum(idle) / sum(busy): idle / ideal", bubbles.bubble_ratio),
    Measure("span_bubble_fraction", "fraction", "1 - max(busy) / span", bubbles.span_bubble_fraction),
    Measure(
        "iteration_time", "seconds", "one training step: the makespan, or the pace of steps that run on", iteration_time
    ),
    Measure(
        "steady_bubble_fraction",
        "fraction",
        "idle / total between fill and drain where steps run on; elsewhere the bubble_fraction",
        steady_bubble_fraction,
    ),
    Measure(
        "device_busy",
        "seconds",
        "per device: time in compute actions; an OVERLAP_F_B slot counts its length once",
        lambda run: run.device_busy,
    ),
    Measure("device_idle", "seconds", "per device: makespan - busy", bubbles.device_idle),
    Measure(
        "exposed_communication",
        "seconds",
        "per device: collectives inside actions, and idle under transfer, queue and sharding in the ledger",
        exposed_communication,
    ),
    Measure(
        "peak_activations",
        "microbatches through one device share of the model",
        "per device: most live activations, in microbatches through one device share of the model",
        peak_activations,
    ),
    Measure(
        "peak_memory",
        "bytes",
        "per device: weights + gradients + optimizer state + live activations + transfer buffers",
        peak_memory,
    ),
    Measure(
        "tokens_per_second",
        "tokens per second",
        "tokens of a step / its seconds, all data-parallel copies together; null where no model is known",
        tokens_per_second,
    ),
    Measure(
        "mfu",
        "fraction",
        "model FLOPs of a step, attention in full and nothing recomputed, / what all GPUs could do at their dense peak",
        model_flop_utilisation,
    ),
)

_BY_NAME = {measure.name: measure for measure in MEASURES}


def measured(run: TimelineColumns, name: str) -> Any:
    """The value of a measure by name."""
    return _BY_NAME[name].of(run)
