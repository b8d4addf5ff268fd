"""A crew: many items of work through any executor, in chunks, with results kept as they come and the dead replaced."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import ExitStack, contextmanager
from os import PathLike
from typing import Any

from ppsim.studies.executors import Here, Workers, as_one_batch, check_executor, check_workers, is_death, places
from ppsim.studies.store import Store

FEW = 64  # items that are done before other processes have started
MOST_IN_CHUNK = 32
KILLS = 2
LEFT_OUT = f"left out: its worker died {KILLS} times; simulate it by itself to see why"

Outcome = dict[str, Any]  # what a store can keep; of an item that is left out {"refused": LEFT_OUT}


@contextmanager
def means(
    items: int, executor: Executor | None, workers: int | None, store: str | PathLike[str] | Store | None
) -> Iterator[tuple[Executor, Store | None]]:
    """Who works on so many items and where results are kept; what was not given opened is closed at the end.

    Without an executor: `workers` processes of this machine, or this process alone where the items are few. Raises
    ConfigError for an executor or a number of workers that is none, and for a store that cannot be opened.
    """
    if workers is not None:
        check_workers(workers)
    check_executor(executor)
    with ExitStack() as stack:
        if store is not None and not isinstance(store, Store):
            store = Store(store)
            stack.callback(store.close)
        if executor is None:
            executor = Here() if workers is None and items < FEW else Workers(workers)
            stack.callback(executor.shutdown)
        yield executor, store


class Crew:
    """Items on their way through an executor, in chunks; those of a worker that died are done again one by one.

    Parameters
    ----------
    work : function of a list of items that returns the outcome of each
        It travels to other processes.
    items : list
    executor : Executor
    store : Store, optional
        What it holds is not done again, and what is done is kept in it.
    key : function of an item, optional
        The text under which its outcome is kept; needed with a store.
    beside : function of an item, optional
        Items of equal text go to one worker together as far as chunks allow it.
    """

    def __init__(
        self,
        work: Callable[[list[Any]], list[Outcome]],
        items: Sequence[Any],
        executor: Executor,
        store: Store | None = None,
        key: Callable[[Any], str] = str,
        beside: Callable[[Any], str] = lambda _: "",
    ):
        self.work, self.items, self.executor, self.store, self.key = work, items, executor, store, key
        self.keys: dict[int, str] = {}
        order = sorted(range(len(items)), key=lambda index: beside(items[index]))
        size = max(1, min(MOST_IN_CHUNK, len(order) // (4 * places(executor))))
        self.waiting = deque(order[first : first + size] for first in range(0, len(order), size))
        self.suspects: deque[list[int]] = deque()
        self.running: dict[Future, list[int]] = {}
        self.kills: Counter[int] = Counter()

    def in_order(self) -> Iterator[Outcome]:
        """The outcome of every item, in the order of the items; each as soon as those before it are there."""
        early: dict[int, Outcome] = {}
        following = 0
        for index, outcome in self.outcomes():
            early[index] = outcome
            while following in early:
                yield early.pop(following)
                following += 1

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Index and outcome of every item, as they come; what has not begun when the caller leaves is given up."""
        try:
            yield from self._outcomes()
        finally:
            for future in self.running:
                future.cancel()

    def _outcomes(self) -> Iterator[tuple[int, Outcome]]:
        while self.waiting or self.suspects or self.running:
            yield from self._submit()
            done = wait(self.running, return_when=FIRST_COMPLETED).done if self.running else ()
            died = False
            for future in done:
                chunk = self.running.pop(future)
                error = future.exception()
                if error is None:
                    yield from self._keep(chunk, future.result())
                elif is_death(error):
                    died = True
                    yield from self._suspect(chunk)
                else:
                    raise error
            if died and isinstance(self.executor, Workers):
                yield from self._replace_workers(self.executor)

    def _submit(self) -> Iterator[tuple[int, Outcome]]:
        """Hand out chunks; what the store holds already is yielded. A suspect runs while nothing else does."""
        if self.suspects:
            if not self.running:
                self._start(self.suspects.popleft())
            return
        found: list[tuple[int, Outcome]] = []
        most = 1 if isinstance(self.executor, Here) else 2 * places(self.executor)
        with as_one_batch(self.executor):
            while self.waiting and len(self.running) < most:
                known, chunk = self._known(self.waiting.popleft())
                found += known
                if chunk:
                    self._start(chunk)
                if len(found) >= MOST_IN_CHUNK:
                    break
        yield from found

    def _start(self, chunk: list[int]) -> None:
        try:
            future = self.executor.submit(self.work, [self.items[index] for index in chunk])
        except Exception as error:
            if not is_death(error):
                raise
            future = Future()
            future.set_exception(error)
        self.running[future] = chunk

    def _known(self, chunk: list[int]) -> tuple[list[tuple[int, Outcome]], list[int]]:
        """Of a chunk what the store holds, and the rest."""
        if self.store is None:
            return [], chunk
        for index in chunk:
            self.keys[index] = self.key(self.items[index])
        held = self.store.find([self.keys[index] for index in chunk])
        known = [(index, held[self.keys[index]]) for index in chunk if self.keys[index] in held]
        return known, [index for index in chunk if self.keys[index] not in held]

    def _keep(self, chunk: list[int], outcomes: list[Outcome]) -> Iterator[tuple[int, Outcome]]:
        if self.store is not None:
            self.store.keep({self.keys[index]: outcome for index, outcome in zip(chunk, outcomes, strict=True)})
        yield from zip(chunk, outcomes, strict=True)

    def _suspect(self, chunk: list[int]) -> Iterator[tuple[int, Outcome]]:
        """Of a worker that died: which of its items it was, each shows by itself."""
        for index in chunk:
            self.kills[index] += 1
            if self.kills[index] < KILLS:
                self.suspects.append([index])
            else:
                yield index, {"refused": LEFT_OUT}

    def _replace_workers(self, workers: Workers) -> Iterator[tuple[int, Outcome]]:
        """A pool that lost a process fails whatever it has: collect that, then start new processes."""
        wait(self.running)
        for future, chunk in list(self.running.items()):
            if future.exception() is None:
                yield from self._keep(chunk, future.result())
            else:
                yield from self._suspect(chunk)
        self.running.clear()
        workers.replace()
