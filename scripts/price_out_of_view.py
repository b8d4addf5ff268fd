"""Prices further public runs, which docs/accuracy.md shows.

`python scripts/price_out_of_view.py` prices once those sources of docs/data/set_aside.yaml that were not priced yet,
and adds them to docs/data/out_of_view.json. These results stay as they are: later laws are chosen with these runs in
view, and intervals come from the errors that they had before.
`python scripts/price_out_of_view.py FOLDER` prices the sources that were set aside before, with the laws of
today, and writes docs/data/further_runs.json; it takes some minutes. FOLDER holds the sources' own files:
hagemann/*.xlsx, nemo.md, bridge.md, bridge_archive.md, llm_foundry.md and playbook.html.
`python scripts/price_out_of_view.py peaks` predicts once those peaks of memory that docs/data/peaks.json lacks.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import judge_calibration
import numpy as np
from published import DATA, read_runs

from ppsim import DerivedCosts, PpsimError
from ppsim.base.files import write_atomically
from ppsim.base.units import parse_quantity
from ppsim.config import ConfigSource
from ppsim.costs.spread import class_of, scales
from ppsim.studies.evaluation import kendall_tau

SET_ASIDE, OUT_OF_VIEW, FURTHER = DATA / "set_aside.yaml", DATA / "out_of_view.json", DATA / "further_runs.json"
PEAKS = DATA / "peaks.json"
PEAK_COLUMNS = ("run", "source", "of", "judges", "measured", "predicted")  # bytes of a device, as first predicted
NOT_YET = "not yet"
COLUMNS = ("name", "source", "group", "framework", "sweep", "measured", "predicted", "tokens", "scales", "peak")
COUNTS = ("ran", "ran_but_predicted_not_to_fit", "crashed", "crashed_and_predicted_not_to_fit")
ABOUT = (
    "{}, priced by scripts/price_out_of_view.py. Seconds of a step, measured and predicted; scales: hidden size, FLOPs "
    "of F of a block on one GPU, GPUs, peak; peak: bytes of the device whose memory is published (mostly the first), "
    "measured and predicted."
)
SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
A100, H100 = "A100 SXM", "H100 SXM"
LLAMA = {"gated": True, "norm": "rmsnorm"}
# LLaMA of Touvron et al. 2023 with a vocabulary of 128,000 (arXiv 2311.05610, section 3)
HAGEMANN = {
    "13B": {"num_layers": 40, "hidden": 5120, "heads": 40, "ffn": 13824},
    "30B": {"num_layers": 60, "hidden": 6656, "heads": 52, "ffn": 17920},
    "65B": {"num_layers": 80, "hidden": 8192, "heads": 64, "ffn": 22016},
}
BATCHES = {2048: 2048, 8192: 512}  # sequences of a step by their length
KERNELS = {"flash_attention2": "flash-2", "flash_attentionv1.0.8": "flash-1"}
NEMO = {
    "GPT3-175B": {"num_layers": 96, "hidden": 12288, "heads": 96, "ffn": 49152, "vocabulary": 51200},
    "LLAMA2-7B": "Llama 2 7b", "LLAMA2-13B": "Llama 2 13b", "LLAMA2-70B": "Llama 2 70b",
    "Nemotron-340B": "Nemotron-4 340B", "LLAMA3-8B": "Llama 3 / 3.1 8B", "LLAMA3-70B": "Llama 3 / 3.1 70B",
}  # fmt: skip
BRIDGE = {
    "LLAMA3_70B": "Llama 3 / 3.1 70B", "LLAMA3.1_405B": "Llama 3.1 405B",
    "DeepSeekV3": "DeepSeek-V3 671B with its prediction module", "GPT OSS 120B": "GPT OSS 120B",
    "Qwen3_30B_a3B": "Qwen3 30B-A3B", "Qwen3_235B_a22B": "Qwen3 235B-A22B", "Kimi_K2": "Kimi K2 1T",
}  # fmt: skip
SYSTEMS = {"DGX-GB300": "GB300", "DGX-GB200": "GB200", "DGX-B200": "B200 SXM", "DGX-H100": H100}
RECIPES = {"BF16": "none", "FP8-CS": "tensor", "FP8": "tensor", "MXFP8": "block", "FP8-MX": "block", "FP8-SC": "block"}
# What a release says in its recipes and not in its table: taken from the same model, and if possible device, in view.
RECIPE_OF = {  # by model, device and expert-parallel size, from the same recipes and Megatron-Bridge v0.4.2
    ("DeepSeekV3", "B200 SXM", "8"): {"expert_exchange": "hierarchical"},
    ("DeepSeekV3", "B200 SXM", "32"): {
        "expert_exchange": "hierarchical", "overlap": "two-stream", "cuda_graphs": True, "recompute": "latent+mlp",
    },
    ("DeepSeekV3", "GB200", "64"): {"cuda_graphs": True, "recompute": "mlp"},
    ("Kimi_K2", "GB300", "64"): {"partition": "Et*4|(t*4|)*14tL", "expert_exchange": "hierarchical"},
    ("Qwen3_30B_a3B", H100, "16"): {"expert_exchange": "hierarchical"},
    ("Qwen3_235B_a22B", H100, "32"): {"overlap": "two-stream"},
}  # fmt: skip
FULL_GRAPH_MODELS = ("DeepSeekV3", "GPT OSS 120B", "Qwen3_30B_a3B", "Qwen3_235B_a22B")
# Recipes with experts in MXFP8 from 26.06 on: whole iterations under CUDA graphs, HybridEP, and its exchange beside
# other microbatches; nothing recomputed on GB300. Megatron-Bridge@067f987, src/megatron/bridge/perf_recipes.
FULL_GRAPHS = {"cuda_graphs": True, "expert_exchange": "hierarchical", "overlap": "two-stream"}
MARKED = "[^gpt-oss-note]"  # a kernel ten times too slow in 26.06.01: NVIDIA/cudnn-frontend, issue 256
POLICIES = ("recompute", "expert_exchange", "expert_tensor", "partition", "cuda_graphs")
FOUNDRY = {"a100_80gb": A100, "a100_40gb": "A100 40GB", "h100_80gb": H100}
PLAYBOOK_AXES = {"x2": "3B", "x4": "80B"}
PLAYBOOK_KEYS = {
    "nodes": "Nodes", "dp": "DP", "tp": "TP", "pp": "PP", "mbs": "MBS", "acc": "GradAcc", "gbs": "GBS", "zero": "ZeRO",
}  # fmt: skip
RANKED_AXES = {"x": "1B", **PLAYBOOK_AXES, "x3": "8B"}
HEADROOM = 0.1  # part of the memory that `ppsim choose` leaves free
FEWEST = 3  # runs with an order


class Found(NamedTuple):
    """A run as its source describes it; `seconds` is None if it crashed.

    `peak`: bytes, if printed, of a GPU of the device `peak_of`; "largest": of the fullest.
    """

    name: str
    source: str
    config: dict[str, Any]
    seconds: float | None
    sweep: str
    peak: float | None = None
    peak_of: int | str = 0


def main(folder: str = "") -> None:
    """Price every run and write the results."""
    data = read_runs()
    if folder == "peaks":
        write_peaks()
    elif folder:
        found = (
            run
            for source in (hagemann, nemo, bridge, llm_foundry, playbook, set_aside_before)
            for run in source(Path(folder), data)
        )
        write(FURTHER, ABOUT.format("Runs of sources that were set aside before"), found, ranking=ranking(Path(folder)))
    else:
        before = json.loads(OUT_OF_VIEW.read_text(encoding="utf-8"))["runs"]
        about = ABOUT.format("Runs as they were priced once (refused, fits: of the sources priced last)")
        write(OUT_OF_VIEW, about, set_aside(), before)


def write(path: Path, about: str, found: Iterable[Found], before: Iterable[list[Any]] = (), **more: Any) -> None:
    """Price runs and write the results to a file, after rows of other sources `before`, with what `more` there is."""
    rows, refused, fits = [], 0, dict[str, dict[str, int]]()
    for run in found:
        try:
            row = priced(run)
        except PpsimError as error:
            refused += 1
            print(run.name, error, file=sys.stderr)
            continue
        counts = fits.setdefault(run.source, dict.fromkeys(COUNTS, 0))
        counts[COUNTS[0] if run.seconds else COUNTS[2]] += 1
        if not row.pop("fits"):
            counts[COUNTS[1] if run.seconds else COUNTS[3]] += 1
        if run.seconds:
            rows.append([row.get(name) for name in COLUMNS])
    others = [row for row in before if row[COLUMNS.index("source")] not in fits]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in [*others, *rows])
    heads = {"about": about, "refused": refused, "fits": fits, **more, "columns": COLUMNS}
    top = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in heads.items())
    write_atomically(path, f'{{{top},\n"runs": [\n{lines}\n]}}\n')


def write_peaks() -> None:
    """Predict the peaks that were not predicted before, and add them to their file."""
    rows = json.loads(PEAKS.read_text(encoding="utf-8"))["peaks"] if PEAKS.exists() else []
    known, sources = {row[0] for row in rows}, {one["name"]: one for one in read_runs(SET_ASIDE)["sources"].values()}
    days = {str(source["priced"]) for source in sources.values()} - {NOT_YET}
    for run in (run for day in sorted(days) for run in set_aside(day)):
        if run.peak is not None and run.name not in known:
            about = sources[run.source]
            of = re.search("whole GPU|reserved|allocated", about["peaks"])
            row = priced(run)
            rows.append((run.name, run.source, of[0] if of else "not said", about["peaks_judge"], *row["peak"]))
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    write_atomically(PEAKS, f'{{"columns": {json.dumps(PEAK_COLUMNS)},\n"peaks": [\n{lines}\n]}}\n')


def set_aside(priced: str = NOT_YET) -> Iterator[Found]:
    """Yield the runs of the sources of docs/data/set_aside.yaml that were priced on one day, or not yet."""
    data = read_runs(SET_ASIDE)
    if all(str(source["priced"]) != priced for source in data["sources"].values()):
        raise SystemExit(f"{SET_ASIDE.name}: no source has priced: {priced}; a second time they would be in view")
    for run in data["runs"]:
        source = run["source"]
        if str(data["sources"][source]["priced"]) != priced:
            continue
        model = data["models"][run["model"]] | {key: run[key] for key in ("sequence", "attention") if key in run}
        layout = data["layouts"][source] | run["layout"]
        schedule = schedule_of(run["devices"], run["microbatches"], run.get("stages", 1), bool(layout.get("overlap")))
        config = config_of(data, model, run["device"], run["gpus"], layout, schedule)
        name = data["sources"][source]["name"]
        counted = "peak" in run and data["sources"][source].get("peaks_counted", True)
        peak = parse_quantity(run["peak"], "bytes") if counted else None
        sweep = f"{name}: {run['model']}, {run['device']}"
        yield Found(run["name"], name, config, run["seconds"], sweep, peak, run.get("peak_of", 0))


def set_aside_before(_folder: Path, _data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the runs of docs/data/set_aside.yaml that were priced before those that were priced last."""
    sources = read_runs(SET_ASIDE)["sources"].values()
    for day in sorted({str(source["priced"]) for source in sources} - {NOT_YET})[:-1]:
        yield from set_aside(day)


def priced(run: Found) -> dict[str, Any]:
    """Return a run with its prediction; `fits` says if every GPU has room for its peak."""
    config = ConfigSource(
        {**run.config, "transport": "directed", "optimizer": "sync", "engine": "compiled"}, run.name
    ).config()
    costs: Any = config.costs
    timeline = config.simulate()
    devices, peaks = timeline.schedule.devices, np.asarray(timeline.peak_memory)
    held = peaks.max() if run.peak_of == "largest" else peaks[int(run.peak_of)]
    workload = timeline.table.workload
    assert workload is not None  # noqa: S101 - every config here has a model
    return {
        "name": run.name,
        "source": run.source,
        "group": class_of(costs, devices),
        "framework": costs.layout.run_by.facts.name.lower(),
        "sweep": run.sweep,
        "measured": run.seconds,
        "predicted": _short(timeline.iteration_time),
        "scales": [_short(value) for value in scales(costs, devices).values()],
        "tokens": _short(workload.tokens * timeline.schedule.microbatches / workload.gpus),
        "peak": None if run.peak is None else [_short(run.peak), _short(float(held))],
        "fits": bool(peaks.max() <= costs.cluster.device.capacity),
    }


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def config_of(
    data: Mapping[str, Any], model: Any, device: str, gpus: int, layout: dict[str, Any], schedule: Any
) -> dict:
    """Return the config of a run; `model` is a section, or a name of the data file with changes."""
    return {
        "model": model,
        "hardware": data["devices"][device] | {"gpus": gpus},
        "layout": layout,
        "schedule": schedule,
    }


def schedule_of(devices: int, microbatches: int, stages: int = 1, combined: bool = False) -> dict[str, Any]:
    """Return 1F1B, interleaved if a device has several stages; `combined`: with an F and a B in one slot."""
    schedule = {"name": "1f1b", "devices": devices, "microbatches": microbatches}
    if devices > 1 and stages > 1:
        schedule |= {"name": "interleaved-1f1b", "stages_per_device": stages}
    return schedule | ({"name": "combined-1f1b"} if combined else {})


# Sources


def hagemann(folder: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the trials of Hagemann et al. 2023: Megatron's layouts with ZeRO-1 in a framework of their own."""
    for path in sorted((folder / "hagemann").glob("*.xlsx")):
        size, sequence = re.findall(r"\d+B", path.name)[0], 8192 if "8k_seq" in path.name else 2048
        for row in _spreadsheet(path):
            kernel, gpus = row.get("kernel", ""), int(float(row["World Size"]))
            tensor, devices = (int(float(row[f"{word}_parallel_size"])) for word in ("model", "pipe"))
            microbatch = int(float(row["micro_batch_size"]))
            model = HAGEMANN[size] | LLAMA | {"vocabulary": 128000, "sequence": sequence}
            model |= {"attention": KERNELS.get(kernel.split(" ")[0], "full")}
            layout = {"framework": "scaling", "fused_norms": "RMS" in kernel, "tensor": tensor}
            layout |= {"data": gpus // (tensor * devices), "microbatch_size": microbatch, "distributed_optimizer": True}
            layout |= {"sequence_parallel": row.get("sequence_parallel") in ("1", "1.0")}
            layout |= {"recompute": "full"} if row["activation_checkpointing_type"] == "every_layer" else {}
            microbatches, left = divmod(BATCHES[sequence], layout["data"] * microbatch)
            if left or not microbatches or gpus % (tensor * devices):
                continue
            if row.get("Average Step Time") in ("Kernel not available", "Other Error"):
                continue
            name = f"hagemann-{size}-s{sequence}-{gpus}-tp{tensor}pp{devices}mbs{microbatch}-{kernel}-{row['Trial ID']}"
            config = config_of(data, model, A100, gpus, layout, schedule_of(devices, microbatches))
            seconds = _number(row.get("Average Step Time"))
            yield Found(name, "Hagemann et al. 2023", config, seconds, f"Hagemann: {path.stem}")


def _spreadsheet(path: Path) -> list[dict[str, str]]:
    """Return the rows of a spreadsheet's first table, by the header that has `Trial ID`."""
    with zipfile.ZipFile(path) as book:
        shared = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))  # noqa: S314 - a file of the caller's
        texts = ["".join(part.text or "" for part in item.iter(f"{SHEET}t")) for item in shared.findall(f"{SHEET}si")]
        [sheet, *_] = [name for name in book.namelist() if name.startswith("xl/worksheets/sheet")]
        rows = []
        for row in ElementTree.fromstring(book.read(sheet)).iter(f"{SHEET}row"):  # noqa: S314
            cells = {}
            for cell in row.findall(f"{SHEET}c"):
                value, column = cell.find(f"{SHEET}v"), re.sub(r"\d", "", cell.get("r", ""))
                if value is not None and value.text:
                    cells[column] = texts[int(value.text)] if cell.get("t") == "s" else value.text
            rows.append(cells)
    head = next(number for number, row in enumerate(rows) if "Trial ID" in row.values())
    names = rows[head]
    return [{names[key]: value for key, value in row.items() if key in names} for row in rows[head + 1 :] if row]


def _number(text: str | None) -> float | None:
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < float("inf") else None


def _tables(text: str) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Yield each row of a page's tables by its header, with the headings above it."""
    headings, header = ["", "", "", "", ""], list[str]()
    for line in text.splitlines():
        if match := re.match(r"(#+) +(.*)", line):
            level = len(match[1])
            headings[level - 1 :] = [match[2].strip(), *[""] * (5 - level)]
            header = []
        elif line.lstrip().startswith("|"):
            cells = [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
            if not header:
                header = cells
            elif not set(cells[0]) <= {"-", ":", " "}:
                yield headings, dict(zip(header, cells, strict=False))


def nemo(folder: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the pre-training runs of NeMo 24.07, in fp8 with delayed scales.

    Its launcher (NVIDIA/NeMo-Framework-Launcher, tag 24.07) sets NVTE_FUSED_ATTN: 0 in conf/config.yaml of
    launcher_scripts, and grad_sync_dtype=bf16 in examples/training.
    """
    for headings, row in _tables((folder / "nemo.md").read_text(encoding="utf-8")):
        known = NEMO.get(row.get("Model", ""))
        if headings[2] != "Pretraining" or known is None:
            continue
        model = (known if isinstance(known, dict) else data["models"][known]) | {"attention": "flash-2"}
        yield _megatron(data, "NVIDIA NeMo 24.07", row, model, H100, "delayed", row["Model"], {"bf16_gradients": True})


def bridge(folder: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the pre-training runs of Megatron-Bridge from 26.04 on; of one layout the latest."""
    found: dict[tuple[str, ...], Found] = {}
    for page in ("bridge.md", "bridge_archive.md"):  # the latest release first
        for headings, row in _tables((folder / page).read_text(encoding="utf-8")):
            release, name = headings[1].split(" ")[0], headings[3].removeprefix("Model: ")
            device, fp8 = SYSTEMS.get(row.get("System", "")), RECIPES.get(row.get("Precision", "").upper())
            if not ("26.04" <= release <= "26.99" and headings[2] == "Pre-Training Performance"):
                continue
            if name not in BRIDGE or device is None or fp8 is None or MARKED in row["Model TFLOP / sec / GPU"]:
                continue
            source = "Megatron-Bridge 26.04 and later"
            more = {"framework": f"Megatron-Bridge {release}"} | _policies(data, BRIDGE[name], device)
            more |= RECIPE_OF.get((name, device, row.get("EP", "")), {})
            if name == "DeepSeekV3":  # its router takes a token's experts from 4 of 8 groups
                more |= {"expert_groups": 8, "groups_per_token": 4, "optimizer_bytes": 6 if fp8 == "none" else 8}
            if name == "Kimi_K2":  # its optimizer is Muon, with one moment
                more["optimizer_bytes"] = 8
            if release >= "26.06" and fp8 == "block" and name in FULL_GRAPH_MODELS:
                recompute = {"GB300": "none", "GB200": "latent" if name == "DeepSeekV3" else None}.get(device)
                more |= FULL_GRAPHS | ({"recompute": recompute} if recompute else {})
                more["fp8_head"] = name in ("DeepSeekV3", "GPT OSS 120B")
                more |= {"fused_experts": False} if (release, name) == ("26.06.01", "GPT OSS 120B") else {}
            run = _megatron(data, source, row, data["models"][BRIDGE[name]], device, fp8, BRIDGE[name], more)
            found.setdefault(
                (name, *(row.get(key, "") for key in [*row][:12])), run._replace(name=f"{release} {run.name}")
            )
    yield from found.values()


def _megatron(
    data: Mapping[str, Any],
    source: str,
    row: Mapping[str, str],
    model: Any,
    device: str,
    fp8: str,
    name: str,
    more: Any,
) -> Found:
    def size(key: str) -> int:
        return int(_number(row.get(key)) or 1)

    gpus, batch, microbatch = (int(_number(row[key]) or 0) for key in ("#-GPUs", "GBS", "MBS"))
    tensor, devices, context, stages, expert = (size(key) for key in ("TP", "PP", "CP", "VP", "EP"))
    sequence = int(_number(row["Sequence Length"]) or 0)
    copies = gpus // (tensor * devices * context)
    layout = {"framework": "megatron-core", "tensor": tensor, "context": context, "expert": expert, "data": copies}
    layout |= {"sequence_parallel": tensor > 1, "distributed_optimizer": True, "microbatch_size": microbatch}
    layout |= {"fp8": fp8} | more
    if (_number(row.get("FSDP")) or 0) > 0:
        layout |= {"distributed_optimizer": False, "sharded": True, "sharded_by": "block"}
    schedule = schedule_of(devices, batch // (copies * microbatch), stages, bool(layout.get("overlap")))
    config = config_of(data, model | {"sequence": sequence}, device, gpus, layout, schedule)
    seconds = batch * sequence / ((_number(row["Tokens / sec / GPU"]) or 1) * gpus)
    words = f"{name} {gpus} {device} {fp8} gbs{batch} mbs{microbatch} tp{tensor} pp{devices} cp{context} ep{expert}"
    return Found(words, source, config, seconds, f"{source}: {name}, {sequence}, {device}")


def _policies(data: Mapping[str, Any], name: str, device: str) -> dict[str, Any]:
    """Return what the latest run in view of the same model says of its recipe, on the same device if there is one."""
    runs = [run for run in data["runs"] if run["model"] == name and run["group"] == "NVIDIA-NeMo/Megatron-Bridge"]
    near = [run for run in runs if run["device"] == device] or runs
    return {key: near[-1]["layout"][key] for key in POLICIES if key in near[-1]["layout"]} if near else {}


def llm_foundry(folder: Path, data: Mapping[str, Any]) -> Iterator[Found]:
    """Yield the rows of llm-foundry's tables that are not in view."""
    known = {run["id"] for run in data["runs"]}
    for headings, row in _tables((folder / "llm_foundry.md").read_text(encoding="utf-8")):
        device = FOUNDRY.get(row.get("GPU", ""))
        if device is None or "FP8" in headings[1]:
            continue
        size, sequence, gpus = row["Model"], int(row["SeqLen (T)"]), int(row["# GPUs"])
        microbatch, steps = int(row["MicroBatchSize"]), int(row["GradAccum"])
        name = f"mpt-{size}-s{sequence}-{gpus}x{row['GPU']}-mbs{microbatch}-{row['Precision']}".replace("_", "-")
        if name in known or f"MPT-{size}" not in data["models"]:
            continue
        layout = {"framework": "mosaicml", "data": gpus, "sharded": True}
        layout |= {"microbatch_size": microbatch}
        layout |= {"recompute": "full"} if row["Activation Checkpointing"] == "True" else {}
        attention = "flash-2" if "Large Scale" in headings[1] else "triton"  # default of submit_benchmarks.py of 2023
        model = data["models"][f"MPT-{size}"] | {"sequence": sequence, "attention": attention}
        config = config_of(data, model, device, gpus, layout, schedule_of(1, steps))
        seconds = int(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
        yield Found(name, "llm-foundry, the other rows", config, seconds, f"llm-foundry: {size}, {sequence}, {device}")


def ranking(folder: Path) -> list[list[Any]]:
    """Return by model and nodes of nanotron's table how well layouts that fit are ranked.

    A row has the model, nodes, runs, Kendall's tau, and the regret: how much longer than the fastest published step the
    step of the layout is that is predicted to be the fastest.
    """
    found = dict[tuple[str, int], list[tuple[float, float]]]()
    for run in playbook(folder, {}, RANKED_AXES):
        if run.seconds:
            config = ConfigSource(run.config, run.name).config()
            timeline, costs = config.simulate(), config.costs
            assert isinstance(costs, DerivedCosts)  # noqa: S101 - every config here has a model
            _, model, nodes = run.sweep.split(" ")[:3]
            fits = np.asarray(timeline.peak_memory).max() <= (1 - HEADROOM) * costs.cluster.device.capacity
            own = found.setdefault((model.strip(","), int(nodes)), [])
            own.append((timeline.iteration_time if fits else math.inf, run.seconds))
    rows = []
    for (model, nodes), pairs in sorted(found.items()):
        fitting = [pair for pair in pairs if pair[0] < math.inf]
        if len(fitting) >= FEWEST:
            predicted, measured = zip(*fitting, strict=True)
            regret = min(fitting)[1] / min(seconds for _, seconds in pairs) - 1
            rows.append([model, nodes, len(fitting), _short(kendall_tau(predicted, measured) or 0.0), _short(regret)])
    return rows


def playbook(folder: Path, data: Mapping[str, Any], axes: Mapping[str, str] = PLAYBOOK_AXES) -> Iterator[Found]:
    """Yield the runs of the Ultra-Scale Playbook's table of 3B and 80B, or of other models."""
    text = (folder / "playbook.html").read_text(encoding="utf-8")
    traces, _ = json.JSONDecoder().raw_decode(text[text.index('[{"hoverinfo"') :])
    for axis, model in axes.items():
        hovers = dict.fromkeys(one for trace in traces if trace.get("xaxis") == axis for one in trace.get("text") or ())
        for hover in hovers:
            values = {key: _number(re.split(r"[ %]", value)[0]) for key, value in _pairs(hover)}
            sizes = {name: int(values[key] or 0) for name, key in PLAYBOOK_KEYS.items()}
            run = {"model": model, **sizes, "tgs": values.get("tok/s/gpu"), "mem": values.get("GPU memory")}
            if run["dp"] * run["mbs"] * run["acc"] != run["gbs"]:
                continue
            name = f"nanotron-{model}-" + "-".join(f"{key}{value}" for key, value in sizes.items())
            seconds = judge_calibration.seconds_of(run) if run["tgs"] else None
            peak = run["mem"] * judge_calibration.GIB if run["tgs"] and run["mem"] else None
            sweep = f"nanotron: {model}, {run['nodes']} nodes"
            yield Found(name, "nanotron 3B and 80B", judge_calibration.config_of(run), seconds, sweep, peak)


def _pairs(hover: str) -> Iterator[tuple[str, str]]:
    for line in re.sub(r"</?b>", "", hover).split("<br>"):
        key, colon, value = line.partition(":")
        if colon and value.strip():
            yield key.strip(), value.strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
