"""Random valid lists on random placements, also bidirectional, sliced, and with an output layer cut over devices."""

from collections import defaultdict
from contextlib import suppress
from random import Random
from typing import Any

from hypothesis import strategies as st
from time_oracle import COMPUTE, parts_of

import ppsim


def random_orders(
    random: Random,
    fused: bool = True,
    bidirectional: bool = True,
    recompute: bool = False,
    offload: bool = False,
    slices: int = 1,
    vocabulary: bool = False,
    whole: int = 1,
) -> list[list[str]]:
    """Return lists of actions in a random order that respects every dependency, so that they cannot deadlock.

    With `recompute` some microbatches have an R on some stages, with `offload` some leave for host memory. The number
    of microbatches is a multiple of `whole`, each of `slices` slices. With `vocabulary` some stages have an S, and in
    half of the cases a T, of each microbatch, on all devices in one order, as their collectives. If these wait for each
    other all the same, or two directions order them differently, the lists are drawn again.
    """
    while True:
        lists = _lists(random, bidirectional, slices, vocabulary, whole)
        if recompute:
            lists = [_recompute(random, actions) for actions in lists]
        if offload:
            lists = [_offload(random, actions) for actions in lists]
        if fused:
            lists = [_fuse(random, actions) for actions in lists]
        if not vocabulary:
            return lists
        with suppress(ppsim.ScheduleError):
            ppsim.Schedule.from_orders(lists, slices=slices).validate()
            return lists


def vocabulary_orders(random: Random) -> list[list[str]]:
    """Return lists of F, B, S and T with one last stage."""
    return random_orders(random, fused=False, bidirectional=False, vocabulary=True)


def _lists(random: Random, bidirectional: bool, slices: int, vocabulary: bool, whole: int) -> list[list[str]]:
    devices, stages = random.randint(1, 4), random.randint(1, 6)
    microbatches = slices * whole * random.randint(1, max(1, 5 // (slices * whole)))
    directions = [[random.randrange(devices) for _ in range(stages)] for _ in range(2 if bidirectional else 1)]
    routes = [random.choice(directions) for _ in range(microbatches // slices)]
    parts = random.sample(range(stages), random.randint(1, stages)) if vocabulary else []
    waits = _dependencies(random, stages, microbatches, slices, parts)
    followers = defaultdict(list)
    for action, needed in waits.items():
        for one in needed:
            followers[one].append(action)
    left = {action: len(needed) for action, needed in waits.items()}
    ready = [action for action, needed in left.items() if not needed]
    lists: list[list[str]] = [[] for _ in range(devices)]
    begun: list[tuple[str, int]] = []  # collectives in their order

    def home(action: tuple[str, int, int]) -> int:
        return routes[action[2] // slices][action[1]]

    while ready:
        action = random.choice(ready)
        kind, _, microbatch = action
        if kind in "ST":
            if (kind, microbatch) not in begun:
                begun.append((kind, microbatch))
            turn = {collective: number for number, collective in enumerate(begun)}
            own = [one for one in ready if (one[0], one[2]) in turn and home(one) == home(action)]
            action = min(own, key=lambda one: turn[one[0], one[2]])
        ready.remove(action)
        lists[home(action)].append("{1}{0}{2}".format(*action))
        for follower in followers[action]:
            left[follower] -= 1
            if not left[follower]:
                ready.append(follower)
    return [actions for actions in lists if actions]


def _dependencies(
    random: Random, stages: int, microbatches: int, slices: int, parts: list[int]
) -> dict[tuple[str, int, int], list[tuple[str, int, int]]]:
    """Return the actions (kind, stage, microbatch) that each action needs; some backwards are split into I and W."""
    back = [[random.choice("BI") for _ in range(microbatches)] for _ in range(stages)]
    last, final = stages - 1, random.choice("ST")
    waits: dict[tuple[str, int, int], list[tuple[str, int, int]]] = {}
    for k in range(microbatches):
        for s in range(stages):
            waits["F", s, k] = [("F", s - 1, k)] * (s > 0) + [("F", s, k - 1)] * (k % slices > 0)
            needed = [("F", s, k)]
            needed += [(back[s + 1][k], s + 1, k)] if s < last else [(final, part, k) for part in parts]
            if (k + 1) % slices:
                needed.append((back[s][k + 1], s, k + 1))
            waits[back[s][k], s, k] = needed
            if back[s][k] == "I":
                waits["W", s, k] = [("I", s, k)]
        for part in parts:
            waits["S", part, k] = [("F", last, k)]
            if final == "T":
                waits["T", part, k] = [("S", other, k) for other in parts]
    return waits


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
    """Some neighbouring F and B joined in slots, seldom those of one activation, which cannot run as one slot."""
    out: list[str] = []
    for action in actions:
        kinds = {cell.strip("0123456789") for cell in (out[-1] if out else "", action)}
        own = action.replace("B", "F") == (out[-1] if out else "").replace("B", "F")
        if kinds == {"F", "B"} and random.random() < (0.02 if own else 0.4):
            out[-1] = f"({out[-1]};{action})OVERLAP_F_B"
        else:
            out.append(action)
    return out


def moved(program: ppsim.Schedule, random: Random) -> ppsim.Schedule:
    """Return the program with some transfers, sharding actions and copies moved in their lists; it may deadlock."""
    orders = program.orders()
    for order in orders:
        places = [*range(len(order) - 1)]
        for at in places if random.random() < 0.5 else reversed(places):
            if random.random() < 0.4 and _may_swap(*order[at : at + 2]):
                order[at], order[at + 1] = order[at + 1], order[at]
    return with_traits(ppsim.Schedule.from_orders(orders), **program.traits)


def _may_swap(first: str, second: str) -> bool:
    """Return whether two neighbours of a list may change places: transfers, or actions that do not need each other."""
    parts, others = parts_of(first), parts_of(second)
    kinds = {kind for kind, *_ in (*parts, *others)}
    if all(kind.startswith(("SEND", "RECV")) for kind in kinds):
        return True
    if all(kind in COMPUTE for kind in kinds):
        return False
    return all(
        one[1] != other[1] or (None not in (one[2], other[2]) and one[2] != other[2])
        for one in parts
        for other in others
    )


def with_traits(schedule: ppsim.Schedule, **traits: Any) -> ppsim.Schedule:
    """Return the lists with other slices, iterations, weight versions or evictions."""
    columns = {name: getattr(schedule, name) for name in ("kind", "stage", "microbatch", "offsets", "joined")}
    return type(schedule)(**columns, **schedule.traits | traits)


def schedules(**options: bool) -> st.SearchStrategy[ppsim.Schedule]:
    """Valid schedules of up to 4 devices, 6 stages and 5 microbatches."""
    return st.randoms(use_true_random=False).map(
        lambda random: ppsim.Schedule.from_orders(random_orders(random, **options))
    )
