"""Balance: which layers each stage gets so that devices, with all the stages that they hold, have equal work."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.costs.layout_string import LayoutString


@dataclass(frozen=True)
class Pieces:
    """What is spread over the stages.

    Attributes
    ----------
    blocks, predictions : int
        How many of them there are.
    embedding, block, prediction, head : float
        Seconds of one, forward and backward.
    """

    blocks: int
    predictions: int
    embedding: float
    block: float
    prediction: float
    head: float

    @classmethod
    def of(cls, names: Sequence[str], seconds: Sequence[float]) -> Pieces:
        """The pieces of a model with these layers, in its order; blocks count as their mean."""
        parts: dict[str, list[float]] = {}
        for name, one in zip(names, seconds, strict=True):
            parts.setdefault(name, []).append(one)
        blocks, predictions = parts["block"], parts.get("prediction", [])
        return cls(
            len(blocks), len(predictions), parts["embedding"][0], sum(blocks) / len(blocks),
            predictions[0] if predictions else 0.0, parts["head"][0],
        )  # fmt: skip


def balanced(
    pieces: Pieces, device_of_stage: Sequence[int], most_blocks: Sequence[int] | None = None, late: bool = False
) -> LayoutString:
    """The layout string whose busiest device has least to do; embedding, head and predictions are pieces of their own.

    Parameters
    ----------
    pieces : Pieces
        Blocks count as alike.
    device_of_stage : list of int
        One device a stage.
    most_blocks : list of int, optional
        Blocks that each device has memory for; where they are too few in all, they are taken as no limit.
    late : bool
        Of equal stages and devices whether the last gets the next block, not the first.

    Within a device blocks go to the stage that has least to do. Predictions go with the head, or with the stage before
    it where that is better. Equal inputs give equal answers.
    """
    every = stages_for_predictions(pieces, device_of_stage)
    made = [balanced_with(pieces, device_of_stage, stage, most_blocks, late) for stage in every]
    return min(made, key=lambda one: one[0])[1]


def stages_for_predictions(pieces: Pieces, device_of_stage: Sequence[int]) -> list[int]:
    """Which stages can have the predictions: the last, or the one before it; the last alone where there are none."""
    stages = len(device_of_stage)
    return [stages - 1, stages - 2] if pieces.predictions and stages > 1 else [stages - 1]


def balanced_with(
    pieces: Pieces,
    device_of_stage: Sequence[int],
    of_predictions: int,
    most_blocks: Sequence[int] | None = None,
    late: bool = False,
) -> tuple[tuple[bool, float, float], LayoutString]:
    """As `balanced`, with all predictions in one stage; before it whether room is too small, the largest work of a
    device and the sum of the squares: of two, the lesser is better.
    """
    stages, devices = len(device_of_stage), max(device_of_stage) + 1
    work = np.zeros(stages)
    work[0] += pieces.embedding
    work[-1] += pieces.head
    work[of_predictions] += pieces.predictions * pieces.prediction
    closed = {stages - 1} if of_predictions < stages - 1 else set()  # its blocks would stand behind the predictions
    fixed = np.bincount(device_of_stage, work, minlength=devices)
    open_devices = {device for stage, device in enumerate(device_of_stage) if stage not in closed}
    caps = [
        (pieces.blocks if most_blocks is None else most_blocks[device]) if device in open_devices else 0
        for device in range(devices)
    ]
    is_small = sum(caps) < pieces.blocks
    if is_small:
        caps = [pieces.blocks if device in open_devices else 0 for device in range(devices)]
    of_devices = _blocks_of_devices(pieces, fixed, caps, late)
    counts = _blocks_of_stages(pieces, work, device_of_stage, of_devices, closed, late)
    total = fixed + pieces.block * np.bincount(device_of_stage, counts, minlength=devices)
    texts = ["t" * count for count in counts]
    texts[0] = "E" + texts[0]
    texts[of_predictions] += "m" * pieces.predictions
    texts[-1] += "L"
    return (is_small, float(total.max()), float((total**2).sum())), LayoutString(texts)


def _blocks_of_devices(pieces: Pieces, fixed: np.ndarray, caps: list[int], late: bool) -> list[int]:
    """Blocks of each device: one after the other to the device with least to do that has room, the first of equals or,
    where it is `late`, the last.
    """
    counts, order = [0] * len(caps), -1 if late else 1
    waiting = [(float(seconds), order * device) for device, seconds in enumerate(fixed) if caps[device]]
    heapq.heapify(waiting)
    for _ in range(pieces.blocks):
        seconds, place = heapq.heappop(waiting)
        device = order * place
        counts[device] += 1
        if counts[device] < caps[device]:
            heapq.heappush(waiting, (seconds + (pieces.block or 1.0), place))
    return counts


def _blocks_of_stages(
    pieces: Pieces, work: np.ndarray, device_of_stage: Sequence[int], blocks: list[int], closed: set[int], late: bool
) -> list[int]:
    """Blocks of each stage: one after the other to the device's stage that has least to do, the first of equals or,
    where it is `late`, the last.
    """
    counts, load = [0] * len(device_of_stage), work.tolist()
    for device, number in enumerate(blocks):
        own = [stage for stage, of in enumerate(device_of_stage) if of == device and stage not in closed]
        own = own[::-1] if late else own
        for _ in range(number):
            least = min(own, key=load.__getitem__)
            counts[least] += 1
            load[least] += pieces.block or 1.0
    return counts
