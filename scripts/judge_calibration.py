"""Judges calibrations from a few measured steps; writes the table of docs/howto/calibrate.md.

`python scripts/judge_calibration.py STEPS.json MODEL` takes some minutes. STEPS.json lists one object per run of
nanotron's benchmark (Hugging Face, The Ultra-Scale Playbook, benchmarks_interactive.html): model, nodes, dp, tp, pp,
mbs, acc, gbs, zero, tgs (tokens per second and GPU; none if the run crashed) and mem (GiB of the first GPU). Random
runs of one and two nodes are fitted, and the others of the model predicted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ppsim import Timeline
from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text
from ppsim.config import make_config
from ppsim.costs import calibrated
from ppsim.studies import step_calibration as study
from ppsim.studies.evaluation import kendall_tau

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "calibrate.md"
SHAPES = {  # layers, hidden size, heads, ffn, tied embeddings
    "1B": (16, 2048, 32, 8192, True), "3B": (28, 3072, 32, 8192, True), "8B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False),
}  # fmt: skip
VOCABULARY, SEQUENCE, GIB = 131072, 4096, 2**30
CASES, OTHERS = ((10, 3), (3, 3)), 60  # (runs in a fit, fits), and runs that each fit predicts
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8}
PLACE = re.compile(r"(<!-- made by judge_calibration.py -->\n).*?(<!-- end -->)", re.DOTALL)
HEADER = ("runs fitted", "nodes of the others", "median error without", "with", "Kendall's tau without", "with",
          "memory error without", "with", "inside 90 %")  # fmt: skip


def stages_of(model: str, devices: int) -> str:
    """Return nanotron's stages as a layout string: a layer joins a stage until its share of all FLOPs is exceeded."""
    layers, hidden, _, ffn, _ = SHAPES[model]
    costs = [0, *[4 * hidden * hidden + 3 * hidden * ffn] * layers, VOCABULARY * hidden]
    stages, stage, whole = [""] * devices, 0, 0
    for name, cost in zip("E" + "t" * layers + "L", costs, strict=True):
        stages[stage] += name
        whole += cost
        stage += whole * devices > sum(costs) * (stage + 1) and stage < devices - 1
    return "|".join(stages)


def config_of(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of a run."""
    layers, hidden, heads, ffn, tied = SHAPES[run["model"]]
    model = {"num_layers": layers, "hidden": hidden, "heads": heads, "ffn": ffn, "gated": True, "norm": "rmsnorm"}
    model |= {"vocabulary": VOCABULARY, "sequence": SEQUENCE, "tied_embeddings": tied, "attention": "flash-2"}
    layout = {"tensor": run["tp"], "data": run["dp"], "microbatch_size": run["mbs"], "framework": "nanotron"}
    layout |= {"sequence_parallel": run["tp"] > 1, "distributed_optimizer": bool(run["zero"])}
    schedule = {"name": "1f1b", "devices": run["pp"], "microbatches": run["acc"]}
    return {
        "model": model,
        "hardware": HARDWARE,
        "layout": layout | {"partition": stages_of(run["model"], run["pp"])},
        "schedule": schedule,
        "transport": "directed",
        "optimizer": "sync",
        "engine": "compiled",
    }


def seconds_of(run: Mapping[str, Any]) -> float:
    """Return the measured seconds of a step."""
    return run["gbs"] * SEQUENCE / (run["tgs"] * 8 * run["nodes"])


def priced(run: Mapping[str, Any]) -> study.PricedRun:
    """Return a run that can be simulated under other constants."""
    return study.PricedRun(study.StepRun(make_config(config_of(run), place="run"), seconds_of(run), run["mem"] * GIB))


def errors(runs: Sequence[Mapping[str, Any]], steps: Sequence[Timeline]) -> tuple[np.ndarray, np.ndarray]:
    """Return log(predicted / measured) of the steps, and of the memory of the first device."""
    of_step = [one.iteration_time / seconds_of(run) for run, one in zip(runs, steps, strict=True)]
    of_memory = [np.asarray(one.peak_memory)[0] / (run["mem"] * GIB) for run, one in zip(runs, steps, strict=True)]
    return np.log(of_step), np.log(of_memory)


def main(path: str, model: str) -> None:
    """Write the table."""
    listed = json.loads(Path(path).read_text(encoding="utf-8"))
    runs = [
        run for run in listed if run["model"] == model and run["tgs"] and run["dp"] * run["mbs"] * run["acc"] == 256
    ]
    near = [number for number, run in enumerate(runs) if run["nodes"] <= 2]
    random = np.random.default_rng(27)
    others = random.choice(len(runs), OTHERS, replace=False).tolist()
    known = {number: priced(runs[number]) for number in others}
    before = {number: known[number].under({}) for number in others}
    found: dict[tuple[int, str], list[tuple[float, ...]]] = {}
    for size, times in CASES:
        for _ in range(times):
            fitted = random.choice([one for one in near if one not in others], size, replace=False).tolist()
            calibration = study.fitted_constants([priced(runs[number]).run for number in fitted])
            logs = {name: float(np.log(factor)) for name, factor in calibration.factors.items()}
            after = {number: known[number].under(logs) for number in others}
            inside = {number: _inside(calibration, known[number], seconds_of(runs[number])) for number in others}
            for words, most in (("1 to 4", 4), ("1 to 16", 16), ("1 to 64", 64)):
                chosen = [number for number in others if runs[number]["nodes"] <= most]
                row = _row(
                    [runs[one] for one in chosen], [before[one] for one in chosen], [after[one] for one in chosen]
                )
                found.setdefault((size, words), []).append((*row, float(np.mean([inside[one] for one in chosen]))))
            print(size, calibration.sentence, [round(one, 3) for one in found[size, "1 to 64"][-1]], flush=True)
    rows = [HEADER, ("---",) * len(HEADER)]
    for (size, words), each in found.items():
        values = np.median(each, axis=0).tolist()
        texts = [f"{value:.2f}" if number in (2, 3) else percent_text(value) for number, value in enumerate(values)]
        rows.append((str(size), words, *texts))
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    write_atomically(PAGE, PLACE.sub(lambda place: place[1] + table + place[2], PAGE.read_text(encoding="utf-8")))


def _row(runs: Sequence[Mapping[str, Any]], before: Sequence[Timeline], after: Sequence[Timeline]) -> list[float]:
    pairs = [errors(runs, steps) for steps in (before, after)]
    medians = [[float(np.median(np.abs(np.expm1(one)))) for one in pair] for pair in pairs]
    speeds = [run["tgs"] for run in runs]
    ranks = [kendall_tau(speeds, [speed / np.exp(error) for speed, error in zip(speeds, steps, strict=True)])
             for steps, _ in pairs]  # fmt: skip
    return [medians[0][0], medians[1][0], *(rank or 0.0 for rank in ranks), medians[0][1], medians[1][1]]


def _inside(calibration: calibrated.Calibration, run: study.PricedRun, seconds: float) -> bool:
    interval = study.calibrated_config(run.config, calibration).simulate(run.config.build()).interval
    return interval is not None and interval[0] <= seconds <= interval[1]


if __name__ == "__main__":
    main(*sys.argv[1:3])
