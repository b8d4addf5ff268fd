"""Every published set-up of the catalogue, everything switched on, runs the same bits on both engines."""

from pathlib import Path

import numpy as np
import pytest

from ppsim import load_config

CONFIGS = sorted((Path(__file__).parent.parent / "configs").glob("*.yaml"))
COLUMNS = (
    "row_start", "row_end", "transfer_start", "transfer_end", "unshard_start", "unshard_end", "device_end",
    "device_busy", "exposed_communication",
)  # fmt: skip


def everything_on(path: Path, sharded: bool) -> dict:
    """Jitter, a slow device, a slow link, two network cards a node and an optimizer step, in a short step."""
    config = load_config(path)
    schedule = config.schedule
    changes: dict = {
        "transport": "directed",
        "schedule.microbatches": min(schedule["microbatches"], 2 * schedule["devices"]),
        "jitter": {
            "actions": 0.05, "transfers": 0.1, "devices": 0.02, "links": 0.1, "seed": 3,
            "slow_devices": {schedule["devices"] - 1: 1.5},
        },
    }  # fmt: skip
    if schedule["devices"] > 1:
        changes["jitter"]["slow_links"] = [{"between": [0, 1], "factor": 2}]
    if config.model is None:
        return changes
    if "encoder" in config.data:
        return changes | {"optimizer": "sync", "batch": None}
    data = config.costs.layout.data
    return changes | {
        "optimizer": "sync",
        "hardware.cards_per_node": 2,
        "hardware.gpus": None,
        "layout.data": max(data, 2),
        "layout.sharded": sharded,
    }


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_both_engines_run_a_published_set_up_to_the_same_bits_with_everything_on(path):
    sharded = CONFIGS.index(path) % 2 == 0
    changes = everything_on(path, sharded)
    event, compiled = (
        load_config(path, overrides={**changes, "engine": engine}).simulate() for engine in ("event", "compiled")
    )
    assert (event.engine, compiled.engine) == ("event", "compiled")
    for name in COLUMNS:
        assert np.array_equal(getattr(event, name), getattr(compiled, name), equal_nan=True), name
    assert event.makespan == compiled.makespan
    if event.table.workload is not None:
        assert len(event.reductions.device) > 0
        assert (len(event.unshards.device) > 0) == ("layout.sharded" in changes and sharded)
        assert event.optimizer_steps is not None


def test_noise_and_sharing_only_lengthen_the_step_of_the_175b_model():
    path = next(path for path in CONFIGS if path.stem == "gpt-3-175b-64xa100")
    plain = load_config(path).simulate()
    slow = load_config(path, overrides={"jitter.slow_devices": {3: 1.2}, "hardware.cards_per_node": 1}).simulate()
    assert slow.makespan > 1.1 * plain.makespan
