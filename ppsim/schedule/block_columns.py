"""From the blocks of a generator to the columns of a schedule, as they come: no block is kept."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.base.compiling import call_compiled, kernel, pays
from ppsim.schedule.blocks import ABOVE_MICROBATCH, ABOVE_STAGE, JOINED_BIT, KIND_BIT, MICROBATCH_BITS, Block

_AT_A_TIME = 16_384  # rows at least, of as many blocks as that takes; they stay in the processor's cache
_NOTHING = np.empty(0, np.int64)
_COLUMNS = {"kind": np.int8, "stage": np.int32, "microbatch": np.int32, "joined": np.bool_}


def columns(blocks: Iterable[Block], devices: int = 1) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The columns of a schedule with one block a device, and the views of it that are known then, both by name.

    Parameters
    ----------
    blocks : iterable of Block
        Taken one at a time, so that the next may lie in the memory of the last.
    devices : int, optional
        How many blocks are expected. Room is made for as many rows as the first of them all would have.
    """
    lengths: list[int] = []
    pieces = _pieces(blocks, lengths)
    first = next(pieces, _NOTHING)
    columns, rows = _larger([], 0, lengths[0] * devices if lengths else 0), 0
    seen = np.array([-1, -1, 0])  # largest stage and microbatch, and the kinds, as a bit each
    compiles = pays(split, len(columns[0]))
    for code in chain([first], pieces):
        if rows + len(code) > len(columns[0]):
            columns = _larger(columns, rows, max(rows + len(code), 3 * rows // 2))
        here = [column[rows : rows + len(code)] for column in columns]
        if compiles:
            call_compiled(split, code, *here, seen)
        else:
            for column, name in zip(here, _COLUMNS, strict=True):
                column[:] = getattr(Block.of(code), name)
        rows += len(code)
    exact = columns if len(columns[0]) == rows else _larger(columns, rows, rows)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return dict(zip(_COLUMNS, exact, strict=True), offsets=offsets), _views(seen) if compiles else {}


def _pieces(blocks: Iterable[Block], lengths: list[int]) -> Iterator[np.ndarray]:
    """The codes of all blocks, of several small ones at once; `lengths` becomes the length of each block."""
    few: list[np.ndarray] = []
    gathered = 0
    for block in blocks:
        lengths.append(len(block))
        few.append(block.code)
        gathered += len(block)
        if gathered >= _AT_A_TIME:
            yield np.concatenate(few) if len(few) > 1 else block.code
            few, gathered = [], 0
    if few:
        yield np.concatenate(few)


def _larger(columns: list[np.ndarray], rows: int, room: int) -> list[np.ndarray]:
    """Columns with another room and the same first rows."""
    made = [np.empty(room, dtype) for dtype in _COLUMNS.values()]
    for new, old in zip(made, columns, strict=False):
        new[:rows] = old[:rows]
    return made


def _views(seen: np.ndarray) -> dict[str, Any]:
    """What a schedule would find by looking at its columns once more."""
    last_stage, last_microbatch, kinds = seen.tolist()
    return {
        "num_stages": last_stage + 1,
        "microbatches": last_microbatch + 1,
        "is_program": kinds >= 1 << FIRST_TRANSFER,
        "recomputes": bool(kinds >> Kind.R & 1),
        "cuts_vocabulary": bool((kinds >> Kind.S | kinds >> Kind.T) & 1),
    }


@kernel
def split(code, kind, stage, microbatch, joined, seen):
    """Split the numbers of rows into their columns; compiled, 30 times as fast as the same steps one by one."""
    last_stage, last_microbatch, kinds = seen[0], seen[1], seen[2]
    for row in range(len(code)):
        number = code[row]
        of_kind, of_stage = number >> KIND_BIT, number << ABOVE_STAGE >> ABOVE_STAGE + MICROBATCH_BITS
        of_microbatch = number << ABOVE_MICROBATCH >> ABOVE_MICROBATCH
        kind[row], stage[row], microbatch[row] = of_kind, of_stage, of_microbatch
        joined[row] = number >> JOINED_BIT & 1
        last_stage, last_microbatch = max(last_stage, of_stage), max(last_microbatch, of_microbatch)
        kinds |= 1 << (of_kind & 15)
    seen[0], seen[1], seen[2] = last_stage, last_microbatch, kinds
