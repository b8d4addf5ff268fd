"""Compares the gradients of a replayed step with those of a single process."""

from __future__ import annotations

import torch
import torch.distributed as dist

from ppsim import Program
from validation.stages import Shape, reference_gradients
from validation.walk import Walker

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-4, torch.bfloat16: 5e-2}


def gradient_fault(program: Program, walker: Walker, shape: Shape, control: dist.ProcessGroup, rank: int) -> str | None:
    """None where they are equal to rounding; else a sentence with the worst weight. Every rank gets the same answer.

    A stage held by two devices counts the sum of both.
    """
    own = own_gradients(walker)
    world = dist.get_world_size(control)
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(own, gathered, group=control)
    answer = [compare_gradients(program, gathered, shape) if rank == 0 else None]
    dist.broadcast_object_list(answer, 0, group=control)
    return answer[0]


def own_gradients(walker: Walker) -> dict[int, list[torch.Tensor | None]]:
    """The weight gradients that one rank holds, by stage."""
    return {
        number: [None if linear.weight.grad is None else linear.weight.grad.detach().cpu() for linear in stage.linears]
        for number, stage in walker.stages.items()
    }


def compare_gradients(program: Program, gathered: list[dict], shape: Shape) -> str | None:
    """Compare what the ranks hold with a single process's step; None, or a sentence with the worst weight."""
    expected = iter(reference_gradients(program.num_stages, program.microbatches, shape, torch.device("cpu")))
    for stage in range(program.num_stages):
        held = [grads[stage] for grads in gathered if stage in grads]
        for parts in zip(*held, strict=True):
            total = sum(part for part in parts if part is not None)
            reference = next(expected).detach()
            error = float((total - reference).abs().max() / reference.abs().max().clamp_min(1e-30))
            if not error <= TOLERANCE[shape.dtype]:
                return f"gradients of stage {stage} differ from a single process's by {error:.2g} of the largest"
    return None
