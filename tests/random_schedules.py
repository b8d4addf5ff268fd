"""Hypothesis strategies of valid schedules: random list schedules on random placements, also bidirectional ones."""

from contextlib import suppress
from random import Random

from hypothesis import strategies as st

import ppsim


def random_orders(
    random: Random, fused: bool = True, bidirectional: bool = True, recompute: bool = False, offload: bool = False
) -> list[list[str]]:
    """Actions appended in a random order that respects every dependency, so that the lists cannot deadlock.

    With `recompute` some microbatches have an R on some stages, with `offload` some leave for host memory.
    """
    devices = random.randint(1, 4)
    stages, microbatches = random.randint(1, 6), random.randint(1, 5)
    directions = [[random.randrange(devices) for _ in range(stages)] for _ in range(2 if bidirectional else 1)]
    route = [random.choice(directions) for _ in range(microbatches)]
    split = [[random.random() < 0.5 for _ in range(microbatches)] for _ in range(stages)]
    lists: list[list[str]] = [[] for _ in range(devices)]
    ready = [("F", 0, microbatch) for microbatch in range(microbatches)]
    while ready:
        kind, stage, microbatch = ready.pop(random.randrange(len(ready)))
        lists[route[microbatch][stage]].append(f"{stage}{kind}{microbatch}")
        if kind == "F" and stage + 1 < stages:
            ready.append(("F", stage + 1, microbatch))
            continue
        if kind == "I":
            ready.append(("W", stage, microbatch))
        before = stage if kind == "F" else stage - 1
        if kind != "W" and before >= 0:
            ready.append(("I" if split[before][microbatch] else "B", before, microbatch))
    filled = [actions for actions in lists if actions]
    if recompute:
        filled = [_recompute(random, actions) for actions in filled]
    if offload:
        filled = [_offload(random, actions) for actions in filled]
    return [_fuse(random, actions) for actions in filled] if fused else filled


def vocabulary_orders(random: Random) -> list[list[str]]:
    """Like `random_orders`, with an output layer cut over some of the stages: S, and in half of the cases T.

    All devices have S and T in one order, as their collectives have. Where these hold each other up all the same (a
    broadcast behind a reduction that needs what the broadcast is for), the lists are drawn again.
    """
    while True:
        orders = _vocabulary_orders(random)
        with suppress(ppsim.DeadlockError):
            ppsim.Schedule.from_orders(orders).validate()
            return orders


def _vocabulary_orders(random: Random) -> list[list[str]]:
    devices, stages, microbatches = random.randint(1, 4), random.randint(1, 5), random.randint(1, 5)
    route = [random.randrange(devices) for _ in range(stages)]
    parts = random.sample(range(stages), random.randint(1, stages))
    kinds = random.choice(["S", "ST"])
    lists: list[list[str]] = [[] for _ in range(devices)]
    left = {(kind, microbatch): len(parts) for kind in kinds for microbatch in range(microbatches)}
    ready = [("F", 0, microbatch) for microbatch in range(microbatches)]
    begun: list[tuple[str, int]] = []  # collectives in their order
    while ready:
        action = random.choice(ready)
        kind, stage, microbatch = action
        if kind in kinds:
            if (kind, microbatch) not in begun:
                begun.append((kind, microbatch))
            turn = {collective: number for number, collective in enumerate(begun)}
            own = [one for one in ready if (one[0], one[2]) in turn and route[one[1]] == route[stage]]
            action = kind, stage, microbatch = min(own, key=lambda one: turn[one[0], one[2]])
        ready.remove(action)
        lists[route[stage]].append(f"{stage}{kind}{microbatch}")
        if kind == "B":
            ready += [("B", stage - 1, microbatch)] * (stage > 0)
        elif kind == "F" and stage + 1 < stages:
            ready.append(("F", stage + 1, microbatch))
        elif kind == "F":
            ready += [("S", part, microbatch) for part in parts]
        else:
            left[kind, microbatch] -= 1
            if not left[kind, microbatch]:
                more = kind == "S" and "T" in kinds
                ready += [("T", part, microbatch) for part in parts] if more else [("B", stages - 1, microbatch)]
    return [actions for actions in lists if actions]


def _offload(random: Random, actions: list[str]) -> list[str]:
    """An OFFLOAD and a RELOAD for some microbatches, anywhere between F and R or the backward."""
    out = list(actions)
    for action in actions:
        if "F" in action and random.random() < 0.5:
            ends = [out.index(end) for kind in "RBI" if (end := action.replace("F", kind)) in out]
            first = random.randint(out.index(action) + 1, min(ends))
            out.insert(random.randint(first, min(ends)), action.replace("F", "RELOAD"))
            out.insert(first, action.replace("F", "OFFLOAD"))
    return out


def _recompute(random: Random, actions: list[str]) -> list[str]:
    """An R for some microbatches, anywhere between F and the backward."""
    out = list(actions)
    for action in actions:
        if "F" in action and random.random() < 0.4:
            again = action.replace("F", "R")
            last = next(out.index(action.replace("F", kind)) for kind in "BI" if action.replace("F", kind) in out)
            out.insert(random.randint(out.index(action) + 1, last), again)
    return out


def _fuse(random: Random, actions: list[str]) -> list[str]:
    """Some neighbouring F and B joined in slots."""
    out: list[str] = []
    for action in actions:
        kinds = {cell.strip("0123456789") for cell in (out[-1] if out else "", action)}
        if kinds == {"F", "B"} and random.random() < 0.3:
            out[-1] = f"({out[-1]};{action})OVERLAP_F_B"
        else:
            out.append(action)
    return out


def schedules(**options: bool) -> st.SearchStrategy[ppsim.Schedule]:
    """Valid schedules of up to 4 devices, 6 stages and 5 microbatches."""
    return st.randoms(use_true_random=False).map(
        lambda random: ppsim.Schedule.from_orders(random_orders(random, **options))
    )
