"""Sweep: a table and charts of measures for every combination of values of some keys."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, fields
from os import PathLike
from typing import TYPE_CHECKING, Any

from ppsim.actions import Kind
from ppsim.analysis.measures import MEASURES, Measure
from ppsim.analysis.memory import HEADROOM, fit_within
from ppsim.base.documents import as_python, read_yaml
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import argument, checked_call, choice, declared, described, is_number
from ppsim.base.tables import Tabular, markdown_table
from ppsim.base.units import EXAMPLES, counted, parse_quantity, time_unit
from ppsim.config import AnyConfig, ConfigSource, config_source, value_at
from ppsim.costs import Costs
from ppsim.costs.given import TIMES
from ppsim.interop.result import plain
from ppsim.studies.compare import is_asynchronous
from ppsim.studies.points import POINT_MEASURES, Candidate, run_points, usable_bytes
from ppsim.studies.worker_pool import is_left_out

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "ppsim.sweep/1"
FITS = ("fits", "tight", "over")  # best first
MAX_VALUES = 100_000
MAX_POINTS = 10_000_000
ASYNCHRONOUS = "asynchronous (steps follow each other without a drain, on old weights)"
_IN_CHARTS = {
    "iteration_time": "step time",
    "bubble_fraction": "idle time",
    "steady_bubble_fraction": "idle time",
    "mfu": "MFU",
}
_PAGE = ("iteration_time", "tokens_per_second", "mfu", "bubble_fraction", "peak_activations", "peak_memory")


@described
@dataclass(frozen=True)
class Sweep(Tabular):
    """Table of all combinations; the result of `sweep`."""

    keys: list[str] = declared("the dotted keys that were varied")
    points: list[Candidate] = declared("one per combination; the values of the last key change fastest")
    name: str = declared("the config's name, and its schedule and sizes that were not varied", default="")
    limit: float | None = declared("usable bytes of a device; None if they are unknown or were varied", default=None)

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per combination: values, measures (None if it is refused), `layout_string` and `refused`."""
        return [
            {**point.changes, **dict.fromkeys(POINT_MEASURES), **(point.measures or {})}
            | {"layout_string": point.layout_string, "refused": point.refused}
            for point in self.points
        ]

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """The combinations whose worker died each time, each with the cause as `refused`; they have no result."""
        return [{**one.changes, "refused": one.refused} for one in self.points if is_left_out(one.refused)]

    def to_dict(self) -> dict[str, Any]:
        """Return the points as plain Python values, equal for every run (schema ppsim.sweep/1)."""
        return {
            "schema": SCHEMA,
            "points": [
                {"over": plain(dict(point.changes))}
                | ({"refused": point.refused} if point.measures is None else dict(point.measures))
                | ({} if point.layout_string is None else {"layout_string": point.layout_string})
                for point in self.points
            ],
            "units": {name: measure.unit for name, measure in POINT_MEASURES.items()},
            "definitions": {name: measure.meaning for name, measure in POINT_MEASURES.items()},
        }

    @checked_call(hint="plot().savefig(path) writes a file")
    def plot(
        self, measure: str = "iteration_time", over: str | None = None, *, width: float | None = None,
        title: str | None = None, theme: str | None = None, limit: float | None = None,
    ) -> Figure:  # fmt: skip
        """Draw a measure over a swept number as a matplotlib figure, one line for each combination of the other keys.

        `over` is one of `keys`; default: the last key with at least two numbers. `width`, `title` and `theme` are
        those of `Timeline.plot`, `limit` that of `plot_front`. Raises ConfigError if there is no such key, or every
        point is refused.
        """
        from ppsim.plots.many_runs import draw_lines

        kind = POINT_MEASURES[argument("measure", measure, choice(*POINT_MEASURES))]
        over = over if over is not None else self._numeric_key()
        if over not in self.keys:
            raise ConfigError(f"over={shown(over)} was not swept; use one of: {', '.join(self.keys)}")
        lines: dict[str, list[tuple[float, float]]] = {}
        fits: dict[tuple[str, float], str] = {}
        for point in self.points:
            value = None if point.measures is None else point.measures[measure]
            number = as_number(point.changes[over])
            if value is not None and number is not None:
                name = self._name(point, over)
                lines.setdefault(name, []).append((number, value))
                fits[name, number] = _fit(point, limit)
        if not lines:
            known = any((point.measures or {}).get(measure) is not None for point in self.points)
            fix = "sweep numbers, such as 8:128:x2" if known else "it needs sections model and hardware in the config"
            raise ConfigError(f"cannot plot {measure} over {over}: {fix}")
        title_of, unit = _IN_CHARTS.get(measure, kind.title), kind.short_unit or kind.unit
        if (measure, over) == ("iteration_time", "schedule.microbatches"):  # more work takes longer
            title_of += " per microbatch"
            lines = {name: [(m, seconds / m) for m, seconds in pairs] for name, pairs in lines.items()}
        words: Any = {"what": self.name, "heading": title, "fits": fits, "refused": self._refused}
        return draw_lines(lines, over, title_of, unit, width, theme=theme, **words)

    @checked_call(hint="plot_front().savefig(path) writes a file")
    def plot_front(
        self, *, width: float | None = None, title: str | None = None, theme: str | None = None,
        limit: float | None = None,
    ) -> Figure:  # fmt: skip
        """Draw step time against peak memory (activations if bytes are not known), with the Pareto front.

        A point is on the Pareto front if it fits and no other one is as good in both, and by 0.5 % better in one; the
        best one, which `ppsim sweep` prints, always is. Points with different numbers of microbatches are compared by
        the step time per microbatch. `limit` is the usable memory of a device (default: that of the config), drawn as a
        line if a peak comes near it. Points above it are half filled if the device has that memory (`tight`), else
        hollow. `width`, `title` and `theme` are those of `Timeline.plot`. Raises ConfigError if all points are refused.
        """
        from ppsim.plots.fronts import draw_front

        runs = [(point, point.measures) for point in self.points if point.measures is not None]
        if not runs:
            raise ConfigError("every point is refused; there is nothing to draw")
        best, *_ = ranked_points(self, limit)
        memory = MEASURES["peak_memory" if None not in [run["peak_memory"] for _, run in runs] else "peak_activations"]
        counts = [as_number(point.changes.get("schedule.microbatches")) or 1.0 for point, _ in runs]
        work = counts if len({*counts}) > 1 else [1.0] * len(runs)
        pairs = [(run[memory.name], run["iteration_time"] / part) for part, (_, run) in zip(work, runs, strict=True)]
        varied = self._varied([run for run, _ in runs])
        names = [self._name(point, "schedule.name", varied) for point, _ in runs]
        groups = [point.changes.get("schedule.name") for point, _ in runs]
        step = "step time per microbatch" if work is counts else "step time"
        if "schedule.devices" in varied:
            sizes = [as_number(point.changes["schedule.devices"]) or 0.0 for point, _ in runs]
            step += f" on {min(sizes):g} to {max(sizes):g} devices"
        words: Any = {"step": step, "groups": groups, "limit": limit or self.limit, "refused": self._refused}
        words |= {"best": [point for point, _ in runs].index(best), "fits": [_fit(one, limit) for one, _ in runs]}
        common = [_value_name(key, runs[0][0].changes[key]) for key in self._varied(self.points) if key not in varied]
        name, *costs = self.name.split(" · ")
        words |= {"what": " · ".join([", ".join([*filter(None, [name]), *common]), *costs]), "heading": title}
        if len(others := [key for key in varied if key != "schedule.name"]) == 1:
            words["varied"] = short_key(others[0]).replace("_", " "), [run.changes[others[0]] for run, _ in runs]
        return draw_front(pairs, names, memory.title, memory.short_unit or memory.unit, width, theme=theme, **words)

    def _name(self, point: Candidate, over: str = "", varied: Sequence[str] = ()) -> str:
        """Return the values of a point that differ between points, or of `varied`, in words, without that of `over`."""
        keys = sorted(varied or self._varied(self.points) or self.keys, key=lambda key: key != "schedule.name")
        return ", ".join(_value_name(key, point.changes[key]) for key in keys if key != over)

    @property
    def _refused(self) -> list[str]:
        """The names of refused points, or the value that these alone have, such as tensor 8."""
        ran, refused = ([one for one in self.points if (one.measures is None) == is_refused] for is_refused in (0, 1))
        for key in self._varied(self.points) if refused else ():
            values = {str(one.changes[key]) for one in refused}
            if len(values) == 1 and not values & {str(one.changes[key]) for one in ran}:
                return [_value_name(key, refused[0].changes[key])]
        return [*map(self._name, refused)]

    def _varied(self, points: Sequence[Candidate]) -> list[str]:
        return [key for key in self.keys if len({str(one.changes[key]) for one in points}) > 1]

    def _numeric_key(self) -> str:
        for key in reversed(self.keys):
            numbers = [as_number(point.changes[key]) for point in self.points if point.measures is not None]
            if len({*numbers} - {None}) > 1:
                return key
        raise ConfigError(
            f"cannot plot: none of {', '.join(self.keys)} has two numeric values; sweep numbers, such as 8:128:x2"
        )

    def to_markdown(self) -> str:
        """Return the table in Markdown; a refusal is in the last column."""
        return markdown_table(*self._table())

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return a row per point with its keys, measures and refusal, and the units of the measures."""
        known = [point.measures for point in self.points if point.measures is not None]
        measures = [MEASURES[name] for name in _PAGE if any(numbers.get(name) is not None for numbers in known)]
        rows = [
            {**{short_key(key): value if isinstance(value, int | float) else str(value)
                for key, value in ((key, point.changes[key]) for key in self.keys)},
             **{measure.title: (point.measures or {}).get(measure.name) for measure in measures},
             "refused": point.refused}
            for point in self.points
        ]  # fmt: skip
        return rows, {measure.title: measure.unit for measure in measures}


@checked_call()
def sweep(
    config: AnyConfig,
    over: Mapping[str, Iterable[Any] | str],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | None = None,
) -> Sweep:
    """Simulate every combination of values of some keys.

    Parameters
    ----------
    config : path, dict or Config
        It may lack the keys in `over`.
    over : mapping of dotted config key to its values
        A list, or text as in `ppsim sweep --over`: "a,b,c", "8:128:x2" (each value twice the one before), "0:1ms:5" (5
        evenly spaced values). A schedule's name may give its stages per device: "interleaved-1f1b:4".
    executor : concurrent.futures.Executor, optional
        Default: `workers` processes of this machine, or this process if the points are few.
    workers : int, optional
        Default: the number of processors.
    store : path, optional
        An SQLite file that stores results, so that a killed run can resume and a repeated one simulates nothing.

    Raises
    ------
    ConfigError
        No values, or a fault of the config that no value mends. An impossible combination is no error: the table shows
        the rule that refuses it.

    Examples
    --------
    >>> ppsim.sweep("unit-costs.yaml", over={"schedule.name": ["1f1b", "zb-h1"], "schedule.microbatches": [8, 16]})
    """
    source = config_source(config)
    if not isinstance(over, Mapping) or not all(isinstance(key, str) for key in over):
        raise ConfigError(f"over={shown(over)} must map keys to values, such as {{'schedule.microbatches': [8, 16]}}")
    values = {key: _values(key, given) for key, given in over.items()}
    if not values:
        raise ConfigError("nothing to sweep: give keys and values, such as schedule.microbatches=8,16,32")
    count = math.prod(map(len, values.values()))
    if count > MAX_POINTS:
        raise ConfigError(f"{count:,} points are too many; sweep at most {MAX_POINTS:,}")
    points = [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]
    refuse_common_faults(source, points)
    found = list(run_points(source, points, executor=executor, workers=workers, store=store))
    ran = next((point.changes for point in found if point.measures is not None), None)
    one = None if ran is None or any(key.startswith("hardware") for key in values) else source.config(ran)
    limit = None if one is None or one.derived is None else usable_bytes(one, HEADROOM)
    longest = max((one.measures["iteration_time"] for one in found if one.measures), default=0.0)
    return Sweep(list(values), found, _subject(source, values, longest), limit)


def _subject(source: ConfigSource, varied: Iterable[str], longest: float) -> str:
    """Return the subject of a chart: the config's name, its schedule and the sizes that the sweep does not vary.

    A config without name and model is described by its costs, in the unit of the `longest` step if it suits them.
    """
    sizes = {key: value_at(source.data, f"schedule.{key}") for key in ("name", "devices", "microbatches")}
    known = {key: value for key, value in sizes.items() if value is not None and f"schedule.{key}" not in varied}
    words = [value if key == "name" else counted(value, key[:-1]) for key, value in known.items()]
    if not (name := source.data.get("name")) and "model" not in source.data:
        given = source.data.get("costs") or {}
        parts: list[Any] = [given.get(key) for key in ("input_grad", "weight_grad") if f"costs.{key}" not in varied]
        is_split = len(parts) == 2 and all(isinstance(part, int | float) for part in parts)
        defaults = {} if "profile" in given else {"forward": 1, "backward": sum(parts) if is_split else 2}
        costs = {**defaults, **given}
        names = dict[str, list[str]]()
        times = [one.name for one in fields(Costs) if one.metadata.get("unit") == "seconds"]
        times = [key for key in times if isinstance(costs.get(key), int | float) and f"costs.{key}" not in varied]
        letters = {name: Kind(at).name for at, name in enumerate(TIMES)} | {"latency": "transfer"}  # as in titles
        common = time_unit(longest)
        if min((costs[key] for key in times if costs[key] > 0), default=1.0) * common.factor < 0.099:
            common = time_unit(max(costs[key] for key in times))
        for key in times:
            unit = time_unit(costs[key]) if 0 < costs[key] * common.factor < 0.099 else common
            text = f"{costs[key] * unit.factor:g} {unit.symbol}"
            names.setdefault(text, []).append(letters.get(key, key.replace("_", " ")))
        words = [", ".join(map(str, words)), *(f"{', '.join(of)} {text}" for text, of in names.items())]
        return " · ".join(filter(None, words))
    return ", ".join(map(str, [*filter(None, [name]), *words]))


def refuse_common_faults(source: ConfigSource, points: Sequence[Mapping[str, Any]]) -> None:
    """Raise one ConfigError with the faults that the config has at the first and at the last point of the sweep."""
    compared = (points[0], points[-1] if len(points) > 1 else {})
    first, last = (_faults(source, changes) for changes in compared)
    common = [fault for fault in first if fault in last]
    if common:
        raise ConfigError(f"{source.place}: " + "; ".join(common), common)


def _faults(source: ConfigSource, changes: Mapping[str, Any]) -> list[str]:
    try:
        source.config(changes)
    except ConfigError as error:
        return error.faults
    return []


def _value_name(key: str, value: Any) -> str:
    """Return a value of a key in words, such as `4 microbatches` or `tensor 2`; text is its own name."""
    word = key.rpartition(".")[2].replace("_", " ")
    if as_number(value) is None:
        return str(value)
    return f"{value} {word}" if word.endswith("s") and value != 1 else f"{word} {value}"


def _values(key: str, given: Iterable[Any] | str) -> list[Any]:
    if not isinstance(given, str | Iterable) or isinstance(given, Mapping):
        raise ConfigError(f"over {key}: {shown(given)} must be a list of values, or text such as 8:128:x2")
    if isinstance(given, str):
        values = parse_values(given, key)
    else:
        first_values = itertools.islice(given, MAX_POINTS + 1)  # it may have no end
        values = [as_python(value, f"over {key}") for value in first_values]
    if not values:
        raise ConfigError(f"over {key}: no values; give at least one, such as {key}=8")
    return values


def parse_values(text: str, key: str = "values") -> list[Any]:
    """Return the values of a text: "a,b,c", "8:128:x2" (geometric), "0:1ms:5" (evenly), or a mixture of them.

    Numbers with units become SI numbers within ranges. Raises ConfigError with the text and what is legal.
    """
    values: list[Any] = []
    for part in (part.strip() for part in re.split(r",(?![^\[{(]*[\]})])", text)):
        if not part:
            raise ConfigError(f"{key}={text}: a value is empty; write values with commas between them, such as 8,16,32")
        fields = part.split(":")
        bounds = _in_one_unit(fields[:2]) if len(fields) in (2, 3) else None
        values += _range(part, fields, bounds, key) if bounds else [read_yaml(part, f"{key}={part}").value]
    return values


def _in_one_unit(texts: Sequence[str]) -> list[float] | None:
    """Return the numbers in these texts; None if no unit is that of all."""
    for unit in EXAMPLES:
        with suppress(ConfigError):
            return [parse_quantity(text, unit) for text in texts]
    return None


def _range(part: str, fields: Sequence[str], bounds: Sequence[float], key: str) -> list[Any]:
    low, high = bounds
    step = fields[2].strip() if len(fields) == 3 else ""
    factor, count = 0.0, 0
    with suppress(ValueError):
        factor, count = (float(step[1:]), 0) if step[:1] == "x" else (0.0, int(step))
    if 1 < factor < math.inf and 0 < low <= high:
        values = [low]
        while values[-1] * factor <= high * (1 + 1e-9) and len(values) <= MAX_VALUES:
            values.append(values[-1] * factor)
    elif count >= 1 and low <= high:
        values = [low + (high - low) * index / max(count - 1, 1) for index in range(min(count, MAX_VALUES + 1))]
    else:
        raise ConfigError(
            f"{key}={part}: write LOW:HIGH:xFACTOR with a factor above 1 and LOW above 0, or LOW:HIGH:COUNT"
        )
    if len(values) > MAX_VALUES:
        raise ConfigError(f"{key}={part}: more than {MAX_VALUES:,} values; use a larger factor or a smaller COUNT")
    is_whole = all(end.strip().isdecimal() for end in fields[:2])
    if is_whole and key.startswith(("schedule.", "layout.")):  # these keys take integers only
        return [*dict.fromkeys(map(round, values))]
    return [int(value) if is_whole and value == int(value) else value for value in values]


def as_number(value: Any) -> float | None:
    """Return a swept value as a number for a chart; None if it is not a number."""
    if isinstance(value, str):
        numbers = _in_one_unit([value])
        return None if numbers is None else numbers[0]
    return float(value) if is_number(value) else None


def compared_measure(swept: Sweep) -> Measure:
    """Return the measure that ranks points: tokens per second, or else the step of equal work, or the bubble."""
    ran = [point for point in swept.points if point.measures is not None]
    if ran and all(point.tokens_per_second is not None for point in ran):
        return MEASURES["tokens_per_second"]
    bubble = "steady_bubble_fraction" if any(map(_is_asynchronous, ran)) else "bubble_fraction"
    return MEASURES[bubble if {"schedule.microbatches", "schedule.devices"} & {*swept.keys} else "iteration_time"]


def ranked_points(swept: Sweep, limit: float | None = None) -> list[Candidate]:
    """Return the points that ran, best first: by how they fit, whether steps drain, then `compared_measure`.

    `limit`, usable bytes, replaces that of the config.
    """
    measure = compared_measure(swept)
    sign = 1 if measure.bigger_is_worse else -1
    ran = [point for point in swept.points if point.measures is not None]
    worth = {id(one): sign * (one.numbers[measure.name] or 0.0) for one in ran}
    return sorted(ran, key=lambda one: (FITS.index(_fit(one, limit)), _is_asynchronous(one), worth[id(one)]))


def _fit(point: Candidate, limit: float | None) -> str:
    """Return how a point fits in `limit`, usable bytes, or else in that of its config; "fits" if none is known."""
    return point.fit or "fits" if limit is None else fit_within(point.memory, limit)


def _is_asynchronous(point: Candidate) -> bool:
    """Return True if a point's schedule is swept, and its steps follow each other without a drain."""
    return is_asynchronous(str(point.changes.get("schedule.name", "")))


def short_key(key: str) -> str:
    """Return the last word of a key; `schedule` for its name."""
    return key.rpartition(".")[2] if key != "schedule.name" else "schedule"
