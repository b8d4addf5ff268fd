"""The CI gate: are the measures of a list of configs as good as a baseline, and within limits."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ppsim.analysis.what_if import run_numbers
from ppsim.errors import ConfigError
from ppsim.files import read_text, write_atomically
from ppsim.timeline import Timeline

SCHEMA = "ppsim.baseline/1"
GUARDED = ("makespan", "bubble_fraction", "bubble_ratio", "span_bubble_fraction", "peak_activations", "peak_memory")
LIMITS = {"max_bubble": "bubble_fraction", "max_memory": "peak_memory", "max_step_time": "makespan"}
IDLE = "idle: "
NOISE = 1e-9  # relative: what rounding on another machine may change


@dataclass(frozen=True)
class Finding:
    """One measure of one config against its baseline or limit.

    Attributes
    ----------
    config, measure, unit : str
    before : float or None
        The baseline's value; None where it has none.
    after : float or None
        The value now.
    verdict : str
        "regression", "over the limit", "new" (not in the baseline), "improved" or "same".
    limit : float or None
        The largest value allowed, from the baseline with its tolerance or from a --max option.
    why : tuple of str
        For a regression: what changed in the bubble ledger, largest first.
    """

    config: str
    measure: str
    unit: str
    before: float | None
    after: float | None
    verdict: str
    limit: float | None = None
    why: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether the gate closes."""
        return self.verdict in ("regression", "over the limit", "new")


@dataclass(frozen=True)
class Tolerance:
    """By how much a measure may grow: the larger of an absolute and a relative amount."""

    absolute: float = 0.0
    relative: float = 0.0

    def __post_init__(self) -> None:
        for name in ("absolute", "relative"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} tolerance {value!r} must be a finite number of at least 0")

    def limit(self, value: float) -> float:
        """The largest value that still passes."""
        return value + max(self.absolute, (self.relative + NOISE) * abs(value))


Numbers = Mapping[str, tuple[float | None, str]]
Baseline = dict[str, dict[str, float | None]]


def measured(run: Timeline) -> Numbers:
    """What the gate looks at: the guarded measures, and the ledger that explains them."""
    numbers = run_numbers(run)
    return {name: number for name, number in numbers.items() if name in GUARDED or name.startswith(IDLE)}


def judge(
    config: str,
    numbers: Numbers,
    baseline: Baseline | None,
    tolerance: Tolerance,
    limits: Mapping[str, float | None],
) -> list[Finding]:
    """All findings of one config; `baseline` None looks at the limits alone."""
    findings = []
    if baseline is not None:
        if config not in baseline:
            value, unit = numbers["makespan"]
            findings.append(Finding(config, "makespan", unit, None, value, "new"))
        else:
            findings += [_against(config, name, numbers, baseline[config], tolerance) for name in GUARDED]
    for option, name in LIMITS.items():
        limit = limits.get(option)
        if limit is not None:
            value, unit = numbers[name]
            if value is None:
                raise ConfigError(f"{config}: {option} cannot be checked: the costs do not say what memory is held")
            verdict = "over the limit" if value > limit * (1 + NOISE) else "same"
            findings.append(Finding(config, name, unit, None, value, verdict, limit))
    return findings


def _against(
    config: str, name: str, numbers: Numbers, old: Mapping[str, float | None], tolerance: Tolerance
) -> Finding:
    after, unit = numbers[name]
    before = old.get(name)
    if before is None or after is None:
        verdict = "same" if before == after else "new" if before is None else "same"
        return Finding(config, name, unit, before, after, verdict)
    limit = tolerance.limit(before)
    if after > limit:
        return Finding(config, name, unit, before, after, "regression", limit, _why(numbers, old))
    verdict = "improved" if after < before - NOISE * abs(before) else "same"
    return Finding(config, name, unit, before, after, verdict, limit)


def _why(numbers: Numbers, old: Mapping[str, float | None]) -> tuple[str, ...]:
    """The ledger rows that changed, largest first."""
    moved = []
    for name, (value, unit) in numbers.items():
        before = old.get(name)
        if name.startswith(IDLE) and value is not None and before is not None:
            difference = value - before
            if abs(difference) > NOISE * max(abs(value), abs(before), 1e-300):
                moved.append((abs(difference), f"{name.removeprefix(IDLE)} {difference:+.4g} {unit}"))
    return tuple(text for _, text in sorted(moved, key=lambda row: -row[0]))


def config_key(path: str | os.PathLike[str], baseline: str | os.PathLike[str] | None) -> str:
    """The name of a config in a baseline: its path from the baseline's folder, with forward slashes."""
    start = os.path.dirname(os.path.abspath(baseline)) if baseline else os.getcwd()
    return os.path.relpath(path, start).replace(os.sep, "/")


def write_baseline(path: str | os.PathLike[str], configs: Mapping[str, Numbers]) -> None:
    """Write a baseline: readable JSON, sorted, units named; whole or not at all."""
    units = {name: unit for numbers in configs.values() for name, (_, unit) in numbers.items()}
    document = {
        "schema": SCHEMA,
        "units": units,
        "configs": {
            config: {name: value for name, (value, _) in numbers.items()} for config, numbers in configs.items()
        },
    }
    write_atomically(path, json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read a baseline; ConfigError naming the file and the field for anything that is not one."""
    try:
        document = json.loads(read_text(path))
    except (json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: not a baseline: {error}; write one with --update") from None
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise ConfigError(f"{path}: not a baseline: schema is {found!r}, expected {SCHEMA!r}; write one with --update")
    configs = document.get("configs")
    if not isinstance(configs, dict):
        raise ConfigError(f"{path}: 'configs' is missing or no mapping; write the baseline again with --update")
    for config, numbers in configs.items():
        if not isinstance(numbers, dict):
            raise ConfigError(f"{path}: configs.{config} is no mapping of measures; write it again with --update")
        for name, value in numbers.items():
            if value is not None and not _is_finite(value):
                raise ConfigError(
                    f"{path}: configs.{config}.{name} is {value!r}, not a number; write it again with --update"
                )
    return configs


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def markdown_report(findings: Sequence[Finding]) -> str:
    """A Markdown table of what moved, for a CI summary."""
    failed = sum(finding.failed for finding in findings)
    heading = f"{failed} measure(s) got worse" if failed else "no measure got worse"
    lines = [f"### ppsim check: {heading}", ""]
    moved = moved_findings(findings)
    if moved:
        lines += ["| config | measure | baseline | now | allowed | verdict | why |", "|---|---|---|---|---|---|---|"]
        lines += ["| " + " | ".join([*row(finding), "; ".join(finding.why) or "-"]) + " |" for finding in moved]
    return "\n".join(lines) + "\n"


def moved_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Those that changed or failed."""
    return [finding for finding in findings if finding.verdict != "same"]


def row(finding: Finding) -> list[str]:
    """Config, measure, baseline, now, allowed and verdict of a finding, as text with units."""
    from ppsim.units import format_quantity

    def text(value: float | None) -> str:
        if value is None:
            return "-"
        return f"{value:.6g}" if finding.unit in ("fraction", "microbatches") else format_quantity(value, finding.unit)

    values = [text(value) for value in (finding.before, finding.after, finding.limit)]
    return [finding.config, finding.measure, *values, finding.verdict]


def junit_report(findings: Sequence[Finding]) -> str:
    """JUnit XML: one test case a config and measure."""
    from xml.etree import ElementTree

    failures = sum(finding.failed for finding in findings)
    suite = ElementTree.Element("testsuite", name="ppsim check", tests=str(len(findings)), failures=str(failures))
    for finding in findings:
        case = ElementTree.SubElement(suite, "testcase", classname=finding.config, name=finding.measure)
        if finding.failed:
            _, _, before, after, limit, verdict = row(finding)
            failure = ElementTree.SubElement(
                case, "failure", message=f"{verdict}: {before} -> {after}, allowed {limit}"
            )
            failure.text = "\n".join(finding.why)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"
