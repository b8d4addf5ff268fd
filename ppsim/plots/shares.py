"""Overviews of timelines with too many boxes to see: the part of its time that a device spends in each kind."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from ppsim.analysis.bubbles import makespan
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS
from ppsim.plots.boxes import Boxes

PERIODS_A_BIN = 4  # of the steady part, so that its mix of kinds looks even
MOST_BINS, LINES = 1600, 12  # of time, and lines of pixels a device


def kind_shares(boxes: Boxes, edges: np.ndarray, devices: slice | None = None) -> np.ndarray:
    """Part of each time bin that each device spends in each kind, float64 (devices, bins, len(boxes.kinds)).

    `edges` are the borders of the bins in seconds from the first start; what lies after the makespan is no part of the
    last bin. What is left of 1 is idle time.
    """
    chosen = range(boxes.timeline.schedule.devices)[devices or slice(None)]
    shares = np.zeros((len(chosen), len(edges) - 1, len(boxes.kinds)))
    widths = np.diff(np.minimum(edges, max(makespan(boxes.timeline), float(edges[-2]) + 1e-300)))
    for place, device in enumerate(chosen):
        rows = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
        start, end, kind = boxes.start[rows], boxes.end[rows], boxes.kind[rows]
        for column, wanted in enumerate(boxes.kinds):
            mine = kind == wanted
            times = np.stack([start[mine], end[mine]], axis=1).ravel()
            lengths = np.stack([np.zeros(mine.sum()), end[mine] - start[mine]], axis=1).ravel()
            if len(times):
                shares[place, :, column] = np.diff(np.interp(edges, times, np.cumsum(lengths))) / widths
    return shares


def bin_seconds(boxes: Boxes) -> float:
    """Length of a time bin in which the mix of kinds is steady: some periods of the device in the middle."""
    device = boxes.timeline.schedule.devices // 2
    rows = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
    kind = boxes.kind[rows]
    gaps = np.diff(boxes.start[rows][kind == np.bincount(kind).argmax()])
    gaps = gaps[gaps > 0]
    period = float(np.median(gaps)) if len(gaps) else makespan(boxes.timeline) or 1.0
    return PERIODS_A_BIN * period


def share_edges(boxes: Boxes, most: int = MOST_BINS) -> np.ndarray:
    """Borders of equal time bins of several actions each, seconds from the first start; the last may end late."""
    step, length = bin_seconds(boxes), makespan(boxes.timeline) or 1.0
    step *= np.ceil(length / step / most)
    return np.arange(int(np.ceil(length / step * (1 - 1e-12))) + 1) * step


def share_image(boxes: Boxes, edges: np.ndarray, lines: int = LINES) -> np.ndarray:
    """Pixels of the stacked shares, uint8 (devices * lines, bins, 3); first kind at the bottom, idle time on top."""
    tops = np.cumsum(kind_shares(boxes, edges), axis=2)
    centres = 1.0 - (np.arange(lines) + 0.5) / lines
    kind = (centres[None, :, None, None] > tops[:, None, :, :]).sum(axis=3)
    colours = [palette.channels(colour) for colour in (*(palette.COLOURS[kind] for kind in boxes.kinds), palette.IDLE)]
    return np.array(colours, np.uint8)[kind].reshape(-1, len(edges) - 1, 3)


def laned_image(boxes: Boxes, edges: np.ndarray, lines: int = LINES) -> np.ndarray:
    """The same with pale lines above and below each device's `lines` where gathers or reductions have a lane."""
    image = share_image(boxes, edges, lines)
    above, below = lane_lines(boxes, lines)
    rows = image.reshape(boxes.timeline.schedule.devices, lines, -1, 3)
    ground = np.full_like(rows[:, :1], palette.channels(LANE_GROUND)[0])
    return np.concatenate([ground.repeat(above, 1), rows, ground.repeat(below, 1)], axis=1).reshape(
        -1, image.shape[1], 3
    )


def lane_lines(boxes: Boxes, lines: int) -> tuple[int, int]:
    """Lines above and below where the shares of a device take `lines`; none where no lane is in use."""
    if all(part.sort == STEPS for part in boxes.beside):
        return 0, 0
    top, bottom = boxes.band
    return round(lines * (0.5 + top) / (bottom - top)), round(lines * (0.5 - bottom) / (bottom - top))


def png_bytes(pixels: np.ndarray) -> bytes:
    """An RGB image (rows, columns, 3; uint8) as a PNG file (PNG specification, third edition)."""
    rows, columns, _ = pixels.shape
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks: Sequence[tuple[bytes, bytes]] = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
