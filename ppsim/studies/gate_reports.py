"""What the CI gate found, as text, Markdown, JUnit XML and plain values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ppsim.base.errors import visible
from ppsim.base.tables import aligned
from ppsim.base.units import value_text
from ppsim.interop.result import plain
from ppsim.studies.gate import Finding

_HEADING = ["config", "measure", "baseline", "now", "allowed", "verdict"]


def moved(findings: Iterable[Finding]) -> list[Finding]:
    """Those that changed or failed."""
    return [finding for finding in findings if finding.verdict != "same"]


def row(finding: Finding) -> list[str]:
    """Config, measure, baseline, now, allowed and verdict of a finding, as text with units."""

    def text(value: float | None) -> str:  # a gate closes for less than a tenth of a percent
        return value_text(value, finding.unit, places=2)

    values = [text(value) for value in (finding.before, finding.after, finding.limit)]
    return [visible(finding.config), finding.measure, *values, finding.verdict]


def findings_text(findings: Sequence[Finding]) -> str:
    """A table of what moved, with the busy time and the rows of the bubble ledger that changed below it.

    Where nothing did: how many measures were held to the baseline, and each limit that holds.
    """
    shown = moved(findings)
    if not shown:
        held = [finding for finding in findings if not finding.of_limit]
        configs = len({finding.config for finding in held})
        lines = [f"{len(held)} measures of {configs} config(s): nothing moved"] if held else []
        return "\n".join([*lines, *(_within(finding) for finding in findings if finding.of_limit)])
    lines = aligned([tuple(_HEADING), *(tuple(row(finding)) for finding in shown)], left=1)
    explained = {finding.config: finding.why for finding in shown if finding.why}
    lines += [f"time that changed in {config}, all devices: {'; '.join(why)}" for config, why in explained.items()]
    verdicts = {finding.verdict for finding in shown}
    if "new" in verdicts:
        lines.append("new: not in the baseline; add it with --update")
    if "lost" in verdicts:
        lines.append("lost: in the baseline, and no longer known")
    if verdicts == {"improved"}:
        lines.append("nothing got worse; keep what got better with --update")
    return "\n".join(lines)


def _within(finding: Finding) -> str:
    config, measure, _, now, limit, _ = row(finding)
    return f"{config}: {measure} {now} is within its limit of {limit}"


def markdown_report(findings: Sequence[Finding]) -> str:
    """A Markdown table of what moved, for a CI summary."""
    failed = sum(finding.failed for finding in findings)
    heading = f"{failed} measure(s) got worse" if failed else "no measure got worse"
    lines = [f"### ppsim check: {heading}", ""]
    shown = moved(findings)
    if shown:
        lines += [_markdown_row([*_HEADING, "time that changed, all devices"]), "|---|---|--:|--:|--:|---|---|"]
        lines += [_markdown_row([*row(finding), "; ".join(finding.why) or "-"]) for finding in shown]
    return "\n".join(lines) + "\n"


def _markdown_row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def junit_report(findings: Sequence[Finding]) -> str:
    """JUnit XML: one test case a config and measure, and one for each limit of it."""
    from xml.etree import ElementTree

    failures = sum(finding.failed for finding in findings)
    counts = {"tests": len(findings), "failures": failures, "errors": 0, "skipped": 0}
    suite = ElementTree.Element("testsuite", {"name": "ppsim check"} | {name: str(n) for name, n in counts.items()})
    for finding in findings:
        name = f"limit of {finding.measure}" if finding.of_limit else finding.measure
        case = ElementTree.SubElement(suite, "testcase", classname=visible(finding.config), name=name)
        if finding.failed:
            _, _, before, after, limit, verdict = row(finding)
            message = f"{verdict}: {before} -> {after}, allowed {limit}"
            ElementTree.SubElement(case, "failure", message=message).text = "\n".join(finding.why)
    ElementTree.indent(suite)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def document(findings: Sequence[Finding]) -> dict[str, Any]:
    """Everything found, as plain values (schema ppsim.check/1)."""
    return {
        "schema": "ppsim.check/1",
        "passed": not any(finding.failed for finding in findings),
        "findings": plain([asdict(finding) for finding in findings]),
    }
