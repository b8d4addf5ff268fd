"""Closed forms: evaluates the formulas of a family, which pages print as text.

A text such as "= m(F+I) for m >= p, (m+p-1)F for m < p; where c = 0; bubble fraction (p-1)/m at F = I" has clauses
between ";", and in each clause expressions with the conditions under which they hold. docs/schedules.md defines the
letters. The conditions of a clause without an expression belong to all expressions before it. After ":" the conditions
of the expression before it still hold. "=" and "<=" are evaluated, "~" is not. Braces hold words that are only printed,
and after "|" the text that is evaluated in their place: "{with k slices}", "{once m fills the pipeline|for m >= p}".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from types import CodeType
from typing import Any

import ppsim
from ppsim.families.registry import BRACES

_CONNECTOR = re.compile(r"\b(?:for|at|where|when|while)\b")
_ITEM = re.compile(
    r"(largest|makespan|span bubble fraction|span|steady bubble fraction|bubble fraction|iteration time)?"
    r"\s*(<=|=|~)?\s*(.*)"
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|F&B|f&b|c'|[A-Za-z_]+|<=|>=|\S")
_FUNCTIONS = {"min": min, "max": max, "floor": math.floor, "ceil": math.ceil}
_WORDS = {*_FUNCTIONS, "mod", "iterations", "variant", "memory_limit"}  # other words are products of letters
_IN_PYTHON = {"mod": "%", "=": "==", "F&B": "fused", "f&b": "fused_stage", "c'": "c_of_statistics"}


@dataclass(frozen=True)
class ClosedForm:
    """Formula of a family."""

    measure: str  # its name; "largest" is the maximum of `peak_activations` over the devices
    relation: str  # "=", "<=" or "~"
    expression: str  # in the notation of docs/schedules.md
    conditions: list[str]  # comparisons; the formula holds if all of them do

    @property
    def names(self) -> set[str]:
        """Letters and words of the formula and its conditions."""
        return {token for text in (self.expression, *self.conditions) for token in _tokens(text)}

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether the conditions of the formula hold for these values, a number for each of `names`."""
        return all(_evaluate(condition, values) for condition in self.conditions)

    def value(self, values: Mapping[str, Any]) -> float:
        """Return the value of the formula."""
        return float(_evaluate(self.expression, values))


def forms_of(family: ppsim.Family) -> list[ClosedForm]:
    """Return the formulas of a family except approximations."""
    return [form for measure, text in family.closed_forms.items() for form in closed_forms(text, measure)]


def closed_forms(text: str, measure: str) -> list[ClosedForm]:
    """Return the formulas of a text except approximations; `measure` is the default measure of a formula."""
    forms: list[ClosedForm] = []
    for clause in BRACES.sub(r"\2", text).split(";"):
        if clause.strip().startswith("~"):
            continue
        found, shared = _forms_of_clause(clause, measure)
        forms += found
        for form in () if found else forms:
            form.conditions.extend(shared)
    return [form for form in forms if form.relation != "~"]


def _forms_of_clause(clause: str, measure: str) -> tuple[list[ClosedForm], list[str]]:
    """Return the formulas of a clause, and the conditions before the first of them."""
    forms: list[ClosedForm] = []
    shared: list[str] = []
    for segment in clause.split(":"):
        inherited = forms[-1].conditions if forms else shared
        for item in _items(segment):
            match = _ITEM.fullmatch(item)
            named, relation, expression = match.groups() if match else (None, None, "")
            if not (named or relation) and re.search("[<=>]", item):
                (forms[-1].conditions if forms else shared).append(item)
            elif expression:
                name = (named or measure).replace(" ", "_")
                forms.append(ClosedForm(name, relation or "=", expression, [*inherited]))
    return forms, shared


def _items(segment: str) -> Iterator[str]:
    """Yield the expressions and conditions of a segment; connectors, and commas outside parentheses, separate them."""
    depth, item = 0, ""
    for character in _CONNECTOR.sub(",", segment) + ",":
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            if item.strip():
                yield item.strip()
            item = ""
        else:
            item += character


def _tokens(text: str) -> list[str]:
    """Return the numbers, names and signs of an expression; an unknown word is a product of its letters."""
    found = []
    for token in _TOKEN.findall(text):
        found += list(token) if token.isalpha() and token not in _WORDS else [token]
    return found


def _evaluate(text: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression or comparison; products may lack their sign, as in 2(p-1)m."""
    return eval(_compiled(text), _FUNCTIONS | {_IN_PYTHON.get(name, name): values[name] for name in values})  # noqa: S307 - text of the package


@cache
def _compiled(text: str) -> CodeType:
    tokens = _tokens(text)
    parts = tokens[:1]
    for before, after in pairwise(tokens):
        is_product = (before[-1].isalnum() or before in (")", "c'")) and (after[0].isalnum() or after == "(")
        if is_product and before not in (*_FUNCTIONS, "mod") and after != "mod":
            parts.append("*")
        parts.append(after)
    return compile(" ".join(_IN_PYTHON.get(part, part) for part in parts), text, "eval")
