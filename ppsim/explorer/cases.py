"""Cases: a state of the page as a checked config, and the run of this config as data for the page."""

from __future__ import annotations

import io
import json
import math
import shlex
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ruamel.yaml import YAML

from ppsim.analysis.measures import shown_in
from ppsim.base.compiling import ROWS_WORTH_COMPILING, ROWS_WORTH_LOADING, can_compile
from ppsim.base.errors import ConfigError, CostError, PpsimError, shown
from ppsim.base.files import decoded
from ppsim.base.rules import declarations
from ppsim.config import Config, config_source, load_config, make_config
from ppsim.config.schema import check_sections, named_files
from ppsim.costs import Layout, Model
from ppsim.interop.result import plain
from ppsim.lowering.posts import TRANSPORTS
from ppsim.plan.streams import OPTIMIZERS
from ppsim.plots.boxes import make_boxes
from ppsim.plots.page_data import page_data
from ppsim.plots.viewer import viewer_html
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.orders import csv_text, schedule_from_csv
from ppsim.search import families, find_family

PLACE = "explorer"
CSV_NAME = "dropped.csv"
MAX_ACTIONS = 2_000_000  # per case; a page of this many has about 15 MB
LONGEST_VALUE = 200  # characters of a value; partitions of layers are the longest
MAX_CASES = 4

# Key of a case -> key of the config. Further keys of a case: `config`, `csv`, `options` and `changes`.
KEYS = {
    "schedule": "schedule.name", "devices": "schedule.devices", "microbatches": "schedule.microbatches",
    "stages_per_device": "schedule.stages_per_device", "forward": "costs.forward", "backward": "costs.backward",
    "input_grad": "costs.input_grad", "weight_grad": "costs.weight_grad", "overlap": "costs.overlap",
    "latency": "costs.latency", "transport": "transport",
}  # fmt: skip
# Key of the config -> option of `ppsim simulate`.
FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()}
OPTION = "schedule.options."
FAMILY_KEYS = ("name", "devices", "microbatches", "stages_per_device", "options")

Case = Mapping[str, Any]
Configs = Mapping[str, str]  # name on the page -> path named on the command line


def changes_of(case: Case, configs: Configs) -> dict[str, Any]:
    """Return the dotted config keys that a case sets; raise ConfigError for an unknown key or an invalid value."""
    known = (*KEYS, "config", "csv", "options", "changes")
    unknown = [key for key in case if key not in known]
    if unknown:
        raise ConfigError(f"{PLACE}: unknown key {shown(unknown[0])}; the keys are: {', '.join(known)}")
    if "config" in case and case["config"] not in list(configs):  # `in` a list also takes unhashable values
        raise ConfigError(f"config: {shown(case['config'])} was not named on the command line of `ppsim explore`")
    options, changes = _section(case, "options"), _section(case, "changes")
    for key in changes:
        if not may_change(key):
            legal = f"{', '.join(f'{name}.*' for name in SECTIONS)}, {', '.join(SINGLE_KEYS)}"
            raise ConfigError(f"{shown(key)}: cannot be changed here; these can: {legal}")
    given = {KEYS[key]: value for key, value in case.items() if key in KEYS}
    given |= {f"schedule.options.{key}": value for key, value in options.items()} | dict(changes)
    for key, value in given.items():
        _check_value(key, value)
    if "config" in case and not options and case.get("schedule") not in (None, _own_family(configs[case["config"]])):
        given = {"schedule.options": None, "schedule.stages_per_device": None} | given
    _check_files(case, given, configs)
    return _with_csv(given, case, configs) if "csv" in case else given


def _with_csv(changes: dict[str, Any], case: Case, configs: Configs) -> dict[str, Any]:
    """Return the changes with the dropped CSV file in the place of the config's schedule."""
    own = config_source(configs[case["config"]]).data.get("schedule") if "config" in case else {}
    replaced = {f"schedule.{key}": None for key in FAMILY_KEYS if isinstance(own, dict) and key in own}
    others = {key: value for key, value in changes.items() if not key.startswith("schedule.")}
    return others | replaced | {"schedule.csv": CSV_NAME}


def _section(case: Case, name: str) -> Mapping[str, Any]:
    section = case.get(name, {})
    if not isinstance(section, dict) or any("." in key and name == "options" for key in section):
        raise ConfigError(f"{name}: {shown(section)} must be names with values")
    return section


def _check_value(key: str, value: Any) -> None:
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(f"{key}: {shown(value)} must be a number or a text")
    if isinstance(value, str) and len(value) > LONGEST_VALUE:
        raise ConfigError(f"{key}: a text of {len(value)} characters; use at most {LONGEST_VALUE}")


def _own_family(path: str) -> Any:
    section = config_source(path).data.get("schedule")
    return section.get("name") if isinstance(section, dict) else None


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
        config = make_config({"name": str(case.get("schedule", CSV_NAME))}, place=PLACE, overrides=changes)
    _check_actions(config)
    return config


def _check_actions(config: Config) -> None:
    """Raise ConfigError if a case has more actions than a page can show, without building its schedule."""
    section = config.schedule
    if "csv" in section:
        return
    stages = section.get("stages_per_device") or find_family(section["name"]).stages_per_device
    factors = [value for value in section.get("options", {}).values() if isinstance(value, int) and value > 1]
    actions = 2 * math.prod([section["devices"], section["microbatches"], stages, *factors])
    if actions > MAX_ACTIONS:
        raise ConfigError(f"{actions} actions are more than the explorer draws; stay below {MAX_ACTIONS}")


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
    return {
        "name": run.schedule.name if "csv" not in case else CSV_NAME,
        "actions": len(run.schedule),
        "makespan": run.makespan,
        "engine": run.engine,
        "chart": page_data(make_boxes(run)),
        "measures": [
            {
                "name": measure.name, "title": measure.title, "unit": measure.unit, "meaning": measure.brief,
                "text": measure.text(run), "number": plain(measure.number(run)),
                "worse": None if measure.name == "lower_bound" else measure.bigger_is_worse,
            }
            for measure in shown_in("summary")
            if measure.is_shown_for(run)
        ],
        "lower_bound": plain(run.lower_bound()),
        "memory": _memory(run),
        "copies": _copies(config, changes, configs.get(case.get("config", ""))),
    }  # fmt: skip


def _memory(run: Timeline) -> dict[str, Any]:
    try:
        memory = run.memory()
    except CostError as error:
        return {"unknown": str(error)}
    fits = memory.fits() if memory.capacity is not None else None
    return {**plain(memory.to_dict()), "fits": fits, "text": memory.summary()}


def validated(case: Case) -> dict[str, Any]:
    """Return the sizes of the schedule in a case's CSV file; raise ScheduleError with every fault."""
    schedule = schedule_of(case.get("csv"))
    schedule.validate()
    return {
        "valid": True,
        "devices": schedule.devices,
        "stages": schedule.num_stages,
        "microbatches": schedule.microbatches,
        "actions": len(schedule),
    }


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
    from ppsim.plots.gantt import draw, draw_comparison

    return rendered(draw(runs[0]) if len(runs) == 1 else draw_comparison(runs), ending)


_loaded = threading.Event()


def load_engine() -> None:
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
                "stages_per_device": family.stages_per_device,
                "fixed_stages": family.fixed_stages,
                "options": {
                    key: None if option.default is option.empty else plain(option.default)
                    for key, option in family.options.items()
                    if key != "costs"
                },
            }
            for family in families().values()
        ],
        "transports": list(TRANSPORTS),
        "configs": {
            name: {"schedule": plain(dict(load_config(path).schedule)), "keys": keys_of(path)}
            for name, path in configs.items()
        },
    }


def request_for(work: str, configs: Configs, body: bytes) -> bytes:
    """Return the message to a worker: "simulate", "validate" or the ending of a file, configs, and a request's body."""
    return json.dumps([work, dict(configs)]).encode() + b"\n" + body


def answer_to(request: bytes) -> bytes:
    """Return a worker's answer: three digits of an HTTP status, and the body.

    An error in the user's input gives 422 with its faults; a fault of the program gives 500 with its text.
    """
    about, _, body = request.partition(b"\n")
    work, configs = json.loads(about)
    try:
        case = _case_in(body)
        done = (
            simulated_case(case, configs) if work == "simulate"
            else validated(case) if work == "validate"
            else file_of(case, configs, work)
        )  # fmt: skip
        return b"200" + (done if isinstance(done, bytes) else json.dumps(done, allow_nan=False).encode())
    except PpsimError as error:
        return b"422" + faults_body(getattr(error, "faults", [str(error)]))
    except MemoryError:
        return b"422" + faults_body(["not enough memory for this many actions; use fewer microbatches"])
    except Exception as error:
        return b"500" + f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")


def parsed_answer(answer: bytes) -> tuple[int, bytes]:
    """Return the HTTP status and the body of a worker's answer."""
    return int(answer[:3]), answer[3:]


def _case_in(body: bytes) -> dict[str, Any]:
    """Return the JSON object in the body of a request; raise ConfigError for anything else."""
    try:
        case = json.loads(body, parse_constant=_reject)
    except (ValueError, RecursionError):
        raise ConfigError("the body is no JSON document") from None
    if not isinstance(case, dict):
        raise ConfigError("the body must be a JSON object")
    return case


def _reject(name: str) -> Any:
    raise ValueError(name)


def faults_body(faults: list[str]) -> bytes:
    """Return the body of every response that reports faults."""
    return json.dumps({"faults": faults}).encode()


def _copies(config: Config, changes: Mapping[str, Any], path: str | None) -> dict[str, str]:
    """Return a case as `command`, `config` and `python` to copy, based on the config file at `path` if given."""
    return {
        "command": _command(changes, path),
        "config": _yaml(config),
        "python": _python(changes, path),
    }


def _command(changes: Mapping[str, Any], path: str | None) -> str:
    words = ["ppsim", "simulate", *([path] if path else [])]
    for key, value in changes.items():
        if value is None and "schedule.csv" in changes:
            continue  # --schedule also removes the keys of the config's own schedule
        if value is None:
            words += ["--set", f"{key}=null"]
        elif key == "schedule.csv":
            words += ["--schedule", str(value)]
        elif key in FLAGS:
            words += [FLAGS[key], _text(value)]
        elif key.startswith(OPTION):
            words += ["--option", f"{key.removeprefix(OPTION)}={_text(value)}"]
        else:
            words += ["--set", f"{key}={_text(value)}"]
    return shlex.join(words)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(config: Config) -> str:
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = False
    writer.dump({key: value for key, value in config_source(config).data.items() if value is not None}, text)
    return text.getvalue()


def _python(changes: Mapping[str, Any], path: str | None) -> str:
    if path:
        return (
            f"import ppsim\n\nrun = ppsim.load_config({path!r}, overrides={dict(changes)!r}).simulate()\n"
            "print(run.summary())\n"
        )
    schedule = _under(changes, "schedule.")
    options = _under(changes, OPTION)
    if "csv" in schedule:
        made = f"ppsim.Schedule.from_csv({str(schedule['csv'])!r})"
    else:
        sizes = [
            f"{key}={schedule[key]!r}" for key in ("devices", "microbatches", "stages_per_device") if key in schedule
        ]
        made = f"ppsim.build({', '.join([repr(schedule['name']), *sizes, *_arguments(options)])})"
    costs = f"ppsim.Costs({', '.join(_arguments(_under(changes, 'costs.')))})"
    transport = f", transport={changes['transport']!r}" if "transport" in changes else ""
    return (
        f"import ppsim\n\nschedule = {made}\nrun = ppsim.simulate(schedule, {costs}{transport})\nprint(run.summary())\n"
    )


def _under(changes: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key.removeprefix(section): value for key, value in changes.items() if key.startswith(section)}


def _arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value!r}" for key, value in values.items()]


SECTIONS, SINGLE_KEYS = ("layout", "hardware", "costs", "model"), ("optimizer", "batch")


def may_change(key: str) -> bool:
    """Return whether the page may set a dotted key."""
    return key.partition(".")[0] in SECTIONS if "." in key else key in SINGLE_KEYS


def keys_of(path: str) -> list[dict[str, Any]]:
    """Return the config's keys that the page may change, and all layout keys, with value, legal values and meaning."""
    data = config_source(path).data
    layout = data.get("layout", {})
    about = {f"model.{item.name}": item for item in declarations(Model)}
    found = [
        _row(f"layout.{item.name}", layout.get(item.name, item.default), item.metadata["what"])
        for item in (declarations(Layout) if "layout" in data or "model" in data else ())
    ]
    files = {".".join(map(str, path)) for path in named_files(check_sections(dict(data))[0])}
    for key, value in _flat(data):
        if may_change(key) and key not in files and not key.startswith("layout."):
            found.append(_row(key, value, about[key].metadata["what"] if key in about else ""))
    if "optimizer" not in data:
        found.append(_row("optimizer", None, "the optimizer step: " + ", ".join(OPTIMIZERS)))
    return found


def _row(key: str, value: Any, meaning: str) -> dict[str, Any]:
    plain = value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)
    legal = [True, False] if isinstance(value, bool) else list(OPTIMIZERS) if key == "optimizer" else None
    return {"key": key, "value": plain, "legal": legal, "meaning": meaning}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a config with its dotted key."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
