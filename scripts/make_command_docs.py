"""Writes docs/commands.md from the program itself: what `ppsim --help` and `ppsim COMMAND --help-all` print."""

from pathlib import Path

from make_pages import output

from ppsim.base.files import write_atomically
from ppsim.cli import COMMANDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
INTRODUCTION = """# Commands

This page is written by `scripts/make_command_docs.py` from the program; a test keeps it up to date. `ppsim COMMAND
--help` prints the short form: the examples and the names of the options. stdout is data, stderr is for people. Exit
status: 0 done, 1 the answer is no (invalid schedule, regression found, does not fit), 2 the call was wrong.
"""


def page() -> str:
    """The text of docs/commands.md."""
    sections = [INTRODUCTION, _block("ppsim --help")]
    sections += [f"## ppsim {name}\n\n{_block(f'ppsim {name} --help-all')}" for name in COMMANDS]
    return "\n".join(sections)


def _block(command: str) -> str:
    return f"```text\n{output(command).strip()}\n```\n"


if __name__ == "__main__":
    write_atomically(PAGE, page())
