"""Timeline: what a simulation returns, as columns, with the measures of docs/glossary.md."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.costs import CostModel, CostTable
from ppsim.engines.plan import Plan
from ppsim.engines.streams import Spans, run_optimizer, run_reductions, unshard_spans
from ppsim.schedule import Schedule

if TYPE_CHECKING:
    from os import PathLike

    import pandas

    from ppsim.analysis.bounds import LowerBound
    from ppsim.analysis.ledger import Ledger
    from ppsim.analysis.memory import Memory
    from ppsim.analysis.occupancy import Occupancy
    from ppsim.analysis.sensitivities import Sensitivities


class Timeline:
    """Start and end of every action and transfer, and what follows from them.

    Attributes
    ----------
    schedule : Schedule
        The compute schedule that ran.
    row_start, row_end : float64 arrays, seconds, one entry a row of the schedule
        An OVERLAP_F_B slot is two rows; `start` and `end` have one entry an action.
    transfer_start, transfer_end : float64 arrays, seconds, one entry a row
        Of the transfer that the row consumes; nan where it consumes none.
    unshard_start, unshard_end : float64 arrays, seconds, one entry an UNSHARD that takes time
        In program order, device by device; `unshards` has them with their devices and stages.
    engine, transport : str
        What ran.
    costs : CostModel
        What priced it; `table` holds its columns.
    """

    def __init__(
        self,
        plan: Plan,
        table: CostTable,
        costs: CostModel,
        row_start: np.ndarray,
        row_end: np.ndarray,
        transfer_start: np.ndarray,
        transfer_end: np.ndarray,
        unshard_start: np.ndarray | None = None,
        unshard_end: np.ndarray | None = None,
        *,
        engine: str,
    ):
        self.plan = plan
        self.table = table
        self.costs = costs
        self.row_start = row_start
        self.row_end = row_end
        self.transfer_start = transfer_start
        self.transfer_end = transfer_end
        self.unshard_start = np.empty(0) if unshard_start is None else unshard_start
        self.unshard_end = np.empty(0) if unshard_end is None else unshard_end
        self.engine = engine

    @classmethod
    def from_trace(cls, path: str | PathLike[str], step: int | None = None) -> Timeline:
        """A measured step of a replay (default: the median one), from the trace file that the harness wrote.

        Raises ConfigError for a file that is no trace.
        """
        from ppsim.interop.replays import read_trace

        return read_trace(path).timeline(step)

    @property
    def schedule(self) -> Schedule:
        return self.plan.schedule

    @property
    def transport(self) -> str:
        return self.plan.transport

    @cached_property
    def start(self) -> np.ndarray:
        """Start of each compute action in seconds, device by device in list order; a fused slot is one entry."""
        return self.row_start[~self.schedule.joined]

    @cached_property
    def end(self) -> np.ndarray:
        """End of each compute action in seconds, like `start`; of a fused slot the end of its later part."""
        return self.row_end[np.append(~self.schedule.joined[1:], True)]

    @cached_property
    def device_start(self) -> np.ndarray:
        """First start on each device, seconds: of a compute action or an UNSHARD that takes time."""
        start = self.row_start[self.schedule.offsets[:-1]]
        return _merged(np.minimum, start, self.unshards.device, self.unshards.start)

    @cached_property
    def device_end(self) -> np.ndarray:
        """Last end on each device, seconds: of a compute action, a gradient reduction or an optimizer step."""
        steps = self.optimizer_steps
        return self.gradients_ready if steps is None else steps.end

    @cached_property
    def unshards(self) -> Spans:
        """The UNSHARDs that take time: device, stage, start and end in seconds."""
        return unshard_spans(self.plan.gathers, self.unshard_start, self.unshard_end)

    @cached_property
    def reductions(self) -> Spans:
        """The gradient reductions that take time: device, stage, start and end in seconds."""
        return run_reductions(self.plan.reductions, self.row_end)

    @cached_property
    def optimizer_steps(self) -> Spans | None:
        """Each device's optimizer step: device, start and end in seconds; None where none was asked for."""
        plan = self.plan
        if plan.optimizer is None or plan.optimizer_seconds is None:
            return None
        return run_optimizer(plan.optimizer, self.gradients_ready, plan.optimizer_seconds)

    @cached_property
    def gradients_ready(self) -> np.ndarray:
        """When each device's last action and gradient reduction have ended, seconds."""
        end = self.row_end[self.schedule.offsets[1:] - 1]
        return _merged(np.maximum, end, self.reductions.device, self.reductions.end)

    @cached_property
    def device_busy(self) -> np.ndarray:
        """Seconds in compute actions on each device; a timed OVERLAP_F_B slot counts its own length once."""
        return np.add.reduceat(self.plan.seconds, self.schedule.offsets[:-1])

    @property
    def device_idle(self) -> np.ndarray:
        """Makespan - busy of each device, seconds."""
        return np.maximum(self.makespan - self.device_busy, 0.0)

    @cached_property
    def exposed_communication(self) -> np.ndarray:
        """Seconds of each device in collectives inside its actions, and idle because of communication.

        The idle part is what the ledger puts under transfer, queue and sharding.
        """
        from ppsim.analysis.communication import exposed_communication

        return exposed_communication(self)

    @cached_property
    def makespan(self) -> float:
        """Last end - first start over all devices, seconds."""
        return float(self.device_end.max() - self.device_start.min())

    @cached_property
    def span(self) -> float:
        """Largest (last end - first start) of one device, seconds."""
        return float((self.device_end - self.device_start).max())

    @property
    def bubble_fraction(self) -> float:
        """1 - sum(busy) / (devices x makespan): idle / total."""
        return _rest(float(self.device_busy.sum()), self.schedule.devices * self.makespan)

    @property
    def bubble_ratio(self) -> float:
        """sum(idle) / sum(busy): idle / ideal, the measure of Megatron-LM and Llama 3; 0 where no action takes time."""
        busy = float(self.device_busy.sum())
        return max(self.schedule.devices * self.makespan - busy, 0.0) / busy if busy > 0 else 0.0

    @property
    def span_bubble_fraction(self) -> float:
        """1 - largest busy / span; for equal devices the rate of the zero-bubble papers."""
        return _rest(float(self.device_busy.max()), self.span)

    @property
    def steady_bubble_fraction(self) -> float:
        """Idle part of the time between fill and drain where iterations run on; elsewhere the bubble fraction."""
        from ppsim.analysis.steady import steady_bubble_fraction

        return steady_bubble_fraction(self)

    @property
    def iteration_time(self) -> float:
        """Seconds from one iteration to the next: the makespan; where they run on, the slowest device's pace."""
        from ppsim.analysis.steady import iteration_time

        return iteration_time(self)

    @cached_property
    def _occupancy(self) -> Occupancy:
        from ppsim.analysis.occupancy import Occupancy

        return Occupancy(self)

    @property
    def peak_activations(self) -> np.ndarray:
        """Largest number of live activations of each device, in microbatches through one device share of the model."""
        return self._occupancy.peak_activations

    def activations_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's live activations: times in seconds and the level from each time on.

        Same unit as `peak_activations`. Both arrays have one entry a change, in time order.
        """
        return self._occupancy.activations_over_time(device)

    @property
    def peak_memory(self) -> np.ndarray | None:
        """Largest memory of each device in bytes; None where the costs do not say what is held.

        Weights + gradients + optimizer state + live activations + transfer buffers.
        """
        return self._occupancy.peak_memory

    @property
    def static_memory(self) -> np.ndarray | None:
        """Bytes of weights, gradients and optimizer state (rows) on each device (columns), or None.

        A stage that two devices hold counts on both, and weights once for each version that the device keeps.
        """
        return self._occupancy.static_memory

    def memory_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Step curve of a device's memory: times in seconds and bytes from each time on.

        A transfer holds its buffer at the receiver from its start to the end of the action that consumes it, and at the
        sender while it lasts. At equal times memory is freed before it is taken. Raises CostError where the costs do
        not say what is held.
        """
        return self._occupancy.memory_over_time(device)

    def memory_parts_over_time(self, device: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The same curve part by part: weights, gradients, optimizer_state, activations and transfer_buffers.

        Times in seconds, and for each part its bytes from each time on. What a backward brings back by recomputation
        counts with the activations.
        """
        from ppsim.analysis.occupancy import PARTS

        times, levels = self._occupancy.memory_parts_over_time(device)
        return times, dict(zip(PARTS, levels, strict=True))

    def memory(self) -> Memory:
        """What each device holds at its peak, part by part, and whether it fits; CostError where that is not known."""
        from ppsim.analysis.memory import memory

        return memory(self)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of one step over its seconds, all data-parallel copies together; None where no model is known."""
        from ppsim.analysis.throughput import tokens_per_second

        return tokens_per_second(self)

    @property
    def mfu(self) -> float | None:
        """Model FLOP utilisation of all GPUs, a fraction of their dense peak; None where no model is known."""
        from ppsim.analysis.throughput import model_flop_utilisation

        return model_flop_utilisation(self)

    def ledger(self) -> Ledger:
        """Idle seconds by cause: a mapping cause -> array, one entry a device; they sum to `device_idle`."""
        from ppsim.analysis.ledger import ledger

        return ledger(self)

    def critical_path(self) -> np.ndarray:
        """Actions of the chain that sets the makespan, in time order, as indices into `start` and `end`."""
        from ppsim.analysis.critical_path import critical_path

        return critical_path(self)

    def slack(self) -> np.ndarray:
        """Seconds by which each action can grow without a longer makespan, one entry an action."""
        from ppsim.analysis.critical_path import slack

        return slack(self)

    def sensitivities(self) -> Sensitivities:
        """Seconds of step per second of each kind, stage, device and link."""
        from ppsim.analysis.sensitivities import sensitivities

        return sensitivities(self)

    def lower_bound(self) -> LowerBound:
        """What no order of the same actions can beat on the same devices and within the same peaks, and why."""
        from ppsim.analysis.bounds import lower_bound

        return lower_bound(self)

    def summary(self) -> str:
        """The measures as readable text, with units."""
        from ppsim.plots.summary import summary_text

        return summary_text(self)

    def to_dict(self) -> dict[str, Any]:
        """The measures under the names of docs/glossary.md, as plain Python values (schema ppsim.result/1)."""
        from ppsim.interop.result import result_document

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
        from ppsim.plots.text import gantt_text

        return gantt_text(self, **options)

    def _repr_html_(self) -> str:
        from ppsim.plots.notebook import timeline_html

        return timeline_html(self)

    def __repr__(self) -> str:
        return (
            f"<Timeline {self.schedule.name}: {self.schedule.devices} devices, makespan {self.makespan:.6g} s, "
            f"bubble fraction {self.bubble_fraction:.4f}, engine {self.engine}>"
        )


def _merged(extreme: np.ufunc, column: np.ndarray, device: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The smaller (or larger) of a time a device and those of `times` on it."""
    if not len(device):
        return column
    merged = column.copy()
    extreme.at(merged, device, times)
    return merged


def _rest(part: float, whole: float) -> float:
    """1 - part / whole, never below 0 by rounding; 0 of an empty whole."""
    return max(1.0 - part / whole, 0.0) if whole > 0 else 0.0
