"""Timeline: what a simulation returns, with everything that users ask of it."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis import bubbles
from ppsim.analysis.bounds import LowerBound, lower_bound
from ppsim.analysis.communication import exposed_communication
from ppsim.analysis.critical_path import critical_path, slack
from ppsim.analysis.ledger import Ledger, ledger
from ppsim.analysis.measures import MEASURES
from ppsim.analysis.memory import Memory, memory
from ppsim.analysis.occupancy import PARTS, occupancy
from ppsim.analysis.sensitivities import Sensitivities, sensitivities
from ppsim.analysis.steady import iteration_time, steady_bubble_fraction
from ppsim.analysis.throughput import model_flop_utilisation, tokens_per_second
from ppsim.interop.result import result_document
from ppsim.plots.summary import summary_text
from ppsim.plots.text import gantt_text
from ppsim.run.schedules import Schedule
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas


class Timeline(TimelineColumns):
    """Start and end of every action and transfer, with their measures; `TimelineColumns` lists what it holds."""

    @classmethod
    def of(cls, columns: TimelineColumns) -> Timeline:
        """The same columns in a user's hands."""
        made = cls.__new__(cls)
        vars(made).update(vars(columns))
        return made

    @cached_property
    def schedule(self) -> Schedule:
        """The compute schedule that ran."""
        return Schedule.of(self.plan.schedule)

    @classmethod
    def from_trace(cls, path: str | PathLike[str], step: int | None = None) -> Timeline:
        """A measured step of a replay (default: the median one), from the trace file that the harness wrote.

        Raises ConfigError for a file that is no trace.
        """
        from ppsim.interop.replays import read_trace

        return cls.of(read_trace(path).timeline(step))

    if not TYPE_CHECKING:  # type checkers know the names below, and no others

        def __getattr__(self, name: str) -> Any:
            """A measure of the registry that has no property here, such as `run.transfers`."""
            if name in MEASURES:
                return MEASURES[name].of(self)
            raise AttributeError(f"a timeline has no {name}; its measures are {', '.join(MEASURES)}")

    @property
    def device_idle(self) -> np.ndarray:
        """Makespan - busy of each device, seconds."""
        return bubbles.device_idle(self)

    @property
    def exposed_communication(self) -> np.ndarray:
        """Seconds of each device in collectives inside its actions, and idle because of communication.

        The idle part is what the ledger puts under transfer, queue and sharding.
        """
        return exposed_communication(self)

    @property
    def makespan(self) -> float:
        """Last end - first start over all devices, seconds."""
        return bubbles.makespan(self)

    @property
    def span(self) -> float:
        """Largest (last end - first start) of one device, seconds."""
        return bubbles.span(self)

    @property
    def bubble_fraction(self) -> float:
        """1 - sum(busy) / (devices x makespan): idle / total."""
        return bubbles.bubble_fraction(self)

    @property
    def bubble_ratio(self) -> float:
        """sum(idle) / sum(busy): idle / ideal, the measure of Megatron-LM and Llama 3; 0 where no action takes time."""
        return bubbles.bubble_ratio(self)

    @property
    def span_bubble_fraction(self) -> float:
        """1 - largest busy / span; for equal devices the rate of the zero-bubble papers."""
        return bubbles.span_bubble_fraction(self)

    @property
    def steady_bubble_fraction(self) -> float:
        """Idle part of the time between fill and drain where iterations run on; elsewhere the bubble fraction."""
        return steady_bubble_fraction(self)

    @property
    def iteration_time(self) -> float:
        """Seconds from one iteration to the next: the makespan; where they run on, the slowest device's pace."""
        return iteration_time(self)

    @property
    def peak_activations(self) -> np.ndarray:
        """Largest number of live activations of each device, in microbatches through one device share of the model."""
        return occupancy(self).peak_activations

    def activations_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's live activations: times in seconds and the level from each time on.

        Same unit as `peak_activations`. Both arrays have one entry a change, in time order.
        """
        return occupancy(self).activations_over_time(device)

    @property
    def peak_memory(self) -> np.ndarray | None:
        """Largest memory of each device in bytes; None where the costs do not say what is held.

        Weights + gradients + optimizer state + live activations + transfer buffers.
        """
        return occupancy(self).peak_memory

    @property
    def static_memory(self) -> np.ndarray | None:
        """Bytes of weights, gradients and optimizer state (rows) on each device (columns), or None.

        A stage that two devices hold counts on both, and weights once for each version that the device keeps.
        """
        return occupancy(self).static_memory

    def memory_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's memory: times in seconds and bytes from each time on.

        A transfer holds its buffer at the receiver from its start to the end of the action that consumes it, and at the
        sender while it lasts. At equal times memory is freed before it is taken. Raises CostError where the costs do
        not say what is held.
        """
        return occupancy(self).memory_over_time(device)

    def memory_parts_over_time(self, device: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The same curve part by part: weights, gradients, optimizer_state, activations and transfer_buffers.

        Times in seconds, and for each part its bytes from each time on. What a backward brings back by recomputation
        counts with the activations.
        """
        times, levels = occupancy(self).memory_parts_over_time(device)
        return times, dict(zip(PARTS, levels, strict=True))

    def memory(self) -> Memory:
        """What each device holds at its peak, part by part, and whether it fits; CostError where that is not known."""
        return memory(self)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of one step over its seconds, all data-parallel copies together; None where no model is known."""
        return tokens_per_second(self)

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation of all GPUs, a fraction of their dense peak; None where no model is known."""
        return model_flop_utilisation(self)

    def ledger(self) -> Ledger:
        """Idle seconds by cause: a mapping cause -> array, one entry a device; they sum to `device_idle`."""
        return ledger(self)

    def critical_path(self) -> np.ndarray:
        """Actions of the chain that sets the makespan, in time order, as indices into `start` and `end`."""
        return critical_path(self)

    def slack(self) -> np.ndarray:
        """Seconds by which each action can grow without a longer makespan, one entry an action."""
        return slack(self)

    def sensitivities(self) -> Sensitivities:
        """Seconds of step per second of each kind, stage, device and link."""
        return sensitivities(self)

    def lower_bound(self) -> LowerBound:
        """What no order of the same actions can beat on the same devices and within the same peaks, and why."""
        return lower_bound(self)

    def summary(self) -> str:
        """The measures as readable text, with units."""
        return summary_text(self)

    def to_dict(self) -> dict[str, Any]:
        """The measures under the names of docs/glossary.md, as plain Python values (schema ppsim.result/1)."""
        return result_document(self)

    def to_frame(self) -> pandas.DataFrame:
        """One row an action: device, action, kind, stage, microbatch, start, end in seconds (needs pandas)."""
        from ppsim.interop.frame import timeline_frame

        return timeline_frame(self)

    def to_perfetto(self, path: str | PathLike[str], file_format: str | None = None) -> None:
        """Write a trace for ui.perfetto.dev: devices, transfers, arrows from producer to consumer, live activations.

        `file_format` is "pftrace" (TrackEvent protobuf) or "json" (Chrome trace events, three times as large); by
        default a path that ends in .json gives JSON. The file appears whole or not at all; ConfigError where it cannot
        be written.
        """
        from ppsim.interop.perfetto import write_trace

        write_trace(self, path, file_format)

    def plot(self, **options: Any):
        """A matplotlib Gantt chart; `width`, `memory`, `transfers`, `labels`, `critical_path` and other options as in
        `ppsim.plots.gantt.draw`. Returns the figure, which a notebook shows.
        """
        from ppsim.plots.gantt import draw

        return draw(self, **options)

    def plot_ledger(self):
        """The bubble ledger as a stacked bar chart: a bar a device, a colour a cause. Returns the matplotlib figure."""
        from ppsim.plots.ledger import draw_ledger

        return draw_ledger(self)

    def to_plotly(self, **options: Any):
        """An interactive Gantt chart as a plotly figure; `start` and `end` choose a window, as in
        `ppsim.plots.interactive.interactive_figure`.
        """
        from ppsim.plots.interactive import interactive_figure

        return interactive_figure(self, **options)

    def to_text(self, **options: Any) -> str:
        """A Gantt chart in Unicode boxes, one row a device; `width`, `unicode` and `color` as in
        `ppsim.plots.text.gantt_text`.
        """
        return gantt_text(self, **options)

    def _repr_html_(self) -> str:
        from ppsim.plots.notebook import timeline_html

        return timeline_html(self)

    def __repr__(self) -> str:
        return (
            f"<Timeline {self.schedule.name}: {self.schedule.devices} devices, makespan {self.makespan:.6g} s, "
            f"bubble fraction {self.bubble_fraction:.4f}, engine {self.engine}>"
        )
