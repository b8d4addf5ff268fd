"""Random programs through both engines and an oracle, and tiny cases by brute force."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from random_schedules import random_orders, schedules, vocabulary_orders
from test_compiled_engine import assert_equal_times, tables_with_everything
from test_time_oracle import choose_one, try_one
from test_transports_oracle import OVERLAP, check, shuffled_posts

import ppsim
from ppsim.lowering import TRANSPORTS
from ppsim.studies.optimum import optimum
from tests.fuzz.cases import COUNTS, case, fuzz, some


class Given:
    """Costs that are a table."""

    def __init__(self, table):
        self.given = table

    def table(self, schedule):
        return self.given


@given(data=st.data(), transport=st.sampled_from(TRANSPORTS), seed=st.integers(0, 99))
@fuzz
def test_both_engines_give_equal_bits_or_the_same_deadlock(data, transport, seed):
    """With gathers, reductions, optimizer steps, ports, fused slots, ties, jitter, R, copies, S and T, any posts."""
    random = data.draw(st.randoms(use_true_random=False))
    kinds = {name: data.draw(st.booleans()) for name in ("fused", "recompute", "offload")}
    cut = data.draw(st.booleans())
    schedule = ppsim.Schedule.from_orders(vocabulary_orders(random) if cut else random_orders(random, **kinds))
    costs = Given(data.draw(tables_with_everything(schedule)))
    try:
        program = ppsim.lower(schedule, sharded=data.draw(st.booleans())) if data.draw(st.booleans()) else schedule
        if program is not schedule and data.draw(st.booleans()):
            program = shuffled_posts(program, random)
    except ppsim.ScheduleError:
        assume(False)
    jitter = data.draw(st.sampled_from([None, ppsim.Jitter(actions=0.1, transfers=0.2, devices=0.1, links=0.1)]))
    optimizer = data.draw(st.sampled_from([None, "sync", "post-validated"]))

    def run(engine):
        options = {"transport": transport, "optimizer": optimizer, "jitter": jitter, "seed": seed}
        try:
            return ppsim.simulate(program, costs, engine=engine, **options)
        except ppsim.ScheduleError as error:
            return str(error)

    event: Any = run("event")
    compiled: Any = run("compiled")
    with case("random programs through both engines"):
        if isinstance(event, str):
            assert compiled == event
            raise ppsim.ScheduleError(event)
        assert_equal_times(event.times, compiled.times)
        assert np.isfinite(event.makespan)
        assert event.lower_bound().seconds <= event.makespan * (1 + 1e-9)


@given(schedule=schedules(recompute=True, offload=True), data=st.data(), random=st.randoms(use_true_random=False))
@fuzz
def test_times_are_those_of_an_oracle_that_shares_no_code_with_the_engines(schedule, data, random):
    with case("random programs against the oracle"):
        program = ppsim.lower(schedule, receive=data.draw(st.sampled_from(["early", "just-in-time"])))
        if data.draw(st.booleans()):
            program = shuffled_posts(program, random)
        switch = data.draw(st.sampled_from([None, 2, 3]))
        check(program, data.draw(st.sampled_from(TRANSPORTS)), data.draw(st.sampled_from([OVERLAP, None])), switch)


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
