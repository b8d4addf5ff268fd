"""torchtitan: a config as the command that launches it.

Every rule follows torchtitan/distributed/pipeline_parallel.py and torchtitan/trainer.py at the version of the options.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from ppsim.base.errors import BuildError, ConfigError, ScheduleError
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.model import Model
from ppsim.frameworks.pytorch import CLASSES
from ppsim.frameworks.pytorch import OPTIONS as FAMILY_OPTIONS
from ppsim.frameworks.torchtitan import CONFIGS, MODELS, OPTIONS
from ppsim.launch.reading import Launch, cannot_run
from ppsim.launch.torchtitan_reading import CLASS, POLICY, ROWS, normalised, read_options, split_of
from ppsim.run.schedules import Schedule
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import find_family

CSV_FILE = "schedule.csv"
PRINTED = (OPTIONS["version"], "main")
UNNAMED = ("${MODULE}", "${CONFIG}")  # module and config of a model that torchtitan does not have
FP8_KEYS = ("fp8", "fp8_experts", "fp8_gather")


def job_text(job: Launch, version: str, flags: list[str]) -> str:
    """Return the command that launches a job."""
    model, fp8, named = job.costs.model, job.costs.layout.fp8, _named_config(job.costs)
    module, known = named or UNNAMED
    comments = {
        f"MODULE and CONFIG, of your own: {model.num_layers} blocks of width {model.hidden}": (module, known)
        == UNNAMED,
        f"{CSV_FILE} is written by ppsim simulate --csv {CSV_FILE}": _class(job.schedule) is None,
        f"products in fp8 ({fp8}) are set in CONFIG": fp8 != "none",
    }
    return job.script(
        f"flags of torchtitan {version}", _notes(job),
        f"\\\n  -m torchtitan.train --module {module} --config {known}", flags,
        comments=[comment for comment, applies in comments.items() if applies],
    )  # fmt: skip


def job_flags(job: Launch, version: str) -> list[str]:
    """Return the flags, once they read back as what was simulated; ConfigError names what would differ."""
    if version not in PRINTED:
        raise ConfigError(f"torchtitan {version}: its flags can be read, not printed; use {' or '.join(PRINTED)}")
    costs, schedule = job.costs, job.schedule
    fault = pytorch_fault(schedule)
    if not fault and schedule.devices > 1 and _placement_class(schedule) is None:
        fault = "torchtitan places stages in a loop, or two per device in a V"
    cannot_run("torchtitan", [f"schedule {schedule.name}: {fault}"] if fault else [])
    printed = list(_flags(job, version))
    module, known = _named_config(costs) or UNNAMED
    words = " ".join([f"--module {module} --config {known}", *printed]).split()
    reread = read_options(normalised(words), _notes(job), job.gpus, version)
    if _class(schedule) is None:  # its lists are in a CSV file
        reread.data["schedule"] = job.config.data["schedule"]
    job.check("torchtitan", reread)
    return printed


def _notes(job: Launch) -> dict[str, Any]:
    """Return what the flags leave out: hardware, the step's end, and sizes of a model that torchtitan does not name.

    Products in fp8 are here too: torchtitan sets them in its own config.
    """
    costs, notes = job.costs, job.notes
    if _named_config(costs) is None:
        notes["model"] = {
            item.name: getattr(costs.model, item.name)
            for item in fields(costs.model)
            if getattr(costs.model, item.name) != item.default
        }
    if costs.layout.fp8 != "none":
        notes["fp8"] = {name: getattr(costs.layout, name) for name in FP8_KEYS}
    return notes


def _named_config(costs: DerivedCosts) -> tuple[str, str] | None:
    """Return module and config of torchtitan with this model and no quantization; None if it has none."""
    for module, configs in CONFIGS.items():
        for name, options in configs.items():
            sizes = MODELS[module][options["flavor"]]
            plain = not {"model.converters", "parallelism.expert_parallel_comm_backend"} & options.keys()
            if plain and costs.model == Model(**sizes, sequence=costs.model.sequence):
                return module, name
    return None


def torchtitan_faults(costs: DerivedCosts, schedule: ScheduleColumns, _microbatches: int = 0) -> Iterator[str]:
    """Yield what torchtitan rejects or runs in another way, each with what to change."""
    layout, model = costs.layout, costs.model
    if model.prediction_layers:
        yield f"model.prediction_layers={model.prediction_layers}: it has no prediction modules"
    if layout.chosen("optimizer_bytes") != 12:
        yield f"layout.optimizer_bytes={layout.chosen('optimizer_bytes')}: its weights and moments are in fp32; use 12"
    if layout.distributed_optimizer and not layout.sharded:
        yield "layout.distributed_optimizer: it shards weights too (layout.sharded=true), or nothing"
    if layout.context > 1 and not layout.sharded:
        yield f"layout.context={layout.context}: it shards weights over context x data; set layout.sharded=true"
    if layout.data % layout.replicas:
        yield f"layout.replicas={layout.replicas}: replicas divide the {layout.data} data-parallel GPUs"
    levels = {layout.recompute} if isinstance(layout.recompute, str) else {"one per stage"}
    if not all(map(POLICY.arguments, levels)):
        yield f"layout.recompute={', '.join(levels)}: all blocks run none, full or alternate (its selective policy)"
    for key in ("recompute_stages", "recompute_blocks"):
        if levels != {"none"} and getattr(layout, key) is not None:
            yield f"layout.{key}={getattr(layout, key)}: all blocks recompute, or none; leave it out"
    empty = [stage for stage, layers in enumerate(costs.stages(schedule.num_stages)) if not layers]
    if empty:
        yield f"layout.partition: stage {empty[0]} has no layer, but its options name each stage's; give it one"
    dense = layout.context * layout.tensor * (layout.data if layout.sharded else 1)
    tokens, chunks = model.sequence // layout.context, layout.chosen("loss_chunks")
    if tokens % chunks:
        yield f"layout.loss_chunks={chunks}: it must divide the {tokens} tokens of a sequence on a GPU; use 1"
    if model.experts and layout.split_experts > 1:
        yield f"layout.expert_tensor={layout.split_experts}: each GPU has whole experts; set it to 1"
    if dense % layout.expert:
        instead = f"use {math.gcd(dense, layout.expert)}" + ", or layout.sharding=weights" * (not layout.sharded)
        yield f"layout.expert={layout.expert}: must divide context x tensor x sharded data = {dense}; {instead}"
    if layout.sharded and layout.data * layout.context <= layout.replicas:
        yield "layout.sharding: data x context / replicas is 1 GPU, which shards nothing; use none"
    if model.key_value_heads % layout.tensor:
        yield f"layout.tensor={layout.tensor}: must divide the {model.key_value_heads} key-value heads"
    if model.tied_embeddings and schedule.devices > 1:
        yield "model.tied_embeddings: a pipeline splits embedding and head; set it to false"
    parts = (layout.tensor if layout.sequence_parallel else 1) * (2 * layout.context if layout.context > 1 else 1)
    if model.sequence % parts:
        yield f"model.sequence={model.sequence}: tensor and context groups need a multiple of {parts}"
    if layout.fp8_dispatch or layout.chosen("expert_exchange") != "all-to-all":
        yield "layout.expert_exchange: its flags set all-to-all in bf16 only"


def _flags(job: Launch, version: str) -> Iterator[str]:
    costs, layout, schedule = job.costs, job.costs.layout, job.schedule
    pipelined = schedule.devices > 1
    yield from _batch_flags(costs, schedule.microbatches_of_a_step, pipelined, version)
    yield from job.flags(*ROWS["groups"])
    yield f"--parallelism.data_parallel_shard_degree {layout.data // layout.replicas if layout.sharded else 1}"
    yield f"--parallelism.data_parallel_replicate_degree {layout.replicas if layout.sharded else layout.data}"
    yield from job.flags(*ROWS["expert"])
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield "--parallelism.no-enable-sequence-parallel"
    if layout.sharded:
        yield from job.flags(*ROWS["reshard"])
    yield from job.flags(*ROWS["loss"])
    if pipelined or layout.expert > 1:
        yield "--training.disable_cuda_graphs"
    compiled = {"model": layout.chosen("fused"), "loss": layout.fuses_loss}
    if parts := [name for name, is_compiled in compiled.items() if is_compiled]:
        yield "--compile.enable"
        yield f"--compile.components {','.join(parts)}"
        if "model" in parts and layout.tensor > 1 and layout.chosen("overlap_tensor"):
            yield "--compile.enable_async_tensor_parallel"
    else:
        yield "--compile.no-enable"
    if pipelined:
        yield f"--{CLASS.flag} {_class(schedule) or _placement_class(schedule)}"
        if _class(schedule) is None:
            yield f"--parallelism.pipeline_parallel_schedule_csv {CSV_FILE}"
        yield from _partition_flags([stage.get("block", 0) for stage in costs.stages(schedule.num_stages)])
    yield f"activation-checkpoint:{POLICY.arguments(layout.recompute)[0]}"


def _batch_flags(costs: DerivedCosts, microbatches: int, pipelined: bool, version: str) -> Iterator[str]:
    """Yield the flags for sequence and batch: since 0.3.0, main counts tokens in place of sequences."""
    layout, sequence = costs.layout, costs.model.sequence
    size, sequences = layout.microbatch_size, layout.microbatch_size * microbatches * layout.data
    if version == "main":
        yield f"--training.max_context_length {sequence}"
        yield f"--training.num_tokens_per_microbatch_per_dp_rank {size * sequence}"
        yield f"--training.num_tokens_per_train_step {sequences * sequence}"
        yield from [f"--parallelism.num_pp_microbatches {microbatches}"] * pipelined
    else:
        yield f"--training.seq_len {sequence}"
        yield f"--training.local_batch_size {size * (microbatches if pipelined else 1)}"
        yield f"--training.global_batch_size {sequences}"
        yield from [f"--parallelism.pipeline_parallel_microbatch_size {size}"] * pipelined


def _partition_flags(blocks: Sequence[int]) -> Iterator[str]:
    """Yield the flags for the blocks of each stage: by number if torchtitan's own split makes them, or by name."""
    for first, last in ((1, 1), (0, 0), (0, 1), (1, 0)):
        total = sum(blocks) + first + last
        per_stage = -(-total // len(blocks))
        if split_of(sum(blocks), len(blocks), first, last) == [*blocks] and -(-total // per_stage) == len(blocks):
            yield f"--parallelism.pipeline_parallel_layers_per_stage {per_stage}"
            yield f"--parallelism.pipeline_parallel_first_stage_less_layers {first}"
            yield f"--parallelism.pipeline_parallel_last_stage_less_layers {last}"
            return
    parts, start = [], 0
    for count in blocks:
        parts.append([f"layers.{block}" for block in range(start, start + count)])
        start += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    yield f"--parallelism.module_fqns_per_model_part {' '.join(map(','.join, parts))}"


def _placement_class(schedule: ScheduleColumns) -> str | None:
    """Return a class that places the stages as the schedule does, for a CSV file; None if there is none."""
    lists, devices = schedule.compute, schedule.devices
    stages = lists.num_stages // devices
    homes = {(int(device), int(stage)) for device, stage in lists.holdings}
    if homes == {(stage % devices, stage) for stage in range(lists.num_stages)}:
        return "1F1B" if stages == 1 else "Interleaved1F1B"
    if stages == 2 and homes == {(min(stage, 2 * devices - 1 - stage), stage) for stage in range(lists.num_stages)}:
        return "ZBVZeroBubble"
    return None


def pytorch_fault(schedule: Schedule) -> str | None:
    """Return why PyTorch's runtime cannot run a schedule, or None if it can; `Schedule.check` has the rules."""
    try:
        schedule.check(pytorch=True)
    except ScheduleError as error:
        return error.faults[0]
    return None


def _class(schedule: ScheduleColumns) -> str | None:
    """Return torchtitan's name of the class of PyTorch that runs exactly these lists, or None."""
    name, lists = schedule.name, schedule.compute
    if schedule.devices == 1:
        return "1F1B"
    if name not in CLASSES:
        return None
    family, stages = find_family(name), lists.num_stages // lists.devices
    given = {} if family.fixed_stages else {"stages_per_device": stages}
    try:
        class_lists = family.columns(lists.devices, lists.microbatches, **given, **FAMILY_OPTIONS.get(name, {}))
    except BuildError:
        return None
    return CLASSES[name] if lists == class_lists else None
