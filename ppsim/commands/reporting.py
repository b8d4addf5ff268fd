"""Output of all commands: errors as one message and an exit status, data on stdout, files written atomically."""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import typer
from typer.models import OptionInfo

from ppsim.base.errors import BuildError, ConfigError, CostError, PpsimError, ScheduleError, visible
from ppsim.base.files import CallFiles, OverwriteError, check_target, write_atomically
from ppsim.base.host import noting_calibrations
from ppsim.base.progress import say

DONE, ANSWER_IS_NO, CALL_WAS_WRONG = 0, 1, 2
INTERRUPTED, READER_LEFT = 130, 141  # 128 + SIGINT and SIGPIPE, as a shell reports them

_COLOURS = re.compile("(\x1b\\[[0-9;]*m)")


def exit_status(error: Exception) -> int:
    """Return 1 if the input was understood and the answer is no, 2 if the call itself was wrong."""
    is_answer = isinstance(error, ScheduleError) and not isinstance(error, BuildError)
    return ANSWER_IS_NO if is_answer else CALL_WAS_WRONG


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make `function` a command: an error becomes one message on stderr and an exit status."""
    outputs = output_options(function)

    @functools.wraps(function)
    def run(**given: Any) -> None:
        calibrations: list[str] = []
        _calibrations.set(calibrations)
        try:
            with _files_of(outputs, given).watch(), noting_calibrations(calibrations.append):
                function(**given)
            with _stdout_faults():
                if sys.stdout is not None:
                    sys.stdout.flush()
        except (PpsimError, OverwriteError) as error:
            say(f"ppsim: {_with_file(error, given.get('config'))}")
            raise typer.Exit(exit_status(error)) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(READER_LEFT) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except MemoryError:
            say("ppsim: not enough memory for this many actions; use fewer microbatches")
            raise typer.Exit(CALL_WAS_WRONG) from None

    return run


def _with_file(error: Exception, config: Any) -> str:
    """Return the error's message; errors of sizes and costs, which do not name the config, get its path."""
    named = config is None or not isinstance(error, BuildError | CostError) or str(error).startswith(str(config))
    return str(error) if named else f"{config}: {error}"


# Names of the calibrations of the configs that this call reads.
_calibrations: ContextVar[Sequence[str]] = ContextVar("calibrations", default=())


def takes_colours() -> bool:
    """Return whether stdout is a terminal that shows colours; NO_COLOR (no-color.org) turns them off."""
    shown = sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    return shown and not os.environ.get("NO_COLOR")


def encodes(text: str) -> bool:
    """Return whether the encoding of stdout has all characters of a text."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "ignore").decode(encoding) == text


def print_data(text: str, colours: bool = False) -> None:
    """Print data on stdout, with a newline at its end; control characters except `colours` become visible.

    Raises ConfigError if stdout cannot be written, BrokenPipeError if its reader has closed it.
    """
    if sys.stdout is None:
        raise ConfigError("stdout is closed; give a file, such as `> result.txt`, or --json FILE")
    text = text if text.endswith("\n") else text + "\n"
    parts = _COLOURS.split(text) if colours else [text]
    shown = "".join(part if number % 2 else visible(part) for number, part in enumerate(parts))
    encoding = sys.stdout.encoding or "utf-8"
    with _stdout_faults():
        sys.stdout.write(shown.encode(encoding, "backslashreplace").decode(encoding))


@contextmanager
def _stdout_faults() -> Iterator[None]:
    """Raise ConfigError if stdout cannot be written, BrokenPipeError if its reader has closed it."""
    try:
        yield
    except OSError as error:
        raise _stdout_fault(error) from None


def stdout_failed(error: OSError) -> int:
    """Report that stdout cannot be written; return the exit status."""
    say(f"ppsim: {_stdout_fault(error)}")
    return CALL_WAS_WRONG


def _stdout_fault(error: OSError) -> Exception:
    if isinstance(error, BrokenPipeError):
        return error
    _discard_stdout()
    return ConfigError(f"stdout: cannot be written: {error.strerror}")


def _discard_stdout() -> None:
    """Discard the buffer of stdout; else the interpreter would fail again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def option_of(name: str) -> str:
    """Return the option of a parameter on the command line."""
    return f"--{name.replace('_', '-')}"


class OutputOption(OptionInfo):
    """An option that names a file to write.

    `endings` are its legal suffixes, if they matter; they complete a text without a full stop. `only_with` names a flag
    without which the file is read; `besides` has the endings of further files next to it.
    """

    def __init__(
        self, text: str, *names: str, metavar: str = "FILE", endings: Sequence[str] = (), only_with: str = "",
        besides: Sequence[str] = (),
    ):  # fmt: skip
        if endings and not text.endswith("."):
            text += f": FILE{', '.join(endings[:-1])} or {endings[-1]}."
        metavar = f"FILE{endings[0]}" if len(endings) == 1 else metavar
        super().__init__(default=..., param_decls=names, metavar=metavar, help=text)
        self.endings, self.only_with, self.besides = endings, only_with, besides

    def option(self, name: str) -> str:
        """Return the option of the parameter `name` on the command line."""
        return next(iter(self.param_decls or ()), option_of(name))

    def targets(self, name: str, given: Mapping[str, Any]) -> list[str]:
        """Return the files that the parameter `name` makes a command write, given all its parameters."""
        path = given[name]
        if path in (None, "-") or (self.only_with and not given[self.only_with]):
            return []
        return [f"{path}{ending}" for ending in ("", *self.besides)]


def output_options(function: Callable[..., Any]) -> dict[str, OutputOption]:
    """Return the options of a command that name files to write, by parameter."""
    parameters = inspect.signature(function, eval_str=True).parameters
    marks = {name: getattr(one.annotation, "__metadata__", ()) for name, one in parameters.items()}
    return {name: mark for name, found in marks.items() for mark in found if isinstance(mark, OutputOption)}


def _files_of(outputs: Mapping[str, OutputOption], given: Mapping[str, Any]) -> CallFiles:
    """Return the files that a command's options name; ConfigError, before any work, if one cannot be written.

    Further files are added when they are read, such as those that a config names.
    """
    files = CallFiles()
    with suppress(AttributeError, OSError, ValueError):  # stdout may be closed
        files.add_output("stdout", sys.stdout.fileno())
    targets = {name: option.targets(name, given) for name, option in outputs.items()}
    for name, paths in targets.items():
        for path in paths:
            check_target(path)
            if (legal := outputs[name].endings) and Path(path).suffix.lower() not in legal:
                place = f"{outputs[name].option(name)} {path}"
                raise ConfigError(f"{place}: must end in one of: {', '.join(legal)}")
            files.add_output(outputs[name].option(name), path)
    for name, value in given.items():
        for path in value if isinstance(value, list) else [value]:
            if isinstance(path, Path) and not targets.get(name):
                files.add_input(path)
    return files


def write_json(document: dict[str, Any], target: str) -> None:
    """Write one JSON document to stdout (`-`) or a file, in ASCII, which every encoding has."""
    text = json.dumps(document, indent=2, allow_nan=False) + "\n"
    if target == "-":
        print_data(text)
    else:
        write_atomically(target, text)


def answer(document: dict[str, Any], target: str | None, text: Callable[[], str]) -> None:
    """Write a command's result: as JSON to the target of `--json`, and as text on stdout unless the JSON goes there.

    Both name the calibrations of the configs that were read.
    """
    names = list(dict.fromkeys(_calibrations.get()))
    if target:
        write_json(document | ({"calibrations": names} if names else {}), target)
    if target != "-":
        shown = text()
        lines = [name for name in names if name not in " ".join(shown.split())]
        print_data("\n".join([shown.removesuffix("\n"), *lines]))


def write_files(*files: tuple[Path | None, Callable[[Path], Any]]) -> None:
    """Write the files that have a path, all before the first message, so that an error is the only output."""
    wanted = [(path, write) for path, write in files if path]
    for path, write in wanted:
        write(path)
    for path, _ in wanted:
        say(f"wrote {path}")
