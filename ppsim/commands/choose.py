"""`ppsim choose`: the fastest layout and schedule that fits, with reasons, and how to run it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.tables import WIDTH, aligned
from ppsim.base.units import counted, percent_text, seconds_text, value_text
from ppsim.commands import options
from ppsim.commands.options import DEFAULT_HEADROOM, Framework, Headroom, JsonTarget, read_headroom
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, command, say
from ppsim.config import Config
from ppsim.frameworks import LAUNCH_OPTIONS
from ppsim.launch import FRAMEWORKS
from ppsim.launch.torchtitan_job import pytorch_fault
from ppsim.studies import choose as study
from ppsim.studies.choose import Choice
from ppsim.studies.compare import is_asynchronous
from ppsim.studies.points import DIGITS, Candidate
from ppsim.studies.reasons import differing_keys, limiting_factors, removed_cause, seconds_by_cause
from ppsim.studies.recipe import config_yaml
from ppsim.studies.space import (
    CONTEXT,
    DATA,
    DEVICES,
    EXPERT,
    MICROBATCH_SIZE,
    PARTITION,
    RECOMPUTE_LEVEL,
    SHARDING,
    TENSOR,
    sharding_of,
)

SCHEMA = "ppsim.choose/1"
HOSTS = {"Megatron-LM": "Megatron-LM", "torchtitan": "PyTorch"}  # launch file -> --framework
UNBROKEN: Any = {"break_long_words": False, "break_on_hyphens": False}
UNITS = {
    "iteration_time": "seconds", "tokens_per_second": "tokens per second", "mfu": "fraction", "peak_memory": "bytes",
    "bubble_fraction": "fraction", "peak_activations": "microbatches through one device share of the model",
    "alike": "points that take the same step to five digits",
    "headroom": "fraction of a device's memory", "batch": "sequences",
}  # fmt: skip


@command
def choose(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Model, hardware, GPUs and batch.")],
    free: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY[=VALUES]",
            help="Choose this key, such as layout.tensor or schedule.name=1f1b,zb-v. Repeatable. "
            "[default: what the config leaves out]",
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Try only these values of a key, such as schedule.name=1f1b,interleaved-1f1b; what else is free stays "
            "so. Repeatable.",
        ),
    ] = None,
    framework: Framework = None,
    headroom: Headroom = DEFAULT_HEADROOM,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Look at schedules that train on old weights too.")
    ] = False,
    store: options.StoreFile = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    slurm: options.Slurm = None,
    csv: Annotated[Path | None, OutputOption("Write the winner's schedule for PyTorch.")] = None,
    json: JsonTarget = None,
) -> None:
    """Choose layout and schedule: the most tokens per second that fits; exit with status 1 where nothing fits."""
    keys, values, fraction = _keys(free, "--free"), _keys(only, "--only"), read_headroom(headroom)
    with options.executor_of(workers, dask, slurm, store) as executor:
        found = study.choose(
            config,
            keys,
            headroom=fraction,
            asynchronous=asynchronous,
            only=values,
            framework=framework,
            executor=executor,
            workers=workers,
            store=store,
        )
    if csv and found.ranked:
        found.best.run.schedule.to_csv(csv)
        say(f"wrote {csv}")
    answer(_document(found), json, lambda: "\n".join(_page(found)))
    if options.report_left_out(found.left_out) or not found.ranked:
        raise typer.Exit(ANSWER_IS_NO)


def _keys(texts: list[str] | None, flag: str) -> dict[str, Any] | None:
    """Return the options KEY or KEY=V1,V2 as a mapping key -> values; None without options."""
    if texts is None:
        return None
    keys: dict[str, Any] = {}
    for text in texts:
        key, sign, values = text.partition("=")
        listed = [_value(value.strip()) for value in values.split(",") if value.strip()]
        if not listed and (sign or flag == "--only"):
            raise ConfigError(
                f"{flag} {text!r}: write {'KEY or ' * (flag == '--free')}KEY=VALUES, such as schedule.name=1f1b,zb-v"
            )
        keys[key.strip()] = listed
    return keys


def _value(text: str) -> Any:
    return int(text) if text.isdigit() else text


def _page(found: Choice) -> Iterator[str]:
    counts = found.counts
    yield (
        f"{counted(counts['points'], 'point')}: {counts['refused']:,} not possible, "
        f"{counts['memory']:,} proven too large, {counts['step']:,} proven too slow, {counts['simulated']:,} simulated"
    )
    yield ""
    if not found.ranked:
        yield f"nothing fits with {percent_text(found.headroom)} of the memory kept free"
        return
    yield from _table(found.ranked)
    yield ""
    for reason in _reasons(found):
        yield from textwrap.wrap(reason, WIDTH)
    yield ""
    yield from _how_to_run(found)


# Heading of a column -> the key that it shows; a column is left out if all points have the same value.
COLUMNS = {
    "stages": "schedule.stages_per_device", "pipeline": DEVICES, "tensor": TENSOR, "context": CONTEXT, "expert": EXPERT,
    "data": DATA, "size": MICROBATCH_SIZE, "recompute": RECOMPUTE_LEVEL, "sharded": SHARDING, "partition": PARTITION,
}  # fmt: skip
FIRST_LEFT_OUT = ("partition", "tokens/s", "sharded")  # in this order, if the table is too wide


def _table(ranked: list[Candidate]) -> list[str]:
    """Return the table of ranked points: the keys in which they differ, then measures, in at most `WIDTH` columns."""
    columns = {head: [_cell(one.changes, key) for one in ranked] for head, key in COLUMNS.items()}
    columns = {head: cells for head, cells in columns.items() if len(set(cells)) > 1}
    columns = {"": [str(1 + index) for index in range(len(ranked))], "schedule": _names(ranked)} | columns
    columns["step"] = [seconds_text(one.step, DIGITS) for one in ranked]
    columns["tokens/s"] = [value_text(one.numbers["tokens_per_second"], "tokens") for one in ranked]
    columns["peak"] = [_peak(one) for one in ranked]
    if any(one.alike for one in ranked):
        columns["alike"] = [f"+{one.alike:,}" if one.alike else "" for one in ranked]
    for head in FIRST_LEFT_OUT:
        if max(map(len, _lines(columns))) > WIDTH:
            columns.pop(head, None)
    return _lines(columns)


def _lines(columns: Mapping[str, list[str]]) -> list[str]:
    return aligned([[*columns], *zip(*columns.values(), strict=True)], left=2)


def _names(ranked: list[Candidate]) -> list[str]:
    names = [one.changes["schedule.name"] for one in ranked]
    return [f"{name} (asynchronous)" if is_asynchronous(name) else name for name in names]


def _peak(one: Candidate) -> str:
    known = one.numbers["peak_memory"] is not None
    return value_text(one.memory, "bytes") if known else f"{value_text(one.memory, 'activations')} activations"


def _cell(changes: Mapping[str, Any], key: str) -> str:
    """Return a value as one word, such as "string" for a layout string."""
    value = sharding_of(changes) if key == SHARDING else changes.get(key)
    return "-" if value is None else "string" if "|" in str(value) else str(value)


def _reasons(found: Choice) -> Iterator[str]:
    best = found.ranked[0]
    yield "why: " + "; ".join(limiting_factors(found.best.run)) + "."
    if len(found.ranked) > 1:
        second = found.ranked[1]
        lost = removed_cause(
            seconds_by_cause(found.space.config.changed(second.changes).simulate()), seconds_by_cause(found.best.run)
        )
        yield (
            f"the second is {percent_text(second.step / best.step - 1, 2)} slower with "
            f"{differing_keys(best.changes, second.changes)}"
            + (f"; what the winner gains most on the mean device: {lost}." if lost else ".")
        )
    if len(found.front) > 1:
        small = found.front[-1]
        yield (
            f"less memory: {value_text(small.memory, 'bytes') if small.numbers['peak_memory'] else small.memory}"
            f" at a step of {seconds_text(small.step)} with {differing_keys(best.changes, small.changes)}; the front "
            f"has {len(found.front)} points."
        )


def _how_to_run(found: Choice) -> Iterator[str]:
    best = found.best
    if best.layout_string:
        yield f"layout string: {best.layout_string}"
        yield ""
    yield from _launches(best.config)
    if fault := pytorch_fault(best.run.schedule):
        yield f"PyTorch: does not run {best.run.schedule.name}: {fault}"
    else:
        yield "PyTorch: --csv schedule.csv writes the schedule; torch.distributed.pipelining reads it"
    yield ""
    yield "config:"
    yield from (f"  {line}" for line in config_yaml(best.config).rstrip().split("\n"))


def _launches(config: Config) -> Iterator[str]:
    """Yield each framework's flags, or why it cannot run the config; nothing for a config without a model."""
    for name, framework in FRAMEWORKS.items() if config.model is not None else ():
        try:
            flags = framework.flags(config)
        except ConfigError as error:
            yield from textwrap.wrap(f"{error}; --framework {HOSTS[name]} tries only its schedules", WIDTH)
        else:
            yield f"{name}, {LAUNCH_OPTIONS[name]['version']}:"
            yield from textwrap.wrap(" ".join(flags), WIDTH, initial_indent="  ", subsequent_indent="  ", **UNBROKEN)
        yield ""


def _document(found: Choice) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "fits": bool(found.ranked),
        "headroom": found.headroom,
        "gpus": found.space.gpus,
        "batch": found.space.batch,
        "free": {key: list(values) for key, values in found.space.values.items()},
        "counts": dict(found.counts),
        "left_out": found.left_out,
        "ranked": [_candidate(one) for one in found.ranked],
        "front": [_candidate(one) for one in found.front],
        "units": UNITS,
    }
    if found.ranked:
        best = found.best
        document["best"] = {
            "config": config_yaml(best.config),
            "layout_string": best.layout_string,
            "reasons": list(limiting_factors(best.run)),
            "megatron": _flags_or_none("Megatron-LM", best.config),
            "torchtitan": _flags_or_none("torchtitan", best.config),
        }
    return document


def _flags_or_none(framework: str, config: Config) -> list[str]:
    try:
        return FRAMEWORKS[framework].flags(config)
    except ConfigError:
        return []


def _candidate(one: Candidate) -> dict[str, Any]:
    return {"changes": dict(one.changes), **one.numbers, "alike": one.alike}
