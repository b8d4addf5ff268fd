"""Print throughput and memory of the zero-bubble paper's table 4 beside what the cost model predicts for each row."""

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ppsim
from ppsim import Timeline
from ppsim.config import Config

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "configs" / "zero-bubble-28b-32xa100.yaml"
TABLE = ROOT / "tests" / "references" / "zero_bubble_table_4.csv"
SEQUENCE = 1024
SCHEDULES = {"1f1b": "1f1b", "1f1b-i": "interleaved-1f1b", "zb-1p": "zb-h1", "zb-2p": "zb-h2"}


def main() -> None:
    """Print one row a model and schedule."""
    header = ("model", "published schedule", "ours", "samples/s and GPU", "published", "memory", "published")
    print("| " + " | ".join(header) + " |", "|" + "---|" * len(header), sep="\n")
    for row, run in rows():
        print(line(row, run))


def line(row: dict[str, str], run: Timeline) -> str:
    """One row of the table of docs/cost-model.md."""
    rate, memory = rate_of(run), run.memory().peak.max() / 1e9
    return (
        f"| {row['model']} | {row['schedule']} | {SCHEDULES[row['schedule']]} | {rate:.3g} | "
        f"{row['samples_per_gpu_second']} | {memory:.0f} GB | {row['memory_gb']} GB |"
    )


def rows() -> Iterator[tuple[dict[str, str], Timeline]]:
    """Each row of the published table with its simulated run."""
    for row, config in configs():
        yield row, config.simulate()


def configs() -> Iterator[tuple[dict[str, str], Config]]:
    """Each row of the published table with its config."""
    lines = TABLE.read_text().splitlines()[1:]
    for row in csv.DictReader([lines[0].removeprefix("# "), *lines[1:]]):
        yield row, ppsim.load_config(CONFIG, overrides=overrides(row))


def overrides(row: dict[str, str]) -> dict[str, Any]:
    """What differs from the config of the largest model; interleaved stages hold one block each."""
    layers, hidden, devices = (int(row[name]) for name in ("layers", "hidden", "devices"))
    interleaved = row["schedule"] == "1f1b-i"
    ends = {"first_stage_layers": 0, "last_stage_layers": 0} if interleaved else {}
    per_device = (layers + 2) // devices
    ends = ends or {"first_stage_layers": per_device - 1, "last_stage_layers": per_device - 1}
    return {
        "model.num_layers": layers,
        "model.heads": int(row["heads"]),
        "model.hidden": hidden,
        "model.ffn": 4 * hidden,
        "hardware.gpus": devices,
        "layout.microbatch_size": int(row["microbatch_size"]),
        "layout.partition": None,
        **{f"layout.{name}": blocks for name, blocks in ends.items()},
        "schedule.name": SCHEDULES[row["schedule"]],
        "schedule.devices": devices,
        "schedule.microbatches": int(row["microbatches"]),
        "schedule.stages_per_device": per_device if interleaved else None,
        "engine": "compiled",
    }


def rate_of(run: Timeline) -> float:
    """Samples a second and GPU."""
    assert run.tokens_per_second is not None  # noqa: S101 - the config has a model
    return run.tokens_per_second / SEQUENCE / run.schedule.devices


if __name__ == "__main__":
    sys.exit(main())
