"""The errors that a user's input can cause; nothing else leaves the library because of it."""

import re
from collections.abc import Sequence
from typing import Any

MAX_FAULTS_SHOWN = 20
LONGEST_SHOWN = 60  # characters of a value in a message


class PpsimError(Exception):
    """Base of every error that ppsim raises because of what it was given."""


class ScheduleError(PpsimError):
    """A schedule or program breaks a rule; `faults` holds one sentence for each place where it does."""

    def __init__(self, message: str, faults: list[str] | None = None):
        super().__init__(message)
        self.faults = faults if faults is not None else [message]


class DeadlockError(ScheduleError):
    """Devices or transfers wait for each other; `cycle` holds one line for each wait, in order round the cycle."""

    def __init__(self, message: str, cycle: list[str]):
        super().__init__(message)
        self.cycle = cycle


class ConfigError(PpsimError):
    """The call itself was wrong: a name, size, option or configuration file that ppsim cannot act on.

    `faults` holds one sentence for each fault.
    """

    def __init__(self, message: str, faults: list[str] | None = None):
        super().__init__(message)
        self.faults = faults if faults is not None else [message]


class BuildError(ScheduleError, ConfigError):
    """A schedule family does not allow the sizes or options that it was asked to build."""


class CostError(PpsimError):
    """A cost is not a legal number, or does not fit the schedule it is meant for."""


def shown(value: Any) -> str:
    """What a caller gave, as one short piece of text for a message; never fails itself."""
    try:
        text = repr(value)
    except Exception:  # a foreign object's repr may raise anything, and so does that of an int of 5,000 digits
        text = f"(too long to show: {type(value).__name__})"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def visible(text: str) -> str:
    r"""Text in which control characters, and those that turn the direction of writing, are shown as \u001b is in JSON.

    Lines and tabs stay. What a file or a folder is called must not move a terminal's cursor or break an XML file.
    """
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]")


def listing(heading: str, faults: Sequence[str]) -> str:
    """One message out of many faults: the sentence alone if there is one, else a heading and a line each."""
    if len(faults) == 1:
        return faults[0]
    lines = [f"  - {fault}" for fault in faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > MAX_FAULTS_SHOWN:
        lines.append(f"  - and {len(faults) - MAX_FAULTS_SHOWN} more")
    return f"{heading}:\n" + "\n".join(lines)
