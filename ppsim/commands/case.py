"""What a command was asked to simulate: a config file with changes, or flags alone, as one object."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ppsim.costs import CostModel, Costs
from ppsim.engines import simulate
from ppsim.errors import ConfigError
from ppsim.schedule import Schedule
from ppsim.schedules import build
from ppsim.timeline import Timeline

SIZE_FLAGS = ("schedule", "devices", "microbatches", "stages_per_device")
COST_FLAGS = ("forward", "backward", "input_grad", "weight_grad", "overlap", "latency")


@dataclass(frozen=True)
class Case:
    """Sizes, costs and engine of one simulation; `schedule` is a family's name or a CSV file's."""

    schedule: str
    devices: int | None
    microbatches: int | None
    stages_per_device: int | None
    costs: CostModel
    options: dict[str, Any] = field(default_factory=dict)
    transport: str = "async"
    engine: str = "auto"
