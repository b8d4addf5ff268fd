"""Megatron-LM: a config as the script that launches it, and a launch script as a config.

Every rule follows megatron/training/arguments.py and megatron/core at the version of `OPTIONS`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from shlex import quote, split
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.base.units import counted
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout import Layout
from ppsim.costs.partition import LayoutString
from ppsim.families.interleaved import group_sizes
from ppsim.families.registry import nearest_multiples
from ppsim.frameworks import megatron, options_of
from ppsim.frameworks.megatron import OPTIONS, STRATEGIES
from ppsim.launch import megatron_model
from ppsim.launch.megatron_model import PATTERN, ROWS, is_hybrid
from ppsim.launch.reading import Flags, Launch, Reading, Row, naming_what_to_set, notes_in, torchrun_gpus
from ppsim.launch.shell import read_script
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import find_family

MOMENTS, TYPE_BYTES = ("exp-avg-dtype", "exp-avg-sq-dtype"), {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1}
SIZES = ("--num-layers", f"--{PATTERN}", "--hybrid-override-pattern")  # one of them is in every command that trains
GRADIENTS = "megatron-fsdp-main-grads-dtype"
# Versions whose FSDP sums gradients in the model's type without this flag.
SUMMED_IN_MODEL_TYPE = ("core 0.19.0", OPTIONS["version"])
GRAPHED, SCOPE = "cuda-graph-modules", "cuda-graph-scope"  # the parts of CUDA graphs, and its name before core 0.18
MODULES = {
    "norms": "layernorm", "activations": "moe_act", "core": "core_attn", "latent": "mla_up_proj", "streams": "mhc",
    "mlp": "mlp", "moe": "moe",
}  # fmt: skip


def script_text(job: Launch, version: str, flags: list[str]) -> str:
    """Return a bash script that launches a job."""
    layout = job.costs.layout
    connections = "unset {}" if layout.reduces_blocks else "export {}=1"
    exports = (
        ["export NCCL_GRAPH_REGISTER=0"] if layout.chosen("cuda_graphs") else []
    )  # needed with expandable segments
    return job.script(
        f"flags of Megatron-LM, {version}", job.notes, megatron_model.training_program(job.costs.model, version),
        [*flags, "--bf16 --mock-data --tokenizer-type NullTokenizer --train-iters 20 --lr 1.0e-4"],
        comments=_comments(job.costs), exports=[connections.format("CUDA_DEVICE_MAX_CONNECTIONS"), *exports],
    )  # fmt: skip


def script_flags(job: Launch, version: str) -> list[str]:
    """Return the flags, once they read back as what was simulated; ConfigError names what would differ."""
    job = megatron_model.with_flagged_stages(job) if job.costs.model.pattern else job
    found = list(flags_of(job, version))
    flags = Flags.of(split(" ".join(found)))
    reading = read(flags, job.notes, job.gpus, Reading("Megatron-LM", version))
    job.check("Megatron-LM", reading)
    lacking = [f"--{name}" for name in sorted(flags.arguments.keys() - options_of(OPTIONS, version).keys())]
    if lacking := lacking or [*megatron_model.version_faults(job.costs, version)]:
        raise ConfigError(f"Megatron-LM {version} has no {', '.join(lacking)}; use {OPTIONS['version']}")
    return found


def megatron_faults(costs: DerivedCosts, schedule: ScheduleColumns, microbatches: int) -> Iterator[str]:
    """Yield what Megatron-LM rejects, each with what to change."""
    model, layout, v = costs.model, costs.layout, schedule.num_stages // schedule.devices
    name, modules = schedule.name, str(layout.recompute).split("+")
    if name == "interleaved-1f1b" and schedule.devices == 1:
        yield "schedule.devices=1: the interleaved schedule needs at least 2; use 1f1b"
    if name == "combined-1f1b":  # excludes FSDP: core/distributed/fsdp/mcore_fsdp_adapter.py
        predicted, overlap = model.prediction_layers, layout.overlap
        needs = {
            ("layout.expert=1", "needs expert parallelism (--expert-model-parallel-size above 1)"): layout.expert == 1,
            (f"layout.recompute={layout.recompute}", "repeats no exchange of experts; leave out full and moe"): bool(
                {"full", "moe"} & {*modules}
            ),
            ("layout.sharding", "excludes --fsdp-double-buffer; use optimizer"): layout.reduces_blocks,
            (f"model.prediction_layers={predicted}", "allows at most 1"): predicted > 1,
            (f"layout.overlap={overlap}", "hides the exchange of experts; use two-stream"): overlap != "two-stream",
            ("schedule.stages_per_device=1", "on several devices needs at least 2"): v == 1 and schedule.devices > 1,
        }
        yield from (f"{place}: {name} {rule}" for (place, rule), applies in needs.items() if applies)
    if layout.recompute == "selective" and model.attention == "flash":
        yield "layout.recompute=selective: its flag repeats flash attention, and frees nothing; use none, or core"
    if "activations" in modules and not (model.experts and layout.chosen("grouped_experts")):
        yield "layout.recompute=activations: it recomputes those of experts, with layout.grouped_experts=true"
    if layout.fp8 == "delayed" and {"norms", "activations"} & {*modules}:
        yield "layout.fp8=delayed: excludes recompute of norms or activations"
    if graphs := layout.chosen("cuda_graphs"):
        if not model.experts and (graphs == "router" or name == "combined-1f1b"):
            yield f"layout.cuda_graphs={graphs}: needs experts; use true, or false"
        if {"full", "moe"} & {*modules} or ("core" in modules and model.dropout):
            yield f"layout.cuda_graphs: excludes recompute={layout.recompute}; set one of them to false or none"
    if model.residual_streams > 1:  # core/transformer: transformer_config.py, transformer_layer.py
        rejected = {
            "pipeline, whose buffers hold one stream": schedule.devices > 1, "experts": model.experts,
            "pattern": model.pattern, "prediction modules": model.prediction_layers,
            "full recompute": layout.recompute == "full",
        }  # fmt: skip
        streams = f"model.residual_streams={model.residual_streams}"
        yield from (f"{streams}: excludes {what}" for what, used in rejected.items() if used)
        if {"streams", "mlp"} <= {*modules}:
            yield f"layout.recompute={layout.recompute}: streams excludes mlp"
    elif "streams" in modules:
        yield "layout.recompute=streams: the model has one residual"
    if "latent" in modules and not model.key_value_rank:
        yield "layout.recompute=latent: the model has no latent attention"
    if model.experts and layout.tensor > 1 and not layout.sequence_parallel:  # core/transformer/moe/moe_layer.py
        yield "layout.sequence_parallel=false: experts with tensor parallelism need true"
    if model.experts and layout.expert * layout.split_experts == 1 and layout.chosen("expert_exchange") != "all-to-all":
        yield "layout.expert_exchange=hierarchical: needs layout.expert above 1; use all-to-all"
    if layout.expert > 1 and (layout.expert_nodes or layout.fp8_dispatch):
        yield "layout.expert_nodes, layout.fp8_dispatch: it has no flags for them; leave both out"
    held, types = layout.chosen("optimizer_bytes"), _state_types(layout.fp8, layout.fp8_gather, layout.reduces_blocks)
    if held not in types:
        with_what = "its FSDP" if layout.reduces_blocks else "this layout.fp8"
        yield f"layout.optimizer_bytes={held}: it has {' or '.join(map(str, sorted(types)))} with {with_what}"
    if held < 12 and not (layout.distributed_optimizer or layout.sharded):
        yield "layout.optimizer_bytes: below 12 it needs layout.distributed_optimizer=true"
    if layout.fp8_gather and not (layout.distributed_optimizer or layout.sharded):
        yield "layout.fp8_gather: needs layout.distributed_optimizer=true (--fp8-param-gather)"
    if layout.sharded and not layout.shards_by("block"):
        yield "layout.sharded_by: Megatron FSDP gathers weights block by block; set it to block"
    if layout.sums_gradients_wrongly(microbatches):
        yield (
            "layout.sharding: its FSDP adds gradients that one GPU alone holds to themselves (issue 6660); use a "
            "smaller layout.expert, or layout.sharding=optimizer"
        )
    if layout.context > 1 and model.sequence % (2 * layout.context):
        yield f"layout.context={layout.context}: model.sequence must be a multiple of {2 * layout.context}"
    if model.parallel_block:
        yield "model.parallel_block: it has no block of this kind"
    if (model.attention == "full") == model.causal:
        yield f"model.causal={str(model.causal).lower()} with attention={model.attention}: its attention is causal"
    yield from megatron_model.model_faults(costs, schedule)


def _comments(costs: DerivedCosts) -> Iterator[str]:
    yield "20 steps of mock data; your own data, tokenizer, learning rate and rotary base are yet to be added"
    layout, vocabulary = costs.layout, costs.model.vocabulary
    if layout.reduces_blocks and (layout.tensor > 1 or layout.context > 1):
        yield "Megatron-LM warns against FSDP with tensor or context parallelism: they want more connections"
    if vocabulary % layout.tensor:
        yield f"Megatron-LM pads the vocabulary to {padded(vocabulary, layout.tensor)} entries"


def padded(vocabulary: int, multiple: int) -> int:
    """Return the entries of a vocabulary padded to a multiple."""
    return -(-vocabulary // multiple) * multiple


def flags_of(job: Launch, version: str) -> Iterator[str]:
    """Yield the flags with their arguments: model, groups, batch, partition, then policies."""
    costs, schedule = job.costs, job.schedule
    model, layout = costs.model, costs.layout
    yield from megatron_model.model_flags(job, version)
    if model.experts:
        yield from job.flags(*ROWS["expert_layout"])
        if layout.chosen("expert_exchange") == "hierarchical":
            # HybridEP reaches GPUs of other hosts over NVLink, DeepEP 8 of one (core/transformer/moe/README.md)
            yield f"--moe-flex-dispatcher-backend {'hybridep' if costs.cluster.gpus_per_node > 8 else 'deepep'}"
    yield from job.flags(*ROWS["layout"])
    yield f"--global-batch-size {layout.microbatch_size * layout.data * schedule.microbatches_of_a_step}"
    if schedule.devices > 1 and not is_hybrid(model):
        yield f"--pipeline-model-parallel-layout {quote(costs.megatron_layout(schedule.num_stages))}"
    if schedule.num_stages > schedule.devices > 1 and not find_family(schedule.name).fixed_stages:
        options = job.config.schedule.get("options", {})
        groups = options.get("grouping", "megatron"), options.get("group_size")
        size = int(group_sizes(schedule.devices, schedule.microbatches, *groups)[0])
        if size != schedule.devices:
            yield f"--microbatch-group-size-per-virtual-pipeline-stage {size}"
    if schedule.name.startswith("combined"):
        yield "--overlap-moe-expert-parallel-comm"
    if layout.context > 1:
        yield from job.flags(*ROWS["context"])
    if layout.tensor > 1 and layout.sequence_parallel:
        yield from job.flags(*ROWS["tensor"])
    yield from _sharding_flags(layout, version)
    if layout.fp8 != "none":
        yield "--fp8-format hybrid"
        yield from job.flags(*ROWS["fp8"])
    if graphs := layout.chosen("cuda_graphs"):
        yield "--cuda-graph-impl transformer_engine"
        if model.experts:
            parts = "moe_router moe_preprocess" if graphs == "router" else "attn moe_router moe_preprocess"
            yield f"--{GRAPHED if GRAPHED in options_of(OPTIONS, version) else SCOPE} {parts}"
    yield from _recompute_flags(layout)


def _state_types(fp8: str, fp8_gather: bool, by_fsdp: bool) -> dict[int, str]:
    """Return the type of both of Adam's moments by the bytes of optimizer state; "" for the default optimizer.

    The one with --use-precision-aware-optimizer stores only the other 2 bytes of a bf16 weight
    (core/optimizer/optimizer_config.py, store_param_remainders), but 4 with recipes of fp8 other than `delayed`. FSDP
    has weights of its own, of 4 bytes, in the place of the optimizer's (core/optimizer/__init__.py, master_weights).
    """
    weight = 2 if not by_fsdp and (fp8 == "none" or (fp8 == "delayed" and not fp8_gather)) else 4
    return {weight + 8: "fp32", weight + 4: "bf16", 12: ""}


def _sharding_flags(layout: Layout, version: str) -> Iterator[str]:
    if layout.distributed_optimizer or layout.sharded:
        yield "--use-distributed-optimizer"
        if layout.chosen("overlap_data"):
            yield "--overlap-param-gather"
    types = _state_types(layout.fp8, layout.fp8_gather, layout.reduces_blocks)
    if moments := types.get(layout.chosen("optimizer_bytes")):
        yield "--use-precision-aware-optimizer"
        yield from (f"--{moment} {moments}" for moment in MOMENTS)
    if layout.reduces_blocks:
        yield "--use-megatron-fsdp"
        yield f"--data-parallel-sharding-strategy {'optim_grads_params' if layout.sharded else 'optim_grads'}"
        yield "--fsdp-double-buffer"
        if GRADIENTS in options_of(OPTIONS, version):
            yield f"--{GRADIENTS} {'bf16' if layout.chosen('bf16_gradients') else 'fp32'}"
        yield "--ckpt-format fsdp_dtensor"


def _recompute_flags(layout: Layout) -> Iterator[str]:
    level = layout.recompute
    if level == "full":
        blocks = layout.recompute_blocks
        yield "--recompute-granularity full"
        yield f"--recompute-method {'uniform' if blocks is None else 'block'}"
        yield f"--recompute-num-layers {1 if blocks is None else blocks}"
    elif level != "none" and isinstance(level, str):
        modules = ["core"] if level == "selective" else level.split("+")
        yield "--recompute-granularity selective"
        if modules != ["core"]:
            yield f"--recompute-modules {' '.join(MODULES.get(module, module) for module in modules)}"


def from_text(text: str, gpus: int | None = None) -> Reading:
    """Return the content of a launch script or a line of flags; ConfigError for values that cannot be read."""
    launch = read_script(text)
    if not any(size in f"{launch.commands} {launch.variables}" for size in SIZES):  # it writes the script it submits
        launch = read_script(text, documents=True)
    words, launcher = launch.command((".py",), SIZES)
    if not launcher and not {*SIZES} & {*words}:  # the command depends on a condition, or another script has it
        words += [word for value in launch.variables.values() if "--" in value for word in value.split()]
    if not launcher and not any(word.startswith("--") for word in words):
        keys = ", such as --num-layers 32 for num_layers: 32" * ("num_layers:" in text)  # YAML
        raise ConfigError(
            f"holds no flags of Megatron-LM; give the script that calls pretrain_gpt.py, or its flags{keys}"
        )
    flags, reading = Flags.of(words), Reading("Megatron-LM", str(OPTIONS["version"]))
    program = "".join(launcher[-1:]).rpartition("/")[2]
    if re.search(r"_(t5|retro|vision_\w+)\.py", program):
        raise ConfigError(f"calls {program}, whose model is not read here; give a script that calls pretrain_gpt.py")
    if "_bert" in program:
        reading.unknown.append(f"{program}: priced as pretrain_gpt.py, as a decoder")
    with naming_what_to_set(text, launch):
        read(flags, notes_in(text), gpus or torchrun_gpus(launcher, launch.variables), reading)
    reading.sort(flags)
    reading.conditional.extend(launch.conditional)
    return reading


def read(flags: Flags, notes: Mapping[str, Any], gpus: int | None, reading: Reading) -> Reading:
    """Return `reading` with the flags as the sections of a config."""
    model, layout = megatron_model.read_model(flags), dict[str, Any]()
    if "experts" in model:
        layout |= flags.values(*ROWS["expert_layout"])
        flags.has("moe-enable-deepep", "moe-flex-dispatcher-backend")
    else:
        flags.has(*(row.flag for row in ROWS["expert_layout"]))  # no effect without experts
    layout |= flags.values(*ROWS["layout"], *ROWS["context"], *ROWS["tensor"])
    schedule = {"devices": layout.pop("devices")}
    if not layout["sequence_parallel"]:  # no flag: all-reduces overlap weight gradients (tensor_parallel/layers.py)
        layout["overlap_tensor"] = notes.get("overlap_tensor")
    _read_sharding(flags, layout, reading)
    _read_recompute(flags, model, layout, reading)
    _read_graphs(flags, model, layout, reading)
    _read_schedule(flags, model, layout, schedule, gpus, reading)
    _read_vocabulary(flags, model, layout["tensor"], reading)
    layout["framework"] = notes.get("framework", "megatron-core")
    if flags.has("rampup-batch-size"):
        reading.assumed.append("--rampup-batch-size: the step is one of the full batch, after the ramp")
    reading.fill(notes, model=model, layout=layout, schedule=schedule)
    return reading


def _read_sharding(flags: Flags, layout: dict[str, Any], reading: Reading) -> None:
    layout["distributed_optimizer"] = flags.has("use-distributed-optimizer")
    flags.has("overlap-param-gather", "ckpt-format", "fsdp-double-buffer")
    strategy = flags.text("data-parallel-sharding-strategy") or "no_shard"
    if flags.has("use-torch-fsdp2"):
        layout |= STRATEGIES["optim_grads_params"]
        reading.assumed.append("--use-torch-fsdp2: priced as --use-megatron-fsdp")
    if flags.has("use-megatron-fsdp"):
        summed, unless = flags.text(GRADIENTS) or "auto", f"unless --{GRADIENTS} is fp32"
        if summed == "auto" and reading.version in SUMMED_IN_MODEL_TYPE:
            reading.assumed.append(f"gradients in bf16: FSDP sums them so from {SUMMED_IN_MODEL_TYPE[0]} on, {unless}")
        if summed != "auto" or reading.version in SUMMED_IN_MODEL_TYPE:
            layout["bf16_gradients"] = summed != "fp32"
        if strategy in STRATEGIES:
            layout |= STRATEGIES[strategy]
        else:
            reading.unknown.append(f"--data-parallel-sharding-strategy {strategy}: not priced")
    if flags.text("fp8-format") is not None:
        layout |= flags.values(*ROWS["fp8"])
    moments = sum(Row("layout.optimizer_bytes", moment, TYPE_BYTES, absent=4).read(flags) for moment in MOMENTS)
    if flags.has("use-precision-aware-optimizer"):
        by_fsdp = bool(layout.get("sharded") or layout.get("sharded_gradients"))
        weight = min(_state_types(layout.get("fp8", "none"), layout["fp8_gather"], by_fsdp)) - 4
        weight = 2 if flags.text("main-params-dtype") == "fp16" else weight
        layout["optimizer_bytes"] = weight + moments
        layout["bf16_gradients"] = layout.get("bf16_gradients") or flags.text("main-grads-dtype") == "bf16"


def _read_recompute(flags: Flags, model: dict[str, Any], layout: dict[str, Any], reading: Reading) -> None:
    level = flags.text("recompute-granularity")
    if flags.has("recompute-activations"):
        level = "selective"
    modules = flags.words("recompute-modules")
    method, count = flags.text("recompute-method"), flags.number("recompute-num-layers", 1)
    if flags.has("checkpoint-activations", "activations-checkpoint-method"):  # its names up to 2022
        level = "full"
    if level == "full":
        layout["recompute"] = "full"
        if method == "block":
            layout["recompute_blocks"] = count
        elif count > 1:
            reading.assumed.append(f"--recompute-num-layers {count}: priced as 1; more hold less and recompute as much")
    elif level == "selective":
        names = {theirs: ours for ours, theirs in MODULES.items()}
        reading.unknown.extend(f"--recompute-modules {one}: not priced" for one in modules or [] if one not in names)
        known = [names[one] for one in modules or ["core_attn"] if one in names]
        # Megatron-Core repeats flash attention too (core/transformer/attention.py); before it, selective did not
        is_plain = known == ["core"] and (model["attention"] == "full" or flags.has(*OPTIONS["forks"]["before_flash"]))
        layout["recompute"] = "selective" if is_plain else "+".join(known) or "none"


def _read_graphs(flags: Flags, model: dict[str, Any], layout: dict[str, Any], reading: Reading) -> None:
    """Read which kernels CUDA graphs launch: by default those of whole layers."""
    parts = {*(flags.words(GRAPHED) or []), *(flags.words(SCOPE) or [])}
    by_old_flag = flags.has("enable-cuda-graph", "external-cuda-graph")
    if not by_old_flag and (flags.text("cuda-graph-impl") or "none") == "none":
        return
    if not parts - {"full", "full_iteration"} or {"attn", "moe_router" if "experts" in model else "mlp"} <= parts:
        layout["cuda_graphs"] = True
    elif "moe_router" in parts:
        layout["cuda_graphs"] = "router"
    else:
        reading.unknown.append(f"--{GRAPHED} {' '.join(sorted(parts))}: graphs of these parts alone are not priced")


def _read_schedule(
    flags: Flags, model: dict[str, Any], layout: dict[str, Any], schedule: dict[str, Any], gpus: int | None,
    reading: Reading,
) -> None:  # fmt: skip
    """Read batch, stages and order, which depend on the sizes of all groups."""
    devices = schedule["devices"]
    group = layout["tensor"] * layout["context"] * devices
    experts = layout.get("expert", 1) * (layout.get("expert_tensor") or layout["tensor"]) * devices
    min_gpus = math.lcm(group, experts)
    size = layout["microbatch_size"] = layout["microbatch_size"] or 1
    if gpus is None:
        gpus, reason = math.lcm(min_gpus, reading.default_gpus), "the runner's default"
        if gpus == min_gpus or (flags.number("global-batch-size") or 0) % (size * gpus // group):
            gpus, reason = min_gpus, "the fewest for its groups"
        reading.assumed.append(f"{counted(gpus, 'GPU')}, {reason}: the file gives no number (--gpus)")
    if gpus % min_gpus or not gpus:
        expert_rule = f", and of expert x expert tensor x pipeline = {experts}" if min_gpus != group else ""
        words = f"{counted(gpus, 'GPU')}, which is not a multiple of tensor x context x pipeline = {group}{expert_rule}"
        raise ConfigError(f"{words}; give --gpus {min_gpus}")
    copies = layout["data"] = gpus // group
    batch = flags.number("global-batch-size", size * copies)
    schedule["microbatches"], rest = divmod(batch, size * copies)
    if rest or not batch:
        raise ConfigError(
            f"--global-batch-size {batch} is not a multiple of {size} sequences x {copies} copies; "
            f"use {nearest_multiples(batch, size * copies)}, or another --gpus"
        )
    stages = _read_partition(flags, model, layout, devices)
    schedule["name"] = "interleaved-1f1b" if stages > 1 else "1f1b"
    if flags.has("overlap-moe-expert-parallel-comm"):
        schedule["name"], layout["overlap"] = "combined-1f1b", "two-stream"
    if schedule["name"] != "1f1b":
        schedule["stages_per_device"] = stages
        group_size = flags.number("microbatch-group-size-per-virtual-pipeline-stage")
        if group_size not in (None, devices):
            schedule["options"] = {"group_size": group_size}


def _read_partition(flags: Flags, model: dict[str, Any], layout: dict[str, Any], devices: int) -> int:
    """Read the layers of each stage, and return the stages per device."""
    flag = "pipeline-model-parallel-layout"
    if (text := flags.text(flag)) is not None:
        text = layout["partition"] = text.replace("\\", "")  # a script's `eval` removes them
        count = len(LayoutString.parse(text).stages)
    else:
        flag, text = PATTERN, model.get("pattern", "")
        count = text.count("|") + 1
    if count % devices and count > 1:
        raise ConfigError(f"--{flag} {shown(text)}: its stages are no multiple of {devices}")
    if count > 1:
        return count // devices
    ends = [flags.has(f"account-for-{end}-in-pipeline-split") for end in ("embedding", "loss")]
    first, last = (flags.number(f"decoder-{end}-pipeline-num-layers") for end in ("first", "last"))
    layers, size = model["num_layers"] + sum(ends), flags.number("num-layers-per-virtual-pipeline-stage")
    stages = max(1, layers // devices // size) if size else 1
    stages = flags.number("num-virtual-stages-per-pipeline-rank", stages, least=1)
    if devices * stages == 1:
        return 1
    # The first and the last device may have layers of their own; each device splits its layers evenly over its stages.
    by_end_device = {device: count for device, count in ((0, first), (devices - 1, last)) if count is not None}
    rest = (layers - sum(by_end_device.values())) // max(devices - len(by_end_device), 1)
    counts = [by_end_device.get(stage % devices, rest) // stages for stage in range(devices * stages)]
    if sum(counts) != layers:
        split = f"split evenly over {devices * stages} stages, as Megatron-LM does without a layout"
        instead = "give the layers of each stage as in --pipeline-model-parallel-layout 'Et*3|t*4|t*4|t*3L'"
        raise ConfigError(f"--num-layers {model['num_layers']} cannot be {split}; {instead}")
    if by_end_device or any(ends):
        layout["partition"] = [counts[0] - ends[0], *counts[1:-1], counts[-1] - ends[1]]
    return stages


def _read_vocabulary(flags: Flags, model: dict[str, Any], tensor: int, reading: Reading) -> None:
    size = flags.number("padded-vocab-size") or flags.number("vocab-size")
    if size is None:
        tokenizer = flags.text("tokenizer-type") or ("GPT2BPETokenizer" if flags.has("merge-file") else None)
        size = megatron.VOCABULARIES.get(str(tokenizer), megatron.LARGE_VOCABULARY)
        reason = f"the tokenizer {tokenizer} is not read" if tokenizer else "no tokenizer is named"
        reading.assumed.append(f"vocabulary {size}: {reason} (add --vocab-size)")
    multiple = flags.number("make-vocab-size-divisible-by", 128, 1)
    model["vocabulary"] = padded(size, multiple * tensor) if multiple > 1 else size  # with 1, ppsim prices no padding
