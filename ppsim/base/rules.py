"""Rules for values, written once for Python classes, the config file and the pages."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field
from types import FunctionType, UnionType
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np

from ppsim.base.errors import ConfigError, PpsimError, error_at, shown
from ppsim.base.immutable import short_repr
from ppsim.base.units import parse_quantity

Check = Callable[[Any], Any]
Class = TypeVar("Class", bound=type)
P = ParamSpec("P")
Result = TypeVar("Result")
LARGEST = 2**53  # up to here a float holds every whole number


def declared(what: str, check: Check | None = None, default: Any = MISSING, factory: Any = MISSING, **more: Any) -> Any:
    """Return a dataclass field with its description, the rule that `check_fields` applies, and its default.

    `factory` makes the default. `more` holds the `unit` of a number that a file may write as text ("2 ms"), and
    `example` and `default_text` for the pages.
    """
    return dataclasses.field(default=default, default_factory=factory, metadata={"what": what, "check": check, **more})


def described(kind: Class) -> Class:
    """Return the dataclass with its declared fields in its docstring, shown by `short_repr`, and `checked_methods`."""
    lines = [f"{item.name}\n        {item.metadata['what']}" for item in declarations(kind)]
    kind.__doc__ = "\n    ".join([f"{(kind.__doc__ or '').rstrip()}\n", "Parameters", "----------", *lines]) + "\n"
    made: Any = kind
    if getattr(vars(kind).get("__dataclass_params__"), "repr", False):
        made.__repr__ = short_repr
    return checked_methods(kind)


@functools.cache
def declarations(kind: Any) -> list[Field]:
    """Return the declared fields of a dataclass, in order."""
    return [item for item in dataclasses.fields(kind) if "what" in item.metadata]


def check_fields(holder: Any) -> None:
    """Check each declared field of a frozen dataclass; ConfigError gives its name, its value and the legal values.

    None is legal if it is the default.
    """
    for item in declarations(type(holder)):
        value, check = getattr(holder, item.name), item.metadata["check"]
        if check is not None and not (value is None and item.default is None):
            object.__setattr__(holder, item.name, argument(item.name, value, check))


def checked_call(hint: str = "") -> Callable[[Callable[P, Result]], Callable[P, Result]]:
    """Return a decorator that makes a function raise ConfigError, and no other error, for arguments of a wrong type.

    Types are compared with annotations after another error only: correct calls cost nothing, other errors stay as is.
    """

    def decorate(method: Callable[P, Result]) -> Callable[P, Result]:
        @functools.wraps(method)
        def call(*args: P.args, **given: P.kwargs) -> Result:
            try:
                return method(*args, **given)
            except PpsimError:  # some are a ValueError or a KeyError too
                raise
            except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError):
                signature = inspect.signature(method)
                name = method.__qualname__.removesuffix(".__init__").split(".")[-1]
                known = signature.parameters.items()
                options = [key for key, item in known if key != "self" and item.kind != item.VAR_KEYWORD]
                positional = sum(item.kind is item.POSITIONAL_OR_KEYWORD for _, item in known)
                try:
                    bound = signature.bind(*args, **given).arguments
                except TypeError as error:
                    faults = [f"{name}({key}=...): there is no such option" for key in given if key not in options]
                    faults += [f"{name}({shown(one)}): options are given by name" for one in args[positional:]]
                    legal = f"the options are: {', '.join(options)}" if options else "there are no options"
                    first = [*faults, f"{name}(): {error}"][0]
                    raise ConfigError(f"{first}; {legal}{hint and f'; {hint}'}") from None
                for key, value in bound.items():
                    kind = signature.parameters[key].annotation
                    if kind is not inspect.Parameter.empty and not _is_of(value, _evaluated(kind, method)):
                        raise ConfigError(f"{name}({key}={shown(value)}): the type must be {kind}") from None
                raise

        return call

    return decorate


def checked_methods(kind: Class) -> Class:
    """Return the class after decorating its own public methods, and its constructor, with `checked_call`."""
    for name, method in [*vars(kind).items()]:
        if (name == "__init__" or not name.startswith("_")) and isinstance(method, FunctionType):
            setattr(kind, name, checked_call()(method))
        elif not name.startswith("_") and isinstance(method, classmethod):
            setattr(kind, name, classmethod(checked_call()(method.__func__)))
    return kind


def _evaluated(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return the type of an annotation; Any if only a type checker imports it."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)  # noqa: S307 - our own text
    except (NameError, TypeError):
        return Any


def _is_of(value: Any, kind: Any) -> bool:
    """Return False if a value, or one that it contains, is certainly not of a type; numbers of NumPy are numbers."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, UnionType):
        return any(_is_of(value, one) for one in inner)
    if kind is None:
        return value is None
    if kind in (int, float, bool):
        if kind is float:
            return is_number(value)
        numbers = (int, np.integer) if kind is int else (bool, np.bool_)
        return isinstance(value, numbers) and (kind is bool or not isinstance(value, bool))
    if origin is Any or not isinstance(origin, type):
        return True
    if isinstance(value, np.ndarray) and not value.ndim:  # iterable by its type, but not by its value
        return origin in (object, np.ndarray)
    if getattr(origin, "_is_protocol", False):
        return not isinstance(value, type) and all(hasattr(value, name) for name in vars(origin) if name[0] != "_")
    if not isinstance(value, origin) or (isinstance(value, str) and origin is not str and issubclass(str, origin)):
        return origin is object
    if isinstance(value, Mapping) and len(inner) == 2:
        return all(_is_of(key, inner[0]) and _is_of(one, inner[1]) for key, one in value.items())
    if isinstance(value, Collection) and inner:
        kinds = inner if origin is tuple and inner[-1] is not ... else inner[:1] * len(value)
        return len(kinds) == len(value) and all(map(_is_of, value, kinds))
    return True


def rule(holds: Callable[[Any], bool], legal: str, made: Check | None = None) -> Check:
    """Return a check that raises ConfigError with `legal` unless `holds(value)`; `made` converts a legal value."""

    def check(value: Any) -> Any:
        try:
            is_legal = bool(holds(value))
        except (TypeError, ValueError):  # an array compares with each of its values
            is_legal = False
        if not is_legal:
            raise ConfigError(f"{shown(value)} {legal}")
        return value if made is None else made(value)

    return check


def is_number(value: Any) -> bool:
    """Return whether `value` is a Python or NumPy number that a float can hold; an int of 400 digits is not."""
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and not (isinstance(value, int) and value.bit_length() >= sys.float_info.max_exp)
    )


def is_whole(value: Any, least: int = 0) -> bool:
    """Return whether `value` is an int of Python or NumPy, no bool, of at least `least`."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def argument(name: str, value: Any, check: Check, error: type[PpsimError] = ConfigError) -> Any:
    """Return what `check` returns for an argument of a function; its ConfigError becomes `error`, after the name."""
    with error_at(f"{name}=", error):
        return check(value)


def number(holds: Callable[[float], bool], legal: str) -> Check:
    """Return a check for a plain number with `holds(number)`; the check returns a float."""
    return rule(lambda value: is_number(value) and holds(value), legal, float)


def whole_number(least: int = 1, most: int = LARGEST) -> Check:
    """Return a check for an int of Python or NumPy (no bool) within the bounds; the check returns an int."""
    whole = rule(lambda value: is_whole(value, least), f"must be a whole number of at least {least}", int)
    few = rule(lambda value: value <= most, f"is too large; use at most {most}")
    return lambda value: few(whole(value))


def instance(kind: type, hint: str) -> Check:
    """Return a check for an object of class `kind`; `hint` says how to get one."""
    return rule(lambda value: isinstance(value, kind), f"must be a {kind.__name__}; {hint}")


@dataclasses.dataclass(frozen=True)
class OneOf:
    """Check for one of `choices`; its error names the most similar choice."""

    choices: tuple[str, ...]

    def __call__(self, value: Any) -> str:
        """Return the value if it is one of the choices, or raise ConfigError."""
        if not isinstance(value, str) or value not in self.choices:
            near = difflib.get_close_matches(str(value), self.choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{shown(value)} is not known; {hint}use one of: {', '.join(self.choices)}")
        return value


def choice(*choices: str) -> OneOf:
    """Return a check for one of `choices`."""
    return OneOf(choices)


def quantity(unit: str, above_zero: bool = False) -> Check:
    """Return a check for a number of `unit`, or text with a unit such as "2 ms" (`parse_quantity`)."""
    return lambda value: parse_quantity(value, unit, above_zero=above_zero)


def nested(check: Check, depth: int = 1, per: str = "stage") -> Check:
    """Return a check for one value or for lists of values nested up to `depth` levels; `check` applies to each."""

    def each(value: Any, left: int = depth) -> Any:
        if isinstance(value, list) and left:
            if not value:
                raise ConfigError(f"[] is empty; list one value per {per}, or give one value")
            return [each(item, left - 1) for item in value]
        return check(value)

    return each


device_count = whole_number(1, 2**24)
seed = rule(is_whole, "must be a whole number of at least 0", int)
flag = rule(lambda value: isinstance(value, bool | np.bool_), "must be true or false", bool)
text = rule(lambda value: isinstance(value, str) and bool(value.strip()), "must be text")
fraction = number(lambda value: 0 < value <= 1, "must be a number above 0 and at most 1")
share = number(lambda value: 0 <= value <= 1, "must be a number from 0 to 1")
weight = number(lambda value: 0 <= value < math.inf, "must be a finite number of at least 0")
positive = number(lambda value: 0 < value < math.inf, "must be a finite number above 0, such as 1e9")
