"""Answers of a worker: a request's work done and packed, or its faults.

Work is a case simulated, checked or saved, other families at equal work, or orders found by a search.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, PpsimError, shown
from ppsim.explorer import cases
from ppsim.explorer.page_words import faults_body, in_page_words
from ppsim.frameworks import frameworks_running
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.orders import csv_text
from ppsim.search import families, find_family
from ppsim.studies.compare import compare

LONGEST_SEARCH = 50  # seconds


Answer = tuple[int, bytes]  # HTTP status and body


def answer_to(work: str, configs: cases.Configs, body: bytes) -> Answer:
    """Return a worker's answer to a request: `work` is one of the names below, or the ending of a file.

    An error in the user's input gives 422 with its faults; a fault of the program gives 500 with its text.
    """
    case: dict[str, Any] = {}
    try:
        case = _case_in(body)
        by_name = {"simulate": cases.simulated_case, "validate": cases.validated, "better": faster, "search": searched}
        done = by_name[work](case, configs) if work in by_name else cases.file_of(case, configs, work)
        return 200, done if isinstance(done, bytes) else json.dumps(done, allow_nan=False).encode()
    except PpsimError as error:
        if work == "validate":  # faults of a file
            return 422, faults_body(error.faults)
        path = configs.get(str(case.get("config")))
        return 422, faults_body([in_page_words(fault, case, path) for fault in error.faults])
    except MemoryError:
        return 422, faults_body(["not enough memory for this many actions; use fewer microbatches"])
    except Exception as error:
        return 500, f"{type(error).__name__}: {error}".encode("utf-8", "backslashreplace")


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


def faster(case: cases.Case, configs: cases.Configs) -> dict[str, Any]:
    """Return step, memory peak and whether a framework runs it, per family that needs no search, shortest first.

    The key `seconds` limits the comparison, and `known` lists families to leave out. The answer's `known` lists those
    and the ones that were compared; `left` counts the others.
    """
    end = time.monotonic() + (_seconds_of(case) if "seconds" in case else LONGEST_SEARCH)
    known = [*case["known"]] if isinstance(case.get("known"), list) else []
    others = ("csv", "options", "stages_per_device", "seconds", "known")
    own = {key: value for key, value in case.items() if key not in others}
    own["schedule"] = "1f1b"
    in_proportion = True
    try:
        changes = cases.changes_of(own, configs, by_factor=True)
    except ConfigError:
        in_proportion, changes = False, cases.changes_of(own, configs)
    config = cases.config_of(own, changes, configs)
    experts = config.model is not None and config.model.experts > 0
    size = 2 * config.schedule["devices"] * config.schedule["microbatches"]
    names = [
        name
        for name, family in families().items()
        if name not in known and not family.asynchronous and size * family.stages_per_device <= cases.MAX_ACTIONS
        if not family.searches or frameworks_running(name)
    ]
    runs: list[Timeline] = []
    while names and time.monotonic() < end:
        known.append(names.pop(0))
        with suppress(PpsimError):
            runs += compare(config.changed({"schedule.name": known[-1]}), known[-1:]).timelines
    runs = [run for run in runs if in_proportion or not cases.has_shared_stages(run.schedule)]
    runs.sort(key=lambda run: (run.iteration_time, run.peak_activations.max(), run.schedule.name))
    return {
        "found": [
            {
                "schedule": run.schedule.name, "step": run.iteration_time, "peak": _peak(run),
                "runs": bool(frameworks_running(run.schedule.name, experts)),
            }
            for run in runs
        ],
        "known": known,
        "left": len(names),
    }  # fmt: skip


def searched(case: cases.Case, configs: cases.Configs) -> dict[str, Any]:
    """Return the best order that a search of `seconds` finds on a case's placement, within its limit or its own peak.

    The case has the key `seconds` in addition; the answer has the seconds that the search took, fewer if it ended by
    itself. Raises PpsimError.
    """
    seconds = _seconds_of(case)
    case = {key: value for key, value in case.items() if key != "seconds"}
    config, run = cases.simulated(case, cases.changes_of(case, configs), configs)
    device, stage = run.schedule.holdings.T
    is_one = len(stage) == run.schedule.num_stages  # a stage has one device
    begun = time.monotonic()
    columns = find_family("auto").columns(
        run.schedule.devices,
        run.schedule.microbatches_of_a_step,
        run.schedule.num_stages // run.schedule.devices if is_one else 2,
        placement=device[np.argsort(stage)].tolist() if is_one else "v",
        memory_limit=(cases.limit_of(case) if run.peak_memory is None else None) or float(run.peak_activations.max()),
        seconds=seconds,
        costs=config.costs,
    )
    took, found = time.monotonic() - begun, config.simulate(Schedule.of(columns))
    return {"step": found.iteration_time, "peak": _peak(found), "csv": csv_text(found.schedule), "seconds": took}


def _seconds_of(case: cases.Case) -> int:
    seconds = case.get("seconds")
    if type(seconds) is not int or not 0 < seconds <= LONGEST_SEARCH:
        raise ConfigError(f"seconds: {shown(seconds)} must be a whole number from 1 to {LONGEST_SEARCH}")
    return seconds


def _peak(run: Timeline) -> float:
    """Return the largest peak over devices: bytes if the costs know them, else activations."""
    return float((run.peak_activations if run.peak_memory is None else run.peak_memory).max())
