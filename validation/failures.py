"""Says once which rank broke a replay, from what each rank leaves in torchrun's store."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

import torch

from ppsim import PpsimError

STOPPING = {signal.SIGINT, signal.SIGTERM}
PATIENCE = 1.0  # seconds at most in which the other ranks notice a failure too
SOME_RANK = -1
LONGEST_LOOK = 3.0  # seconds after which the store is given up


class ReplayError(Exception):
    """The replay cannot run as asked, or broke off; the message is for the person who started it."""


class LostPeerError(ReplayError):
    """The connection to another rank failed."""

    def __init__(self, peer: int, reason: str):
        super().__init__(f"the connection to rank {peer} failed: {reason}")
        self.peer = peer


class Watch:
    """Ends the process when it fails or is stopped, or its launcher is gone, with one clear message of all ranks.

    `patience` is how many seconds a failed rank waits for what the others have to say.
    """

    def __init__(self, rank: int, world: int, patience: float = PATIENCE):
        self.rank, self.world, self.patience = rank, world, min(patience, PATIENCE)
        self.store: Any = None  # torchrun's, once this rank has joined
        self.ending = threading.Lock()

    def start(self) -> None:
        """Take signals in a thread of its own, since the main thread may be waiting inside the backend.

        Call this before any other thread starts.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
        threading.Thread(target=self._await_stop, daemon=True).start()
        if "TORCHELASTIC_RUN_ID" in os.environ:
            threading.Thread(target=self._await_end_of, args=(os.getppid(),), daemon=True).start()

    def say(self, text: str) -> None:
        """A line on stderr, from rank 0 alone."""
        if self.rank == 0:
            say(text)

    def fail(self, error: BaseException) -> None:
        """Report `error` and end the process with status 1; nothing of torch is torn down, as that could wait."""
        with self.ending:
            self._end(_sentence(error), _lost_rank(error))

    def _await_stop(self) -> None:
        stopped = signal.sigwait(STOPPING)
        with self.ending:
            self._end(INTERRUPTED if stopped == signal.SIGINT else "", None)

    def _await_end_of(self, launcher: int) -> None:
        """A launcher that was killed stops nobody."""
        while os.getppid() == launcher:
            time.sleep(self.patience / 2)
        with self.ending:
            self._end(LAUNCHER_GONE, None)

    def _end(self, text: str, lost: int | None) -> None:
        threading.Thread(target=self._give_up, daemon=True).start()
        try:
            if self.store is None:
                self.say(f"broken off: {text or UNKNOWN}")
            else:
                self._report(self.store, text, lost)
        except (RuntimeError, OSError):
            self.say(f"broken off: {text or UNKNOWN}")
        finally:
            sys.stderr.flush()
            os._exit(1)

    def _give_up(self) -> None:
        time.sleep(self.patience + LONGEST_LOOK)
        self.say(f"broken off: {UNKNOWN}")
        os._exit(1)

    def _report(self, store: Any, text: str, lost: int | None) -> None:
        """Leave this rank's report and wait for the others'; the lowest that reports says what they come to."""
        store.set(f"failure/{self.rank}", f"{'' if lost is None else lost}|{text}")
        time.sleep(self.patience)
        found = {}
        for rank in range(self.world):
            if store.check([f"failure/{rank}"]):
                peer, _, said = store.get(f"failure/{rank}").decode(errors="replace").partition("|")
                found[rank] = (int(peer) if peer else None, said)
        if self.rank == min(found) and store.add("said", 1) == 1:
            say(f"broken off: {conclusion(found, self.world)}")


def say(text: str) -> None:
    """A line on stderr."""
    print(f"replay: {text}", file=sys.stderr, flush=True)


INTERRUPTED = "interrupted"
LAUNCHER_GONE = "the launcher was killed"
UNKNOWN = "a rank has died or the launcher was interrupted; torchrun's last lines name the rank"


def _sentence(error: BaseException) -> str:
    """The first line of what an error says, with its type where that does not speak for itself."""
    text = (str(error).splitlines() or [""])[0]
    known = isinstance(error, ReplayError | PpsimError | OSError | RuntimeError)
    return text if known and text else f"{type(error).__name__}: {text}".removesuffix(": ")


def _lost_rank(error: BaseException) -> int | None:
    """The rank without which this one could not go on: `SOME_RANK` where the backend does not say which."""
    if isinstance(error, LostPeerError):
        return error.peer
    return SOME_RANK if isinstance(error, RuntimeError) and not isinstance(error, torch.OutOfMemoryError) else None


def conclusion(reports: dict[int, tuple[int | None, str]], world: int) -> str:
    """What went wrong, from each rank's (rank that it lost, message).

    A rank that failed by itself lost none; one that was stopped has no message; a rank that says nothing is gone.
    """
    if any(text == INTERRUPTED for _, text in reports.values()):
        return INTERRUPTED
    spoke = sorted(rank for rank, (_, text) in reports.items() if text)
    own = [f"rank {rank}: {reports[rank][1]}" for rank in spoke if reports[rank][0] is None]
    silent = set(range(world)) - set(reports) if reports else set()
    gone = {lost for lost, _ in reports.values() if lost is not None and lost in silent} or silent
    if own or not gone:
        return next(iter(own + [f"rank {rank}: {reports[rank][1]}" for rank in spoke]), UNKNOWN)
    said = " and ".join(f"rank {rank}" for rank in sorted(gone)) + " died or does not answer"
    witness = next((rank for rank in spoke if reports[rank][0] in gone), next(iter(spoke), None))
    return said if witness is None else f"{said} (noticed by rank {witness}: {reports[witness][1]})"
