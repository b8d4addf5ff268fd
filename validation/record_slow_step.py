"""Record the traces of notebooks/09-why-is-my-step-slow.ipynb, into a folder.

`torchrun --nproc-per-node 4 validation/record_slow_step.py validation/data/cpu/slow-step` records five steps of
PyTorch's 1F1B on gloo, with timed sleeps in place of computation (10 ms per forward, 20 ms per backward) and three
faults: stage 2 takes 30 % longer, one backward of step 3 is held up by 120 ms, and the data of each step come
40 ms late.
"""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from validation.record import record_step

MICROBATCHES, STEPS = 8, 5
FORWARD, BACKWARD, LATE_DATA = 0.010, 0.020, 0.040  # seconds
SLOW_STAGE, SLOWER = 2, 1.3
STRAGGLER, HELD_UP = (3, 1, 4), 0.120  # step, stage and microbatch of a backward, and seconds


class Timed(torch.autograd.Function):
    """The identity, which takes time in both directions."""

    @staticmethod
    def forward(context: object, batch: torch.Tensor, layer: TimedLayer) -> torch.Tensor:
        """Sleep and return the batch."""
        context.layer = layer  # type: ignore[attr-defined]
        time.sleep(FORWARD * layer.factor)
        return batch.clone()

    @staticmethod
    def backward(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Sleep and return the gradient."""
        layer = context.layer  # type: ignore[attr-defined]
        held_up = (layer.step, layer.stage, layer.backwards) == STRAGGLER
        time.sleep(BACKWARD * layer.factor + (HELD_UP if held_up else 0.0))
        layer.backwards += 1
        return gradient, None


class TimedLayer(torch.nn.Module):
    """A linear layer that takes the time of its stage."""

    def __init__(self, stage: int):
        super().__init__()
        self.linear, self.stage = torch.nn.Linear(8, 8), stage
        self.factor = SLOWER if stage == SLOW_STAGE else 1.0
        self.step = self.backwards = 0

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the layer of the batch."""
        return Timed.apply(self.linear(batch), self)


def main(folder: Path) -> None:
    """Entry point under torchrun."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    layer, batch = TimedLayer(rank), torch.randn(2 * MICROBATCHES, 8)
    stage = PipelineStage(layer, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)

    def step() -> None:
        layer.backwards = 0
        time.sleep(LATE_DATA)
        inputs, target = [batch] if rank == 0 else [], batch if rank == world - 1 else None
        schedule.step(*inputs, target=target, return_outputs=False)
        dist.barrier()

    layer.step = -1
    step()  # warms up
    with record_step(folder):
        for layer.step in range(STEPS):
            step()
    written = folder / f"rank-{rank}.json"
    written.with_suffix(".json.gz").write_bytes(gzip.compress(written.read_bytes(), 9, mtime=0))
    written.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("give the folder to write, such as validation/data/cpu/slow-step")
    main(Path(sys.argv[1]))
