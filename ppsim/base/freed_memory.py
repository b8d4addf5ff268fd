"""What is freed is kept for the next call."""

from functools import cache

import numpy as np

_LARGEST_BLOCK = 31 * 2**20  # glibc's limits follow blocks below 32 MiB


@cache
def keep_freed_memory() -> None:
    """Let the C library keep up to 64 MB of freed memory, where it would give it back to the system at once.

    Pages that the system hands out anew cost more time than what is written to them. glibc keeps twice the largest
    block that it has given back (mallopt(3), M_TRIM_THRESHOLD), so it is given one; elsewhere nothing changes.
    """
    np.empty(_LARGEST_BLOCK, np.uint8)
