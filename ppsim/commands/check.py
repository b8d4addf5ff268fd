"""`ppsim check`: a CI gate on the measures of configs."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.files import OverwriteError, append_text, write_atomically
from ppsim.base.units import counted, first_names
from ppsim.commands import options
from ppsim.commands.options import settings_of
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, command, option_of, say
from ppsim.studies import gate

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_NAMED = 2


@command
def check(
    configs: Annotated[list[Path], typer.Argument(metavar="CONFIG.yaml", help="Configs to check.")],
    baseline: Annotated[Path | None, OutputOption("Measures that must not get worse.", only_with="update")] = None,
    update: Annotated[
        bool, typer.Option("--update", help="Write the baseline of these configs instead of checking it.")
    ] = False,
    max_bubble: Annotated[
        str | None, typer.Option(metavar="FRACTION", help="Largest bubble fraction: below 1 such as 0.15, or 15%.")
    ] = None,
    max_memory: Annotated[str | None, typer.Option(metavar="BYTES", help="Largest memory peak, such as 80GB.")] = None,
    max_step_time: Annotated[str | None, typer.Option(metavar="SECONDS", help="Longest step, such as 2s.")] = None,
    tolerance_absolute: Annotated[
        list[str] | None,
        typer.Option(
            "--tolerance-abs",
            metavar="MEASURE=AMOUNT",
            help="Amount by which one measure may grow: makespan=2ms. Repeatable.",
        ),
    ] = None,
    tolerance_relative: Annotated[
        str,
        typer.Option(
            "--tolerance-rel", metavar="FRACTION", help="Fraction by which each may grow, such as 0.01 or 1%."
        ),
    ] = "0",
    force: Annotated[bool, typer.Option("--force", help="Accept a tolerance above 100%.")] = False,
    settings: options.Settings = None,
    junit: Annotated[Path | None, OutputOption("Write JUnit XML.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every change, and its reasons.")] = False,
    json: options.JsonTarget = None,
) -> None:
    """Check configs against a baseline and against limits; exit with status 1 if one got worse."""
    absolute = settings_of(tolerance_absolute, "--tolerance-abs")
    try:
        limits = gate.parse_limits(max_bubble, max_memory, max_step_time)
        tolerance = gate.Tolerance.parse(absolute, tolerance_relative, force=force)
    except ConfigError as error:  # it begins with a keyword of the pytest fixture
        raise ConfigError(re.sub(r"^\w+", lambda keyword: option_of(keyword[0]), str(error))) from None
    if baseline is None and (update or not limits):
        raise ConfigError("nothing to check against: give --baseline, --max-bubble, --max-memory or --max-step-time")
    overrides = settings_of(settings)
    if baseline and update:
        say(f"wrote {baseline}: {counted(gate.update_baseline(configs, baseline, overrides), 'config')}")
        if not limits:
            return
    old = None if update else baseline
    findings = gate.check_configs(configs, baseline=old, limits=limits, tolerance=tolerance, overrides=overrides)
    _report(findings, junit, json, verbose)
    if old and (left := gate.unchecked(configs, old)):
        say(f"in the baseline and not checked: {first_names(left, MAX_NAMED)}")
    if any(finding.failed for finding in findings):
        raise typer.Exit(ANSWER_IS_NO)


def _report(findings: list[gate.Finding], junit: Path | None, json: str | None, verbose: bool) -> None:
    if junit:
        write_atomically(junit, gate.junit_report(findings))
        say(f"wrote {junit}")
    summary = os.environ.get(SUMMARY_VARIABLE)
    if summary:
        try:
            append_text(summary, gate.markdown_report(findings))  # as every step of a GitHub workflow does
        except (ConfigError, OverwriteError) as error:
            raise ConfigError(f"{error} (from {SUMMARY_VARIABLE})") from None
    answer(gate.document(findings), json, lambda: gate.findings_text(findings, verbose))
