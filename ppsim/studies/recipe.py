"""Recipe to run a config: its YAML, and the flags of torchtitan."""

from __future__ import annotations

import io
from typing import Any

from ppsim.base.errors import BuildError, ScheduleError
from ppsim.checks.faults import check_runnable
from ppsim.config import Config
from ppsim.costs.derive import DerivedCosts
from ppsim.frameworks import pytorch
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import find_family


def config_yaml(config: Config) -> str:
    """Return the config as the text of a YAML file that ppsim can read."""
    from ruamel.yaml import YAML

    writer, text = YAML(), io.StringIO()
    writer.default_flow_style = False
    writer.width = 4096
    writer.dump(_without_nulls(dict(config.data)), text)
    return text.getvalue()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


def torchtitan_flags(config: Config, run: Timeline) -> list[str]:
    """Return the flags of torchtitan (torchtitan/config/configs.py); empty without a model or with foreign actions.

    A schedule whose lists no class of PyTorch has is passed as the CSV file that `Schedule.to_csv` writes. Two things
    are in torchtitan's own config, without a flag: the layers of each stage
    (`parallelism.module_fqns_per_model_part`), and products in fp8.
    """
    costs = config.costs
    if not isinstance(costs, DerivedCosts) or pytorch_fault(run):
        return []
    layout, schedule = costs.layout, run.schedule
    known = pytorch_class(schedule)
    recompute = layout.recompute if isinstance(layout.recompute, str) else "full"
    return [
        f"--parallelism.tensor_parallel_degree {layout.tensor}",
        f"--parallelism.pipeline_parallel_degree {schedule.devices}",
        f"--parallelism.context_parallel_degree {layout.context}",
        f"--parallelism.data_parallel_shard_degree {layout.data if layout.sharded else 1}",
        f"--parallelism.data_parallel_replicate_degree {1 if layout.sharded else layout.data}",
        *([f"--parallelism.expert_parallel_degree {layout.expert}"] if layout.expert > 1 else []),
        f"--parallelism.num_pp_microbatches {schedule.microbatches_of_a_step}",
        f"--training.max_context_length {costs.model.sequence}",
        f"--training.num_tokens_per_microbatch_per_dp_rank {layout.microbatch_size * costs.model.sequence}",
        f"--parallelism.pipeline_parallel_schedule {known or '_PipelineScheduleRuntime'}",
        *([] if known else ["--parallelism.pipeline_parallel_schedule_csv schedule.csv"]),
        f"activation-checkpoint:{recompute}",
    ]


def pytorch_fault(run: Timeline) -> str | None:
    """Return why PyTorch's runtime cannot run a schedule, or None if it can; `Schedule.check` has the rules."""
    try:
        check_runnable(run.schedule, pytorch=True)
    except ScheduleError as error:
        return error.faults[0]
    return None


def pytorch_class(schedule: ScheduleColumns) -> str | None:
    """Return torchtitan's name of the class of PyTorch that runs exactly these lists, or None."""
    name, lists = schedule.name, schedule.compute
    if name not in pytorch.CLASSES:
        return None
    family, stages = find_family(name), lists.num_stages // lists.devices
    given = {} if family.fixed_stages else {"stages_per_device": stages}
    try:
        theirs = family.columns(lists.devices, lists.microbatches, **given, **pytorch.OPTIONS.get(name, {}))
    except BuildError:
        return None
    return pytorch.CLASSES[name] if lists == theirs else None
