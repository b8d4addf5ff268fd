"""Runs the lessons in notebooks/ from first to last cell and stores them with what they show: `make docs`."""

import base64
import io
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from ppsim.base.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # that a cell may take
EXACT, OTHERS = 32, 224  # colours of a stored picture: the most frequent, which are those of fills, and close ones


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
    """An output with its picture in few colours, and without the text that stands in for it."""
    if "image/png" in output.get("data", {}):
        output.data.pop("text/plain", None)
        drawn = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"]))).convert("RGB")
        counted = sorted(drawn.getcolors(drawn.width * drawn.height) or [], reverse=True)
        close = drawn.quantize(OTHERS, Image.Quantize.FASTOCTREE).getpalette() or []
        palette, small = Image.new("P", (1, 1)), io.BytesIO()
        palette.putpalette([part for _, colour in counted[:EXACT] for part in colour] + close[: 3 * OTHERS])
        drawn.quantize(palette=palette, dither=Image.Dither.NONE).save(small, "png", optimize=True)
        output.data["image/png"] = base64.b64encode(small.getvalue()).decode()
    return output


def main(names: list[str]) -> None:
    """Refresh the lessons of these names, or all."""
    for path in LESSONS:
        if not names or path.stem in names:
            write_atomically(path, nbformat.writes(run(path)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
