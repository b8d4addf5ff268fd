"""Compiled loops that read every index as a number without a sign, because none of theirs counts from the end."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

import numpy as np

SomeFunction = TypeVar("SomeFunction", bound=Callable)
_marked: set[Any] = set()


def from_the_start(function: SomeFunction) -> SomeFunction:
    """Mark a loop in which no index is negative, but for constants such as [-1].

    Numba asks before each use of an index with a sign whether it counts from the end, which takes a third of a short
    loop's time. The function itself stays as it is; `unsigned` makes what is compiled in its place.
    """
    _marked.add(function)
    return function


def unsigned(function: Any) -> Any:
    """A marked function with its indexes without a sign; any other, and one whose text is not at hand, as it is."""
    if function not in _marked:
        return function
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        return function
    tree = ast.parse(text)
    definition = _Unsigned().visit(tree.body[0])
    definition.decorator_list.clear()
    # The name of the conversion is a closed-over one, so that the globals stay those of the function's own file.
    outer = ast.parse(f"def outer({_CONVERSION}): pass")
    outer.body[0].body = [definition]  # type: ignore[attr-defined]
    ast.increment_lineno(definition, function.__code__.co_firstlineno - 1)
    code = compile(ast.fix_missing_locations(outer), function.__code__.co_filename, "exec")
    for _ in range(2):
        code = next(part for part in code.co_consts if isinstance(part, CodeType))
    made = FunctionType(
        code, function.__globals__, function.__name__, None, (_cell(np.uintp),)[: len(code.co_freevars)]
    )
    made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return made


_CONVERSION = "_without_sign"


class _Unsigned(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.slice, ast.Tuple):
            node.slice.elts = [_converted(index) for index in node.slice.elts]
        else:
            node.slice = _converted(node.slice)
        return node


def _converted(index: ast.expr) -> ast.expr:
    if isinstance(index, ast.Slice | ast.Constant | ast.UnaryOp):
        return index
    return ast.Call(ast.Name(_CONVERSION, ast.Load()), [index], [])


def _cell(value: Any) -> Any:
    return (lambda: value).__closure__[0]  # type: ignore[index]
