"""1F1B with the output layer cut over all devices: S and T between F and B, and the interlaced pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, shown
from ppsim.base.rules import is_number
from ppsim.families.registry import family, require_choice
from ppsim.schedule.blocks import Block, backward_run, forward_run, in_slot_order

VARIANTS = ("1", "2", "interlaced")


@family(
    "vocab-1f1b",
    title="1F1B with vocabulary parallelism",
    idea="The output layer is split over all devices, so that the last stage is no longer than the others. S computes "
    "a device's part of the logits and the softmax statistics, T their gradient. The output of the last stage is "
    "broadcast; the reductions of the statistics and of the input gradient overlap computation. Variant 1 has two "
    "reductions, with a slot between S and T. In variant 2 S computes the gradient too, and one reduction is "
    "left. `interlaced` runs T directly after S, so that every device waits for both reductions. The positions of "
    "S and T follow from the ratio of `forward` and `backward`. The costs are `vocabulary_forward`, "
    "`vocabulary_backward`, `vocabulary_reduce` and `vocabulary_statistics`. The look-up of the input embedding "
    "is priced with stage 0; its weights are split too.",
    constraints="devices >= 1, microbatches >= 1, backward >= forward; variant 1 (default), 2 or interlaced",
    makespan="= (m+p-1)(F+B) + m(S+T) + c at p > 1{, 1F1B's bubble, with a reduction of c <= F in variant 2, and in "
    "variant 1 m > 1, statistics in at most F, the gradient in c <= S, and S and T at least F/4|, F <= B, variant < 3, "
    "m > 1, c <= F, c' <= F, c <= S, S >= F/4, T >= F/4}; {interlaced|} = (m+p-1)(F+B) + m(S+T+c+c'){, c' of the "
    "statistics|, F <= B, variant = 3, p > 1}",
    peak_activations="= min(m, p-r+2) {in|for} variant{| =} 1, min(m, p-r+1) {in|for} variant{| =} 2, "
    "min(m, floor(3p/2)-r) {interlaced|for variant = 3; F <= B}",
    source="Yeung et al. 2024, Balancing Pipeline Parallelism with Vocabulary Parallelism, arXiv 2411.05288; "
    "sail-sg/VocabularyParallelism, megatron/core/pipeline_parallel/vocab_parallel_schedule.py and "
    "interlaced_schedule.py; interlaced: Lin et al. 2024, nnScaler, OSDI '24",
)
def vocabulary_parallel(
    p: int, m: int, v: int, *, variant: int | str = 1, forward: float = 1.0, backward: float = 2.0
) -> Iterator[Block]:
    """Return the lists of the variant; see `_overlapping_reductions` and `_interlaced`."""
    require_choice("variant", str(variant), VARIANTS)
    if str(variant) == "interlaced":
        return _interlaced(p, m)
    _require_lengths(forward, backward)
    return _overlapping_reductions(p, m, 2 if str(variant) == "1" else 1, *_placement(p, forward, backward))


def _require_lengths(forward: Any, backward: Any) -> None:
    for name, length in (("forward", forward), ("backward", backward)):
        if not is_number(length) or not 0 < length < float("inf"):
            raise BuildError(f"vocab-1f1b: {name}={shown(length)} must be seconds above 0, such as 1.0")
    if backward < forward:
        raise BuildError(
            f"vocab-1f1b: backward={backward:g} is shorter than forward={forward:g}, and the places of S follow from a "
            f"backward that is no shorter; use backward={forward:g} or more"
        )


def _placement(p: int, forward: float, backward: float) -> tuple[list[bool], list[int]]:
    """Return for each device whether S is before F in its steady part, and the number of S before its first B.

    From the last device to the first, each device begins its B one forward later than the next. When the sum of these
    delays reaches a backward, S comes after F instead, and the sum starts again.
    """
    before_f, offset = [True], 0.0
    while len(before_f) < p:
        if offset - forward >= -backward:
            offset -= forward
            before_f.append(True)
        else:
            offset += backward - forward
            before_f += [False, True]
    before_f = before_f[:p][::-1]
    early = [0] * p
    for r in range(p - 2, -1, -1):
        early[r] = early[r + 1] + (before_f[r + 1] or not before_f[r])
    return before_f, early


def _overlapping_reductions(p: int, m: int, barriers: int, before_f: list[bool], early: list[int]) -> Iterator[Block]:
    """Yield min(p-r, m) F; `barriers` times (S, F); the early S; then (B, S, F) or (B, F, S) to the end.

    With two barriers, T of a microbatch comes directly before S of the next microbatch; the last T comes alone.
    """
    number = np.arange(m + 1)
    for r in range(p):
        warmup = min(p - r, m)
        first, steady = warmup + 2 * barriers, warmup + 2 * barriers + early[r]
        part_turn, forward_turn = (1, 2) if before_f[r] else (2, 1)
        of_part = np.select(
            [number < barriers, number < barriers + early[r]],
            [warmup + 2 * number, first + number - barriers],
            steady + 3 * (number - barriers - early[r]) + part_turn,
        )
        of_forward = np.select(
            [number < warmup, number < warmup + barriers],
            [number, 2 * number + 1 - warmup],
            steady + 3 * (number - warmup - barriers) + forward_turn,
        )
        rows = [
            (forward_run(r, number[:m]), 2 * of_forward[:m]),
            (Block(Kind.S, r, number[:m]), 2 * of_part[:m] + 1),
            (backward_run(r, number[:m]), 2 * (steady + 3 * number[:m])),
        ]
        if barriers == 2:
            rows.append((Block(Kind.T, r, number[:m]), 2 * of_part[1:]))
        yield in_slot_order(*rows)


def _interlaced(p: int, m: int) -> Iterator[Block]:
    """Yield min(floor(3p/2)-r, m) F; min(p-r, m) times S and T; some (B, S, T); then (F, B, S, T) or (B, F, S, T)."""
    number = np.arange(m)
    for r in range(p):
        warmup, parts = min(3 * p // 2 - r, m), min(p - r, m)
        waiting = max(0, warmup - parts - (p - r - 1) // 2)
        first, steady = warmup + parts, warmup + parts + 2 * waiting
        backward_turn, forward_turn = (1, 0) if (p - r) % 2 == 0 else (0, 1)
        early, later = first + 2 * number, steady + 3 * number
        of_part = np.select(
            [number < parts, number < parts + waiting],
            [warmup + number, first + 2 * (number - parts) + 1],
            steady + 3 * (number - parts - waiting) + 2,
        )
        yield in_slot_order(
            (forward_run(r, number), 2 * np.where(number < warmup, number, later - 3 * warmup + forward_turn)),
            (Block(Kind.S, r, number), 2 * of_part),
            (Block(Kind.T, r, number), 2 * of_part + 1),
            (backward_run(r, number), 2 * np.where(number < waiting, early, later - 3 * waiting + backward_turn)),
        )
