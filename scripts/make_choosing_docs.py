"""Writes docs/choosing.md between its marks: a worked case, and published layouts beside the ones that choose finds.

`python scripts/make_choosing_docs.py` takes a few minutes. Every number is of our own model.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import run as run_program
from typing import Any

from make_accuracy_docs import ROOT
from published import config_of, read_runs

import ppsim
from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text, seconds_text, value_text
from ppsim.config import Config
from ppsim.config.config import make_config
from ppsim.frameworks import SCHEDULES as RUN_BY
from ppsim.run.timelines import Timeline
from ppsim.studies.best_first import BestFirstSearch
from ppsim.studies.free_keys import (
    sharding_of,
)
from ppsim.studies.points import Candidate
from ppsim.studies.reasons import busiest_device, removed_cause, seconds_by_cause
from ppsim.studies.space import search_space
from ppsim.studies.worker_pool import InProcess

PAGE = ROOT / "docs" / "choosing.md"
END = "<!-- end -->\n"
RUNS = {
    "Llama 3 70B, 64 H100": "dgxc-v25.04.02-llama3-70b-64xh100-bf16",
    "Mixtral 8x7B, 256 H200": "gpurecipes-a3u-mixtral-nemo",
}
GPT_3 = ROOT / "configs" / "gpt-3-175b-64xa100.yaml"
FREE = ("layout.tensor", "layout.context", "layout.expert", "layout.microbatch_size", "layout.recompute",
        "layout.sharding", "layout.partition", "schedule.devices", "schedule.stages_per_device")  # fmt: skip
LLAMA_3_8B = {  # of meta-llama/Meta-Llama-3-8B on huggingface.co
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
CASE = """\
model: {huggingface: config.json, sequence: 8192}
hardware: {device: H100 SXM, link: NVLink 4, network: InfiniBand NDR, gpus_per_node: 8, gpus: 64}
batch: 128             # sequences of one step, all copies together
transport: directed
optimizer: sync
"""
COMMAND = ["ppsim", "choose", "llama-3-8b.yaml", "--framework", "Megatron-LM"]


def main() -> None:
    """Refresh both parts of the page."""
    _fill("case", case())
    _fill("published", lines())


def _fill(part: str, content: Iterator[str]) -> None:
    begin = f"<!-- {part}: scripts/make_choosing_docs.py -->\n"
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(END)
    text = "\n".join(content)
    write_atomically(PAGE, f"{before}{begin}\n{text}\n\n{END}{after}")


def case() -> Iterator[str]:
    """The config and what the command prints of it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B))
        (Path(folder) / "llama-3-8b.yaml").write_text(CASE)
        command = [sys.executable, "-m", *COMMAND]
        done = run_program(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603 - our own command
    yield "```yaml\n# llama-3-8b.yaml, beside the model's config.json\n" + CASE + "```\n"
    yield f"```\n$ {' '.join(COMMAND)}\n{done.stdout.rstrip()}\n```"


def published() -> Iterator[tuple[str, Config]]:
    """Name and config of each published run."""
    data = read_runs()
    by_id = {run["id"]: run for run in data["runs"]}
    for name, key in RUNS.items():
        yield name, make_config(config_of(data, by_id[key]), place=key)
    yield "GPT-3 175B, 64 A100", ppsim.load_config(GPT_3)


def lines() -> Iterator[str]:
    """The table, and below it what differs."""
    yield "| model and cluster | layout | step | tokens/s | peak |"
    yield "|---|---|---|---|---|"
    differences = []
    for name, config in published():
        best, counts = chosen(config)
        better, run = config.changed(best.changes), config.simulate()
        after = better.simulate()
        assert best.step <= run.iteration_time, f"{name}: the published layout is faster"  # noqa: S101 - the page says so
        yield _row(f"{name}: published", config, run)
        yield _row("chosen", better, after)
        differences.append(_difference(name, run, after, counts))
    yield ""
    yield from differences


def chosen(config: Config) -> tuple[Candidate, Any]:
    """The best layout for a schedule that Megatron-LM runs, on the same GPUs and batch; no memory is kept free."""
    free: dict[str, Any] = dict.fromkeys(FREE, ()) | {"schedule.name": list(RUN_BY["Megatron-LM"])}
    if not config.model or not config.model.experts:
        del free["layout.expert"]
    search = BestFirstSearch(search_space(config, free), headroom=0.0, top=1, executor=InProcess(), with_front=False)
    search.run()
    return search.ranked[0], search.counts


def _row(name: str, config: Config, run: Timeline) -> str:
    assert run.peak_memory is not None  # noqa: S101 - a model is known
    speed, memory = f"{run.tokens_per_second:,.0f}", value_text(float(run.peak_memory.max()), "bytes")
    return f"| {name} | {layout_text(config.data)} | {seconds_text(run.iteration_time)} | {speed} | {memory} |"


def layout_text(data: Any) -> str:
    """A layout in a few words."""
    layout, schedule = data.get("layout") or {}, data["schedule"]
    sizes = [f"{key} {layout[key]}" for key in ("tensor", "context", "data", "expert") if layout.get(key, 1) > 1]
    stages = f":{schedule['stages_per_device']}" if schedule.get("stages_per_device") else ""
    flags = ("distributed_optimizer", "sharded_gradients", "sharded")
    replicas = {"layout.replicas": layout.get("replicas", 1)}
    sharding = sharding_of({**{f"layout.{key}": bool(layout.get(key)) for key in flags}, **replicas})
    words = [
        f"{schedule['name']}{stages}, pipeline {schedule['devices']}", *sizes,
        f"{schedule['microbatches']} microbatches of {layout.get('microbatch_size', 1)}",
        *([f"{sharding} sharded"] if sharding != "none" else []), f"recompute {layout.get('recompute') or 'none'}",
        *([f"`{layout['partition']}`"] if layout.get("partition", "even") != "even" else []),
    ]  # fmt: skip
    return ", ".join(words).replace("|", "&#124;")


def _difference(name: str, before: Timeline, after: Timeline, counts: Any) -> str:
    """Why the chosen layout takes less time, from the ledgers of both."""
    work, less = (float(run.device_busy.mean()) for run in (before, after))
    gain = removed_cause(seconds_by_cause(before), seconds_by_cause(after))
    busiest = busiest_device(before)
    return (
        f"- {name}: {percent_text(1 - after.iteration_time / before.iteration_time)} less time a step. The mean device "
        f"computes {seconds_text(work)} as published and {seconds_text(less)} as chosen, collectives inside layers "
        f"counted, and is idle {percent_text(before.bubble_fraction)} and {percent_text(after.bubble_fraction)} of the "
        f"time. " + (f"The largest gain is {gain} on the mean device. " if gain else "")
        + (f"As published {busiest}. " if busiest else "")
        + f"Of {counts['points']:,} points {counts['simulated']:,} were simulated."
    )  # fmt: skip


if __name__ == "__main__":
    main()
