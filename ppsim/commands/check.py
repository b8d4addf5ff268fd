"""`ppsim check`: a gate for CI on the measures of a list of configs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ppsim.commands import options
from ppsim.commands.reporting import ANSWER_IS_NO, aligned, command, print_data, say, write_json
from ppsim.errors import ConfigError

if TYPE_CHECKING:
    from ppsim.analysis.gate import Finding, Numbers

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"


@command
def check(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG.yaml...", help="Configurations to check.")],
    baseline: Annotated[Path | None, typer.Option(metavar="FILE", help="Measures that must not get worse.")] = None,
    update: Annotated[bool, typer.Option("--update", help="Write the baseline instead of checking it.")] = False,
    max_bubble: Annotated[str | None, typer.Option(metavar="FRACTION", help="Largest bubble fraction.")] = None,
    max_memory: Annotated[str | None, typer.Option(metavar="BYTES", help="Largest memory peak, such as 80GB.")] = None,
    max_step_time: Annotated[str | None, typer.Option(metavar="SECONDS", help="Longest step, such as 2s.")] = None,
    tolerance_absolute: Annotated[
        float, typer.Option("--tolerance-abs", help="By how much a measure may grow, in its own unit.")
    ] = 0.0,
    tolerance_relative: Annotated[
        float, typer.Option("--tolerance-rel", help="By which fraction of itself a measure may grow.")
    ] = 0.0,
    settings: options.Settings = None,
    junit: Annotated[Path | None, typer.Option(metavar="FILE", help="Write JUnit XML.")] = None,
    json: options.JsonTarget = None,
) -> None:
    """Compare configs with a baseline and with limits; exit status 1 when a measure got worse."""
    from ppsim.analysis.gate import Tolerance, config_key, judge, read_baseline, write_baseline

    limits = _limits(max_bubble, max_memory, max_step_time)
    if baseline is None and (update or not any(value is not None for value in limits.values())):
        raise ConfigError(
            "nothing to check against: give --baseline FILE, or --max-bubble, --max-memory, --max-step-time"
        )
    tolerance = Tolerance(tolerance_absolute, tolerance_relative)
    old = read_baseline(baseline) if baseline and not update else None
    numbers = {config_key(path, baseline): _measure(path, settings) for path in configs}
    if update and baseline:
        write_baseline(baseline, numbers)
        say(f"wrote {baseline}: {len(numbers)} config(s)")
    if old is None and not any(limit is not None for limit in limits.values()):
        return
    findings = [
        finding for config, measures in numbers.items() for finding in judge(config, measures, old, tolerance, limits)
    ]
    _report(findings, junit, json)
    if any(finding.failed for finding in findings):
        raise typer.Exit(ANSWER_IS_NO)


def _limits(bubble: str | None, memory: str | None, step_time: str | None) -> dict[str, float | None]:
    from ppsim.units import parse_quantity

    limits: dict[str, float | None] = {"max_bubble": None}
    for name, text, unit in (("max_memory", memory, "bytes"), ("max_step_time", step_time, "seconds")):
        try:
            limits[name] = None if text is None else parse_quantity(text, unit)
        except ConfigError as error:
            raise ConfigError(f"--{name.replace('_', '-')}: {error}") from None
    if bubble is not None:
        try:
            limits["max_bubble"] = float(bubble.rstrip("%")) / (100 if bubble.endswith("%") else 1)
        except ValueError:
            limits["max_bubble"] = None
        if limits["max_bubble"] is None or not 0 <= limits["max_bubble"] <= 1:
            raise ConfigError(f"--max-bubble {bubble!r} must be a fraction from 0 to 1, such as 0.15 or 15%")
    return limits


def _measure(path: Path, settings: list[str] | None) -> Numbers:
    from ppsim.analysis.gate import measured
    from ppsim.commands.case import read_case

    return measured(read_case(path, settings, None).simulate())


def _report(findings: list[Finding], junit: Path | None, json: str | None) -> None:
    from ppsim.analysis.gate import junit_report, markdown_report
    from ppsim.files import write_atomically

    if junit:
        write_atomically(junit, junit_report(findings))
        say(f"wrote {junit}")
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        try:
            with open(summary, "a", encoding="utf-8") as file:  # the runner gathers what every step appends
                file.write(markdown_report(findings))
        except OSError as error:
            raise ConfigError(f"{summary} (from {SUMMARY_VARIABLE}): cannot be written: {error.strerror}") from None
    if json:
        write_json(_document(findings), json)
    if json != "-":
        print_data(findings_text(findings))


def _document(findings: list[Finding]) -> dict:
    from dataclasses import asdict

    return {
        "schema": "ppsim.check/1",
        "passed": not any(f.failed for f in findings),
        "findings": [*map(asdict, findings)],
    }


def findings_text(findings: list[Finding]) -> str:
    """A table of what moved, with the changed rows of the bubble ledger under each regression."""
    from ppsim.analysis.gate import moved_findings, row

    moved = moved_findings(findings)
    if not moved:
        configs = len({finding.config for finding in findings})
        return f"{len(findings)} measures of {configs} config(s): nothing got worse"
    heading = ["config", "measure", "baseline", "now", "allowed", "verdict"]
    lines = aligned([heading, *map(row, moved)])
    explained = {finding.config: finding.why for finding in moved if finding.why}
    for config, why in explained.items():
        lines.append(f"idle time that changed in {config}: {'; '.join(why)}")
    if any(finding.verdict == "new" for finding in moved):
        lines.append("what is new is not in the baseline; add it with --update")
    return "\n".join(lines)
