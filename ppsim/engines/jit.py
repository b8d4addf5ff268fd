"""Compiling with Numba: on first call, kept on disk where that is possible, announced on stderr where it takes time."""

import sys
from collections.abc import Callable
from typing import Any

import numba
from numba.core import event

MESSAGE = "ppsim: compiling the fast engine; this is done once on a machine\n"


def compiled(function: Callable) -> Callable:
    """`function` compiled by Numba; without a cache on disk where no directory can be written.

    Sums and products keep the order written: no fast-math, so results equal those of plain Python bit for bit.
    """
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except (RuntimeError, OSError):  # Numba found no directory that it may write
        return numba.njit(nogil=True)(function)


def prepare(kernel: Any, *arguments: Any) -> Callable:
    """The kernel, compiled for these arguments or loaded from the cache, without running it."""
    if not hasattr(kernel, "compile"):  # NUMBA_DISABLE_JIT leaves plain functions
        return kernel
    signature = tuple(numba.typeof(argument) for argument in arguments)
    with event.install_listener("numba:compile", _announcement):
        try:
            kernel.compile(signature)
        except (
            Exception
        ):  # the cache is full, damaged or was taken away since; a fault of the code comes up again below
            kernel = numba.njit(nogil=True)(kernel.py_func)
            kernel.compile(signature)
    return kernel


class _Announcement(event.Listener):
    """Says once that a compilation has begun; loading from the cache is silent."""

    def __init__(self) -> None:
        self.made = False

    def on_start(self, event: Any) -> None:
        if not self.made:
            sys.stderr.write(MESSAGE)
            sys.stderr.flush()
            self.made = True

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announcement = _Announcement()
