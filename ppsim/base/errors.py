"""Errors that a user's input can cause; the library raises no others because of input."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MAX_FAULTS_SHOWN = 20
LONGEST_SHOWN = 60  # characters of a value in a message


class PpsimError(Exception):
    """Base of every error that ppsim raises because of its input; `faults` holds one sentence per fault."""

    def __init__(self, message: str, faults: list[str] | None = None):
        super().__init__(message)
        self.faults = faults if faults is not None else [message]


class ScheduleError(PpsimError):
    """Error of a schedule or program that breaks a rule; `faults` holds one sentence per place."""


class DeadlockError(ScheduleError):
    """Error of devices or transfers that wait for each other; `cycle` holds one line per wait, in cycle order."""

    def __init__(self, message: str, cycle: list[str]):
        super().__init__(message)
        self.cycle = cycle


class ConfigError(PpsimError):
    """Error of a call: a name, size, option or configuration file that ppsim cannot act on."""


class BuildError(ScheduleError, ConfigError):
    """Error of sizes or options that a schedule family does not allow."""


class UnknownNameError(ConfigError, KeyError):
    """Error of a key that a mapping lacks; a KeyError too, as other mappings raise."""

    __str__ = Exception.__str__  # a KeyError shows the repr of its message


class CostError(PpsimError):
    """Error of a cost that is not a legal number, or does not fit its schedule."""


@contextmanager
def error_at(place: str, error: type[PpsimError] = ConfigError) -> Iterator[None]:
    """Begin the message of a ConfigError in the `with` block with `place`, and raise it as `error`."""
    try:
        yield
    except ConfigError as wrong:
        raise error(f"{place}{wrong}") from None


def shown(value: Any) -> str:
    """Return what a caller gave as one short text for a message; it never raises."""
    try:
        text = repr(value)
    except Exception:  # the repr of a foreign object may raise anything; that of a too long int raises ValueError
        text = f"(too long to show: {type(value).__name__})"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


def visible(text: str) -> str:
    r"""Return text with control and direction characters escaped, as \u001b is in JSON.

    Newlines and tabs stay. The name of a file must not move a terminal's cursor or break an XML file.
    """
    return _INVISIBLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]")


def listing(heading: str, faults: Sequence[str]) -> str:
    """Return one message for many faults: a single fault alone, else a heading and one line per fault."""
    if len(faults) == 1:
        return faults[0]
    lines = [f"  - {fault}" for fault in faults[:MAX_FAULTS_SHOWN]]
    if len(faults) > MAX_FAULTS_SHOWN:
        lines.append(f"  - and {len(faults) - MAX_FAULTS_SHOWN} more")
    return f"{heading}:\n" + "\n".join(lines)
