"""Column combinators: the few words in which every schedule family is written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ppsim.actions import Kind

ArrayLike = int | Sequence[int] | np.ndarray


class Block:
    """A run of compute actions of one device, as four columns of equal length; slicing gives a Block again.

    Parameters
    ----------
    kind, stage, microbatch : int8, int32, int32
        Numbers or columns; they are broadcast against each other.
    joined : bool, default False
        True if a row is the second part of an OVERLAP_F_B slot whose first part is the row before it.
    """

    __slots__ = ("joined", "kind", "microbatch", "stage")

    def __init__(self, kind: ArrayLike, stage: ArrayLike, microbatch: ArrayLike, joined: ArrayLike = False):
        given = (kind, np.int8), (stage, np.int32), (microbatch, np.int32), (joined, np.bool_)
        columns = np.broadcast_arrays(*(np.asarray(values, dtype) for values, dtype in given))
        self.kind, self.stage, self.microbatch, self.joined = (column.reshape(-1) for column in columns)

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, rows: slice | np.ndarray) -> Block:
        return Block(self.kind[rows], self.stage[rows], self.microbatch[rows], self.joined[rows])

    def as_kind(self, kind: Kind) -> Block:
        """Return the rows as actions of another kind."""
        return Block(kind, self.stage, self.microbatch, self.joined)

    def stages_later(self, stages: int) -> Block:
        """Return the rows with a number added to their stages."""
        return Block(self.kind, self.stage + stages, self.microbatch, self.joined)

    def unfused(self) -> Block:
        """Return the rows with no row fused with another."""
        return Block(self.kind, self.stage, self.microbatch)


def run(kind: Kind, stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """Return a run of one kind; `stage` and `microbatch` are numbers or columns, broadcast against each other."""
    return Block(kind, stage, microbatch)


def forward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """Return a run of F."""
    return run(Kind.F, stage, microbatch)


def backward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """Return a run of B, the full backward."""
    return run(Kind.B, stage, microbatch)


def straight_runs(devices: int, microbatches: int, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """Yield for each device all forwards and all backwards of its one stage, microbatches in order."""
    for device in range(devices):
        yield forward_run(device, np.arange(microbatches)), run(backward, device, np.arange(microbatches))


def concatenate(*blocks: Block) -> Block:
    """Return the blocks one after the other."""
    return Block(
        np.concatenate([block.kind for block in blocks]),
        np.concatenate([block.stage for block in blocks]),
        np.concatenate([block.microbatch for block in blocks]),
        np.concatenate([block.joined for block in blocks]),
    )


def alternate(*blocks: Block) -> Block:
    """Return the first row of each block, then the second row of each, and so on; the blocks are equally long."""
    return Block(
        np.stack([block.kind for block in blocks], axis=1),
        np.stack([block.stage for block in blocks], axis=1),
        np.stack([block.microbatch for block in blocks], axis=1),
        np.stack([block.joined for block in blocks], axis=1),
    )


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
