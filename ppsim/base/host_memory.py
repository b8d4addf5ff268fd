"""How much memory this machine has."""

import os
from functools import cache
from pathlib import Path

_UNKNOWN = 2**33
_LIMIT_OF_CONTAINER = Path("/sys/fs/cgroup/memory.max")


@cache
def memory_bytes() -> int:
    """Bytes of memory that a process may take: the machine's, or the limit of its container; 8 GiB where unknown."""
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # no such system call, or not known
        return _UNKNOWN
    try:
        return min(whole, int(_LIMIT_OF_CONTAINER.read_text()))
    except (OSError, ValueError):  # no container, or no limit ("max")
        return whole
