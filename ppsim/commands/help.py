"""Help of one command: its sentence, its usage, examples, and its options in groups; `--help-all` explains each."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from typing import Any

import typer.core

from ppsim.base.tables import paragraph

LABEL = 10  # width of a group's name
_TEXTS = json.loads(files("ppsim.commands").joinpath("help.json").read_text(encoding="utf-8"))
GROUPS, EXAMPLES = _TEXTS["groups"], _TEXTS["examples"]  # options by group, and arguments by command


class Command(typer.core.TyperCommand):
    """A command whose help fits one screen."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, `[OPTIONS]` last."""
        first, *others = super().collect_usage_pieces(ctx)
        return [*others, first]

    def get_help(self, ctx: Any) -> str:
        """Return the sentence, the usage, examples, and the names of the options by group."""
        lines = self._head(ctx)
        for group, params in self._groups(ctx).items():
            lines += paragraph(" ".join(max(one.opts, key=len) for one in params), f"{group:<{LABEL}}")
        return "\n".join([*lines, "", "--help-all explains each option"])

    def _head(self, ctx: Any) -> list[str]:
        examples = [f"  {ctx.command_path} {example}".rstrip() for example in EXAMPLES[str(self.name)]]
        return [*paragraph(" ".join(str(self.help).split())), "", self.get_usage(ctx), *examples, ""]

    def full_help(self, ctx: Any) -> str:
        """Return the help with a line per option: its argument, its meaning and its default."""
        formatter = ctx.make_formatter()
        arguments = [one.get_help_record(ctx) for one in self.get_params(ctx) if one.param_type_name == "argument"]
        for name, records in {
            "arguments": [one for one in arguments if one],
            **{group: [one.get_help_record(ctx) for one in params] for group, params in self._groups(ctx).items()},
        }.items():
            records = [(re.sub(r" <[^>]*>$", "", label), text) for label, text in records]  # without Python's types
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)
        return "\n".join([*self._head(ctx), formatter.getvalue()]).rstrip("\n")

    def _groups(self, ctx: Any) -> dict[str, list[Any]]:
        """Return the options by group, in the order of `GROUPS`."""
        given = {max(one.opts, key=len): one for one in self.get_params(ctx) if one.param_type_name == "option"}
        found = {group: [given[name] for name in names if name in given] for group, names in GROUPS.items()}
        return {group: params for group, params in found.items() if params}
