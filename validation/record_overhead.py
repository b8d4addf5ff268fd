"""Measure what `record_step` costs: `torchrun --nproc-per-node 2 validation/record_overhead.py`.

Steps of PyTorch's 1F1B on gloo run in turn without a recorder, with `record_step`, and with PyTorch's profiler. Rank 0
prints the median step of each in milliseconds, and the processor time per recorded action in microseconds; `--out FILE`
stores them with the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.profiler import ProfilerActivity, profile

from validation.environment import describe_environment
from validation.record import Recorder, record_step

EMPTY_ACTIONS = 100_000


def action_microseconds() -> float:
    """Return the processor time that a recorder adds to an action that does nothing."""
    recorder = Recorder()

    class Empty:
        stage_index, group = 0, None

        def forward_one_chunk(self, microbatch: int) -> None:
            pass

    plain = Empty.forward_one_chunk
    recorded, stage = recorder.recorded(lambda: "F", plain), Empty()
    seconds = []
    for method in (plain, recorded):
        begin = time.process_time()
        for microbatch in range(EMPTY_ACTIONS):
            method(stage, microbatch)
        seconds.append(time.process_time() - begin)
    return (seconds[1] - seconds[0]) / EMPTY_ACTIONS * 1e6


def run(options: argparse.Namespace) -> dict[str, float]:
    """Return the median step in milliseconds with each recorder."""
    rank, world = dist.get_rank(), dist.get_world_size()
    layers = torch.nn.Sequential(*(torch.nn.Linear(options.width, options.width) for _ in range(4)))
    stage = PipelineStage(layers, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, options.microbatches, loss_fn=torch.nn.functional.mse_loss)
    batch = torch.randn(options.rows * options.microbatches, options.width)
    ways: dict[str, Callable[[str], AbstractContextManager]] = {
        "without": lambda _: nullcontext(),
        "record_step": record_step,
        "profiler": lambda _: profile(activities=[ProfilerActivity.CPU]),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.steps + 1):  # the first round warms up
            for name, way in ways.items():
                dist.barrier()
                with way(folder):
                    begin = time.perf_counter()
                    schedule.step(
                        *([batch] if rank == 0 else []), target=batch if rank == world - 1 else None,
                        return_outputs=False,
                    )  # fmt: skip
                    dist.barrier()
                    seconds[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    """Entry point under torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("microbatches", 16), ("steps", 30), ("width", 512), ("rows", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    medians = run(options)
    if dist.get_rank() == 0:
        per_action = action_microseconds()
        print(*(f"{name}: {value:.2f} ms" for name, value in medians.items()), sep="\n")
        print(f"per action: {per_action:.2f} us")
        if options.out:
            found = {
                "backend": "gloo",
                "ranks": dist.get_world_size(),
                "microbatches": options.microbatches,
                "steps": options.steps,
                "median_step_milliseconds": {name: round(value, 2) for name, value in medians.items()},
                "processor_microseconds_per_action": round(per_action, 2),
                "environment": describe_environment(torch.device("cpu")),
            }
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
