"""What benchmarks measure time by."""

from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage


def processor_seconds() -> float:
    """Seconds of the processor that this process and those that it has waited for have used.

    Where the machine does nothing else this is what a clock shows but for waits for the disk; other work on it shows
    much less than on a clock.
    """
    used = getrusage(RUSAGE_SELF), getrusage(RUSAGE_CHILDREN)
    return sum(each.ru_utime + each.ru_stime for each in used)
