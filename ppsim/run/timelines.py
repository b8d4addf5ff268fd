"""Timeline: what a simulation returns, with everything that users ask of it."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis.bounds import LowerBound, lower_bound
from ppsim.analysis.bubbles import Bubbles, bubble_list
from ppsim.analysis.critical_path import Sensitivities, critical_path, sensitivities, slack
from ppsim.analysis.interval import step_interval
from ppsim.analysis.ledger import Ledger, ledger
from ppsim.analysis.measures import MEASURES
from ppsim.analysis.memory import (
    PARTS,
    Memory,
    activations_over_time,
    memory,
    memory_over_time,
    memory_parts_over_time,
    static_memory,
)
from ppsim.base.units import counted, seconds_text
from ppsim.interop.result import result_document
from ppsim.plots.summary import summary_text
from ppsim.plots.text import gantt_text
from ppsim.run.schedules import Schedule
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas


class Timeline(TimelineColumns):
    """Start and end of every action and transfer; `ppsim.timeline.TimelineColumns` lists what it holds.

    Each measure of docs/glossary.md is an attribute, such as `run.makespan`, as `ppsim.analysis.measures` works it out.
    """

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
    def from_trace(
        cls, path: str | PathLike[str], step: int | None = None, *, ranges: tuple[str, str] | None = None
    ) -> Timeline:
        """A measured step (default: the median one) of a real run.

        `path` is a trace file that the replay harness wrote, a folder of Primus' `dump_pp_data`, or one with a file of
        PyTorch's profiler a rank. Profiler ranges are known by the names that PyTorch, torchtitan and Megatron-LM give
        them, or match `ranges`, regular expressions of the names of forwards and backwards.

        Raises ConfigError for what is no trace, ScheduleError where what it holds is no valid schedule.
        """
        from ppsim.interop.kineto import read_any_trace

        return cls.of(read_any_trace(path, ranges).timeline(step))

    def __dir__(self) -> list[str]:
        """Names for completion: the measures of the registry too."""
        return [*super().__dir__(), *MEASURES]

    if TYPE_CHECKING:  # the measures, of which `ppsim.analysis.measures.MEASURES` has the definitions
        makespan: float
        span: float
        iteration_time: float
        bubble_fraction: float
        bubble_ratio: float
        span_bubble_fraction: float
        steady_bubble_fraction: float
        device_idle: np.ndarray
        exposed_communication: np.ndarray
        peak_activations: np.ndarray
        peak_memory: np.ndarray | None
        tokens_per_second: float | None
        mfu: float | None
        iterations: int
        stages_per_device: np.ndarray
        transfers: np.ndarray
        weight_copies: np.ndarray
    else:

        def __getattr__(self, name: str) -> Any:
            if name in MEASURES:
                return MEASURES[name].of(self)
            raise AttributeError(f"a timeline has no {name}; its measures are {', '.join(MEASURES)}")

    @property
    def interval(self) -> tuple[float, float] | None:
        """(low, high) seconds between which a real step lies at 90 %; None where the costs were given.

        For derived costs `iteration_time` times the spread of published runs of the same class: docs/accuracy.md. For a
        profile, times the errors of the runs that it was fitted to, each left out: `ppsim.costs.spread`.
        """
        return step_interval(self)

    @property
    def layout_string(self) -> str | None:
        """What each stage holds in Megatron-LM's notation, such as "Et*4|(t*4|)*6t*4L"; None without a model."""
        write = getattr(self.costs, "megatron_layout", None)
        return None if write is None else write(self.schedule.num_stages)

    def activations_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's live activations: times in seconds and the level from each time on.

        Same unit as `peak_activations`. Both arrays have one entry a change, in time order.
        """
        return activations_over_time(self, device)

    @property
    def static_memory(self) -> np.ndarray | None:
        """Bytes of weights, gradients and optimizer state (rows) on each device (columns), or None.

        A stage that two devices hold counts on both, and weights once for each version that the device keeps.
        """
        return static_memory(self)

    def memory_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's memory: times in seconds and bytes from each time on.

        A transfer holds its buffer at the receiver from its start to the end of the action that consumes it, and at the
        sender while it lasts. At equal times memory is freed before it is taken. Raises CostError where the costs do
        not say what is held.
        """
        return memory_over_time(self, device)

    def memory_parts_over_time(self, device: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The same curve part by part: weights, gradients, optimizer_state, activations and transfer_buffers.

        Times in seconds, and for each part its bytes from each time on. What a backward brings back by recomputation
        counts with the activations.
        """
        times, levels = memory_parts_over_time(self, device)
        return times, dict(zip(PARTS, levels, strict=True))

    def memory(self) -> Memory:
        """What each device holds at its peak, part by part, and whether it fits; CostError where that is not known."""
        return memory(self)

    def ledger(self) -> Ledger:
        """Idle seconds by cause: a mapping cause -> array, one entry a device; they sum to `device_idle`."""
        return ledger(self)

    def bubbles(self) -> Bubbles:
        """Every idle time between compute actions: device, start, seconds, live activations, and free memory."""
        return bubble_list(self)

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
        from ppsim.interop.result import timeline_frame

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
        """A matplotlib Gantt chart; `width`, `memory`, `transfers`, `title`, `labels`, `critical_path`, `until`, `ax`
        as in `ppsim.plots.gantt.draw`. Returns the figure, which a notebook shows.
        """
        from ppsim.plots.gantt import draw

        return draw(self, **options)

    def plot_ledger(self):
        """The bubble ledger as a stacked bar chart: a bar a device, a colour a cause. Returns the matplotlib figure."""
        from ppsim.plots.ledger_chart import draw_ledger

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
            f"<Timeline {self.schedule.name}: {counted(self.schedule.devices, 'device')}, "
            f"makespan {seconds_text(self.makespan)}, bubble fraction {self.bubble_fraction:.4f}, engine {self.engine}>"
        )
