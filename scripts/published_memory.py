"""Peaks of memory that sources publish, each beside what the cost model predicts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import zero_bubble_table
from published import Run, read_runs, run_of

from ppsim import Timeline
from ppsim.base.units import parse_quantity


@dataclass(frozen=True)
class Peak:
    """Bytes of the fullest GPU of a run; `counted` says whether its error is in the mean."""

    name: str
    source: str
    measured: float
    predicted: float
    counted: bool = True

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def published_peaks() -> list[Peak]:
    """Every published peak."""
    return [*_of_data_file(), *_of_zero_bubble()]


def _of_data_file() -> Iterator[Peak]:
    data = read_runs()
    runs = {one["id"]: one for one in data["runs"]}
    for row in data["memory"]:
        of = runs[row["run"]] if "run" in row else row
        run = run_of(data, {"step_seconds": 0.0, **of})
        assert isinstance(run, Run)  # noqa: S101 - the simulator refuses none of them
        yield Peak(
            run.name, run.source, parse_quantity(row["peak"], "bytes"), _peak(run.simulated()), row.get("counted", True)
        )


def _of_zero_bubble() -> Iterator[Peak]:
    for row, run in zero_bubble_table.rows():
        name = f"{row['model']}-{row['schedule']}"
        yield Peak(name, "Qi et al. 2023 table 4", 1e9 * float(row["memory_gb"]), _peak(run))


def _peak(run: Timeline) -> float:
    return float(run.memory().peak.max())
