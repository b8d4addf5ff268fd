"""Writes the live page of the site: all schedules, replayed in the browser, and the timelines of the pictures."""

import base64
import json
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import make_communicator_docs
import make_gallery
import make_pages
import make_schedule_docs
import make_towers_docs
import numpy as np

import ppsim
from ppsim.actions import Kind
from ppsim.analysis.ledger import CAUSES
from ppsim.base.files import write_atomically
from ppsim.plan.holding import ActivationMemory
from ppsim.plots import palette
from ppsim.plots.boxes import kind_letter, make_boxes
from ppsim.plots.page_data import INPUT, page_data
from ppsim.plots.viewer import filled, script, style

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "docs" / "live"
P, M = (2, 3, 4, 6, 8, 12, 16), (2, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SEARCHED = {"v-half", "v-min", "zb-1p", "zb-2p", "zb-auto"}  # seconds each: fewer sizes
SEARCHED_P, SEARCHED_M = (2, 4, 8, 16), (4, 8, 16, 32, 64)
FIXED_SIZES = ((4, 8), (4, 16), (8, 16), (8, 32), (16, 64))  # of schedules whose replay is more than a longest path
ROWS = (Kind.F, Kind.B, Kind.I, Kind.W, Kind.R)  # kinds of a row that the page replays; their codes are 0 to 4
SHOWN: dict[str, tuple[str | float, ...]] = {  # pictures that the page replays: schedules, latency in seconds
    "comparison": (*make_pages.SHOWN, 0),
    "explorer": ("1f1b", "zb-h1", "zb-v", "dualpipe", 0),
    "viewer": ("1f1b", "zb-h1", 0.1),
    "notebook": ("interleaved-1f1b", 0.1),
    "plotly": ("zb-h1", 0.1),
    "still": ("dualpipe", 0.1),
}
# Pictures of 64 devices, which another chart shows, too.
LARGE = {
    "explorer": "comparison", "viewer": "comparison", "plotly": "comparison", "still": "comparison",
    "notebook": "transfers",
}  # fmt: skip
TOWERS: dict[str, dict[str, Any]] = {"towers": {}, "towers-prefetch": make_towers_docs.PREFETCH}
UNIT = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)


def main(folder: Path, p: Sequence[int] = P, m: Sequence[int] = M, pictures: bool = True) -> None:
    """Write the page and its data into a folder, for these sizes, with or without the gallery's timelines."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    index = {}
    for name, family in ppsim.schedules().items():
        fixed = not is_longest_path(first_schedule(family))
        content = fixed_charts(family, p, m) if fixed else lists(family, p, m)
        _write_data(folder, name, {**content, "constraints": family.constraints})
        index[name] = {"title": family.title, "fixed": fixed, "searched": family.searches}
    for name, runs in pictured_runs() if pictures else ():
        charts = [page_data(make_boxes(run), None if len(runs) == 1 else title) for title, run in runs.items()]
        _write_data(folder, f"chart-{name}", {"charts": charts})
    write_atomically(folder / "index.html", page(index, p, m))


def page(families: Mapping[str, Any], p: Sequence[int], m: Sequence[int]) -> str:
    """Return the page: the viewer, the replay, and the index of families and sizes."""
    read = {path.name: path.read_text(encoding="utf-8") for path in SOURCES.iterdir()}
    kinds = [{"letter": kind_letter(kind), "name": kind.name, "title": palette.TITLES[kind], "slot": kind not in ROWS}
             for kind in (*ROWS, Kind.OVERLAP_F_B)]  # fmt: skip
    facts = {
        "INDEX": {"families": families, "p": p, "m": m, "search_costs": "F = I = W = 1 s", "fixed_costs": FIXED_COSTS},
        "KINDS": kinds,
        "KIND_CODES": [int(kind) for kind in (*ROWS, Kind.OVERLAP_F_B)],
        "INPUT_CODE": INPUT,
        "CAUSE_TEXTS": CAUSES,
    }
    constants = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in facts.items())
    code = '"use strict";\n' + script() + constants + read["replay.js"] + read["page.js"]
    return filled(read["page.html"], {"STYLE": style() + read["page.css"], "SCRIPT": code})


FIXED_COSTS = "F = I = W = 1 s, S = T = 0.5 s, a reduction of 0.25 s"


def first_schedule(family: ppsim.Family) -> ppsim.Schedule:
    """Return a small schedule of a family."""
    return family.build(4, 8, **_costs(family))


def _costs(family: ppsim.Family) -> dict[str, Any]:
    return {"costs": UNIT} if family.searches else {}


def is_longest_path(schedule: ppsim.Schedule) -> bool:
    """Return whether each row waits for the row before it and one other row only, and a step ends with the last row."""
    return set(np.unique(schedule.kind)) <= set(ROWS) and not len(schedule.evicted) and schedule.iterations == 1


@cache
def schedules(name: str, p: Sequence[int], m: Sequence[int]) -> list[ppsim.Schedule]:
    """Return a family's schedules of these sizes; skip the sizes that it does not allow."""
    family, few, found = ppsim.schedules()[name], name in SEARCHED, []
    for devices in (one for one in p if not few or one in SEARCHED_P):
        for microbatches in (one for one in m if not few or one in SEARCHED_M):
            try:
                found.append(family.build(devices, microbatches, **_costs(family)))
            except ppsim.PpsimError:
                continue
    return found


def lists(family: ppsim.Family, p: Sequence[int], m: Sequence[int]) -> dict[str, Any]:
    """Return a family's lists as compressed columns, and what its rows add to a device's activations and free."""
    every = schedules(family.name, p, m)
    kind = np.concatenate([one.kind | (one.joined << 4) for one in every]).astype(np.uint8)
    stage = np.concatenate([one.stage for one in every]).astype(np.uint8)
    number = np.concatenate([np.diff(one.microbatch, prepend=0) for one in every]).astype("<i2").view(np.uint8)
    packed = zlib.compress(b"".join(column.tobytes() for column in (kind, stage, number[::2], number[1::2])), 9)
    holding = ActivationMemory(every[0], UNIT.table(every[0]), np.full(every[0].num_stages, float(every[0].slices)))
    return {
        "sizes": [
            {"p": one.devices, "m": one.microbatches_of_a_step, "stages": one.num_stages, "slices": one.slices,
             "offsets": one.offsets.tolist()}
            for one in every
        ],
        "packed": base64.b64encode(packed).decode(),
        "adds": holding.adds[:, 0].tolist(),
        "frees": holding.frees[:, 0].tolist(),
        "stored": float(holding.by_stage[2, 0]),
    }  # fmt: skip


def fixed_charts(family: ppsim.Family, p: Sequence[int], m: Sequence[int]) -> dict[str, Any]:
    """Return the charts of a family that the page does not replay, as the engine simulates it."""
    sizes = [(devices, microbatches) for devices, microbatches in FIXED_SIZES if devices in p and microbatches in m]
    runs = {size: ppsim.simulate(family.build(*size), make_schedule_docs.COSTS) for size in sizes}
    charts = {f"{devices},{number}": page_data(make_boxes(run), family.name) for (devices, number), run in runs.items()}
    return {"charts": charts}


def address(picture: str) -> str | None:
    """Return where the page shows a picture of docs/images, as the part of its address after "#".

    None for a picture that is no timeline, such as one of many runs.
    """
    folder, _, file = picture.rpartition("/")
    name = file.rpartition(".")[0]
    if folder == "schedules":
        return f"schedules={name}&p=4&m=8"
    sized = re.fullmatch(r"(.*?)-(\d+)(?:-(?:light|dark|grey))?", name)
    chart, devices = (sized[1], int(sized[2])) if sized else (name, make_gallery.SIZES[0][0])
    if chart in SHOWN and devices <= max(P):
        *names, latency = SHOWN[chart]
        microbatches = dict(make_gallery.SIZES)[devices]
        return f"schedules={','.join(map(str, names))}&p={devices}&m={microbatches}&c={latency}"
    stored = f"{LARGE.get(chart, chart)}-{devices}" if sized else name
    return f"chart={stored}" if stored in {"communicators", *TOWERS, *gallery_code()} else None


def gallery_code() -> dict[str, tuple[str, dict[str, int]]]:
    """Return the code of each picture of the gallery that shows timelines, with its sizes, by chart and devices."""
    found = {}
    for chart in make_gallery.CHARTS:
        pictured = re.fullmatch(r"(.*)\.plot(?:_ledger)?\(.*\)", chart.code, re.DOTALL)
        if pictured and "sweep" not in chart.code:
            for devices, microbatches in make_gallery.SIZES:
                found[f"{chart.file}-{devices}"] = pictured[1], {"p": devices, "m": microbatches}
    return found


def pictured_runs() -> Iterator[tuple[str, dict[str, ppsim.Timeline]]]:
    """Yield the name of each stored chart, and its timelines by title."""
    names = {"ppsim": ppsim, "run": make_gallery.run}
    for name, (code, sizes) in gallery_code().items():
        found = eval(code, {**names, **sizes})  # noqa: S307 - the gallery's
        runs = [found] if isinstance(found, ppsim.Timeline) else found.timelines
        yield name, {run.schedule.name: run for run in runs}
    yield "communicators", make_communicator_docs.pictured()
    for name, changes in TOWERS.items():
        yield name, {name: ppsim.load_config(make_towers_docs.CONFIG, overrides=changes).simulate()}


def _write_data(folder: Path, name: str, content: Mapping[str, Any]) -> None:
    text = json.dumps(content, separators=(",", ":"))
    write_atomically(folder / "data" / f"{name}.js", f"receive({json.dumps(name)}, {text});\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
