"""Choice of a layout and schedule: the fastest that fits in memory, among all values of a config's free keys."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from ppsim.analysis.measures import MEASURES, Measure
from ppsim.analysis.memory import HEADROOM, headroom_rule
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.progress import Bar
from ppsim.base.rules import argument, checked_call, declared, described, whole_number
from ppsim.base.tables import Tabular
from ppsim.base.units import counted
from ppsim.config import AnyConfig, Config, ConfigSource, config_source, value_at
from ppsim.costs.spread import order_error
from ppsim.frameworks import SEARCHED_LAYOUTS
from ppsim.run.timelines import Timeline
from ppsim.studies.best_first import BestFirstSearch
from ppsim.studies.free_keys import Changes
from ppsim.studies.points import Candidate, fits_within, front_of, placed, rank, usable_bytes
from ppsim.studies.space import Space, search_space
from ppsim.studies.towers import TowerSearch
from ppsim.studies.worker_pool import FEW, open_resources

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TOP = 10  # points that are ranked


@described
@dataclass(frozen=True)
class Chosen:
    """The winner as a config, simulated."""

    config: Config = declared("the given config with the winner's keys")
    run: Timeline = declared("its simulation")
    layout_string: str | None = declared("the stages in Megatron-LM's notation; None if the config has no model")


@described
@dataclass(frozen=True)
class Choice(Tabular):
    """Ranked candidates and the Pareto front; the result of `choose`."""

    ranked: list[Candidate] = declared(
        "the ideas that fit with the shortest expected step, at most `top` of them, the winner first; empty if "
        "nothing fits. The expected step is the simulated one and its `stragglers`. An idea is one set of parallel "
        "groups, schedule and recompute level; its simplest variant within 1 % of its fastest is ranked, and the "
        "others that close are its `alike`. Ideas that the model cannot tell apart share a `place`, simplest first."
    )
    counts: Mapping[str, int] = declared(
        "number of all `points`, and its parts: `simulated`; excluded by `memory` (the lower bound on the peak is "
        "above the limit) or by `step` (the lower bound on the step is too long to be ranked); `refused` by a rule of"
        " the schedule or the layout"
    )
    space: Space = declared("all points of the search")
    headroom: float = declared("fraction of each device's memory that must stay free")
    left_out: list[Changes] = declared(
        "layouts and points whose worker died each time, each with the cause as `refused`: they count as refused, or "
        "their stages were not searched. Without them the answer is not certain.",
        factory=list,
    )
    smallest: Candidate | None = declared(
        "the simulated point that fits and needs the least memory; `front` searches for all such points", default=None
    )
    nearest: Candidate | None = declared("if nothing fits: the smallest peak found", default=None)
    # returns `front`
    find_front: Callable[[], list[Candidate]] = field(default=list, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles carry: the front itself, which is searched now if it was not before."""
        return {**vars(self), "front": self.front, "find_front": list}

    @functools.cached_property
    def front(self) -> list[Candidate]:
        """The Pareto front of step time and memory, fastest first; the first access searches it, which takes longer."""
        return self.find_front()

    @functools.cached_property
    def best(self) -> Chosen:
        """The winner; ConfigError if nothing fits."""
        if not self.ranked:
            raise ConfigError(f"{self.nothing_fits}; use more GPUs, less headroom or more free keys")
        config = self.space.config.changed(self.ranked[0].changes)
        run = config.simulate()
        return Chosen(config, run, run.layout_string)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per ranked point: its free keys, measures, stragglers, place, and equal variants (`alike`)."""
        own = ("stragglers", "alike", "place")
        return [{**one.changes, **one.numbers, **{key: getattr(one, key) for key in own}} for one in self.ranked]

    @checked_call(hint="plot().savefig(path) writes a file")
    def plot(self, *, width: float | None = None, title: str | None = None, theme: str | None = None) -> Figure:
        """Draw step time against memory of the ranked points and of the front, a colour per schedule, with matplotlib.

        The options are those of `Timeline.plot`.
        """
        from ppsim.plots.fronts import draw_front

        drawn = [*{one.rank: one for one in (*self.front, *self.ranked)}.values()]
        if not drawn:
            raise ConfigError(f"{self.nothing_fits}; there is nothing to draw")
        memory, schedules = self._memory, [*map(_schedule, drawn)]
        words: Any = {"what": self.space.config.name, "heading": title, "groups": schedules}
        if len({*schedules}) == 1:  # in the title, not in each name
            words |= {"what": f"{words['what']}: {schedules[0]}", "groups": ()}
        if memory.unit == "bytes":
            words["limit"] = usable_bytes(self.space.config, self.headroom)
        pairs = [(one.memory, one.step) for one in drawn]
        names, unit = _differences(drawn, schedules), memory.short_unit or memory.unit
        return draw_front(pairs, names, memory.title, unit, width, theme=theme, **words)

    @property
    def _memory(self) -> Measure:
        return MEASURES["peak_memory" if self.front[0].numbers["peak_memory"] is not None else "peak_activations"]

    @property
    def points(self) -> str:
        """Text for outputs: how many points there are, and what became of them."""
        counts = self.counts
        return (
            f"{counted(counts['points'], 'point')}: {counts['refused']:,} not possible, {counts['memory']:,} proven "
            f"too large, {counts['step']:,} proven too slow, {counts['simulated']:,} simulated"
        )

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        if not self.ranked:
            return [], {}
        places = [int(one.place.rstrip("=")) for one in self.ranked]
        counts = Counter(places)
        ranks = [f"{one}–{one + counts[one] - 1}".removesuffix(f"–{one}") for one in places]
        first, memory = self.ranked[0].step, self._memory
        schedules = [f"{_schedule(one)} on {counted(one.changes['schedule.devices'], 'device')}" for one in self.ranked]
        pairs = zip(schedules, _differences(self.ranked, schedules), strict=True)
        names = [", ".join(filter(None, pair)) for pair in pairs]
        rows = [
            {"rank": place, "layout": name, "step": one.step, "vs first": one.step / first - 1 if number else "base"}
            | {memory.title: one.memory}
            for number, (place, name, one) in enumerate(zip(ranks, names, self.ranked, strict=True))
        ]
        return rows, {"step": "seconds", "vs first": "change", memory.title: memory.unit}

    _empty = property(lambda self: self.nothing_fits)

    def _repr_html_(self) -> str:
        if not self.ranked:
            return self.nothing_fits
        ties = "<br>a range of ranks, such as 4–5: the model cannot tell these rows apart; the simplest is first"
        return super()._repr_html_() + self.points + ties * any("=" in one.place for one in self.ranked)

    @property
    def over(self) -> float | None:
        """Bytes by which the peak of `nearest` is above the usable memory; None if a point fits."""
        config = self.space.config
        if self.nearest is None or config.derived is None:
            return None
        return self.nearest.memory - usable_bytes(config, self.headroom)

    @property
    def nothing_fits(self) -> str:
        """Text for outputs if nothing is ranked: why, and the nearest batches if no layout divides the config's."""
        if not self.counts["points"]:
            near = ", ".join(map(str, self.space.near_batches()))
            words = f"no layout of {self.space.gpus:,} GPUs divides a batch of {self.space.batch}"
            return words + f"; the nearest that some divide: {near}" * bool(near)
        config = self.space.config
        if config.derived is None and config.memory_limit is not None:
            limits = config.memory_limit if isinstance(config.memory_limit, list) else [config.memory_limit]
            return f"nothing fits the memory_limit of {', '.join(map('{:g}'.format, limits))} activations"
        return f"nothing fits with {100 * self.headroom:.3g} % headroom"


def _schedule(one: Candidate) -> str:
    """Return the name of a candidate's schedule, with its stages per device if it has several."""
    stages = one.changes.get("schedule.stages_per_device")
    return one.changes["schedule.name"] + (f":{stages}" if stages else "")


def _differences(drawn: list[Candidate], names: list[str]) -> list[str]:
    """Return what else differs between candidates of one name, such as `recompute full`.

    A key is in the texts of candidates that differ in it and in none of the keys before it, unless a candidate has the
    framework's own value of it (None). A list of the layers of each stage is too long for a text.
    """
    found = [""] * len(drawn)
    for key in dict.fromkeys(key for one in drawn for key in one.changes):
        word = key.rpartition(".")[2].replace("_", " ")
        values = ["" if (value := one.changes.get(key)) is None else str(value) for one in drawn]
        equal_so_far = [*zip(names, found, strict=True)]
        values_of: dict[tuple[str, str], set[str]] = {}
        for texts, value in zip(equal_so_far, values, strict=True):
            values_of.setdefault(texts, set()).add(value)
        for index, value in enumerate(values):
            if value and len(values_of[equal_so_far[index]]) > 1:
                found[index] = ", ".join(filter(None, (found[index], f"{word} {'uneven' if '|' in value else value}")))
    return found


def _with_its_policies(config: AnyConfig, framework: str | None) -> ConfigSource:
    """Return the config with the framework's policies, unless it names others."""
    source = config_source(config)
    named = "model" not in source.data or value_at(source.data, "layout.framework")
    if named or framework is None or framework not in SEARCHED_LAYOUTS:
        return source
    return source.changed({"layout.framework": SEARCHED_LAYOUTS[framework].policies})


@checked_call()
def choose(
    config: AnyConfig,
    free: Iterable[str] | Mapping[str, Iterable[Any]] | None = None,
    *,
    headroom: float = HEADROOM,
    asynchronous: bool = False,
    only: Mapping[str, Iterable[Any]] | None = None,
    framework: str | None = None,
    research: bool = False,
    certain: bool = False,
    top: int = TOP,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | None = None,
) -> Choice:
    """Return the fastest layout and schedule of a model on a cluster that fits in the memory of every device.

    The answer is the same as if every point were simulated. A point is left out only if its lower bounds prove that
    its memory is above the limit, or that `top` points that fit are faster. With an encoder, layouts of the backbone
    are ranked first, for each number of GPUs that the encoder leaves; encoders are then tried with the fastest layouts.

    Parameters
    ----------
    config : path, dict or Config
        Model, hardware, GPUs (`hardware.gpus`) and batch (`batch`, sequences per step); other missing keys are free.
    free : list of keys, or mapping of key to its values, optional
        Keys that are free even if the config sets them, "all" for every key; default: those that it leaves out. Without
        values also the config's own is tried. A schedule.name without values also frees stages_per_device, unless the
        config gives it. An encoder's keys are placement, stages, copies, batch, prefetch, layout.tensor, layout.data.
    headroom : float
        Fraction of each device's memory that must stay free, from 0 to below 1.
    only : mapping of key to its values, optional
        Further free keys, with these values only, such as {"schedule.name": ["1f1b", "interleaved-1f1b"]}.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        Try only schedules, shardings and recompute levels that it runs, priced with its policies. Frees schedule.name.
    asynchronous, research : bool
        Also try schedules that train on old weights; that no framework runs with the model unchanged.
    certain : bool
        Rank by the simulated step alone, without the seconds that it is expected to lose to stragglers.
    top : int
        Number of ideas to rank.
    executor, workers, store : optional
        As in `sweep`.

    Raises
    ------
    ConfigError
        A key that cannot be free, a job of unknown size, a wrong config or headroom, or a framework that is unknown,
        runs none of the schedules named, or launches no layout of the model.
    """
    argument("headroom", headroom, headroom_rule)
    top, source = argument("top", top, whole_number(0)), _with_its_policies(config, framework)
    resources = {"executor": executor, "workers": workers, "store": store}
    if source.data.get("encoder") is not None:
        options = {"asynchronous": asynchronous, "framework": framework, "research": research, "certain": certain}
        choose_backbone = functools.partial(choose, headroom=headroom, top=top, **options, **resources)
        towers = TowerSearch.of(source, free, only, framework, research)
        return _of_towers(towers, headroom, top, choose_backbone, resources)
    space = search_space(source, free, asynchronous, only, framework, research)
    if framework is not None and space.faults and not space.launched:
        raise ConfigError(f"{source.place}: {'; '.join(*space.faults.values())}")

    def find_front() -> list[Candidate]:
        """Search again for the whole front; the executor that was given may be closed by then.

        With the front in the first search, `choose` for Llama 3 70B on 512 GPUs takes 1.6 times as long.
        """
        return _searched(space, headroom, top, certain, {**resources, "executor": None}, with_front=True).front

    search = _searched(space, headroom, top, certain, resources)
    points = search.ranked, search.front, search.nearest, search.left_out
    return _choice(space, headroom, search.counts, *points, find_front, _own_step(source, headroom))


def _own_step(source: ConfigSource, headroom: float) -> float:
    """Return the seconds of a step of the config as it is; infinite if it leaves sizes out or does not fit."""
    try:
        run = source.config().simulate()
    except PpsimError:
        return math.inf
    return math.inf if fits_within(run, headroom) is False else run.iteration_time


def _searched(
    space: Space, headroom: float, top: int, certain: bool, resources: Mapping[str, Any], with_front: bool = False
) -> BestFirstSearch:
    """Return the search after it has run."""
    layouts = sum(1 for _ in itertools.islice(space.layouts(), FEW))
    with Bar("choosing", None, at_once=True) as bar, open_resources(layouts, **resources) as (runner, opened):
        search = BestFirstSearch(space, headroom, top, runner, opened, certain, with_front)
        search.run(bar)
    return search


def _choice(
    space: Space, headroom: float, counts: Mapping[str, int], ranked: list[Candidate], front: list[Candidate],
    nearest: Candidate | None, left_out: list[Changes], find_front: Callable[[], list[Candidate]],
    own: float = math.inf,
) -> Choice:  # fmt: skip
    """Return the choice of these ranked points, whose smallest is the last of `front`."""
    errors = {kind: order_error(kind).middle for kind in ("schedules", "layouts")} if space.config.derived else None
    smallest = front[-1] if front else None
    return Choice(placed(ranked, errors, own), dict(counts), space, headroom, left_out, smallest, nearest, find_front)


def _of_towers(
    search: TowerSearch, headroom: float, top: int, choose_backbone: Callable[..., Any], resources: Mapping[str, Any],
) -> Choice:  # fmt: skip
    """Return the choice for an encoder and a backbone, whose layouts `choose_backbone` ranks without the encoder."""
    choices = search.run(choose_backbone, top, headroom, resources)
    ranked, front = rank(search.fitting, top), front_of(search.fitting)
    nearest = None if ranked else min(search.too_large, key=lambda one: (one.memory, one.rank), default=None)
    shown = ranked[0] if ranked else nearest
    if shown is None:
        reasons = dict.fromkeys([search.refusal, *(one.nothing_fits for one in choices)])
        raise ConfigError(f"{search.source.place}: no layout of encoder and backbone can run: {'; '.join(reasons)}")
    values: dict[str, list[Any]] = {}
    for key, listed in itertools.chain(*(one.space.values.items() for one in choices), search.values.items()):
        values[key] = [*dict.fromkeys([*values.get(key, []), *listed])]
    left_out = [one for choice in choices for one in choice.left_out]
    space = Space(search.source.config(shown.changes), search.gpus, choices[0].space.batch, values)
    return _choice(space, headroom, search.counts, ranked, front, nearest, left_out, lambda: front)
