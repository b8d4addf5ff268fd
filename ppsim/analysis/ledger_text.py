"""The bubble ledger as text: idle time by device and cause, in all, and whom each device waited for."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ppsim.analysis.blame import Blame
from ppsim.analysis.gaps import PHASES
from ppsim.base.tables import aligned
from ppsim.base.units import percent_text, seconds_text

MOST_DEVICES = 16  # rows; of more devices, neighbours are summed
MOST_BLAMED = 3  # named for each device
_SEEN = 1e-9  # of all idle time; less is rounding


def ledger_text(
    ledger: Mapping[str, np.ndarray],
    definitions: Mapping[str, str],
    blame: Blame,
    waited: Mapping[str, np.ndarray],
) -> str:
    """A row a device and a column a cause that occurs, with totals and shares; what they mean; who was waited for.

    `ledger` has seconds by cause, one entry a device, and `definitions` says what each cause is; `waited` is that of
    `ppsim.analysis.ledger.Ledger`, and `blame` that of the groups of `device_groups`.
    """
    idle = np.sum(list(ledger.values()), axis=0)
    total = float(idle.sum())
    if total <= 0:
        return "no device is ever idle\n"
    causes = [cause for cause, seconds in ledger.items() if seconds.sum() > _SEEN * total]
    groups = device_groups(len(idle))
    columns = [ledger[cause] for cause in causes] + [idle]
    rows = [("idle time", *causes, "all")]
    rows += [(_name(group), *(_text(column[group], total) for column in columns)) for group in groups]
    rows.append(("all devices", *(_text(column, total) for column in columns)))
    rows.append(("share", *(percent_text(float(column.sum()) / total) for column in columns)))
    lines = [*aligned(rows, left=1), "", *aligned([(cause, definitions[cause]) for cause in causes])]
    blamed = [_blame_line(_name(group), blame.of(number), total) for number, group in enumerate(groups)]
    if any(blamed):
        lines += ["", "waited for another device to compute:", *_phase_lines(waited, total), *filter(None, blamed)]
    return "\n".join(lines) + "\n"


def device_groups(devices: int) -> list[np.ndarray]:
    """The devices of each row of the table."""
    return np.array_split(np.arange(devices), min(devices, MOST_DEVICES))


def _phase_lines(waited: Mapping[str, np.ndarray], total: float) -> list[str]:
    """When the devices waited, all together: a line a phase in which one did."""
    rows = [(f"  {phase}", _text(seconds, total), PHASES[phase]) for phase, seconds in waited.items()]
    return aligned([row for row, seconds in zip(rows, waited.values(), strict=True) if seconds.sum() > _SEEN * total])


def _text(seconds: np.ndarray, total: float) -> str:
    return seconds_text(float(seconds.sum()) if seconds.sum() > _SEEN * total else 0.0)


def _name(group: np.ndarray) -> str:
    return f"device {group[0]}" if len(group) == 1 else f"devices {group[0]}-{group[-1]}"


def _blame_line(name: str, blamed: list[tuple[int, str, float]], total: float) -> str:
    """Whom these devices waited for, longest first."""
    named = [
        f"device {holder} in {kind} {seconds_text(seconds)}"
        for holder, kind, seconds in blamed
        if seconds > _SEEN * total
    ]
    more = len(named) - MOST_BLAMED
    return f"  {name}: {', '.join(named[:MOST_BLAMED])}{f', and {more} more' * (more > 0)}" if named else ""
