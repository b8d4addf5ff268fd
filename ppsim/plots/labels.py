"""The numbers in the boxes of a matplotlib Gantt chart."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ppsim.plots import palette
from ppsim.plots.beside import Beside, Spans, lane
from ppsim.plots.boxes import Boxes, halves
from ppsim.plots.marks import figure_of
from ppsim.plots.row_numbers import every_kth, roomy_rows

DIGIT_POINTS = 4.0  # width of a digit of a label at its usual size
_LABEL_SIZE, _SMALLEST_LABEL, _KTH_LABEL = 6.5, 4.5, 5.0
_DIGIT_HEIGHT = 0.78  # of the size, with a little air
_MOST_LABELS = 5_000
_NARROWEST_COUNTED = 2.0  # points of short boxes of which every k-th number is written


@dataclass(frozen=True)
class _Labels:
    """The labels of the boxes `mine`, between the edges `band` of their rows; `part` of their slots."""

    mine: np.ndarray
    part: int
    band: tuple[float, float]
    texts: np.ndarray

    @property
    def wide(self) -> np.ndarray:
        return _widths(self.texts)


def add_labels(ax: Axes, boxes: Boxes, points: float) -> None:
    """Microbatch numbers, at one size for the whole chart: in every box of a device's row, upright where boxes are
    narrow; or of every k-th microbatch where they are narrower still; or none.
    """
    drawn = np.flatnonzero(boxes.length > 0)
    bands = [(drawn[~boxes.slot[drawn]], 0, boxes.band)]
    bands += [(drawn[boxes.slot[drawn]], part, half) for part, half in enumerate(halves(boxes.band))]
    every = [
        _Labels(mine, part, band, np.array([boxes.number(row) for row in (boxes.row[mine] + part).tolist()]))
        for mine, part, band in bands
        if len(mine)
    ]
    rows = np.zeros(boxes.timeline.schedule.devices, bool)
    for upright in (False, True) if every else ():
        if not rows.any():
            rows = _label_rows(ax, boxes, every, points, upright)
    for labels in every:
        _label_every_kth(ax, boxes, labels, points, ~rows)


def _label_rows(ax: Axes, boxes: Boxes, every: list[_Labels], points: float, upright: bool) -> np.ndarray:
    """Number all boxes of the rows that have room for it, where most have it; which rows (bool) these are."""
    size = min(_label_size(ax, boxes, labels.band, 0.75) for labels in every)
    if upright:  # as tall as a text is wide
        size = min(_label_size(ax, boxes, labels.band, 0.95 / labels.wide.max()) for labels in every)
    wide = np.concatenate([np.full(len(labels.mine), _DIGIT_HEIGHT) if upright else labels.wide for labels in every])
    spans = np.concatenate([labels.mine for labels in every])
    room = boxes.length[spans] * points - 1.0
    size = float(np.clip(np.quantile(room / wide, 0.05), 0.0, size))
    fits = wide * max(size, _SMALLEST_LABEL) <= room + 1e-9
    whole = roomy_rows(boxes.device[spans], fits, boxes.timeline.schedule.devices)
    if size < _SMALLEST_LABEL and upright:
        return np.zeros_like(whole)
    shown = np.split(whole[boxes.device[spans]] & fits, np.cumsum([len(labels.mine) for labels in every])[:-1])
    for labels, seen in zip(every, shown, strict=True):
        grounds = [boxes.colour(box, labels.part) for box in labels.mine[seen].tolist()]
        inks = map(palette.label_colour, grounds)
        style = {"rotation": 90 if upright else 0, "fontsize": max(size, _SMALLEST_LABEL)}
        _write(ax, boxes, labels.mine[seen], labels.texts[seen], labels.band, inks, **style)
    return whole


def _label_every_kth(ax: Axes, boxes: Boxes, labels: _Labels, points: float, rows: np.ndarray) -> None:
    """The numbers of every k-th microbatch in each of the `rows` (bool), where boxes are not too low or narrow."""
    mine, schedule = labels.mine, boxes.timeline.schedule
    too_low = _label_size(ax, boxes, labels.band, 0.95) < _KTH_LABEL
    if too_low or np.quantile(boxes.length[mine], 0.25) * points < _NARROWEST_COUNTED:
        return
    whole = schedule.microbatch[boxes.row[mine] + labels.part] // schedule.slices
    middle = (boxes.start[mine] + boxes.length[mine] / 2) * points
    shown = every_kth(boxes.device[mine], middle, labels.wide * _KTH_LABEL + 1.4, whole, rows)
    halo = {"path_effects": [withStroke(linewidth=1.4, foreground="white")], "fontsize": _KTH_LABEL}
    _write(ax, boxes, mine[shown], labels.texts[shown], labels.band, [palette.INK] * len(shown), **halo)


def add_beside_labels(ax: Axes, boxes: Boxes, part: Beside, points: float) -> None:
    """The stages on their spans where there is room for all of them."""
    edges = lane(part, boxes.beside)
    size = _label_size(ax, boxes, edges, 0.95)
    texts = np.array([part.label(span) for span in range(len(part))])
    if size >= _SMALLEST_LABEL and np.all(_widths(texts) * size <= part.length * points - 1.0):
        inks = [palette.label_colour(part.colour)] * len(part)
        _write(ax, part, np.arange(len(part)), texts, edges, inks, fontsize=size)


def _label_size(ax: Axes, boxes: Boxes, edges: tuple[float, float], part: float) -> float:
    """Size of labels that fill `part` of the height between `edges` of a device's row, in points."""
    row = ax.get_window_extent().height / figure_of(ax).dpi * 72 / boxes.timeline.schedule.devices
    return min(_LABEL_SIZE, row * (edges[1] - edges[0]) * part)


def _widths(texts: np.ndarray) -> np.ndarray:
    """Widths of labels a point of their size."""
    return np.char.str_len(texts) * DIGIT_POINTS / _LABEL_SIZE


def _write(
    ax: Axes, spans: Spans, shown: np.ndarray, texts: np.ndarray, edges: tuple[float, float], inks: Iterable[str],
    **style: Any,
) -> None:  # fmt: skip
    """A text in the middle of each span in `shown`; none where they are too many."""
    if len(shown) > _MOST_LABELS:
        return
    middles = spans.start[shown] + spans.length[shown] / 2
    rows = spans.device[shown] + sum(edges) / 2
    style |= {"ha": "center", "va": "center" if style.get("rotation") else "center_baseline", "zorder": 4}
    for x, y, text, ink in zip(middles.tolist(), rows.tolist(), texts.tolist(), inks, strict=True):
        ax.text(x, y, text, color=ink, clip_on=True, **style)
