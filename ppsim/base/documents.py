"""Documents from files: JSON and YAML texts read safely, and checked against a schema with every fault at once."""

from __future__ import annotations

import difflib
import io
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, fields
from functools import lru_cache
from os import PathLike
from typing import Annotated, Any, TypeVar

import numpy as np

from ppsim.base.errors import ConfigError, listing, shown
from ppsim.base.files import MAX_CONFIG_BYTES, read_text
from ppsim.base.rules import Check

Path = tuple[str | int, ...]
Fault = tuple[Path, str]

UNITS = {"time": "seconds", "size": "bytes"}  # in all our files
MAX_CHARACTERS = 400_000
MAX_DEPTH = 30
MAX_NODES = 20_000
MAX_DIGITS = 4_000  # digits of an integer; Python itself reads up to 4,300


class NotYamlError(ConfigError):
    """Error of a text that is not YAML, in the words of the YAML reader."""


@dataclass(frozen=True)
class Document:
    """YAML document: its value, and for each path in it the 1-based line at which the value of the path begins."""

    value: Any
    lines: dict[Path, int]


def as_python(value: Any, place: str, depth: int = MAX_DEPTH) -> Any:
    """Return a value, or the values in mappings and lists, with Python's numbers and lists for tuples and NumPy's.

    Raises ConfigError, which starts with `place`, for a value nested beyond `depth`.
    """
    if depth < 0:
        raise ConfigError(f"{place}: nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return {key: as_python(one, place, depth - 1) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_python(one, place, depth - 1) for one in value]
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else value


def read_yaml(text: str, place: str) -> Document:
    """Read one YAML 1.2 document; `place` names the text in errors.

    Raises ConfigError with the line of a syntax error, a doubled key, an alias, a tag outside plain YAML, or a value
    beyond `MAX_DEPTH`, `MAX_NODES` or `MAX_DIGITS`.
    """
    known = _read(text, place)
    return Document(deepcopy(known.value), known.lines)


def read_yaml_file(path: str | PathLike[str]) -> Document:
    """Read a YAML file of a user as `read_yaml` does; ConfigError, which names the file, if it cannot be read."""
    return read_yaml(read_text(path, most=MAX_CONFIG_BYTES), os.fspath(path))


@lru_cache(16)  # the explorer and the studies read the same few files repeatedly
def _read(text: str, place: str) -> Document:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import DuplicateKeyError
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: {len(text)} characters is too long for a config; use at most {MAX_CHARACTERS}")
    yaml = YAML(typ="safe", pure=True)
    try:
        _check_events(YAML(typ="safe", pure=True).parse(text), place)
        value = yaml.load(text)
        root = YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f": line {mark.line + 1}" if mark else ""
        problem = re.split("\n| with value", error.problem or error.context or "not YAML")[0].removeprefix("but ")
        kind = ConfigError if isinstance(error, DuplicateKeyError) else NotYamlError
        raise kind(f"{place}{line}: {problem}") from None
    except (YAMLError, ValueError, TypeError, AttributeError, OverflowError, AssertionError) as error:
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        raise NotYamlError(f"{place}: not YAML: {reason:.200}") from None
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
        if depth > MAX_DEPTH:
            raise ConfigError(f"{place}: line {line}: nested deeper than {MAX_DEPTH} levels")
        if nodes > MAX_NODES:
            raise ConfigError(f"{place}: line {line}: more than {MAX_NODES} values")
        if isinstance(event, ScalarEvent) and len(event.value) > MAX_DIGITS and event.value.lstrip("+-").isdecimal():
            raise ConfigError(f"{place}: line {line}: a number of more than {MAX_DIGITS} digits")


def _lines(node: Any, path: Path = ()) -> dict[Path, int]:
    """Return the line of the value at each path; `_check_events` bounds the depth."""
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


T = TypeVar("T")


def checked_by(check: Check) -> Any:
    """Return a field type for a pydantic model: `check` returns the field's value; its ConfigError becomes a fault."""
    from pydantic import BeforeValidator

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return Annotated[Any, BeforeValidator(validate)]


def record(title: str, *, ignored: Sequence[str] | None = (), **keys: Any) -> Any:
    """Return the schema of a mapping; each key gives a pair of type and default, with ... for a required key.

    The mapping may also have keys that are `ignored`: any, if that is None.
    """
    from pydantic import create_model, model_validator

    def refuse_unknown(section: Any) -> Any:
        if ignored is not None and (faults := unknown_keys(section, [*ignored, *keys])):
            raise ValueError("; ".join(faults))
        return section

    validators: Any = {"refuse_unknown": model_validator(mode="before")(refuse_unknown)}
    return create_model(title, __validators__=validators, **keys)


def record_of(kind: type, *, ignored: Sequence[str] = (), **types: Any) -> Any:
    """Return the `record` of fields of a dataclass: each has the type given here, and its own default."""
    defaults = {
        one.name: one.default if one.default_factory is MISSING else one.default_factory() for one in fields(kind)
    }
    typed = {name: (one, ... if defaults[name] is MISSING else defaults[name]) for name, one in types.items()}
    return record(kind.__name__, ignored=ignored, **typed)


def check_document(schema: type[T], document: Any, place: str, what: str) -> T:
    """Return the document as an object of `schema`, a type that pydantic can check.

    The message begins with `place` (a file) and `what` the document should be. Raises ConfigError with one sentence
    per fault: its path, the value found there, and the rule.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(schema).validate_python(document)
    except ValidationError as error:
        faults = list(map(fault_of, error.errors(include_url=False)))
    raise document_error([f"{path_text(path)}: {rule}" if path else rule for path, rule in faults], place, what)


Faults = Callable[[Any], list[str]]


def read_record(path: Any, name: str, what: str, schema: Any, faults: Faults) -> dict[str, Any]:
    """Return the values of a YAML file with the schema of this name, by key; ConfigError names the file and its faults.

    `faults` returns the faults of values that are each legal by themselves.
    """
    place, document = str(path), read_yaml_file(path).value
    check_schema(document, name, place, what)
    kind = what.partition(",")[0]
    values = dict(check_document(schema, document, place, kind))
    if found := faults(values):
        raise document_error(found, place, kind)
    return values


def known_keys(key: str, known: Sequence[str], otherwise: str | None = None) -> str:
    """Return what to write in place of an unknown key: the most similar known key, or the list of known keys.

    `otherwise` replaces the list.
    """
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else otherwise or f"the keys here are: {', '.join(known)}"


def unknown_keys(section: Any, known: Sequence[str], *path: str) -> list[str]:
    """Return one fault per unknown key of a mapping at a path of a document."""
    keys = [key for key in section if key not in known] if isinstance(section, dict) else []
    return [f"{path_text((*path, key))}: unknown key; {known_keys(str(key), known)}" for key in keys]


def checked_entry(entry: Any, place: str, what: str, known: Sequence[str], needed: Sequence[str]) -> Mapping[str, Any]:
    """Return one mapping of a user's list; ConfigError for anything else, unknown keys, and needed ones without value.

    `what` names an entry with an example.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{place}: {shown(entry)} must be {what}")
    if faults := unknown_keys(dict(entry), known):
        raise ConfigError(f"{place}: {faults[0]}")
    for key in needed:
        if entry.get(key) is None:
            raise ConfigError(f"{place}: {key} is missing; give {what}")
    return entry


def yaml_text(document: Mapping[str, Any]) -> str:
    """Return plain values as the text of a YAML file, in their order."""
    from ruamel.yaml import YAML

    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = None
    writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment] - keep the order of the document
    writer.dump(document, text)
    return text.getvalue()


def nine_digits(value: Any) -> Any:
    """Return plain values with nine digits of each number, and lists for tuples."""
    if isinstance(value, Mapping):
        return {key: nine_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [nine_digits(item) for item in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def check_schema(document: Any, schema: str, place: str, what: str) -> None:
    """Raise ConfigError unless a document names this `schema`, such as "ppsim.trace/1", and no units but `UNITS`."""
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != schema:
        raise ConfigError(f"{place}: not {what}: schema is {shown(found)}, expected {schema!r}")
    named = document.get("units")
    for key, unit in UNITS.items():
        if isinstance(named, dict) and named.get(key, unit) != unit:
            raise ConfigError(f"{place}: units.{key} is {shown(named[key])}, expected {unit!r}")


def document_error(faults: list[str], place: str, what: str) -> ConfigError:
    """Return all faults of a document as one error; a single fault stays one line."""
    found = [f"{place}: not {what}: {faults[0]}"] if len(faults) == 1 else faults
    return ConfigError(listing(f"{place}: not {what}", found), faults)


def read_json(text: str | bytes, place: str, what: str, each: Callable[[list], Any] | None = None) -> Any:
    """Return the document in a JSON text; ConfigError names `place`, `what` it should be, and the line of a fault.

    `each` takes the (key, value) pairs of an object instead of `dict`, and may raise ConfigError.
    """
    try:
        return json.loads(text, object_pairs_hook=each)
    except ConfigError as error:
        raise ConfigError(f"{place}: not {what}: {error}") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{place}: not {what}: no JSON at line {error.lineno}: {error.msg}") from None
    except RecursionError:
        raise ConfigError(f"{place}: not {what}: nested too deeply") from None
    except ValueError:
        raise ConfigError(f"{place}: not {what}: a number with too many digits") from None


def path_text(path: tuple[Any, ...]) -> str:
    """Return the text of a path in a document, such as `steps[3].start[0][5]`."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else str(key)
    return text or "the document"


def fault_of(item: Any) -> Fault:
    """Return the path and the message of an error of pydantic."""
    path, kind = tuple(key for key in item["loc"] if key != "[key]"), item["type"]
    if kind == "value_error":
        return path, str(item["ctx"]["error"])
    if kind == "missing":
        return path, "is missing"
    rule = _RULES.get(kind, str(item["msg"]).replace("Input", "it").replace("valid ", ""))
    return path, f"{shown(item['input'])}: {rule}"


_MAPPING = "it must be a mapping of keys to values"
_RULES = {
    "invalid_key": "keys must be text",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dataclass_type": _MAPPING,
    "typed_dict_type": _MAPPING,
    "list_type": "it must be a list",
    "float_type": "it must be a number",
    "float_parsing": "it must be a number",
    "int_parsing": "it must be a whole number",
    "int_from_float": "it must be a whole number",
    "int_type": "it must be a whole number",
    "string_type": "it must be text",
    "finite_number": "it must be a finite number",
}
