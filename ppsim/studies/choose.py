"""Choose: the layout and schedule with the most tokens per second that fits, among all that a config leaves open."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any

from ppsim.analysis.measures import MEASURES
from ppsim.analysis.memory import check_headroom
from ppsim.base.errors import ConfigError
from ppsim.base.host import need
from ppsim.base.rules import checked_call
from ppsim.base.short_repr import short_repr
from ppsim.base.tables import page_table
from ppsim.base.units import counted, percent_text
from ppsim.config import AnyConfig, Config
from ppsim.run.timelines import Timeline
from ppsim.studies.best_first import Search
from ppsim.studies.points import Candidate
from ppsim.studies.space import Changes, Space, open_space, runnable
from ppsim.studies.worker_pool import open_resources

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

TOP = 10  # points that are ranked


@dataclass(frozen=True)
class Chosen:
    """The winner as a config, simulated.

    Attributes
    ----------
    config : Config
        The one that was given, with the winner's keys.
    run : Timeline
    layout_string : str or None
        The stages in Megatron-LM's notation; None where no model is known.
    """

    config: Config
    run: Timeline
    layout_string: str | None

    __repr__ = short_repr


@dataclass(frozen=True)
class Choice:
    """Ranked candidates and the Pareto front; the result of `choose`.

    Attributes
    ----------
    ranked : list of Candidate
        The fastest points that fit, at most `top` of them, the winner first; empty where nothing fits. If points
        have equal steps (`ppsim.studies.points.rounded`), the simplest is ranked, and the others are its `alike`.
    front : list of Candidate
        The points than which no other is both as fast and as small, fastest first.
    counts : mapping
        Points in all, and what became of them: `simulated`; pruned by `memory` (a lower bound of the peak is above the
        limit) or by `step` (a lower bound of the step is above what is kept); `refused` by a rule of the schedule or
        the layout. They sum to `points`.
    space : Space
    headroom : float
    left_out : list of mapping
        Layouts and points, counted as refused, whose worker died twice.
    """

    ranked: list[Candidate]
    front: list[Candidate]
    counts: Mapping[str, int]
    space: Space
    headroom: float
    left_out: list[Changes] = field(default_factory=list)

    __repr__ = short_repr

    @functools.cached_property
    def best(self) -> Chosen:
        """The winner; ConfigError where nothing fits."""
        if not self.ranked:
            raise ConfigError(f"{self._nothing}; use more GPUs, less headroom or more free keys")
        config = self.space.config.changed(self.ranked[0].changes)
        run = config.simulate()
        return Chosen(config, run, run.layout_string)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per ranked point: its free keys, its measures, and the number of equal points (`alike`)."""
        return [{**one.changes, **one.numbers, "alike": one.alike} for one in self.ranked]

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a pandas table."""
        return need("pandas", "a table of points").DataFrame(self.rows())

    @checked_call(hint="plot().savefig(path) writes a file")
    def plot(self) -> Figure:
        """Draw step time against memory of the ranked points and of the front, as a matplotlib figure."""
        from ppsim.plots.many_runs import draw_front

        drawn = {one.rank: one for one in (*self.front, *self.ranked)}.values()
        if not drawn:
            raise ConfigError(f"{self._nothing}; there is nothing to draw")
        memory = MEASURES["peak_memory" if self.front[0].numbers["peak_memory"] is not None else "peak_activations"]
        return draw_front([(one.memory, one.step) for one in drawn], [*map(_name, drawn)], memory.title, memory.unit)

    def _repr_html_(self) -> str:
        return page_table(self.rows(), {name: measure.unit for name, measure in MEASURES.items()})

    @property
    def _nothing(self) -> str:
        return f"no point fits with {percent_text(self.headroom)} of the memory kept free"


def _name(one: Candidate) -> str:
    """Return the label of a candidate's dot in a chart."""
    stages = one.changes.get("schedule.stages_per_device")
    name = one.changes["schedule.name"] + (f":{stages}" if stages else "")
    return f"{name} on {counted(one.changes['schedule.devices'], 'device')}"


def _run_by(framework: str, *given: object) -> list[str]:
    """Return the schedules that a framework runs; ConfigError if others are named too."""
    if any(isinstance(keys, Mapping) and keys.get("schedule.name") for keys in given):
        raise ConfigError(f"framework={framework} and schedule.name both say which schedules to try; give one of them")
    return runnable(framework)


def choose(
    config: AnyConfig,
    free: Iterable[str] | Mapping[str, Iterable[Any]] | None = None,
    *,
    headroom: float = 0.1,
    asynchronous: bool = False,
    only: Mapping[str, Iterable[Any]] | None = None,
    framework: str | None = None,
    top: int = TOP,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | None = None,
) -> Choice:
    """Return the fastest layout and schedule of a model on a cluster that fits in the memory of every device.

    Every point is either simulated or proven not to matter: one whose memory is, at least, above the limit; one whose
    step is, at least, longer than those of `top` points that fit and which is, at best, no smaller than a faster one.
    Layouts are opened and points simulated in rounds, the ones with the lowest bounds first.
    The answer is that of simulating all of them.

    Parameters
    ----------
    config : path, dict or Config
        Model, hardware, GPUs (`hardware.gpus`) and batch (`batch`, sequences a step); what it leaves out is free.
    free : list of keys, or mapping of key to its values, optional
        As in `open_space`: these keys are free, whatever the config has there.
    headroom : float
        Part of each device's memory that must stay free, from 0 to below 1.
    asynchronous : bool
        Whether schedules that train on old weights take part.
    only : mapping of key to its values, optional
        As in `open_space`: of these keys no other values, such as {"schedule.name": ["1f1b", "interleaved-1f1b"]}.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        No other schedules than those that it runs: `only` with their names.
    top : int
        How many points are ranked.
    executor : concurrent.futures.Executor, optional
        Default: `workers` processes of this machine; this process alone where the layouts are few.
    workers : int, optional
        Default: as many as there are processors.
    store : path, optional
        An SQLite file that keeps what is known of layouts and points: a run that was killed goes on from there.

    Raises
    ------
    ConfigError
        As `open_space`; for a headroom outside 0..1, an unknown framework, and one beside names of schedules in `only`.
    """
    check_headroom(headroom)
    if framework is not None:
        only = {**(only or {}), "schedule.name": _run_by(framework, free, only)}
    space = open_space(config, free, asynchronous, only)
    with open_resources(sum(1 for _ in space.layouts()), executor, workers, store) as (runner, kept):
        search = Search(space, headroom, top, runner, kept)
        search.run()
    return Choice(search.ranked, search.front, dict(search.counts), space, headroom, search.left_out)
