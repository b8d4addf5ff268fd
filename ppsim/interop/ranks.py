"""The ranks of a recording: the ranks of one pipeline, and the differences of their clocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.base.errors import MAX_FAULTS_SHOWN, ConfigError
from ppsim.base.units import and_more, of_number
from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.columns import ScheduleColumns


def on_one_clock(
    program: ScheduleColumns, start: np.ndarray, end: np.ndarray, hosts: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the times on one clock, and the largest shift of a rank's clock in seconds.

    Clocks are shifted if the ranks ran on several `hosts`, or if an action would start before its input exists. `start`
    and `end`, float64 (steps, rows), are seconds; nan if nothing was recorded.
    """
    compute = np.flatnonzero(program.kind < FIRST_TRANSFER)
    shift, shortest = clock_shifts(program.compute, start[:, compute], end[:, compute])
    if hosts == 1 and shortest >= 0:
        return start, end, 0.0
    by_row = shift[program.device]
    return start + by_row, end + by_row, float(np.abs(shift).max(initial=0.0))


def clock_shifts(schedule: ScheduleColumns, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the seconds to add to each device's times, and the shortest recorded time from an input to its action.

    The shortest time from the end of a producer to the start of its consumer on another device is assumed to be equal
    in both directions, as in network time synchronization (Mills 1991, Internet time synchronization). Clocks are
    shifted device by device, along such pairs from device 0 on; devices without a pair keep their clocks.

    The schedule holds compute actions only. `start` and `end`, float64 (steps, rows), are seconds; nan: not recorded.
    """
    consumer = np.flatnonzero(crosses_devices(schedule))
    producer = schedule.source[consumer]
    shortest = np.full((schedule.devices, schedule.devices), np.inf)
    delay = np.fmin.reduce(start[:, consumer] - end[:, producer], axis=0, initial=np.inf)
    np.minimum.at(shortest, (schedule.device[producer], schedule.device[consumer]), delay)
    return _shifts(shortest), float(shortest.min(initial=np.inf))


def _shifts(shortest: np.ndarray) -> np.ndarray:
    """Return the seconds to add to each device's times, from the shortest delay of each pair (sender, receiver)."""
    shift, known = np.zeros(len(shortest)), [0]
    for device in known:
        for other in np.flatnonzero(np.isfinite(shortest[device]) & np.isfinite(shortest[:, device])).tolist():
            if other not in known:
                # A clock that is x ahead shows delays to its device x too long, and delays from it x too short.
                ahead = (shortest[device, other] - shortest[other, device]) / 2
                shift[other] = shift[device] - ahead
                known.append(other)
    return shift


EARLY = 0.5  # tolerated early start, as a fraction of the median action
# Names of groups of pipeline ranks: torch.distributed.device_mesh ("mesh_pp"), which torchtitan uses, and Megatron-LM's
# megatron/core/parallel_state.py ("PIPELINE_MODEL_PARALLEL_GROUP").
PIPELINE_GROUP = re.compile(r"mesh_pp|pp|.*pipeline.*", re.IGNORECASE)


def pipeline_group(rank: int, groups: Any) -> tuple[int, ...]:
    """Return the ranks of a rank's pipeline in stage order, from the profiler's `pg_config`; () if it names none."""
    for group in groups if isinstance(groups, list) else []:
        match group:
            case {"pg_desc": str(name), "ranks": list(ranks)} if PIPELINE_GROUP.fullmatch(name) and rank in ranks:
                return tuple(one for one in ranks if isinstance(one, int))
    return ()


def whole_pipelines(
    groups: Mapping[int, tuple[int, ...]],  # `pipeline_group` of each recorded rank
    stages: Mapping[int, frozenset[int]],  # the stages in the names of each rank's ranges
    num_stages: int,  # in the names of all ranges
    world_size: int,  # ranks of the whole run, or 0
    place: str,
) -> list[list[int]]:
    """Return the ranks, in stage order, of each pipeline whose ranks were all recorded; at least one.

    ConfigError, which begins with `place`, the folder, if ranks are missing.
    """
    found = sorted(groups)
    if all(groups.values()):
        pipelines = sorted(set(groups.values()))
        if whole := [list(ranks) for ranks in pipelines if groups.keys() >= {*ranks}]:
            return whole
        missing = sorted({*pipelines[0]} - groups.keys())
        raise ConfigError(
            f"{place}: has files of {_words(found)}; the pipeline of rank {pipelines[0][0]} runs on "
            f"{_words(pipelines[0])}: add the {of_number(len(missing), 'file')} of {_words(missing)}"
        )
    if any(stages.values()):
        return _one_of_each(stages, num_stages, place)
    step = found[1] - found[0] if len(found) > 1 else 1
    if found != [found[0] + step * number for number in range(len(found))] or world_size % len(found):
        of_all = f" of {world_size}" if world_size else ""
        raise ConfigError(
            f"{place}: has files of {_words(found)}{of_all}, which are no whole pipeline; one file is needed for each "
            "of its ranks, and of no others"
        )
    return [found]


def _one_of_each(stages: Mapping[int, frozenset[int]], num_stages: int, place: str) -> list[list[int]]:
    """Return the lowest rank of each group with equal stages, then the second one, and so on.

    These are data- or tensor-parallel copies. Groups of different sizes give only the first copy.
    """
    copies: dict[frozenset[int], list[int]] = {}
    for rank in sorted(stages):
        copies.setdefault(stages[rank], []).append(rank)
    recorded = frozenset().union(*copies)
    if missing := list(islice((stage for stage in range(num_stages) if stage not in recorded), MAX_FAULTS_SHOWN)):
        left = num_stages - len(recorded) - len(missing)
        raise ConfigError(
            f"{place}: has files of {_words(sorted(stages))}; one file is needed for each rank from 0 on, and none of "
            f"these runs {_words(missing, 'stage')}{and_more(left)}"
        )
    equal = len({len(ranks) for ranks in copies.values()}) == 1
    count = len(next(iter(copies.values()))) if equal else 1
    return [sorted(ranks[number] for ranks in copies.values()) for number in range(count)]


def refuse_other_pipelines(program: ScheduleColumns, start: np.ndarray, end: np.ndarray, place: str) -> None:
    """Raise ConfigError if actions of a pair of devices usually start before their inputs exist.

    Differences of clocks cannot explain that. `start` and `end`, float64 (steps, rows), are seconds on one clock; nan
    if nothing was recorded. `place` is the folder.
    """
    schedule, compute = program.compute, np.flatnonzero(program.kind < FIRST_TRANSFER)
    consumer = np.flatnonzero(crosses_devices(schedule))
    source = schedule.source[consumer]
    gaps = start[:, compute[consumer]] - end[:, compute[source]]
    devices = np.sort([schedule.device[source], schedule.device[consumer]], axis=0)
    pair = np.broadcast_to(devices[0] * schedule.devices + devices[1], gaps.shape)
    known, seconds = np.isfinite(gaps), (end - start)[:, compute]
    usual = np.median(seconds[np.isfinite(seconds)]) if np.isfinite(seconds).any() else 0.0
    if any(np.median(gaps[known & (pair == one)]) < -EARLY * usual for one in np.unique(pair[known])):
        step, early = np.unravel_index(np.nanargmin(gaps), gaps.shape)
        action, input_of = schedule.label(consumer[early]), schedule.label(source[early])
        raise ConfigError(
            f"{place}: actions start before their inputs are made, such as {action} {-gaps[step, early]:.3g} s before "
            f"the end of {input_of}; give the files of one pipeline's ranks, with ranges that hold the computation"
        )


def _words(numbers: Sequence[int], what: str = "rank") -> str:
    return f"{of_number(len(numbers), what)} {', '.join(map(str, numbers))}"
