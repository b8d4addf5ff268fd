"""Pages of charts, written and then read as their script reads them."""

import base64
import json
import re
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from ppsim.plots.viewer import Iterations, Marks, save_html

__all__ = ["Iterations", "Marks", "page_of", "save_html", "texts", "unpacked"]

# What an item of a page waited for, as the page's data.js reads it; its input may be one of two.
BEFORE, INPUT, OTHER_INPUT, LISTED = 1, 2, 3, 4


def page_of(*timelines, **options):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "chart.html"
        save_html(timelines, path, **options)
        assert [file.name for file in Path(folder).iterdir()] == ["chart.html"]
        return path.read_text(encoding="utf-8")


def texts(page):
    """Return the style, the script and the data (charts, steps) that a page has compressed."""
    packed = re.findall('<script id="viewer-script"[^>]*>(.*?)</script>', page, re.DOTALL)[0]
    digits = "".join({"\\": "!", "<": "}", ">": "~"}.get(one, one) for one in map(chr, range(40, 125)))
    ascii_85 = packed.translate(str.maketrans(digits, "".join(map(chr, range(33, 118)))))
    style, script, data = zlib.decompress(base64.a85decode(ascii_85)).decode().split("\0")
    return style, script, json.loads(data)


def unpacked(page, chart=0):
    """Return the description of one of a page's charts, and its columns, read as its script reads them."""
    about = texts(page)[2][0][chart]
    content = zlib.decompress(base64.b64decode(about["packed"]))
    columns, at = {}, 0
    for name, count, size, summed in about["columns"]:
        planes = np.frombuffer(content, np.uint8, count * size, at).reshape(size, count).astype(np.uint64)
        values = (planes << (8 * np.arange(size, dtype=np.uint64))[:, None]).sum(axis=0)
        columns[name] = np.cumsum(values) % 2**32 if summed else values
        at += count * size
    assert at == len(content)
    for before in ["", *(f"{part['sort']} " for part in about["lanes"])]:
        since_last_end = columns[f"{before}gap"], np.append(0, columns[f"{before}length"][:-1])
        columns[f"{before}start"] = np.cumsum(sum(since_last_end)) % 2**32
    return about, columns
