"""Help of one command: its sentence, its usage, examples, and its options in groups; `--help-all` explains each."""

from __future__ import annotations

import re
from typing import Any

import typer.core

from ppsim.base.tables import paragraph

LABEL = 10  # width of a group's name
GROUPS = {
    "schedule": (
        "--set", "--schedule", "--schedules", "--devices", "--microbatches", "--stages-per-device", "--option",
        "--dispatch", "--placement", "--whole-backward", "--layers", "--slices", "--pytorch", "--with", "--work",
    ),
    "costs": (
        "--forward", "--backward", "--input-grad", "--weight-grad", "--overlap", "--latency", "--transport", "--gpus",
        "--device", "--link", "--network", "--approximate",
    ),
    "memory": (
        "--recompute", "--offload", "--memory-limit", "--headroom",
    ),
    "search": (
        "--free", "--only", "--over", "--framework", "--research", "--asynchronous", "--certain", "--break-even",
        "--range", "--slow", "--fail", "--copies", "--time-limit",
    ),
    "measured": ("--step", "--ranges", "--steps", "--operators", "--profile"),
    "limits": (
        "--baseline", "--update", "--force", "--max-bubble", "--max-memory", "--max-step-time", "--tolerance-abs",
        "--tolerance-rel", "--strict",
    ),
    "draw": (
        "--gantt", "--memory", "--critical-path", "--transfers", "--theme", "--width", "--title", "--text",
        "--ledger-chart", "--chart", "--front", "--measure",
    ),
    "write": ("--json", "--output", "--trace", "--csv", "--program", "--sharded", "--table", "--bubbles", "--junit"),
    "run": ("--engine", "--store", "--workers", "--dask", "--slurm", "--host", "--port", "--no-browser"),
    "more": ("--verbose", "--costs", "--ledger", "--help"),
}  # fmt: skip
EXAMPLES = {
    "simulate": (
        "my.yaml",
        "my.yaml --schedule zb-h1 --gantt step.html",
        "--schedule 1f1b --devices 4 --microbatches 8 --text",
    ),
    "compare": ("my.yaml", "my.yaml --schedules 1f1b,zb-h1,zb-v --gantt all.html", "my.yaml --headroom 20%"),
    "sweep": (
        "my.yaml --over schedule.microbatches=8:128:x2",
        "my.yaml --over schedule.name=1f1b,zb-h1 --over layout.tensor=4,8 --table all.csv",
        "my.yaml --over schedule.microbatches=8:64:x2 --measure mfu --chart mfu.pdf",
    ),
    "what-if": (
        "my.yaml --set hardware.link.bandwidth=900GB/s",
        "my.yaml --slow 2=1.2",
        "my.yaml --break-even zb-h1 vs 1f1b --over latency",
    ),
    "choose": ("my.yaml", "my.yaml --framework Megatron-LM -o best.yaml", "my.yaml --free layout.tensor"),
    "advise": ("my.yaml", "my.yaml --framework PyTorch", "my.yaml --headroom 5% -v"),
    "fits": ("my.yaml", "my.yaml --set layout.tensor=8 --set layout.context=1", "my.yaml --headroom 20% -v"),
    "check": (
        "configs/*.yaml --baseline baseline.json",
        "configs/*.yaml --baseline baseline.json --update",
        "my.yaml --max-bubble 30% --max-memory 72GB --junit report.xml",
    ),
    "optimum": (
        "--devices 4 --microbatches 8",
        "--devices 4 --microbatches 8 --memory-limit 4 --csv best.csv",
        "--devices 3 --microbatches 6 --placement v --time-limit 20",
    ),
    "fill": (
        "my.yaml --work 40ms,6GB",
        "my.yaml --with items.yaml --gantt filled.html",
        "my.yaml --work 10ms --table pieces.csv",
    ),
    "lengths": (
        "my.yaml",
        "my.yaml --set lengths.file=lengths.txt",
        "my.yaml --set lengths.batches=100 --json lengths.json",
    ),
    "calibrate": (
        "trace.json -o profile.yaml",
        "--steps runs.yaml -o calibration.yaml",
        "--operators measured.json -o device.yaml",
    ),
    "evaluate": (
        "trace.json --profile profile.yaml",
        "a.json b.json --profile profile.yaml --chart errors.svg",
        "trace.json --profile profile.yaml --csv actions.csv",
    ),
    "explain": ("trace.json", "dump my.yaml --gantt step.html", "dump --step 3 --profile costs.yaml"),
    "import": (
        "megatron train.sh -o my.yaml",
        "torchtitan job.toml --gpus 64 -o my.yaml",
        "megatron train.sh --device 'H200 SXM' --strict -o my.yaml",
    ),
    "export": ("my.yaml", "my.yaml -o train.sh", "my.yaml --framework Primus -o train.yaml"),
    "explore": ("", "my.yaml", "my.yaml --port 8080 --no-browser"),
    "list": ("", "zb-h1", "-v"),
    "validate": ("order.csv", "order.csv --pytorch", "order.csv --slices 4 --json report.json"),
    "glossary": ("", "bubble_ratio", "imbalance"),
    "hardware": ("", "-v", "--costs"),
}


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
