"""Judges calibrations from a few measured steps; writes docs/data/calibration.json, a case of docs/howto/calibrate.md.

`python scripts/judge_calibration.py FOLDER NAME...` takes about five CPU minutes a name; `all` is every name of `CHOSE`
and `JUDGED`. 1B, 3B, 80B and 8B are nanotron's benchmark (Hugging Face, The Ultra-Scale Playbook,
benchmarks_interactive.html); the others are functions or sources of price_out_of_view.py, which describes the FOLDER of
their files. Random runs are fitted, of nanotron those of one and two nodes (80B: up to eight), and random others of the
same model or source predicted. Intervals have the slopes of the step before calibration. The rows of other names stay.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ppsim import PpsimError
from ppsim.analysis.interval import constant_slopes
from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text
from ppsim.config import ConfigSource
from ppsim.costs import calibrated
from ppsim.costs.spread import doublings_beyond
from ppsim.studies import step_calibration as study
from ppsim.studies.evaluation import kendall_tau

PAGE = Path(__file__).resolve().parents[1] / "docs" / "howto" / "calibrate.md"
SHAPES = {  # layers, hidden size, heads, ffn, tied embeddings
    "1B": (16, 2048, 32, 8192, True), "3B": (28, 3072, 32, 8192, True), "8B": (32, 4096, 32, 14336, False),
    "80B": (80, 8192, 64, 28672, False),
}  # fmt: skip
VOCABULARY, SEQUENCE, GIB = 131072, 4096, 2**30
DATA = PAGE.parents[1] / "data" / "calibration.json"
SIZES, DRAWS, OTHERS = (10, 5, 3), 20, 40  # runs in a fit, fits of each size, and most runs that each fit predicts
SEED = 27
# Chose the priors' widths or the rule of the fit, or judged an earlier rule before.
CHOSE = ("1B", "3B", "80B", "hagemann", "bloom", "internevo", "flagperf", "vtrain", "megatron-tutorials",
         "xtuner-deepspeed", "8B", "llm_foundry", "bridge", "oellm", "gipfelsturm", "yafsdp", "lambda-gb300", "crusoe",
         "qwen", "prime-rl", "vtrain-node", "together-b200", "together-b200-experts", "qwen3-b300",
         "aws-experts", "lucie", "mosaic-gpt", "flagperf-others", "deepcompile", "torchtitan-qwen3-experts",
         "torchtitan-deepep", "lambda-b200", "lambda-b200-gpt-oss", "mlperf6-others", "titan-messages")  # fmt: skip
# No part in any choice: set aside, and judged when priced; the first five judged the rule before this one too.
JUDGED = ("nemo-2502", "nemo-2504", "olmoe-fsdp", "mit-megatron", "mit-blackwell", "azure-nemo", "bridge-messages",
          "titan-graph", "fsdp-profiles", "titan-autoresearch", "scale-your-amd", "ml-infrastructure",
          "gipfelsturm-models", "nanotron-bench", "mindspeed", "mindformers", "megatron-tests", "training-gpt-2",
          "training-llama", "pipeoffload", "pier-perlmutter", "pier-vista", "distflashattn",
          "gipfelsturm-nodes")  # fmt: skip
HURTS = 0.005  # median error that a fit adds, from which it has hurt
NEAR = {"1B": 2, "3B": 2, "8B": 2, "80B": 8}  # most nodes of a fitted run
NODES, EVERY = {"1 to 4": 4, "1 to 16": 16, "1 to 64": 64}, {"all": 1 << 20}  # of predicted runs
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8}
CASE = re.compile(r"(<!-- case by judge_calibration.py -->\n).*?(<!-- end of case -->)", re.DOTALL)


def stages_of(model: str, devices: int) -> str:
    """Return nanotron's stages as a layout string: a layer joins a stage until its share of all FLOPs is reached.

    The last stage has the head. Peaks of memory of 1B say "reached"; its code says "exceeded".
    """
    layers, hidden, _, ffn, _ = SHAPES[model]
    costs = [0, *[4 * hidden * hidden + 3 * hidden * ffn] * layers, VOCABULARY * hidden]
    stages, stage, whole = [""] * devices, 0, 0
    for name, cost in zip("E" + "t" * layers + "L", costs, strict=True):
        stages[devices - 1 if name == "L" else stage] += name
        whole += cost
        stage += whole * devices >= sum(costs) * (stage + 1) and stage < devices - 1
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


class Judged(NamedTuple):
    """A run that can be simulated under other constants, its nodes, and the sweep that ranks layouts."""

    run: study.PricedRun
    nodes: int
    sweep: str


class Prediction(NamedTuple):
    """A predicted run: seconds, bytes of the first device, and whether the measured step lies in the interval."""

    seconds: float
    memory: float
    inside: bool = False


def priced(found: Any) -> Judged:
    """Return a run of price_out_of_view.py."""
    sections = {**found.config, "transport": "directed", "optimizer": "sync", "engine": "compiled"}
    run = study.PricedRun(study.StepRun(ConfigSource(sections, found.name).config(), found.seconds, found.peak))
    gpus = study.scales(run.costs, run.schedule.devices)["gpus"]
    return Judged(run, -(-int(gpus) // HARDWARE["gpus_per_node"]), found.sweep)


def predicted(one: Judged, calibration: calibrated.Calibration | None = None) -> Prediction:
    """Return the prediction of a run without a calibration, or with one."""
    timeline, inside = one.run.before, False
    if calibration is not None:
        logs = {name: float(np.log(value)) for name, value in calibration.factors.items()}
        timeline = one.run.under(logs)
        far = doublings_beyond(study.scales(one.run.costs, timeline.schedule.devices), calibration.ranges)
        spread = calibration.spread(constant_slopes(one.run.before), far)
        inside = spread.low <= one.run.run.seconds / timeline.iteration_time <= spread.high
    peaks = timeline.peak_memory
    return Prediction(timeline.iteration_time, float("nan") if peaks is None else float(peaks[0]), inside)


def found_runs(folder: Path, name: str) -> list[Any]:
    """Return the runs of a source that did not crash."""
    import price_out_of_view as sources  # which prices nanotron's runs by this module

    if name in SHAPES:
        axes = {axis: model for axis, model in sources.RANKED_AXES.items() if model == name}
        return [run for run in sources.playbook(folder, {}, axes) if run.seconds and "-gbs256-" in f"{run.name}-"]
    aside = sources.read_runs(sources.SET_ASIDE)["sources"]
    if name in aside:
        found = sources.set_aside(str(aside[name]["priced"]))
        # Steps alone: its judgements came before any peak of these sources, some of which are of other devices.
        return [run._replace(peak=None) for run in found if run.seconds and run.source == aside[name]["name"]]
    return [run for run in getattr(sources, name)(folder, sources.read_runs()) if run.seconds]


def judged(folder: Path, name: str) -> list[dict[str, Any]]:
    """Return a row for each size of a fit, and each range of nodes of the predicted runs."""
    random, runs = np.random.default_rng(SEED), dict[int, Judged]()
    for number, run in enumerate(found_runs(folder, name)):
        with suppress(PpsimError):  # a layout that the simulator rejects
            runs[number] = priced(run)
    pool = [number for number, one in runs.items() if one.nodes <= NEAR.get(name, one.nodes)]
    rows = []
    for size in (size for size in SIZES if 2 * size < len(runs)):
        each: dict[str, list[list[float]]] = {}
        for _ in range(DRAWS):
            fitted = random.choice(pool, size, replace=False).tolist()
            rest = sorted(runs.keys() - fitted)
            others = [runs[number] for number in random.choice(rest, min(OTHERS, len(rest)), replace=False)]
            calibration = study.calibration_of_priced([runs[number].run for number in fitted])
            predictions = [(one, predicted(one), predicted(one, calibration)) for one in others]
            for words, most in (NODES if name in SHAPES else EVERY).items():
                if chosen := [found for found in predictions if found[0].nodes <= most]:
                    each.setdefault(words, []).append(_row(chosen))
            print(name, size, calibration.sentence, [*each.values()][-1][-1], flush=True)
        rows += [_summary(name, size, words, np.array(values)) for words, values in each.items()]
    return rows


def _row(predictions: Sequence[tuple[Judged, Prediction, Prediction]]) -> list[float]:
    """Return error of seconds, tau and error of memory, each without and with; and the part in the interval."""
    runs, before, after = zip(*predictions, strict=True)
    row = []
    for each in (before, after):
        seconds = [abs(one.seconds / of.run.run.seconds - 1) for of, one in zip(runs, each, strict=True)]
        peaks = [(one.memory, of.run.run.peak_memory) for of, one in zip(runs, each, strict=True)]
        memory = [abs(held / peak - 1) for held, peak in peaks if peak]
        row.append((float(np.median(seconds)), _tau(runs, each), float(np.median(memory)) if memory else float("nan")))
    inside = float(np.mean([one.inside for one in after]))
    return [*(value for pair in zip(*row, strict=True) for value in pair), inside]


def _tau(runs: Sequence[Judged], each: Sequence[Prediction]) -> float:
    """Return Kendall's tau within a model and a number of nodes, over all of its pairs."""
    agreeing = pairs = 0.0
    for sweep in {one.sweep for one in runs}:
        own = [(one.run.run.seconds, of.seconds) for one, of in zip(runs, each, strict=True) if one.sweep == sweep]
        number = len(own) * (len(own) - 1) / 2
        agreeing, pairs = agreeing + number * (kendall_tau(*zip(*own, strict=True)) or 0.0), pairs + number
    return agreeing / pairs if pairs else float("nan")


def _summary(name: str, size: int, words: str, values: np.ndarray) -> dict[str, Any]:
    """Return medians over draws; `hurt` is the part of the draws that made the median error larger."""
    harm = values[:, 1] - values[:, 0]
    keys = ("seconds", "tau", "memory")
    middle = [None if np.isnan(one) else round(float(one), 4) for one in np.median(values, axis=0)]
    row: dict[str, Any] = {"name": name, "judged": name in JUDGED, "fitted": size, "nodes": words, "draws": len(values)}
    row |= {key: middle[2 * at : 2 * at + 2] for at, key in enumerate(keys)}
    return row | {"inside": middle[-1], "hurt": float(np.mean(harm > HURTS)), "harm": round(float(harm.max()), 4)}


def main(folder: str, *names: str) -> None:
    """Judge calibrations of these sources, and write both pages' numbers."""
    for name in (*CHOSE, *JUDGED) if names == ("all",) else names:
        rows = judged(Path(folder), name)
        stored = json.loads(DATA.read_text(encoding="utf-8"))
        rows = [*(row for row in stored if row["name"] != name), *rows]
        write_atomically(DATA, "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    page = PAGE.read_text(encoding="utf-8")
    write_atomically(PAGE, CASE.sub(lambda place: place[1] + case() + place[2], page))


def case() -> str:
    """Return the sentences about eleven published steps, five of them fitted by each of two rules."""
    runs, medians = study.load_step_runs(PAGE.parents[1] / "data" / "megatron_b200_steps.yaml"), []
    for fitted, others in ((runs[:5], runs[5:]), (runs[1::2], runs[::2])):
        calibration = study.calibration_of_runs(fitted)
        jobs = [(one.config, study.calibrated_config(one.config, calibration), one.seconds) for one in others]
        errors = [[abs(job.simulate().makespan / seconds - 1) for job in pair] for *pair, seconds in jobs]
        medians += [percent_text(middle, 0) for middle in np.median(errors, axis=0)]
    return (
        "The first five steps are of the 5B model. We fitted them, and predicted the six others, four of them\n"
        "of the 13B model: the median error was {} without calibration, and {} with it. Then we fitted every second\n"
        "step, of both models: the error of the six others was {} without, and {} with. So fit each kind of run that\n"
        "you want to predict.\n"
    ).format(*medians)


if __name__ == "__main__":
    main(*sys.argv[1:])
