"""Worker processes for simulations: each has a time limit, and the page's server stays responsive."""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from importlib import import_module
from multiprocessing.pool import Pool
from typing import Any

import anyio

POLL_SECONDS = 0.004
QUIET_SECONDS = 1.5  # the page's first requests come in this time; loading the compiled engine would delay them


class TooLateError(Exception):
    """A piece of work took longer than its limit."""


class BusyError(Exception):
    """More pieces of work wait than the server takes."""


class GoneError(Exception):
    """The client disconnected before the response."""


class TimedWorkers:
    """Pool of `count` processes; a process is ended if one piece of work takes longer than `seconds`."""

    def __init__(self, count: int, seconds: float, most_waiting: int):
        self.seconds, self.most = seconds, count + most_waiting
        self._context = multiprocessing.get_context("spawn")
        self._idle = [self._started() for _ in range(count)]
        self._free = anyio.Semaphore(count)
        self._asked = 0

    def _started(self) -> Pool:
        return self._context.Pool(1, initializer=_ready)

    async def run(self, work: Callable[..., Any], *arguments: Any, gone: Callable[[], Awaitable[bool]]) -> Any:
        """Return the result of `work`; raise TooLateError, BusyError, or GoneError as soon as `gone()` is true."""
        if self._asked >= self.most:
            raise BusyError
        self._asked += 1
        try:
            async with self._free:
                return await self._run(work, arguments, gone)
        finally:
            self._asked -= 1

    async def _run(self, work: Callable[..., Any], arguments: Any, gone: Callable[[], Awaitable[bool]]) -> Any:
        if await gone():
            raise GoneError
        pool = self._idle.pop()
        try:
            result = pool.apply_async(work, arguments)
            await self._wait(result.ready, gone)
        except BaseException:
            pool.terminate()
            pool = self._started()
            raise
        finally:
            self._idle.append(pool)
        return result.get()

    async def _wait(self, ready: Callable[[], bool], gone: Callable[[], Awaitable[bool]]) -> None:
        begun = asked = time.monotonic()
        while not ready():
            await anyio.sleep(POLL_SECONDS)
            now = time.monotonic()
            if now - begun > self.seconds:
                raise TooLateError
            if now - asked > 0.5:  # short work ends sooner than a new process starts
                asked = now
                if await gone():
                    raise GoneError

    def stop(self) -> None:
        """End all processes."""
        for pool in self._idle:
            pool.terminate()
            pool.join()
        self._idle = []


def _ready() -> None:
    """Prepare a new process: leave Ctrl-C to the server, load the modules, and later the compiled engine."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cases = import_module("ppsim.explorer.cases")
    loading = threading.Timer(QUIET_SECONDS, cases.load_engine)
    loading.daemon = True
    loading.start()
