"""The kinds of action and their text grammar, the same as PyTorch's pipeline CSV."""

import re
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ppsim.base.errors import ScheduleError, shown


class Kind(IntEnum):
    """Kind of action; the integer is its code in the `kind` column of a schedule."""

    F = 0
    B = 1
    I = 2  # noqa: E741 - the field's letter for the input gradient
    W = 3
    R = 4
    S = 5
    T = 6
    SEND_F = 7
    RECV_F = 8
    SEND_B = 9
    RECV_B = 10
    UNSHARD = 11
    RESHARD = 12
    REDUCE_GRAD = 13
    OVERLAP_F_B = 14
    OFFLOAD = 15
    RELOAD = 16


KIND_NAMES = tuple(kind.name for kind in Kind)
FIRST_TRANSFER = Kind.SEND_F
NO_MICROBATCH = -1
_SHARDING = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)


def is_backward(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is B or I, which hand a gradient to the stage before."""
    return (kind == Kind.B) | (kind == Kind.I)


def is_vocabulary(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is S or T, a device's part of an output layer cut over all devices."""
    return (kind == int(Kind.S)) | (kind == int(Kind.T))  # NumPy would widen the column to compare it with an enum


def is_copy(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is OFFLOAD or RELOAD."""
    return kind >= Kind.OFFLOAD


def is_transfer(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is a SEND or RECV."""
    return (kind >= Kind.SEND_F) & (kind <= Kind.RECV_B)


def is_send(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is SEND_F or SEND_B."""
    return (kind == Kind.SEND_F) | (kind == Kind.SEND_B)


def is_sharding(kind: np.ndarray) -> np.ndarray:
    """Return whether each kind of a column is UNSHARD, RESHARD or REDUCE_GRAD, which concern a whole stage."""
    return (kind == Kind.UNSHARD) | (kind == Kind.RESHARD) | (kind == Kind.REDUCE_GRAD)


class Action(NamedTuple):
    """Action of a device.

    `microbatch` is -1 for the sharding actions, which concern a stage's weights. An OVERLAP_F_B has its two actions in
    `parts`, in the order written, and -1 as its own stage and microbatch.
    """

    kind: Kind
    stage: int
    microbatch: int = NO_MICROBATCH
    parts: "tuple[Action, ...]" = ()

    def __str__(self) -> str:
        if self.parts:
            return f"({';'.join(map(str, self.parts))}){self.kind.name}"
        return f"{self.stage}{self.kind.name}{'' if self.microbatch < 0 else self.microbatch}"


_PLAIN = re.compile(
    r"([0-9]+)(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD|OFFLOAD|RELOAD|F|B|I|W|R|S|T)([0-9]*)"
)
_FUSED = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_LARGEST = 2**31 - 2
_EXAMPLES = "2F0, 3I1, 1SEND_F4, 0UNSHARD or (3F1;2B0)OVERLAP_F_B"


def parse_action(text: str) -> Action:
    """Read one action such as `2F0`, `1SEND_F4`, `0UNSHARD` or `(3F1;2B0)OVERLAP_F_B`.

    Spaces around the action are allowed, other text is not. Raises ScheduleError with the text.
    """
    if not isinstance(text, str):
        raise ScheduleError(f"{shown(text)} is not the text of an action; write one such as {_EXAMPLES}")
    text = text.strip()
    fused = _FUSED.fullmatch(text)
    if not fused:
        return _parse_plain(text)
    first, second = (_parse_plain(part.strip()) for part in fused.groups())
    if {first.kind, second.kind} != {Kind.F, Kind.B}:
        raise ScheduleError(f"{shown(text)}: an OVERLAP_F_B joins one F and one B, such as (3F1;2B0)OVERLAP_F_B")
    return Action(Kind.OVERLAP_F_B, -1, NO_MICROBATCH, (first, second))


def _parse_plain(text: str) -> Action:
    match = _PLAIN.fullmatch(text)
    if not match:
        raise ScheduleError(f"{shown(text)} is not an action; write one such as {_EXAMPLES}")
    stage, name, microbatch = match.groups()
    kind = Kind[name]
    if kind in _SHARDING:
        if microbatch:
            legal = shown(f"{stage}{name}")
            raise ScheduleError(f"{shown(text)}: {name} concerns a whole stage and takes no microbatch; write {legal}")
        return Action(kind, _number(stage, text))
    if not microbatch:
        legal = shown(f"{stage}{name}0")
        raise ScheduleError(f"{shown(text)}: the microbatch is missing; write one after the kind, such as {legal}")
    return Action(kind, _number(stage, text), _number(microbatch, text))


def _number(digits: str, text: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > 10 or int(digits) > _LARGEST:
        raise ScheduleError(f"{shown(text)}: the number {digits[:20]} is above the largest allowed, {_LARGEST}")
    return int(digits)
