"""Primus: a config as the YAML of its experiment, and an experiment as a config, by the flags of Megatron-LM.

Every rule follows AMD-AGI/Primus at the version of `OPTIONS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from shlex import split
from typing import Any

from ppsim.base.documents import read_yaml
from ppsim.base.errors import ConfigError, shown
from ppsim.costs.derive import DerivedCosts
from ppsim.frameworks import megatron, options_of, primus
from ppsim.frameworks.primus import ALGORITHMS, OPTIONS, ORDERS
from ppsim.launch import megatron_model, megatron_script
from ppsim.launch.reading import MARK, Flags, Launch, Reading, cannot_run, effective, idle_overlaps, notes_in
from ppsim.launch.shell import UNRESOLVED
from ppsim.schedule.columns import ScheduleColumns

FLAGS: Mapping[str, str] = {**OPTIONS["flags"], **OPTIONS["negated"]}
KEYS = {FLAGS.get(key, key.replace("_", "-")): key for key in options_of(OPTIONS)}
KEYS |= {megatron_script.GRAPHED: "cuda_graph_scope"}  # it has Megatron-LM's older name
BASE = "language_model"  # the preset below every model's
PRESETS = {**OPTIONS["models"][BASE], **OPTIONS["defaults"]}
LISTS = ("recompute_modules", "window_size", "cuda_graph_scope")
# A split backward needs them: primus/backends/megatron/core/pipeline_parallel/zerobubble/README.md.
SPLIT = {"patch_primus_pipeline": True, "no_persist_layer_norm": True, "create_attention_mask_in_dataloader": False}
HARDWARE = {"device": "MI300X", "link": "Infinity Fabric", "network": "InfiniBand NDR"}
DEFAULT_GPUS = 8  # runner/helpers/envs/base_env.sh
RUN = {"mock_data": True, "train_iters": 20, "lr": 1e-4, "lr_warmup_iters": 2, "finetune": False}


def experiment_text(job: Launch, version: str, keys: list[str]) -> str:
    """Return the YAML of an experiment."""
    hosts, each = job.hosts
    return f"""\
{job.heading(f"keys of Primus {version}")}
# GPUS_PER_NODE={each} ./runner/primus-cli slurm srun -N {hosts} -- train pretrain --config THIS_FILE
{MARK}{json.dumps({**job.notes, "gpus": job.gpus})}
work_group: ppsim
user_name: ppsim
exp_name: {re.sub(r"[^0-9A-Za-z]+", "-", job.name)}
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: {BASE}.yaml
    overrides:
""" + "".join(f"      {line}\n" for line in [*keys, *_lines(RUN)])


def _lines(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}: {json.dumps(value)}" for key, value in keys.items()]


def experiment_keys(job: Launch, version: str) -> list[str]:
    """Return the overrides as lines, once they read back as what was simulated; ConfigError names what would differ."""
    keys = _keys(PRESETS, megatron_script.flags_of(job, megatron.OPTIONS["version"]))
    if job.schedule.name in ALGORITHMS:
        keys |= {**SPLIT, "pp_algorithm": ALGORITHMS[job.schedule.name]}
    if keys.get("moe_grouped_gemm"):
        keys |= {"enable_primus_turbo": True, "use_turbo_grouped_gemm": True}
    reading = _read(keys, {}, job.notes, job.gpus)
    job.check("Primus", reading)
    cannot_run(f"Primus {version}", [f"it has no {key}" for key in sorted(keys.keys() - options_of(OPTIONS).keys())])
    return _lines(keys)


def model_keys(job: Launch, version: str) -> list[str]:
    """Return the overrides of a job's model as lines."""
    keys = _keys(OPTIONS["models"][BASE], megatron_model.model_flags(job, megatron.OPTIONS["version"]))
    of_layout = {KEYS.get(row.flag) for row in megatron_model.ROWS["layout"]}  # a model's preset has some of them
    return _lines({key: value for key, value in keys.items() if key not in of_layout})


def _keys(presets: Mapping[str, Any], flags: Iterable[str]) -> dict[str, Any]:
    """Return flags as overrides, after those that turn off flags of the presets."""
    keys = dict(_key(flag, None) for flag, words in _flags(presets).items() if not words)
    return keys | dict(_key(flag, words) for flag, words in Flags.of(split(" ".join(flags))).arguments.items())


def _key(flag: str, words: list[str] | None) -> tuple[str, Any]:
    """Return the key and value for a flag with its arguments, or for a flag that is not given (None)."""
    key = KEYS.get(flag, flag.replace("-", "_"))
    if not words:
        is_given = words is not None
        return key, is_given != (key in OPTIONS["negated"])
    values = [_scalar(word) for word in (words[0].split(",") if key == "window_size" else words)]
    return key, values if key in LISTS else values[0]


def primus_faults(costs: DerivedCosts, schedule: ScheduleColumns, microbatches: int) -> Iterator[str]:
    """Yield what Primus rejects, with what Megatron-LM does, each with what to change."""
    model, layout, p = costs.model, costs.layout, schedule.devices
    yield from map(_flags_as_keys, megatron_script.megatron_faults(costs, schedule, microbatches))
    if model.pattern:
        yield "model.pattern: ppsim writes hybrid models for Megatron-LM only"
    if schedule.name not in ALGORITHMS:
        return
    is_v = schedule.num_stages > p
    minimum = 2 * p - 1 if is_v else p  # with fewer it runs more microbatches, or another order
    if p == 1:
        yield f"schedule.devices=1: {schedule.name} needs at least 2; use 1f1b"
    if microbatches < minimum:
        yield f"schedule.microbatches={microbatches}: its {ALGORITHMS[schedule.name]} needs at least {minimum}"
    for key, (value, reason) in primus.SPLIT_NEEDS.items():
        if effective(layout, key) != value and key not in idle_overlaps(layout):
            yield f"layout.{key}={effective(layout, key)}: its split backward {reason}; set it to {str(value).lower()}"
    if is_v and model.prediction_layers:
        yield f"model.prediction_layers={model.prediction_layers}: its V has no prediction modules"
    first_blocks = sum(stage.get("block", 0) for stage in costs.stages(schedule.num_stages)[:p])
    if is_v and (model.window_period or model.dense_layers > first_blocks):
        yield "model: in a V it numbers the blocks of the way back in another order, but not all blocks are equal"


def from_experiment(text: str, gpus: int | None = None) -> Reading:
    """Return the content of an experiment's YAML; ConfigError for values that cannot be read."""
    try:
        return _experiment(text, gpus)
    except ConfigError as error:
        raise ConfigError(_flags_as_keys(str(error))) from None


def _experiment(text: str, gpus: int | None) -> Reading:
    document, notes = _resolved(read_yaml(text, "its YAML").value), notes_in(text)
    modules = document.get("modules") if isinstance(document, dict) else None
    module = next(iter(modules.values()), None) if isinstance(modules, dict) else None
    keys = module.get("overrides") or {} if isinstance(module, dict) else None
    if not isinstance(module, dict) or not isinstance(keys, dict):
        raise ConfigError("holds no `modules: pre_trainer: overrides:` of Primus; give the YAML of an experiment")
    if module.get("framework", "megatron") != "megatron":
        instead = "give its overrides as that framework's own file, such as torchtitan's TOML"
        raise ConfigError(f"framework {shown(module['framework'])}: only megatron is read here; {instead}")
    model = str(module.get("model", BASE)).removesuffix(".yaml")
    if model not in OPTIONS["models"]:
        near = " or ".join(get_close_matches(model, {*OPTIONS["models"]} - {BASE}, n=2)) or "none"
        raise ConfigError(f"model {shown(model)} is not known here (near: {near}); use {BASE} with sizes as overrides")
    own = {str(key): value for key, value in keys.items()}
    noted = notes.pop("gpus", None)
    return _read(own, OPTIONS["models"][model], notes, gpus or noted)


def _read(keys: Mapping[str, Any], model: Mapping[str, Any], notes: Mapping[str, Any], gpus: int | None) -> Reading:
    """Return overrides over the presets as the sections of a config."""
    values = {**PRESETS, **{key: value for key, value in model.items() if key not in OPTIONS["defaults"]}, **keys}
    flags, reading = Flags(_flags(values)), Reading("Primus", OPTIONS["version"], HARDWARE, DEFAULT_GPUS)
    if flags.number("tensor-model-parallel-size") == 1:
        flags.arguments.pop("sequence-parallel", None)
    window, alternates = flags.number("sink-sliding-window", 0), flags.has("sink-window-even-layers-only")
    if flags.has("use-sink-attention") and window:
        flags.arguments |= {"window-size": [f"{window},0"], "window-attn-skip-freq": ["2" if alternates else "0"]}
    if sync_free := flags.number("turbo-sync-free-moe-stage", 0):  # patches/args/rocm_arg_validation.py
        names = ("moe-use-fused-router-with-aux-score", "use-turbo-deepep", "use-turbo-grouped-gemm")
        flags.arguments |= {name: [] for name in names[: 1 if sync_free == 1 else None]}
    if flags.has("moe-use-fused-router-with-aux-score"):
        flags.arguments["moe-router-fusion"] = []
    if flags.has("use-turbo-deepep"):
        flags.arguments["moe-token-dispatcher-type"] = ["flex"]
    if flags.has("moe-grouped-gemm") and not flags.has("use-turbo-grouped-gemm", "moe-use-legacy-grouped-gemm"):
        del flags.arguments["moe-grouped-gemm"]  # Transformer Engine's starts one product after the other
    cut = flags.arguments.get("pipeline-model-parallel-layout")
    if cut and "m" not in cut[0] and "mtp_num_layers" not in keys and flags.arguments.pop("mtp-num-layers", None):
        words = "the layout has no m, with which Megatron-LM rejects the modules of the model's preset"
        reading.assumed.append(f"mtp_num_layers 0: {words}")
    megatron_script.read(flags, {"framework": "primus", **notes}, gpus, reading)
    _read_order(flags, reading)
    _read_recomputed_layers(flags, reading)
    own = Flags(
        {key: [] for key, value in keys.items() if value is not None},
        {KEYS.get(flag, flag) for flag in flags.used},
        sign="",
    )
    reading.sort(own, [key for key, value in keys.items() if value is False and key not in OPTIONS["negated"]])
    reading.assumed, reading.unknown = (list(map(_flags_as_keys, one)) for one in (reading.assumed, reading.unknown))
    return reading


def _read_order(flags: Flags, reading: Reading) -> None:
    """Read the order that Primus runs in the place of Megatron-LM's."""
    schedule, orders = reading.data["schedule"], {theirs: ours for ours, theirs in ORDERS.items()}
    algorithm, setup = flags.text("pp-algorithm") or "", flags.text("zero-bubble-v-schedule-mem-setup")
    is_v = flags.has("zero-bubble-v-schedule")
    if flags.has("patch-zero-bubble"):
        schedule["name"] = orders.get(f"v-{setup}", "zb-v") if is_v else "zb-h1"
        reading.unknown.append(f"patch_zero_bubble: its order follows measured times; priced as {schedule['name']}")
    elif flags.has("patch-primus-pipeline"):
        schedule["name"] = orders.get(algorithm, "zb-h1")
        if schedule["name"] not in primus.SCHEDULES or algorithm not in orders:
            reading.unknown.append(f"pp_algorithm {algorithm}: its order differs; priced as {schedule['name']}")
    schedule.setdefault("stages_per_device", 1)


def _read_recomputed_layers(flags: Flags, reading: Reading) -> None:
    """Read which blocks recompute: of each stage none, or equally many in all stages that have some."""
    schedule, first, counts = reading.data["schedule"], 0, list[int]()
    if not (ids := {*map(int, re.findall(r"\d+", flags.text("recompute-layer-ids") or ""))}):
        return
    for stage in Launch(reading.config()).costs.stages(schedule["devices"] * schedule["stages_per_device"]):
        counts.append(len(ids & {*range(first, first := first + stage.get("block", 0))}))
    levels, most = ["full" if count else "none" for count in counts], max(counts)
    reading.data["layout"] |= {"recompute": levels, "recompute_blocks": most}
    if {*counts} - {0, most}:
        reading.unknown.append(f"recompute_layer_ids: priced as {most} layers of each stage that has any")


def _flags(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return values of keys as flags of Megatron-LM with their arguments."""
    found: dict[str, list[str]] = {}
    for key, value in values.items():
        if isinstance(value, bool) or (isinstance(PRESETS.get(key), bool) and value in (0, 1)):
            words = [] if bool(value) != (key in OPTIONS["negated"]) else None
        else:
            words = None if value is None else [str(one) for one in (value if isinstance(value, list) else [value])]
        if words is not None:
            joined = {"window_size": ",".join(words), "window_attn_skip_freq": f"[{','.join(words)}]"}
            found[FLAGS.get(key, key.replace("_", "-"))] = [joined[key]] if key in joined and words[1:] else words
    return found


def _resolved(value: Any) -> Any:
    """Return a document with `${NAME:default}` replaced by the defaults."""
    if isinstance(value, dict):
        return {key: _resolved(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item) for item in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    return _scalar(re.sub(r"\$\{[^:{}]+(?::([^}]*))?\}", lambda one: UNRESOLVED if one[1] is None else one[1], value))


def _scalar(text: str) -> Any:
    for pattern, kind in ((r"-?[0-9]{1,15}", int), (r"[0-9]{1,9}\.[0-9]{1,9}", float)):
        if re.fullmatch(pattern, text):
            return kind(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def _flags_as_keys(text: str) -> str:
    return re.sub(r"--([a-z0-9][a-z0-9-]*)", lambda one: KEYS.get(one[1], one[0]), text)
