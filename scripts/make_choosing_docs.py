"""Writes between the marks of docs/choosing.md (a worked case) and docs/choosing-checks.md (all else), and the charts.

`python scripts/make_choosing_docs.py` runs the case; the rest shows docs/data/choices.yaml, which scripts/choices.py
writes. Every number is of our own model.
"""

from __future__ import annotations

import functools
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from subprocess import run as run_program
from typing import Any

from choices import IMPLAUSIBLE, PAPERS, ROOT, read

from ppsim.base.files import write_atomically
from ppsim.base.units import counted, percent_text, seconds_text
from ppsim.plots.chart_files import save_figure
from ppsim.plots.many_runs import draw_bars

PAGE, CHECKS = ROOT / "docs" / "choosing.md", ROOT / "docs" / "choosing-checks.md"
IMAGES = ROOT / "docs" / "images"
END = "<!-- end -->\n"
EXPLAINED = 0.05  # regret above which the page gives a reason
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
NO_RECOMPUTE = (
    "faster, as similar runs were: the run repeats every forward, and with the best groups found all activations "
    "fit, even if fragments take a quarter of the memory. Hagemann et al. measured 13B to 65B on A100 both ways, "
    "each with its best groups: without recomputation steps are 4 to 26 % faster (arXiv 2311.05610, their data). Full "
    "recomputation was usual before 2022, when Korthikanti et al. published what it costs."
)
FEWER_DEVICES = "half as many devices in a pipeline idle less, and need nearly all of the usable memory."
EXPERTS_IN_A_NODE = (
    "faster, as a later run was, in another way: experts inside a node exchange nothing between nodes, and without "
    "tensor groups kernels are larger. With DeepEP the published groups reach 276 TFLOP/s in bf16, with CUDA graphs "
    "of the router 320, which is 70.1 and 60.5 s (Megatron-LM@f13818d6, examples/moe-modelzoo; "
    "Megatron-Bridge@ad4138a1, skills/perf-techniques/moe-hardware-configs), where this run took 81.4 s. That is 9 % "
    "less than its predicted step: in fp8 on H100 two streams are priced too slow, so a third of this regret is an "
    "error of our prices."
)
WHY = {  # a regret above `EXPLAINED`, by words of its name: the rule that is missing, or why the other layout is faster
    "bloom-176b": NO_RECOMPUTE,
    "gpt-neox-20b": NO_RECOMPUTE,
    "gpt-145b": "faster by our model: the table of the paper has TP 8 for every model from 18B on. TP 4 sends "
    "less, and with five stages per device a pipeline of 16 idles little longer than the run's.",
    "qwen3-30b-16xh100": "faster, as a later run was, in another way: experts inside a node exchange nothing between "
    "nodes, and microbatches of 2 take less of the host for experts in fp8. With CUDA graphs and an exchange that is "
    "overlapped, the same groups take 20.1 s in bf16 (Megatron-Bridge@067f987, "
    "skills/nemo-mbridge-perf-moe-hardware-configs), where this run took 28.9. Experts over fewer GPUs helped in bf16 "
    "too: 28.9 s with microbatches of 8, experts over 2 GPUs, a pipeline of 2 and full recomputation, 42.2 s with "
    "microbatches of 1 and experts over 16, both with a plain exchange (issue 949, pull request 3880).",
    "gpt-oss-120b-64xh100": "faster, as similar runs were: the head lasts as long as some blocks, and the recipe's "
    "one stage per device waits for that with it. Five stages per device make most of the gain, and no recomputation "
    "the rest, with nearly all of the usable memory. Without any pipeline, NeMo AutoModel trains this model on 64 H100 "
    "with 27 % more tokens a second (36044ad3, docs/performance-summary.mdx).",
    "llama3-70b-64xgb200": "faster, as a similar run was: sharded weights need no pipeline, whose stage with the head "
    "makes the others wait. On the same GPUs, with fp8 by tensors, NVIDIA's FSDP takes 7.52 s (26.02.01), where this "
    "run takes 8.54 s.",
    "gpt-oss-120b-64xb200": "faster by our model: eight copies of each expert exchange gradients between nodes "
    "in a step of five microbatches, and little of it is hidden. A pipeline of 2 has half of them per GPU. The run "
    "took 5.97 s, longer than its predicted step.",
    "qwen3-235b-256xgb200": "faster, as later runs were: stages of other sizes wait less, and microbatches of 2 keep "
    "the kernels of experts in MXFP8 busy, with nearly all of the usable memory. On as many GPUs NVIDIA's script with "
    "microbatches of 3, experts over 64 and a pipeline of 4 reaches 919 TFLOP/s, which is 21.1 s; without a pipeline, "
    "on 128 GPUs, 38.1 s, so 19.1 s on 256 (Megatron-LM@f13818d6, examples/moe-modelzoo; @d48bd6be, "
    "examples/moe_recipes). Both overlap exchanges. This layout took 23.1 s (26.04.01).",
    "qwen3-235b-256xgb300": "faster by our model: experts over 8 instead of 32 GPUs exchange fewer tokens, and half "
    "the pipeline waits less, in 246 instead of 182 GB. In bf16 NVIDIA's step with experts over 16 took 21.4 s "
    "(25.11), a later one over 32, with CUDA graphs, 22.1 s (8d0e6ce2).",
    "nemotron-4-340b": f"faster by our model: {FEWER_DEVICES}",
    "megascale-175b": "faster by our model: half the tensor parallelism sends less, and twelve stages a device "
    "make up for the larger groups of copies, in 56 instead of 29 GB. The run kept memory free.",
    "deepseekv3-256xb200": "faster by our model: experts over two nodes in place of four send fewer tokens between "
    "nodes, in half the pipeline, also beside other microbatches. The run took 19.7 s (26.04.01), 8 % less than its "
    "predicted step: its exchange over four nodes may be priced too slow, which would make this regret smaller.",
    "qwen3-235b-64xb200": "in part an error of our prices: microbatches of 2 in place of 1 keep the kernels of experts "
    "in MXFP8 busy, with the groups as they are and stages of other sizes. NVIDIA's later recipe for 128 B200 has "
    "microbatches of 3 and trains 10 % more sequences a second and GPU than this layout, which took 16.9 s "
    "(Megatron-LM@d48bd6be, examples/moe_recipes; Megatron-Bridge, pull request 1760). Our model predicts 39 % more: "
    "the later recipe 16 % too fast, this layout 6 % too slow.",
    "qwen3-235b-256xh100": EXPERTS_IN_A_NODE,
}
SAID = {  # what an expert would say about a line
    "zero-bubble-28b-32xa100": "Plausible: a pipeline of 32 devices was the paper's subject; tensor and data "
    "parallelism in the nodes are faster.",
    "unit-costs": "Given costs charge nothing per action or transfer, so more stages are always better, here up to 8. "
    "Not an answer for a machine.",
    "glm-130b-768xa100": "Plausible: later flags (selective recompute, sequence parallelism over a whole node) instead "
    "of full recompute; memory is nearly full, which the run's 40 GB devices would feel first.",
    "nemotron-3-nano-16xh100": "Plausible: a pipeline of 2 and experts inside a node leave room for all activations, "
    "but memory is nearly full. The config, NVIDIA's recipe, has no pipeline and recomputes whole experts.",
    "gpt-1t-512xa100": "Plausible: it is the published layout; flags of later software make it 3 % faster. A pipeline "
    "of 16, which recomputes everything, shares its rank but comes after it, as it is not simpler in every respect.",
    "llama-3-70b-64xh100": "Plausible: tensor parallelism over the node and a short pipeline; the config's own layout "
    "is as fast, and advice finds nothing better.",
    "llama-3-8b-8xh100": "Plausible: data parallelism first; several layouts tie with the first.",
    "gpt-3-175b-64xa100": "Plausible: the published 8 devices and one copy, with microbatches of 2 and one layer per "
    "stage instead of four. Memory is nearly full.",
    "bloom-176b-384xa100": "Plausible: memory for all activations instead of recomputation. DeepSpeed, which ran it, "
    "has 1F1B alone.",
    "mt-nlg-530b-280xa100": "Plausible: it is the published layout.",
    "gpt-neox-20b-96xa100": "Plausible: tensor parallelism over the node instead of recomputation. DeepSpeed, which "
    "ran it, has 1F1B alone.",
    "llama-3-405b-16384xh100": "Plausible: half the published pipeline, with the context split over two nodes instead. "
    "Memory is nearly full; the run's own layout needs more by our model.",
    "megascale-175b-12288xa100": "Doubtful: four microbatches of four sequences on a pipeline of 4 need nearly all of "
    "the memory, where the run took less than half by our model.",
    "nemotron-4-340b-6144xh100": "Plausible: half the published pipeline, with 48 stages of two blocks. Memory is "
    "nearly full.",
    "gpt-1t-3072xa100": "Plausible: half the published pipeline with four stages per device, and selective recompute, "
    "which came after the paper.",
    "deepseek-v3-2048xh800": "Doubtful: the report has no tensor parallelism, as links of H800 are slow. By our model "
    "the config fits its GPUs, but without the 10 % that are left free; DualPipe has no launch file.",
    "nemotron-h-56b-256xh100": "Plausible: less tensor parallelism and a pipeline in its place. Memory is nearly full. "
    "MFU counts work in fp8 by the peak of bf16.",
    "qwen3-235b-256xgb200": "Plausible: a pipeline of 2, with which nothing recomputes, and experts over 64 GPUs of "
    "an NVLink domain, as NVIDIA's recipes for DeepSeek-V3 have.",
    "qwen3-next-80b-128xh100": "Plausible: a short pipeline, and experts over two nodes.",
    "mixtral-8x7b-64xh100": "Plausible: experts inside a node, and a pipeline of 2, with which nothing recomputes.",
    "kimi-k2-256xh100": "Plausible: the config's experts, pipeline and stages. The config's software holds 6 bytes of "
    "optimizer state per parameter, with both moments in bf16, so that it needs no tensor groups. Of Megatron-LM's "
    "states, choose tries 10 bytes by itself; with 6, which change the numbers of training, it answers 8.0 s.",
    "gpt-oss-120b-64xh100": "Plausible: half the config's pipeline, and experts over two nodes. An optimizer state of "
    "10 bytes makes room, so that nothing recomputes. Memory is nearly full.",
    "gpt-145b-1536xa100": "Plausible: with a sharded optimizer and selective recompute, which came after the paper, a "
    "pipeline of 2 has room; it had 8. Memory is nearly full.",
}


def main() -> None:
    """Refresh the parts of the page and its charts."""
    found = read()
    for part, content in (
        ("case", case()), ("regret", regret_lines(found)), ("configs", config_lines(found)),
        ("advice", advice_lines(found)), ("implausible", implausible_lines(found)),
    ):  # fmt: skip
        _fill(part, content)
    draw(found)


def _fill(part: str, content: Iterator[str]) -> None:
    begin = f"<!-- {part}: scripts/make_choosing_docs.py -->\n"
    page = PAGE if part == "case" else CHECKS
    before, mark, rest = page.read_text(encoding="utf-8").partition(begin)
    assert mark, part  # noqa: S101 - else the page would grow
    _, _, after = rest.partition(END)
    text = "\n".join(content)
    write_atomically(page, f"{before}{begin}\n{text}\n\n{END}{after}")


def case() -> Iterator[str]:
    """Yield the config and what the command prints of it."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B))
        (Path(folder) / "llama-3-8b.yaml").write_text(CASE)
        command = [sys.executable, "-m", *COMMAND]
        done = run_program(command, cwd=folder, check=True, capture_output=True, text=True)  # noqa: S603 - our own command
    yield "```yaml\n# llama-3-8b.yaml, in the folder of the model's config.json\n" + CASE + "```\n"
    yield f"```\n$ {' '.join(COMMAND)}\n{done.stdout.rstrip()}\n```"


def regrets(found: dict[str, Any]) -> dict[str, tuple[str, dict[str, Any], float]]:
    """Return title, result and regret of each published layout that was searched, by name, the largest regret first."""
    searched = {
        name: (one["title"], one, one["step"] / one["best_step"] - 1)
        for name, one in found["published"].items()
        if "step" in one
    }
    return dict(sorted(searched.items(), key=lambda item: -item[1][2]))


def reason(name: str) -> str:
    """Return the words about a published layout with a large regret; KeyError if there are none."""
    return WHY[next((words for words in WHY if words in name), name)]


def regret_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the summary, the chart and the table of regrets, the reasons, and what was not searched."""
    searched = regrets(found)
    values = [regret for _, _, regret in searched.values()]
    above = sum(value > EXPLAINED for value in values)
    latest = [value for name, (_, _, value) in searched.items() if name not in PAPERS]
    middle = percent_text(statistics.median(values))
    yield (
        f"The median regret of the {len(values)} published layouts searched so far is **{middle}**, the "
        f"largest **{percent_text(max(values))}** (aims: 2 % and 8 %); {above} are above {percent_text(EXPLAINED, 0)}. "
        f"Without the papers of 2021 to 2024 the median is {percent_text(statistics.median(latest))}.\n"
    )
    yield "![Regret of each published layout](images/regret.svg)\n"
    yield "Columns with two numbers have the published layout first. idle: of all devices, of the step.\n"
    yield "| model and GPUs | published | best found | predicted step | idle | memory | regret |"
    yield "|---|---|---|---|---|---|---|"
    for title, one, regret in searched.values():
        steps = f"{seconds_text(one['step'])}, {seconds_text(one['best_step'])}"
        idle = ", ".join(percent_text(part, 0) for part in one["bubble"])
        memory = f"{one['peak'] / 1e9:.0f}, {one['best_peak'] / 1e9:.0f} GB"
        layouts = f"{one['layout']} | {one['best_layout']}"
        yield f"| {title} | {layouts} | {steps} | {idle} | {memory} | {percent_text(regret)} |"
    yield f"\nWhy the best layout found is faster, for each regret above {percent_text(EXPLAINED, 0)}:\n"
    for name, (title, one, regret) in searched.items():
        if regret > EXPLAINED:
            changes = [step for step in one.get("path", ()) if not re.search(r" [+-]0\.0 %", step)]
            steps = f" One change after another, each with its peak: {', '.join(changes)}." if changes else ""
            yield f"- {title}: {reason(name)}{steps}"
    yield f"\n{_priced_by(((title, one) for title, one, _ in searched.values()), 'layout')}"
    too_long = [one["title"] for one in found["published"].values() if "step" not in one]
    if too_long:
        yield f"\nNot searched within 10 minutes of processor time: {'; '.join(too_long)}."
    if missing := found["not_searched"]["published"]:
        yield f"\nNot searched yet, {counted(len(missing), 'layout')}: {'; '.join(missing)}."


def _priced_by(searched: Iterable[tuple[str, dict[str, Any]]], what: str) -> str:
    """Return which commit's model priced these titles and results; of all but the most frequent one also which."""
    titles: dict[str, list[str]] = {}
    for title, one in searched:
        titles.setdefault(one["commit"], []).append(title)
    most, *others = sorted(titles, key=lambda commit: -len(titles[commit]))
    rest = "".join(f"; that of {commit} priced {', '.join(titles[commit])}" for commit in others)
    return f"The model of commit {most} priced {counted(len(titles[most]), what)}{rest}."


def config_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what choose and advise answer for each config, with remarks."""
    yield "| config | `choose` | `advise` | remark |"
    yield "|---|---|---|---|"
    for name, one in found["configs"].items():
        if "choose" in one:
            yield f"| `{name}` | {' '.join(one['choose'])} | {' '.join(one['advise'])} | {SAID.get(name, '')} |"
    yield f"\n{_priced_by(found['configs'].items(), 'config')}"
    too_long = [name for name, one in found["configs"].items() if "choose" not in one]
    if missing := [*found["not_searched"]["configs"], *too_long]:
        yield f"\nNot searched yet: {', '.join(missing)}."


def implausible_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield what choose answers where an earlier search had an answer that no engineer would have used."""
    yield "| model and GPUs | an earlier answer | `choose` |"
    yield "|---|---|---|"
    for name, earlier in IMPLAUSIBLE.items():
        one = found.get("implausible", {}).get(name, {})
        title, said = one.get("title", f"`{name}`"), " ".join(one.get("choose", ["not searched yet"]))
        yield f"| {title} | {earlier} | {said} |"


def advice_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the chart and the table of the faulty configs."""
    cases = found["advice"]
    behind = [one["advised"] / one["best"] - 1 for one in cases.values()]
    near = sum(value <= 0.02 for value in behind)
    yield f"The first advice is within 2 % of the best single change in {near} of {counted(len(cases), 'config')}:\n"
    yield "![Change of the step by the first advice for each config](images/advice.svg)\n"
    yield "| config | step | first advice | step with it | best single change | behind |"
    yield "|---|---|---|---|---|---|"
    for (name, one), late in zip(cases.items(), behind, strict=True):
        before = seconds_text(one["step"]) if one["step"] else "does not fit"
        after, best = seconds_text(one["advised"]), seconds_text(one["best"])
        yield f"| {name} | {before} | {one['words']} | {after} | {best} | {percent_text(late)} |"


def draw(found: dict[str, Any]) -> None:
    """Draw the bars of regret, and those of the first advice."""
    searched, cases = regrets(found).values(), found["advice"]
    steps = [(one["step"] or one["advised"], one["advised"]) for one in cases.values()]
    notes = [one["words"] if one["step"] else f"{one['words']} makes it fit" for one in cases.values()]
    for name, rows, values, remarks, title, unit in (
        (
            "regret",
            [row for row, _, _ in searched],
            [value for _, _, value in searched],
            [""] * len(searched),
            "Regret of published layouts",
            "predicted step above that of the best layout found",
        ),
        (
            "advice",
            list(cases),
            [after / before - 1 for before, after in steps],
            notes,
            "First advice for each faulty config",
            "change of the step",
        ),
    ):
        bars = sorted(zip(rows, values, remarks, strict=True), key=lambda bar: -abs(bar[1]))
        zeros = [bar for bar in bars if abs(bar[1]) < 5e-4 and not bar[2]]
        if len(zeros) > 2:
            bars = [*(bar for bar in bars if bar not in zeros), (f"{len(zeros)} others", 0.0, "")]
        save_figure(functools.partial(draw_bars, *zip(*bars, strict=True), title, unit), IMAGES / f"{name}.svg")


if __name__ == "__main__":
    main()
