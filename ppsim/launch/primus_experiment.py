"""Primus: a config as the YAML of its experiment, and an experiment as a config, by the flags of Megatron-LM.

Every rule follows AMD-AGI/Primus at the version of `OPTIONS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from shlex import split
from typing import Any, TypeVar

from ppsim.base.documents import read_yaml
from ppsim.base.errors import ConfigError, shown
from ppsim.config import Config
from ppsim.costs.derive import DerivedCosts
from ppsim.frameworks import megatron, options_of, primus
from ppsim.frameworks.primus import ALGORITHMS, OPTIONS, OTHER_ORDERS
from ppsim.launch import megatron_script
from ppsim.launch.reading import ENDING, Flags, Reading, differences, notes_in, notes_of, notes_text, sort_unread
from ppsim.launch.shell import UNRESOLVED
from ppsim.run.schedules import Schedule

T = TypeVar("T")
FLAGS: Mapping[str, str] = {**OPTIONS["flags"], **OPTIONS["negated"]}
KEYS = {FLAGS.get(key, key.replace("_", "-")): key for key in options_of(OPTIONS)}
BASE = "language_model"  # the model preset that holds no model's sizes
LISTS = ("recompute_modules", "window_size")
# A split backward needs them: primus/backends/megatron/core/pipeline_parallel/zerobubble/README.md.
SPLIT = {"patch_primus_pipeline": True, "no_persist_layer_norm": True, "create_attention_mask_in_dataloader": False}
RUN = {"mock_data": True, "train_iters": 20, "lr": 1e-4, "lr_warmup_iters": 2, "finetune": False}
SHAPES = {"v-half": 2, "v-min": 2, "zb-v": 2, "1f1b": 1, "zb-h1": 1}  # stages per device


def experiment_text(config: Config, version: str = OPTIONS["version"]) -> str:
    """Return the YAML of an experiment; ConfigError names what Primus cannot run."""
    config, costs, schedule = _checked(config)
    gpus, name = costs.gpus(schedule.devices), str(config.data.get("name", "A config")).replace("\n", " ")
    nodes, keys = -(-gpus // costs.cluster.gpus_per_node), _read_back(config, costs, schedule, version) | RUN
    return f"""\
# {name}: {gpus} GPUs, {schedule.name}; keys of Primus {version}
# ./runner/primus-cli slurm srun -N {nodes} -- train pretrain --config THIS_FILE
{notes_text({**notes_of(config), "gpus": gpus})}
work_group: ppsim
user_name: ppsim
exp_name: {re.sub(r"[^0-9A-Za-z]+", "-", name)}
workspace: ./output
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: {BASE}.yaml
    overrides:
""" + "".join(f"      {line}\n" for line in _lines(keys))


def experiment_keys(config: Config, version: str = OPTIONS["version"]) -> list[str]:
    """Return the overrides of `experiment_text` as lines; ConfigError names what Primus cannot run."""
    return _lines(_read_back(*_checked(config), version))


def _lines(keys: Mapping[str, Any]) -> list[str]:
    return [f"{key}: {json.dumps(value)}" for key, value in keys.items()]


def _checked(config: Config) -> tuple[Config, DerivedCosts, Schedule]:
    return _renamed(lambda: megatron_script.checked(config, "Primus", primus.SCHEDULES, _reasons))


def _read_back(config: Config, costs: DerivedCosts, schedule: Schedule, version: str) -> dict[str, Any]:
    """Return the overrides, once they read back as what was simulated; ConfigError names what would differ."""
    words = split(" ".join(megatron_script.flags_of(config, costs, schedule, megatron.OPTIONS["version"])))
    flags = Flags.of(words).arguments
    keys = {KEYS.get(flag, flag.replace("-", "_")): _value(flag, words) for flag, words in flags.items()}
    if schedule.name in ALGORITHMS:
        keys |= {**SPLIT, "pp_algorithm": ALGORITHMS[schedule.name]}
    preset = {**OPTIONS["models"][BASE], **OPTIONS["defaults"]}
    keys |= {
        key: not preset[key] for flag, words in _flags(preset).items() if not words and (key := KEYS[flag]) not in keys
    }
    reading = _read(keys, {}, notes_of(config), costs.gpus(schedule.devices))
    if found := differences(config, schedule, reading.config(place=config.path)):
        raise ConfigError("Primus cannot run this config: " + "; ".join(found))
    if lacking := keys.keys() - options_of(OPTIONS).keys():
        raise ConfigError(f"Primus {version} cannot run this config: it has no {', '.join(sorted(lacking))}")
    return keys


def _reasons(costs: DerivedCosts, schedule: Schedule) -> Iterator[str]:
    """Yield what Primus rejects beyond Megatron-LM, each with what to change."""
    model, layout, p = costs.model, costs.layout, schedule.devices
    if model.pattern:
        yield "model.pattern: ppsim writes its hybrid models for Megatron-LM only"
    if schedule.name not in ALGORITHMS:
        return
    is_v = SHAPES[schedule.name] == 2
    least = 2 * p - 1 if is_v else p  # with fewer, its lists are not those of the paper
    if p == 1:
        yield f"schedule.devices=1: {schedule.name} needs at least 2; use 1f1b"
    if schedule.microbatches < least:
        yield f"schedule.microbatches={schedule.microbatches}: its {ALGORITHMS[schedule.name]} needs at least {least}"
    if layout.chosen("overlap_data") and layout.data * layout.context > 1:
        yield "layout.overlap_data: its split backward needs overlap_grad_reduce: false; set it to false"
    if layout.chosen("overlap_tensor") and layout.tensor > 1 and layout.sequence_parallel:
        yield "layout.overlap_tensor: its split backward goes with no tp_comm_overlap; set it to false"
    if layout.recompute != "none":  # primus/core/projection/config_validation.py
        yield f"layout.recompute={layout.recompute}: its W keep the inputs that a recompute frees; set it to none"
    if layout.reduces_blocks or layout.sharded:
        yield "layout.sharding: its split backward goes with no FSDP; use optimizer"
    if is_v and model.prediction_layers:
        yield f"model.prediction_layers={model.prediction_layers}: its V has no prediction modules"
    first = sum(stage.get("block", 0) for stage in costs.stages(schedule.num_stages)[:p])
    if is_v and (model.window_period or model.dense_layers > first):  # a layout string numbers them device by device
        yield "model.window_period, model.dense_layers: it numbers the blocks of a V's second half in another order"


def _value(flag: str, words: list[str]) -> Any:
    """Return the value of a key from the arguments of its flag."""
    key = KEYS.get(flag, flag.replace("-", "_"))
    if not words:
        return key not in OPTIONS["negated"]
    values = [_scalar(word) for word in (words[0].split(",") if key == "window_size" else words)]
    return values if key in LISTS else values[0]


def _scalar(text: str) -> Any:
    for pattern, kind in ((r"-?[0-9]{1,15}", int), (r"[0-9.]{1,9}", float)):
        if re.fullmatch(pattern, text):
            return kind(text)
    return {"true": True, "false": False, "null": None}.get(text.lower(), text)


def from_experiment(text: str, gpus: int | None = None) -> Reading:
    """Return the content of an experiment's YAML; ConfigError for values that cannot be read."""
    document = _resolved(read_yaml(text, "the experiment").value)
    modules = document.get("modules") if isinstance(document, dict) else None
    found = (
        [one for one in (modules or {}).values() if isinstance(one, dict)] if isinstance(modules, dict | None) else []
    )
    if not found:
        raise ConfigError("holds no modules: pre_trainer: of Primus; give the YAML of an experiment")
    module = found[0]
    if module.get("framework", "megatron") != "megatron":
        raise ConfigError(f"framework {shown(module['framework'])}: only megatron is read here")
    name = str(module.get("model", BASE)).removesuffix(".yaml")
    if name not in OPTIONS["models"]:
        known = ", ".join(sorted({*OPTIONS["models"]} - {BASE}))
        raise ConfigError(
            f"model {shown(name)}: its sizes are not known here, only those of {known}; write `model: {BASE}.yaml` and the sizes into overrides"
        )
    overrides = module.get("overrides") or {}
    if not isinstance(overrides, dict):
        raise ConfigError("its overrides must be keys with values, such as micro_batch_size: 1")
    keys = {str(key): value for key, value in overrides.items()}
    notes = notes_in(text) or dict(ENDING)
    gpus = gpus or notes.pop("gpus", None)
    return _renamed(lambda: _read(keys, OPTIONS["models"][name], notes, gpus))


def _read(keys: Mapping[str, Any], model: Mapping[str, Any], notes: Mapping[str, Any], gpus: int | None) -> Reading:
    """Return overrides over the presets as the sections of a config."""
    values = {**OPTIONS["models"][BASE], **model, **OPTIONS["defaults"], **keys}
    if values.get("tensor_model_parallel_size") == 1:
        values["sequence_parallel"] = False
    flags, reading = Flags(_flags(values)), Reading("Primus", OPTIONS["version"])
    if not flags.has("group-query-attention"):
        flags.arguments.pop("num-query-groups", None)
    if flags.has("use-turbo-deepep"):
        flags.arguments["moe-token-dispatcher-type"] = ["flex"]
    megatron_script.read(flags, {"framework": "primus", **notes}, gpus, reading)
    _read_order(flags, reading)
    own = Flags({key: [] for key in keys}, {KEYS.get(flag, flag) for flag in flags.used}, sign="")
    sort_unread(own, reading, OPTIONS, primus.LEFT_OUT_GROUPS, primus.LEFT_OUT)
    reading.assumed, reading.unknown = (list(map(_in_keys, one)) for one in (reading.assumed, reading.unknown))
    return reading


def _read_order(flags: Flags, reading: Reading) -> None:
    """Read which order Primus runs in the place of Megatron-LM's."""
    schedule = reading.data["schedule"]
    algorithm, setup = flags.text("pp-algorithm"), flags.text("zero-bubble-v-schedule-mem-setup")
    is_v = flags.has("zero-bubble-v-schedule")
    if flags.has("patch-zero-bubble"):
        name = {"half": "v-half", "min": "v-min"}.get(str(setup), "zb-v") if is_v else "zb-h1"
        reading.unknown.append(f"patch_zero_bubble: its order follows measured times; priced as {name}")
    elif flags.has("patch-primus-pipeline"):
        orders = {theirs: ours for ours, theirs in (ALGORITHMS | OTHER_ORDERS).items()}
        name = orders.get(str(algorithm), "zb-h1")
        if name in ("v-half", "v-min") or algorithm not in orders:
            reading.unknown.append(f"pp_algorithm {algorithm}: its order differs; priced as {name}")
    else:
        return
    stages = schedule.pop("stages_per_device", 1)
    if stages != SHAPES.get(name, stages):
        raise ConfigError(
            f"pp_algorithm {algorithm} needs num_virtual_stages_per_pipeline_rank {SHAPES[name]}, not {stages}"
        )
    schedule["name"] = name
    if name not in SHAPES:
        schedule["stages_per_device"] = stages


def _flags(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return values of keys as flags of Megatron-LM."""
    preset, found = {**OPTIONS["models"][BASE], **OPTIONS["defaults"]}, {}
    for key, value in values.items():
        flag = FLAGS.get(key, key.replace("_", "-"))
        if isinstance(preset.get(key), bool) and value in (0, 1):
            value = bool(value)
        if isinstance(value, bool):
            if value != (key in OPTIONS["negated"]):
                found[flag] = []
        elif value is not None:
            found[flag] = (
                [",".join(map(str, value))]
                if key == "window_size"
                else list(map(str, value))
                if isinstance(value, list)
                else [str(value)]
            )
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


def _renamed(call: Callable[[], T]) -> T:
    """Return what a call returns; its errors name keys of Primus in place of flags."""
    try:
        return call()
    except ConfigError as error:
        raise ConfigError(_in_keys(str(error))) from None


def _in_keys(text: str) -> str:
    return re.sub(r"--([a-z0-9][a-z0-9-]*)", lambda one: KEYS.get(one[1], one[0]), text)
