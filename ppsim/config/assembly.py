"""Assembly of a config: model, cluster, costs and jitter from checked sections, and the faults between sections."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from ppsim.base.documents import Path
from ppsim.base.errors import BuildError, ConfigError, CostError, shown
from ppsim.config.schema import MEASURED, Fault, in_folder, sharding_fault
from ppsim.costs import Costs
from ppsim.costs.calibrated import read_calibration
from ppsim.costs.composed import BACKBONE, EncoderTower, TowerCosts, towers_of
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import VALUE_BYTES
from ppsim.costs.layout import Layout
from ppsim.costs.microbatches import attention_fraction
from ppsim.costs.model import Model
from ppsim.costs.operator_fit import read_operators
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.packing import DYNAMIC, MicrobatchSlots, PackedLengths, SequenceLengths
from ppsim.costs.profile import Profile, read_profile
from ppsim.costs.sheets import Cluster, DeviceSheet, LinkSheet, find_device, find_link
from ppsim.lowering.sharding import WINDOW, Window
from ppsim.plan.jitter import Jitter
from ppsim.search import find_family
from ppsim.search.memory_actions import NEEDED

# Costs of a link, which a profile of one device or of another machine lacks.
LINK = ("latency", "bandwidth", "transfer_bytes")
FAMILY_KEYS = ("name", "devices", "microbatches", "stages_per_device", "options")  # of a schedule without a CSV file


class _Faults(list[Fault]):
    """List of faults; `attempt` adds the error of a call."""

    def attempt(self, path: Path, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (ConfigError, CostError) as error:
            self.append((path, str(error)))
            return None


def assembled(checked: dict[str, Any], place: str) -> tuple[dict[str, Any], list[Fault]]:
    """Return the fields of a Config, except path and data, from checked sections, and the faults between keys.

    If there are faults, there are no fields.
    """
    faults = _Faults()
    checked = in_folder(checked, os.path.dirname(place))
    schedule = checked["schedule"]
    if "lengths" in checked:
        if "microbatches" in schedule:
            faults.append((("schedule", "microbatches"), "follows from lengths; leave it out"))
        schedule = checked["schedule"] = {**schedule, "microbatches": 1}  # until the first step is packed
    faults += missing_keys(checked) + _schedule_faults(schedule)
    model = _model(checked.get("model"), faults)
    cluster = _cluster(checked.get("hardware"), faults)
    resident = {key: schedule[key] for key in ("max_active_stages",) if key in schedule}
    section = dict(checked.get("layout", {}))
    if fault := sharding_fault(section):
        faults.append((("layout", "sharding"), fault))
        section.pop("sharding")
    layout = faults.attempt(("layout",), lambda: Layout(**section, **resident))
    lengths = _lengths(checked, model, layout, faults)
    if lengths is not None:
        checked |= _first_packed_step(checked, lengths)
    schedule, given = checked["schedule"], checked.get("costs", {})
    faults += _missing_partners(checked)
    faults += _window_faults(schedule, layout, given)
    faults += _memory_action_faults(schedule, "memory_limit" in checked)
    faults += _unpriced_optimizer(checked, cluster)
    costs: Any = None
    if "profile" in given:
        costs = _profile(checked, faults)
    elif "stage_layers" in given:
        faults.append((("costs", "stage_layers"), "needs costs.profile; a model's layers are cut by layout.partition"))
    elif not faults:
        costs = faults.attempt(("costs",), lambda: Costs(**given))
        if costs and model and cluster and layout:
            costs = faults.attempt(("layout",), lambda: DerivedCosts(model, cluster, layout, given))
    if costs and "calibration" in checked:
        costs = _calibrated(costs, checked["calibration"], faults)
    if "encoder" in checked:
        costs = _towers(checked["encoder"], ("encoder",), checked, costs, cluster, layout, faults)
    jitter = _jitter(dict(checked.get("jitter", {})), costs, "profile" in given, faults)
    if faults:
        return {}, faults
    unchanged = ("transport", "engine", "optimizer", "dispatch", "memory_limit", "published")
    return {
        "name": checked.get("name", os.path.splitext(os.path.basename(place))[0]),
        "schedule": schedule,
        "costs": costs,
        "model": model,
        "lengths": lengths,
        "jitter": jitter if "jitter" in checked else None,
        "seed": checked.get("jitter", {}).get("seed", 0),
        **{key: checked[key] for key in unchanged if key in checked},
    }, []


def _calibrated(costs: Any, path: str, faults: _Faults) -> DerivedCosts | None:
    """Return derived costs with the constants of a file of `ppsim calibrate --steps`."""
    if not isinstance(costs, DerivedCosts):
        faults.append((("calibration",), "calibrates derived costs; give model and hardware, or leave it out"))
        return None
    return faults.attempt(("calibration",), lambda: read_calibration(path).applied(costs))


def _lengths(
    checked: dict[str, Any], model: Model | None, layout: Layout | None, faults: _Faults
) -> PackedLengths | None:
    """Return the drawn lengths of the sequences; None without a section `lengths`, or if anything is wrong."""
    if "lengths" not in checked:
        return None
    section = checked["lengths"]
    faults += _length_faults(section, checked)
    lengths = faults.attempt(("lengths",), lambda: SequenceLengths(**section))
    if faults or lengths is None:
        return None
    if model and layout:
        attention = attention_fraction(model.layers)
        slots = MicrobatchSlots(model.sequence, layout.microbatch_size, layout.data, layout.context, attention)
    else:
        slots = MicrobatchSlots(lengths.tokens or 1, 1, 1, 1, lengths.attention or 0.0)
    drawn = faults.attempt(("lengths",), lambda: lengths.draw(slots.tokens))
    return None if drawn is None else PackedLengths(drawn, slots, lengths.packing)


def _first_packed_step(checked: dict[str, Any], lengths: PackedLengths) -> dict[str, Any]:
    """Return the sections `schedule` and `costs` with the microbatches of the busiest copy in the first step."""
    factors = lengths.factors(0)
    count = legal_microbatches(checked["schedule"], factors.shape[1])
    busiest = factors[factors.sum(axis=1).argmax()]
    scale = np.append(busiest, np.zeros(count - len(busiest))).tolist()
    return {
        "schedule": {**checked["schedule"], "microbatches": count},
        "costs": {**checked.get("costs", {}), "microbatch_scale": scale},
    }


def legal_microbatches(schedule: Mapping[str, Any], least: int) -> int:
    """Return the first number of microbatches from `least` on that the section's schedule allows, or `least`."""
    family = find_family(schedule["name"])
    options = schedule.get("options", {})
    for count in range(least, least + schedule["devices"]) if not family.searches else ():
        with suppress(BuildError):
            family.columns(schedule["devices"], count, schedule.get("stages_per_device"), **options)
            return count
    return least


def _length_faults(section: dict[str, Any], checked: dict[str, Any]) -> list[Fault]:
    schedule, given, has_model = checked["schedule"], checked.get("costs", {}), "model" in checked
    why = "excludes lengths, which give the microbatches and their order"
    of_model = "follows from the model; leave it out" if has_model else "needed without model"
    of_csv = "excludes schedule.csv: a step has the microbatches that its sequences need"
    devices = schedule.get("devices", 1)
    of_dynamic = f"{DYNAMIC} runs without a pipeline, as in Megatron-LM, but there are {devices} devices; use balance"
    rules: dict[Fault, bool] = {
        **{(("lengths",), f"excludes {key}"): key in checked for key in ("encoder", "batch")},
        (("lengths",), of_csv): "csv" in schedule,
        **{(("lengths", key), of_model): (key in section) == has_model for key in ("tokens", "attention")},
        **{(("costs", key), why): key in given for key in ("microbatch_scale", "microbatch_order")},
        (("lengths", "packing"), of_dynamic): section.get("packing") == DYNAMIC and devices > 1,
    }
    return [fault for fault, is_broken in rules.items() if is_broken]


def _towers(
    section: dict[str, Any], path: Path, checked: dict[str, Any], costs: Any, cluster: Cluster | None,
    layout: Layout | None, faults: _Faults,
) -> TowerCosts | None:  # fmt: skip
    """Return the costs of a section `encoder`, at `path`, before a backbone with these costs."""
    faults += [((*path, *key), message) for key, message in _encoder_faults(section, checked, layout)]
    is_separate = section.get("placement", "separate") == "separate"
    if is_separate and cluster and cluster.node_of_device and path == ("encoder",):
        faults.append((
            ("hardware", "node_of_device"),
            "towers on devices of their own begin on nodes of their own; leave it out, or choose placement phases; if "
            "all towers share one node, make network the same sheet as link",
        ))  # fmt: skip
    encoder = faults.attempt(
        path,
        lambda: EncoderTower(**{one.name: section[one.name] for one in fields(EncoderTower) if one.name in section}),
    )
    if "another" in section:
        costs = _towers(section["another"], (*path, "another"), checked, costs, cluster, layout, faults)
    given, boundary = section.get("costs", {}), {}
    if "model" not in section:
        like = {"per": "stage"} | {key: checked["costs"][key] for key in LINK[:2] if key in checked.get("costs", {})}
        own = faults.attempt((*path, "costs"), lambda: Costs(**like | given))
    elif faults or not (encoder and layout and cluster):
        return None
    else:
        size, bytes_sent = _pass_sizes(section, encoder, towers_of(costs)[BACKBONE].model.hidden, layout)
        if size != int(size):
            faults.append(((*path, "images"), f"a pass has {size:g} images on each copy; it must be a whole number"))
            return None
        nodes = cluster if encoder.placement == "phases" else replace(cluster, node_of_device=None)
        own = faults.attempt((*path, "model"), lambda: _encoder_costs(section, int(size), nodes, layout.framework))
        if own and "calibration" in checked:
            own = _calibrated(own, checked["calibration"], faults)
        if isinstance(costs, TowerCosts):  # the boundary before the backbone takes the features of both encoders
            costs, bytes_sent = replace(costs, boundary_bytes=(costs.boundary_bytes or 0) + bytes_sent), 0.0
        boundary = {"boundary_bytes": bytes_sent, "boundary": (cluster.network.latency, 1 / cluster.network.bandwidth)}
    return TowerCosts(encoder, own, costs, **boundary) if encoder and own and costs else None


def _encoder_costs(section: dict[str, Any], images: int, cluster: Cluster, framework: str | None) -> DerivedCosts:
    """Return the derived costs of an encoder whose passes have this many images."""
    shape = {"vocabulary": 1, "causal": False, **section["model"]}
    layout = {"framework": framework, "microbatch_size": images, **section.get("layout", {})}
    return DerivedCosts(Model(**shape), cluster, Layout(**layout), section.get("costs", {}))


def _pass_sizes(section: dict[str, Any], encoder: EncoderTower, hidden: int, layout: Layout) -> tuple[float, float]:
    """Return the images of one pass of a copy of the encoder, and the bytes of the features of one microbatch.

    Every copy of the encoder takes an equal part of the microbatches that the backbone's data-parallel copies run at a
    time. A copy that serves several of them sends the features of all over its link.
    Source: NVIDIA/Megatron-LM, examples/mimo/training/args.py, whose bridge divides in this way.
    """
    ratio = layout.data / section.get("layout", {}).get("data", 1)
    images = section.get("images", 1.0) * layout.microbatch_size
    tokens = section["model"]["sequence"] * images / section.get("merge", 1)
    return images * encoder.batch * ratio, tokens * hidden * VALUE_BYTES * max(1.0, ratio)


def _encoder_faults(section: dict[str, Any], checked: dict[str, Any], layout: Layout | None) -> list[Fault]:
    found: list[Fault] = []
    own = section.get("layout", {})
    if ("model" in section) != ("model" in checked):
        found.append((("model",), "is given if, and only if, the section `model` is: costs follow from both"))
    if "model" not in section:
        found += [((key,), "needs encoder.model") for key in ("images", "merge", "layout") if key in section]
    else:
        missing = _missing_fields(Model, ("vocabulary", *section["model"]))
        found += [(("model", name), "is missing; give it") for name in missing]
    if "microbatch_size" in own:
        found.append((("layout", "microbatch_size"), "follows from images, batch and the copies of both"))
    another, placement = section.get("another", {}), section.get("placement", "separate")
    if another and another.get("placement", "separate") != placement:
        found.append((("another", "placement"), "must be that of the encoder before it"))
    if another and another.get("name", EncoderTower.name) == section.get("name", EncoderTower.name):
        found.append((("another", "name"), "must differ from the name of the encoder before it"))
    if another.get("copies", 1) > 1:
        found.append((("another", "copies"), "needs one encoder; use another.layout.data"))
    if layout is None:
        return found
    gpus = [own.get(name, 1) for name in ("tensor", "context", "data")]
    if placement != "separate" and "model" in section and math.prod(gpus) != layout.gpus_per_device:
        found.append((
            ("layout",),
            f"tensor x context x data is {math.prod(gpus)}, but the encoder runs on the "
            f"{layout.gpus_per_device} GPUs of each pipeline device",
        ))  # fmt: skip
    return found


def _jitter(section: dict[str, Any], costs: Any, measured: bool, faults: _Faults) -> Jitter | None:
    """Return the jitter of a section; `measured`: the costs are a profile, which can give the noise of actions."""
    section.pop("seed", None)
    if section.get("actions") == MEASURED:
        if not measured:
            faults.append((("jitter", "actions"), f"{MEASURED} needs costs.profile; give a number such as 0.05"))
        if not isinstance(costs, Profile):
            return None
        section["actions"] = costs.jitter
    return Jitter(**section)


def missing_keys(data: Mapping[str, Any]) -> list[Fault]:
    """Return a fault for each missing key of a schedule without a CSV file; `lengths` give the microbatches."""
    section = data.get("schedule")
    if not isinstance(section, dict) or "csv" in section:
        return []
    needed = ("name", "devices") if "lengths" in data else ("name", "devices", "microbatches")
    why = "is missing; a schedule has name, devices and microbatches, or csv"
    return [(("schedule", key), why) for key in needed if section.get(key) is None]


def _schedule_faults(section: dict[str, Any]) -> list[Fault]:
    if "csv" in section:
        return _given_twice("schedule", "csv", [key for key in FAMILY_KEYS if key in section])
    of_family = (("schedule", "slices"), "needs csv; a family takes it as an option")
    faults: list[Fault] = [of_family] if "slices" in section else []
    if "name" in section:
        family = find_family(section["name"])
        known = ", ".join(name for name in family.options if name != "costs") or "none"
        faults += [
            (("schedule", "options", key), f"unknown option of {family.name}; its options are: {known}")
            for key in section.get("options", {})
            if key not in family.options
        ]
    return faults


def _memory_action_faults(section: dict[str, Any], has_limit: bool) -> list[Fault]:
    """Return the faults between recompute, its placing, offload and the limit of live activations."""
    known = find_family(section["name"]).options if "name" in section else ()
    limited_twice = has_limit and "memory_limit" in section.get("options", {}) and "memory_limit" in known
    rules = {
        ("offload", "excludes recompute; leave one of them out"): {"recompute", "offload"} <= section.keys(),
        ("recompute_placing", "has no effect without recompute; give recompute too, such as all"): (
            "recompute_placing" in section and "recompute" not in section
        ),
        ("recompute", f"{NEEDED} requires memory_limit, such as memory_limit: 4"): (
            section.get("recompute") == NEEDED and not has_limit
        ),
        ("options.memory_limit", "excludes memory_limit; give one of them"): limited_twice,
    }
    return [(("schedule", *key.split(".")), rule) for (key, rule), is_broken in rules.items() if is_broken]


def _window_faults(section: dict[str, Any], layout: Layout | None, given: dict[str, Any]) -> list[Fault]:
    """Return the faults of the window of gathered stages: an invalid one, or one without weights gathered by stage."""
    keys = [key for key in WINDOW if key in section]
    if keys and not ("unshard" in given or (layout and layout.shards_by("stage"))):
        why = "needs weights that are gathered by stage: layout.sharded with sharded_by: stage, or costs.unshard"
        return [(("schedule", key), why) for key in keys]
    try:
        Window(**{key: section[key] for key in keys}).distances(section.get("devices", 1))
    except ConfigError as error:
        return [(("schedule", keys[-1]), str(error))]
    return []


def _given_twice(section: str, file: str, keys: Iterable[str]) -> list[Fault]:
    """Return a fault for each key that the file already gives."""
    return [((section, key), f"excludes {file}: the file gives it; leave it out") for key in keys if key != file]


def _missing_partners(checked: dict[str, Any]) -> list[Fault]:
    if "model" in checked and "hardware" not in checked:
        return [(("hardware",), "is missing; a model is priced on a device and a link")]
    return [
        ((section,), "needs a section `model`; without one all costs are given in `costs`")
        for section in ("hardware", "layout", "batch")
        if section in checked and "model" not in checked
    ]


def _unpriced_optimizer(checked: dict[str, Any], cluster: Cluster | None) -> list[Fault]:
    known = cluster is None or cluster.device.memory_bandwidth is not None
    if "optimizer" not in checked or known or "optimizer_step" in checked.get("costs", {}):
        return []
    why = "gives no memory_bandwidth, which the optimizer step is priced by; give it, or costs.optimizer_step"
    return [(("hardware", "device"), why)]


def _model(section: dict[str, Any] | None, faults: _Faults) -> Model | None:
    if section is None:
        return None
    shape = dict(section)
    file = shape.pop("huggingface", None)
    if file is not None:
        return faults.attempt(("model",), lambda: Model.from_huggingface(file, **shape))
    if shape.pop("approximate", False):
        faults.append((("model", "approximate"), "reads huggingface: the path of a config.json; leave it out"))
    missing = _missing_fields(Model, shape)
    faults += [(("model", name), "is missing; give it, or huggingface: the path of a config.json") for name in missing]
    return None if missing else faults.attempt(("model",), lambda: Model(**shape))


def _profile(checked: dict[str, Any], faults: _Faults) -> Profile | None:
    """Return costs measured by `ppsim calibrate`, with the given partition and link."""
    given = checked["costs"]
    faults += _given_twice("costs", "profile", given.keys() - {"stage_layers", *LINK})
    if "model" in checked:
        faults.append((("model",), "excludes costs.profile, which prices a model by itself; leave one out"))
    profile = faults.attempt(("costs", "profile"), lambda: read_profile(given["profile"]))
    link = {name: given[name] for name in LINK if name in given}
    for name, value in link.items():
        if not isinstance(value, float | int):
            faults.append((("costs", name), f"{shown(value)} must be one number: a profile has equal links"))
    if faults or profile is None:
        return None
    profile = profile.with_link(**link) if link else profile
    if "stage_layers" not in given:
        return profile
    return faults.attempt(("costs", "stage_layers"), lambda: profile.cut(given["stage_layers"]))


def _cluster(section: dict[str, Any] | None, faults: _Faults) -> Cluster | None:
    """Return the cluster of the section `hardware`; None if it has faults."""
    if section is None:
        return None
    device = faults.attempt(("hardware", "device"), lambda: _device(section["device"]))
    links = [
        faults.attempt(("hardware", key), lambda sheet=section[key]: _sheet(LinkSheet, find_link, sheet))
        for key in ("link", "network")
        if key in section
    ]
    if device is None or None in links:
        return None
    others = {key: value for key, value in section.items() if key not in ("device", "link", "network", "gpus")}
    return Cluster(device, links[0], links[-1], **others)


def _device(section: dict[str, Any]) -> DeviceSheet:
    """Return a device's sheet; `operators` changes the operator law of the known device, or replaces it by a file's."""
    operators = section.get("operators")
    if operators is None:
        return _sheet(DeviceSheet, find_device, section)
    known = find_device(section["like"]) if "like" in section else None
    law = known.operators if known else None
    if isinstance(operators, str):
        measured = read_operators(operators)
        bandwidth = section.get("memory_bandwidth", known and known.memory_bandwidth) or measured.bandwidth
        section = {**section, "memory_bandwidth": bandwidth}
        operators = measured.relative_to(section.get("peak", known.peak if known else measured.peak), bandwidth)
    if law is None and (missing := _missing_fields(OperatorLaw, operators)):
        raise ConfigError(
            f"operators gives no {', '.join(missing)}; give {', '.join(_required_fields(OperatorLaw))}, or like"
        )
    changed = replace(law, **{"source": "given", **operators}) if law else OperatorLaw(**operators)
    return _sheet(DeviceSheet, find_device, {**section, "operators": changed})


def _sheet(kind: Any, find: Callable[[str], Any], section: dict[str, Any]) -> Any:
    """Return the known sheet that `like` names, with the other keys changed; without `like`, a sheet of these keys."""
    changes = {key: value for key, value in section.items() if key != "like"}
    if "like" in section:
        sheet, known = find(section["like"]), kind.__dataclass_fields__
        with_source = {name for name in changes if f"{name}_source" in known}  # these fields have a source of their own
        own_sources = {f"{name}_source" for name in with_source}
        others = changes.keys() - {"name", *with_source, *own_sources}
        if others and "source" not in changes:
            changes["source"] = f"given: {', '.join(sorted(others))}; else {sheet.source}"
        unknown = {"usable": None} if "memory" in changes and "usable" in known else {}
        return replace(sheet, **dict.fromkeys(own_sources, "given") | unknown | changes)
    if missing := _missing_fields(kind, changes):
        raise ConfigError(
            f"gives no {', '.join(missing)}; give {', '.join(_required_fields(kind))}, or like: a known one"
        )
    return kind(**{"name": "the user's own", **changes})


def _required_fields(kind: Any) -> list[str]:
    """Return the fields without a default, except the name."""
    return [item.name for item in fields(kind) if item.default is MISSING and item.name != "name"]


def _missing_fields(kind: Any, given: Collection[str]) -> list[str]:
    """Return the required fields that are not given."""
    return [name for name in _required_fields(kind) if name not in given]
