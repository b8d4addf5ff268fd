"""Messages for people on stderr, and a progress bar for long work, shown only on a terminal."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

from ppsim.base.errors import visible

Item = TypeVar("Item")
SECONDS_BEFORE_SHOWING = 1.0


def say(message: str) -> None:
    """Print a message on stderr; control characters become visible."""
    if sys.stderr is not None:  # print would take stdout instead
        with suppress(OSError, ValueError):  # stderr may be closed
            print(visible(message), file=sys.stderr)


class Bar:
    """Progress bar with the items done, the rate and the time left; it appears after one second, or `at_once`.

    `total` is None as long as the number of items is not known.
    """

    def __init__(self, label: str, total: int | None, at_once: bool = False):
        self.label, self.total = label, total
        self._began = time.monotonic()
        self._shown: Any = None
        self._on_terminal = sys.stderr.isatty()
        if at_once and self._on_terminal:
            self._shown = self._started_bar()

    def update(self, done: int) -> None:
        """Show that `done` items are done."""
        if not self._on_terminal:
            return
        if self._shown is None and time.monotonic() - self._began > SECONDS_BEFORE_SHOWING:
            self._shown = self._started_bar()
        if self._shown is not None:
            rate = done / (time.monotonic() - self._began)
            self._shown.update(self._shown.task_ids[0], completed=done, total=self.total, rate=f"{rate:,.0f}/s")

    def _started_bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(elapsed_when_finished=True), TextColumn("left"),
        )  # fmt: skip
        shown = Progress(*columns, console=Console(stderr=True), transient=True)
        shown.add_task(self.label, total=self.total, rate="")
        shown.start()
        return shown

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()


def track(items: Iterable[Item], total: int, label: str) -> Iterator[Item]:
    """Yield `items` and show how many of `total` are done."""
    with Bar(label, total) as bar:
        for done, item in enumerate(items):
            bar.update(done)
            yield item
