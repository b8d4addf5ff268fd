"""Parts of charts that tests use: boxes, colours, pixels, sizes, and the figures of several runs."""

from ppsim.plots.areas import areas
from ppsim.plots.boxes import block_names, common_title, costs_text, legend_entries, local_stage, make_boxes, sizes_text
from ppsim.plots.fronts import draw_front
from ppsim.plots.gantt import draw
from ppsim.plots.many_runs import COLOURS, draw_bars, draw_lines
from ppsim.plots.palette import DARK, GREY, LIGHT, ON_DARK, THEMES, TITLES, contrast, light_of, to_linear
from ppsim.plots.pixels import (
    PixelColumns,
    bins,
    footprint,
    from_linear,
    is_mixed,
    kind_shares,
    lines_of,
    picture,
    png_address,
    shares,
    windows,
)  # fmt: skip
from ppsim.plots.scale import round_ticks, row_gap, shown_length

__all__ = [
    "COLOURS", "DARK", "GREY", "LIGHT", "ON_DARK", "THEMES", "TITLES", "PixelColumns", "areas", "bins", "block_names",
    "common_title", "contrast", "costs_text", "draw", "draw_bars", "draw_front", "draw_lines", "footprint",
    "from_linear", "is_mixed", "kind_shares", "legend_entries", "light_of", "lines_of", "local_stage", "make_boxes",
    "picture", "png_address", "round_ticks", "row_gap", "shares", "shown_length", "sizes_text", "to_linear", "windows",
]  # fmt: skip
