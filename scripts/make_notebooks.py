"""Runs the lessons in notebooks/ from first to last cell and stores them with what they show: `make docs`."""

import base64
import io
import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from ppsim.base.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # that a cell may take
SHORTER = (  # parts of matplotlib's SVG, and what draws the same
    (r"\s+", " "),
    (r"> <", "><"),
    (r"<metadata>.*?</metadata>", ""),
    (r" font-family: [^;\"]*;", ""),
    (r"<svg ", "<svg font-family=\"'Liberation Sans', Arial, Helvetica, 'DejaVu Sans', sans-serif\" "),
    (r' transform="rotate\(-0 [^"]*"', ""),
    (r' id="[\w.]+_\d+"', ""),
    (r"<g/>", ""),
    (r"(\.\d\d)\d+", r"\1"),
)


def run(path: Path) -> nbformat.NotebookNode:
    """A lesson with the outputs that its cells give now, as this repository's library makes them."""
    lesson = nbformat.read(path, as_version=4)
    os.environ["PYTHONPATH"] = str(ROOT)  # which the kernel inherits
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(lesson, timeout=SECONDS, coalesce_streams=True, resources=place).execute()
    for cell in lesson.cells:
        cell.metadata.clear()  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [_lean(output) for output in cell.outputs if output.get("name") != "stderr"]
    lesson.metadata.language_info = {"name": "python"}
    return lesson


def _lean(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output with its picture in few bytes and all its colours, and without the text that stands in for it."""
    data = output.get("data", {})
    if any(kind.startswith("image/") for kind in data):
        data.pop("text/plain", None)
    if "image/png" in data:
        small = io.BytesIO()
        Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).convert("RGB").save(small, "png", optimize=True)
        data["image/png"] = base64.b64encode(small.getvalue()).decode()
    if "image/svg+xml" in data:
        for found, short in SHORTER:
            data["image/svg+xml"] = re.sub(found, short, data["image/svg+xml"])
    return output


def main(names: list[str]) -> None:
    """Refresh the lessons of these names, or all."""
    for path in LESSONS:
        if not names or path.stem in names:
            write_atomically(path, nbformat.writes(run(path)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
