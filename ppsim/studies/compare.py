"""Comparison of schedules on equal work: one run each, ranked by step time, and why others cannot run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack, cast

from ppsim.analysis.bubbles import iteration_time
from ppsim.analysis.interval import INTERVAL, surely_faster
from ppsim.analysis.measures import shown_in
from ppsim.analysis.memory import HEADROOM, fit_of, peak_activations
from ppsim.base.errors import BuildError, ConfigError, PpsimError, shown
from ppsim.base.rules import checked_call, declared, described
from ppsim.base.tables import Html, Tabular, after_names, page_table
from ppsim.base.units import value_text
from ppsim.config import AnyConfig, Config, as_config, value_at
from ppsim.costs.layout import Layout
from ppsim.families.registry import RegisteredFamily
from ppsim.frameworks import frameworks_running, searched_layouts
from ppsim.launch.reading import idle_overlaps
from ppsim.plan.jitter import Jitter
from ppsim.plots.boxes import block_names
from ppsim.plots.palette import notebook_theme, reader_style
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import families, find_family, split_stages
from ppsim.studies.free_keys import needed
from ppsim.studies.points import change_between, fits_within, limited_text
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from ppsim.plots.chart_files import ComparisonOptions

SCHEMA = "ppsim.comparison/1"
SEARCHES = "uses a search; runs only if named in --schedules"
MAX_PANELS = 6  # of the chart of all schedules
READY = "+ready"  # suffix of a schedule's name: dispatch "ready", its lists are priorities


class _Entry(NamedTuple):
    item: RegisteredFamily | Schedule
    label: str  # its name in the table
    stages: int | None  # per device; None is the family's default


@described
@dataclass(frozen=True)
class Comparison(Tabular):
    """Comparison of runs, shortest step first; the result of `compare`."""

    _empty = "no schedule ran"
    timelines: list[Timeline] = declared(
        "the runs, shortest step first; of equal steps, the smaller activation peak first. Asynchronous schedules "
        "come last, because they train on old weights and without a drain. A given list keeps its order."
    )
    refused: Mapping[str, str] = declared("by schedule name: the reason why it cannot run at this size, or is left out")
    current: Timeline | None = declared(
        "the run that the others are compared with: the config's own schedule, or the first item of a list",
        default=None,
    )
    headroom: float = declared(
        "fraction of each device's memory that must stay free for a run to fit", default=HEADROOM
    )
    named: Sequence[str] = declared(
        "the schedules that were listed, in the order of charts; empty if they are all that need no search", default=()
    )

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per schedule, in the order of `timelines`: name, asynchronous or not, and measures.

        Then `fits` (in the memory of each device), `step_difference` (seconds from the current run), `interval` (90 %,
        of a real step in seconds) and `layout_string`. Each is None if it is not known.
        """
        measures = shown_in("compare")
        return [
            {"schedule": run.schedule.name, "asynchronous": asynchronous(run)}
            | {measure.name: measure.number(run) for measure in measures}
            | {"fits": fits_within(run, self.headroom), "step_difference": self._difference(run)}
            | {"interval": run.interval, "layout_string": run.layout_string}
            for run in self.timelines
        ]

    def as_fast(self) -> list[str] | None:
        """Return the schedules whose real step may be as short as the first's, at 90 %; the others are slower.

        None if the costs give no interval of a real step.
        """
        if not self.timelines or self.timelines[0].interval is None:
            return None
        first, *others = self.timelines
        return [run.schedule.name for run in others if not surely_faster(first, run)]

    def slower(self) -> list[list[str]] | None:
        """Return for each schedule the later ones that are slower at 90 %; None if the costs give no interval."""
        if self.as_fast() is None:
            return None
        runs = self.timelines
        return [
            [other.schedule.name for other in runs[number + 1 :] if surely_faster(run, other)]
            for number, run in enumerate(runs)
        ]

    @property
    def drawn(self) -> list[Timeline]:
        """The timelines of a chart: the base, and all that were named or else the fastest.

        Named ones keep their order. Among the fastest, those that fit and train on new weights go before the others.
        """
        if self.named:
            return sorted(self.timelines, key=lambda run: self.named.index(run.schedule.name))
        base = self._base(self.timelines)
        others = [run for number, run in enumerate(self.timelines) if number != base]
        first = sorted(others, key=lambda run: (fits_within(run, self.headroom) is False, asynchronous(run)))
        kept = {id(run) for run in first[: MAX_PANELS - 1]}
        others = [run for run in others if id(run) in kept]
        return [*self.timelines[base : base + 1], *others]

    def _chart(self, titles: Sequence[str] | None) -> dict[str, Any]:
        """Return the options of `draw`: timelines, titles, and texts about undrawn and refused schedules."""
        runs = self.drawn
        undrawn = len(self.timelines) - len(runs)
        reasons = after_names((name, why.partition(";")[0]) for name, why in self.refused.items() if self.named)
        marks = [" (asynchronous)" * asynchronous(run) for run in runs]
        return {
            "timelines": runs,
            "titles": [*map("".join, zip(block_names(runs), marks, strict=True))] if titles is None else titles,
            "base": self._base(runs),
            "note": f"{undrawn} others are drawn if you name them" if undrawn else "",
            "lead": "not run: " * bool(reasons) + "; ".join(reasons),
        }

    def _base(self, runs: Sequence[Timeline]) -> int:
        """Return the number of the run that others are compared with: the config's, or the first."""
        return next((number for number, run in enumerate(runs) if run is self.current), 0)

    def _difference(self, run: Timeline) -> float | None:
        return None if self.current is None else change_between(self.current.iteration_time, run.iteration_time)

    @checked_call(hint="save(path) writes a chart to a file")
    def plot(
        self, *, width: float | None = None, title: str | None = None, titles: Sequence[str] | None = None,
        labels: bool | str = "auto", memory: bool | str = False, transfers: bool = False, critical_path: bool = False,
        theme: str | None = None,
    ) -> Figure:  # fmt: skip
        """Return the timelines of `drawn` on one time axis as a matplotlib figure, one below the other.

        `titles` has one title for each (default: the schedules' names); the other options are those of
        `Timeline.plot`. Raises ConfigError for any other option or value, and if there is no timeline.
        """
        from ppsim.plots.gantt import draw  # matplotlib takes half a second to load

        return draw(
            **self._chart(titles), width=width, title=title, labels=labels, memory=memory, transfers=transfers,
            critical_path=critical_path, theme=theme,
        )  # fmt: skip

    @checked_call(hint="the others are those of plot, and dpi")
    def save(self, path: str | PathLike[str], **options: Unpack[ComparisonOptions]) -> None:
        """Write the chart of `plot` atomically, as PNG, SVG, PDF or HTML by the suffix of `path`.

        `lead` is the text below a page's title. `dpi` is the pixels per inch of a PNG. Pages have no `dpi`, `width` and
        `labels`. Raises ConfigError for another suffix, a file that cannot be written, or a wrong option.
        """
        from ppsim.plots.chart_files import ComparisonOptions, check_options, is_page, save_gantt

        check_options(options, ComparisonOptions.__annotations__)
        drawing: dict[str, Any] = options | self._chart(options.get("titles"))
        if is_page(path):
            drawing["lead"] = " · ".join(filter(None, [options.get("lead"), drawing["lead"]]))
        save_gantt(path=path, **drawing)

    def _repr_html_(self) -> str:
        if not self.timelines:
            return self._empty
        rows, units = self._table()
        for row in rows:
            if "base" in row.values():
                row["schedule"] = Html(f"<b>{escape(row['schedule'])}</b>")
            if row["fits"] == "over":
                row["fits"] = Html(f"<b style='color:{notebook_theme(None).limit}'>over</b>")
            if row["peak memory"] is not None:
                del row["peak activations"]
        table = page_table(rows, units)
        return reader_style(table) + table

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return a row per schedule with the numbers that a chart gives it, and their units."""
        if not self.timelines:
            return [], {}
        base = self.drawn[self._base(self.drawn)]
        versus = f"vs {base.schedule.name}"
        rows = [
            {
                "schedule": run.schedule.name,
                "asynchronous": asynchronous(run) or None,
                "step": run.iteration_time,
                versus: "base"
                if run is base or not base.iteration_time
                else run.iteration_time / base.iteration_time - 1.0,
                "idle": run.steady_bubble_fraction,
                "peak memory": None if run.peak_memory is None else float(run.peak_memory.max()),
                "fits": fit_of(run, self.headroom).replace("fits", "yes") or None,
                "peak activations": round(float(run.peak_activations.max()), 2),
            }
            for run in self.timelines
        ]
        units = {"step": "seconds", versus: "change", "idle": "fraction", "peak memory": "bytes"}
        return rows, units | {"peak activations": "activations"}

    def to_dict(self) -> dict[str, Any]:
        """Return rows and refusals as plain Python values, with units and definitions (schema ppsim.comparison/1)."""
        measures = shown_in("compare")
        return {
            "schema": SCHEMA,
            "headroom": self.headroom,
            "schedules": self.rows(),
            "refused": dict(self.refused),
            "as_fast": self.as_fast(),
            "slower": self.slower(),
            "current": None if self.current is None else self.current.schedule.name,
            "units": {measure.name: measure.unit for measure in measures}
            | {"step_difference": "seconds", "interval": "seconds"},
            "definitions": {measure.name: measure.meaning for measure in measures}
            | {
                "asynchronous": "whether steps follow each other without a drain, on old weights",
                "fits": "whether peak_memory is within the memory of a device less the headroom",
                "step_difference": "iteration_time less that of the current schedule",
                "interval": INTERVAL,
                "as_fast": "schedules whose real step may be as short as the first's; the others are slower at 90 %",
                "slower": "for each schedule in turn those after it that are slower at 90 %",
                "layout_string": "what each stage holds, in Megatron-LM's notation",
            },
        }


@checked_call()
def compare(
    config: AnyConfig | Timeline | Iterable[Timeline],
    schedules: Iterable[str | Schedule] | None = None,
    *,
    headroom: float | None = None,
) -> Comparison:
    """Run schedules at equal work: with the sizes, costs, transport and jitter of a config or of a run.

    Parameters
    ----------
    config : path, dict, Config, timeline, or list of timelines
        One timeline is compared with schedules that run as it did. A list is compared as it is, in its order and with
        its first item. `run.named("measured")` gives a timeline a name in the chart.
    schedules : iterable of family names and schedules, optional
        Schedules to run. Default: every family of the registry that needs no search. "interleaved-1f1b:4" gives the
        stages per device, "zb-h1+ready" the dispatch. By default, families take the config's stages per device, if
        these are several. The config's options go to its own family.
    headroom : float, optional
        Leave out schedules that do not fit with this fraction of each device's memory kept free.

    Raises
    ------
    BuildError
        For an unknown family. A schedule that cannot run at this size is not an error: `refused` gives the reason.
    """
    if isinstance(config, Iterable) and not isinstance(config, str | Mapping):
        runs = list(config)
        if not runs or not all(isinstance(one, Timeline) for one in runs):
            raise ConfigError("compare needs a config, or a list of timelines; run schedules with ppsim.simulate")
        return Comparison(runs, {}, runs[0], named=[run.schedule.name for run in runs])
    listed = [] if schedules is None else list(schedules)
    if isinstance(schedules, str) or (schedules is not None and not listed):
        raise ConfigError(f"schedules={schedules!r} must be a list of schedules, such as ['1f1b', 'zb-h1']")
    given_run = [config] if isinstance(config, Timeline) else []
    base_config = _config_of(config) if isinstance(config, Timeline) else as_config(cast(AnyConfig, config))
    entries = {entry.label: entry for entry in (_entry(item, base_config) for item in listed or families())}
    for run in given_run:
        entries.pop(run.schedule.name, None)
    # Families that a framework runs have short searches.
    searching = [name for name in entries if not listed and find_family(name).searches]
    refused = {name: SEARCHES for name in searching if not frameworks_running(name)}
    timelines, sizes = [*given_run], base_config.sizes
    for entry in [entry for name, entry in entries.items() if name not in refused]:
        try:
            timelines.append(_run(entry, base_config, sizes, headroom))
        except PpsimError as error:
            refused[entry.label] = str(error).removeprefix(f"{entry.item.name}: ")
    timelines.sort(
        key=lambda run: (asynchronous(run), iteration_time(run), peak_activations(run).max(), run.schedule.name)
    )
    named = [*(run.schedule.name for run in given_run), *entries] if listed else []
    current = given_run[0] if given_run else _current(base_config, timelines)
    return Comparison(timelines, refused, current, HEADROOM if headroom is None else headroom, named)


def _config_of(run: Timeline) -> Config:
    """Return the config that a simulated run came from, or one with its sizes and costs."""
    if run.engine == "measured":
        raise ConfigError(f"{run.schedule.name} is a measured step; ppsim.explain compares it with schedules")
    schedule, noise = run.schedule.compute, dict(run.plan.noise or {})
    given: dict[str, Any] = {"optimizer": run.plan.optimizer, "seed": noise.pop("seed", 0)}
    noise.pop("sample", None)
    sizes = {"name": schedule.name, "devices": schedule.devices, "microbatches": schedule.microbatches_of_a_step}
    jitter = Jitter(**noise) if noise else None
    return run.config or Config(schedule.name, "", sizes, run.costs, run.transport, jitter=jitter, **given)


def _current(config: Config, timelines: Iterable[Timeline]) -> Timeline | None:
    """Return the run of the config's own schedule; None if it cannot run."""
    name = config.schedule.get("name")
    for run in timelines:
        if run.schedule.name == name:
            return run
    try:
        return config.simulate()
    except PpsimError:
        return None


def _run(entry: _Entry, config: Config, sizes: tuple[int, int], headroom: float | None) -> Timeline:
    """Return the run of one schedule; raise PpsimError if it cannot run at these sizes, or does not fit."""
    item, label, stages = entry
    if isinstance(item, RegisteredFamily):
        options = config.schedule.get("options", {}) if item.name == config.schedule.get("name") else {}
        schedule = Schedule.of(config.build_family(item, *sizes, stages, options).named(label))
    else:
        own_sizes = item.compute.devices, item.compute.microbatches_of_a_step
        if own_sizes != sizes:
            raise BuildError(
                f"it has {own_sizes[0]} devices and {own_sizes[1]} microbatches; compared are schedules of {sizes[0]} "
                f"devices and {sizes[1]} microbatches"
            )
        schedule = config.completed(item)
    run = config.simulate(schedule, dispatch="ready" if label.endswith(READY) else config.dispatch)
    if headroom is not None and fits_within(run, headroom) is False:
        if run.peak_memory is None:
            raise ConfigError(f"does not fit: {limited_text(run)}")
        raise ConfigError(f"does not fit: {value_text(-run.memory().spare(headroom).min(), 'bytes')} too much")
    return run


def _entry(item: str | Schedule, config: Config) -> _Entry:
    """Return the schedule, label and stages per device of a name or a schedule in the list of `compare`."""
    if not isinstance(item, str):
        if not isinstance(item, ScheduleColumns):
            raise ConfigError(f"{shown(item)} is not a schedule to compare; give names such as '1f1b', or schedules")
        return _Entry(item, item.name, None)
    name, stages = split_stages(item.removesuffix(READY))
    family, own = find_family(name), config.schedule.get("stages_per_device")
    if stages is None and not family.fixed_stages and (own != 1 or name == config.schedule.get("name")):
        stages = own
    return _Entry(family, item, stages)


def changes_to(name: str, config: Config) -> dict[str, Any]:
    """Return the keys that give a config the schedule of a row of `compare`, the last ones as its framework needs."""
    entry = _entry(name, config)
    keys = {"schedule.name": entry.item.name, "schedule.stages_per_device": entry.stages}
    needs = searched_layouts(None, value_at(config.data, "layout.framework")).needs.get(entry.item.name, {})
    layout = getattr(config.costs, "layout", None)
    idle = {f"layout.{key}" for key in idle_overlaps(layout)} if isinstance(layout, Layout) else ()
    return {**keys, **{key: value for key, value in needed(config.costs, needs).items() if key not in idle}}


def asynchronous(run: TimelineColumns) -> bool:
    """Return True if steps follow each other without a drain, by the schedule's family or its iterations."""
    return run.schedule.iterations > 1 or is_asynchronous(run.schedule.name)


def is_asynchronous(name: str) -> bool:
    """Return True if a schedule's name is that of a family whose steps follow each other without a drain."""
    family = families().get(split_stages(name.removesuffix(READY))[0])
    return family is not None and family.asynchronous
