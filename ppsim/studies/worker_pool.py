"""The worker pool: jobs run in this process, in processes that are replaced when they die, on Dask or on Slurm."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from os import PathLike
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.base.host import need
from ppsim.studies.store import Store

MAX_WORKERS = 4096  # a mistyped number must not fill a machine with processes
AT_ONCE = 64  # chunks handed to an executor that does not say how many workers it has
_DEATHS = ("KilledWorker", "UncompletedJobError")  # errors of Dask and submitit if a worker died
_POLL_SECONDS = 0.3
_END_SECONDS = 0.5  # maximum wait for the thread that manages the processes


class InProcess(Executor):
    """An executor that runs each call at once, in this process."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Return a future that is done; an error of the call is raised here."""
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def check_workers(workers: Any) -> None:
    """Raise ConfigError unless `workers` is a number of processes that a machine can have."""
    if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
        raise ConfigError(f"workers={shown(workers)} must be a whole number from 1 to {MAX_WORKERS}")


def check_executor(executor: Any) -> None:
    """Raise ConfigError unless `executor` is None, or has `submit` as an Executor does."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigError(f"executor={shown(executor)} must be a concurrent.futures.Executor")


class Workers(Executor):
    """Executor of processes on this machine; `replace` starts new ones if some died."""

    def __init__(self, workers: int | None = None):
        self.workers = workers or processors()
        self._pool = _pool(self.workers)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Run a call in one of the processes, as any executor does."""
        return self._pool.submit(fn, *args, **kwargs)

    def replace(self) -> None:
        """Start new processes instead of the old ones."""
        self.shutdown()
        self._pool = _pool(self.workers)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the processes at once, without waiting for running calls, and the thread that manages them.

        The thread must end here: Python's exit handler wakes it, and reports an error if it ends at that time.
        """
        processes, thread = list((self._pool._processes or {}).values()), _manager(self._pool)
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        if thread is not None:
            thread.join(_END_SECONDS)


class SlurmJobs(Executor):
    """Executor of jobs on a Slurm cluster, which submitit submits as arrays.

    `parameters` are those of submitit, such as slurm_partition.
    """

    workers = AT_ONCE

    def __init__(self, parameters: Mapping[str, Any], folder: str = "slurm-%j", cluster: str | None = None):
        submitit = need("submitit", "running on Slurm")
        self._jobs = submitit.AutoExecutor(folder=folder, cluster=cluster)
        try:
            self._jobs.update_parameters(**parameters)
        except (NameError, TypeError, ValueError) as error:
            raise ConfigError(f"--slurm: {error}; give submitit's parameters, such as slurm_partition=gpu") from None
        self._waiting: dict[Future, Any] = {}
        self._watch: threading.Thread | None = None

    def batch(self) -> AbstractContextManager:
        """Return a context in which all submitted calls become one job array."""
        return self._jobs.batch(allow_implicit_submissions=True)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Return a future that a thread completes when Slurm has ended the job."""
        future: Future = Future()
        self._waiting[future] = self._jobs.submit(fn, *args, **kwargs)
        if self._watch is None or not self._watch.is_alive():
            self._watch = threading.Thread(target=self._complete, daemon=True)
            self._watch.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Cancel the jobs that have not ended."""
        for future, job in list(self._waiting.items()):
            self._waiting.pop(future, None)
            job.cancel()

    def _complete(self) -> None:
        while self._waiting:
            time.sleep(_POLL_SECONDS)
            for future, job in list(self._waiting.items()):
                try:
                    if not job.done():
                        continue
                    future.set_result(job.result())
                except AttributeError:
                    continue  # the job's array has not been submitted yet
                except Exception as error:
                    future.set_exception(error)
                self._waiting.pop(future, None)


def dask_executor(address: str) -> Executor:
    """Return the executor of the Dask cluster at `address`; ConfigError if it cannot be reached."""
    distributed = need("distributed", "running on Dask")
    try:
        return distributed.Client(address, timeout="10s").get_executor()
    except (OSError, ValueError) as error:
        raise ConfigError(f"--dask {address}: cannot be reached: {error}; give tcp://HOST:8786") from None


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def capacity(executor: Executor) -> int:
    """Return the number of chunks that an executor works on at once."""
    known = getattr(executor, "workers", None) or getattr(executor, "_max_workers", None)
    return known if isinstance(known, int) else AT_ONCE


def is_death(error: BaseException) -> bool:
    """Return True if a future failed because its worker died, not because of the call."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ in _DEATHS


def as_one_batch(executor: Executor) -> AbstractContextManager:
    """Return a context in which an executor with `batch` submits all calls together."""
    batch = getattr(executor, "batch", None)
    return batch() if callable(batch) else nullcontext()  # type: ignore[return-value]


def _manager(pool: ProcessPoolExecutor) -> threading.Thread | None:
    return getattr(pool, "_executor_manager_thread", None)


def _pool(workers: int) -> ProcessPoolExecutor:
    # A fork starts in milliseconds with all modules loaded, and needs no `if __name__ == "__main__"` in a user's
    # script. It is not safe if other threads run.
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(os.getpid(),))


def _begin(parent: int) -> None:
    """Ignore Ctrl-C, which the parent handles, and end this process when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


FEW = 64  # fewer items finish before worker processes have started
MAX_CHUNK = 32
KILLS = 2
LEFT_OUT = f"left out: its worker died {KILLS} times; simulate it by itself to see why"

Outcome = dict[str, Any]  # plain values that a store can hold; {"refused": LEFT_OUT} for an item that is left out


@contextmanager
def open_resources(
    items: int, executor: Executor | None, workers: int | None, store: str | PathLike[str] | Store | None
) -> Iterator[tuple[Executor, Store | None]]:
    """Yield the executor and the result store for a number of items; at the end, close those that were opened here.

    Without an executor: `workers` processes of this machine, or this process for few items. Raises ConfigError for an
    invalid executor or number of workers, and for a store that cannot be opened.
    """
    if workers is not None:
        check_workers(workers)
    check_executor(executor)
    with ExitStack() as stack:
        if store is not None and not isinstance(store, Store):
            store = Store(store)
            stack.callback(store.close)
        if executor is None:
            executor = InProcess() if workers is None and items < FEW else Workers(workers)
            stack.callback(executor.shutdown)
        yield executor, store


class JobRunner:
    """Job runner: sends items to an executor in chunks; retries the items of a dead worker one at a time.

    Parameters
    ----------
    work : function of a list of items that returns the outcome of each
        Picklable, for other processes.
    items : list
    executor : Executor
    store : Store, optional
        Stored outcomes are not recomputed; new outcomes are stored.
    key : function of an item, optional
        Store key of its outcome; needed with a store.
    """

    def __init__(
        self,
        work: Callable[[list[Any]], list[Outcome]],
        items: Sequence[Any],
        executor: Executor,
        store: Store | None = None,
        key: Callable[[Any], str] = str,
    ):
        self.work, self.items, self.executor, self.store, self.key = work, items, executor, store, key
        self.keys: dict[int, str] = {}
        order = list(range(len(items)))
        size = max(1, min(MAX_CHUNK, len(order) // (4 * capacity(executor))))
        self.waiting = deque(order[first : first + size] for first in range(0, len(order), size))
        self.suspects: deque[list[int]] = deque()
        self.running: dict[Future, list[int]] = {}
        self.kills: Counter[int] = Counter()

    def in_order(self) -> Iterator[Outcome]:
        """Yield the outcome of every item in the order of the items, each as soon as all earlier ones are known."""
        early: dict[int, Outcome] = {}
        following = 0
        for index, outcome in self.outcomes():
            early[index] = outcome
            while following in early:
                yield early.pop(following)
                following += 1

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the index and outcome of every item when it is known; cancel the rest if the caller stops early."""
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
                    yield from self._store(chunk, future.result())
                elif is_death(error):
                    died = True
                    yield from self._suspect(chunk)
                else:
                    raise error
            if died and isinstance(self.executor, Workers):
                yield from self._replace_workers(self.executor)

    def _submit(self) -> Iterator[tuple[int, Outcome]]:
        """Submit chunks, and yield stored outcomes. A suspect is submitted alone, so that its death is identified."""
        if self.suspects:
            if not self.running:
                self._start(self.suspects.popleft())
            return
        found: list[tuple[int, Outcome]] = []
        most = 1 if isinstance(self.executor, InProcess) else 2 * capacity(self.executor)
        with as_one_batch(self.executor):
            while self.waiting and len(self.running) < most:
                known, chunk = self._known(self.waiting.popleft())
                found += known
                if chunk:
                    self._start(chunk)
                if len(found) >= MAX_CHUNK:
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
        """Return the stored outcomes of a chunk, and the items without one."""
        if self.store is None:
            return [], chunk
        for index in chunk:
            self.keys[index] = self.key(self.items[index])
        stored = self.store.find([self.keys[index] for index in chunk])
        known = [(index, stored[self.keys[index]]) for index in chunk if self.keys[index] in stored]
        return known, [index for index in chunk if self.keys[index] not in stored]

    def _store(self, chunk: list[int], outcomes: list[Outcome]) -> Iterator[tuple[int, Outcome]]:
        if self.store is not None:
            self.store.save({self.keys[index]: outcome for index, outcome in zip(chunk, outcomes, strict=True)})
        yield from zip(chunk, outcomes, strict=True)

    def _suspect(self, chunk: list[int]) -> Iterator[tuple[int, Outcome]]:
        """Requeue each item of a dead worker alone, to find the one that kills it; give up items after two deaths."""
        for index in chunk:
            self.kills[index] += 1
            if self.kills[index] < KILLS:
                self.suspects.append([index])
            else:
                yield index, {"refused": LEFT_OUT}

    def _replace_workers(self, workers: Workers) -> Iterator[tuple[int, Outcome]]:
        """Collect all futures, which fail in a pool that lost a process, and then start new processes."""
        wait(self.running)
        for future, chunk in list(self.running.items()):
            if future.exception() is None:
                yield from self._store(chunk, future.result())
            else:
                yield from self._suspect(chunk)
        self.running.clear()
        workers.replace()
