"""What every command shares: errors as one message and an exit status, data on stdout, files written whole."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import typer

from ppsim.base.errors import BuildError, ConfigError, DeadlockError, PpsimError, ScheduleError
from ppsim.base.files import write_atomically

DONE, ANSWER_IS_NO, CALL_WAS_WRONG = 0, 1, 2
INTERRUPTED, READER_LEFT = 130, 141  # 128 + SIGINT and SIGPIPE, as a shell reports them

P = ParamSpec("P")
T = TypeVar("T")


def exit_status(error: PpsimError) -> int:
    """1 where the input was understood and the answer is no, 2 where the call itself was wrong."""
    if isinstance(error, BuildError | ConfigError):
        return CALL_WAS_WRONG
    return ANSWER_IS_NO if isinstance(error, ScheduleError | DeadlockError) else CALL_WAS_WRONG


def command(function: Callable[P, T]) -> Callable[P, T]:
    """Make `function` a command: a PpsimError becomes one message on stderr and the exit status that goes with it."""

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> T:
        try:
            result = function(*args, **options)
            sys.stdout.flush()
        except PpsimError as error:
            say(f"ppsim: {error}")
            raise typer.Exit(exit_status(error)) from None
        except BrokenPipeError:
            # The reader closed the pipe; without this the interpreter would complain while flushing at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(READER_LEFT) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            say("ppsim: not enough memory for this many actions; use fewer microbatches")
            raise typer.Exit(CALL_WAS_WRONG) from None
        return result

    return run


def say(message: str) -> None:
    """A message for people, on stderr."""
    print(message, file=sys.stderr)


def print_data(text: str) -> None:
    """Data, on stdout, with a newline at its end."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def write_json(document: dict[str, Any], target: str) -> None:
    """One JSON document to stdout (`-`) or a file."""
    text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
    if target == "-":
        print_data(text)
    else:
        write_atomically(target, text)


def require_suffix(option: str, path: Path, suffixes: tuple[str, ...]) -> str:
    """The suffix of `path`, in lower case; ConfigError unless it is one of `suffixes`."""
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        raise ConfigError(f"{option} {path}: the ending says what to write; use one of: {', '.join(suffixes)}")
    return suffix
