"""`ppsim advise`: single changes of a config, best first, each with the cause of idle time that it removes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from ppsim.analysis.measures import MEASURES
from ppsim.base.tables import WIDTH, aligned, layout_lines
from ppsim.base.units import difference_text, percent_text, seconds_text, value_text
from ppsim.commands import options
from ppsim.commands.options import takes_case
from ppsim.commands.reporting import answer, command
from ppsim.config import Config
from ppsim.studies import advise as study
from ppsim.studies.advise import AdviceList
from ppsim.studies.points import Candidate
from ppsim.studies.reasons import limiting_factors

SCHEMA = "ppsim.advise/1"
MAX_CHANGES = 10  # of the page


@takes_case()
@command
def advise(
    read: Callable[[], Config],
    headroom: options.Headroom = options.DEFAULT_HEADROOM,
    framework: options.Framework = None,
    json: options.JsonTarget = None,
) -> None:
    """Say which single change of a config helps most, and why."""
    found = study.advise(read(), options.read_headroom(headroom), framework=framework)
    answer(_document(found), json, lambda: "\n".join(page(found)))


def page(found: AdviceList, max_changes: int = MAX_CHANGES) -> list[str]:
    """Return the lines of the page: what limits the run, then the best changes."""
    run, better = found.run, found.better
    reasons = [f"{found.config.name}: step {seconds_text(run.iteration_time)}", *limiting_factors(run)]
    if found.fits is False:
        peak = MEASURES["peak_memory"].text(run)
        free = f" with {percent_text(found.headroom)} of the memory kept free" * (found.headroom > 0)
        reasons.append(f"peak memory {peak} does not fit{free}: what makes it fit helps, even if slower")
    lines = [*textwrap.wrap("; ".join(reasons), WIDTH), ""]
    if not better:
        return [*lines, f"no single change {'makes it fit' if found.fits is False else 'shortens the step and fits'}"]
    rows = [["change", "step", "", "tokens/s", "peak", "removes"]]
    rows += [_row(one, run.iteration_time) for one in better[:max_changes]]
    lines += aligned(rows, left=1)
    cut = next((one for one in better[:max_changes] if one.changes.get("layout.partition")), None)
    lines += ["", *layout_lines(run.layout_string, "layout string now")]
    lines += layout_lines(cut.layout_string if cut else None, "layout.partition")
    rest = len(found.advice) - len(better)
    lines.append(f"changes: {len(better)} help, {rest} do not help or do not fit, {len(found.refused)} not possible")
    return lines


def _row(one: Candidate, before: float) -> list[str]:
    unit = "bytes" if one.fits is not None else "microbatches"
    return [
        one.words,
        seconds_text(one.step),
        percent_text(one.step_difference / before, signed=True),
        value_text(one.tokens_per_second, "tokens"),
        difference_text(one.peak_difference, unit),
        one.removes or "-",
    ]


def _document(found: AdviceList) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "step": found.run.iteration_time,
        "fits": found.fits,
        "headroom": found.headroom,
        "layout_string": found.run.layout_string,
        "limits": list(limiting_factors(found.run)),
        "advice": found.rows(),
        "refused": dict(found.refused),
        "units": {
            "step": "seconds", "step_difference": "seconds", "tokens_per_second": "tokens per second",
            "peak": "bytes of the fullest device; live activations where bytes are not known",
            "removes": "seconds of idle time of the mean device, by cause",
        },
    }  # fmt: skip
