"""Megatron-LM's flags of a model, printed and read: rows of keys and flags, and patterns of hybrid models.

Sources: megatron/training/arguments.py and megatron/core/models/hybrid at the version of `OPTIONS`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from itertools import groupby
from shlex import quote
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.model import Model
from ppsim.frameworks import options_of
from ppsim.frameworks.megatron import OPTIONS
from ppsim.launch.reading import Flags, Launch, Row
from ppsim.launch.shell import computed
from ppsim.schedule.columns import ScheduleColumns

ROWS = Row.tables(OPTIONS)
NEEDED = {"num-layers": 32, "hidden-size": 4096, "num-attention-heads": 32, "seq-length": 4096}  # with examples
SIZES = "MGD"  # sublayers whose states have sizes of their own: Mamba-2, gated delta nets, indexed sparse attention
LETTERS = "MG*D+-E"  # its letters of sublayers: megatron/core/models/hybrid/hybrid_layer_allocation.py, Symbols
STREAMS = "enable-mhc-connections"
VARIANT = "experimental-attention-variant"  # of core/models/gpt/experimental_attention_variant_module_specs.py
PATTERN = "hybrid-layer-pattern"  # before core 0.17: --hybrid-override-pattern, without stages


def is_hybrid(model: Model) -> bool:
    """Return whether pretrain_hybrid.py trains a model: its layers are single sublayers, as its pattern names them.

    pretrain_gpt.py trains blocks of two sublayers: attention or a gated delta net, then an MLP or experts.
    """
    mixers = "G+" if model.key_value_rank else "G*"
    return bool(model.pattern) and not all(re.fullmatch(f"[{mixers}][-E]", one) for one in model.block_letters)


def training_program(model: Model, version: str) -> str:
    """Return the script that trains a model, with the specification of a hybrid's layers."""
    if not is_hybrid(model):
        return "pretrain_gpt.py"
    if version == "core 0.17.1":
        return "pretrain_mamba.py --spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
    return "pretrain_hybrid.py --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"


def model_faults(costs: DerivedCosts, schedule: ScheduleColumns) -> Iterator[str]:
    """Yield the faults of a model for Megatron-LM: blocks of a pattern, prediction modules and their losses."""
    model, layout = costs.model, costs.layout
    if lacking := sorted({*model.pattern} - {*LETTERS, *"[]|/"}):
        yield f"model.pattern: Megatron-LM has no letter for {', '.join(lacking)}; it has {LETTERS}"
    elif is_hybrid(model) and "[" in model.pattern:
        yield "model.pattern: a block of several sublayers must be G, * or +, then - or E; else leave out all [ ]"
    elif not is_hybrid(model) and model.prediction_layers and model.prediction_letters != model.block_letters[-1]:
        yield f"model.pattern: its prediction modules are copies of the last block; write /[{model.block_letters[-1]}]"
    if "G" in model.pattern and model.state_groups % (size := layout.tensor * layout.context):
        yield f"model.state_groups={model.state_groups}: must be a multiple of tensor x context = {size}"
    if model.prediction_layers and model.positions == "learned":
        yield "model.positions=learned: prediction modules need rotary"
    if model.experts and model.projection_bias and model.mlp_bias and layout.split_experts > 1:
        yield f"layout.expert_tensor={layout.split_experts}: experts with biases need 1"
    stages = costs.stages(schedule.num_stages)
    with_modules = [number for number, stage in enumerate(stages) if stage.get("prediction")]
    if is_hybrid(model):
        if with_modules and with_modules != [len(stages) - 1]:
            yield "layout.partition: it puts a hybrid's prediction modules on the last stage; write m there"
        return
    cut = costs.megatron_layout(len(stages)) if model.prediction_layers else ""
    if sum(stage.get("head", 0) for stage in stages) > 1:
        yield f"layout.partition={cut}: its parser takes one L, which has all losses; write L once"
    on_first_device = len(stages) - schedule.devices  # its last stage
    is_legal = len(with_modules) == 1 and (with_modules[0] > on_first_device or with_modules[0] == on_first_device == 0)
    if cut and not is_legal:
        yield f"layout.partition={cut}: all m must be in one stage, the last of its device, not on the first device"


def version_faults(costs: DerivedCosts, version: str) -> Iterator[str]:
    """Yield the faults of a model for an older version: __post_init__ of its core/transformer/transformer_config.py."""
    model, tensor = costs.model, costs.layout.tensor
    if version in ("core 0.14.0", "core 0.15.3") and not model.key_value_rank and model.key_value_heads % tensor:
        yield f"copies of key-value heads: {model.key_value_heads} for layout.tensor={tensor}"
    if version == "core 0.14.0" and model.experts and model.projection_bias and model.mlp_bias:
        yield "experts with biases"


def with_flagged_stages(job: Launch) -> Launch:
    """Return a job with its stages where flags have them: as bars of a hybrid's pattern, else as a layout."""
    costs, stages = job.costs, job.schedule.num_stages
    model, layers = costs.model, costs.stage_layers(stages)
    blocks, *modules = model.pattern.split("/")
    partition, cut = costs.megatron_layout(stages), blocks.replace("|", "")
    if is_hybrid(model):
        rest, modules = iter(model.block_letters), modules or [model.prediction_letters] * model.prediction_layers
        cut = "|".join("".join(next(rest) for layer in stage if layer.name == "block") for stage in layers)
        partition = "even"
    ends = {f"layout.{end}_stage_layers": None for end in ("first", "last")}
    pattern = json.dumps("/".join([cut, *modules]))
    return Launch(job.config.changed({"model.pattern": pattern, "layout.partition": partition, **ends}))


def _frequency(blocks: list[bool]) -> str:
    """Return the blocks of a kind as a Python list of ones and zeros, such as ([1]*3+[0]*1)*12."""
    count = len(blocks)
    size = next(size for size in range(1, count + 1) if count % size == 0 and blocks == blocks[:size] * (count // size))
    runs = "+".join(f"[{kind:d}]*{len([*run])}" for kind, run in groupby(blocks[:size]))
    return runs if size == count else f"({runs})*{count // size}"


def model_flags(job: Launch, version: str) -> Iterator[str]:
    """Yield the flags of a job's model with their arguments."""
    model = job.costs.model
    yield from job.flags(*ROWS["model"])
    if model.residual_streams > 1:
        yield f"--{STREAMS} --mhc-num-residual-streams {model.residual_streams}"
    if is_hybrid(model):
        if PATTERN not in options_of(OPTIONS, version):
            raise ConfigError(f"Megatron-LM {version} has no --{PATTERN}; use {OPTIONS['version']}")
        yield f"--{PATTERN} {quote(model.pattern)}"
    elif "G" in model.pattern:
        nets = _frequency(["G" in letters for letters in model.block_letters])
        yield f"--{VARIANT} gated_delta_net --linear-attention-freq {quote(nets)}"
    for letter in [one for one in SIZES if one in model.pattern]:
        yield from job.flags(*ROWS[letter])
    yield f"--max-position-embeddings {model.sequence}"
    yield f"--vocab-size {model.vocabulary}"
    yield "--make-vocab-size-divisible-by 1"
    if model.key_value_rank:
        yield "--multi-latent-attention"
        if model.hidden % model.heads:  # it divides them, though latent attention does not use the quotient
            yield f"--kv-channels {model.head_size}"
        yield from job.flags(*ROWS["latent"])
    else:
        yield from job.flags(*ROWS["attention"])
        if model.key_value_heads != model.heads:
            yield f"--group-query-attention --num-query-groups {model.key_value_heads}"
    if not (model.projection_bias and model.mlp_bias):
        yield "--disable-bias-linear" + " --add-qkv-bias" * model.attention_bias
    if not model.dropout:
        yield "--attention-dropout 0.0"
        yield "--hidden-dropout 0.0"
    yield from job.flags(*ROWS["backend"])
    if model.window:
        yield f"--window-size {model.window - 1},0"
        if model.window_period:
            yield f"--window-attn-skip-freq {model.window_period}"
    if model.experts:
        yield from job.flags(*ROWS["experts"])
        if model.experts_per_token == 1:  # a softmax of one value has no gradient
            yield "--moe-router-pre-softmax"
        if model.shared_experts:
            yield f"--moe-shared-expert-intermediate-size {model.shared_experts * model.expert_ffn}"
        routed = ["E" in letters for letters in model.block_letters]
        if not (is_hybrid(model) or all(routed)):
            yield f"--moe-layer-freq '{_frequency(routed)}'"


def read_model(flags: Flags) -> dict[str, Any]:
    """Return the keys of the section `model` that flags give, without the vocabulary; add own names to forks' flags."""
    _add_own_names(flags.arguments, flags)
    for name, instead in OPTIONS["forks"]["refused"].items():
        if flags.has(name):
            raise ConfigError(f"--{name} is no flag of Megatron-LM: {instead}")
    if flags.text("position-embedding-type") not in (None, "learned_absolute"):  # others have no learned table
        flags.arguments["position-embedding-type"] = ["rope"]
    model, pattern = flags.values(*ROWS["model"]), _read_pattern(flags)
    if pattern:
        model |= {"pattern": pattern, "num_layers": sum(letter in LETTERS for letter in pattern.split("/")[0])}
        model["prediction_layers"] = pattern.count("/") or model["prediction_layers"]
    for row in ROWS["model"]:
        if row.flag in NEEDED and model[row.name] is None:
            example = f"--{row.flag} {NEEDED[row.flag]}"
            raise ConfigError(f"--{row.flag} is missing, and Megatron-LM needs it: add it, as in {example}")
    _read_attention(flags, model)
    if flags.has(STREAMS):
        model["residual_streams"] = flags.number("mhc-num-residual-streams", 4)
    if flags.has("multi-latent-attention") or "+" in pattern or "D" in pattern:
        model |= flags.values(*ROWS["latent"])
    else:
        model |= flags.values(*ROWS["attention"])
    for letter in [one for one in SIZES if one in pattern]:
        model |= flags.values(*ROWS[letter])
    if "M" in pattern:
        model["state_heads"] = model["state_heads"] or 2 * model["hidden"] // model["state_head_size"]
    if flags.has("num-experts"):
        model |= flags.values(*ROWS["experts"])
        width = model["expert_ffn"] = model["expert_ffn"] or model["ffn"]
        model["experts_per_token"] = model["experts_per_token"] or 2
        shared = flags.number("moe-shared-expert-intermediate-size", flags.number("n-shared-experts", 0) * width)
        model["shared_experts"], rest = divmod(shared, width)
        if rest:
            raise ConfigError(
                f"--moe-shared-expert-intermediate-size {shared} must be a multiple of {width}, an expert's"
            )
    if not pattern:
        _read_blocks(flags, model)
    return model


def _add_own_names(given: dict[str, list[str]], flags: Flags) -> None:
    """Add Megatron-LM's own flags for those of its forks that mean the same."""
    own = {ours: given[theirs] for theirs, ours in OPTIONS["forks"]["flags"].items() if flags.has(theirs)}
    if "num-query-groups" in own:
        own["group-query-attention"] = []
    given |= own | given


def _read_pattern(flags: Flags) -> str:
    """Return the pattern of a hybrid model, with its prediction modules; empty for other models."""
    flags.has("spec", "is-hybrid-model")
    pattern = flags.text(PATTERN) or ""
    module, count = flags.text("mtp-hybrid-override-pattern"), flags.number("mtp-num-layers", 0)
    return pattern + f"/{module}" * count if pattern and module and "/" not in pattern else pattern


def _read_attention(flags: Flags, model: dict[str, Any]) -> None:
    if model["ffn"] is None:
        width = model["hidden"] * 4
        model["ffn"] = int(width * 2 / 3 / 64) * 64 if model["gated"] else width
    if flags.has("quick-geglu"):
        model["gated"] = True
    if flags.has("use-rotary-position-embeddings", "no-position-embedding"):  # both have no learned table
        model["positions"] = "rotary"
    groups = flags.number("num-query-groups", 1)
    model["key_value_heads"] = groups if flags.has("group-query-attention") else model["heads"]
    without = flags.has("disable-bias-linear")
    model |= {"projection_bias": not without, "mlp_bias": not without}
    model["attention_bias"] = flags.has("add-qkv-bias") or not without
    dropouts = [flags.text(name) or "0.1" for name in ("attention-dropout", "hidden-dropout")]
    model["dropout"] = any(float(value) > 0 for value in dropouts if re.fullmatch(r"[0-9.e-]{1,9}", value))
    flash, forks = flags.values(*ROWS["backend"])["attention"] == "flash", OPTIONS["forks"]
    if flags.has(*forks["before_flash"]):
        flash = flags.has(*forks["flash"])
    model |= {"attention": "flash" if flash else "full", "causal": flash}
    if flash:
        flags.has("no-masked-softmax-fusion")  # flash attention has no softmax of its own
    window = re.match(r"\(?\s*(\d{1,9})\s*,", flags.text("window-size") or "")
    if window:
        model |= {"window": int(window[1]) + 1, "window_period": _read_window_period(flags, model["num_layers"])}


def _read_window_period(flags: Flags, count: int) -> int:
    """Return n if every n-th block has no window, also from a list; 0 if all have one."""
    if "[" not in (flags.text("window-attn-skip-freq") or ""):
        return int(flags.number("window-attn-skip-freq", 0))
    full = _blocks_in(flags, "window-attn-skip-freq", count, lambda block, every: True).count(False)
    return count // full if full else 0


def _read_blocks(flags: Flags, model: dict[str, Any]) -> None:
    """Read which blocks have experts and gated delta nets: as `dense_layers` if that is enough, else as a pattern."""
    count, attention = model["num_layers"], "+" if model.get("key_value_rank") else "*"
    routed = nets = [False] * count
    if "experts" in model:
        routed = _blocks_in(flags, "moe-layer-freq", count, lambda block, every: block % every == 0)
        if re.fullmatch(r"[1-9]\d{0,3}", dense := flags.text("first-k-dense-replace") or "0"):
            routed = [one and block >= int(dense) for block, one in enumerate(routed)]
    if {*flags.arguments.get(VARIANT, ())} & {"gated_delta_net", "gdn"} and flags.has(VARIANT):
        nets = _blocks_in(flags, "linear-attention-freq", count, lambda block, every: (block + 1) % every != 0)
        model |= flags.values(*ROWS["G"])
    if not any(nets) and routed == sorted(routed):
        if any(routed):
            model["dense_layers"] = routed.count(False)
        return
    window, period = model.get("window"), model.get("window_period") or count + 1
    near = ["W" if window and (block + 1) % period else attention for block in range(count)]
    letters = [
        ("G" if net else mixer) + ("E" if expert else "-")
        for net, mixer, expert in zip(nets, near, routed, strict=True)
    ]
    modules = [letters[-1]] * model["prediction_layers"] if letters[-1] != ("*E" if any(routed) else "*-") else []
    model["pattern"] = "/".join(["".join(f"[{one}]" for one in letters), *(f"[{one}]" for one in modules)])


def _blocks_in(flags: Flags, name: str, count: int, by_number: Callable[[int, int], bool]) -> list[bool]:
    """Return which blocks a flag selects: by a number, or by a list of ones and zeros."""
    text = re.sub(r"[\s'\"]", "", flags.text(name) or "1")
    found = computed(text)
    if isinstance(found, int) and found:
        return [by_number(block, found) for block in range(count)]
    if not isinstance(found, list) or len(found) != count or any(one not in (0, 1) for one in found):
        such = f"a list of {count} blocks such as [0]*1+[1]*{count - 1}"
        raise ConfigError(f"--{name} {shown(text)} must be a number, or {such}")
    return [one == 1 for one in found]
