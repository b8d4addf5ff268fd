"""One worker process of the explorer: it does one piece of work at a time, and ends as soon as its server does."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from typing import IO

QUIET_SECONDS = 1.5  # the page sends its first requests meanwhile; loading the compiled engine would delay them
_LENGTH_BYTES = 8


def write_frame(pipe: IO[bytes], content: bytes) -> None:
    """Write one message; OSError if nobody reads the pipe any more."""
    pipe.write(len(content).to_bytes(_LENGTH_BYTES, "big"))
    pipe.write(content)
    pipe.flush()


def read_frame(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None if the pipe ends before it is complete."""
    length = pipe.read(_LENGTH_BYTES)
    size = int.from_bytes(length, "big")
    content = pipe.read(size)
    return content if len(length) == _LENGTH_BYTES and len(content) == size else None


def work() -> None:
    """Answer the requests from stdin on stdout until stdin ends, which also happens if the server is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(2 if sys.stderr else nowhere, 1)  # text that a library prints must not become part of an answer
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests, waiting), daemon=True).start()
    from ppsim.explorer.answers import answer_to
    from ppsim.explorer.cases import load_engine  # half a second, in which the server may end

    loading = threading.Timer(QUIET_SECONDS, load_engine)
    loading.daemon = True
    loading.start()
    try:
        while True:
            write_frame(answers, answer_to(waiting.get()))
    except BrokenPipeError:
        os._exit(0)


def _listen(requests: IO[bytes], waiting: queue.SimpleQueue[bytes]) -> None:
    """Queue each request; end the process, whatever it does at that time, when the server's end of the pipe closes."""
    while (request := read_frame(requests)) is not None:
        waiting.put(request)
    os._exit(0)
