"""`ppsim choose`: the fastest layout and schedule that fits, with reasons, and how to run it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.files import write_atomically
from ppsim.base.tables import aligned, line_width, paragraph, texts_once
from ppsim.base.units import counted, more_lines, percent_text, value_text
from ppsim.commands import options
from ppsim.commands.cells import (
    LEGEND,
    SAME,
    gigabytes,
    peak_text,
    runs_in,
    shortened,
    step_text,
    usable_text,
    versus,
    wrapped_words,
)
from ppsim.commands.options import DEFAULT_HEADROOM, Framework, Headroom, JsonTarget, Verbose, once_each, read_headroom
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, command, write_files
from ppsim.config import Config, config_source, config_yaml, value_at
from ppsim.costs.spread import STRAGGLER_SENTENCE
from ppsim.frameworks import LAUNCH_OPTIONS, SCHEDULES_OF_LAUNCH, frameworks_running
from ppsim.launch import FRAMEWORKS, flags_by_framework, flags_of_layout, named_framework, own_framework, step_of_launch
from ppsim.launch.torchtitan_job import pytorch_fault
from ppsim.search import find_family
from ppsim.studies import choose as study
from ppsim.studies.choose import Choice, Chosen
from ppsim.studies.compare import is_asynchronous
from ppsim.studies.free_keys import Key, sharding_of
from ppsim.studies.points import Candidate
from ppsim.studies.reasons import limiting_factors, removed_cause, seconds_by_cause
from ppsim.studies.space import ALL
from ppsim.studies.towers import ENCODER_SIZES, EncoderKey, encoder_size

UNITS = {
    "iteration_time": "seconds", "tokens_per_second": "tokens per second", "mfu": "fraction", "peak_memory": "bytes",
    "bubble_fraction": "fraction", "peak_activations": "microbatches through one device share of the model",
    "alike": "variants of the idea whose steps differ by less than 1 %",
    "stragglers": "seconds that a step is expected to lose; the rank counts them",
    "over": "bytes above the usable memory",
    "headroom": "fraction of a device's memory", "batch": "sequences",
}  # fmt: skip
SIZES = {"TP": Key.TENSOR, "CP": Key.CONTEXT, "EP": Key.EXPERT, "PP": Key.DEVICES, "DP": Key.DATA}
MAX_ROWS = 7
Free = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY[=VALUES]",
        help="Choose this key, such as layout.tensor or schedule.name=1f1b,zb-v; all: every key. Repeatable. "
        "[default: what the config leaves out]",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUES",
        help="Try only these values of a key, such as schedule.name=1f1b,interleaved-1f1b; other free keys stay free. "
        "Repeatable.",
    ),
]
Asynchronous = Annotated[bool, typer.Option("--asynchronous", help="Try schedules that train on old weights too.")]
Certain = Annotated[
    bool, typer.Option("--certain", help="Rank by the simulated step, without the expected loss from stragglers.")
]
Costs = Annotated[
    bool,
    typer.Option("--costs", help="Also print the seconds that the ranking adds for stragglers, with their source."),
]


@command
def choose(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Model, hardware, GPUs and batch.")],
    free: Free = None,
    only: Only = None,
    framework: Framework = None,
    approximate: options.Approximate = None,
    research: options.Research = False,
    headroom: Headroom = DEFAULT_HEADROOM,
    asynchronous: Asynchronous = False,
    certain: Certain = False,
    store: options.StoreFile = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    slurm: options.Slurm = None,
    csv: Annotated[Path | None, OutputOption("Write the winner's schedule for PyTorch.")] = None,
    output: Annotated[Path | None, OutputOption("Write the winner as a config.", "--output", "-o")] = None,
    verbose: Verbose = False,
    costs: Costs = False,
    json: JsonTarget = None,
) -> None:
    """Choose layout and schedule: the most tokens per second that fits; exit with status 1 if nothing fits."""
    keys, values, fraction = _keys(free, "--free"), _keys(only, "--only"), read_headroom(headroom)
    with options.executor_of(workers, dask, slurm, store) as executor:
        found = study.choose(
            config_source(config).changed({"model.approximate": True}) if approximate else config, keys,
            headroom=fraction, asynchronous=asynchronous, only=values, framework=framework, research=research,
            certain=certain, executor=executor, workers=workers, store=store,
        )  # fmt: skip
    if found.ranked:
        text = config_yaml(found.best.config)
        write_files((csv, found.best.run.schedule.to_csv), (output, lambda path: write_atomically(path, text)))
    answer(_document(found) if json else {}, json, lambda: "\n".join(choice_lines(found, verbose, costs, output)))
    if options.report_left_out(found.left_out) or not found.ranked:
        raise typer.Exit(ANSWER_IS_NO)


def _keys(texts: list[str] | None, flag: str) -> dict[str, Any] | None:
    """Return the options KEY or KEY=V1,V2 as a mapping key -> values; None without options."""
    return None if texts is None else once_each(flag, (_key(text, flag) for text in texts))


def _key(text: str, flag: str) -> tuple[str, list[Any]]:
    key, sign, values = text.partition("=")
    listed = [int(text) if text.isdigit() else text for text in map(str.strip, values.split(",")) if text]
    if not listed and (sign or flag == "--only"):
        raise ConfigError(
            f"{flag} {text!r}: write {'KEY or ' * (flag == '--free')}KEY=VALUES, such as schedule.name=1f1b,zb-v"
        )
    return key.strip(), listed


def choice_lines(
    found: Choice, verbose: bool = False, costs: bool = False, output: Path | None = None
) -> Iterator[str]:
    """Yield the lines of the page: the answer, the ideas, why, and how to run the first."""
    config, shown = found.space.config, found.ranked if verbose else found.ranked[:MAX_ROWS]
    if not found.ranked:
        yield from _nothing_fits(found)
        return
    yield from _answer(found)
    yield ""
    yield from _table(found, shown)
    if found.ranked[0].alike:
        variants = f"{found.ranked[0].alike + 1} variants within {percent_text(SAME, 0)} of each other"
        yield from paragraph(f"row 1: the simplest of {variants}, with other stages, microbatches, sharding or state")
    tied = "=: order not certain, the simplest first; " * any("=" in one.place for one in shown)
    yield f"{tied}{LEGEND if config.model is not None else found.points}"
    yield from _given_keys(found)
    yield ""
    yield from paragraph("; ".join(_reasons(found, shown)), "why  ")
    yield ""
    yield from _how_to_run(found, verbose, output)
    yield from ["", *_straggler_lines(found)] if costs else []
    yield from ["", found.points] if verbose else []


def _nothing_fits(found: Choice) -> Iterator[str]:
    """Yield that nothing fits, the point that exceeds the memory least, and what limits the choice."""
    config, nearest = found.space.config, found.nearest
    if nearest is None or found.over is None:
        yield found.nothing_fits
    else:
        over = f"{gigabytes(found.over)} over {usable_text(config, found.headroom)}"
        yield f"{found.nothing_fits}; the nearest is {over}:"
        yield from paragraph(f"{_in_words(nearest, config)}: {gigabytes(nearest.memory)}")
    yield found.points
    yield from _given_keys(found)


def _given_keys(found: Choice) -> list[str]:
    """Return the keys of the config that bound the answer; none if all are free."""
    given, has_model = found.space.given, found.space.config.model is not None
    names = f"the config fixes {', '.join(given)}; --free {ALL if has_model else given[0]} chooses" if given else ""
    return paragraph(f"{names} {'these' if len(given) > 1 else 'it'} too", "") if given else []


def _answer(found: Choice) -> Iterator[str]:
    """Yield the winner: its layout, and its step, memory and speed."""
    best, one, config = found.best, found.ranked[0], found.best.config
    yield from paragraph(_in_words(one, config) + ":")
    run = best.run
    interval = run.interval
    texts = [step_text(one.step)]
    if interval is not None:
        texts[0] += " (90 %: {:g} to {:g} s)".format(*(float(f"{bound:.2g}") for bound in interval))
    texts.append(peak_text(one.memory, one.fit, config, found.headroom))
    if run.tokens_per_second is not None:
        texts += [f"{float(f'{run.tokens_per_second:.3g}'):,.0f} tokens/s", f"MFU {value_text(run.mfu, 'fraction')}"]
    yield ", ".join(texts)
    if config.has_encoder:
        passes = counted(encoder_size(config.data, one.changes, EncoderKey.PASS), "microbatch")
        yield f"encoder: {_cells(one, config)['encoder']}, {passes} per pass"


def _value(one: Candidate, config: Config, key: str) -> Any:
    return one.changes.get(key) or value_at(config.data, key)


def _cells(one: Candidate, config: Config) -> dict[str, str]:
    """Return a point's schedule, parallel groups that the config has, encoder and recompute level, by head."""
    name = one.changes.get("schedule.name", config.schedule["name"])
    stages = one.changes.get("schedule.stages_per_device")
    family = find_family(name)
    if stages is None and not family.fixed_stages and (_value(one, config, Key.DEVICES) or 1) > 1:
        stages = family.stages_per_device
    mark = " (asynchronous)" if is_asynchronous(name) else "" if runs_in(name, config) != "-" else " (research)"
    cells = {"schedule": name + (f" x{stages}" if (stages or 1) > 1 else "") + mark}
    if config.model is not None:
        groups = [label for label in SIZES if label != "EP" or config.model.experts]
        cells |= {label: str(_value(one, config, SIZES[label]) or 1) for label in groups}
    if config.has_encoder:
        keys = (EncoderKey.PLACEMENT, *ENCODER_SIZES)
        placement, *sizes = (encoder_size(config.data, one.changes, key) for key in keys)
        own = f"on {counted(math.prod(sizes), 'GPU' if config.model else 'device')}"
        cells["encoder"] = own if placement == "separate" else placement
    level, blocks = (_value(one, config, key) for key in (Key.RECOMPUTE_LEVEL, Key.RECOMPUTE_BLOCKS))
    return {**cells, "recompute": counted(blocks, "block") if blocks and level == "full" else str(level or "none")}


def _in_words(one: Candidate, config: Config) -> str:
    """Return a point in words: its groups, schedule, microbatch, recompute level and sharding."""
    cells, sharding = _cells(one, config), sharding_of(one.changes)
    words = [" · ".join(f"{name} {cells[name]}" for name in SIZES if name in cells), cells["schedule"]]
    if config.model is not None:
        words.append(f"microbatch {_value(one, config, Key.MICROBATCH_SIZE) or 1}")
        level = cells["recompute"].replace("none", "no")
        words.append(f"recompute {level} per stage" if "block" in level else f"{level} recompute")
        words += [f"{sharding} sharded"] if sharding not in (None, "none") else []
        state = one.changes.get(Key.STATE)
        words += [f"{state} bytes of optimizer state per parameter"] if state else []
    return ", ".join(filter(None, words))


def _straggler_lines(found: Choice) -> Iterator[str]:
    """Yield the fraction that the ranking adds to the step of each row for stragglers, and its source."""
    if not any(one.stragglers for one in found.ranked):
        yield "the ranking adds nothing for stragglers"
        return
    lost = (f"{one.place}: {percent_text(one.stragglers / one.step)}" for one in found.ranked)
    yield from paragraph("the ranking adds to each step what stragglers cost: " + ", ".join(lost), "cost ")
    yield from paragraph(STRAGGLER_SENTENCE, "     ")


def _table(found: Choice, shown: list[Candidate]) -> list[str]:
    """Return the table of ideas, and the simulated point with the least memory if it is none of them."""
    config, first = found.space.config, found.ranked[0]
    smallest = found.smallest or first
    is_shown = any(one.changes == smallest.changes for one in shown) or smallest.numbers["peak_memory"] is None
    rows = [
        {
            "#": "-" if one not in shown else one.place, **_cells(one, config), "step": step_text(one.step),
            "vs 1": "-" if one is first else versus(one.step, first.step),
            "memory": peak_text(one.memory, one.fit, config),
            "runs in": runs_in(one.changes["schedule.name"], config, one.changes),
        }
        for one in [*shown, *([] if is_shown else [smallest])]
    ]  # fmt: skip
    lines = aligned([[*rows[0]], *([*row.values()] for row in rows)], left=2, narrow=True)
    if not is_shown:
        lines[-1] += "  less memory" if len(lines[-1]) + 13 <= line_width() else ""
    return [*lines, *more_lines(len(found.ranked) - len(shown), ": -v")]


def _reasons(found: Choice, shown: list[Candidate]) -> Iterator[str]:
    best = found.best
    yield from limiting_factors(best.run)
    other = next((one for one in shown[1:] if "=" not in one.place), None)
    if other is not None:
        run = found.space.config.changed(other.changes).simulate()
        lost = removed_cause(seconds_by_cause(run), seconds_by_cause(best.run))
        if lost:
            yield f"row 1 vs row {other.place}: {lost} (device mean)"


def _how_to_run(found: Choice, verbose: bool, output: Path | None) -> Iterator[str]:
    """Yield the flags of a framework that runs the winner; with `verbose` those of all, and the config."""
    best = found.best
    if verbose:
        yield from _launches(best)
        if fault := pytorch_fault(best.run.schedule):
            yield f"PyTorch: does not run {best.run.schedule.name}: {fault}"
        else:
            yield from paragraph(
                "PyTorch: --csv schedule.csv writes the schedule; torch.distributed.pipelining reads it"
            )
        yield "config:"
        yield from (f"  {line}" for line in config_yaml(best.config).rstrip().split("\n"))
        return
    if best.config.model is not None:
        yield from _first_flags(best, output, found.space.launched)
    elif output is None:
        yield "next -o best.yaml writes the config; ppsim advise best.yaml tries changes of it"


def _first_flags(best: Chosen, output: Path | None, launched: Sequence[str]) -> Iterator[str]:
    """Yield the flags of the first framework that runs the config, one of those searched if any, or why none does."""
    config = best.config
    found, model = flags_by_framework(config), config.model
    runners = launched or frameworks_running(config.schedule["name"], model is not None and model.experts > 0)
    for name, flags in sorted(found.items(), key=lambda item: SCHEDULES_OF_LAUNCH[item[0]] not in runners):
        if isinstance(flags, list):
            priced = _other_policies(best, name)
            yield from paragraph(f"{name}, with these flags and those of the model (-v prints all){priced}:", "run  ")
            yield from wrapped_words(shortened(flags_of_layout(name, config, flags)), "     ")
            own = f" --framework {name}" * (name != (own_framework(config) or next(iter(found))))
            script = f"ppsim export {output.name if output else 'best.yaml'}{own} prints the whole script"
            yield from paragraph(("" if output else "-o best.yaml writes the config; ") + script, "     ")
            return
    yield "run  no framework launches this config:"
    faults = ((name, re.sub(rf"^{name}( cannot run this config)?:? ", "", str(fault))) for name, fault in found.items())
    yield from texts_once(faults)


def _other_policies(best: Chosen, name: str) -> str:
    """Return what differs if a framework runs a config that is priced with the policies of another; "" if nothing."""
    named, launched = named_framework(best.config), step_text(step_of_launch(best.config, name))
    found = "" if named in FRAMEWORKS else f"; ppsim writes no flags of {named}"
    if launched != step_text(best.run.iteration_time):
        found += f"; with the policies of {name} the step takes {launched}"
    return found


def _launches(best: Chosen) -> Iterator[str]:
    """Yield each framework's flags, or why it cannot run the config; nothing for a config without a model."""
    for name, flags in flags_by_framework(best.config).items() if best.config.model is not None else ():
        if isinstance(flags, PpsimError):
            yield from paragraph(str(flags), "")
        else:
            yield from paragraph(f"{name}, {LAUNCH_OPTIONS[name]['version']}{_other_policies(best, name)}:", "")
            yield from wrapped_words(flags)
        yield ""


def _document(found: Choice) -> dict[str, Any]:
    document: dict[str, Any] = {
        "schema": "ppsim.choose/1",
        "fits": bool(found.ranked),
        "headroom": found.headroom,
        "gpus": found.space.gpus,
        "batch": found.space.batch,
        "free": {key: list(values) for key, values in found.space.values.items()},
        "counts": dict(found.counts),
        "left_out": found.left_out,
        "nearest": None if found.nearest is None else {**_candidate(found.nearest), "over": found.over},
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
            **{
                name.lower().removesuffix("-lm"): flags if isinstance(flags, list) else []
                for name, flags in flags_by_framework(best.config).items()
            },
        }
    return document


def _candidate(one: Candidate) -> dict[str, Any]:
    own = {key: getattr(one, key) for key in ("stragglers", "alike", "place")}
    return {"changes": dict(one.changes), **one.numbers, **own}
