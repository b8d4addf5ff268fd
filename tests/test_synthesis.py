"""Schedules by search: within the limit, never longer than a family that fits, and as short as what is published."""

import itertools
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim.actions import Kind
from ppsim.search import Problem
from ppsim.search.local_search import LocalSearch
from ppsim.search.solver import OrderModel

UNIT = ppsim.Costs(forward=2, input_grad=2, weight_grad=2)  # a stage of two a device takes 1 s
PLACEMENTS = {"one": 1, "loop": 2, "v": 2, "wave": 4}


def found(placement, p, m, costs=None, **options):
    v = options.pop("v", None) or PLACEMENTS[placement]
    options.setdefault("rounds", 1)
    return ppsim.build(
        "auto", devices=p, microbatches=m, stages_per_device=v, placement=placement, costs=costs, **options
    )


def device_of_stages(schedule):
    return dict(zip(schedule.stage.tolist(), schedule.device.tolist(), strict=True))


def rivals(placement, p, m, costs):
    """Every family of ours that runs whole microbatches on the same devices, simulated."""
    v = PLACEMENTS[placement]
    turned = placement in ("v", "wave")  # every second pass through the devices goes backwards
    places = {s: p - 1 - s % p if turned and s // p % 2 else s % p for s in range(p * v)}
    for name, family in ppsim.schedules().items():
        if family.asynchronous or name in ("auto", "bpipe", "zb-auto"):
            continue
        options = {"costs": costs} if "costs" in family.options else {}
        try:
            schedule = ppsim.build(name, devices=p, microbatches=m, stages_per_device=v, **options)
        except ppsim.BuildError:
            continue
        if np.any(schedule.kind > Kind.W) or schedule.slices > 1:
            continue
        if device_of_stages(schedule) == places and len(schedule.holdings) == len(places):
            yield ppsim.simulate(schedule, costs)


@st.composite
def costs_of(draw, stages):
    uneven = draw(st.booleans())
    length = st.floats(0.25, 2)
    times = {
        part: draw(st.lists(length, min_size=stages, max_size=stages) if uneven else length)
        for part in ("forward", "input_grad", "weight_grad")
    }
    kept = draw(st.sampled_from([1.0, 0.5, 0.0]))
    return ppsim.Costs(**times, latency=draw(st.sampled_from([0, 0.1, 1])), weight_grad_fraction_of_activation=kept)


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_it_is_never_longer_than_a_family_that_fits(data):
    placement = data.draw(st.sampled_from(list(PLACEMENTS)))
    p, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    costs = data.draw(costs_of(p * PLACEMENTS[placement]))
    others = list(rivals(placement, p, m, costs))
    peaks = data.draw(st.sampled_from([np.ones(p), *(run.peak_activations for run in others)]))
    limits = np.maximum(1.0, peaks * data.draw(st.sampled_from([1.0, 0.75, 0.5]))).tolist()
    run = ppsim.simulate(found(placement, p, m, costs, memory_limit=limits, rounds=0), costs)
    assert np.all(run.peak_activations <= np.array(limits) * (1 + 1e-9))
    for other in others:
        if np.all(other.peak_activations <= np.array(limits)):
            assert run.makespan <= other.makespan * (1 + 1e-9)
    assert run.lower_bound().seconds <= run.makespan


@pytest.mark.parametrize(
    ("p", "m", "costs", "limit", "published"),
    [
        (4, 8, UNIT, 3, 53),
        (4, 16, ppsim.Costs(forward=200, input_grad=210, weight_grad=150, latency=10), 3, 9825),
        (12, 12, ppsim.Costs(forward=10, input_grad=14, weight_grad=6), 12, 445),
    ],
)
def test_on_a_v_it_is_as_short_as_the_published_searches(p, m, costs, limit, published):
    """The authors' own schedules at the same peak: sail-sg/zero-bubble-pipeline-parallelism, V-Half and ZB-V."""
    run = ppsim.simulate(found("v", p, m, costs, memory_limit=limit, rounds=30), costs)
    assert run.makespan <= published
    assert run.peak_activations.max() <= limit


@pytest.mark.parametrize(
    ("placement", "limit", "optimum"),
    [("one", 2, 41), ("one", 3, 31), ("one", 4, 27), ("v", 2, 59), ("v", 3, 53), ("v", 4, 51)],
)
def test_four_devices_and_eight_microbatches_take_the_proven_optimum(placement, limit, optimum):
    """OR-Tools CP-SAT 9.15 proves that no schedule is shorter: unit times, no overlap on a device, the limit."""
    v = PLACEMENTS[placement]
    costs = ppsim.Costs(forward=v, input_grad=v, weight_grad=v)
    run = ppsim.simulate(found(placement, 4, 8, costs, memory_limit=limit, rounds=16), costs)
    assert run.makespan == optimum
    assert run.peak_activations.max() <= limit


def test_on_average_it_is_within_a_hundredth_of_the_bound_where_memory_is_at_least_p():
    gaps = []
    for p, placement in itertools.product((2, 4), ("one", "v")):
        uneven = np.linspace(1, 1.3, p * PLACEMENTS[placement]).tolist()
        cases = (1, (1, 1), 0.1, p), (1, (1.4, 0.6), 0, 1.5 * p), (uneven, (1.2, 0.8), 0.05, p)
        for forward, backward, latency, limit in cases:
            costs = ppsim.Costs(forward=forward, input_grad=backward[0], weight_grad=backward[1], latency=latency)
            run = ppsim.simulate(found(placement, p, 4 * p, costs, memory_limit=limit, rounds=12), costs)
            gaps.append(run.lower_bound().gap)
    assert np.mean(gaps) <= 0.01


def test_a_sentence_says_how_it_was_found_how_far_from_the_bound_and_what_might_shorten_it():
    first = ppsim.build("auto", devices=4, microbatches=8).found
    assert first == "It is zb-h1: 27 s, proven shortest. What is left to change: another placement, other costs."
    schedule = found("one", 4, 8, memory_limit=2, rounds=3)
    assert "3 rounds of search: 41 s, 2.5 % above the bound of 40 s" in schedule.found
    assert schedule.found.endswith("more rounds or seconds of search, and more memory on devices 0, 1, 2, 3.")
    run = ppsim.simulate(schedule)
    assert "2.5 % above the bound" in " ".join(run.summary(verbose=True, costs=True).split())
    assert ppsim.build("1f1b", devices=4, microbatches=8).found == ""


@settings(deadline=None, max_examples=8)
@given(st.data())
def test_microbatches_of_different_cost_are_judged_with_their_own(data):
    """Not longer than 1F1B, ZB-H1 and ZB-H2 where they fit, and within the limit, whatever each microbatch costs."""
    p, m = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 8))
    scale = data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.5, 3.0]), min_size=m, max_size=m))
    costs = ppsim.Costs(forward=1, input_grad=1.2, weight_grad=0.8, latency=0.1, microbatch_scale=scale)
    limit = max(scale) * data.draw(st.sampled_from([1, 2, p]))
    run = ppsim.simulate(found("one", p, m, costs, memory_limit=limit), costs)
    assert run.peak_activations.max() <= limit * (1 + 1e-9)
    for name in ("1f1b", "zb-h1", "zb-h2"):
        if name == "zb-h2" and m < 2 * p - 1:
            continue
        other = ppsim.simulate(ppsim.build(name, devices=p, microbatches=m), costs)
        if other.peak_activations.max() <= limit:
            assert run.makespan <= other.makespan * (1 + 1e-9)


def test_lists_that_fit_only_with_each_microbatchs_own_size_stay_as_they_are():
    """A search takes equal microbatches, the largest; lists above the limit by these must not seem to end at once."""
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, microbatch_scale=[3, 1, 1, 1])
    problem = Problem.of(2, 4, np.arange(2), costs, True, np.full(2, 4.0))
    schedule = ppsim.build("1f1b", devices=2, microbatches=4)
    assert problem.fits(schedule)
    lists = problem.lists_of(schedule)
    assert np.array_equal(problem.improved(lists, 10, 0.0, 0).starts, lists.starts)


def test_the_least_limit_holds_one_microbatch_a_device():
    for placement in PLACEMENTS:
        run = ppsim.simulate(found(placement, 3, 5, memory_limit=1))
        assert run.peak_activations.tolist() == [1, 1, 1]


def test_a_placement_may_name_the_device_of_each_stage():
    schedule = found([0, 1, 2, 2, 0, 1], 3, 4, v=2, memory_limit=1.5)
    assert device_of_stages(schedule) == dict(enumerate([0, 1, 2, 2, 0, 1]))
    assert ppsim.simulate(schedule).peak_activations.max() <= 1.5


def test_backwards_may_stay_whole():
    run = ppsim.simulate(found("one", 4, 8, memory_limit=4, split=False))
    assert {str(action)[1] for order in run.schedule.orders() for action in order} == {"F", "B"}
    assert run.makespan <= ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8)).makespan


def test_the_same_seed_and_rounds_give_the_same_schedule():
    first, second = (found("v", 3, 6, UNIT, memory_limit=2, seed=7) for _ in range(2))
    assert first == second


def problem_of_eight():
    costs = ppsim.Costs(forward=1, input_grad=1.4, weight_grad=0.6, latency=0.1)
    return Problem.of(8, 24, np.arange(8), costs, True, np.full(8, 5.0))


def test_the_solver_meets_its_bound_on_a_small_problem():
    problem = replace(problem_of_eight(), m=2)
    best = LocalSearch(problem, [], 0).best
    found, bound = OrderModel(best).solve(num_workers=1)
    assert problem.lower_bound <= bound * (1 + 1e-9)
    assert found.makespan == pytest.approx(bound)


def test_a_search_for_some_seconds_tells_its_rounds_and_is_no_longer_than_what_it_begins_with():
    options = {"memory_limit": 5, "costs": ppsim.Costs(forward=1, input_grad=1.4, weight_grad=0.6, latency=0.1)}
    first, longer = (found("one", 8, 24, seconds=seconds, rounds=None, **options) for seconds in (0, 1))
    assert " of search: " not in first.found
    assert re.search(r"\d+ rounds? of search: ", longer.found)
    assert ppsim.simulate(longer, options["costs"]).makespan <= ppsim.simulate(first, options["costs"]).makespan


def test_a_limit_in_bytes_counts_weights_and_activations():
    costs = ppsim.Costs(forward=1, backward=2, activation_bytes=10, weight_bytes=100)
    assert found("one", 4, 8, costs, memory_limit_bytes=["125 B"] * 4) == found(
        "one", 4, 8, costs, memory_limit_bytes=125
    )
    run = ppsim.simulate(found("one", 4, 8, costs, memory_limit_bytes=125), costs)
    assert run.peak_activations.max() == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_limit": 0.5}, r"memory_limit=0.5 on device 0: .*use at least 1"),
        ({"memory_limit": [4, 4, 0.9, 4]}, r"memory_limit=0.9 on device 2: .*use at least 1"),
        (
            {"memory_limit": 1.33333, "stages_per_device": 3, "placement": [0, 0, 0, 0, 0, 0, 0, *range(1, 4), 1, 2]},
            r"needs 2.33334 activations there; use at least 2.33334",
        ),
        ({"memory_limit": math.nan}, r"memory_limit=nan is not a limit for 4 devices"),
        (
            {"memory_limit_bytes": 14, "costs": ppsim.Costs(activation_bytes=10, weight_bytes=5)},
            r"memory_limit_bytes=14 on device 0: .* 15 B with its weights there; use at least 15",
        ),
        ({"memory_limit": 4, "memory_limit_bytes": 1e9}, r"give one of them"),
        ({"memory_limit_bytes": 1e9}, r"needs costs with bytes of activations"),
        ({"costs": 3}, r"costs=3 does not price a schedule"),
        ({"placement": "x"}, r"placement='x' is not known; use one of: one, loop, v, wave"),
        ({"placement": "v"}, r"placement='v' with stages_per_device=1: use stages_per_device=2"),
        ({"placement": [0, 1, 2, 4]}, r"is not a list of 4 devices from 0 to 3"),
        ({"placement": [0, 1, 2, 2]}, r"with each of them"),
        ({"placement": [0, 1, 2, 3, 3, 2, 1, 0]}, r"or another stages_per_device than 1"),
        ({"placement": 3}, r"placement=3 is not known"),
        ({"seconds": -1}, r"seconds=-1 is not a time to search; use a number from 0"),
        ({"rounds": 1.5}, r"rounds=1.5 must be a whole number of at least"),
        ({"seed": -1}, r"seed=-1 must be a whole number of at least 0"),
    ],
)
def test_a_refused_option_names_the_rule_and_a_legal_value(options, words):
    with pytest.raises(ppsim.BuildError, match=words):
        ppsim.build("auto", devices=4, microbatches=8, **options)
