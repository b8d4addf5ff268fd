"""Judges calibrations from a few measured steps; writes the table of docs/howto/calibrate.md.

`python scripts/judge_calibration.py STEPS.json MODEL` takes some minutes. STEPS.json lists one object per run of
nanotron's benchmark (Hugging Face, The Ultra-Scale Playbook, benchmarks_interactive.html): model, nodes, dp, tp, pp,
mbs, acc, gbs, zero, tgs (tokens per second and GPU; none if the run crashed) and mem (GiB of the first GPU). Random
runs of one and two nodes are fitted, and the others of the model predicted.

`python scripts/judge_calibration.py FOLDER` judges two other sources, whose files price_out_of_view.py describes, and
writes docs/data/calibration.json, which docs/accuracy.md shows: any runs of a source are fitted, and others predicted.
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
DATA = PAGE.parents[1] / "data" / "calibration.json"
DRAWS, HURTS = 5, 0.005  # fits of each size of a source, and points of median error from which a fit has hurt
CASES, OTHERS = ((10, 3), (3, 3)), 60  # (runs in a fit, fits), and runs that each fit predicts
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8}
PLACE = re.compile(r"(<!-- made by judge_calibration.py -->\n).*?(<!-- end -->)", re.DOTALL)
CASE = re.compile(r"(<!-- case by judge_calibration.py -->\n).*?(<!-- end of case -->)", re.DOTALL)
OVERLAPPED = 2.555  # seconds of the last step of torchtitan_steps.yaml with tensor-parallel collectives overlapped
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
    page = PLACE.sub(lambda place: place[1] + table + place[2], PAGE.read_text(encoding="utf-8"))
    write_atomically(PAGE, CASE.sub(lambda place: place[1] + case() + place[2], page))


def case() -> str:
    """Return the sentences about published steps of torchtitan, four of them fitted."""
    runs = study.load_step_runs(PAGE.parents[1] / "data" / "torchtitan_steps.yaml")
    calibration = study.fitted_constants(runs)
    errors = [[abs(one / run.seconds - 1) for one in (run.before, run.after)] for run in calibration.measured]
    before, after = (percent_text(float(np.median(one)), 0) for one in zip(*errors, strict=True))
    other = runs[-1].config.changed({"layout.overlap_tensor": True})
    steps = [one.simulate().makespan for one in (other, study.calibrated_config(other, calibration))]
    further = " and ".join(percent_text(abs(step / OVERLAPPED - 1), 0) for step in steps)
    return (
        f"Their predictions were {before} off (median), and {after} after calibration; those of a fifth step, which\n"
        f"was not fitted, {further}. {calibration.sentence[0].upper()}{calibration.sentence[1:]}.\n"
    )


def judge_sources(folder: Path) -> None:
    """Write how far calibration from a few runs of each source changes the error of others."""
    import price_out_of_view as sources  # which prices nanotron's runs by this module

    rows = []
    for source in (sources.llm_foundry, sources.hagemann):
        found = [run for run in source(folder, sources.read_runs()) if run.seconds]
        for size in (3, 10):
            random, changes = np.random.default_rng(27), []
            for _ in range(DRAWS):
                drawn = random.choice(len(found), size + OTHERS // 2, replace=False)
                made = [study.PricedRun(_step_run(found[number])) for number in drawn]
                calibration = study.fitted_constants([one.run for one in made[:size]])
                logs = {name: float(np.log(factor)) for name, factor in calibration.factors.items()}
                changes.append([_median_error(made[size:], values) for values in ({}, logs)])
            before, after = np.transpose(changes)
            middle = [float(np.median(one)) for one in (before, after)]
            hurt = float(np.mean(after > before + HURTS))
            rows.append([found[0].source, size, DRAWS, *middle, hurt, float((after - before).max())])
            print(*rows[-1], flush=True)
        write_atomically(DATA, json.dumps(rows, indent=1) + "\n")


def _step_run(found: Any) -> study.StepRun:
    sections = {**found.config, "transport": "directed", "optimizer": "sync", "engine": "compiled"}
    return study.StepRun(make_config(sections, place=found.name), found.seconds, None)


def _median_error(runs: Sequence[study.PricedRun], logs: Mapping[str, float]) -> float:
    steps = [run.under(logs).iteration_time / run.run.seconds for run in runs]
    return float(np.median(np.abs(np.array(steps) - 1)))


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
    main(*sys.argv[1:3]) if len(sys.argv) > 2 else judge_sources(Path(sys.argv[1]))
