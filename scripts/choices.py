"""Searches for docs/choosing-checks.md: published layouts and faulty configs against the best, and what commands say.

`python scripts/choices.py` adds what docs/data/choices.yaml lacks; names after it are searched again, `configs/NAME`
for its two commands only, and kinds (`published configs advice implausible`) whole. Each search runs in a process of
its own, with at most `MAX_SECONDS` of processor time.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from subprocess import run as run_program
from typing import Any

import yaml
from advice_cases import advised, cases
from price_out_of_view import set_aside
from published import config_of, read_runs

import ppsim
from ppsim.analysis.memory import HEADROOM
from ppsim.base.errors import PpsimError
from ppsim.base.files import write_atomically
from ppsim.commands.advise import page
from ppsim.commands.choose import choice_lines
from ppsim.config.config import Config, ConfigSource
from ppsim.studies.best_first import BestFirstSearch
from ppsim.studies.free_keys import sharding_of
from ppsim.studies.space import search_space
from ppsim.studies.worker_pool import InProcess

# Keys whose product is the batch, and the GPUs; the names of keys that change together on a path.
_BATCH, _GPUS = ("microbatches", "data", "microbatch_size"), ("devices", "tensor", "context", "data")
_OF_SCHEDULE, _FOLLOW = ("name", "devices", "stages_per_device"), ("data", "microbatches", "replicas", "framework")
_UNSET = {"recompute": "none", "partition": "even", "tensor": 1, "context": 1, "expert": 1, "microbatch_size": 1}
_TOGETHER = {
    "TP": ("tensor", "sequence_parallel"), "CP": ("context",), "EP": ("expert",), "PP": ("devices",),
    "schedule": ("name", "stages_per_device", "overlap"), "microbatch": ("microbatch_size",), "stages": ("partition",),
    "sharding": ("sharded", "sharded_by", "sharded_gradients", "distributed_optimizer"),
}  # fmt: skip
ROOT = Path(__file__).resolve().parents[1]
FOUND = ROOT / "docs" / "data" / "choices.yaml"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
MAX_SECONDS = 600
EXPERTS = ("NVIDIA-NeMo/Megatron-Bridge", "NVIDIA/dgxc-benchmarking")
FREE = (
    "layout.tensor", "layout.context", "layout.expert", "layout.expert_tensor", "layout.microbatch_size",
    "layout.recompute", "layout.sharding", "layout.partition", "schedule.devices", "schedule.stages_per_device",
)  # fmt: skip
# Layouts that later releases of the archive print for the same model, device, GPUs, batch and precision: 26.04.01 and
# 26.06 (NVIDIA-NeMo/Megatron-Bridge@067f987df03b, docs/performance-summary-archive.md), and those of the newest recipes
# (v0.4.2, 067f987 src/megatron/bridge/perf_recipes). From 26.06 on experts in MXFP8 are fused: that is other software,
# so that layouts of its recipes are taken for models without experts only.
LATER: dict[str, dict[str, Any]] = {
    "bridge-26.02.01-qwen3-235b-256xgb200": {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 3},
    "bridge-26.02.01-qwen3-235b-256xgb300": {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 12},
    "bridge-25.11-qwen3-235b-64xb200": {  # 16.9 s instead of 20.1 s: pull request 1760
        "schedule": {"name": "1f1b", "devices": 8, "microbatches": 128}, "layout.overlap": None,
    },
    "bridge-26.02.01-qwen3-30b-16xh100": {"layout.cuda_graphs": True},  # pull request 4632
    "bridge-26.02.01-llama3-405b-256xgb300": {"layout.tensor": 4, "layout.context": 1},
    "bridge-26.02.01-llama3-70b-64xh100": {"layout.partition": "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL"},  # pull request 5391
    "bridge-25.11-llama3-8b-8xgb300": {"layout.microbatch_size": 4, "schedule.microbatches": 4},
    "bridge-25.11-llama3-8b-8xh100": {
        "layout.sharded": False, "layout.sharded_by": None, "layout.distributed_optimizer": True,
        "layout.recompute": "full", "layout.recompute_blocks": 5,
    },
    "bridge-26.02.01-deepseekv3-256xb200": {  # v0.4.2, mapping of FP8_MX V2
        "schedule": {"name": "combined-1f1b", "devices": 8, "microbatches": 128, "stages_per_device": 2},
        "layout.overlap": "two-stream", "layout.expert": 32, "layout.data": 32, "layout.cuda_graphs": True,
        "layout.expert_exchange": "hierarchical", "layout.expert_groups": 8, "layout.groups_per_token": 4,
        "layout.recompute": "latent+mlp",
    },
    # NVIDIA/dgxc-benchmarking@support/25.05, nemotron/launch.sh: with --cuda_graphs true on GB200
    "dgxc-support-25.05-nemotron-340b-128xgb200": {"layout.cuda_graphs": True},
    "mlperf-3.1-64-nodes": {  # 10.4 s instead of 11.1 s in round 4.1; round 4.0 has four stages per device
        "layout.microbatch_size": 2, "schedule.microbatches": 64, "schedule.stages_per_device": 6,
    },
}  # fmt: skip
# Models whose recipes count embedding and head as a block each (Megatron-Bridge v0.3.0, recipes/qwen/qwen3_moe.py and
# recipes/llama/llama3.py: account_for_embedding_in_pipeline_split, account_for_loss_in_pipeline_split).
COUNTS_HEADS = ("Qwen3 235B-A22B", "Llama 3.1 405B")
# Version of the software by the beginning of a run's name, if its config names none; `ppsim.frameworks` knows what it
# lacks. NeMo of dgxc-benchmarking has core 0.12.
SOFTWARE = {"dgxc-": "megatron-core 0.12", "mlperf-": "megatron-core 0.6"}
DEEPSPEED = ("bloom-176b-384xa100", "glm-130b-768xa100", "gpt-neox-20b-96xa100")
PAPERS = (
    *DEEPSPEED, "gpt-145b-1536xa100", "gpt-1t-3072xa100", "gpt-1t-512xa100", "gpt-3-175b-64xa100",
    "mt-nlg-530b-280xa100", "megascale-175b-12288xa100", "nemotron-4-340b-6144xh100", "llama-3-405b-16384xh100",
)  # fmt: skip
# Beginnings of names of runs whose software cuts stages anywhere (the paper's own are uneven), or counts the ends.
ANY_STAGES, COUNTED_STAGES = ("llama-3-405b-16384xh100", "bridge-"), ("dgxc-", "bloom-176b", "glm-130b")
# Before PyTorch 2.1 (October 2023) the allocator has no expandable segments. A run of Llama 3 70B whose tensors took
# 58.8 of 80 GB ended out of memory in three to six of ten starts without them, and in none with them (NVIDIA-NeMo/
# Megatron-Bridge, pull request 3107 and skills/nemo-mbridge-perf-memory-tuning).
FRAGMENTS = 1 - 58.8 / 80
# BLOOM's page has twelve peaks of nvidia-smi in bf16, 1.28 to 1.39 times those of our model (chronicles-prequel.md).
SINCE_EXPANDABLE = ("nemotron-4-340b-6144xh100", "llama-3-405b-16384xh100")  # papers of 2024
# Until 2022 a device waits for what it sends, too: Megatron-LM v2.5, megatron/p2p_communication.py, and DeepSpeed,
# runtime/pipe/p2p.py. --overlap-p2p-communication came in 2023; MegaScale overlaps as well (its section 3.2).
OVERLAPPED_TRANSFERS = (*SINCE_EXPANDABLE, "megascale-175b-12288xa100")
# Submissions of MLPerf in docs/data/set_aside.yaml: the fewest and the most GPUs of a layout.
MLPERF = ("mlperf-3.1-64-nodes", "mlperf-3.1-1344-nodes", "mlperf-4.0-1344-nodes")


# Answers of an earlier search that no engineer would have used, by the published run of the same model and batch.
IMPLAUSIBLE = {
    "dgxc-v25.04.02-llama3-405b-512xh100-bf16": "64 stages deep, one copy",
    "bridge-26.02-llama3-405b-1024xh100-fp8-cs": "no virtual stages",
    "bridge-26.02.01-qwen3-235b-256xh100-fp8-cs": "microbatches of 4, full recompute",
}


def main(*names: str) -> None:
    """Search what is missing or named, and write each result as soon as it is known."""
    kinds = ("published", "configs", "advice", "implausible")
    found, layouts, configs = {key: {} for key in kinds} | read(), dict(tuned()), dict(catalogue())
    for kind, search, given in zip(
        kinds, (_published, _config, _advice, _choose), (layouts, configs, cases(), dict(implausible())), strict=True
    ):
        for name, config in given.items():
            if {kind, name, f"{kind}/{name}"} & {*names} or (not names and name not in found[kind]):
                found[kind][name] = _limited(search, name, config) | {"title": config.name, "commit": _commit()}
                print(kind, name, found[kind][name], flush=True)
                found["not_searched"] = {
                    "published": [layouts[name].name for name in layouts if name not in found["published"]],
                    "configs": [name for name in configs if name not in found["configs"]],
                }
                text = yaml.safe_dump(found, sort_keys=True, width=200, allow_unicode=True)
                write_atomically(FOUND, "# Written by scripts/choices.py; docs/choosing-checks.md shows it.\n" + text)


def _commit() -> str:
    """Return the commit of the model that prices."""
    command = ["git", "rev-parse", "--short=7", "HEAD"]
    return run_program(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603 - ours


def read() -> dict[str, Any]:
    """Return the results by kind and name, and the titles of layouts that were not searched."""
    return (yaml.safe_load(FOUND.read_text(encoding="utf-8")) if FOUND.exists() else None) or {}


def tuned() -> Iterator[tuple[str, Config]]:
    """Yield name and config of published layouts that experts tuned: the fewest GPUs per model and device, the latest.

    Then come submissions of MLPerf, and the papers of configs/.
    """
    data, seen = read_runs(), set()
    latest = sorted(data["runs"], key=lambda run: re.findall(r"bridge-([\d.]+)", run["id"]), reverse=True)
    for run in sorted(latest, key=lambda run: run["gpus"]):
        key = run["model"], run["device"]
        if run["group"] in EXPERTS and "proxy" not in run["model"] and key not in seen:
            seen.add(key)
            title = f"{run['model'].replace(' / 3.1', '')}, {run['gpus']} {run['device']}" + ", fp8" * (
                "fp8" in run["layout"]
            )
            config = ConfigSource(config_of(data, run) | {"name": title}, run["id"]).config()
            config = config.changed(_of_run(run["id"]))
            stages = config.schedule["devices"] * config.schedule.get("stages_per_device", 1)
            if run["model"] in COUNTS_HEADS and stages > 1:
                config = config.changed({"layout.partition": _counting_ends(_layers(config), stages)})
            yield run["id"], config
    for run in set_aside("2026-11-26"):
        if run.name in MLPERF:
            given = {**run.config, "transport": "directed", "optimizer": "sync", "engine": "compiled"}
            title = f"GPT-3 175B, {given['hardware']['gpus']} H100, MLPerf {run.name.split('-')[1]}"
            yield run.name, ConfigSource(given | {"name": title}, run.name).config().changed(_of_run(run.name))
    for name in PAPERS:
        config = ppsim.load_config(ROOT / "configs" / f"{name}.yaml").changed(_of_run(name))
        yield name, config if name in OVERLAPPED_TRANSFERS else config.changed({"transport": "blocking"})


def _of_run(name: str) -> dict[str, Any]:
    """Return the changes of `LATER` whose key is the beginning of a run's name."""
    return next((LATER[key] for key in LATER if name.startswith(key)), {})


def _layers(config: Config) -> int:
    return config.costs.model.num_layers  # type: ignore[attr-defined]


def _counting_ends(layers: int, stages: int) -> str:
    """Return the layout string of stages that count embedding and head as a block each."""
    blocks = (layers + 2) // stages
    return f"Et*{blocks - 1}|(t*{blocks}|)*{stages - 2}t*{blocks - 1}L"


def _equal_stages(config: Config, ends: int) -> list[str]:
    """Return the layout strings of equal stages, of every number that the layers and these ends allow."""
    layers = _layers(config)
    counts = [stages for stages in range(2 * ends + 1, layers + 2 * ends + 1) if (layers + 2 * ends) % stages == 0]
    if ends:
        return [_counting_ends(layers, stages) for stages in counts]
    blocks = [f"t*{layers // stages}" for stages in counts]
    return [f"E{'|'.join([block] * stages)}L" for block, stages in zip(blocks, counts, strict=True)]


def implausible() -> Iterator[tuple[str, Config]]:
    """Yield words of `IMPLAUSIBLE` and config of the runs that had such an answer."""
    data = read_runs()
    for run in data["runs"]:
        if name := next((name for name in IMPLAUSIBLE if run["id"].startswith(name)), None):
            title = f"{run['model']}, {run['gpus']} {run['device']}"
            yield name, ConfigSource(config_of(data, run) | {"name": title}, run["id"]).config()


def catalogue() -> Iterator[tuple[str, Config]]:
    """Yield name and config of each config of the catalogue, without those of towers, which choose does not search."""
    for path in CONFIGS:
        config = ppsim.load_config(path)
        if "encoder" not in config.data:
            yield path.stem, config


def _limited(search: Callable[[str, Config], dict[str, Any]], name: str, config: Config) -> dict[str, Any]:
    """Return what a search finds, or that it takes too long; RuntimeError if it ends in another way."""
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS, MAX_SECONDS + 5))
        try:
            queue.put(search(name, config) | {"cpu_seconds": round(time.process_time(), 1)})
        except PpsimError as error:
            queue.put({"refused": str(error)})

    process = context.Process(target=run)
    process.start()
    process.join()
    if process.exitcode == -signal.SIGXCPU:
        return {"skipped": f"more than {MAX_SECONDS} s of processor time"}
    if process.exitcode:
        raise RuntimeError(f"the search of {name} ended with exit status {process.exitcode}")
    return queue.get()


def _published(name: str, config: Config) -> dict[str, Any]:
    """Return the predicted step of a published layout and of the best with the same GPUs, batch and software.

    A device may hold what `choose` lets it hold, or what the published layout needs by this model if that is more.
    Both steps are the simulated ones, without what stragglers cost; the best is the fastest point, not the simplest.
    """
    if version := next((SOFTWARE[key] for key in SOFTWARE if name.startswith(key)), None):
        config = config.changed({"layout.framework": version})
    given = config.simulate()
    assert given.peak_memory is not None  # noqa: S101 - every config here has a model
    peak, device = float(given.peak_memory.max()), config.costs.cluster.device  # type: ignore[attr-defined]
    space = search_space(*_space(name, config), framework="Megatron-LM")
    kept = FRAGMENTS if name in PAPERS and name not in SINCE_EXPANDABLE else HEADROOM
    headroom = min(kept, 1 - peak / device.capacity)
    search = BestFirstSearch(space, headroom, 1, InProcess(), certain=True)
    search.run()
    best = min(search.fitting, key=lambda one: one.step)
    better = space.config.changed(best.changes)
    run = better.simulate()
    return {
        "step": given.iteration_time, "peak": peak, "layout": layout_text(config.data), "gpus": space.gpus,
        "best_step": run.iteration_time, "best_peak": float(best.memory), "best_layout": layout_text(better.data),
        "points": search.counts["points"], "simulated": search.counts["simulated"],
        "busy": [float(one.device_busy.mean()) for one in (given, run)],
        "bubble": [one.bubble_fraction for one in (given, run)], "path": path(config, better),
    }  # fmt: skip


def path(config: Config, better: Config) -> list[str]:
    """Return the changes that lead to a better layout, with the step that each adds and the peak after it.

    The next one is the one with the shortest step, whether it fits or not. Some are possible together only.
    """
    before, after = ({**one.data["schedule"], **(one.data.get("layout") or {})} for one in (config, better))
    batch, gpus = (math.prod(before.get(key) or 1 for key in keys) for keys in (_BATCH, _GPUS))
    changes: dict[str, dict[str, Any]] = {}
    for key, value in after.items():
        if key not in _FOLLOW and (value or _UNSET.get(key)) != (before.get(key) or _UNSET.get(key)):
            name = next((name for name, keys in _TOGETHER.items() if key in keys), key.replace("_", " "))
            changes.setdefault(name, {})[f"{'schedule' if key in _OF_SCHEDULE else 'layout'}.{key}"] = value

    def simulated(names: tuple[str, ...]) -> tuple[float, float]:
        keys = {key: value for name in names for key, value in changes[name].items()}
        sizes = before | {key.partition(".")[2]: value for key, value in keys.items()}
        copies = gpus // math.prod(sizes.get(key) or 1 for key in _GPUS if key != "data")
        microbatches, over = divmod(batch, copies * (sizes.get("microbatch_size") or 1)) if copies else (0, 1)
        keys |= {"layout.data": copies, "schedule.microbatches": microbatches}
        if "stages" not in names and {"PP", "schedule"} & {*names}:
            keys["layout.partition"] = "balanced"
        try:
            run = None if over else config.changed(keys).simulate()
        except PpsimError:
            run = None
        if run is None:
            return math.inf, math.inf
        return run.iteration_time, float(run.peak_memory.max())  # type: ignore[union-attr]

    step, taken, lines = simulated(())[0], (), list[str]()
    while rest := [name for name in changes if name not in taken]:
        for count in range(1, len(rest) + 1):
            found = [(*simulated((*taken, *names)), names) for names in itertools.combinations(rest, count)]
            if math.isfinite(min(found)[0]):
                break
        after_it, peak, names = min(found)
        lines.append(f"{', '.join(names)} {after_it / step - 1:+.1%} ({peak / 1e9:.0f} GB)".replace("%", " %"))
        step, taken = after_it, (*taken, *names)
    return lines


def _space(name: str, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config's data, and the free keys with their values, None for the usual ones."""
    free: dict[str, Any] = dict.fromkeys(FREE, ())
    if not config.model or not config.model.experts:
        free = {key: values for key, values in free.items() if "expert" not in key}
    if name.startswith(ANY_STAGES):
        free["layout.partition"] = ["even", "balanced", "searched"]
    else:  # DeepSpeed balances stages of any number of blocks
        free["layout.partition"] = ["even"] if name in DEEPSPEED else _equal_stages(config, 0)
        free["layout.partition"] += _equal_stages(config, 1) if name.startswith(COUNTED_STAGES) else ()
    if name in PAPERS:
        del free["layout.sharding"]
    return dict(config.data), free


def _config(name: str, config: Config) -> dict[str, Any]:
    """Return what `_choose` does, and the first lines of `advise`, which gets the config as it is."""
    advice = ppsim.advise(config, executor=InProcess())
    return _choose(name, config) | {"advise": page(advice)[:1]}


def _choose(_: str, config: Config) -> dict[str, Any]:
    """Return the first lines of `choose --framework Megatron-LM` for model, hardware and batch alone."""
    data, schedule = dict(config.data), config.build()
    layout = data.pop("layout", None) or {}
    if config.model is not None:
        copies, size = config.costs.layout.data, config.costs.layout.microbatch_size  # type: ignore[attr-defined]
        gpus = config.costs.gpus(schedule.devices)  # type: ignore[attr-defined]
        data |= {
            "hardware": data["hardware"] | {"gpus": gpus},
            "batch": schedule.microbatches_of_a_step * copies * size,
        }
        if layout.get("fp8"):
            data["layout"] = {"fp8": layout["fp8"]}
        del data["schedule"]
    else:
        del data["schedule"]["name"]
    runner = None if config.model and config.model.parallel_block else "Megatron-LM"  # which rejects such blocks
    found = ppsim.choose(data, framework=runner, executor=InProcess())
    lines = [*choice_lines(found)]
    return {"choose": lines[: lines.index("")] if found.ranked else lines[:2]}


def _advice(name: str, config: Config) -> dict[str, Any]:
    """Return the steps of a faulty config as it is, with the first advice, and with the best single change."""
    return asdict(advised(name, config))


def layout_text(data: Any) -> str:
    """A layout in a few words."""
    layout, schedule = data.get("layout") or {}, data["schedule"]
    sizes = {"TP": "tensor", "CP": "context", "EP": "expert"}
    groups = [f"{name} {layout[key]}" for name, key in sizes.items() if layout.get(key, 1) > 1]
    stages = f" x{schedule['stages_per_device']}" if schedule.get("stages_per_device") else ""
    flags = ("distributed_optimizer", "sharded_gradients", "sharded")
    replicas = {"layout.replicas": layout.get("replicas", 1)}
    sharding = sharding_of({**{f"layout.{key}": bool(layout.get(key)) for key in flags}, **replicas})
    words = [
        " ".join([*groups, f"PP {schedule['devices']}", f"DP {layout.get('data', 1)}"]),
        f"{schedule['name']}{stages}" if schedule["devices"] > 1 or schedule["name"] != "1f1b" else "",
        f"microbatch {layout.get('microbatch_size', 1)}",
        f"recompute {layout['recompute']}" if layout.get("recompute", "none") != "none" else "",
        f"{sharding} sharded" if sharding not in ("none", "optimizer") else "",
    ]
    return ", ".join(word for word in words if word)


if __name__ == "__main__":
    main(*sys.argv[1:])
