"""The rows of a matplotlib chart: an artist that draws boxes, gaps, marks, numbers and lanes for the pixels it gets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist, allow_rasterization
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.plots import scale
from ppsim.plots.areas import NO_PATH, Area, named_areas
from ppsim.plots.boxes import Boxes, halves
from ppsim.plots.figures import text_width
from ppsim.plots.lanes import STEPS, LaneSpans, Spans, lane_edges, part_of_row
from ppsim.plots.palette import Theme, channels, label_colour
from ppsim.plots.pixels import PixelColumns, gap_of_rows, is_mixed, picture

POINTS = 0.5  # points per reference pixel
_MAX_VECTOR_BOXES, _NARROWEST_VECTOR = 20_000, 3.0  # more or narrower boxes (pixels) are an image in SVG and PDF
_NAME, _AIR, _LINE = 10.0, 6.0, 11.0  # pixels: size of an area's name, free width beside it, from line to line


@dataclass(frozen=True)
class Place:
    """Places of rows in display units, which count upwards while rows go down."""

    left: float  # left edge
    second: float  # length of a second
    top: float
    row: float  # height of a row
    pixel: float  # a reference pixel
    width: float
    in_pixels: bool  # False in SVG and PDF, whose unit is a point

    def x(self, seconds: Any) -> Any:
        """Return the horizontal places of times."""
        return self.left + seconds * self.second

    def band(self, device: np.ndarray, edges: tuple[float, float], gap: float) -> Any:
        """Return top and bottom of a band of each device's row, like `Boxes.band`; high rows begin at whole pixels."""
        begin, end = device * self.row, (device + 1) * self.row
        if self.in_pixels and self.row >= scale.LOWEST_MARK * self.pixel:
            begin, end = np.rint(begin), np.rint(end)
        tall = end - begin - gap
        return tuple(self.top - (begin + part * tall) for part in part_of_row(edges))


def width_of_digit() -> float:
    """Return the width of a digit of size 1."""
    return text_width("0000", 10) / 40


def area_names(
    boxes: Boxes, second: float, row: float, path: np.ndarray = NO_PATH
) -> Iterator[tuple[Area, str, float, float, float]]:
    """Yield areas with their names as `named_areas`, in rows of `row` pixels and with `second` pixels per second."""
    gap = gap_of_rows(boxes, second, row)
    path = path[path[:, 0, 1] != path[:, 1, 1]] if gap else path  # level lines are between rows
    joined = not _rows_apart(boxes, gap)
    return named_areas(boxes, lambda line: (text_width(line, _NAME) + _AIR) / second, _LINE / row, joined, path)


def _rows_apart(boxes: Boxes, gap: float) -> bool:
    """Return whether something is between the boxes of two rows: a gap of `gap` pixels, or lanes."""
    return gap > 0 or part_of_row(boxes.band) != (0.0, 1.0)


class ChartRows(Artist):
    """The rows of all devices of one timeline: fills as exact means of pixels, then gaps, marks and numbers."""

    def __init__(
        self, ax: Axes, boxes: Boxes, theme: Theme, labels: bool, numbered: bool, lettered: bool, path: Any
    ):  # fmt: skip
        super().__init__()
        self.boxes, self.theme, self.labels, self.path = boxes, theme, labels, path
        self._numbered, self._lettered = numbered, lettered  # else labels are the names of areas alone
        self._family, self._digit = matplotlib.rcParams["font.family"], width_of_digit()
        self.set_figure(ax.figure)
        self.axes = self._ax = ax
        self.set_zorder(2)
        ax.add_artist(self)

    def get_window_extent(self, renderer: Any = None) -> Any:
        """Return the extent of the axes."""
        return self._ax.get_window_extent(renderer)

    def place(self, renderer: Any = None) -> Place:
        """Return where the rows lie in display units."""
        area = self._ax.get_window_extent(renderer)
        first, last = self._ax.get_xlim()
        left, width = round(area.x0), round(area.x1) - round(area.x0)
        second = width / (last - first)
        row = round(area.height) / self.boxes.timeline.schedule.devices  # as the image has them
        figure: Any = self._ax.figure
        pixel = (renderer.points_to_pixels(1.0) if renderer is not None else figure.dpi / 72) * POINTS
        in_pixels = renderer is None or hasattr(renderer, "buffer_rgba")
        return Place(left - first * second, second, round(area.y1), row, pixel, width, in_pixels)

    @allow_rasterization
    def draw(self, renderer: Any) -> None:
        """Draw the rows."""
        if not self.get_visible():
            return
        place, boxes = self.place(renderer), self.boxes
        gap = self._gap(place)
        is_mean = boxes.median * place.second / place.pixel < _NARROWEST_VECTOR or self._is_mixed(place)
        if not place.in_pixels and len(boxes) <= _MAX_VECTOR_BOXES and not is_mean:
            self._draw_polygons(renderer, place, gap)
        else:
            self._draw_image(renderer, place, gap)
        self._draw_overlays(renderer, place, gap)

    def _is_mixed(self, place: Place) -> bool:
        return is_mixed(self.boxes, place.second / place.pixel)

    def _gap(self, place: Place) -> float:
        return gap_of_rows(self.boxes, place.second / place.pixel, place.row / place.pixel) * place.pixel

    def _draw_image(self, renderer: Any, place: Place, gap: float) -> None:
        finer = renderer.get_image_magnification()
        first, last = self._ax.get_xlim()
        columns = PixelColumns(first, last, max(round(place.width * finer), 1))
        height = max(round(place.row * self.boxes.timeline.schedule.devices * finer), 1)
        rule = 0.0 if self._is_mixed(place) else place.pixel / place.second
        dense = place.pixel * finer
        pixels = picture(self.boxes, self.theme, columns, height, gap=gap * finer, rule=rule, dense=dense)
        is_paper = np.all(pixels == channels(self.theme.paper), axis=2, keepdims=True)
        opaque = np.where(is_paper, 0, 255).astype(np.uint8)  # the grid shows on paper
        context = renderer.new_gc()
        image = np.concatenate([pixels, opaque], axis=2)[::-1]
        corner = round(place.x(first)), round(place.top - height / finer)
        renderer.draw_image(context, *corner, np.ascontiguousarray(image))
        context.restore()

    def _draw_polygons(self, renderer: Any, place: Place, gap: float) -> None:
        boxes, theme = self.boxes, self.theme
        devices = np.arange(boxes.timeline.schedule.devices)
        finish = np.full(len(devices), makespan(boxes.timeline))
        self._fill(renderer, place, place.band(devices, boxes.band, gap), 0.0 * finish, finish, theme.idle)
        for kind, mine, edges in boxes.parts(boxes.length > 0):
            band = place.band(boxes.device[mine], edges, gap)
            self._spans(renderer, place, band, boxes.start[mine], boxes.length[mine], theme.kinds[kind])
        for lane in (lane for lane in boxes.lanes if not lane.has_band):
            band = place.band(lane.device, boxes.band, gap)
            self._spans(renderer, place, band, lane.start, lane.length, theme.lanes[lane.sort])
        self._lanes(renderer, place, gap, [lane for lane in boxes.lanes if lane.sort in boxes.sorts])

    def _lanes(self, renderer: Any, place: Place, gap: float, lanes: Sequence[LaneSpans]) -> None:
        """Draw the lanes with a band."""
        for lane in (lane for lane in lanes if lane.has_band):
            band = place.band(lane.device, lane_edges(lane, self.boxes.sorts), gap)
            ends = lane.ticks(scale.TICK * place.pixel / place.second, makespan(self.boxes.timeline))
            self._fill(renderer, place, band, *ends, self.theme.lanes[lane.sort])

    def _spans(self, renderer: Any, place: Place, band: Any, start: Any, length: Any, colour: str) -> None:
        """Fill boxes after a gap of paper at their begin."""
        after = start + scale.gap_strength(length * place.second / place.pixel) * place.pixel / place.second
        self._fill(renderer, place, band, start, after, self.theme.paper)
        self._fill(renderer, place, band, after, start + length, colour)

    def _fill(self, renderer: Any, place: Place, band: Any, start: np.ndarray, end: np.ndarray, colour: Any) -> None:
        """Fill rectangles between times, cut at the ends of the axis."""
        start, end = (np.clip(times, *self._ax.get_xlim()) for times in (start, end))
        self._rectangles(renderer, place.x(start), place.x(end), band[0], band[1], colour)

    def _rectangles(
        self, renderer: Any, left: Any, right: Any, top: Any, bottom: Any, colour: Any, **frame: Any
    ) -> None:
        if not len(left):
            return
        corners: Any = np.stack(
            [np.stack([left, right, right, left], 1), np.stack([top, top, bottom, bottom], 1)], axis=2
        )
        style: Any = {"edgecolors": "none", "linewidths": 0, "antialiaseds": False, **frame}
        drawn = PolyCollection(corners, facecolors=colour, **style)
        self._draw_part(drawn, renderer)

    def _draw_part(self, part: Any, renderer: Any) -> None:
        part.set_figure(self._ax.figure)
        part.set_transform(IdentityTransform())
        part.set_clip_box(part.get_clip_box() or self._ax.bbox.padded(2))
        part.draw(renderer)

    def _draw_overlays(self, renderer: Any, place: Place, gap: float) -> None:
        """Draw lanes upon boxes, begins of steps, ticks of instants, marks and numbers."""
        boxes, theme = self.boxes, self.theme
        self._lanes(renderer, place, gap, [lane for lane in boxes.lanes if lane.sort not in boxes.sorts])
        for lane in (lane for lane in boxes.lanes if lane.sort == STEPS and not boxes.plain):
            mine = lane.length * place.second > place.pixel
            above, below = place.band(lane.device, lane_edges(lane, boxes.sorts), gap)
            begin = place.x(lane.start) + place.pixel / 2
            self._lines(renderer, begin[mine], above[mine], below[mine], place.pixel, theme.text)
        begins = boxes.step_begins
        top, bottom = place.band(boxes.device[begins], boxes.band, gap)
        for thick, colour in ((4.0, theme.paper), (2.0, theme.text)):
            begin = place.x(boxes.start[begins]) + place.pixel / 2  # apart from the number before it
            self._lines(renderer, begin, top + gap, bottom - gap, thick * place.pixel, colour)
        instants = np.flatnonzero(boxes.length == 0)
        for kind in np.unique(boxes.kind[instants]).tolist():
            mine = instants[boxes.kind[instants] == kind]
            top, bottom = place.band(boxes.device[mine], boxes.band, gap)
            self._lines(renderer, place.x(boxes.start[mine]), top, bottom, place.pixel, theme.kinds[Kind(kind)])
        if not self._is_mixed(place):
            wide = boxes.length * place.second / place.pixel
            for kind, mine, edges in boxes.parts(boxes.has_marks(place.second / place.pixel)):
                self._marks(renderer, place, kind, mine, edges, gap, wide[mine])
        for text in self._numbers(place, gap) if self.labels else ():
            self._draw_part(text, renderer)

    def _lines(self, renderer: Any, left: Any, top: Any, bottom: Any, thick: float, colour: str) -> None:
        """Draw upright lines around these places."""
        self._rectangles(renderer, left - thick / 2, left + thick / 2, top, bottom, colour)

    def _marks(
        self, renderer: Any, place: Place, kind: Kind, mine: np.ndarray, edges: Any, gap: float, wide: np.ndarray
    ) -> None:  # fmt: skip
        """Draw the marks of later stages at the lower edge of boxes, those of the other direction at the upper edge."""
        boxes, pixel, is_lower = self.boxes, place.pixel, edges[0] > self.boxes.band[0]
        local, reverse = (one[mine] for one in boxes.stages_of_parts(int(is_lower)))
        top, bottom = place.band(boxes.device[mine], edges, gap)
        if not len(mine) or float(top[0] - bottom[0]) < scale.LOWEST_MARK * pixel:
            return
        tall = float(top[0] - bottom[0]) / pixel
        thick, inset = (size * pixel for size in scale.mark_bar(tall))
        pad = np.where(wide >= 8, 1.5, 0.5) * pixel
        left, right = place.x(boxes.start[mine]) + pad, place.x(boxes.end[mine]) - pad
        long = scale.mark_length(local, boxes.locals, wide)
        later = long > 0
        low, high = bottom[later] + inset, top[reverse] - scale.mark_bar(tall, is_lower)[1] * pixel
        ends = left + long * (right - left)
        within: Any = {"clip_box": self._ax.bbox}
        self._rectangles(renderer, left[later], ends[later], low + thick, low, self.theme.on[kind], **within)
        self._rectangles(renderer, left[reverse], right[reverse], high, high - thick, self.theme.on[kind], **within)

    def numbers(self, renderer: Any = None) -> list[Text]:
        """Return the numbers that the rows show at the figure's present size."""
        place = self.place(renderer)
        return list(self._numbers(place, self._gap(place)))

    def _numbers(self, place: Place, gap: float) -> Iterator[Text]:
        boxes, theme = self.boxes, self.theme
        top, bottom = place.band(np.arange(boxes.timeline.schedule.devices), boxes.band, gap)
        tall = float(np.min(top - bottom)) / place.pixel
        mixed = self._is_mixed(place)
        is_numbered = self._numbered and not mixed
        found = boxes.numbers(place.second / place.pixel, tall, self._digit, self._lettered) if is_numbered else {}
        yield from self._names(place, gap) if mixed else ()
        for (kind, slot), (sizes, before) in found.items():
            for half in (0, 1)[: 1 + slot]:
                seen = (sizes > 0) & (boxes.end <= self._ax.get_xlim()[1] * (1 + 1e-9))  # whole
                mine = np.flatnonzero(seen & (boxes.kinds_of_parts(half) == kind))
                band = place.band(boxes.device[mine], halves(boxes.band)[half] if slot else boxes.band, gap)
                words = [before + boxes.number(row + half) for row in boxes.row[mine].tolist()]
                local, reverse = (of_part[mine] for of_part in boxes.stages_of_parts(half))
                aside = (local > 0) - reverse * (1 + 2 * half / 3)
                yield from self._texts(place, boxes, mine, band, words, sizes[mine], theme.on[kind], aside)
        for lane in (lane for lane in boxes.lanes if not lane.has_band):  # bands are too low for words
            yield from self._lane_texts(place, lane, place.band(lane.device, lane_edges(lane, boxes.sorts), gap))

    def _lane_texts(self, place: Place, lane: LaneSpans, band: Any) -> Iterator[Text]:
        words = [lane.label(span) for span in range(len(lane))]
        wide, tall = float(lane.length.min()) * place.second, float(np.min(band[0] - band[1]))
        least = wide / place.pixel, tall / place.pixel
        if size := float(scale.number_size(max(map(len, words)), *least, self._digit)):
            ink, sizes = self.theme.on_lanes[lane.sort], np.full(len(lane), size)
            yield from self._texts(place, lane, np.arange(len(lane)), band, words, sizes, ink, np.zeros(len(lane)))

    def _texts(
        self, place: Place, spans: Spans, mine: np.ndarray, band: Any, words: list[str], sizes: np.ndarray,
        ink: str, aside: np.ndarray,
    ) -> Iterator[Text]:  # fmt: skip
        """Yield the words in the middle of their spans, or `aside` of it, in marks upwards, beside the path."""
        (top, bottom), pixel, rows = band, place.pixel, np.sort(self.path[:, :, 1])
        crossing = {device: place.x(self.path[(rows[:, 0] < device) & (device < rows[:, 1]), 0, 0])
                    for device in np.unique(spans.device[mine]).tolist()}  # fmt: skip
        thick, inset = scale.mark_bar((top - bottom) / pixel)
        shift = 0.4 * (thick + inset) * pixel * aside
        ends = place.x(spans.start[mine]), place.x(spans.end[mine])
        for at, (word, size) in enumerate(zip(words, sizes.tolist(), strict=True)):
            y = (top[at] + bottom[at]) / 2 - size * 0.36 * pixel + shift[at]
            wide = (len(word) + scale.LETTER * word.startswith("W")) * self._digit * size * pixel
            left, right = float(ends[0][at]), float(ends[1][at])
            x, lines, half = (left + right) / 2, crossing[int(spans.device[mine[at]])], scale.PATH[1] / 2 * pixel
            if np.any(np.abs(lines - x) < half + wide / 2):  # the middle of what they leave
                left = np.max(lines[lines < x] + half, initial=left)
                right = np.min(lines[lines >= x] - half, initial=right)
            if right - left >= wide + scale.NUMBER_ROOM[0] / 2 * pixel:
                yield self._text(float(left + right) / 2, float(y), word, ink, size)

    def _text(self, x: float, y: float, words: str, ink: str, size: float) -> Text:
        """Return a text around a place in display units."""
        text = Text(
            x, y, words, color=ink, fontsize=size * POINTS, ha="center",
            va="baseline", parse_math=False, clip_on=True, usetex=False, fontfamily=self._family,
        )  # fmt: skip
        text.set_figure(self._ax.figure)
        text.set_transform(IdentityTransform())
        return text

    def _names(self, place: Place, gap: float) -> Iterator[Text]:
        """Yield the names of areas whose actions are too narrow to be drawn singly, beside the path.

        Between rows with gaps or lanes, and on noise, a name lies on its area's colour.
        """
        pixel, is_apart = place.pixel, _rows_apart(self.boxes, gap)
        named = area_names(self.boxes, place.second / pixel, place.row / pixel, self.path)
        for area, words, first, last, row in named:
            top, bottom = place.band(np.floor(row), self.boxes.band, gap)
            middle = (top + bottom) / 2 if is_apart else place.top - row * place.row
            y = middle - (_LINE * words.count("\n") / 2 + 0.36 * _NAME) * pixel
            left, right = place.x(np.array([first, last]))
            colour = area.colour(self.theme)
            text = self._text(float(left + right) / 2, float(y), words, label_colour(colour), _NAME)
            if (is_apart and top - bottom < _LINE * pixel) or not self.boxes.is_even:  # noise, or low rows
                text.set_bbox({"facecolor": colour, "edgecolor": "none", "pad": 0.5})
            yield text
