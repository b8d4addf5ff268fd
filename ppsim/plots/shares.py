"""Overviews of timelines with too many boxes to see: the part of its time that a device spends in each kind."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from ppsim.plots import palette
from ppsim.plots.boxes import Boxes

ACTIONS_A_BIN = 9  # enough that the mix of kinds in the steady part looks even
MOST_BINS, LINES = 1600, 12  # of time, and lines of pixels a device


def kind_shares(boxes: Boxes, edges: np.ndarray, devices: slice | None = None) -> np.ndarray:
    """Part of each time bin that each device spends in each kind, float64 (devices, bins, len(boxes.kinds)).

    `edges` are the borders of the bins in seconds from the first start. What is left of 1 is idle time.
    """
    chosen = range(boxes.timeline.schedule.devices)[devices or slice(None)]
    shares = np.zeros((len(chosen), len(edges) - 1, len(boxes.kinds)))
    widths = np.diff(edges)
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


def share_edges(boxes: Boxes, most: int = MOST_BINS) -> np.ndarray:
    """Borders of equal time bins that hold several actions each, seconds from the first start."""
    makespan = boxes.timeline.makespan
    lengths = boxes.length[boxes.length > 0]
    wanted = makespan / (ACTIONS_A_BIN * float(np.median(lengths))) if len(lengths) else 1.0
    return np.linspace(0.0, makespan if makespan > 0 else 1.0, int(np.clip(wanted, 200, most)) + 1)


def share_image(boxes: Boxes, edges: np.ndarray, lines: int = LINES) -> np.ndarray:
    """Pixels of the stacked shares, uint8 (devices * lines, bins, 3); first kind at the bottom, idle time on top."""
    tops = np.cumsum(kind_shares(boxes, edges), axis=2)
    centres = 1.0 - (np.arange(lines) + 0.5) / lines
    kind = (centres[None, :, None, None] > tops[:, None, :, :]).sum(axis=3)
    colours = [palette.channels(colour) for colour in (*(palette.COLOURS[kind] for kind in boxes.kinds), palette.IDLE)]
    return np.array(colours, np.uint8)[kind].reshape(-1, len(edges) - 1, 3)


def png_bytes(pixels: np.ndarray) -> bytes:
    """An RGB image (rows, columns, 3; uint8) as a PNG file (PNG specification, third edition)."""
    rows, columns, _ = pixels.shape
    unfiltered = np.concatenate([np.zeros((rows, 1), np.uint8), pixels.reshape(rows, -1)], axis=1).tobytes()
    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    chunks: Sequence[tuple[bytes, bytes]] = ((b"IHDR", header), (b"IDAT", zlib.compress(unfiltered)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body)) for name, body in chunks
    )
