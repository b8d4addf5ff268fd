"""The worker pool: jobs run in this process, in processes that are replaced when they die, on Dask or on Slurm."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from multiprocessing import connection
from os import PathLike
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError, PpsimError, shown
from ppsim.base.files import note_read, noting_reads
from ppsim.base.host import need, signals_blocked
from ppsim.base.progress import say
from ppsim.base.rules import argument, whole_number
from ppsim.studies.store import Store, noting_basis

MAX_WORKERS = 4096  # a mistyped number must not fill a machine with processes
UNKNOWN_CAPACITY = 64  # chunks that an executor gets at once if it does not say how many workers it has
FEW = 64  # fewer items finish before worker processes have started
MAX_CHUNK = 32  # items of one call of an executor
DEATHS = 4  # workers that an item may kill when it runs alone, until it is given up
_WORKER_DIED = ("KilledWorker", "UncompletedJobError")  # errors of Dask and submitit
_POLL_SECONDS = 0.3
_ENDING = {getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)}
_END_SECONDS = 0.5  # maximum wait for the thread that manages the processes
_LEFT_OUT = "left out: "
_REPEAT = "repeat the call to go on: a store keeps the results so far"
_RAISED = re.compile(r"[\w.]+(Error|Exception|Interrupt)\b")  # the line of a traceback that names the error

Outcome = dict[str, Any]  # plain values that a store can hold; {"refused": reason} for an item that is given up


class InProcess(Executor):
    """An executor that runs each call at once, in this process."""

    workers = 1

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Return a future that is done; an error of the call is raised here."""
        future: Future = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Workers(Executor):
    """Executor of processes on this machine; `serve` starts new ones if some died."""

    def __init__(self, workers: int | None = None):
        self.workers = self._processes = workers or processors()
        self._pool = _pool(self.workers)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        """Run a call in one of the processes, as any executor does."""
        with signals_blocked(_ENDING):  # until `_set_up_worker` runs in a process that this starts
            return self._pool.submit(fn, *args, **kwargs)

    def serve(self, processes: int) -> None:
        """Have this number of processes; start new ones after a shutdown, or if the number changes."""
        if processes != self._processes:
            self.shutdown()
            self._pool, self._processes = _pool(processes), processes

    def dead(self) -> list[Any]:
        """Return the processes that have ended, although no call ends one."""
        processes = {process.sentinel: process for process in self._started()}
        return [processes[ended] for ended in connection.wait(list(processes), timeout=0)]  # type: ignore[index]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """End the processes at once, without waiting for running calls, and the thread that manages them.

        The thread must end here: Python's exit handler waits for it. It would wait for ever for the rest of a result
        whose process died while sending it, unless the pipe of results is closed.
        """
        processes, results = self._started(), getattr(self._pool, "_result_queue", None)
        thread: threading.Thread | None = getattr(self._pool, "_executor_manager_thread", None)
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._processes = 0
        for process in processes:
            process.kill()
        if thread is not None:
            thread.join(_END_SECONDS)
            if thread.is_alive() and results is not None:
                results._writer.close()
                thread.join(_END_SECONDS)

    def _started(self) -> list[Any]:
        return list((self._pool._processes or {}).values())


class SlurmJobs(Executor):
    """Executor of jobs on a Slurm cluster, which submitit submits as arrays.

    `parameters` are those of submitit, such as slurm_partition.
    """

    def __init__(self, parameters: Mapping[str, Any], folder: str = "slurm-%j", cluster: str | None = None):
        submitit = need("submitit", "running on Slurm")
        try:
            self._jobs = submitit.AutoExecutor(folder=folder, cluster=cluster)
            self._jobs.update_parameters(**parameters)
        except OSError as error:
            raise ConfigError(f"--slurm: {folder}: cannot be written: {error.strerror}; give another folder") from None
        except (AssertionError, NameError, TypeError, ValueError) as error:
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
            with suppress(Exception):  # it may have ended meanwhile, or never have been submitted
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
    return known if isinstance(known, int) else UNKNOWN_CAPACITY


def is_death(error: BaseException | None) -> bool:
    """Return True if a future failed because its worker died, not because of the call."""
    timed_out = type(error).__name__ == "FailedJobError" and "UncompletedJobError" in str(error)
    return timed_out or isinstance(error, BrokenExecutor) or type(error).__name__ in _WORKER_DIED


def _pool(workers: int) -> ProcessPoolExecutor:
    # A fork starts in milliseconds with all modules loaded, and needs no `if __name__ == "__main__"` in a user's
    # script. It is not safe if other threads run.
    can_fork = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    context = multiprocessing.get_context("fork" if can_fork else "spawn")
    with signals_blocked(_ENDING):  # multiprocessing starts a process that must outlive a hangup
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_set_up_worker, initargs=(os.getpid(),))


def _set_up_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, end at any other signal, and end when the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _ENDING - {signal.SIGINT}:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # the parent's handler would only end the running call
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
    threading.Thread(target=_end_with_parent, args=(parent,), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os._exit(1)


def is_left_out(refused: str | None) -> bool:
    """Return whether an item has no outcome because its worker died each time."""
    return refused is not None and refused.startswith(_LEFT_OUT)


def _cause_of_death(error: BaseException | None, processes: Sequence[Any]) -> str:
    """Return how a worker died: its signal or exit status if it is a process of this machine."""
    for status in (process.exitcode for process in processes):
        if status is not None:
            if status == -9:
                return "killed by SIGKILL, as a machine short of memory does"
            return f"killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    return _sentence(error) if error is not None else "killed"


def _sentence(error: BaseException) -> str:
    """Return an error as one line; of a traceback in its message the last line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _RAISED.match(line)]
    return f"{type(error).__name__}: {(raised[-1:] or lines[:1] or ['no message'])[0]}"


@contextmanager
def open_resources(
    items: int, executor: Executor | None, workers: int | None, store: str | PathLike[str] | Store | None
) -> Iterator[tuple[Executor, Store | None]]:
    """Yield the executor and the result store for a number of items; at the end, close those that were opened here.

    Without an executor: `workers` processes of this machine, or this process for few items. Raises ConfigError for an
    invalid executor or number of workers, and for a store that cannot be opened.
    """
    if workers is not None:
        argument("workers", workers, whole_number(1, MAX_WORKERS))
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ConfigError(f"executor={shown(executor)} must be a concurrent.futures.Executor")
    with ExitStack() as stack:
        if store is not None and not isinstance(store, Store):
            store = Store(store)
            stack.callback(store.close)
        if executor is None:
            executor = InProcess() if workers is None and items < FEW else Workers(workers)
            stack.callback(executor.shutdown)
        yield executor, store


def _run_chunk(work: Callable[[Any], Outcome], items: list[Any]) -> tuple[list[tuple[Outcome, Any]], list[Path]]:
    """Return each item's outcome with its basis, and all files that were read, for the process that asked.

    A basis is the digest of each file that the outcome follows from; None if the outcome must not be stored.
    """
    read, found = list[Path](), list[tuple[Outcome, Any]]()
    with noting_reads(read.append):
        for item in items:
            with noting_basis() as basis:
                outcome = work(item)
            found.append((outcome, basis.files if basis.is_lasting else None))
    return found, [*dict.fromkeys(read)]


class JobRunner:
    """Job runner: sends items to an executor in chunks; retries the items of a dead worker one at a time.

    A death counts against an item only if the item ran alone: otherwise another item may have killed the worker.

    Parameters
    ----------
    work : function of an item that returns its outcome
        Picklable, for other processes.
    items : list
    executor : Executor
    store : Store, optional
        Stored outcomes are not recomputed; new outcomes are stored if they follow from the item, and from files, alone.
    key : function of an item, optional
        Store key of its outcome; needed with a store.
    place : str
        Place of the config, which names files relative to it.
    files : mapping of path to digest, optional
        Files from which all outcomes follow, if they were read before.
    """

    def __init__(
        self, work: Callable[[Any], Outcome], items: Sequence[Any], executor: Executor,
        store: Store | None = None, key: Callable[[Any], str] = str, place: str = "",
        files: Mapping[str, str | None] | None = None,
    ):  # fmt: skip
        self.work, self.items, self.executor, self.store, self.key = work, items, executor, store, key
        self.place, self.files = place, files or {}
        self.keys: dict[int, str] = {}
        order = list(range(len(items)))
        size = max(1, min(MAX_CHUNK, len(order) // (4 * capacity(executor))))
        self.waiting = deque(order[first : first + size] for first in range(0, len(order), size))
        self.suspects: deque[int] = deque()  # items whose worker died
        self.running: dict[Future, list[int]] = {}
        self.alone = False  # whether the running item is a suspect
        self.deaths: Counter[int] = Counter()  # by item: workers that died when it ran alone

    def in_order(self) -> Iterator[Outcome]:
        """Yield the outcome of every item in the order of the items, each as soon as all earlier ones are known.

        Cancel the rest if the caller stops early.
        """
        early: dict[int, Outcome] = {}
        following = 0
        try:
            for index, outcome in self._outcomes():
                early[index] = outcome
                while following in early:
                    yield early.pop(following)
                    following += 1
        except PpsimError:
            raise
        except Exception as error:
            if isinstance(self.executor, InProcess | Workers):
                raise  # a fault of the program
            name = type(self.executor).__name__
            raise ConfigError(f"the executor {name} failed: {_sentence(error)}; {_REPEAT}") from error
        finally:
            for future in self.running:
                future.cancel()

    def _outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Yield the index and outcome of every item when it is known."""
        has_warned, client = False, getattr(self.executor, "_client", None)  # of a Dask cluster
        while self.waiting or self.suspects or self.running:
            yield from self._submit()
            done = wait(self.running, _POLL_SECONDS, FIRST_COMPLETED).done
            if getattr(client, "status", None) == "closed":  # futures never end without the scheduler
                self.running.clear()  # they cannot be cancelled
                with suppress(Exception):
                    self.executor.shutdown(wait=False)  # a later shutdown would wait for them for ever
                raise ConfigError(f"the Dask scheduler is gone; start it, and {_REPEAT}")
            if not done and not has_warned and not getattr(client, "_scheduler_identity", {}).get("workers", True):
                say("ppsim: the Dask cluster has no worker; waiting (Ctrl-C stops)")
                has_warned = True
            dead = []
            if isinstance(self.executor, Workers):
                dead = self.executor.dead()
                if dead or any(is_death(_failure(future)) for future in done):
                    self.executor.shutdown()  # a pool that lost a process does no more work
                    done = set(self.running)
            for future in done:
                chunk, error = self.running.pop(future), _failure(future)
                if error is None:
                    found, read = future.result()
                    for path in read:
                        note_read(path)
                    self._save(chunk, found)
                    yield from zip(chunk, (outcome for outcome, _ in found), strict=True)
                elif is_death(error):
                    yield from self._suspect(chunk, _cause_of_death(error, dead))
                else:
                    raise error

    def _submit(self) -> Iterator[tuple[int, Outcome]]:
        """Submit chunks, and yield stored outcomes. A suspect is submitted alone, so that its death is identified."""
        if self.running and (self.suspects or self.alone):
            return
        self.alone = bool(self.suspects)
        if isinstance(self.executor, Workers):
            self.executor.serve(1 if self.alone else self.executor.workers)
        if self.alone:
            item = self.suspects.popleft()
            time.sleep(_POLL_SECONDS * self.deaths[item])  # what killed its worker may pass
            self._start([item])
            return
        stored: list[tuple[int, Outcome]] = []
        limit = 1 if isinstance(self.executor, InProcess) else 2 * capacity(self.executor)
        with getattr(self.executor, "batch", nullcontext)():  # all calls become one job array
            while self.waiting and len(self.running) < limit and len(stored) < MAX_CHUNK:
                known, chunk = self._split_stored(self.waiting.popleft())
                stored += known
                if chunk:
                    self._start(chunk)
        yield from stored

    def _start(self, chunk: list[int]) -> None:
        try:
            future = self.executor.submit(_run_chunk, self.work, [self.items[index] for index in chunk])
        except Exception as error:
            if not is_death(error):
                raise
            future = Future()
            future.set_exception(error)
        self.running[future] = chunk

    def _split_stored(self, chunk: list[int]) -> tuple[list[tuple[int, Outcome]], list[int]]:
        """Return the stored outcomes of a chunk, and the items without one."""
        if self.store is None:
            return [], chunk
        for index in chunk:
            self.keys[index] = self.key(self.items[index])
        stored = self.store.find([self.keys[index] for index in chunk], self.place)
        known = [(index, stored[self.keys[index]]) for index in chunk if self.keys[index] in stored]
        return known, [index for index in chunk if self.keys[index] not in stored]

    def _save(self, chunk: list[int], found: list[tuple[Outcome, Any]]) -> None:
        """Store the outcomes of a chunk that have a basis."""
        if self.store is not None and None not in self.files.values():
            kept = [(self.keys[index], {**self.files, **basis}, outcome)
                    for index, (outcome, basis) in zip(chunk, found, strict=True) if basis is not None]  # fmt: skip
            self.store.save(kept, self.place)

    def _suspect(self, chunk: list[int], cause: str) -> Iterator[tuple[int, Outcome]]:
        """Requeue each item of a dead worker alone, to find the one that kills it; give up an item after `DEATHS`."""
        for index in chunk:
            self.deaths[index] += self.alone
            if self.deaths[index] < DEATHS:
                self.suspects.append(index)
            else:
                died = f"its worker died {DEATHS} times while it ran alone ({cause}); repeat the call to retry it"
                yield index, {"refused": _LEFT_OUT + died}


def _failure(future: Future) -> BaseException | None:
    """Return why a call failed; a death if its worker was ended before the call did."""
    if future.cancelled() or not future.done():
        return BrokenExecutor("its pool was closed")
    return future.exception()
