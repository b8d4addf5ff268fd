"""Memory and signals of this machine, libraries that a core install leaves out, and notes for callers."""

import os
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.units import value_text

_DEFAULT_BYTES = 2**33
_CONTAINER_LIMIT = Path("/sys/fs/cgroup/memory.max")


class Notes:
    """Callbacks of the `with` blocks around the code that this thread runs."""

    def __init__(self, name: str):
        self._callbacks: ContextVar[tuple[Callable[..., None], ...]] = ContextVar(name, default=())

    def note(self, *what: Any) -> None:
        """Call each callback with these arguments."""
        for callback in self._callbacks.get():
            callback(*what)

    @contextmanager
    def noting(self, callback: Callable[..., None]) -> Iterator[None]:
        """Add a callback inside the `with` block."""
        before = self._callbacks.set((*self._callbacks.get(), callback))
        try:
            yield
        finally:
            self._callbacks.reset(before)


_failures, _calibrations = Notes("failures"), Notes("calibrations")
# Notes that this machine, not the input, decides the outcome, which is then never stored, even if the error is caught.
note_failure, noting_failures = _failures.note, _failures.noting
# Notes the name of the calibration of a config that was read.
note_calibration, noting_calibrations = _calibrations.note, _calibrations.noting


@contextmanager
def signals_blocked(numbers: Collection[int]) -> Iterator[None]:
    """Let signals wait inside the `with` block; processes that start there inherit this."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@cache
def memory_bytes() -> int:
    """Return the bytes of memory that a process may take: the machine's or its container's; 8 GiB if unknown."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # the system call is missing or knows no answer
        return _DEFAULT_BYTES
    try:
        return min(whole, int(_CONTAINER_LIMIT.read_text()))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return whole


def require_memory(what: str, needed: float, instead: str) -> None:
    """Raise ConfigError if `what` needs more bytes than this machine has; `instead` names an alternative."""
    if needed > memory_bytes():
        note_failure()
        need, there = value_text(float(needed), "bytes"), value_text(float(memory_bytes()), "bytes")
        raise ConfigError(f"{what} needs about {need} of memory, and this machine has {there}; {instead}")


DISTRIBUTION = "pipeline-ppsim"  # name on the package index, whose project "ppsim" simulates population protocols
EXTRA_OF = {
    "pandas": "notebook",
    "plotly": "notebook",
    "ortools": "solver",
    "distributed": "dask",
    "submitit": "slurm",
    "starlette": "explore",
    "uvicorn": "explore",
}


def need(module: str, purpose: str) -> Any:
    """Return the module, imported now; ConfigError names the pip command if its library is not installed."""
    try:
        return import_module(module)
    except ImportError:
        note_failure()
        library = module.partition(".")[0]
        raise ConfigError(f"{purpose} needs {library}: pip install '{DISTRIBUTION}[{EXTRA_OF[library]}]'") from None
