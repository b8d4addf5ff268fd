"""The published runs of docs/data/published_runs.yaml and of the zero-bubble paper, each as a config to simulate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml
import zero_bubble_table

from ppsim import DerivedCosts, PpsimError, Timeline
from ppsim.config.config import Config, ConfigSource
from ppsim.costs.operators import FITTED
from ppsim.costs.spread import class_of

DATA = Path(__file__).resolve().parents[1] / "docs" / "data"
RUNS, LEFT_OUT = DATA / "published_runs.yaml", DATA / "left_out.json"
OF_LAW = {name: name for name in ("sustained", "tail", "memory", "launch")}
OF_LAW |= {"sustained_blackwell": "sustained", "memory_hbm3": "memory"}
CONSTANTS = ("sustained", "sustained_blackwell", "tail", "memory", "memory_hbm3", "launch", "contention")


@dataclass(frozen=True)
class Run:
    """A published run: its source, its config, the measured seconds of a step.

    `sweep` is what it shares with the runs that it differs from in its layout alone. `by_sheet` is the config with the
    known device in the place of one whose kernels the source measured. `earlier` are the seconds that the source
    measured of the same layout in earlier releases.
    """

    name: str
    source: str
    config: Config
    measured: float
    sweep: str
    by_sheet: Config | None = None
    earlier: tuple[float, ...] = ()

    def simulated(self, constants: Mapping[str, float] = FITTED) -> Timeline:
        """The run with other constants of the operator law."""
        return replace(self.config, costs=with_constants(self.costs, constants)).simulate()

    @property
    def costs(self) -> DerivedCosts:
        costs = self.config.costs
        assert isinstance(costs, DerivedCosts)  # noqa: S101 - every config here has a model
        return costs


def with_constants(costs: DerivedCosts, constants: Mapping[str, float]) -> DerivedCosts:
    """Costs whose device follows the law with these constants in the place of the fitted ones; measured ones stay."""
    cluster, law = costs.cluster, costs.cluster.device.operators
    assert law is not None  # noqa: S101 - every device here is a known one
    changed = {field: constants[name] for name, field in OF_LAW.items() if getattr(law, field) == FITTED[name]}
    law = replace(law, **changed)
    device = replace(cluster.device, operators=law)
    return replace(costs, cluster=replace(cluster, device=device, contention=constants["contention"]))


def class_of_run(run: Run) -> str:
    """The class that its errors count in."""
    return class_of(run.costs, run.config.schedule["devices"])


@cache
def read_runs(path: Path = RUNS) -> dict[str, Any]:
    """The data file: models, devices, sources, runs and what was left out."""
    return yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)


def published_runs() -> list[Run]:
    """All runs that the simulator does not refuse."""
    data = read_runs()
    return [run for one in data["runs"] if isinstance(run := run_of(data, one), Run)] + list(zero_bubble_runs())


def refused_runs() -> list[tuple[str, str]]:
    """(run, rule) of those that it refuses."""
    data = read_runs()
    return [(one["id"], run) for one in data["runs"] if isinstance(run := run_of(data, one), str)]


def run_of(data: Mapping[str, Any], run: Mapping[str, Any]) -> Run | str:
    """One run of the data file, or the rule that it breaks."""
    try:
        config = ConfigSource(config_of(data, run), run["id"]).config()
        config.costs.table(config.build())
    except PpsimError as error:
        return str(error)
    sweep = f"{run['group']}: {run['model']}, {run['sequence']} tokens, {run['device']}"
    sweep += ", fp8" if "fp8" in run["layout"] else ""
    known = data["sheets"].get(run["device"])
    by_sheet = ConfigSource(config_of(data, {**run, "device": known}), run["id"]).config() if known else None
    return Run(
        run["id"],
        run["group"],
        config,
        run["step_seconds"],
        sweep,
        by_sheet,
        tuple(run.get("earlier", ())),
    )


def config_of(data: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The config of one run of the data file."""
    own = {key: run[key] for key in ("sequence", "attention") if key in run}
    return {
        "model": data["models"][run["model"]] | own,
        "hardware": data["devices"][run["device"]] | {"gpus": run["gpus"]},
        "layout": run["layout"],
        "schedule": run["schedule"],
        "transport": "directed",
        "optimizer": "sync",
        "engine": "compiled",
    }


def zero_bubble_runs() -> Iterator[Run]:
    """Table 4 of the zero-bubble paper, less the row that configs/ has."""
    for row, config in zero_bubble_table.configs():
        if (row["model"], row["schedule"]) != ("28.3B", "zb-1p"):
            samples = config.schedule["microbatches"] * int(row["microbatch_size"])
            seconds = samples / float(row["samples_per_gpu_second"]) / config.schedule["devices"]
            name, source = f"{row['model']}-{row['schedule']}", "Qi et al. 2023 table 4"
            yield Run(name, source, config, seconds, f"{source}: {row['model']}")
