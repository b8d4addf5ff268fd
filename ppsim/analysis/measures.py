"""The registry of measures: one function and one row per measure, for every page, document, command and gate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ppsim.analysis import bubbles
from ppsim.analysis.bounds import LowerBound, lower_bound
from ppsim.analysis.bubbles import (
    causal_flop_utilisation,
    iteration_time,
    model_flop_utilisation,
    steady_bubble_fraction,
    tokens_per_second,
)
from ppsim.analysis.ledger import ledger
from ppsim.analysis.memory import peak_activations, peak_memory
from ppsim.base.units import percent_text, value_text
from ppsim.plan.lengths import collective_fraction
from ppsim.plan.streams import POST_VALIDATED
from ppsim.timeline import TimelineColumns

Output = Literal["summary", "devices", "json", "compare", "what-if", "batch"]


@dataclass(frozen=True)
class Measure:
    """One measure of a timeline."""

    name: str  # on a timeline and in every document
    unit: str  # of its number
    definition: str  # its meaning in one sentence
    # returns a number, one number per device, a LowerBound, or None if the costs do not give it
    of: Callable[[TimelineColumns], Any]
    # `summary` and its table of `devices`; `json`: the result; `compare`: its rows; `what-if`; `batch`: one per run
    shown: tuple[Output, ...]
    formula: str = ""  # the definition as a formula
    short: str = ""  # a shorter definition, for a line of the summary
    used_by: str = ""  # papers and frameworks with this measure, for the glossary
    heading: str = ""  # the name above a narrow column; default: `name` in words
    short_unit: str = ""  # of an axis, if `unit` is long
    # "max" or "sum": operation that makes one number of one number per device
    over_devices: Literal["max", "sum"] = "max"
    # schedules that have the measure. A number of the whole run is `synchronous`: it describes no step if steps follow
    # each other without a drain (asynchronous).
    schedules: Literal["all", "synchronous", "asynchronous"] = "all"
    guarded: bool = False  # True if `ppsim check` checks it against a baseline
    bigger_is_worse: bool = True
    optional: bool = False  # True if a page leaves it out if it is unknown, or 0 on every device

    @property
    def title(self) -> str:
        """The name in words, as above a column."""
        return self.heading or self.name.replace("_", " ")

    @property
    def meaning(self) -> str:
        """Formula and definition in one text."""
        return f"{self.formula}: {self.definition}" if self.formula else self.definition

    @property
    def brief(self) -> str:
        """The meaning in one line."""
        return self.short or self.meaning

    def number(self, run: TimelineColumns) -> Any:
        """Return one number for all devices of a run together; None if it is not known."""
        value = self.of(run)
        if isinstance(value, np.ndarray):
            return getattr(value, self.over_devices)().item()
        return value.seconds if isinstance(value, LowerBound) else value

    def text(self, run: TimelineColumns) -> str:
        """Return the number with its unit; add the device of the largest value, the gap, or the fraction itself."""
        value, number = self.of(run), value_text(self.number(run), self.unit, "unknown")
        if isinstance(value, np.ndarray) and self.over_devices == "max":
            return f"{number} (device {value.argmax()})"
        if isinstance(value, LowerBound):
            return f"{number} ({percent_text(value.gap, signed=True) if value.gap >= 5e-4 else 'at bound'})"
        return f"{value:.4f} ({number})" if self.unit == "fraction" and value is not None else number

    def is_shown_for(self, run: TimelineColumns) -> bool:
        """Return whether the output for this run shows the measure."""
        if self.schedules == "asynchronous" and run.schedule.iterations == 1:
            return self.of is iteration_time and run.plan.optimizer == POST_VALIDATED  # it differs from the makespan
        return not self.optional or bool(np.any(self.of(run)))


def transfers_sent(run: TimelineColumns) -> np.ndarray:
    """Return the number of transfers that each device sends in one step."""
    schedule, plan = run.schedule, run.plan
    sent = np.bincount(schedule.device[plan.source[plan.remote]], minlength=schedule.devices)
    return sent // schedule.iterations


def exposed_communication(run: TimelineColumns) -> np.ndarray:
    """Return the seconds of each device in collectives inside its actions, and idle because of communication.

    Collectives are tensor-, context- and expert-parallel ones. Noise or a slow device lengthens them as it lengthens
    their actions. The idle part is the ledger's transfer, queue and sharding.
    """
    schedule, idle = run.schedule, ledger(run)
    exposed = idle["transfer"] + idle["queue"] + idle["sharding"]
    fraction = collective_fraction(schedule, run.table)
    if fraction is not None:
        exposed += np.add.reduceat(run.plan.seconds * fraction, schedule.offsets[:-1])
    return exposed


_PAGES: tuple[Output, ...] = ("summary", "json", "compare", "what-if")
_ROWS = (
    Measure(
        "stages_per_device", "stages", "per device: stages that it runs",
        lambda run: run.schedule.stages_held, ("compare",), heading="stages/device",
    ),
    Measure(
        "iterations", "steps", "training steps that the run holds; 1 in every synchronous schedule",
        lambda run: run.schedule.iterations, ("compare",), schedules="asynchronous",
    ),
    Measure(
        "makespan", "seconds", "last end - first start over all devices", bubbles.makespan,
        (*_PAGES, "batch"), schedules="synchronous", guarded=True,
        used_by="the step time; with the optimizer step only if it is enabled",
    ),
    Measure(
        "iteration_time", "seconds",
        "one training step: the makespan; with post-validated optimizer steps the span; for an asynchronous schedule "
        "the time from one step to the next in the steady part",
        iteration_time, _PAGES, schedules="asynchronous",
        short="time from one iteration to the next in the steady part: the slowest device's",
        used_by="PipeDream's throughput",
    ),
    Measure(
        "lower_bound", "seconds",
        "the largest of five bounds: busy of the busiest device; minimum fill + work + minimum drain of a device; the "
        "longest path of one microbatch; the time to hold all activations, each for at least its path to the last "
        "stage and back, with at most peak_activations at once; and a count of when the first, second ... action of "
        "each stage can run. At the bound, no order of the same actions is faster without holding more",
        lower_bound, ("summary", "json"),
        short="no order with the same peaks is faster; (+x %): makespan above the bound",
    ),
    Measure(
        "span", "seconds", "max over devices of (its last end - its first start)", bubbles.span,
        ("summary", "json", "what-if", "batch"),
        used_by="the zero-bubble papers' cost of a step, where devices start their optimizer steps one after the other",
    ),
    Measure(
        "bubble_fraction", "fraction", "idle / total", bubbles.bubble_fraction, (*_PAGES, "batch"),
        formula="1 - sum(busy) / (devices x makespan)", schedules="synchronous", guarded=True,
        used_by="GPipe's and DAPPLE's (p-1)/(m+p-1)",
    ),
    Measure(
        "bubble_ratio", "fraction", "idle / ideal", bubbles.bubble_ratio, (*_PAGES, "batch"),
        formula="sum(idle) / sum(busy)", schedules="synchronous", guarded=True,
        used_by="Megatron-LM's (p-1)/m and (p-1)/(v m); Llama 3's",
    ),
    Measure(
        "span_bubble_fraction", "fraction", "for equal devices the zero-bubble papers' bubble rate",
        bubbles.span_bubble_fraction, (*_PAGES, "batch"), formula="1 - max(busy) / span", heading="span bubble",
        schedules="synchronous", guarded=True, used_by="the zero-bubble papers",
    ),
    Measure(
        "steady_bubble_fraction", "fraction",
        "idle / total between fill and drain if steps follow each other without a drain; otherwise the "
        "bubble_fraction",
        steady_bubble_fraction, _PAGES, short="idle part of the time between fill and drain",
        schedules="asynchronous", used_by="PipeDream",
    ),
    Measure(
        "device_busy", "seconds",
        "per device: time in compute actions; an OVERLAP_F_B slot counts its own length once",
        lambda run: run.device_busy, ("json", "devices"), heading="busy", over_devices="sum",
    ),
    Measure(
        "device_idle", "seconds", "per device: makespan - busy", bubbles.device_idle, ("json", "devices"),
        heading="idle", over_devices="sum",
    ),
    Measure(
        "exposed_communication", "seconds",
        "per device: collectives inside its actions (tensor, context and expert parallel, less what an OVERLAP_F_B "
        "slot hides), and its idle time under transfer, queue and sharding in the ledger",
        exposed_communication, ("json", "devices"), over_devices="sum", optional=True,
        short="collectives inside its actions, and idle time under transfer, queue and sharding",
    ),
    Measure(
        "peak_activations", "microbatches through one device share of the model",
        "per device: largest number of live activations. F adds its stage's share at its start; B frees it at its end; "
        "I frees the part that only it needs, W the rest; if an R follows, F adds only the stored input and R the rest",
        peak_activations, (*_PAGES, "devices", "batch"),
        short="maximum live activations of a device, in microbatches of one device share", guarded=True,
        used_by='papers\' "M_B", "m_a" or "activations of p microbatches"',
        short_unit="microbatches per device",
    ),
    Measure(
        "peak_memory", "bytes",
        "per device: weights + gradients + optimizer state + live activations + transfer buffers; a backward that "
        "recomputes also holds the recomputed activations",
        peak_memory, (*_PAGES, "devices"), guarded=True,
        short="maximum over devices of weights, gradients, optimizer, activations, buffers",
    ),
    Measure(
        "tokens_per_second", "tokens per second",
        "tokens of one step (all data-parallel copies) / iteration_time; null if no model is known",
        tokens_per_second, _PAGES, heading="tokens/s", bigger_is_worse=False,
        optional=True,
        short="tokens of one step, all data-parallel copies together, over its seconds", used_by="papers' throughput",
    ),
    Measure(
        "mfu", "fraction",
        "model FLOPs of one step / (iteration_time x dense peak of all GPUs); the whole s x s matrix of attention "
        "counts, recomputation does not",
        model_flop_utilisation, ("summary", "json", "compare"), bigger_is_worse=False, optional=True,
        short="model FLOPs, with full s x s attention, over the dense peak of all GPUs",
        used_by="PaLM (arXiv 2204.02311), torchtitan",
    ),
    Measure(
        "mfu_causal", "fraction",
        "mfu without the pairs of tokens that a causal mask excludes: about half of attention's FLOPs",
        causal_flop_utilisation, ("summary", "json"), bigger_is_worse=False, optional=True,
        used_by="Megatron-LM (from core 0.12 on), Megatron-Bridge",
    ),
    Measure(
        "transfers", "transfers", "per device: sent in one step", transfers_sent, ("compare",),
    ),
    Measure(
        "weight_copies", "device shares of the model", "per device: weights that it keeps, with all their versions",
        lambda run: run.schedule.weight_copies, ("compare",),
    ),
)  # fmt: skip
MEASURES = {measure.name: measure for measure in _ROWS}


def shown_in(output: Output) -> list[Measure]:
    """Return the measures that an output shows, in the order of the glossary."""
    return [measure for measure in MEASURES.values() if output in measure.shown]


def guarded() -> dict[str, Measure]:
    """Return the measures that the gate checks against a baseline, by name."""
    return {name: measure for name, measure in MEASURES.items() if measure.guarded}


def pareto_front(pairs: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the Pareto front of two measures, both better if smaller, by rising first measure."""
    front: list[int] = []
    for index in sorted(range(len(pairs)), key=lambda index: pairs[index]):
        if not front or pairs[index][1] < pairs[front[-1]][1]:
            front.append(index)
    return front
