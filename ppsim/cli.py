"""The command line: a Typer application that loads a command's module when the command is called."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from itertools import chain, takewhile
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from ppsim import __version__
from ppsim.base.tables import paragraph

INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")  # signals that end a command
_REPEAT_SECONDS, _REPEATS = 1.0, 5

# Command -> module in ppsim/commands with a function of the same name, and the line in `ppsim --help`.
COMMANDS = {
    "simulate": ("simulate", "step, memory, idle time"),
    "compare": ("compare", "schedules at equal work"),
    "sweep": ("sweep", "combinations of values"),
    "what-if": ("what_if", "before and after"),
    "fits": ("fits", "does it fit in memory"),
    "explore": ("explore", "an interactive page"),
    "choose": ("choose", "the fastest layout"),
    "advise": ("advise", "the best change"),
    "optimum": ("optimum", "prove a tiny case"),
    "fill": ("fill", "other work in idle time"),
    "lengths": ("lengths", "pack unequal sequences"),
    "import": ("import_launch", "from a launch script"),
    "export": ("export", "to a launch script"),
    "explain": ("explain", "time of a measured step"),
    "calibrate": ("calibrate", "costs from your own runs"),
    "evaluate": ("evaluate", "predicted, measured"),
    "check": ("check", "baselines and limits"),
    "validate": ("validate", "schedule files"),
    "list": ("families", "schedules"),
    "hardware": ("hardware", "devices and links"),
    "glossary": ("glossary", "words and measures"),
}
GROUPS = {  # lines of `ppsim --help`
    "run": ("simulate", "compare", "sweep", "what-if", "fits", "explore"),
    "decide": ("choose", "advise", "optimum", "lengths", "fill"),
    "convert": ("import", "export"),
    "measure": ("explain", "calibrate", "evaluate"),
    "guard": ("check", "validate"),
    "look up": ("list", "hardware", "glossary"),
}
PLAIN: Any = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,  # plain help and errors: rich starts slowly and wraps messages in boxes
}


class CommandGroup(typer.core.TyperGroup):
    """The program; its help shows every command by group."""

    def get_help(self, ctx: Any) -> str:
        """Return the usage, two commands a line by group, and the exit statuses."""
        lines = ["Usage: ppsim COMMAND [CONFIG.yaml] [OPTIONS]", *paragraph(str(self.help)), ""]
        for group, names in GROUPS.items():
            cells = [f"{name:<11}{COMMANDS[name][1]:<25}" for name in names]
            pairs = ["".join(cells[index : index + 2]) for index in range(0, len(cells), 2)]
            lines += [f"{'' if number else group:<9}{pair}".rstrip() for number, pair in enumerate(pairs)]
        return "\n".join([*lines, "", *chain.from_iterable(map(paragraph, LAST_LINES))])


LAST_LINES = (
    "ppsim COMMAND --help shows three examples and the options, --help-all explains them; ppsim --version",
    "Exit status: 0 done, 1 the answer is no (invalid schedule, does not fit, got worse), 2 wrong call.",
)

app = typer.Typer(
    cls=CommandGroup,
    name="ppsim",
    help="Simulate pipeline-parallel training schedules: step time, bubbles, memory, Gantt charts.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)


def _with_pair(arguments: list[str]) -> list[str]:
    """Return the arguments with the words of `--break-even A vs B` as one; without `vs` all words up to an option."""
    if "--break-even" not in arguments:
        return arguments
    begin = arguments.index("--break-even") + 1
    words = [*takewhile(lambda word: not word.startswith("-"), arguments[begin:])]
    pair = words[: 3 if words[1:2] == ["vs"] else None]
    return [*arguments[:begin], *[" ".join(pair)] * bool(pair), *arguments[begin + len(pair) :]]


class LazyCommand(typer.core.TyperCommand):
    """A placeholder that loads its command when it is called."""

    def make_context(self, info_name: str | None, args: list[str], *more: Any, **options: Any) -> Any:
        """Load the command and return its context."""
        module, _ = COMMANDS[str(self.name)]
        only, shown = typer.Typer(**PLAIN), import_module("ppsim.commands.help")
        only.command(self.name, cls=shown.Command)(getattr(import_module(f"ppsim.commands.{module}"), module))
        _end_by_signal.listen()
        loaded: Any = typer.main.get_command(only)
        if "--help-all" in args:
            typer.echo(loaded.full_help(loaded.make_context(info_name, [], *more, resilient_parsing=True, **options)))
            raise typer.Exit
        return loaded.make_context(info_name, _with_pair(args), *more, **options)


for _name, (_, _line) in COMMANDS.items():
    app.command(_name, cls=LazyCommand, short_help=_line)(lambda: None)


class _EndBySignal:
    """The end of a command by a signal: an exception, so that temporary files are removed and processes end.

    A library may swallow the exception. It is raised again every second, and the fifth time the process ends.
    """

    def __init__(self) -> None:
        self.numbers: list[int] = []  # signals that are not ignored
        self.status: int | None = None
        self.raised = 0

    def listen(self) -> None:
        """Let signals raise exceptions; all modules are loaded now."""
        for number in self.numbers:
            signal.signal(number, self)

    def __call__(self, number: int, _: Any) -> None:
        if self.status is None:
            self.status = 128 + number
            sys.unraisablehook = lambda _: None  # an exception that is swallowed is reported there
            if hasattr(signal, "setitimer"):  # Windows has none
                signal.signal(signal.SIGALRM, self)
                signal.setitimer(signal.ITIMER_REAL, _REPEAT_SECONDS, _REPEAT_SECONDS)
        self.raised += 1
        if self.raised >= _REPEATS:
            os._exit(self.status)
        if self.status == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(self.status)

    def leave(self) -> int | None:
        """Return the exit status; nothing is raised any more, and threads that do not end are not waited for."""
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number in self.numbers:
            signal.signal(number, signal.SIG_IGN)
        last = threading.Timer(_REPEAT_SECONDS, os._exit, [self.status])
        last.daemon = True
        last.start()
        return self.status


_end_by_signal = _EndBySignal()


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ppsim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Simulate pipeline-parallel training schedules: step time, bubbles, memory, Gantt charts."""


def run_command_line() -> None:
    """Run the command line and exit with its status, or with that of the signal that ended it."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    _end_by_signal.numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        app(prog_name="ppsim")
    except BaseException as error:
        if _end_by_signal.status is not None:
            sys.exit(_end_by_signal.leave())
        if isinstance(error, KeyboardInterrupt):
            sys.exit(INTERRUPTED)
        if not isinstance(error, OSError):
            raise
        if error.filename is not None:
            raise
        from ppsim.commands.reporting import stdout_failed  # from --help or --version; commands report their own

        sys.exit(stdout_failed(error))
