"""Advise: single changes of a config, each simulated, with what it gains and which cause of idle time it removes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppsim.analysis.memory import check_headroom, peak_activations
from ppsim.base.compiling import can_compile
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.host import need
from ppsim.base.short_repr import short_repr
from ppsim.base.tables import page_table
from ppsim.config import Config
from ppsim.costs.derive import DerivedCosts
from ppsim.run.timelines import Timeline
from ppsim.search import families, find_family
from ppsim.search.partitions import balanced_partition
from ppsim.studies.fits import fits_within, step_difference
from ppsim.studies.frameworks import runnable
from ppsim.studies.reasons import removed_cause, spent
from ppsim.studies.space import Source, as_config
from ppsim.studies.worker_pool import Here

if TYPE_CHECKING:
    import pandas

UNITS = {"step": "seconds", "step_difference": "seconds", "tokens_per_second": "tokens per second"}
STAGES_TRIED = (2, 3, 4)
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class Advice:
    """One change and what it does.

    Attributes
    ----------
    what : str
        The change in words.
    changes : mapping of dotted key to value
        None takes a key away.
    step, step_difference : seconds
        The step with the change, and after - before.
    tokens_per_second : float or None
        With the change.
    peak, peak_difference : float
        Of the fullest device, in bytes; in live activations where bytes are not known.
    fits : bool or None
        Whether the peak is within the memory of the device; None where that is not known.
    removes : str or None
        The cause in the ledger that shrinks most, in seconds of the mean device.
    layout_string : str or None
        The stages with the change, in Megatron-LM's notation; None where no model is known.
    """

    what: str
    changes: Changes
    step: float
    step_difference: float
    tokens_per_second: float | None
    peak: float
    peak_difference: float
    fits: bool | None
    removes: str | None
    layout_string: str | None

    __repr__ = short_repr

    @property
    def words(self) -> str:
        """The change in words, without the layout string that it may be."""
        return self.what.partition(": ")[0]


@dataclass(frozen=True)
class AdviceList:
    """What `advise` returns.

    Attributes
    ----------
    config : Config
    run : Timeline
        As it is.
    fits : bool or None
        Whether it fits as it is; None where that is not known.
    advice : list of Advice
        Best first: what fits before what does not, then the shortest step.
    refused : mapping of change in words to the rule
    """

    config: Config
    run: Timeline
    fits: bool | None
    advice: list[Advice]
    refused: Mapping[str, str]

    __repr__ = short_repr

    @property
    def better(self) -> list[Advice]:
        """The changes that fit and shorten the step, or whatever step they make where nothing fits as it is."""
        fitting = [one for one in self.advice if one.fits is not False]
        return fitting if self.fits is False else [one for one in fitting if one.step_difference < 0]

    def rows(self) -> list[dict[str, Any]]:
        """One row a change."""
        return [{**vars(one), "changes": dict(one.changes)} for one in self.advice]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas table."""
        return need("pandas", "a table of changes").DataFrame(self.rows())

    def plot(self):
        """By how much each change that helps moves the step, best first, as a matplotlib figure.

        Raises ConfigError where none helps.
        """
        from ppsim.plots.many_runs import MAX_BARS, draw_bars

        if not self.better:
            raise ConfigError("no single change shortens the step and fits; there is nothing to draw")
        shown = self.better[:MAX_BARS]
        step = self.run.iteration_time
        moves = [one.step_difference / step for one in shown]
        return draw_bars(
            [one.words for one in shown], moves, [one.removes or "" for one in shown], "change of the step"
        )

    def _repr_html_(self) -> str:
        peak = "activations" if self.run.peak_memory is None else "bytes"
        rows = [{name: value for name, value in row.items() if name != "changes"} for row in self.rows()]
        return page_table(rows, {**UNITS, "peak": peak, "peak_difference": peak})


def advise(
    config: Source, headroom: float = 0.0, *, framework: str | None = None, executor: Executor | None = None
) -> AdviceList:
    """Single changes of what a config has, each simulated with all else as it is.

    Parameters
    ----------
    config : path, dict or Config
        What runs now.
    headroom : float
        Part of each device's memory that must stay free for a change to fit, from 0 to below 1.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        Other schedules are tried only where it runs them; default: all synchronous ones.
    executor : concurrent.futures.Executor, optional
        Simulates the changes; default: this process.

    Returns
    -------
    AdviceList
        The changes with seconds of step and peaks before and after, best first, and the refused ones with their rules.

    Raises
    ------
    ConfigError
        For a config, a headroom or a framework that is wrong.
    PpsimError
        What the config's own simulation raises.
    """
    check_headroom(headroom)
    names = [*families()] if framework is None else runnable(framework)
    config = as_config(config)
    config = replace(config, engine="compiled") if can_compile() and config.engine == "auto" else config
    run = config.simulate()
    now = _outcome(run, headroom)
    tried: dict[str, Changes] = {}
    for what, changes in _candidates(config, run, names):
        if changes not in tried.values():
            tried[what] = changes
    attempt = functools.partial(_attempt, config=config, headroom=headroom)
    found, refused = [], {}
    for what, outcome in zip(tried, (executor or Here()).map(attempt, tried.values()), strict=True):
        if isinstance(outcome, str):
            refused[what] = outcome
        else:
            found.append(_advice(what, tried[what], now, outcome))
    found.sort(key=lambda one: (one.fits is False, one.step, one.peak, one.what))
    return AdviceList(config, run, now.fits, found, refused)


@dataclass(frozen=True)
class _Outcome:
    """What advice is made of; it travels between processes."""

    step: float
    tokens_per_second: float | None
    peak: float
    fits: bool | None
    spent: Mapping[str, float]
    layout_string: str | None


def _attempt(changes: Changes, config: Config, headroom: float) -> _Outcome | str:
    """The outcome of a change, or why it is not possible."""
    try:
        return _outcome(replace(config.changed(changes), engine=config.engine).simulate(), headroom)
    except PpsimError as error:
        return str(error).removeprefix(f"{config.path}: ")


def _outcome(run: Timeline, headroom: float) -> _Outcome:
    peak = float((run.peak_memory if run.peak_memory is not None else peak_activations(run)).max())
    step, speed = run.iteration_time, run.tokens_per_second
    return _Outcome(step, speed, peak, fits_within(run, headroom), spent(run), run.layout_string)


def _advice(what: str, changes: Changes, before: _Outcome, after: _Outcome) -> Advice:
    difference = step_difference(before.step, after.step)
    return Advice(
        what, changes, after.step, difference, after.tokens_per_second, after.peak, after.peak - before.peak,
        after.fits, removed_cause(before.spent, after.spent) if difference < 0 else None, after.layout_string,
    )  # fmt: skip


def _candidates(config: Config, run: Timeline, names: Iterable[str]) -> Iterator[tuple[str, Changes]]:
    """Every single change, in words and as keys."""
    if "csv" not in config.schedule:
        yield from _of_schedule(config, names)
    if isinstance(config.costs, DerivedCosts):
        yield from _of_microbatches(config, config.costs)
        yield from _of_partition(config.costs, run)
        yield from _of_recompute(config.costs, run)
        yield from _of_policies(config.costs)
        yield from _of_links(config.costs)
    elif "latency" in config.data.get("costs", {}):
        yield "links with half the latency", {"costs.latency": 0.5 * config.costs.latency}  # type: ignore[attr-defined]


def _of_schedule(config: Config, names: Iterable[str]) -> Iterator[tuple[str, Changes]]:
    section = config.schedule
    own = find_family(section["name"])
    if not own.fixed_stages:
        now = section.get("stages_per_device") or own.stages_per_device
        for count in (now - 1, now + 1):
            if count > 1:
                yield f"{count} stages a device instead of {now}", {"schedule.stages_per_device": count}
    for name in names:
        family = find_family(name)
        if name == own.name or family.asynchronous or "costs" in family.options:
            continue
        for count in [None] if family.fixed_stages else STAGES_TRIED:
            words = f"schedule {name}" + (f" with {count} stages a device" if count else "")
            yield (
                words,
                {"schedule.name": name, "schedule.stages_per_device": count, "schedule.options": None, **_even(config)},
            )


def _even(config: Config) -> Changes:
    """A partition that lists stages goes with one number of stages only; another schedule takes an even one."""
    costs = config.costs
    listed = isinstance(costs, DerivedCosts) and not isinstance(costs.layout.partition, str)
    return {"layout.partition": None} if listed else {}


def _of_microbatches(config: Config, costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    count, size = config.schedule.get("microbatches"), costs.layout.microbatch_size
    if count and size % 2 == 0:
        yield (
            "twice the microbatches of half the size",
            {"schedule.microbatches": 2 * count, "layout.microbatch_size": size // 2},
        )
    if count and count % 2 == 0:
        yield (
            "half the microbatches of twice the size",
            {"schedule.microbatches": count // 2, "layout.microbatch_size": 2 * size},
        )


def _of_partition(costs: DerivedCosts, run: Timeline) -> Iterator[tuple[str, Changes]]:
    ends = {"layout.first_stage_layers": None, "layout.last_stage_layers": None}
    text = str(balanced_partition(costs, run.schedule))
    if text != costs.megatron_layout(run.schedule.num_stages):
        yield f"layers balanced over the devices: {text}", {"layout.partition": text, **ends}
    if costs.layout.partition != "optimal":
        yield "partition by_cost(optimal)", {"layout.partition": "by_cost(optimal)", **ends}


def _of_recompute(costs: DerivedCosts, run: Timeline) -> Iterator[tuple[str, Changes]]:
    now = costs.layout.recompute_of_stages(run.schedule.num_stages)
    selective = ["selective"] if costs.model.attention == "full" else []
    for level in ["none", *selective, "full"]:
        if set(now) != {level}:
            yield f"recompute {level}", {"layout.recompute": level, "layout.recompute_stages": None}
    if run.peak_memory is not None:
        fullest = int(run.peak_memory.argmax())
        held = set(run.schedule.holdings[run.schedule.holdings[:, 0] == fullest, 1].tolist())
        levels = ["full" if stage in held else level for stage, level in enumerate(now)]
        if levels != now:
            yield (
                f"recompute full on device {fullest} only, the fullest",
                {"layout.recompute": levels, "layout.recompute_stages": None},
            )


def _of_policies(costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    layout = costs.layout
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield "sequence parallelism", {"layout.sequence_parallel": True}
    if max(layout.data_groups) > 1 and not layout.sharded:
        if not layout.distributed_optimizer:
            yield "optimizer state split over the copies", {"layout.distributed_optimizer": True}
        yield "weights split over the copies", {"layout.sharded": True}
    if layout.sharded:
        yield (
            "whole weights, optimizer state split over the copies",
            {"layout.sharded": False, "layout.distributed_optimizer": True},
        )


def _of_links(costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    cluster = costs.cluster
    for key, sheet in (("link", cluster.link), ("network", cluster.network)):
        if key == "link" or sheet != cluster.link:
            yield f"a {key} of twice the bandwidth", {f"hardware.{key}.bandwidth": 2 * sheet.bandwidth}
