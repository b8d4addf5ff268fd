"""Faster schedules for a case: other families at equal work, and orders found by a search within the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, shown
from ppsim.explorer.cases import Case, Configs, changes_of, config_of, limit_of, simulated
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.orders import csv_text
from ppsim.search import find_family
from ppsim.studies.compare import compare

LONGEST_SEARCH = 50  # seconds
MAX_COMPARED = 40_000  # devices x microbatches


def faster(case: Case, configs: Configs) -> dict[str, Any]:
    """Return step and memory peak of every family that needs no search, at a case's sizes and costs, shortest first."""
    own = {key: value for key, value in case.items() if key not in ("csv", "options", "stages_per_device")}
    own["schedule"] = "1f1b"
    config = config_of(own, changes_of(own, configs), configs)
    if config.schedule["devices"] * config.schedule["microbatches"] > MAX_COMPARED:
        return {"found": []}
    runs = [run for run in compare(config).timelines if not find_family(run.schedule.name).asynchronous]
    return {"found": [{"schedule": run.schedule.name, "step": run.iteration_time, "peak": _peak(run)} for run in runs]}


def searched(case: Case, configs: Configs) -> dict[str, Any]:
    """Return the best order that a search of `seconds` finds on a case's placement, within its limit or its own peak.

    The case has the key `seconds` in addition. Raises PpsimError.
    """
    seconds = case.get("seconds")
    if type(seconds) is not int or not 0 < seconds <= LONGEST_SEARCH:
        raise ConfigError(f"seconds: {shown(seconds)} must be a whole number from 1 to {LONGEST_SEARCH}")
    case = {key: value for key, value in case.items() if key != "seconds"}
    config, run = simulated(case, changes_of(case, configs), configs)
    device, stage = run.schedule.holdings.T
    is_one = len(stage) == run.schedule.num_stages  # a stage has one device
    columns = find_family("auto").columns(
        run.schedule.devices,
        run.schedule.microbatches_of_a_step,
        run.schedule.num_stages // run.schedule.devices if is_one else 2,
        placement=device[np.argsort(stage)].tolist() if is_one else "v",
        memory_limit=limit_of(case) or float(run.peak_activations.max()),
        seconds=seconds,
        costs=config.costs,
    )
    found = config.simulate(Schedule.of(columns))
    return {"step": found.iteration_time, "peak": _peak(found), "csv": csv_text(found.schedule)}


def _peak(run: Timeline) -> float:
    """Return the largest peak over devices: bytes if the costs know them, else activations."""
    return float((run.peak_activations if run.peak_memory is None else run.peak_memory).max())
