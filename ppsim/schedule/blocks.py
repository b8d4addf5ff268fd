"""Column combinators: the few words in which every schedule family is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ppsim.actions import Kind

ArrayLike = int | Sequence[int] | np.ndarray


class Block:
    """A run of compute actions of one device, as an int32 table; slicing gives a Block again.

    Its arguments, numbers or columns, are broadcast against each other and are the rows of `table`, int32 (4, rows).
    `joined` is True if a row is the second part of an OVERLAP_F_B slot whose first part is the row before it.
    """

    __slots__ = ("table",)

    def __init__(self, kind: ArrayLike, stage: ArrayLike, microbatch: ArrayLike, joined: ArrayLike = False):
        table = np.empty((4, *np.broadcast(kind, stage, microbatch, joined).shape), np.int32)
        table[0], table[1], table[2], table[3] = kind, stage, microbatch, joined
        self.table = table.reshape(4, -1)

    @classmethod
    def of(cls, table: np.ndarray) -> Block:
        """Return the Block of a table, without a copy."""
        block = cls.__new__(cls)
        block.table = table
        return block

    @property
    def kind(self) -> np.ndarray:
        """Kind code of each row."""
        return self.table[0]

    @property
    def stage(self) -> np.ndarray:
        """Stage of each row."""
        return self.table[1]

    @property
    def microbatch(self) -> np.ndarray:
        """Microbatch of each row."""
        return self.table[2]

    @property
    def joined(self) -> np.ndarray:
        """Bool column: the row is the second part of a fused slot."""
        return self.table[3] != 0

    def __len__(self) -> int:
        return self.table.shape[1]

    def __getitem__(self, rows: slice | np.ndarray) -> Block:
        return Block.of(self.table[:, rows])

    def stages_later(self, stages: int) -> Block:
        """Return the rows with a number added to their stages."""
        table = self.table.copy()
        table[1] += stages
        return Block.of(table)


def forward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """Return a run of F."""
    return Block(Kind.F, stage, microbatch)


def backward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """Return a run of B, the full backward."""
    return Block(Kind.B, stage, microbatch)


def straight_runs(devices: int, microbatches: int, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """Yield for each device all forwards and all backwards of its one stage, microbatches in order."""
    forwards, backwards = forward_run(0, np.arange(microbatches)), Block(backward, 0, np.arange(microbatches))
    for device in range(devices):
        yield forwards.stages_later(device), backwards.stages_later(device)


def concatenate(*blocks: Block) -> Block:
    """Return the blocks one after the other."""
    return Block.of(np.concatenate([block.table for block in blocks], axis=1))


def alternate(*blocks: Block) -> Block:
    """Return the first row of each block, then the second row of each, and so on; the blocks are equally long."""
    table = np.empty((4, len(blocks[0]), len(blocks)), np.int32)
    for column, block in enumerate(blocks):
        table[:, :, column] = block.table
    return Block.of(table.reshape(4, -1))


def warmed_up(
    forwards: Block, backwards: Block, warmup: int, pair: Callable[[Block, Block], Block] = alternate
) -> Block:
    """Return `warmup` forwards (at most all), then pairs of a forward and a backward, then the remaining backwards."""
    warmup = min(warmup, len(forwards))
    paired = len(forwards) - warmup
    return concatenate(forwards[:warmup], pair(forwards[warmup:], backwards[:paired]), backwards[paired:])


def in_slot_order(*rows: tuple[Block, np.ndarray]) -> Block:
    """Return the rows of all blocks in the order of their slots; each block comes with its rows' slot numbers."""
    return concatenate(*(block for block, _ in rows))[np.argsort(np.concatenate([slots for _, slots in rows]))]


def repeat(block: Block, times: int) -> Block:
    """Return the block `times` times, one after the other."""
    return block[np.tile(np.arange(len(block)), times)]


def fuse(first: Block, second: Block) -> Block:
    """Return OVERLAP_F_B slots: row i of `first`, then row i of `second`, in one slot."""
    return alternate(first, Block(second.kind, second.stage, second.microbatch, True))


def occurrence(codes: np.ndarray) -> np.ndarray:
    """Return for each entry how often its value comes before it in the column."""
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, np.diff(codes[order]) != 0)[: len(codes)]
    first = np.flatnonzero(is_first)
    before = np.empty(len(codes), np.int64)
    before[order] = np.arange(len(codes)) - np.repeat(first, np.diff(np.append(first, len(codes))))
    return before
