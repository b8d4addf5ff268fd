"""Single changes of a config that an engineer can make, with the same GPUs and batch, and faster hardware."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ppsim.analysis.memory import HEADROOM
from ppsim.base.units import counted, format_quantity
from ppsim.config import Config, value_at
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.partition import BALANCED
from ppsim.engines.running import compiled_or
from ppsim.frameworks import searched_layouts
from ppsim.run.timelines import Timeline
from ppsim.search import find_family
from ppsim.search.partitions import fastest_stages
from ppsim.studies.free_keys import ONE_DEVICE, SHARDINGS, Key, Needs, divisors, lacks, needed, useful_levels
from ppsim.studies.points import usable_bytes
from ppsim.studies.towers import ENCODER_SIZES, VALUES, EncoderKey, encoder_size

STAGES_TRIED = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
MAX_SEQUENCES = 16  # sequences of a microbatch
MAX_CONTEXT = 32
GROUPS = {Key.TENSOR: "TP", Key.CONTEXT: "CP", Key.DEVICES: "PP", Key.DATA: "DP"}
FRACTIONS_RECOMPUTED = (0.25, 0.5, 0.75)
ENDS = {"layout.first_stage_layers": None, "layout.last_stage_layers": None}
LAYERS = "layers"  # the idea of changes of the partition alone
SCHEDULES, LAYOUTS, OPTIONS, HARDWARE = "schedules", "layouts", "options", "hardware"


class Change(NamedTuple):
    """A single change: its words, its keys (None removes one), the idea that it belongs to, and its kind.

    The kind is a key of `order_error`, or `hardware`.
    """

    what: str
    keys: Mapping[str, Any]
    idea: str
    kind: str = OPTIONS


def single_changes(config: Config, run: Timeline, schedules: Needs, headroom: float = HEADROOM) -> list[Change]:
    """Return every single change of a config, once: software first, then hardware.

    `run` is the simulated config. `schedules` are the names of the schedules to try, each with the fields of a layout
    that a framework needs to run it. The change to the fastest stages leaves the headroom free. Keys that must follow a
    change, such as the microbatches of a larger data-parallel group, change with it.
    """
    found, changes = list[Change](), _changes(config, run, schedules, headroom)
    if config.has_encoder:
        changes = _changes(config.backbone, config.backbone.simulate(), schedules, headroom)
        changes = [*_encoder_changes(config), *(_with_encoder(config, one) for one in changes)]
    for change in changes:
        keys = {key: value for key, value in change.keys.items() if value_at(config.data, key) != value}
        lacking = any(lacks(config.data, key, value) for key, value in keys.items())
        if keys and not lacking and all(keys != one.keys for one in found):
            found.append(change._replace(keys=keys))
    return found


def _encoder_changes(config: Config) -> Iterator[Change]:
    """Yield the changes of a derived encoder on the same GPUs: its groups, its passes, and where it shares devices."""
    if not config.derived:
        return
    size = {key: encoder_size(config.data, {}, key) for key in VALUES}
    for count in VALUES[EncoderKey.PASS]:
        if count != size[EncoderKey.PASS]:
            words = f"{counted(count, 'microbatch')} per pass of the encoder"
            yield Change(words, {EncoderKey.PASS: count}, "encoder's passes")
    if size[EncoderKey.PLACEMENT] != "separate":
        other = "phases" if size[EncoderKey.PLACEMENT] == "first" else "first"
        yield Change(f"encoder in placement {other}", {EncoderKey.PLACEMENT: other}, "placement", LAYOUTS)
    elif value_at(config.data, "encoder.frozen"):
        for count in {*VALUES[EncoderKey.PREFETCH], 4} - {size[EncoderKey.PREFETCH]}:
            yield Change(f"prefetch {count} passes", {EncoderKey.PREFETCH: count}, "prefetch")
    movable = ENCODER_SIZES if size[EncoderKey.PLACEMENT] == "separate" else (EncoderKey.TENSOR, EncoderKey.DATA)
    for source, target in itertools.permutations(movable, 2):
        for factor in divisors(size[source])[1:]:
            moved = {source: size[source] // factor, target: size[target] * factor}
            words = ", ".join(f"{key.rpartition('.')[2]} {size[key]} -> {new}" for key, new in moved.items())
            yield Change(f"encoder's {words}", moved, "encoder's groups", LAYOUTS)
    key = "encoder.layout.recompute"
    for level in RECOMPUTE:
        if level != (value_at(config.data, key) or "none"):
            yield Change(f"encoder's recompute {level}", {key: level}, "encoder's recompute")


def _with_encoder(config: Config, change: Change) -> Change:
    """Return a change of the backbone, with the data-parallel copies that an encoder on its devices then has."""
    keys = (Key.TENSOR, Key.CONTEXT, Key.DATA)
    if encoder_size(config.data, {}, EncoderKey.PLACEMENT) == "separate" or not change.keys.keys() & {*keys}:
        return change
    gpus = math.prod(change.keys.get(key, value_at(config.data, key) or 1) for key in keys)
    tensor, context = encoder_size(config.data, {}, EncoderKey.TENSOR), value_at(config.data, "encoder.layout.context")
    return change._replace(keys={**change.keys, EncoderKey.DATA: gpus // (tensor * (context or 1))})


def _changes(config: Config, run: Timeline, schedules: Needs, headroom: float) -> Iterator[Change]:
    yield from _schedule_changes(config, run, schedules)
    costs = config.costs
    if isinstance(costs, DerivedCosts):
        if "csv" not in config.schedule:
            yield from _group_changes(config, costs)
            yield from _microbatch_changes(config, costs)
        yield from _expert_changes(costs)
        yield from _partition_changes(config, costs, run, headroom)
        yield from _recompute_changes(costs, run)
        yield from _sharding_changes(costs, run.schedule.devices)
        yield from _policy_changes(costs, run)
        yield from _link_changes(costs)
    elif "latency" in config.data.get("costs", {}):
        keys = {"costs.latency": np.multiply(0.5, config.costs.latency).tolist()}  # type: ignore[attr-defined]
        yield Change("links with half the latency", keys, "links", HARDWARE)


def _schedule_changes(config: Config, run: Timeline, schedules: Needs) -> Iterator[Change]:
    section, devices = config.schedule, run.schedule.devices
    own = None if "csv" in section else find_family(section["name"])
    if devices == 1:
        return
    now = devices * _stages_per_device(section) if own else run.schedule.num_stages
    for count in _stage_counts(config, devices, own.fixed_stages) if own else ():
        if own and count is not None and count * devices != now:
            keys = {Key.STAGES: count, **_partition_for(config, count * devices, now)}
            yield Change(f"{own.name} x{count}", keys, f"schedule {own.name}", SCHEDULES)
    # a family in place of lists has their sizes
    microbatches = run.schedule.microbatches_of_a_step
    sizes = {Key.DEVICES: devices, Key.MICROBATCHES: microbatches}
    for name, needs in schedules.items():
        family = find_family(name)
        if (own and name == own.name) or family.asynchronous or family.searches:
            continue
        for count in _stage_counts(config, devices, family.fixed_stages):
            stages = devices * (count or family.stages_per_device)
            options = _grouping(name, devices, microbatches)
            keys = {"schedule.name": name, Key.STAGES: count, "schedule.options": options} | (sizes if not own else {})
            keys |= needed(config.costs, needs) | _partition_for(config, stages, now)
            words = f"{name} x{count}" if count else name
            yield Change(words, keys, f"schedule {name}", SCHEDULES)


def _stages_per_device(section: Mapping[str, Any]) -> int:
    """Return the stages per device of a section `schedule`: those given, or the family's."""
    return section.get("stages_per_device") or find_family(section["name"]).stages_per_device


def _stage_counts(config: Config, devices: int, fixed: bool) -> list[int | None]:
    """Return the numbers of stages per device to try; [None] for a family whose number is fixed."""
    layers = config.model.num_layers + 2 if config.model else STAGES_TRIED[2] * devices
    return [None] if fixed else [count for count in STAGES_TRIED if count * devices <= layers]


def _grouping(name: str, devices: int, microbatches: int) -> dict[str, int] | None:
    """Return options with a legal group size if groups of `devices` microbatches leave too small a last one."""
    if "group_size" not in find_family(name).options or not microbatches % devices or microbatches < devices:
        return None
    sizes = (size for size in range(devices, microbatches + 1) if not 0 < microbatches % size < devices)
    return {"group_size": next(sizes)}


def _partition_for(config: Config, stages: int, now: int) -> dict[str, Any]:
    """Return the keys that follow another number of stages than `now`.

    A partition that lists the layers of each stage, or cannot give each as many, becomes the balanced one, a list of
    recompute levels its commonest.
    """
    costs = config.costs
    if not isinstance(costs, DerivedCosts) or stages == now:
        return {}
    layout, keys = costs.layout, dict[str, Any]()
    listed = not isinstance(layout.partition, str) or layout.cut_by_pattern(costs.model)
    is_uneven = layout.partition == "even" and costs.model.num_layers % stages > 0
    if listed or is_uneven or layout.first_stage_layers is not None or layout.last_stage_layers:
        keys = {**{key: None for key in ENDS if value_at(config.data, key) is not None}, Key.PARTITION: BALANCED}
    if not isinstance(layout.recompute, str):
        keys[Key.RECOMPUTE_LEVEL] = max(layout.recompute, key=layout.recompute.count)
    return keys


def _group_changes(config: Config, costs: DerivedCosts) -> Iterator[Change]:
    """Yield the moves of a factor from one parallel group to another."""
    layout, devices = costs.layout, config.schedule["devices"]
    sizes = {Key.TENSOR: layout.tensor, Key.CONTEXT: layout.context, Key.DEVICES: devices, Key.DATA: layout.data}
    largest = {
        Key.TENSOR: costs.cluster.gpus_per_node,
        Key.CONTEXT: MAX_CONTEXT,
        Key.DEVICES: costs.model.num_layers,
        Key.DATA: config.schedule["microbatches"] * layout.data,
    }
    for source, target in itertools.permutations(sizes, 2):
        for factor in divisors(sizes[source])[1:]:
            new = {**sizes, source: sizes[source] // factor, target: sizes[target] * factor}
            microbatches, rest = divmod(config.schedule["microbatches"] * layout.data, new[Key.DATA])
            if rest or not microbatches or new[target] > largest[target]:
                continue
            moved = {key: new[key] for key in (source, target)}
            words = ", ".join(f"{GROUPS[key]} {sizes[key]} -> {new[key]}" for key in moved)
            keys = {**moved, **_following(config, costs, new)}
            if microbatches != config.schedule["microbatches"]:
                keys[Key.MICROBATCHES] = microbatches
            yield Change(words, keys, f"{GROUPS[source]} to {GROUPS[target]}", LAYOUTS)


def _following(config: Config, costs: DerivedCosts, new: Mapping[str, int]) -> dict[str, Any]:
    """Return the keys that follow from other sizes of the parallel groups."""
    layout, keys = costs.layout, dict[str, Any]()
    if (new[Key.TENSOR] > 1) != (layout.tensor > 1):
        keys[Key.SEQUENCE] = new[Key.TENSOR] > 1 and not lacks(config.data, Key.SEQUENCE, True)
    before, copies = layout.data * layout.context, new[Key.DATA] * new[Key.CONTEXT]
    if copies > 1 == before and not layout.sharded:
        keys["layout.distributed_optimizer"] = True
    if layout.expert > 1:
        sized = replace(layout, tensor=new[Key.TENSOR], context=new[Key.CONTEXT], data=new[Key.DATA])
        legal = [size for size in divisors(costs.model.experts) if sized.expert_gpus % size == 0]
        expert = max((size for size in legal if size <= layout.expert), default=1)
        keys |= {Key.EXPERT: expert} if expert != layout.expert else {}
    if new[Key.DEVICES] == 1 < config.schedule["devices"]:
        stages = 1
        keys["schedule.name"] = ONE_DEVICE
    else:
        stages = _stages_per_device(config.schedule)
        fitting = max((costs.model.num_layers + 2) // new[Key.DEVICES], 1)
        if config.schedule.get("stages_per_device") and stages > fitting:
            stages = fitting
            keys |= {Key.STAGES: fitting} if fitting > 1 else {"schedule.name": ONE_DEVICE}
    now = config.schedule["devices"] * _stages_per_device(config.schedule)
    return keys | _partition_for(config, stages * new[Key.DEVICES], now)


def _microbatch_changes(config: Config, costs: DerivedCosts) -> Iterator[Change]:
    count, size = config.schedule["microbatches"], costs.layout.microbatch_size
    for new in divisors(count * size):
        if new != size and new <= max(MAX_SEQUENCES, size):
            keys = {Key.MICROBATCHES: count * size // new, Key.MICROBATCH_SIZE: new}
            yield Change(f"microbatch size {size} -> {new}", keys, "microbatch size")


def _expert_changes(costs: DerivedCosts) -> Iterator[Change]:
    layout, model = costs.layout, costs.model
    if not model.experts:
        return
    for size in divisors(model.experts):
        if size != layout.expert and layout.expert_gpus % size == 0:
            yield Change(f"EP {layout.expert} -> {size}", {Key.EXPERT: size}, "EP", LAYOUTS)
    if layout.split_experts > 1:
        yield Change("whole experts on each GPU", {"layout.expert_tensor": 1}, "expert tensor", LAYOUTS)


def _partition_changes(config: Config, costs: DerivedCosts, run: Timeline, headroom: float) -> Iterator[Change]:
    for method, words in (("even", "even"), (BALANCED, "balanced over the devices")):
        yield Change(f"layers {words}", {Key.PARTITION: method, **ENDS}, LAYERS)
    if run.schedule.num_stages > 1:
        limit = usable_bytes(config, headroom)
        found = fastest_stages(
            costs, run.schedule, config.transport, config.optimizer, limit, engine=compiled_or("auto")
        )
        text = found.megatron_layout(run.schedule.num_stages)
        yield Change("layers fastest by simulation", {Key.PARTITION: text, **ENDS}, LAYERS)


def _recompute_changes(costs: DerivedCosts, run: Timeline) -> Iterator[Change]:
    stages = run.schedule.num_stages
    now = costs.layout.recompute_of_stages(stages)
    blocks = costs.layout.recompute_blocks
    whole = {"layout.recompute_stages": None, "layout.recompute_blocks": None}
    known = searched_layouts(None, costs.layout.framework).recompute
    for level in useful_levels(costs.model, (*known, "streams")):
        if {*now} != {level} or blocks is not None:
            yield Change(f"recompute {level}", {Key.RECOMPUTE_LEVEL: level, **whole}, "recompute")
    per_stage = costs.model.num_layers // stages
    for count in sorted({round(fraction * per_stage) for fraction in FRACTIONS_RECOMPUTED} - {0, per_stage, blocks}):
        keys = {Key.RECOMPUTE_LEVEL: "full", "layout.recompute_stages": None, "layout.recompute_blocks": count}
        yield Change(f"recompute {count} of {per_stage} blocks per stage", keys, "recompute")


def _sharding_changes(costs: DerivedCosts, devices: int) -> Iterator[Change]:
    layout = costs.layout
    alone = searched_layouts(None, layout.framework).without_pipeline if devices > 1 else ()
    if max(layout.data_groups) == 1:
        return
    for name, keys in SHARDINGS.items() if costs.layout.replicas == 1 else ():
        if name not in alone and any(getattr(layout, key.partition(".")[2]) != value for key, value in keys.items()):
            yield Change(f"{name} sharded" if name != "none" else "nothing sharded", keys, "sharding")


def _policy_changes(costs: DerivedCosts, run: Timeline) -> Iterator[Change]:
    """Yield the flags of a framework that are off, or have another value, where they can matter."""
    layout, model = costs.layout, costs.model
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield Change("sequence parallelism", {Key.SEQUENCE: True}, "sequence parallelism")
    experts = model.experts > 0 and layout.expert > 1
    flags = {
        "overlap_data": ("data-parallel collectives overlapped", max(layout.data_groups) > 1),
        "overlap_tensor": ("tensor-parallel collectives overlapped", layout.tensor > 1),
        "scatter_transfers": ("transfers split over the tensor group", layout.tensor > 1 < run.schedule.devices),
        "grouped_experts": ("experts as one kernel", model.experts > 0),
        "fused_router": ("router fused", model.experts > 0 and "fused_router" in layout.run_by.policies),
        "fused": ("element-wise operations fused", True),
        "fused_loss": ("loss fused", "fused_loss" in layout.run_by.policies),
    }
    for name, (words, matters) in flags.items():
        if matters and not layout.chosen(name):
            keys = {f"layout.{name}": True}
            if name == "overlap_tensor" and not layout.sequence_parallel:  # frameworks demand both
                words, keys = "sequence parallelism, overlapped", {**keys, Key.SEQUENCE: True}
            yield Change(words, keys, name)
    exchanges = {"expert_exchange": (("all-to-all", "hierarchical"), experts),
                 "context_exchange": (("gather", "ring", "all-to-all"), layout.context > 1)}  # fmt: skip
    for name, (values, matters) in exchanges.items():
        for value in values if matters else ():
            if value != layout.chosen(name):
                yield Change(f"{name.replace('_', ' ')} {value}", {f"layout.{name}": value}, name)
    copies = max(layout.data_groups) if layout.fp8 == "none" else 1
    for held in searched_layouts(None, layout.framework).states if copies > 1 else ():
        if held < layout.chosen("optimizer_bytes"):
            keys = {Key.STATE: held} | ({} if layout.sharded else {"layout.distributed_optimizer": True})
            yield Change(f"{held} bytes of optimizer state per parameter", keys, "optimizer state")
    if layout.context > 1 and not layout.hides_context:
        yield Change("context exchange overlapped", {"layout.overlap_context": True}, "overlap_context")


def _link_changes(costs: DerivedCosts) -> Iterator[Change]:
    cluster = costs.cluster
    for key, sheet in (("link", cluster.link), ("network", cluster.network)):
        if key == "link" or sheet != cluster.link:
            twice = format_quantity(2 * sheet.bandwidth, "bytes per second").replace(" ", "")
            keys = {f"hardware.{key}.bandwidth": twice}
            yield Change(f"a {key} twice as fast", keys, key, HARDWARE)
