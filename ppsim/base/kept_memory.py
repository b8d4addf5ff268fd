"""What is freed is kept for the next call: fresh memory takes more time than what is written to it.

Small blocks are kept by the C library, and large columns here. Their pages are offered to the system as long as nobody
uses them: it takes them back when it is short of memory, and until then they need not be asked for again.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from functools import cache
from itertools import count
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.host_memory import memory_bytes
from ppsim.base.units import parse_quantity

_LARGEST_BLOCK = 31 * 2**20  # glibc's limits follow blocks below 32 MiB
_LARGE = 2**22  # bytes of a column from which on it is mapped by itself
_PAGE = 2**21  # a large page of most systems
# Columns that begin at one place of their pages push each other out of the processor's caches, so each begins a small
# page and nine lines of the cache behind the last; that makes a walk over a million rows a tenth faster.
_STEP, _STEPS = 4096 + 9 * 64, 14
_ROOM = 1.5  # a column takes a kept block of up to so many times its size
_PART = 8  # one part in so many of the machine's memory is kept at most


def keep_memory(most: float | str) -> None:
    """Set how much memory of large columns that nobody uses any more is kept for the next ones.

    The memory of large schedules and timelines stays with the process when they go, because a system hands out fresh
    memory more slowly than a simulation fills it. As long as it is unused the system may take it back.

    Parameters
    ----------
    most : bytes
        A number, or text such as "2 GB". Default: an eighth of the machine's memory, or of its container's. 0 gives
        back at once all that is kept, and keeps nothing from then on.

    Raises
    ------
    ConfigError
        `most` is no size.
    """
    try:
        _kept.set_most(parse_quantity(most, "bytes"))
    except ConfigError as error:
        raise ConfigError(f"keep_memory: {error}") from None


def empty_column(shape: Any, dtype: Any) -> np.ndarray:
    """Like `np.empty`, in kept memory where it is large: what is read of it must have been written before."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    block = _kept.block(size + _STEP * _STEPS) if size >= _LARGE and _CAN_KEEP else None
    return np.empty(shape, dtype) if block is None else np.asarray(_Lease(block, shape, dtype))


def full_column(shape: Any, value: Any, dtype: Any) -> np.ndarray:
    """Like `np.full`, in kept memory where it is large."""
    column = empty_column(shape, dtype)
    column.fill(value)
    return column


def is_own_memory(base: Any) -> bool:
    """Whether an array with this base has memory to which no other way leads."""
    return base is None or isinstance(base, _Lease)


@cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB of freed memory, where it would give it back to the system at once.

    glibc keeps twice the largest block that it has given back (mallopt(3), M_TRIM_THRESHOLD), so it is given one;
    elsewhere nothing changes.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)


class _KeptBlocks:
    """Blocks that nobody uses, oldest first, of at most `most` bytes together.

    Nothing here waits, since an array may die anywhere, and no lock is left closed where an interrupt comes: what one
    call does to the list is whole for other threads, and a block that nobody holds is gone.
    """

    # What runs when an array dies reads no global: at the end of a process these may be gone before the array.
    _OFFER, _REFUSED = getattr(mmap, "MADV_FREE", 0), OSError

    def __init__(self, most: float | None = None):
        self.most = most  # a part of the machine's memory, which takes time to ask for, once there is a block
        self.blocks: list[mmap.mmap] = []

    def set_most(self, most: float) -> None:
        self.most = most
        self._drop_oldest()

    def block(self, size: int) -> mmap.mmap | None:
        """A block of at least `size` bytes, kept or fresh; None where the system has none."""
        if self.most is None:
            self.most = memory_bytes() / _PART
        fitting = [block for block in self.blocks if size <= len(block) <= _ROOM * size]
        for block in sorted(fitting, key=len):
            with suppress(ValueError):  # another thread has taken it
                self.blocks.remove(block)
                return block
        return self._fresh(-(-size // _PAGE) * _PAGE)

    def _fresh(self, size: int) -> mmap.mmap | None:
        try:
            block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError):
            self.blocks.clear()
            return None
        with suppress(AttributeError, OSError):  # a system, or a kernel, without large pages
            block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def keep(self, block: mmap.mmap) -> None:
        """Keep a block that nobody uses any more."""
        try:
            block.madvise(self._OFFER)
        except self._REFUSED:  # the kernel does not know what is asked for: the block goes
            return
        self.blocks.append(block)
        self._drop_oldest()

    def _drop_oldest(self) -> None:
        while self.most is not None and sum(map(len, self.blocks)) > self.most:
            del self.blocks[:1]


class _Lease:
    """A block as an array sees it; when the last array of it dies, the block is kept for others.

    NumPy reads `__array_interface__`. It opens no array for writing again whose base has nothing but that.
    """

    def __init__(self, block: mmap.mmap, shape: Any, dtype: np.dtype):
        self.block, self.kept = block, _kept
        address = np.frombuffer(block, np.uint8).__array_interface__["data"][0] + next(_turns) % _STEPS * _STEP
        shape = tuple(shape) if isinstance(shape, tuple) else (int(shape),)
        self.__array_interface__ = {"version": 3, "shape": shape, "typestr": dtype.str, "data": (address, False)}

    def __del__(self) -> None:
        self.kept.keep(self.block)


_CAN_KEEP = all(hasattr(mmap, name) for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MADV_FREE"))
_turns = count()
_kept = _KeptBlocks()
if _CAN_KEEP:  # what a process keeps is not used in its children, who would copy each page that they write to
    os.register_at_fork(after_in_child=lambda: _kept.__init__(_kept.most))
