"""What runs beside the actions of a timeline, as columns: weight gathers, gradient reductions, optimizer steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.timeline import TimelineColumns

GATHERS, REDUCTIONS, STEPS = "gathers", "reductions", "optimizer steps"
COLOURS = {GATHERS: "#8537ed", REDUCTIONS: "#701c28", STEPS: "#101085"}
TITLES = {
    GATHERS: "weight gather (UNSHARD)",
    REDUCTIONS: "gradient reduction (REDUCE_GRAD)",
    STEPS: "optimizer step",
}
LANE_GROUND = "#f7f7f7"
LETTERS = {GATHERS: "u", REDUCTIONS: "r", STEPS: "O"}
_FILLED = 0.43  # of a device's row on either side of its middle
_LANE, _GAP = 0.18, 0.02  # of a device's row


@dataclass(frozen=True)
class Spans:
    """Spans of time as columns, device by device in time order.

    Attributes
    ----------
    device, stage : int32
    start, length : float64, seconds
        `start` counts from the first start of the timeline.
    """

    device: np.ndarray
    stage: np.ndarray
    start: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.device)

    @cached_property
    def end(self) -> np.ndarray:
        """End of each span in seconds from the first start."""
        return self.start + self.length


@dataclass(frozen=True)
class Beside(Spans):
    """The spans of one sort: GATHERS, REDUCTIONS or STEPS; their stage is -1 where it is about all of the device."""

    sort: str

    @property
    def colour(self) -> str:
        """Its colour in every chart."""
        return COLOURS[self.sort]

    @property
    def title(self) -> str:
        """Its name in every legend."""
        return TITLES[self.sort]

    @property
    def letter(self) -> str:
        """Its letter in text."""
        return LETTERS[self.sort]

    def name(self, span: int) -> str:
        """The span as text, such as `3UNSHARD`; a device's optimizer step as `optimizer step`."""
        kind = {GATHERS: "UNSHARD", REDUCTIONS: "REDUCE_GRAD"}.get(self.sort)
        return f"{self.stage[span]}{kind}" if kind else "optimizer step"

    def label(self, span: int) -> str:
        """What stands in the box: the stage, or `step`."""
        return "step" if self.sort == STEPS else str(self.stage[span])


def beside(timeline: TimelineColumns) -> list[Beside]:
    """The sorts that take time in this timeline, in the order of the legend."""
    origin = float(timeline.device_start.min())
    found = []
    for sort, spans in (
        (GATHERS, timeline.unshards),
        (REDUCTIONS, timeline.reductions),
        (STEPS, timeline.optimizer_steps),
    ):
        if spans is not None and np.any(spans.end > spans.start):
            mine = spans.end > spans.start
            length = (spans.end - spans.start)[mine]
            found.append(Beside(spans.device[mine], spans.stage[mine], spans.start[mine] - origin, length, sort))
    return found


def band(every: Sequence[Beside]) -> tuple[float, float]:
    """Top and bottom of the actions' boxes within a row whose middle is 0 and whose height is 1, downwards.

    Weights come in along the top edge of a row and gradients leave along its bottom edge, each on a lane of its own; an
    optimizer step stands among the actions, for its device runs nothing else then.
    """
    sorts = {part.sort for part in every}
    return -_FILLED + (_LANE + _GAP) * (GATHERS in sorts), _FILLED - (_LANE + _GAP) * (REDUCTIONS in sorts)


def part_of_row(edges: tuple[float, float]) -> tuple[float, float]:
    """Top and bottom as in `band`, in parts (0..1) of what of a row is filled."""
    top, bottom = ((edge + _FILLED) / (2 * _FILLED) for edge in edges)
    return top, bottom


def lane(part: Beside, every: Sequence[Beside]) -> tuple[float, float]:
    """Top and bottom of the boxes of one sort within a row, as in `band`."""
    if part.sort == STEPS:
        return band(every)
    return (-_FILLED, _LANE - _FILLED) if part.sort == GATHERS else (_FILLED - _LANE, _FILLED)
