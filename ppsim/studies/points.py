"""Candidates: many changes of one config, each simulated or refused, through an executor and a store; their ranking."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from ppsim.analysis.measures import MEASURES, pareto_front
from ppsim.analysis.memory import HEADROOM, fit_of, fullest_device, usable_part
from ppsim.base.errors import ConfigError, PpsimError, shown
from ppsim.base.host import note_failure
from ppsim.base.progress import track
from ppsim.base.rules import declared, described
from ppsim.config import AnyConfig, Config, ConfigSource, config_source
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.partition import LayoutString
from ppsim.engines.running import compiled_or
from ppsim.frameworks import frameworks_running
from ppsim.plots.scale import SAME
from ppsim.run.timelines import Timeline
from ppsim.search import find_family
from ppsim.search.partitions import fastest_stages
from ppsim.studies.store import Store, store_key
from ppsim.studies.worker_pool import FEW, JobRunner, Outcome, open_resources

PATIENCE = 4  # factor on the number of partitions tried for a ranked point
NOISE = 1e-9  # relative: differences that rounding may cause, here or on another machine
GROUP_KEYS = (
    "layout.tensor", "layout.context", "layout.expert", "layout.data", "schedule.devices", "encoder.placement",
)  # fmt: skip
IDEA = (*GROUP_KEYS, "schedule.name", "layout.recompute")  # keys whose values make an idea
DIGITS = 5  # significant digits to which steps are compared: equal ones are at most 0.01 % apart
# The ledger behind `exposed_communication` takes longer than build, simulation and all the others together.
POINT_MEASURES = {name: measure for name, measure in MEASURES.items() if name != "exposed_communication"}
# The measures of the points of `choose`.
RANKED = ("iteration_time", "tokens_per_second", "mfu", "peak_memory", "bubble_fraction", "peak_activations")


@described
@dataclass(frozen=True)
class Candidate:
    """Simulated or refused changes of a config: a point of a sweep, of `choose`, of `advise` or of `what_fits`."""

    changes: Mapping[str, Any] = declared("new value by dotted config key; None removes a key")
    measures: Mapping[str, Any] | None = declared(
        "measures over all devices by name, by default those of docs/glossary.md except exposed_communication. None "
        "if the candidate is refused."
    )
    refused: str | None = declared("the rule that refuses it", default=None)
    layout_string: str | None = declared("stages in Megatron-LM's notation; None without a model", default=None)
    stragglers: float = declared(
        "for `choose`: seconds that the step is expected to lose to stragglers, which its rank counts", default=0.0
    )
    alike: int = declared(
        "for a ranked candidate: the number of other variants of its idea with an equal step (`SAME`)", default=0
    )
    place: str = declared(
        "for a ranked candidate: its place, such as `1`, or `1=` if the model cannot tell it from the first", default=""
    )
    what: str = declared("for `advise`: the changes in words", default="")
    before: Mapping[str, Any] | None = declared(
        "for `advise`: the measures of the config without the changes, by name", default=None
    )
    fit: str = declared(
        "`fits`; `tight` if a peak uses memory that should stay free; `over` a device's memory, or its limit on live "
        "activations; empty if neither is known",
        default="",
    )
    removes: str | None = declared(
        "for `advise`: the cause of idle time that shrinks most, in seconds averaged over devices", default=None
    )
    run: Timeline | None = declared("for `what_fits`: the simulated run", default=None)
    spare: float | None = declared("for `what_fits`: free bytes of the fullest device less headroom", default=None)
    idea: str = declared(
        "for `advise`: what changes, such as the microbatch size; changes of one idea exclude each other", default=""
    )
    kind: str = declared("for `advise`: `schedules`, `layouts`, `options` or `hardware`", default="")

    @property
    def fits(self) -> bool | None:
        """True if every device's peak fits in its memory less the headroom, or in its limit; None if not known."""
        return self.fit == "fits" if self.fit else None

    @property
    def step(self) -> float:
        """Seconds of one training step."""
        return self.numbers["iteration_time"]

    @property
    def expected(self) -> float:
        """Seconds of one step with what it is expected to lose to stragglers."""
        return self.step + self.stragglers

    @property
    def step_difference(self) -> float:
        """Seconds by which the changes lengthen the step; 0 if only rounding differs."""
        return change_between(self._before["iteration_time"], self.step)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of the whole job; None if the config has no model."""
        return self.numbers["tokens_per_second"]

    @property
    def memory(self) -> float:
        """Peak bytes of the fullest device; live activations if bytes are not known."""
        return _peak(self.numbers)

    @property
    def peak_difference(self) -> float:
        """Bytes, or activations, by which the changes raise the peak."""
        return self.memory - _peak(self._before)

    @property
    def words(self) -> str:
        """The changes in words, without a layout string."""
        return self.what.partition(": ")[0]

    @functools.cached_property
    def rank(self) -> tuple[Any, ...]:
        """The sort key: `rounded` expected step, `simplicity`, then what a variant adds, then step and memory.

        A variant is simpler with few stages per device, then with an even partition.
        """
        name, stages = self.changes.get("schedule.name"), self.changes.get("schedule.stages_per_device")
        if name is not None and not stages:
            stages = find_family(name).stages_per_device
        uneven = self.changes.get("layout.partition", "even") != "even"
        ordered = sorted(self.changes.items(), key=lambda item: item[0])
        return rounded(self.expected), *self.simplicity, stages or 1, uneven, self.expected, self.memory, str(ordered)

    @property
    def simplicity(self) -> tuple[int, ...]:
        """A sort key: few pipeline devices, little recompute, a schedule of many frameworks, the usual state."""
        level, state = self.changes.get("layout.recompute", "none"), self.changes.get("layout.optimizer_bytes")
        running = frameworks_running(self.changes.get("schedule.name", ""))
        recompute = (level != "none") + (level == "full")
        return self.changes.get("schedule.devices", 1), recompute, -len(running), state is not None

    @property
    def numbers(self) -> Mapping[str, Any]:
        """The measures; ConfigError if the candidate is refused."""
        if self.measures is None:
            raise ConfigError(f"{shown(dict(self.changes))} has no measures: it is refused: {self.refused}")
        return self.measures

    @property
    def _before(self) -> Mapping[str, Any]:
        """The measures without the changes; ConfigError if they are not known."""
        if self.before is None:
            raise ConfigError(f"{shown(dict(self.changes))} is not compared with anything; `advise` compares")
        return self.before


def peak_of(run: Timeline) -> float:
    """Return the peak bytes of the fullest device; live activations if bytes are not known."""
    return _peak({name: POINT_MEASURES[name].number(run) for name in ("peak_memory", "peak_activations")})


def _peak(measures: Mapping[str, Any]) -> float:
    return measures["peak_memory" if measures["peak_memory"] is not None else "peak_activations"]


def fits_within(run: Timeline, headroom: float = HEADROOM) -> bool | None:
    """Return True if a run fits in its devices' memory less the headroom, or its limit; None if neither is known."""
    found = fit_of(run, headroom)
    return found == "fits" if found else None


def limited_text(run: Timeline) -> str:
    """Return the live activations of the device that is nearest to its limit, or above it most, and the limit."""
    device, peak, limit = fullest_device(run, in_bytes=False)
    return f"{peak:.3g} activations on device {device}, with a limit of {limit:.3g}"


def usable_bytes(config: Config, headroom: float) -> float:
    """Return the usable bytes of a device of the config's cluster; infinite without one."""
    return usable_part(config.derived.cluster.device.capacity, headroom) if config.derived else math.inf


def change_between(before: float, after: float) -> float:
    """Return after - before; 0 if only rounding differs."""
    same = abs(after - before) <= NOISE * max(abs(before), abs(after))
    return 0.0 if same else after - before


def rounded(step: float) -> float:
    """Return the seconds to `DIGITS` significant digits; steps equal in them count as equal."""
    return float(f"{step:.{DIGITS}g}")


def idea_of(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the idea of a point: its parallel groups, its schedule and its recompute level."""
    return tuple(str(changes.get(key)) for key in IDEA)


def rank(candidates: Iterable[Candidate], top: int) -> list[Candidate]:
    """Return one candidate for each of the `top` fastest ideas: the simplest within `SAME` of the idea's fastest.

    It counts the others that are as close.
    """
    variants: dict[tuple[str, ...], list[Candidate]] = {}
    for one in sorted(candidates, key=lambda one: one.rank):
        variants.setdefault(idea_of(one.changes), []).append(one)
    ranked = []
    for group in itertools.islice(variants.values(), top):
        near = [one for one in group if one.expected <= group[0].expected * (1 + SAME)]
        ranked.append(replace(min(near, key=lambda one: one.rank[1:]), alike=len(near) - 1))
    return ranked


def placed(ranked: Iterable[Candidate], errors: Mapping[str, float] | None, own: float = math.inf) -> list[Candidate]:
    """Return ranked candidates, each with its place, such as 1, 1= or 3; ties share a place, the simplest first.

    A tie is a candidate whose step the model cannot tell from the fastest one of its place: the ratio of both is within
    the error of published pairs. `errors` has this error for pairs of `schedules` in equal groups, and of `layouts`;
    None means given costs, which have no error. A tie comes before a faster one only if it is at least as simple in
    every respect, and not slower than the config's `own` step, in seconds.
    """
    rest, found = sorted(ranked, key=lambda one: one.rank), list[Candidate]()
    while rest:
        ties = [one.expected <= rest[0].expected * _error(errors, rest[0], one) for one in rest]
        group, number = [*itertools.compress(rest, ties)], f"{len(found) + 1}"
        while group:
            simple = [one for one in group if all(map(operator.le, one.simplicity, group[0].simplicity))]
            first = min(simple, key=lambda one: (one.step > own * (1 + NOISE), one.simplicity, one.rank))
            group = [one for one in group if one is not first]
            found.append(replace(first, place=number))
            number = number.rstrip("=") + "="
        rest = [one for one, is_tie in zip(rest, ties, strict=True) if not is_tie]
    return found


def _error(errors: Mapping[str, float] | None, one: Candidate, other: Candidate) -> float:
    """Return the ratio of two steps up to which the model cannot tell which is shorter."""
    if errors is None:
        return 1.0
    have_equal_groups = all(one.changes.get(key) == other.changes.get(key) for key in GROUP_KEYS)
    return errors["schedules" if have_equal_groups else "layouts"]


def front_of(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return the Pareto front of step time and memory, fastest first; of equal candidates only the simplest."""
    simplest = sorted(candidates, key=lambda one: one.rank)
    return [simplest[index] for index in pareto_front([(one.step, one.memory) for one in simplest])]


def run_points(
    config: AnyConfig, points: Iterable[Mapping[str, Any]], *, executor: Executor | None = None,
    workers: int | None = None, store: str | PathLike[str] | Store | None = None, label: str | None = "simulating",
    fast: bool | None = None, measures: Sequence[str] = tuple(POINT_MEASURES), headroom: float = HEADROOM,
) -> Iterator[Candidate]:  # fmt: skip
    """Simulate a config under many changes; yield one Candidate for each, in order.

    Parameters
    ----------
    config : Config, path or mapping
        The config that is changed; it may lack the keys of the changes.
    points : iterable of mappings of dotted config key to value
        As in `Config.changed`. A schedule's name may give its stages per device, such as `interleaved-1f1b:4`.
    executor, workers, store : optional
        As in `sweep`; one `Workers(2)` can serve several calls.
    label : str, optional
        Text of the progress bar; None shows none.
    fast : bool, optional
        Use the compiled engine if the config leaves the engine open; default: if the points are many.
    measures : list of str
        Names of `POINT_MEASURES`; some take as long as a simulation.
    headroom : float
        Fraction of each device's memory that must stay free for a point to fit.

    Raises
    ------
    ConfigError
        The config or the store cannot be read. A wrong point is no error: the rule is its `refused`.
    """
    source, changes = config_source(config), [dict(point) for point in points]
    with open_resources(len(changes), executor, workers, store) as (runner, opened):
        fast = len(changes) >= FEW if fast is None else fast
        work = functools.partial(measure_point, source, fast=fast, measures=measures, headroom=headroom)
        key = functools.partial(_key, source, {"measures": list(measures), "headroom": headroom})
        outcomes = JobRunner(work, changes, runner, opened, key, scope(source)).in_order()
        shown = outcomes if label is None else track(outcomes, len(changes), label)
        for change, found in zip(changes, shown, strict=True):
            yield Candidate(change, **{"measures": None, **found})


def scope(source: ConfigSource) -> str:
    """Return place and name of a config as one text, which errors in its files and stored results name."""
    return f"{source.place}: {source.data.get('name')}"


def _key(source: ConfigSource, wanted: Mapping[str, Any], changes: Mapping[str, Any]) -> str:
    try:
        return store_key({**source.changed(changes).data, **wanted})
    except PpsimError:  # the changes give no config; the config and the changes are the key
        return store_key({"base": source.data, "changes": dict(changes), **wanted})


def measure_point(
    source: ConfigSource, changes: Mapping[str, Any], fast: bool, measures: Sequence[str], headroom: float
) -> Outcome:
    """Return the outcome of a point; `fast` uses the compiled engine if the config leaves the engine open."""
    engine = {"engine": compiled_or(source.data.get("engine", "auto"))} if fast else {}
    try:
        run = source.config({**engine, **changes}).simulate()
        numbers = {name: POINT_MEASURES[name].number(run) for name in measures}
        return {"measures": numbers, "layout_string": run.layout_string, "fit": fit_of(run, headroom)}
    except PpsimError as error:
        return {"refused": str(error).removeprefix(f"{source.place}: ")}
    except MemoryError:
        note_failure()
        return {"refused": "not enough memory for this many actions; use fewer microbatches"}


def fastest_partitions(
    source: ConfigSource, points: Sequence[Mapping[str, Any]], limit: float, executor: Executor, store: Store | None
) -> list[Outcome]:
    """Return the layout string of each point's fastest stages with at most `limit` bytes per device, as its "stages".

    The point's own stages compete too. None if the point has no layers to cut.
    """

    def key(changes: Mapping[str, Any]) -> str:
        return store_key({"cut": changes, "limit": limit, "config": source.data})

    work = functools.partial(_fastest_partition, source, limit)
    return list(JobRunner(work, points, executor, store, key, scope(source)).in_order())


def _fastest_partition(source: ConfigSource, limit: float, changes: Mapping[str, Any]) -> Outcome:
    try:
        config = source.config(changes)
        schedule, costs = config.lowered(config.build()), config.costs
        if not isinstance(costs, DerivedCosts):
            return {"stages": None}
        now = LayoutString.parse(costs.megatron_layout(schedule.num_stages))
        options = {"engine": compiled_or("auto"), "patience": PATIENCE, "starts": [now]}
        best = fastest_stages(costs, schedule, config.transport, config.optimizer, limit, **options)
        return {"stages": best.megatron_layout(schedule.num_stages)}
    except PpsimError:
        return {"stages": None}
