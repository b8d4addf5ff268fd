"""Which microbatch and stage a rank's n-th forward and backward are, where a recording only counts them.

Megatron-LM's numbering (NVIDIA/Megatron-LM, megatron/core/pipeline_parallel/schedules.py, `get_schedule_table`): groups
of as many microbatches as there are ranks pass through all chunks of a rank, and backwards take the chunks in reverse.
"""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.base.errors import ConfigError


def numbered(kinds: Sequence[str], rank: int, ranks: int, chunks: int) -> list[str]:
    """The actions of a rank, from "F" and "B" in the order in which it ran them.

    Raises ConfigError where the forwards are not as many as the backwards, or do not fill all chunks.
    """
    forwards, backwards = kinds.count("F"), kinds.count("B")
    if forwards != backwards or forwards % chunks:
        raise ConfigError(
            f"rank {rank} has {forwards} forwards and {backwards} backwards of one step; they must be equally many, a "
            f"multiple of its {chunks} model chunk(s)"
        )
    table = _table(forwards // chunks, ranks, chunks)
    order = {
        "F": iter([f"{chunk * ranks + rank}F{microbatch}" for chunk, microbatch in table]),
        "B": iter([f"{(chunks - 1 - chunk) * ranks + rank}B{microbatch}" for chunk, microbatch in table]),
    }
    return [next(order[kind]) for kind in kinds]


def chunks_of(kinds: Sequence[str], ranks: int) -> int:
    """Model chunks of the last rank: with v of them its first backward comes after (v - 1) ranks + 1 forwards.

    1 where every forward precedes every backward (GPipe), or the count fits no interleaved schedule.
    """
    if "B" not in kinds:
        return 1
    before = list(kinds).index("B")
    whole = 0 < before < kinds.count("F") and (before - 1) % ranks == 0
    return 1 + (before - 1) // ranks if whole else 1


def _table(microbatches: int, ranks: int, chunks: int) -> list[tuple[int, int]]:
    """(chunk, microbatch) of the n-th forward."""
    if chunks == 1:
        return [(0, microbatch) for microbatch in range(microbatches)]
    return [
        (chunk, microbatch)
        for first in range(0, microbatches, ranks)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + ranks, microbatches))
    ]
