"""Profile PyTorch's own pipeline runtime: `torchrun ... validation/profile_pytorch.py --schedule NAME --out FOLDER`.

Each rank writes `rank-N.json.gz` into a folder that `ppsim calibrate` and `ppsim evaluate` read.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
from torch.profiler import ProfilerActivity, profile

import ppsim

WARM_UP = 1
READ = ("PP:", "autograd::engine::evaluate_function", "gloo:recv", "nccl:recv")  # begins of the names that ppsim reads


class Slow(torch.nn.Module):
    """A stage of matrix products that take long enough to be seen."""

    def __init__(self, width: int, depth: int):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(depth)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through all layers."""
        return self.layers(x)


def run(options: argparse.Namespace) -> None:
    """Run the steps of one schedule under the profiler and write this rank's file."""
    rank, world = dist.get_rank(), dist.get_world_size()
    schedule = ppsim.build(options.schedule, devices=world, microbatches=options.microbatches)
    own = sorted(int(stage) for device, stage in schedule.holdings if device == rank)
    stages = [
        PipelineStage(Slow(options.width, options.depth), stage, schedule.num_stages, torch.device("cpu"))
        for stage in own
    ]
    pipeline = _PipelineScheduleRuntime(stages, schedule.microbatches, loss_fn=torch.nn.functional.mse_loss)
    with tempfile.TemporaryDirectory() as folder:
        csv = Path(folder) / "program.csv"
        ppsim.lower(schedule, sharded=True).to_csv(csv)
        pipeline._load_csv(str(csv), format="compute_comms")
    batch = torch.randn(options.rows * schedule.microbatches, options.width)
    given = {"target": batch if schedule.num_stages - 1 in own else None, "return_outputs": False}
    inputs = [batch] if 0 in own else []
    for _ in range(WARM_UP):
        pipeline.step(*inputs, **given)
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(options.steps):
            pipeline.step(*inputs, **given)
            dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(whole))
        document = slim(json.loads(whole.read_text()))
    Path(options.out).mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(json.dumps(document).encode(), mtime=0)
    (Path(options.out) / f"rank-{rank}.json.gz").write_bytes(packed)


def slim(document: dict) -> dict:
    """What `ppsim` reads of a profiler trace; without host names, paths and the operators inside the ranges."""
    kept = {name: document[name] for name in ("schemaVersion", "distributedInfo", "baseTimeNanoseconds")}
    fields = ("ph", "cat", "name", "ts", "dur", "tid")
    events = [
        {field: event[field] for field in fields}
        for event in document["traceEvents"]
        if event.get("ph") == "X" and str(event["name"]).startswith(READ)
    ]
    return {**kept, "traceEvents": events}


def main() -> None:
    """Entry point under torchrun."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--out", required=True, help="folder to write into")
    for name, value in (("microbatches", 4), ("steps", 2), ("width", 256), ("depth", 2), ("rows", 256)):
        parser.add_argument(f"--{name}", type=int, default=value)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    run(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
