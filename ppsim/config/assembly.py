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
from ppsim.costs.tower_costs import BACKBONE, EncoderTower, TowerCosts, towers_of
from ppsim.lowering.sharding import WINDOW, Window
from ppsim.plan.jitter import Jitter
from ppsim.search import find_family
from ppsim.search.memory_actions import NEEDED

# Costs of a link, which a profile of one device or of another machine lacks.
LINK = ("latency", "bandwidth", "transfer_bytes")
GIVEN = "excludes {0}: the file gives it; leave it out"
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
    faults += _partner_faults(checked, layout, cluster)
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


def _towers(
    section: dict[str, Any], path: Path, checked: dict[str, Any], costs: Any, cluster: Cluster | None,
    layout: Layout | None, faults: _Faults,
) -> TowerCosts | None:  # fmt: skip
    """Return the costs of a section `encoder`, at `path`, before a backbone with these costs."""
    faults += _encoder_faults(section, path, checked, layout)
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
        own = faults.attempt((*path, "model"), lambda: _encoder_costs(section, int(size), cluster, layout.framework))
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


def _broken(rules: Iterable[tuple[str, str, Any]], above: Path = ()) -> list[Fault]:
    """Return the faults of rules: each has a dotted key below `above`, what is wrong there, and whether it is."""
    return [((*above, *key.split(".")), message) for key, message, is_broken in rules if is_broken]


def missing_keys(data: Mapping[str, Any]) -> list[Fault]:
    """Return a fault for each missing key of a schedule without a CSV file; `lengths` give the microbatches."""
    section = data.get("schedule")
    if not isinstance(section, dict) or "csv" in section:
        return []
    needed = ("name", "devices") if "lengths" in data else ("name", "devices", "microbatches")
    why = "is missing; a schedule has name, devices and microbatches, or csv"
    return _broken((f"schedule.{key}", why, section.get(key) is None) for key in needed)


def _schedule_faults(section: dict[str, Any]) -> list[Fault]:
    if "csv" in section:
        return _broken((f"schedule.{key}", GIVEN.format("csv"), key in section) for key in FAMILY_KEYS)
    family = find_family(section["name"]) if "name" in section else None
    known, options = family.options if family else {}, section.get("options", {}) if family else {}
    legal = ", ".join(name for name in known if name != "costs") or "none"
    return _broken([
        ("slices", "needs csv; a family takes it as an option", "slices" in section),
        *((f"options.{key}", f"unknown option of {section['name']}; its options are: {legal}", key not in known)
          for key in options),
    ], ("schedule",))  # fmt: skip


def _partner_faults(checked: dict[str, Any], layout: Layout | None, cluster: Cluster | None) -> list[Fault]:
    """Return the faults of keys that need or exclude others."""
    schedule, given, has_limit = checked["schedule"], checked.get("costs", {}), "memory_limit" in checked
    own = schedule.get("options", {}) if "name" in schedule else {}
    limited_twice = "memory_limit" in own and "memory_limit" in find_family(schedule["name"]).options
    windows = [key for key in WINDOW if key in schedule]
    gathers = "unshard" in given or (layout and layout.shards_by("stage"))
    no_model = "needs a section `model`; without one all costs are given in `costs`"
    needs_gathers = "needs weights that are gathered by stage: layout.sharded with sharded_by: stage, or costs.unshard"
    has_bandwidth = cluster is None or cluster.device.memory_bandwidth is not None or "optimizer_step" in given
    faults = _Faults(_broken([
        ("hardware", "is missing; a model is priced on a device and a link",
         "model" in checked and "hardware" not in checked),
        *((key, no_model, key in checked and "model" not in checked) for key in ("hardware", "layout", "batch")),
        *((f"schedule.{key}", needs_gathers, not gathers) for key in windows),
        ("schedule.offload", "excludes recompute; leave one of them out", {"recompute", "offload"} <= schedule.keys()),
        ("schedule.recompute_placing", "has no effect without recompute; give recompute too, such as all",
         "recompute_placing" in schedule and "recompute" not in schedule),
        ("schedule.recompute", f"{NEEDED} requires memory_limit, such as memory_limit: 4",
         schedule.get("recompute") == NEEDED and not has_limit),
        ("schedule.options.memory_limit", "excludes memory_limit; give one of them", has_limit and limited_twice),
        ("hardware.device", "gives no memory_bandwidth, which the optimizer step is priced by; give it, or "
         "costs.optimizer_step", "optimizer" in checked and not has_bandwidth),
    ]))  # fmt: skip
    if windows and gathers:
        window = {key: schedule[key] for key in windows}
        faults.attempt(("schedule", windows[-1]), lambda: Window(**window).distances(schedule.get("devices", 1)))
    return faults


def _length_faults(section: dict[str, Any], checked: dict[str, Any]) -> list[Fault]:
    given, schedule, has_model = checked.get("costs", {}), checked["schedule"], "model" in checked
    devices = schedule.get("devices", 1)
    why = "excludes lengths, which give the microbatches and their order"
    of_model = "follows from the model; leave it out" if has_model else "needed without model"
    return _broken([
        *(("lengths", f"excludes {key}", key in checked) for key in ("encoder", "batch")),
        ("lengths", "excludes schedule.csv: a step has the microbatches that its sequences need", "csv" in schedule),
        *((f"lengths.{key}", of_model, (key in section) == has_model) for key in ("tokens", "attention")),
        *((f"costs.{key}", why, key in given) for key in ("microbatch_scale", "microbatch_order")),
        ("lengths.packing", f"{DYNAMIC} runs without a pipeline, as in Megatron-LM, but there are {devices} devices; "
         "use balance", section.get("packing") == DYNAMIC and devices > 1),
    ])  # fmt: skip


def _encoder_faults(section: dict[str, Any], path: Path, checked: dict[str, Any], layout: Layout | None) -> list[Fault]:
    own, another, placement = (
        section.get("layout", {}),
        section.get("another", {}),
        section.get("placement", "separate"),
    )
    has_model, name = "model" in section, EncoderTower.name
    missing = _missing_fields(Model, ("vocabulary", *section["model"])) if has_model else []
    gpus = math.prod(own.get(key, 1) for key in ("tensor", "context", "data"))
    each = layout.gpus_per_device if layout else gpus
    return _broken([
        ("model", "is given if, and only if, the section `model` is: costs follow from both",
         has_model != ("model" in checked)),
        *((key, "needs encoder.model", key in section and not has_model) for key in ("images", "merge", "layout")),
        *((f"model.{key}", "is missing; give it", True) for key in missing),
        ("layout.microbatch_size", "follows from images, batch and the copies of both", "microbatch_size" in own),
        ("another.placement", "must be that of the encoder before it",
         another and another.get("placement", "separate") != placement),
        ("another.name", "must differ from the name of the encoder before it",
         another and another.get("name", name) == section.get("name", name)),
        ("another.copies", "needs one encoder; use another.layout.data", another.get("copies", 1) > 1),
        ("layout", f"tensor x context x data is {gpus}, but the encoder runs on the {each} GPUs of each pipeline "
         "device", placement != "separate" and has_model and gpus != each),
    ], path)  # fmt: skip


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
    others = ("profile", "stage_layers", *LINK)
    faults += _broken([
        *((f"costs.{key}", GIVEN.format("profile"), key not in others) for key in given),
        ("model", "excludes costs.profile, which prices a model by itself; leave one out", "model" in checked),
    ])  # fmt: skip
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
