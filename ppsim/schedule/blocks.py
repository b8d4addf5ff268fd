"""Column combinators: the few words in which every schedule family is written."""

from collections.abc import Sequence

import numpy as np

from ppsim.actions import Kind

ArrayLike = int | Sequence[int] | np.ndarray


class Block:
    """A run of compute actions of one device as four equal columns; slicing gives a Block again.

    `joined[i]` says that row i is the second part of an OVERLAP_F_B slot whose first part is row i - 1.
    """

    __slots__ = ("joined", "kind", "microbatch", "stage")

    def __init__(self, kind: np.ndarray, stage: np.ndarray, microbatch: np.ndarray, joined: np.ndarray | None = None):
        self.kind = kind
        self.stage = stage
        self.microbatch = microbatch
        self.joined = np.zeros(len(kind), bool) if joined is None else joined

    def __len__(self) -> int:
        return len(self.kind)

    def __getitem__(self, rows: slice | np.ndarray) -> "Block":
        return Block(self.kind[rows], self.stage[rows], self.microbatch[rows], self.joined[rows])


def run(kind: Kind, stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of one kind; `stage` and `microbatch` are numbers or columns, broadcast against each other."""
    rows = np.broadcast(stage, microbatch).size
    return Block(np.full(rows, kind, np.int8), np.full(rows, stage, np.int32), np.full(rows, microbatch, np.int32))


def forward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of F."""
    return run(Kind.F, stage, microbatch)


def backward_run(stage: ArrayLike, microbatch: ArrayLike) -> Block:
    """A run of B, the full backward."""
    return run(Kind.B, stage, microbatch)


def concatenate(*blocks: Block) -> Block:
    """The blocks one after the other."""
    return Block(
        np.concatenate([block.kind for block in blocks]),
        np.concatenate([block.stage for block in blocks]),
        np.concatenate([block.microbatch for block in blocks]),
        np.concatenate([block.joined for block in blocks]),
    )


def alternate(*blocks: Block) -> Block:
    """First row of each block, then second row of each, and so on; the blocks are equally long."""
    columns = ("kind", "stage", "microbatch", "joined")
    return Block(*(np.stack([getattr(block, name) for block in blocks], axis=1).ravel() for name in columns))


def in_slot_order(*rows: tuple[Block, np.ndarray]) -> Block:
    """The rows of all blocks in the order of their slots; each block comes with the slot number of each of its rows."""
    return concatenate(*(block for block, _ in rows))[np.argsort(np.concatenate([slots for _, slots in rows]))]


def repeat(block: Block, times: int) -> Block:
    """The block `times` times, one after the other."""
    return block[np.tile(np.arange(len(block)), times)]


def fuse(first: Block, second: Block) -> Block:
    """OVERLAP_F_B slots: row i of `first` and row i of `second` in one slot, in that order."""
    slots = alternate(first, second)
    slots.joined[1::2] = True
    return slots


def occurrence(codes: np.ndarray) -> np.ndarray:
    """For each entry how often its value stood before it in the column."""
    order = np.argsort(codes, kind="stable")
    is_first = np.append(True, np.diff(codes[order]) != 0)[: len(codes)]
    first = np.flatnonzero(is_first)
    before = np.empty(len(codes), np.int64)
    before[order] = np.arange(len(codes)) - np.repeat(first, np.diff(np.append(first, len(codes))))
    return before
