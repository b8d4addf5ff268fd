"""YAML 1.2 text as plain Python values, with the line of every key; nothing in a text can hang or crash the reader."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ppsim.base.errors import ConfigError

Path = tuple[str | int, ...]

LONGEST = 400_000
DEEPEST = 30
MOST_NODES = 20_000
MOST_DIGITS = 4_000  # of a whole number; Python itself reads up to 4,300


@dataclass(frozen=True)
class Document:
    """A YAML document: its value, and for each path in it the 1-based line where its value begins."""

    value: Any
    lines: dict[Path, int]


def read_yaml(text: str, place: str) -> Document:
    """Read one YAML 1.2 document; `place` names the text in errors.

    Raises ConfigError with the line for a syntax error, a doubled key, an alias, a tag that is no plain YAML, nesting
    below `DEEPEST` levels, more than `MOST_NODES` values or a number of more than `MOST_DIGITS` digits.
    """
    known = _read(text, place)
    return Document(deepcopy(known.value), known.lines)


@lru_cache(16)  # the explorer, sweeps and choices read the same few files again and again
def _read(text: str, place: str) -> Document:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > LONGEST:
        raise ConfigError(f"{place}: {len(text)} characters is too long for a config; use at most {LONGEST}")
    yaml = YAML(typ="safe", pure=True)
    try:
        _check_events(YAML(typ="safe", pure=True).parse(text), place)
        value = yaml.load(text)
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f": line {mark.line + 1}" if mark else ""
        problem = (error.problem or error.context or "not YAML").split("\n")[0]
        raise ConfigError(f"{place}{line}: {problem}") from None
    except (YAMLError, ValueError, TypeError, AttributeError, OverflowError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise ConfigError(f"{place}: not YAML: {reason:.200}") from None
    return Document(value, {} if root is None else _lines(root))


def _check_events(events: Any, place: str) -> None:
    from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, ScalarEvent

    depth = nodes = 0
    for event in events:
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            raise ConfigError(f"{place}: line {line}: aliases (*name) are not read; write the value out")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        nodes += isinstance(event, CollectionStartEvent | ScalarEvent)
        if depth > DEEPEST:
            raise ConfigError(f"{place}: line {line}: nested deeper than {DEEPEST} levels")
        if nodes > MOST_NODES:
            raise ConfigError(f"{place}: line {line}: more than {MOST_NODES} values")
        if isinstance(event, ScalarEvent) and len(event.value) > MOST_DIGITS and event.value.lstrip("+-").isdecimal():
            raise ConfigError(f"{place}: line {line}: a number of more than {MOST_DIGITS} digits")


def _lines(node: Any, path: Path = ()) -> dict[Path, int]:
    """The line of the value at each path; depth is bounded by `_check_events`."""
    from ruamel.yaml.nodes import MappingNode, SequenceNode

    lines = {path: node.start_mark.line + 1}
    if isinstance(node, MappingNode):
        for key, value in node.value:
            lines |= _lines(value, (*path, str(key.value)))
            lines[*path, str(key.value)] = key.start_mark.line + 1
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            lines |= _lines(value, (*path, index))
    return lines
