"""Cases: a state of the page as a checked config, its run as data for the page, and as texts to copy."""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.resources import files
from pprint import pformat
from typing import Any

from ppsim.analysis.measures import shown_in
from ppsim.base.compiling import ROWS_WORTH_COMPILING, ROWS_WORTH_LOADING, can_compile
from ppsim.base.errors import ConfigError, CostError, PpsimError, shown
from ppsim.base.files import decoded
from ppsim.base.units import parse_quantity
from ppsim.config import Config, ConfigSource, config_source, config_yaml, load_config
from ppsim.config.schema import check_sections, named_files
from ppsim.explorer.keys import SECTIONS, SINGLE_KEYS, SLOW_DEVICES, keys_of, may_change
from ppsim.families.registry import RegisteredFamily
from ppsim.frameworks import frameworks_running
from ppsim.interop.result import plain
from ppsim.lowering.posts import TRANSPORTS
from ppsim.plots.boxes import costs_text, make_boxes
from ppsim.plots.page_data import page_data
from ppsim.plots.viewer import viewer_html
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.orders import csv_text, schedule_from_csv
from ppsim.search import families, find_family
from ppsim.studies.reasons import idle_shares

# Key of a case -> key of the config. Further keys: see `changes_of`.
KEYS = {
    "schedule": "schedule.name", "devices": "schedule.devices", "microbatches": "schedule.microbatches",
    "stages_per_device": "schedule.stages_per_device", "forward": "costs.forward", "backward": "costs.backward",
    "input_grad": "costs.input_grad", "weight_grad": "costs.weight_grad", "overlap": "costs.overlap",
    "latency": "costs.latency", "transport": "transport",
}  # fmt: skip
PLACE = "explorer"
CSV_NAME = "dropped.csv"
MAX_ACTIONS = 2_000_000  # per case; a page of this many has about 15 MB
LONGEST_VALUE = 200  # characters of a value; partitions of layers are the longest
MAX_CASES = 4

COSTS = ("forward", "backward", "input_grad", "weight_grad", "overlap", "latency")  # keys that take a list
ROW_COSTS = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 1.0, "latency": 0.0}  # of a device, and their defaults
TIMES = ("forward", "input_grad", "weight_grad")
_FACTOR = re.compile(r"[x×]\s*(\d+(?:\.\d+)?)")  # of a cost by device, in place of seconds
MAX_ROWS = 256  # of costs by device
_SLOW = re.compile(r"\{?\s*\d+\s*:[^,:]+(,\s*\d+\s*:[^,:]+)*")  # slower devices, such as "3: 1.5"

Case = Mapping[str, Any]
Configs = Mapping[str, str]  # name on the page -> path named on the command line


def changes_of(case: Case, configs: Configs, by_factor: bool = False) -> dict[str, Any]:
    """Return the dotted config keys that a case sets; raise ConfigError for an unknown key or an invalid value.

    `by_factor`: costs by device are one factor per device, as for schedules that have a stage on two devices.
    """
    known = (*KEYS, "config", "csv", "options", "changes", "by_device", "memory_limit")
    unknown = [key for key in case if key not in known]
    if unknown:
        raise ConfigError(f"{PLACE}: unknown key {shown(unknown[0])}; the keys are: {', '.join(known)}")
    if "config" in case and case["config"] not in list(configs):  # `in` a list also takes unhashable values
        raise ConfigError(f"this server has no config {shown(case['config'])}: start one with it")
    options, changes = _section(case, "options"), dict(_section(case, "changes"))
    for key in changes:
        if not may_change(key):
            legal = f"{', '.join(f'{name}.*' for name in SECTIONS)}, {', '.join(SINGLE_KEYS)}"
            raise ConfigError(f"{shown(key)}: cannot be changed here; these can: {legal}")
    if isinstance(slow := changes.get(SLOW_DEVICES), str) and _SLOW.fullmatch(slow.strip()):
        changes[SLOW_DEVICES] = "{" + slow.strip(" {}").replace(":", ": ") + "}"
    listed = _with_lists(case, by_factor)
    given = {KEYS[key]: value for key, value in listed.items() if key in KEYS}
    given |= {f"jitter.slow_devices.{device}": factor for device, factor in listed.get("slow", {}).items()}
    limit, name = limit_of(case), case.get("schedule")
    takes_limit = name in list(families()) and "memory_limit" in families()[name].options
    in_bytes = "config" in case and _costs_of(configs[case["config"]]) is None  # families take activations
    if limit is not None and takes_limit and not in_bytes and "memory_limit" not in options:
        given["memory_limit"] = limit
    given |= {f"schedule.options.{key}": value for key, value in options.items()} | changes
    for key, value in given.items():
        _check_value(key, value)
    own = config_source(configs[case["config"]]).data if "config" in case else {}
    costs, schedule = (one if isinstance(one, dict) else {} for one in (own.get("costs"), own.get("schedule")))
    if "backward" in costs and "backward" not in case and {"input_grad", "weight_grad"} <= case.keys():
        given = {"costs.backward": None} | given
    if "config" in case and not options and case.get("schedule") not in (None, schedule.get("name")):
        given = {"schedule.options": None, "schedule.stages_per_device": None} | given
    _check_files(case, given, configs)
    if "csv" not in case:
        return given
    others = {key: value for key, value in given.items() if not key.startswith("schedule.")}
    return others | {"schedule.csv": CSV_NAME}


def limit_of(case: Case) -> float | None:
    """Return the limit on the memory of a device, in activations or, if the costs know bytes, in GB; None without."""
    if "memory_limit" not in case:
        return None
    with suppress(TypeError, ValueError, OverflowError):
        if 0 < (limit := float(case["memory_limit"])) < math.inf:
            return limit
    raise ConfigError(f"memory_limit: {shown(case['memory_limit'])} must be a number above 0, such as 8, or empty")


def _with_lists(case: Case, by_factor: bool) -> dict[str, Any]:
    """Return the case with texts such as "1, 1, 1, 1.6" as lists, and with `by_device` as a list per cost.

    Where a stage is on two devices, lists would be by stage: `slow` then has the factor of each device.
    """
    given = {key: _listed(key, value) if key in COSTS else value for key, value in case.items()}
    rows = case.get("by_device", [])
    if not isinstance(rows, list) or len(rows) > MAX_ROWS or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"by_device: {shown(rows)} must list up to {MAX_ROWS} rows: {{devices: 3, forward: 2}}")
    count = schedule_of(case["csv"]).devices if "csv" in case else case.get("devices")
    if type(count) is not int or count < 1 or count > MAX_ACTIONS:
        return given  # the config's check names the fault
    for row in rows:
        for key in row.keys() & ROW_COSTS.keys():
            common = given.get(key, ROW_COSTS[key])
            if isinstance(common, list) and len(common) != count:
                legal = f"with rows by device it must have {count}, one per device"
                raise ConfigError(f"costs.{key}: lists {len(common)} values; {legal}, or be one number")
            every = common if isinstance(common, list) else _seconds(key, common) * count
            times = isinstance(row[key], str) and _FACTOR.fullmatch(row[key].strip())
            own = None if times else _seconds(key, row[key])[0]
            chosen = set(_devices_in(row.get("devices", ""), count))
            given[key] = [
                value if device not in chosen else value * float(times[1]) if times else own
                for device, value in enumerate(every)
            ]
    if not any(row.keys() & set(TIMES) for row in rows):
        return given
    name = str(case.get("schedule"))
    shared = has_shared_stages(schedule_of(case["csv"])) if "csv" in case else _family_shares_stages(name)
    if not (by_factor or shared):
        return given
    usual = {key: _seconds(key, case.get(key, ROW_COSTS[key])) for key in TIMES}
    now = {key: given[key] if isinstance(given.get(key), list) else usual[key] * count for key in TIMES}
    factors = [{round(now[key][device] / (usual[key][0] or 1), 9) for key in TIMES} for device in range(count)]
    if any(len(one) > 1 for one in factors) or any(len(one) > 1 or not one[0] for one in usual.values()):
        raise ConfigError(
            "each stage of this schedule is on two devices: give F, I and W of a device in one proportion"
        )
    given |= {key: usual[key][0] for key in TIMES}
    return given | {"slow": {device: own for device, (own,) in enumerate(factors) if own != 1}}


def scaled_rows(case: Case) -> list[dict[str, Any]]:
    """Return the costs by device of a case with one factor for F, I and W of each row, that of its first cost."""
    rows = []
    for row in case["by_device"]:
        factors = [
            float(times[1]) if (times := _FACTOR.fullmatch(str(row[key]).strip()))
            else _seconds(key, row[key])[0] / (_seconds(key, case.get(key, ROW_COSTS[key]))[0] or 1)
            for key in TIMES if row.get(key, "") != ""
        ]  # fmt: skip
        rows.append({**row, **(dict.fromkeys(TIMES, f"x{factors[0]:g}") if factors else {})})
    return rows


def has_shared_stages(schedule: ScheduleColumns) -> bool:
    """Return whether several devices hold the same stage."""
    return len(schedule.holdings) > schedule.num_stages


@functools.lru_cache(64)
def _family_shares_stages(name: str) -> bool:
    """Return whether several devices hold the same stage of a family, by a small schedule."""
    with suppress(PpsimError, KeyError):
        return has_shared_stages(families()[name].columns(4, 8))
    return False


def _devices_in(text: Any, count: int) -> list[int]:
    """Return the devices that a text such as "0", "8-15", "3, last" or "all" names; ConfigError for another."""
    found: list[int] = []
    for part in str(text).lower().replace("\u2013", "-").replace("last", str(count - 1)).split(","):
        first, _, last = part.replace("all", f"0-{count - 1}").partition("-")
        ends = [int(one) for one in (first, last or first) if one.strip().isdecimal()]
        if len(ends) < 2 or not ends[0] <= ends[1] < count:
            legal = f"must name devices from 0 to {count - 1}, such as 0, 0-{count - 1} or last"
            raise ConfigError(f"by_device: {shown(str(text))} {legal}")
        found += range(ends[0], ends[1] + 1)
    return found


def _listed(key: str, value: Any) -> Any:
    """Return a list of seconds for a text with commas, and anything else as it is; ConfigError for other texts."""
    if not isinstance(value, str) or len(value) > LONGEST_VALUE:
        return value
    seconds = _seconds(key, value)
    return seconds if len(seconds) > 1 else value


def _seconds(key: str, value: Any) -> list[float]:
    """Return the seconds in a number, or in a text such as "12 ms" or "1, 1, 1, 1.6"; ConfigError for anything else."""
    parts = value.strip().removeprefix("[").removesuffix("]").split(",") if isinstance(value, str) else [value]
    try:
        return [parse_quantity(part, "seconds") for part in parts]
    except ConfigError:
        raise ConfigError(f"costs.{key} {shown(value)}: must be seconds of at least 0, such as 1.6 or 12 ms") from None


def _section(case: Case, name: str) -> Mapping[str, Any]:
    section = case.get(name, {})
    if not isinstance(section, dict) or any("." in key and name == "options" for key in section):
        raise ConfigError(f"{name}: {shown(section)} must be names with values")
    return section


def _check_value(key: str, value: Any) -> None:
    if isinstance(value, list) and value and all(isinstance(one, int | float) and one < math.inf for one in value):
        return
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{key}: {shown(value)} must be a number or a text")
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        raise ConfigError(f"{key}: a text of {len(value)} characters; shorten it to {LONGEST_VALUE}")


def _check_files(case: Case, changes: Mapping[str, Any], configs: Configs) -> None:
    """Raise ConfigError if the changes name a file that the case's config does not name itself."""
    own = config_source(configs[case["config"]] if "config" in case else {})
    known = named_files(check_sections(dict(own.data))[0])
    for path, name in named_files(check_sections(dict(own.changed(changes).data))[0]).items():
        if known.get(path) != name:
            key = ".".join(map(str, path))
            raise ConfigError(f"{key}: cannot be changed here to the file {shown(str(name))}; name it in the config")


def schedule_of(text: Any, name: str | None = None, slices: int = 1) -> Schedule:
    """Return the schedule in the text of a dropped CSV file. Raises ConfigError, ScheduleError."""
    if not isinstance(text, str):
        raise ConfigError("csv: must be the text of a file")
    plain_text = decoded(text.encode("utf-8", "surrogatepass"), CSV_NAME)
    return Schedule.of(schedule_from_csv(plain_text, CSV_NAME, name, slices))


def config_of(case: Case, changes: Mapping[str, Any], configs: Configs) -> Config:
    """Return the checked config of a case; raise ConfigError if it is faulty."""
    if "config" in case:
        config = load_config(configs[case["config"]], overrides=changes)
    else:
        config = ConfigSource({"name": str(case.get("schedule", CSV_NAME))}, PLACE).config(changes)
    _check_actions(config)
    return config


def _check_actions(config: Config) -> None:
    """Raise ConfigError if a case has more actions than a page can show, without building its schedule."""
    section = config.schedule
    if "csv" in section:
        return
    stages = section.get("stages_per_device") or find_family(section["name"]).stages_per_device
    factors = [value for value in section.get("options", {}).values() if isinstance(value, int) and value > 1]
    count = section["microbatches"]
    actions = 2 * math.prod([section["devices"], count, stages, *factors])
    if actions > MAX_ACTIONS:
        most = MAX_ACTIONS * count // actions
        legal = f"at most {most} microbatches" if most else "fewer devices"
        raise ConfigError(f"microbatches={count}: {actions:,} actions, more than the explorer draws; use {legal}")


def simulated(case: Case, changes: Mapping[str, Any], configs: Configs) -> tuple[Config, Timeline]:
    """Return a case's config and its run, from the compiled engine if it is loaded; both engines give equal runs."""
    config = config_of(case, changes, configs)
    if config.engine == "auto" and _loaded.is_set():
        config = replace(config, engine="compiled")
    if "csv" not in case:
        return config, config.simulate()
    schedule = schedule_of(case["csv"], config.name, config.schedule.get("slices", 1))
    return config, config.simulate(config.completed(schedule))


def simulated_case(case: Case, configs: Configs) -> dict[str, Any]:
    """Return chart, measures with definitions, memory and texts to copy of a simulated case. Raises PpsimError."""
    changes = changes_of(case, configs)
    config, run = simulated(case, changes, configs)
    boxes = make_boxes(run)
    chart = page_data(boxes)
    if limit := limit_of(case):  # in place of the device's memory
        chart["memory"] |= {"capacity": limit if run.peak_memory is None else limit * 1e9, "device": None}
    return {
        "name": run.schedule.name if "csv" not in case else CSV_NAME,
        "actions": len(run.schedule),
        "makespan": run.makespan,
        "engine": run.engine,
        "chart": chart,
        "costs": costs_text([boxes]) if config.model else "",  # others are in the page's table
        "cause": next(iter(idle_shares(run).items())),
        "measures": [
            {
                "name": measure.name, "title": measure.title, "meaning": measure.brief,
                "text": measure.text(run), "number": plain(measure.number(run)),
            }
            for measure in shown_in("summary")
            if measure.is_shown_for(run)
        ],
        "lower_bound": plain(run.lower_bound()),
        "memory": _memory(run),
        "copies": copies_of(config, changes, configs.get(case.get("config", ""))),
    }  # fmt: skip


def _memory(run: Timeline) -> str:
    with suppress(CostError):
        return run.memory().summary()
    return ""


def validated(case: Case, _: Configs) -> dict[str, Any]:
    """Return the number of actions in a case's CSV file; raise ScheduleError with every fault."""
    schedule = schedule_of(case.get("csv"))
    schedule.validate()
    return {"actions": len(schedule)}


def file_of(asked: Case, configs: Configs, ending: str) -> bytes:
    """Return the bytes of a page, chart or schedule of a case, or of several in `cases`. Raises PpsimError."""
    cases = asked.get("cases", [asked])
    is_list = isinstance(cases, list) and 1 <= len(cases) <= MAX_CASES
    if not (is_list and all(isinstance(case, dict) for case in cases)):
        raise ConfigError(f"cases: must list 1 to {MAX_CASES} cases")
    runs = [simulated(case, changes_of(case, configs), configs)[1] for case in cases]
    if ending == "csv":
        return csv_text(runs[0].schedule).encode()
    if ending == "html":
        return viewer_html(*map(make_boxes, runs)).encode()
    from ppsim.plots.figures import rendered  # matplotlib takes half a second to load
    from ppsim.plots.gantt import draw

    return rendered(draw(runs), ending)


_loaded = threading.Event()
QUIET_SECONDS = 1.5  # the page sends its first requests meanwhile; loading the compiled engine would delay them


def load_later() -> None:
    """Load the compiled engine in this process when the first requests have had their time."""
    loading = threading.Timer(QUIET_SECONDS, _load_engine)
    loading.daemon = True
    loading.start()


def _load_engine() -> None:
    """Load the compiled engine, which takes seconds; afterwards this process also runs small cases with it."""
    if not can_compile():
        return
    for rows in (2 * ROWS_WORTH_LOADING, ROWS_WORTH_COMPILING):  # the second only without a cache of compiled code
        case = {"schedule": "1f1b", "devices": 8, "microbatches": rows // 16}
        if all(
            simulated_case({**case, "transport": transport}, {})["engine"] == "compiled"
            for transport in ("directed", "async")
        ):
            break
    _loaded.set()


def choices(configs: Configs) -> dict[str, Any]:
    """Return the page's choices: families with their options, transports, and configs with their schedules."""
    return {
        "families": [
            {
                **family.describe(),
                "group": family.group,
                "runs": ", ".join(frameworks_running(family.name)),
                "stages_per_device": family.stages_per_device,
                "fixed_stages": family.fixed_stages,
                "options": {
                    key: None if option.default is option.empty else plain(option.default)
                    for key, option in family.options.items()
                    if key != "costs"
                },
                "words": _words_of(family),
            }
            for family in families().values()
        ],
        "transports": list(TRANSPORTS),
        "first": json.loads(files("ppsim.explorer").joinpath("page", "first.json").read_text(encoding="utf-8")),
        "configs": {
            name: {"schedule": plain(dict(load_config(path).schedule)), "keys": keys_of(path), "costs": _costs_of(path)}
            for name, path in configs.items()
        },
    }


def _words_of(family: RegisteredFamily) -> dict[str, list[str]]:
    """Return the values of each option that is one of some words, as the option's error lists them."""
    found = {}
    for key in [key for key, option in family.options.items() if isinstance(option.default, str)]:
        try:
            family.columns(4, 8, None, **{key: "?"})
        except PpsimError as error:
            if "use one of: " in str(error):
                found[key] = str(error).partition("use one of: ")[2].split(", ")
    return found


def _costs_of(path: str) -> dict[str, Any] | None:
    """Return the costs and the transport that a config gives as numbers; None if it derives or measures its costs."""
    data = config_source(path).data
    if "model" in data or "profile" in data.get("costs", {}):
        return None
    costs = {key: data.get("costs", {}).get(key) for key in COSTS}
    return {key: value for key, value in plain(costs).items() if value is not None}


# A case as texts to copy: the command line, the YAML config, and the Python code that run it

# Key of the config -> option of `ppsim simulate`.
FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()}
OPTION = "schedule.options."


def copies_of(config: Config, changes: Mapping[str, Any], path: str | None) -> dict[str, str]:
    """Return a case as `command`, `config` and `python` to copy, based on the config file at `path` if given."""
    return {"command": _command(changes, path), "config": config_yaml(config), "python": _python(config, changes, path)}


def _command(changes: Mapping[str, Any], path: str | None) -> str:
    words = ["ppsim", "simulate", *([path] if path else [])]
    for key, value in changes.items():
        if value is None and "schedule.csv" in changes:
            continue  # --schedule also removes the keys of the config's own schedule
        if value is None:
            words += ["--set", f"{key}=null"]
        elif key == "schedule.csv":
            words += ["--schedule", str(value)]
        elif key in FLAGS and not isinstance(value, list):
            words += [FLAGS[key], _text(value)]
        elif key.startswith(OPTION):
            words += ["--option", f"{key.removeprefix(OPTION)}={_text(value)}"]
        else:
            words += ["--set", f"{key}={_text(value)}"]
    return shlex.join(words)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _python(config: Config, changes: Mapping[str, Any], path: str | None) -> str:
    named = f"config = {pformat(dict(config.data), sort_dicts=False)}\n" * (path is None)
    given = f"{path!r}, overrides={dict(changes)!r}" if path else "config"
    return f"import ppsim\n\n{named}run = ppsim.load_config({given}).simulate()\nprint(run.summary())\n"
