"""Flags of a command line, and the table of rows that map config keys to flags and back."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.launch.shell import UNRESOLVED


@dataclass(frozen=True)
class Row:
    """One config key and its flag, for both directions."""

    key: str  # dotted key of a config, such as `model.hidden`
    flag: str  # without its hyphens
    # the flag's argument by the key's value; an empty argument is a bare flag. Default: the argument is a number.
    words: Mapping[Any, str] | None = None
    absent: Any = None  # value of the key if the flag is missing; the flag is then not printed for it

    def printed(self, value: Any) -> list[str]:
        """Return the flag for a value; no flag if none is needed, or if the framework has no argument for it."""
        if value is None or value == self.absent or (self.words is not None and value not in self.words):
            return []
        argument = str(value) if self.words is None else self.words[value]
        return [f"--{self.flag} {argument}".rstrip()]

    def read(self, flags: Flags) -> Any:
        """Return the key's value in a command line; ConfigError if the argument is none of the flag's."""
        if self.words is None:
            return flags.number(self.flag, self.absent)
        values = {word.lower(): value for value, word in self.words.items()}
        if values.keys() == {""}:
            return values[""] if flags.has(self.flag) else self.absent
        argument = flags.text(self.flag)
        if argument is None:
            return self.absent
        if argument.lower() not in values:
            raise ConfigError(
                f"--{self.flag} {shown(argument)} is not known here; use {' or '.join(self.words.values())}"
            )
        return values[argument.lower()]


@dataclass
class Flags:
    """Flags of a command line with their arguments; of a repeated flag the last counts. Notes which ones were read."""

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
            raise ConfigError(
                f"{self.sign}{name}: its value comes from a variable or a command that the text does not set; write "
                f"the value instead, such as {self.sign}{name} 8, or set the variable in a first line"
            )
        return found

    def text(self, name: str) -> str | None:
        """Return the arguments of a flag, joined; None without it."""
        found = self.words(name)
        return None if found is None else " ".join(found)

    def number(self, name: str, default: Any = None) -> Any:
        """Return the integer of a flag, or `default` without it."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"[0-9]{1,15}", text):
            raise ConfigError(f"{self.sign}{name} {shown(text)} must be a whole number of at least 0, such as 8")
        return int(text)


def torchrun_gpus(words: Sequence[str], variables: Mapping[str, str]) -> int | None:
    """Return the GPUs that torchrun or mpirun starts with these words, or that the variables give; None without any.

    The variables are WORLD_SIZE, and those that Slurm sets.
    """
    flags = Flags.of(word.replace("_", "-") if word.startswith("--") else word for word in words).arguments
    torchrun = [*flags.get("nproc-per-node", [])[:1], *flags.get("nnodes", ["1"])[:1]]
    mpirun = [after for word, after in pairwise(words) if word in ("-np", "-n")][:1]
    slurm = [variables.get(name, "") for name in ("SLURM_GPUS_PER_NODE", "SLURM_NNODES")]
    for counts, needed in ((torchrun, 2), (mpirun, 1), ([variables.get("WORLD_SIZE", "")], 1), (slurm, 2)):
        if len(counts) == needed and all(count.isdigit() for count in counts):
            return math.prod(map(int, counts))
    return None
