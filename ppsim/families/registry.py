"""The registry: every schedule family by name, with its idea, constraints, closed forms and source."""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ppsim.base.errors import BuildError, ScheduleError, shown
from ppsim.base.host import memory_bytes, note_failure
from ppsim.base.rules import argument, choice, declared, whole_number
from ppsim.base.units import counted, value_text
from ppsim.checks.faults import validate
from ppsim.schedule.blocks import Block
from ppsim.schedule.columns import ScheduleColumns

# A mistake such as microbatches=10**9 raises an error before it takes all memory.
BYTES_AN_ACTION = 64  # to build and simulate if nothing queues; benchmarks/test_speed_of_growth.py measures it
MAX_NUMBERED = 2**29  # largest number that the columns of a schedule can hold
MAX_DEVICES = 2**14
REPEATING = ("slices", "iterations")  # options whose number multiplies the actions
# Braces in the text of a closed form: {printed only}, or {printed|evaluated by tests instead}.
BRACES = re.compile(r"\{([^{|}]*)\|?([^{}]*)\}")


def max_actions() -> int:
    """Return the largest number of actions that this machine has memory to build and simulate."""
    return min(memory_bytes() // BYTES_AN_ACTION, MAX_NUMBERED)


# Takes devices, microbatches, stages per device and the family's options; returns one Block per device or a Schedule.
Generator = Callable[..., Iterable[Block] | ScheduleColumns]
SomeGenerator = TypeVar("SomeGenerator", bound=Generator)


@dataclass(frozen=True)
class RegisteredFamily:
    """Schedule family: its generator, sizes and options, and its properties."""

    name: str = declared("the name for `build`")
    group: str = declared("`ppsim list` prints the families by group")
    title: str = declared("a title")
    idea: str = declared("the idea")
    constraints: str = declared("the allowed sizes")
    makespan: str = declared('closed forms: "=" marks exact ones, "<=" upper bounds, "~" approximations')
    peak_activations: str = declared("closed forms, likewise")
    source: str = declared("the paper or code of its origin")
    generate: Generator = declared("the generator")
    stages_per_device: int = declared("default number; other numbers are legal unless `fixed_stages` is True")
    fixed_stages: bool = declared("True if no other number is legal")
    asynchronous: bool = declared("True if steps follow each other without a drain, on old weights; ranked separately")
    options: Mapping[str, inspect.Parameter] = declared("further arguments of `build` by name, with defaults")
    closed_forms: Mapping[str, str] = declared("both as `family` takes them; a test compares them with simulations")

    @property
    def searches(self) -> bool:
        """True if its lists follow from the costs, mostly by a search."""
        return "costs" in self.options

    def columns(
        self, devices: int, microbatches: int, stages_per_device: int | None = None, **options: Any
    ) -> ScheduleColumns:
        """Return a validated schedule for these sizes and options; raise BuildError with the rule that they break."""
        p = require_count("devices", devices, most=MAX_DEVICES)
        m = require_count("microbatches", microbatches)
        v = require_count(
            "stages_per_device", self.stages_per_device if stages_per_device is None else stages_per_device
        )
        if self.fixed_stages and v != self.stages_per_device:
            stages = counted(self.stages_per_device, "stage")
            raise BuildError(
                f"{self.name}: stages_per_device={v} is not allowed; each device runs {stages} of this schedule: "
                f"use stages_per_device={self.stages_per_device}"
            )
        unknown = [name for name in options if name not in self.options]
        if unknown:
            known = ", ".join(self.options) or "none"
            raise BuildError(f"{self.name}: unknown option {unknown[0]!r}; the options of this schedule are: {known}")
        defaults = {name: self.options[name].default for name in REPEATING if name in self.options}
        repeated = {name: options.get(name, default) for name, default in defaults.items()}
        repeated = {
            name: require_count(name, count)
            for name, count in repeated.items()
            if count is not None or defaults[name] is not None
        }
        require_few_actions(self.name, devices=p, microbatches=m, stages_per_device=v, **repeated)
        schedule = self._as_schedule(self.generate(p, m, v, **options | repeated))
        validate(schedule)
        if (schedule.devices, schedule.microbatches_of_a_step) != (p, m):
            raise ScheduleError(
                f"{self.name}: the generator made a schedule of {schedule.devices} devices and "
                f"{schedule.microbatches_of_a_step} microbatches; devices={p}, microbatches={m} were asked for"
            )
        return schedule

    def _as_schedule(self, made: Any) -> ScheduleColumns:
        """Return the generator's result as a schedule with the family's name; raise ScheduleError if it is not one."""
        if isinstance(made, ScheduleColumns):
            return made.named(self.name)
        blocks = list(made) if isinstance(made, Iterable) else [made]
        wrong = [block for block in blocks if not isinstance(block, Block)]
        if wrong:
            raise ScheduleError(f"{self.name}: the generator gave {shown(wrong[0])}; it must give one Block a device")
        return ScheduleColumns.from_blocks(blocks, name=self.name)

    @property
    def description(self) -> str:
        """Title and idea as one text."""
        return f"{self.title}. {self.idea}"

    @property
    def formula(self) -> str:
        """The closed forms as one text."""
        return f"makespan {self.makespan}; peak activations {self.peak_activations}"

    def describe(self) -> dict[str, str]:
        """Return the texts that pages print about the family, by label."""
        labels = ("name", "title", "idea", "constraints", "makespan", "peak_activations", "source")
        return {label: getattr(self, label) for label in labels}


_FAMILIES: dict[str, RegisteredFamily] = {}


def family(
    name: str,
    *,
    title: str,
    idea: str,
    group: str = "other",
    makespan: str,
    peak_activations: str,
    source: str,
    constraints: str = "devices >= 1, microbatches >= 1",
    stages_per_device: int = 1,
    asynchronous: bool = False,
) -> Callable[[SomeGenerator], SomeGenerator]:
    """Return a decorator that registers a generator under `name`.

    Keyword-only parameters of the generator become the family's options. The generator raises BuildError for illegal
    sizes and options. If its stages per device have a default, any number of them is legal, else only
    `stages_per_device`. `makespan` and `peak_activations` have the notation of tests/closed_forms.py.
    """

    def register(generate: SomeGenerator) -> SomeGenerator:
        parameters = inspect.signature(generate).parameters
        options = {key: value for key, value in parameters.items() if value.kind is inspect.Parameter.KEYWORD_ONLY}
        _, _, default = (value.default for value in list(parameters.values())[:3])
        fixed = default is inspect.Parameter.empty
        printed = [BRACES.sub(r"\1", form) for form in (makespan, peak_activations)]
        _FAMILIES[name] = RegisteredFamily(
            name, group, title, idea, constraints, printed[0], printed[1], source, generate,
            stages_per_device if fixed else default, fixed, asynchronous, options,
            {"makespan": makespan, "peak_activations": peak_activations},
        )  # fmt: skip
        return generate

    return register


def families() -> dict[str, RegisteredFamily]:
    """Return every family by name, in the order of docs/schedules.md."""
    return dict(_FAMILIES)


def find_family(name: str) -> RegisteredFamily:
    """Return the family called `name`, or raise BuildError with the nearest names."""
    if isinstance(name, str) and name in _FAMILIES:
        return _FAMILIES[name]
    raise BuildError(unknown_family(name, [*_FAMILIES]))


def unknown_family(name: Any, known: Sequence[str]) -> str:
    """Return the message for a name that is none of the `known` ones, with the nearest of them."""
    if str(name).lower().endswith(".csv"):
        return f"unknown schedule {shown(name)}; a file of lists is given as schedule.csv, such as schedule.csv={name}"
    near = difflib.get_close_matches(shown(name), known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"the names are: {', '.join(known)};"
    return f"unknown schedule {shown(name)}; {hint} `ppsim list` shows them"


def split_stages(name: str) -> tuple[str, int | None]:
    """Return name and stages per device of a text: ("interleaved-1f1b", 4) for "interleaved-1f1b:4", else None.

    Raises BuildError if the text after the colon is not a number.
    """
    if not isinstance(name, str) or ":" not in name:
        return name, None
    family_name, _, stages = name.rpartition(":")
    if not stages.isdecimal() or not int(stages):
        raise BuildError(f"schedule {shown(name)}: give stages per device after the colon, as in interleaved-1f1b:4")
    return family_name, int(stages)


def require_count(word: str, value: Any, least: int = 1, most: int = MAX_NUMBERED) -> int:
    """Return `value` as an int from `least` to `most`, or raise BuildError."""
    return argument(word, value, whole_number(least, most), BuildError)


def require_few_actions(name: str, **sizes: int) -> None:
    """Raise BuildError if F and B of every combination of `sizes` exceed the memory, or the numbers of a schedule."""
    actions = 2 * math.prod(sizes.values())
    if actions > max_actions():
        made = " x ".join(f"{word}={size}" for word, size in sizes.items())
        needed, there = (value_text(float(size), "bytes") for size in (actions * BYTES_AN_ACTION, memory_bytes()))
        memory = f"{actions} need about {needed} to build and simulate, and this machine has {there}"
        is_large = actions * BYTES_AN_ACTION > memory_bytes()
        why = memory if is_large else "no schedule can number as many"
        if is_large:
            note_failure()
        raise BuildError(f"{name}: {made} makes more than {max_actions()} actions: {why}; use fewer microbatches")


def nearest_multiples(count: int, of: int) -> str:
    """Return the nearest multiples of `of` below and above `count` as text."""
    below = count - count % of
    return f"{below} or {below + of}" if below else f"{of}"


def require_choice(word: str, value: Any, choices: Iterable[str]) -> None:
    """Raise BuildError unless `value` is one of `choices`."""
    argument(word, value, choice(*choices), BuildError)
