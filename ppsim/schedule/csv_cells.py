"""Cells of a CSV text as columns, a block of cells at a time, where they are written the plain way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppsim.actions import NO_MICROBATCH, Kind, is_sharding

BLOCK = 2**19  # characters; larger blocks are no faster and take more memory
_DELIMITER, _DIGIT, _LETTER, _OTHER = range(4)
_CLASS = np.full(256, _OTHER, np.uint8)
_CLASS[list(b",;\n")] = _DELIMITER
_CLASS[list(b"0123456789")] = _DIGIT
_CLASS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_")] = _LETTER
_SLOT_END = b")OVERLAP_F_B"
_MOST_DIGITS = 9  # fewer than the largest number allowed has


class Cells(NamedTuple):
    """Actions in the order written; one entry a row of the schedule, an OVERLAP_F_B slot being two."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    joined: np.ndarray


class Places(NamedTuple):
    """Row and column (0-based) of cells, and how many rows of the schedule each is: 0, 1 or (fused) 2."""

    row: np.ndarray
    column: np.ndarray
    actions: np.ndarray


class CellBlock(NamedTuple):
    """A run of whole cells of a CSV text without quotes, each with the delimiter behind it.

    `row` and `column` (0-based) are those of its first cell.
    """

    text: str
    row: int
    column: int

    @property
    def lines(self) -> list[list[str]]:
        """Its cells, line by line; an empty line has none."""
        whole, last = self.text[:-1], self.text[-1:]
        lines = [line.split(",") if line else [] for line in whole.split("\n")]
        if not lines[0] and (self.column or (len(lines) == 1 and last == ",")):
            lines[0] = [""]
        if len(lines) > 1 and not lines[-1] and last == ",":
            lines[-1] = [""]
        return lines


def blocks(text: str, size: int = BLOCK) -> Iterator[CellBlock]:
    """The cells of a text that ends with a newline, in blocks of about `size` characters."""
    first, row, column = 0, 0, 0
    while first < len(text):
        last = _next_delimiter(text, min(first + size, len(text)) - 1) + 1
        block = CellBlock(text[first:last], row, column)
        yield block
        lines = block.text.count("\n")
        row += lines
        column = block.text.count(",", block.text.rfind("\n") + 1) + (0 if lines else column)
        first = last


def _next_delimiter(text: str, start: int) -> int:
    comma, newline = text.find(",", start), text.find("\n", start)
    return newline if comma < 0 else min(comma, newline)


def plain_cells(block: CellBlock) -> tuple[Cells, Places] | None:
    """The actions of a block and where its cells are.

    None where a cell is not written the plain way: with spaces, with a number of ten digits, or no action at all.
    """
    if not block.text.isascii():
        return None
    data = block.text.encode()
    if b"(" in data or b";" in data or b")" in data:
        if not _slots_are_whole(data):
            return None
        data = data.replace(_SLOT_END, b"").replace(b"(", b"")
    letters = np.frombuffer(data, np.uint8)
    sort = _CLASS[letters]
    ends = np.flatnonzero(sort == _DELIMITER)
    starts = np.concatenate([[0], ends[:-1] + 1])
    filled = ends > starts
    follows = np.concatenate([[False], letters[ends[:-1]] == ord(";")])  # the second part of a slot
    if (sort == _OTHER).any() or not (filled[follows].all() and filled[np.flatnonzero(follows) - 1].all()):
        return None
    cells = _actions(letters, sort == _LETTER, starts[filled], ends[filled], follows[filled])
    actions = np.add.reduceat(filled.astype(np.int8), np.flatnonzero(~follows))
    return None if cells is None else (cells, _places(block, letters[ends[letters[ends] != ord(";")]], actions))


def _places(block: CellBlock, delimiter: np.ndarray, actions: np.ndarray) -> Places:
    """Where cells are, by the delimiter behind each; an empty line has no cell."""
    ends_line = delimiter == ord("\n")
    begins_line = np.concatenate([[block.column == 0], ends_line[:-1]])
    line = np.cumsum(np.concatenate([[False], ends_line[:-1]]))
    number = np.arange(len(delimiter))
    first = np.concatenate([[-block.column], np.flatnonzero(ends_line[:-1]) + 1])[line]
    kept = ~(begins_line & ends_line & (actions == 0))
    return Places(block.row + line[kept], (number - first)[kept], actions[kept])


def _slots_are_whole(data: bytes) -> bool:
    """Whether each "(" begins a cell that has one ";" and ends with ")OVERLAP_F_B", and there are no others."""
    letters = np.frombuffer(data, np.uint8)
    opens, middles, closes = (np.flatnonzero(letters == ord(sign)) for sign in "(;)")
    if not len(opens) == len(middles) == len(closes) == data.count(_SLOT_END):
        return False
    ends = np.flatnonzero((letters == ord(",")) | (letters == ord("\n")))
    cell = np.searchsorted(ends, opens)
    begins = np.concatenate([[0], ends[:-1] + 1])[cell]
    whole = (opens == begins) & (opens < middles) & (middles < closes) & (closes + len(_SLOT_END) == ends[cell])
    return bool(whole.all())


def _actions(
    letters: np.ndarray, is_letter: np.ndarray, starts: np.ndarray, ends: np.ndarray, joined: np.ndarray
) -> Cells | None:
    """The actions between `starts` and `ends`: digits, a name and, unless it concerns a whole stage, digits."""
    edge = np.diff(is_letter.astype(np.int8), prepend=0, append=0)
    first, last = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    if len(first) != len(starts) or not ((first > starts) & (last <= ends)).all():
        return None
    if len(starts) and max((first - starts).max(), (ends - last).max()) > _MOST_DIGITS:
        return None
    kind = _kinds(letters, first, last)
    of_stage = is_sharding(kind)
    if (kind < 0).any() or not ((ends == last) == of_stage).all():
        return None
    second = np.flatnonzero(joined)  # the first part stands before each
    if not (np.sort(kind[np.stack([second - 1, second])], axis=0).T == (Kind.F, Kind.B)).all():
        return None
    microbatch = _numbers(letters, last, ends)
    microbatch[of_stage] = NO_MICROBATCH
    return Cells(kind, _numbers(letters, starts, first), microbatch, joined)


def _kinds(letters: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Code of the name from each `first` to `last`; -1 where it is none. int8."""
    kind = np.full(len(first), -1, np.int8)
    length = last - first
    for code, name in ((one.value, one.name) for one in Kind if one is not Kind.OVERLAP_F_B):
        rest = np.flatnonzero((length == len(name)) & (letters[first] == ord(name[0])))
        for place, letter in enumerate(name):
            rest = rest[letters[first[rest] + place] == ord(letter)] if place else rest
        kind[rest] = code
    return kind


def _numbers(letters: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The number from each start to its end, int32; 0 where there is no digit."""
    value = np.zeros(len(starts), np.int32)
    length = ends - starts
    for place in range(int(length.max(initial=0))):
        more = np.flatnonzero(length > place)
        value[more] = value[more] * 10 + (letters[starts[more] + place] - ord("0"))
    return value
