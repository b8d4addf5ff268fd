"""Cells of tables of changes and layouts: memory, frameworks, `--set` options."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from textwrap import wrap
from typing import Any

from ppsim.analysis.memory import HEADROOM, device_memory, fit_within, usable_part
from ppsim.base.errors import PpsimError
from ppsim.base.tables import aligned, line_width, paragraph
from ppsim.base.units import percent_text, rounded_text, three_digits
from ppsim.config import Config
from ppsim.frameworks import LETTERS, frameworks_running, pytorch
from ppsim.launch import flags_by_framework, flags_in, launched_by, own_framework
from ppsim.launch.torchtitan_job import pytorch_fault
from ppsim.plots.scale import SAME
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.studies.points import Candidate, usable_bytes
from ppsim.studies.towers import EncoderKey, encoder_size

LEGEND = ", ".join(f"{letter} {name}" for name, letter in LETTERS.items())
OTHER = "*"  # after the letters of a change that the config's framework does not run
DIGITS = 3


def runs_in(schedule: str | Schedule, config: Config, changes: Mapping[str, Any] | None = None) -> str:
    """Return the letters of the frameworks that run a schedule with the config's model, as in `M T  `.

    PyTorch runs lists of a CSV file that pass its rules. With `changes`, only frameworks count that have a launch file
    of the changed config. The changes may also move an encoder, with which fewer schedules run.
    """
    model, name = config.model, schedule if isinstance(schedule, str) else schedule.name
    if not isinstance(schedule, str) and name.lower().endswith(".csv"):
        return letters([] if pytorch_fault(schedule) else [pytorch.FACTS.name])
    placed = encoder_size(config.data, changes or {}, EncoderKey.PLACEMENT) if config.has_encoder else "first"
    running = frameworks_running(name, model is not None and model.experts > 0, placed != "first")
    if running and changes is not None and model is not None and not config.has_encoder:
        with suppress(PpsimError):  # the layout excludes the schedule
            return letters({*running} & {*launched_by(config.changed(changes))})
        return letters([])
    return letters(running)


def letters(running: Collection[str]) -> str:
    """Return the letters of frameworks, each in its column, as in `M T  `; `-` for none."""
    return " ".join(letter if one in running else " " for one, letter in LETTERS.items()) if running else "-"


def launch_fault(config: Config) -> list[str]:
    """Return why the config's framework has no launch file of it, if no framework has one."""
    found = [] if config.derived is None or config.has_encoder else [*flags_by_framework(config).values()]
    faults = [flags for flags in found if not isinstance(flags, list)]
    return paragraph(str(faults[0]), "-    ") if faults and faults == found else []


def gigabytes(size: float) -> str:
    """Return bytes with three digits, such as 61.7 GB or 59.0 GB."""
    number, unit = (size / 1e9, "GB") if abs(size) < 0.9995e12 else (size / 1e12, "TB")
    return f"{three_digits(number)} {unit}"


def peak_text(peak: float, fit: str, config: Config, headroom: float | None = None) -> str:
    """Return a peak, marked unless it fits: `75.1 GB tight`; live activations if the costs give no bytes.

    `headroom` adds the usable memory: `75.1 GB of 72 GB usable (tight)`.
    """
    text = gigabytes(peak) if config.in_bytes else f"{peak:.{DIGITS}g} activations"
    if headroom is not None and config.derived:
        text, fit = f"{text} of {usable_text(config, headroom)}", f"({fit})" if fit != "fits" else ""
    return f"{text} {fit.removeprefix('fits')}".rstrip()


def usable_text(config: Config, headroom: float) -> str:
    """Return the usable bytes of a device, such as `72 GB usable`; empty if the costs name no device."""
    return f"{gigabytes(usable_bytes(config, headroom))} usable" if config.derived else ""


def memory_text(run: Timeline, peak: float | None = None, headroom: float = HEADROOM) -> str:
    """Return the peak of a run, or this one: `75.1 GB of 72 GB usable (tight)`; "" if bytes or device are unknown."""
    capacity = device_memory(run)
    if run.peak_memory is None or capacity is None:
        return ""
    peak = float(run.peak_memory.max()) if peak is None else peak
    usable = usable_part(capacity, headroom)
    state = fit_within(peak, usable, capacity)
    whole = f"{gigabytes(peak)} of {gigabytes(usable)} usable"
    return whole + (f" ({state})" if state != "fits" else "")


def step_text(seconds: float) -> str:
    """Return a predicted step with three digits, such as 3.70 s."""
    return rounded_text(seconds, "seconds")


def versus(step: float, first: float) -> str:
    """Return a step relative to another in whole per cent; `=` if both count as equal."""
    difference = step / first - 1 if first > 0 else 0.0
    return "=" if abs(difference) < SAME else percent_text(difference, 0, signed=True)


def change_lines(one: Candidate, config: Config, whole: bool = False) -> list[str]:
    """Return a change as `--set` options to paste, and as flags of the config's framework, long ones only if `whole`.

    The options name the stages instead of the rule that gave them.
    """
    keys = dict(one.changes)
    if one.layout_string and "layout.partition" in keys and keys["layout.partition"] != "even":
        keys["layout.partition"] = one.layout_string
    flags = _framework_words(one, config)
    return [*wrapped_words(set_options(keys)), *wrapped_words(flags if whole else shortened(flags))]


def shortened(flags: Iterable[str]) -> list[str]:
    """Return flags; arguments longer than a line are left out."""
    return [flag if len(flag) < line_width() - 10 else f"{flag.partition(' ')[0]} ..." for flag in flags]


def set_options(keys: Mapping[str, Any]) -> Iterator[str]:
    """Yield keys and their values as `--set` options to paste."""
    for key, value in keys.items():
        yield f"--set {key}={shlex.quote(value if isinstance(value, str) else json.dumps(value))}"


def lines_of_changes(shown: Iterable[Candidate], config: Config, whole: bool) -> Iterator[str]:
    """Yield the words of each change, then its options and flags."""
    for one in shown:
        yield f"{one.words}:"
        yield from change_lines(one, config, whole)


def _framework_words(one: Candidate, config: Config) -> list[str]:
    """Return the flags that a change sets and drops; empty if the config names no framework that has launch files."""
    name = own_framework(config)
    if name is None or isinstance(before := flags_in(name, config), PpsimError):
        return []
    if isinstance(after := flags_in(name, config.changed(one.changes)), PpsimError):
        return [f"{name}: cannot run it; ppsim advise --framework ranks what a framework runs"]
    kept = {flag.split()[0] for flag in after}
    dropped = [flag.split()[0] for flag in before if flag.split()[0] not in kept]
    removal = f"(remove {' '.join(dropped)})".split() if dropped else []
    words = [*(flag for flag in after if flag not in before), *removal]
    return [f"{name}:", *words] if words else []


def wrapped_words(words: Iterable[str], indent: str = "  ") -> list[str]:
    """Return words as lines; a word with blanks stays on one line."""
    text = " ".join(word.replace(" ", "\0") for word in words)
    page: dict[str, Any] = {"initial_indent": indent, "subsequent_indent": indent, "break_long_words": False}
    lines = wrap(text, line_width(), break_on_hyphens=False, **page)
    return [line.replace("\0", " ") for line in lines]


def candidate_table(
    label: str, shown: Sequence[Candidate], config: Config, others: Sequence[Candidate] = ()
) -> list[str]:
    """Return the lines of a table of changes, whose first column has this label; `others` are marked."""
    rows = [[label, "step", "vs now", "memory", "removes (device mean)", "runs in"]]
    for one in shown:
        schedule = one.changes.get("schedule.name", config.schedule.get("name"))
        runs = runs_in(schedule, config, one.changes) if schedule else "-"
        steps = step_text(one.step), versus(one.step, one.step - one.step_difference)
        peak = peak_text(one.memory, one.fit, config)
        rows.append([one.words, *steps, peak, one.removes or "-", runs + f" {OTHER}" * (one in others)])
    return aligned(rows, left=1, narrow=True)
