"""The measures that every document of a timeline holds: their names, units and definitions, each told once."""

from typing import NamedTuple


class Measure(NamedTuple):
    """One measure of a timeline: its name there and in every document, its unit, and what it means."""

    name: str
    unit: str
    definition: str


MEASURES = (
    Measure("makespan", "seconds", "last end - first start over all devices"),
    Measure("span", "seconds", "max over devices of (last end - first start)"),
    Measure("bubble_fraction", "fraction", "1 - sum(busy) / (devices x makespan): idle / total"),
    Measure("bubble_ratio", "fraction", "sum(idle) / sum(busy): idle / ideal"),
    Measure("span_bubble_fraction", "fraction", "1 - max(busy) / span"),
    Measure("iteration_time", "seconds", "one training step: the makespan, or the pace of steps that run on"),
    Measure(
        "steady_bubble_fraction",
        "fraction",
        "idle / total between fill and drain where steps run on; elsewhere the bubble_fraction",
    ),
    Measure(
        "device_busy", "seconds", "per device: time in compute actions; an OVERLAP_F_B slot counts its length once"
    ),
    Measure("device_idle", "seconds", "per device: makespan - busy"),
    Measure(
        "exposed_communication",
        "seconds",
        "per device: collectives inside actions, and idle under transfer, queue and sharding in the ledger",
    ),
    Measure(
        "peak_activations",
        "microbatches through one device share of the model",
        "per device: most live activations, in microbatches through one device share of the model",
    ),
    Measure(
        "peak_memory",
        "bytes",
        "per device: weights + gradients + optimizer state + live activations + transfer buffers",
    ),
    Measure(
        "tokens_per_second",
        "tokens per second",
        "tokens of a step / its seconds, all data-parallel copies together; null where no model is known",
    ),
    Measure(
        "mfu",
        "fraction",
        "model FLOPs of a step, attention in full and nothing recomputed, / what all GPUs could do at their dense peak",
    ),
)
