"""Column combinators: the few words in which every schedule family is written."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ppsim.actions import Kind

ArrayLike = int | Sequence[int] | np.ndarray


# A row is one number, so that a step of a generator is one operation on one column: from the highest bits down its
# kind, whether it is joined, its stage and its microbatch, the last two with a sign.
MICROBATCH_BITS, STAGE_BITS = 30, 29
JOINED_BIT = MICROBATCH_BITS + STAGE_BITS
KIND_BIT = JOINED_BIT + 1
ABOVE_MICROBATCH, ABOVE_STAGE = 64 - MICROBATCH_BITS, 64 - JOINED_BIT
_MICROBATCHES, _STAGES = (1 << MICROBATCH_BITS) - 1, (1 << STAGE_BITS) - 1


class Block:
    """A run of compute actions of one device; slicing gives a Block again.

    Made from numbers or columns, which are broadcast against each other. `joined[i]` says that row i is the second part
    of an OVERLAP_F_B slot whose first part is row i - 1. All four are read from `code`, an int64 column.
    """

    __slots__ = ("code",)

    def __init__(self, kind: ArrayLike, stage: ArrayLike, microbatch: ArrayLike, joined: ArrayLike = 0):
        above = (
            (_whole(kind) << KIND_BIT) + (_whole(joined) << JOINED_BIT) + ((_whole(stage) & _STAGES) << MICROBATCH_BITS)
        )
        self.code = np.asarray((_whole(microbatch) & _MICROBATCHES) + above, np.int64).reshape(-1)

    @classmethod
    def of(cls, code: np.ndarray) -> "Block":
        """The rows that these numbers mean."""
        made = cls.__new__(cls)
        made.code = code
        return made

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, rows: slice | np.ndarray) -> "Block":
        return Block.of(self.code[rows])

    @property
    def kind(self) -> np.ndarray:
        """Code of each row's kind, int8."""
        return (self.code >> KIND_BIT).astype(np.int8)

    @property
    def stage(self) -> np.ndarray:
        """Stage of each row, int32."""
        return (self.code << ABOVE_STAGE >> 64 - STAGE_BITS).astype(np.int32)

    @property
    def microbatch(self) -> np.ndarray:
        """Microbatch of each row, int32."""
        return (self.code << ABOVE_MICROBATCH >> ABOVE_MICROBATCH).astype(np.int32)

    @property
    def joined(self) -> np.ndarray:
        """Whether each row is the second part of a fused slot, bool."""
        return (self.code >> JOINED_BIT & 1).astype(bool)

    def as_kind(self, kind: Kind) -> "Block":
        """The same rows as actions of another kind."""
        return Block.of(self.code & (1 << KIND_BIT) - 1 | int(kind) << KIND_BIT)

    def stages_later(self, stages: int) -> "Block":
        """The same rows, of stages from 0 on, so many stages later."""
        return Block.of(self.code + (stages << MICROBATCH_BITS))

    def unfused(self) -> "Block":
        """The same rows, none fused with another."""
        return Block.of(self.code & ~(1 << JOINED_BIT))


def _whole(part: ArrayLike) -> Any:
    """A number as Python's own, of which sums cost little, and anything else as a column, int64."""
    return int(part) if isinstance(part, int) else np.asarray(part, np.int64)


def run(kind: Kind, stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of one kind; `stage` and `microbatch` are numbers or columns, broadcast against each other."""
    return Block(kind, stage, microbatch)


def forward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of F."""
    return run(Kind.F, stage, microbatch)


def backward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of B, the full backward."""
    return run(Kind.B, stage, microbatch)


def straight_runs(devices: int, microbatches: int, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """For each device all forwards and all backwards of the one stage that it runs, microbatches in order."""
    forwards, backwards = forward_run(0, np.arange(microbatches)), run(backward, 0, np.arange(microbatches))
    for device in range(devices):
        yield forwards.stages_later(device), backwards.stages_later(device)


def concatenate(*blocks: Block) -> Block:
    """The blocks one after the other."""
    return Block.of(np.concatenate([block.code for block in blocks]))


def alternate(*blocks: Block) -> Block:
    """First row of each block, then second row of each, and so on; the blocks are equally long."""
    code = np.empty((len(blocks[0]), len(blocks)), np.int64)
    for column, block in enumerate(blocks):
        code[:, column] = block.code
    return Block.of(code.reshape(-1))


def in_slot_order(*rows: tuple[Block, np.ndarray]) -> Block:
    """The rows of all blocks in the order of their slots; each block comes with the slot number of each of its rows."""
    return concatenate(*(block for block, _ in rows))[np.argsort(np.concatenate([slots for _, slots in rows]))]


def repeat(block: Block, times: int) -> Block:
    """The block `times` times, one after the other."""
    return block[np.tile(np.arange(len(block)), times)]


def fuse(first: Block, second: Block) -> Block:
    """OVERLAP_F_B slots: row i of `first` and row i of `second` in one slot, in that order."""
    return alternate(first, Block.of(second.code | 1 << JOINED_BIT))


def occurrence(codes: np.ndarray) -> np.ndarray:
    """For each entry how often its value stood before it in the column."""
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, np.diff(codes[order]) != 0)[: len(codes)]
    first = np.flatnonzero(is_first)
    before = np.empty(len(codes), np.int64)
    before[order] = np.arange(len(codes)) - np.repeat(first, np.diff(np.append(first, len(codes))))
    return before
