"""What the effects of derived costs come to: sentences, seconds inside a layer's actions, and seconds once a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from ppsim.costs import effects
from ppsim.costs.effects import Effect, beside
from ppsim.costs.layers import Layer
from ppsim.costs.setup import Setup

Item = TypeVar("Item")
Value = TypeVar("Value")


class Exchange(NamedTuple):
    """Seconds of a layer's collectives in F and in I (and so B), and of those that full recomputation repeats."""

    forward: float
    input_grad: float
    again: float


def once_each(
    items: Sequence[Item],
    key: Callable[[Item], Any],
    function: Callable[[Item], Value],
    known: dict[Any, Value] | None = None,
) -> list[Value]:
    """`function` of every item, called once for items of equal `key`: of a pipeline's stages most are alike.

    `known` are the values by key that are there already; new ones are added.
    """
    known = {} if known is None else known
    keys = [key(item) for item in items]
    for one, item in zip(keys, items, strict=True):
        if one not in known:
            known[one] = function(item)
    return [known[one] for one in keys]


def sentences(setup: Setup) -> Iterator[str]:
    """One sentence for each effect that assumes something of this setup."""
    found = (effect.sentence(setup) for effect in effects.EFFECTS if effect.sentence)
    return (sentence for sentence in found if sentence)


def exchange(setup: Setup, layer: Layer) -> Exchange:
    """What the effects of `EFFECTS` add to the computation of a layer."""
    parts = [(effect.action(setup, layer), effect.repeated) for effect in effects.EFFECTS if effect.action]
    again = sum(part[0] for part, repeated in parts if repeated and layer.recomputable)
    return Exchange(sum(part[0] for part, _ in parts), sum(part[1] for part, _ in parts), again)


class StageOnce(NamedTuple):
    """What a stage's work of once a step follows from.

    Attributes
    ----------
    held : (float, float)
        Dense parameters and those of routed experts on one GPU.
    copies : int
        Devices of a pipeline that hold the stage.
    layers : int
    forward, backward : float
        Seconds of one microbatch.
    """

    held: tuple[float, float]
    copies: int
    layers: int
    forward: float
    backward: float


def step_seconds(
    setup: Setup, stages: Sequence[StageOnce], known: dict[StageOnce, dict[str, float]]
) -> dict[str, list[float]]:
    """What is done once a step for each stage, by the parameter of `Costs`; an effect that no stage has is left out.

    `known` as in `once_each`.
    """
    found = once_each(stages, lambda stage: stage, lambda stage: _of_a_step(setup, stage), known)
    return {
        key: [of_stage.get(key, 0.0) for of_stage in found] for key in dict.fromkeys(key for of in found for key in of)
    }


def _of_a_step(setup: Setup, stage: StageOnce) -> dict[str, float]:
    """What is done once a step for one stage, by the parameter of `Costs`, of the effects that it has."""
    found: dict[str, float] = {}
    for effect in effects.EFFECTS:
        seconds = _once(setup, effect, stage) if effect.step else None
        if seconds is not None:
            found[effect.key] = found.get(effect.key, 0.0) + seconds
    return found


def _once(setup: Setup, effect: Effect, stage: StageOnce) -> float | None:
    """Seconds that an effect adds to a step of a stage, less what its own computation hides."""
    assert effect.step is not None  # noqa: S101 - asked for those that have one
    seconds = effect.step(setup, stage.held, stage.copies)
    if not seconds or not effect.beside or not setup.layout.chosen("overlap_data"):
        return seconds
    first = seconds / max(stage.layers, 1)
    return first + beside(setup, seconds - first, getattr(stage, effect.beside))
