"""The actions of a program, read from its text: what the harness walks and what its trace files are about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ppsim import Program

COMPUTE = ("F", "B", "I", "W")
SENDS = ("SEND_F", "SEND_B")
RECEIVES = ("RECV_F", "RECV_B")
_ACTION = re.compile(r"(\d+)([A-Z_]+)(\d*)")  # finds both parts of a fused slot such as (3F1;2B0)OVERLAP_F_B


class Action(NamedTuple):
    """One row of a device's list; `microbatch` is -1 where the action has none."""

    kind: str
    stage: int
    microbatch: int


def actions_of(order: Sequence[str]) -> list[Action]:
    """The rows of one device's list, such as `["0F0", "0SEND_F0"]`."""
    found = (match for text in order for match in _ACTION.findall(text))
    return [Action(kind, int(stage), int(microbatch or -1)) for stage, kind, microbatch in found]


def holders(program: Program) -> dict[tuple[int, int], int]:
    """The device that runs each (stage, microbatch)."""
    return {
        (action.stage, action.microbatch): device
        for device, order in enumerate(program.orders())
        for action in actions_of(order)
        if action.kind in COMPUTE
    }


def next_stage(kind: str, stage: int) -> int:
    """The stage that gets what a SEND_F or SEND_B of `stage` sends, or what its F or B hands on."""
    return stage + 1 if kind.endswith("F") else stage - 1
