"""A progress bar on stderr for work that takes long, and only where a person looks at a terminal."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
SECONDS_BEFORE_SHOWING = 1.0


def track(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    """Yield `items`; once a second has passed, show how many of `total` are done."""
    if not sys.stderr.isatty():
        yield from items
        return
    began = time.monotonic()
    bar = None
    try:
        for done, item in enumerate(items):
            if bar is None and time.monotonic() - began > SECONDS_BEFORE_SHOWING:
                bar = _bar(label, total)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done)
            yield item
    finally:
        if bar is not None:
            bar.stop()


def _bar(label: str, total: int):
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    bar.add_task(label, total=total)
    bar.start()
    return bar
