"""Reading: a launch file as a config, with the flags that were skipped, assumed and unknown; a command's flags."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from ppsim.base.documents import read_json
from ppsim.base.errors import BuildError, ConfigError, shown
from ppsim.config import Config, ConfigSource
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout import DEFAULT_POLICIES, Layout
from ppsim.costs.partition import BY_COST
from ppsim.costs.table import CostTable
from ppsim.frameworks import DEFAULT, LAUNCH_OPTIONS, options_of, options_of_all
from ppsim.launch.shell import UNRESOLVED, Script
from ppsim.run.schedules import Schedule
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.partitions import with_stages_of_run

# Without it fragments can take a quarter of the memory (NVIDIA-NeMo/Megatron-Bridge, pull request 3107).
EXPANDABLE = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"}
ENDING = {"transport": "directed", "optimizer": "sync"}
# Function of costs, schedule and number of microbatches that yields each fault, with what to change. It reads only the
# stages and devices of the schedule, so that a search may give a summary of the lists.
Rejects = Callable[[DerivedCosts, ScheduleColumns, int], Iterator[str]]
MARK = "# ppsim: "
# Names of unrecorded options that change no step: of logs, files, data and learning rates.
_WITHOUT_EFFECT = re.compile(
    r"(.*\.)?(log|wandb|tensorboard|tokenizer|lr|adam|save|eval|valid|test|train|dataset)[-_].*"
    r"|.*[-_](paths?|dir|files?|name)"
)
_FLAG_SECTIONS = ("model", "layout", "schedule", "name", "batch", "published")  # flags give them, or nothing reads them
_NOTES_OF_SECTIONS = ("framework", "overlap_tensor", "fp8", "model")  # notes that belong to these sections
_STAGE_KEYS = ("partition", "first_stage_layers", "last_stage_layers")  # keys that together give the layers per stage


class MissingValueError(ConfigError):
    """Error of a value that a launch file leaves open; `flag` is its flag, "" if the file has none for it."""

    def __init__(self, message: str, flag: str = ""):
        super().__init__(message)
        self.flag = flag


@dataclass(frozen=True)
class Launch:
    """A config to launch, with what it builds."""

    given: Config

    @cached_property
    def config(self) -> Config:
        """The config; it names the stages of its run, if a rule such as `balanced` gives them."""
        config, costs = self.given, self.given.costs
        if not isinstance(costs, DerivedCosts) or costs.layout.partition not in BY_COST:
            return config
        schedule = config.lowered(config.build())
        found: Any = with_stages_of_run(costs, schedule, config.transport, config.optimizer)
        return config.changed({"layout.partition": found.megatron_layout(schedule.num_stages)})

    @property
    def costs(self) -> DerivedCosts:
        """Its costs, which a model gives: other configs have no launch files."""
        costs: Any = self.config.costs
        return costs

    @cached_property
    def schedule(self) -> Schedule:
        """The schedule that it builds."""
        return self.config.build()

    @cached_property
    def table(self) -> CostTable:
        """The costs of the schedule."""
        return self.costs.table(self.schedule)

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.costs.gpus(self.schedule.devices)

    @property
    def hosts(self) -> tuple[int, int]:
        """The number of hosts, and of the GPUs of each: equal on all, as launchers start equal processes."""
        per_host = self.costs.cluster.gpus_per_host
        each = math.gcd(self.gpus, per_host) if self.gpus > per_host else self.gpus
        return self.gpus // each, each

    @property
    def name(self) -> str:
        """Name of the config, on one line."""
        return str(self.config.data.get("name", "A config")).replace("\n", " ")

    def heading(self, options: str) -> str:
        """Return the comment that names the job, and whose options follow."""
        return f"# {self.name}: {self.gpus} GPUs, {self.schedule.name}; {options}"

    @property
    def notes(self) -> dict[str, Any]:
        """The facts of the config that no launch file holds: hardware, transport, and the step's end."""
        notes = {
            key: value for key, value in self.config.data.items() if value is not None and key not in _FLAG_SECTIONS
        }
        layout = self.config.data.get("layout", {})
        if layout.get("overlap_tensor") is not None:
            notes["overlap_tensor"] = layout["overlap_tensor"]
        return {**notes, "framework": layout.get("framework", DEFAULT)}

    def flags(self, *rows: Row) -> Iterator[str]:
        """Yield the flags of the rows for the job."""
        sections: dict[str, Any] = {"model": self.costs.model, "layout": self.costs.layout, "schedule": self.schedule}
        for row in rows:
            yield from row.printed(effective(sections[row.key.partition(".")[0]], row.name))

    def check(self, framework: str, reading: Reading) -> None:
        """Raise ConfigError for each part of the config that the framework would run differently, by this reading."""
        costs, schedule, faults = self.costs, self.schedule, list[str]()
        reread = Launch(reading.config(place=self.config.path))
        if self.config.dispatch != "list":
            faults.append(f"dispatch={self.config.dispatch}: its devices run their lists in order; use list")
        is_same_family = reread.config.schedule == self.config.schedule  # the same family and sizes
        try:
            if not is_same_family and reread.schedule != schedule:
                given, read = self.config.schedule, reread.config.schedule
                lost = ", ".join(f"{key}={shown(one)}" for key, one in given.items() if read.get(key) != one)
                on = f"; on one device use {read['name']}" * (schedule.devices == 1)
                faults.append(f"schedule {schedule.name}: it runs another order than with {lost or 'its defaults'}{on}")
            elif (cut := reread.costs.megatron_layout(schedule.num_stages)) != costs.megatron_layout(
                schedule.num_stages
            ):
                faults.append(f"layout.partition: it splits the layers as {cut}")
        except BuildError as error:
            faults.append(f"schedule {schedule.name}: {error}")
        if faults or reread.costs.table(schedule) != self.table:
            faults = [*self._lost_keys(reread.costs), *faults]
        cannot_run(framework, faults)

    def _lost_keys(self, read: DerivedCosts) -> Iterator[str]:
        """Yield the keys of model and layout whose values in `read` change the costs of the schedule."""
        changed = self.costs
        for section in ("model", "layout"):
            ours, theirs = getattr(self.costs, section), getattr(read, section)
            for name in [item.name for item in fields(ours) if item.name not in _STAGE_KEYS]:
                if (other := getattr(theirs, name)) == getattr(ours, name):
                    continue
                candidate = replace(changed, **{section: replace(getattr(changed, section), **{name: other})})
                if candidate.table(self.schedule) == self.table:
                    changed = candidate
                else:
                    given, other = effective(ours, name), effective(theirs, name)
                    runs = f", and runs {shown(other)}" * (given != other)
                    yield f"{section}.{name}={shown(given)}: it has no flag for this{runs}"

    def script(
        self, options: str, notes: Mapping[str, Any], program: str, flags: Iterable[str], *,
        comments: Iterable[str] = (), exports: Iterable[str] = (),
    ) -> str:  # fmt: skip
        """Return the bash script that starts a program with flags on each host."""
        hosts, each = self.hosts
        lines = [
            "#!/bin/bash",
            self.heading(options),
            *(f"# {comment}" for comment in comments),
            MARK + json.dumps(notes),
            EXPANDABLE,
            *exports,
            f"torchrun --nproc-per-node {each} --nnodes {hosts} --node-rank ${{NODE_RANK:-0}} \\",
            f"  --master-addr ${{MASTER_ADDR:-localhost}} --master-port ${{MASTER_PORT:-29500}} {program} \\",
            " \\\n".join(f"  {flag}" for flag in flags),
        ]
        return "\n".join(lines) + "\n"


@dataclass
class Reading:
    """Content of a launch file as a config, and what did not become part of it."""

    framework: str
    version: str
    hardware: Mapping[str, str] = field(default_factory=HARDWARE.copy)  # assumed, as no launch file has it
    default_gpus: int = 1  # that the framework's runner starts
    data: dict[str, Any] = field(default_factory=dict)  # the sections of the config
    # read, left_out: flags that the config follows from, and flags that change no step
    read: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # assumed, unknown: values that the file does not give, and flags that may change the step, one sentence each
    assumed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    conditional: list[int] = field(default_factory=list)  # lines that depend on a condition and were not read

    def fill(self, notes: Mapping[str, Any], **sections: Mapping[str, Any]) -> None:
        """Set the config's sections: those of the flags, without keys that are None, and those of the notes."""
        self.data = {key: value for key, value in notes.items() if key not in _NOTES_OF_SECTIONS}
        for name, part in sections.items():
            self.data[name] = {key: value for key, value in part.items() if value is not None}

    def sort(self, flags: Flags, without_effect: Sequence[str] = ()) -> None:
        """Put each unread flag into `left_out` if it is `without_effect` on a step, else into `unknown`."""
        record = LAUNCH_OPTIONS[self.framework]
        names, groups = {*record["left_out"].split(), *without_effect}, record["left_out_groups"]
        known, options = options_of_all(record), options_of(record, self.version)
        self.read = [name for name in flags.arguments if name in flags.used]
        for name in flags.unread:
            section = known.get(name, name.partition(".")[0])
            if name in names or section in groups or (name not in known and _WITHOUT_EFFECT.fullmatch(name)):
                self.left_out.append(name)
                continue
            reason = "may change the step"
            if name not in options:
                versions = (record["version"], *record["others"])
                other = next((version for version in versions if name in options_of(record, version)), None)
                more = f", but of {other}; {reason}" if other else ""
                reason = f"no option of {self.framework} {self.version}{more}"
            self.unknown.append(f"{flags.sign}{name}: {reason}")

    def config(self, hardware: Mapping[str, Any] | None = None, place: str = "launch") -> Config:
        """Return the checked config; `hardware` replaces keys of that section, which no launch file has."""
        data = dict(self.data)
        data["hardware"] = {**(self.data.get("hardware") or self.hardware), **(hardware or {})}
        return ConfigSource(data, place).config()


def notes_in(text: str) -> dict[str, Any]:
    """Return the notes of a launch file that ppsim wrote; for others, how a step is assumed to end."""
    line = next((line for line in text.splitlines() if line.startswith(MARK)), None)
    if line is None:
        return dict(ENDING)
    notes = read_json(line.removeprefix(MARK), "its line `# ppsim:`", "a JSON object")
    if not isinstance(notes, dict):
        raise ConfigError("its line `# ppsim:` must hold an object; remove the line")
    return notes


def effective(section: Any, name: str) -> Any:
    """Return the value of a field of a model or layout; for a policy that is not set, the framework's."""
    return section.chosen(name) if name in DEFAULT_POLICIES else getattr(section, name)


def idle_overlaps(layout: Layout) -> set[str]:
    """Return the overlaps that have no effect in a layout, as its groups have one GPU."""
    alone = {
        "overlap_data": layout.data * layout.context == 1,
        "overlap_tensor": layout.tensor == 1 or not layout.sequence_parallel,
    }
    return {key for key, one in alone.items() if one}


def cannot_run(framework: str, reasons: Sequence[str]) -> None:
    """Raise ConfigError with the reasons for which a framework cannot run a config, if there are any."""
    if reasons:
        raise ConfigError(f"{framework} cannot run this config: {'; '.join(reasons)}")


# Flags of a command line, and the rows of tables that map config keys to flags and back


@dataclass(frozen=True)
class Row:
    """One config key and its flag, for both directions."""

    key: str  # dotted key of a config, such as `model.hidden`
    flag: str  # without its hyphens
    # the key's value by the flag's argument (default: a number); the first is printed, an empty one is a bare flag
    words: Mapping[str, Any] | None = None
    absent: Any = None  # value of the key if the flag is missing; the flag is then not printed for it
    default: Any = None  # value of the key if the flag is missing, for which the flag is printed too

    @staticmethod
    def tables(record: Mapping[str, Any]) -> dict[str, list[Row]]:
        """Return the tables of a framework's record, by name."""
        return {name: [Row(**row) for row in rows] for name, rows in record["rows"].items()}

    @property
    def name(self) -> str:
        """Name of the key within its section."""
        return self.key.partition(".")[2]

    def arguments(self, value: Any) -> list[str]:
        """Return the arguments that mean a value; empty if the framework has none for it."""
        return [str(value)] if self.words is None else [word for word, one in self.words.items() if one == value]

    def printed(self, value: Any) -> list[str]:
        """Return the flag for a value; no flag if none is needed, or if the framework has no argument for it."""
        arguments = [] if value is None or value == self.absent else self.arguments(value)
        return [f"--{self.flag} {argument}".rstrip() for argument in arguments[:1]]

    def read(self, flags: Flags) -> Any:
        """Return the key's value in a command line; ConfigError if the argument is none of the flag's."""
        missing = self.absent if self.default is None else self.default
        if self.words is None:
            return flags.number(self.flag, missing, least=int(missing == 1))  # the missing size of a group is 1
        if self.words.keys() == {""}:
            return self.words[""] if flags.has(self.flag) else missing
        argument = flags.text(self.flag)
        values = {word.lower(): value for word, value in self.words.items()}
        if argument is not None and argument.lower() not in values:
            known = " or ".join(self.words)
            raise ConfigError(f"{flags.sign}{self.flag} {shown(argument)} is not known here; use {known}")
        return missing if argument is None else values[argument.lower()]


@dataclass
class Flags:
    """Flags of a command line with their arguments (the last ones count), and the set of flags that were read."""

    arguments: dict[str, list[str]]
    used: set[str] = field(default_factory=set)
    sign: str = "--"  # what a name begins with, as the user wrote it

    @classmethod
    def of(cls, words: Iterable[str]) -> Flags:
        """Return the flags of the words of a command; words before the first flag are left out."""
        arguments: dict[str, list[str]] = {}
        current: list[str] = []
        for word in words:
            if re.match(r"--[A-Za-z]", word):
                name, sign, value = word.removeprefix("--").partition("=")
                current = arguments[name] = [value] if sign else []
            else:
                current.append(word)
        return cls(arguments)

    @property
    def unread(self) -> list[str]:
        """Flags that nothing has read, in the order of the command."""
        return [name for name in self.arguments if name not in self.used]

    def values(self, *rows: Row) -> dict[str, Any]:
        """Return the values of the rows' keys in a command line, by their names."""
        return {row.name: row.read(self) for row in rows}

    def has(self, *names: str) -> bool:
        """Return whether one of the flags is there."""
        self.used.update(names)
        return any(name in self.arguments for name in names)

    def words(self, name: str) -> list[str] | None:
        """Return the arguments of a flag; None without it. ConfigError if a variable in them has no known value."""
        self.used.add(name)
        found = self.arguments.get(name)
        if found is None:
            return None
        found = [*found[:1], *(word for word in found[1:] if word != UNRESOLVED)]  # an unset variable is no word
        if any(UNRESOLVED in word for word in found):
            flag = f"{self.sign}{name}"
            reason = "its value comes from a variable or a command that the text does not set"
            raise MissingValueError(f"{flag}: {reason}; write the value, such as {flag} 8", flag)
        return found

    def text(self, name: str) -> str | None:
        """Return the arguments of a flag, joined; None without it."""
        found = self.words(name)
        return None if found is None else " ".join(found)

    def number(self, name: str, default: Any = None, least: int = 0) -> Any:
        """Return the integer of a flag, or `default` without it."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9](_?[0-9]){0,14}", text) or int(text) < least:
            raise ConfigError(f"{self.sign}{name} {shown(text)} must be a whole number of at least {least}, such as 8")
        return int(text)


def torchrun_gpus(words: Sequence[str], variables: Mapping[str, str]) -> int | None:
    """Return the GPUs that torchrun, deepspeed or mpirun starts with these words, or that the variables give, if any.

    The variables are those that Slurm sets, and WORLD_SIZE, which counts nodes if the processes of a node are unknown.
    """
    flags = Flags.of(word.replace("_", "-") if word.startswith("--") else word for word in words).arguments
    torchrun = [*flags.get("nproc-per-node", [])[:1], *flags.get("nnodes", ["1"])[:1]]
    mpirun = [after for word, after in pairwise(words) if word in ("-np", "-n")][:1]
    deepspeed = [*flags.get("num-gpus", [])[:1], *flags.get("num-nodes", ["1"])[:1]]
    world = [variables.get("WORLD_SIZE", "")] if all(count.isdigit() for count in torchrun[:1]) else []
    slurm = [variables.get(name, "") for name in ("SLURM_GPUS_PER_NODE", "SLURM_NNODES")]
    for counts, needed in ((torchrun, 2), (deepspeed, 2), (mpirun, 1), (world, 1), (slurm, 2)):
        if len(counts) == needed and all(count.isdigit() for count in counts):
            return math.prod(map(int, counts))
    return None


@contextmanager
def naming_what_to_set(text: str, script: Script) -> Iterator[None]:
    """Add to an error what to set for a value that a script does not give: a variable, arguments, other files."""
    try:
        yield
    except ConfigError as error:
        words = ""
        if isinstance(error, MissingValueError):
            if variable := re.search(rf"{error.flag}[ =]+[\"']?\$\{{?([A-Za-z_]\w*)", text):
                words = f", or a first line {variable[1]}=8"
            if re.search(r"\$\{?[1-9@]", text):
                words += "; the script takes arguments: a first line such as `set -- A B` gives them"
        if others := ", ".join(one for one in dict.fromkeys(script.sourced) if one != UNRESOLVED):
            words += f"; put the lines of {others} in its place"
        raise ConfigError(f"{error}{words}") from None
