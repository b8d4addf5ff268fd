"""Compiling with Numba: on first call, kept on disk where that is possible, announced on stderr where it takes time."""

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

import numpy as np

SomeFunction = TypeVar("SomeFunction", bound=Callable)
MESSAGE = "ppsim: compiling the fast engine; this is done once where the result can be kept on disk\n"

# Below this many rows plain Python is done before Numba has loaded, and before it has compiled what no cache on disk
# holds (docs/performance.md has the measurements).
ROWS_WORTH_LOADING, ROWS_WORTH_COMPILING = 20_000, 500_000


@cache
def can_compile() -> bool:
    """Whether Numba is there and works with the NumPy that is installed."""
    try:
        import numba  # noqa: F401 - loaded here to learn whether it loads
    except Exception:  # Numba refuses a NumPy that is too new with ImportError or SystemError, depending on its version
        return False
    return True


@cache
def compiled(function: Callable) -> Callable:
    """`function` compiled by Numba; without a cache on disk where no directory can be written.

    Sums and products keep the order written: no fast-math, so results equal those of plain Python bit for bit.
    """
    import numba

    whole = _with_parts(function)
    # A kernel in parts allocates nothing, and counting who uses its columns would take ten times as long as its work.
    options: Any = {"nogil": True} if whole is function else {"nogil": True, **_WITHOUT_COUNTING}
    try:
        return numba.njit(cache=True, **options)(whole)
    except (RuntimeError, OSError):  # Numba found no directory that it may write
        return numba.njit(**options)(whole)


def part(function: SomeFunction) -> SomeFunction:
    """Mark a function that `run_where_it_pays` compiles along with those of its file that call it.

    It stays a function of plain Python by itself, and neither it nor what calls it makes arrays. What is kept on disk
    knows of changes in one file only, so kernels and their parts stay together.
    """
    _parts.add(function)
    return function


@cache
def _compiled_part(function: Callable) -> Callable:
    return inlined(_with_parts(function), **_WITHOUT_COUNTING)


def _with_parts(function: Any) -> Callable:
    """The function with the parts that it calls compiled."""
    known = function.__globals__
    called = {name: known[name] for name in function.__code__.co_names if name in known}
    called = {name: value for name, value in called.items() if inspect.isfunction(value) and value in _parts}
    if not called:
        return function
    parts = {name: _compiled_part(value) for name, value in called.items()}
    bound = FunctionType(function.__code__, known | parts, closure=function.__closure__)
    bound.__qualname__, bound.__module__, bound.__doc__ = function.__qualname__, function.__module__, function.__doc__
    return bound


def inlined(function: Callable, **more: Any) -> Callable:
    """`function` compiled as a part of the `compiled` kernels that call it: not cached and not callable by itself.

    Without the wrappers that Python would call it by it compiles in a fraction of the time.
    """
    import numba

    options: Any = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True, **more}
    return numba.njit(**options)(function)


def run(kernel: Any, *arguments: Any) -> Any:
    """Call a compiled kernel; on its first call it is loaded from the cache or compiled."""
    if kernel not in _ready:
        _ready[kernel] = _prepared(kernel, arguments)
    return _ready[kernel](*arguments)


def run_where_it_pays(function: Callable, rows: int, *arguments: Any) -> Any:
    """Call `function` compiled where there are many rows, or it is compiled already; as plain Python otherwise.

    Plain Python gets lists in place of columns, which it reads much faster, and what it writes into those of columns
    that can be written comes back into the columns.
    """
    if function in _used or pays(function, rows):
        _used.add(function)
        return run(compiled(function), *arguments)
    return _run_plain(function, np.ndarray.tolist, arguments)


def pays(function: Callable, rows: int) -> bool:
    """Whether `function` compiled is done with so many rows before plain Python, loading and compiling counted.

    Rows that were left to plain Python before count too: many calls, small ones as well, never wait longer than twice
    as long as with the better choice for all of them.
    """
    _left_to_python[function] += rows
    many = _left_to_python[function] >= ROWS_WORTH_COMPILING
    if not (many or rows >= ROWS_WORTH_LOADING) or not can_compile():
        return False
    return many or _is_at_hand(function)


def _is_at_hand(function: Any) -> bool:
    """Whether a kernel, or a function's, is compiled already: in this process or on disk."""
    kernel: Any = function if hasattr(function, "py_func") else compiled(function)
    if kernel in _ready or not hasattr(kernel, "stats"):  # NUMBA_DISABLE_JIT leaves plain functions
        return True
    known, folder = kernel.py_func, kernel.stats.cache_path
    pattern = f"*.{known.__qualname__}-{known.__code__.co_firstlineno}.py*.nbi"
    return folder is not None and any(Path(folder).glob(pattern))


def _run_plain(function: Callable, changed: Callable[[np.ndarray], Any], arguments: Sequence[Any]) -> Any:
    """Call a plain function with changed columns; what it writes into them comes back into those it was called for."""
    plain = [_with_columns(changed, argument) for argument in arguments]
    result = function(*plain)
    _write_back(arguments, plain)
    return result


def _with_columns(changed: Callable[[np.ndarray], Any], argument: Any) -> Any:
    """A column changed, and a named tuple of columns as one of changed columns; anything else as it is."""
    if isinstance(argument, tuple):
        return type(argument)(*(_with_columns(changed, one) for one in argument))
    return changed(argument) if isinstance(argument, np.ndarray) else argument


def _widened(column: np.ndarray) -> np.ndarray:
    """Numbers of few bytes as those of eight, as which compiled code calculates with them: NumPy's would overflow."""
    return column.astype(np.int64) if column.dtype.kind in "iu" and column.itemsize < 8 else column


def _write_back(arguments: Iterable[Any], plain: Iterable[Any]) -> None:
    for argument, values in zip(arguments, plain, strict=True):
        if isinstance(argument, tuple):
            _write_back(argument, values)
        elif isinstance(argument, np.ndarray) and argument.flags.writeable:
            argument[:] = values


_WITHOUT_COUNTING: dict[str, Any] = {"_nrt": False, "error_model": "numpy"}
_ready: dict[Any, Callable] = {}
_left_to_python: Counter[Callable] = Counter()  # rows that came before the function was worth compiling
_used: set[Callable] = set()  # by `run_where_it_pays`, so that few rows no longer wait for Numba
_parts: set[Callable] = set()


def _prepared(kernel: Any, arguments: tuple) -> Callable:
    """The kernel, compiled for these arguments, before it changes any of them."""
    if not hasattr(kernel, "compile"):  # NUMBA_DISABLE_JIT leaves plain functions
        return lambda *arguments: _run_plain(kernel, _widened, arguments)
    import numba
    from numba.core import event

    signature = tuple(numba.typeof(argument) for argument in arguments)
    with event.install_listener("numba:compile", _announcement()):
        if not _is_ready(kernel, signature):
            with suppress(OSError):
                kernel.recompile()  # its cache cannot be read: nothing is compiled yet, so this only empties it
        if not _is_ready(kernel, signature):
            kernel = numba.njit(nogil=True)(kernel.py_func)
            kernel.compile(signature)  # a fault of the code comes up here
    return kernel


def _is_ready(kernel: Any, signature: tuple) -> bool:
    """Load the kernel from its cache or compile it; whether that is done, also where the result cannot be kept."""
    with suppress(Exception):  # a cache may be full, damaged or taken away since
        kernel.compile(signature)
    return signature in kernel.overloads


@cache
def _announcement() -> Any:
    """A listener that says once that a compilation has begun; loading from the cache is silent."""
    from numba.core import event

    class Announcement(event.Listener):
        made = False

        def on_start(self, event: Any) -> None:
            if not self.made:
                sys.stderr.write(MESSAGE)
                sys.stderr.flush()
                self.made = True

        def on_end(self, event: Any) -> None:
            """Nothing to say."""

    return Announcement()
