"""Random programs through both engines and an oracle, and tiny cases by brute force."""

import itertools
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_runs import compare_engines, random_case
from test_time_oracle import choose_one, try_one

import ppsim
from ppsim.lowering import TRANSPORTS
from ppsim.studies.optimum import optimum
from tests.fuzz.cases import COUNTS, EXAMPLES, case, fuzz, some


@given(seed=st.integers(0, 2**48))
@some(10 if EXAMPLES > 15 else 4)  # test_compiled_engine.py tries 160 other cases in every run of the tests
def test_both_engines_give_equal_bits_or_the_same_error_whatever_features_meet(seed):
    """Every level of every feature of `random_runs.FEATURES` meets every other."""
    with case("cases that cross all features through both engines"):
        error = compare_engines(random_case(seed), measures=seed % 8 == 0)
        if error is not None:
            raise ppsim.PpsimError(error)


@given(random=st.randoms(use_true_random=False), transport=st.sampled_from(TRANSPORTS))
@fuzz
def test_times_are_those_of_an_oracle_of_all_streams_queues_ports_and_slots(random, transport):
    if try_one(random, transport):
        COUNTS["programs with everything against the oracle of moments"]["answers"] += 1


@given(random=st.randoms(use_true_random=False))
@some(0.5)
def test_devices_that_choose_are_those_of_the_oracle(random):
    choose_one(random)
    COUNTS["devices that choose against the oracle of moments"]["answers"] += 1


def orders_of(actions):
    """Every order of a device's actions in which the kinds of one microbatch come as F, I, W or F, B."""
    if not actions:
        yield ()
        return
    for number, (kind, microbatch) in enumerate(actions):
        if not any(other == microbatch and "FBIW".index(before) < "FBIW".index(kind) for before, other in actions):
            for rest in orders_of(actions[:number] + actions[number + 1 :]):
                yield ((kind, microbatch), *rest)


def makespan_of(orders, seconds, latency):
    """The end of the last action by relaxation over the lists; None where devices wait for each other."""
    ends, at, free = {}, [0] * len(orders), [0.0] * len(orders)
    moved = True
    while moved:
        moved = False
        for device, order in enumerate(orders):
            while at[device] < len(order):
                kind, microbatch = order[at[device]]
                needs = []
                if kind == "F" and device > 0:
                    needs.append(("F", device - 1))
                if kind in "BI" and device + 1 < len(orders):
                    needs.append((kind, device + 1))
                if any((*need, microbatch) not in ends for need in needs):
                    break
                start = max([free[device], *(ends[*need, microbatch] + latency for need in needs)])
                free[device] = ends[kind, device, microbatch] = start + seconds[kind][device]
                at[device] += 1
                moved = True
    return max(free) if all(place == len(order) for place, order in zip(at, orders, strict=True)) else None


def brute_force(devices, microbatches, seconds, latency, split):
    """The shortest of all schedules of one stage a device."""
    kinds = "FIW" if split else "FB"
    actions = [(kind, microbatch) for kind in kinds for microbatch in range(microbatches)]
    every = list(orders_of(actions))
    first = [order for order in every if [m for kind, m in order if kind == "F"] == list(range(microbatches))]
    found = (makespan_of(orders, seconds, latency) for orders in itertools.product(first, *[every] * (devices - 1)))
    return min(length for length in found if length is not None)


TINY = [(2, 1, True), (2, 2, True), (3, 1, True), (2, 2, False), (3, 2, False), (2, 3, False)]


@given(data=st.data(), tiny=st.sampled_from(TINY))
@some(0.1)
def test_no_bound_is_above_and_no_optimum_beside_what_brute_force_finds(data, tiny):
    pytest.importorskip("ortools")
    devices, microbatches, split = tiny
    few = st.lists(st.integers(0, 4), min_size=devices, max_size=devices)
    times = {kind: data.draw(few) for kind in ("FIW" if split else "FB")}
    assume(any(map(sum, times.values())))
    latency = data.draw(st.integers(0, 2))
    shortest = brute_force(devices, microbatches, times, latency, split)
    names = {"F": "forward", "B": "backward", "I": "input_grad", "W": "weight_grad"}
    given: Any = {names[kind]: list(map(float, each)) for kind, each in times.items()}
    costs = ppsim.Costs(per="stage", latency=latency, **given)
    with case("tiny cases by brute force"):
        best = optimum(devices, microbatches, costs, split=split)
        assert best.proven
        assert best.makespan == pytest.approx(shortest)
        assert best.bound == pytest.approx(shortest)
        assert best.run.lower_bound().seconds <= shortest * (1 + 1e-9)
        for family in ("gpipe", "1f1b", "zb-h1", "zb-auto"):
            with case("families against brute force"):
                schedule = ppsim.build(family, devices=devices, microbatches=microbatches)
                if split == any("I" in cell for order in schedule.orders() for cell in order):
                    run = ppsim.simulate(schedule, costs)
                    assert run.lower_bound().seconds <= run.makespan * (1 + 1e-9)
                    assert run.makespan >= shortest * (1 - 1e-9)
