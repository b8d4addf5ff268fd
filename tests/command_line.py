"""Runs the command line for the tests: in this process, or in one of its own the way a user does."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from ppsim.cli import app

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"
UNIT_COSTS = CONFIGS / "unit-costs.yaml"
LLAMA = CONFIGS / "llama-3-8b-8xh100.yaml"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8"}


class Outcome(NamedTuple):
    status: int
    out: str
    err: str


def ppsim(*arguments: object) -> Outcome:
    """Exit status, stdout and stderr of `ppsim ARGUMENTS`, in this process."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="ppsim")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr)


def hear_signals() -> None:
    """Undo in a new process what a shell (`&`) or nohup has it ignore: they are inherited, and the program obeys."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def start(*arguments: object, program: Path | None = None, **options) -> subprocess.Popen:
    """`ppsim ARGUMENTS`, or a `program` that runs it, as a process of its own, which hears all signals."""
    return subprocess.Popen(
        [sys.executable, *(["-m", "ppsim"] if program is None else [program]), *map(str, arguments)],
        stdout=subprocess.PIPE,
        encoding="utf-8",
        preexec_fn=hear_signals,
        **{"env": ENVIRONMENT, "stderr": subprocess.PIPE, **options},
    )
