"""Walks one rank through its list of a program, exactly as written."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ppsim import Program
from validation.actions import COMPUTE, RECEIVES, SENDS, actions_of, holders, next_stage
from validation.stages import Shape, Stage

Pad = Callable[[Callable[[], None]], None]


class Walker:
    """One rank's part of a program: its stages, what they hand on, and the rows that it walks.

    `pad`, when given, wraps the action of each kind to make it take a given time.
    """

    def __init__(self, program: Program, rank: int, shape: Shape, runtime, pad: dict[str, Pad] | None = None):
        self.program, self.rank, self.shape, self.runtime, self.pad = program, rank, shape, runtime, pad
        self.rows = actions_of(program.orders()[rank])
        self.device_of = holders(program)
        own = sorted({stage for (stage, _), device in self.device_of.items() if device == rank})
        self.stages = {number: Stage(number, program.num_stages, shape, runtime.device) for number in own}
        self.inputs = [shape.microbatch(number, runtime.device) for number in range(program.microbatches)]

    def step(self) -> tuple[float, object]:
        """Walk the list once: the moment the step began, and the stamps of its rows."""
        origin = self.enqueue_step()
        return origin, self.runtime.end_step()

    def enqueue_step(self) -> float:
        """Hand the whole list to the runtime; the moment the step began."""
        for stage in self.stages.values():
            for linear in stage.linears:
                linear.weight.grad = None
        self.values: dict[tuple[str, int, int], torch.Tensor] = {}
        self.runtime.begin_step(len(self.rows))
        origin = self.runtime.origin
        for index, (kind, stage, microbatch) in enumerate(self.rows):
            if kind in SENDS:
                self._send(index, kind, stage, microbatch)
            elif kind in RECEIVES:
                self._receive(index, kind, stage, microbatch)
            elif kind in COMPUTE:
                self._compute(index, kind, stage, microbatch)
            else:
                self.runtime.skip(index)  # sharding actions have nothing to do: every rank holds its stages whole
        return origin

    def _compute(self, index: int, kind: str, stage: int, microbatch: int) -> None:
        work = {"F": self._forward, "B": self._backward, "I": self._input_grad, "W": self._weight_grad}[kind]
        needs = []
        name, from_stage = _input_of(kind, stage)
        if kind != "W" and self.device_of.get((from_stage, microbatch), self.rank) != self.rank:
            needs.append(self._tag(name, stage, microbatch))
        act: Callable[[], None] = lambda: work(self.stages[stage], microbatch)  # noqa: E731 - one closure, two uses
        pad = self.pad[kind] if self.pad else None
        self.runtime.compute(index, needs, lambda: pad(act) if pad else act())

    def _forward(self, stage: Stage, microbatch: int) -> None:
        x = self.inputs[microbatch] if stage.number == 0 else self.values.pop(("F", stage.number, microbatch))
        y = stage.run_forward(microbatch, x)
        if not stage.is_last:
            self.values["F", stage.number + 1, microbatch] = y

    def _input_grad(self, stage: Stage, microbatch: int) -> None:
        grad = None if stage.is_last else self.values.pop(("B", stage.number, microbatch))
        gradient = stage.run_input_grad(microbatch, grad)
        if stage.number:
            self.values["B", stage.number - 1, microbatch] = gradient

    def _weight_grad(self, stage: Stage, microbatch: int) -> None:
        stage.run_weight_grad(microbatch)

    def _backward(self, stage: Stage, microbatch: int) -> None:
        self._input_grad(stage, microbatch)
        self._weight_grad(stage, microbatch)

    def _send(self, index: int, kind: str, stage: int, microbatch: int) -> None:
        name, to_stage = kind[-1], next_stage(kind, stage)
        tensor = self.values.pop((name, to_stage, microbatch))
        peer = self.device_of[to_stage, microbatch]
        self.runtime.send(index, self._tag(name, to_stage, microbatch), peer, tensor)

    def _receive(self, index: int, kind: str, stage: int, microbatch: int) -> None:
        name, from_stage = _input_of(kind, stage)
        buffer = self.shape.buffer(self.runtime.device)
        self.values[name, stage, microbatch] = buffer
        peer = self.device_of[from_stage, microbatch]
        self.runtime.receive(index, self._tag(name, stage, microbatch), peer, buffer)

    def _tag(self, name: str, stage: int, microbatch: int) -> int:
        """A number of its own for each transfer, by what it brings to which stage."""
        return ((stage * self.program.microbatches) + microbatch) * 2 + (name == "B")


def _input_of(kind: str, stage: int) -> tuple[str, int]:
    """What an action other than W needs or receives, and the stage that it comes from."""
    return ("F", stage - 1) if kind.endswith("F") else ("B", stage + 1)
