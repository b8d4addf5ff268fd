"""Kernels: loops over columns that Numba compiles if that pays, and that otherwise run as plain Python.

A kernel, and each function that it calls, is a plain function marked by `kernel`; importing it does not load Numba.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from ppsim.base.progress import say

# Below these numbers of rows plain Python ends before Numba has loaded, or before it has compiled a kernel that the
# disk cache lacks (docs/performance.md has the measurements).
ROWS_WORTH_LOADING, ROWS_WORTH_COMPILING = 20_000, 500_000

_MESSAGE = "ppsim: compiling the fast engine, once per machine (or per process if no cache folder can be written)"
_options: dict[Callable, dict[str, Any]] = {}  # Numba's options per kernel
_ready: dict[Callable, Callable] = {}  # kernels that are compiled in this process
_rows_in_python: Counter[Callable] = Counter()  # per kernel, before it was worth compiling


def kernel(function: Callable | None = None, *, allocates: bool = False) -> Any:
    """Mark a function that Numba compiles, or that such a function calls; it stays a plain function.

    Unless it `allocates` (makes arrays or lists), its compiled form counts no references to its columns. Counting takes
    ten times as long as the work of the small functions of a search.
    """
    if function is None:
        return partial(kernel, allocates=allocates)
    _options[function] = {} if allocates else {"_nrt": False, "error_model": "numpy"}
    return function


@cache
def can_compile() -> bool:
    """Return whether Numba is installed and works with the installed NumPy."""
    try:
        import numba  # noqa: F401 - loaded here to learn whether it loads
    except Exception:  # Numba rejects a NumPy that is too new with ImportError or SystemError, depending on its version
        return False
    return True


@cache
def compiled(function: Callable) -> Any:
    """Return a kernel compiled by Numba, with a disk cache if a folder for it can be written.

    Sums and products keep the order written: no fast-math, so results equal those of plain Python bit for bit.
    """
    import numba

    for called in tuple(_options):  # another thread may import further kernels meanwhile
        _let_kernels_call(called)
    try:
        return _tolerate_a_damaged_cache(numba.njit(cache=True, nogil=True, **_options[function])(function))
    except (RuntimeError, OSError):  # Numba found no folder that it may write
        return numba.njit(nogil=True, **_options[function])(function)


def _tolerate_a_damaged_cache(fast: Any) -> Any:
    """Let a kernel compile, for any arguments, if its disk cache is full, damaged or removed meanwhile."""
    if hasattr(fast, "_cache"):  # NUMBA_DISABLE_JIT leaves plain functions
        for name in ("load_overload", "save_overload"):
            setattr(fast._cache, name, partial(_use_cache, fast._cache.flush, getattr(fast._cache, name)))
    return fast


def _use_cache(flush: Callable, use: Callable, *arguments: Any) -> Any:
    """Use the disk cache; None and an empty cache if that fails."""
    try:
        return use(*arguments)
    except Exception:
        with suppress(Exception):
            flush()
        return None


@cache
def _let_kernels_call(function: Callable) -> None:
    from numba.extending import register_jitable

    register_jitable(nogil=True, **_options[function])(function)


def call_compiled(function: Callable, *arguments: Any) -> Any:
    """Call a kernel compiled; the first call loads it from the disk cache or compiles it."""
    if function not in _ready:
        _ready[function] = _prepare(function, arguments)
    return _ready[function](*arguments)


def call_fastest(function: Callable, rows: int, *arguments: Any) -> Any:
    """Call a kernel compiled if it is compiled already or `pays` for this number of rows, else as plain Python.

    Plain Python gets lists in place of columns, because it reads lists much faster. Lists of writable columns are
    copied back into their columns afterwards.
    """
    if function in _ready or pays(function, rows):
        return call_compiled(function, *arguments)
    return _call_plain(function, np.ndarray.tolist, arguments)


def pays(function: Callable, rows: int) -> bool:
    """Return whether the compiled kernel ends sooner than plain Python, including loading and compiling.

    Rows of earlier calls in plain Python count too, so that all calls take at most twice the time of the better choice.
    """
    _rows_in_python[function] += rows
    many = _rows_in_python[function] >= ROWS_WORTH_COMPILING
    if not (many or rows >= ROWS_WORTH_LOADING) or not can_compile():
        return False
    return many or function in _ready or compiled(function) is function or _is_cached(compiled(function))


def _is_cached(compiled_kernel: Any) -> bool:
    """Return whether the disk cache has the kernel and no file with a kernel is newer; Numba checks only one file."""
    function, folder = compiled_kernel.py_func, compiled_kernel.stats.cache_path
    pattern = f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.py*.nbi"
    changed = max(Path(file).stat().st_mtime for file in {one.__code__.co_filename for one in tuple(_options)})
    with suppress(OSError):  # removed meanwhile
        return folder is not None and any(found.stat().st_mtime >= changed for found in Path(folder).glob(pattern))
    return False


def _prepare(function: Callable, arguments: tuple) -> Callable:
    """Return the kernel compiled for these arguments, before a call changes any of them."""
    fast = compiled(function)
    if fast is function:  # NUMBA_DISABLE_JIT leaves plain functions
        return lambda *arguments: _call_plain(function, _widened, arguments)
    import numba

    if not _is_cached(fast):
        _announce()
        with suppress(Exception):
            fast.recompile()  # nothing is compiled yet, so this only empties the cache
    fast.compile(tuple(numba.typeof(argument) for argument in arguments))
    return fast


def is_first_compilation() -> bool:
    """Return True the first time on this machine; a file in the folder of compiled kernels records it.

    Always True if no folder can be written: then each process compiles.
    """
    from numba.core.caching import FunctionCache

    try:
        folder = Path(FunctionCache(kernel).cache_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ppsim-has-compiled").touch(exist_ok=False)
    except FileExistsError:
        return False
    except (RuntimeError, OSError):  # Numba found no folder that it may write
        return True
    return True


@cache
def _announce() -> None:
    """Print once per machine that a compilation begins; loading is silent."""
    if is_first_compilation():
        say(_MESSAGE)


def _call_plain(function: Callable, changed: Callable[[np.ndarray], Any], arguments: tuple) -> Any:
    """Call a plain function with changed columns, then copy their values into the given columns."""
    plain = [_with_columns(changed, argument) for argument in arguments]
    result = function(*plain)
    _write_back(arguments, plain)
    return result


def _with_columns(changed: Callable[[np.ndarray], Any], argument: Any) -> Any:
    """Return a changed column, or a named tuple with its columns changed; return anything else as it is."""
    if isinstance(argument, tuple):
        return type(argument)(*(_with_columns(changed, one) for one in argument))
    return changed(argument) if isinstance(argument, np.ndarray) else argument


def _widened(column: np.ndarray) -> np.ndarray:
    """Return small integers as int64, as compiled code computes with them; NumPy's small integers would overflow."""
    return column.astype(np.int64) if column.dtype.kind in "iu" and column.itemsize < 8 else column


def _write_back(arguments: Iterable[Any], plain: Iterable[Any]) -> None:
    for argument, values in zip(arguments, plain, strict=True):
        if isinstance(argument, tuple):
            _write_back(argument, values)
        elif isinstance(argument, np.ndarray) and argument.flags.writeable:
            argument[:] = values
