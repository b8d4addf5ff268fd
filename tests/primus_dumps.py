"""Folders as Primus' `dump_pp_data` writes them, made from simulations; and the recorded ones, where they are."""

import json
from copy import deepcopy
from pathlib import Path

import numpy as np

import ppsim
from ppsim.actions import Kind

RECORDED = Path(__file__).resolve().parents[2] / "shared" / "data" / "primus"


def recorded(name):
    """The folder of a recorded run, in a list; empty where the data is not beside the repository."""
    folder = RECORDED / name
    return [folder] if folder.is_dir() else []


def write_dump(folder, run, *, chunks=1, iterations=3, clocks=(), change=None):
    """Write a run of F and B; `clocks` are seconds by which each rank's times are off, `change` edits the documents."""
    folder.mkdir(parents=True, exist_ok=True)
    schedule = run.schedule
    sizes = {"pp_size": schedule.devices, "vp_size": chunks, "num_mbs": schedule.microbatches}
    documents = {"config.json": sizes}
    for rank in range(schedule.devices):
        rows = np.arange(*schedule.offsets[rank : rank + 2])
        shift = clocks[rank] if len(clocks) else 0.0
        lists = {}
        for kind, word in ((Kind.F, "fwd"), (Kind.B, "bwd")):
            mine = rows[schedule.kind[rows] == kind]
            lists[f"{word}_start"] = ((run.row_start[mine] + shift) * 1e3).tolist()
            lists[f"{word}_end"] = ((run.row_end[mine] + shift) * 1e3).tolist()
        iteration = {"total": 1e3 * run.makespan, "memory": 1.0, **lists}
        documents[f"pp_rank_{rank}.json"] = {str(number + 1): deepcopy(iteration) for number in range(iterations)}
    if change:
        change(documents)
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document))
    return folder


def head_heavy(stages, devices, *, layer=0.01, head=0.006, latency=0.0005):
    """Costs of a model of 32 equal layers with a head that runs once, cut into `stages`."""
    forward = [layer * 32 / stages] * stages
    forward[-1] += head
    return ppsim.Costs(forward=forward, backward=[2 * value for value in forward], per="stage", latency=latency)
