"""Layers cut into stages: even, greedy and optimal."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import ConfigError, CostError
from ppsim.costs.partition import by_cost, even, explicit, method

costs_and_stages = st.lists(st.integers(0, 9), min_size=1, max_size=8).flatmap(
    lambda costs: st.tuples(st.just(costs), st.integers(1, len(costs)))
)


def sums(costs, counts):
    ends = list(itertools.accumulate(counts))
    return [sum(costs[end - count : end]) for end, count in zip(ends, counts, strict=True)]


def all_partitions(layers, stages):
    for cuts in itertools.combinations(range(1, layers), stages - 1):
        yield [last - first for first, last in itertools.pairwise([0, *cuts, layers])]


def test_even_gives_the_remainder_to_the_first_stages():
    assert even(32, 8) == [4] * 8
    assert even(10, 4) == [3, 3, 2, 2]


def test_greedy_closes_a_stage_when_its_sum_reaches_the_mean_and_enough_layers_remain():
    assert by_cost([1, 1, 1, 1, 4], 2, "greedy") == [4, 1]
    assert by_cost([9, 1, 1, 1], 4, "greedy") == [1, 1, 1, 1]
    assert by_cost([1, 1, 1, 9], 3, "greedy") == [2, 1, 1]
    assert by_cost([5, 1, 1, 1, 1, 1], 3, "greedy") == [1, 4, 1]


def test_optimal_balances_the_head_that_even_overloads():
    costs = [0, *[1] * 32, 2.1]
    counts = by_cost(costs, 8, "optimal")
    assert max(sums(costs, counts)) == 5
    assert sum(counts) == 34


@settings(deadline=None, max_examples=100)
@given(costs_and_stages)
def test_optimal_is_the_best_of_all_partitions_and_greedy_is_a_partition(case):
    costs, stages = case
    best = by_cost(costs, stages, "optimal")
    greedy = by_cost(costs, stages, "greedy")
    for counts in (best, greedy):
        assert len(counts) == stages
        assert sum(counts) == len(costs)
        assert min(counts) >= 1
    ranked = [
        (max(sums(costs, counts)), sum(x * x for x in sums(costs, counts)))
        for counts in all_partitions(len(costs), stages)
    ]
    assert (max(sums(costs, best)), sum(x * x for x in sums(costs, best))) == min(ranked)


@pytest.mark.parametrize(
    "split", [lambda: even(3, 4), lambda: by_cost([1, 1, 1], 4), lambda: by_cost([1] * 3, 4, "greedy")]
)
def test_fewer_layers_than_stages_is_an_error(split):
    with pytest.raises(
        CostError, match="3 layers cannot fill 4 stages of at least one layer each; use at most 3 stages"
    ):
        split()


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        ([2, 2], "lists 2 stages, but the schedule has 3"),
        ([2, 2, 2], "lists 6 layers, but the model has 5"),
        ([2, -1, 4], "whole numbers of layers of at least 0"),
    ],
)
def test_an_explicit_list_must_cover_the_model_and_the_stages(counts, message):
    assert explicit([2, 2, 1], 5, 3) == [2, 2, 1]
    with pytest.raises(CostError, match=message):
        explicit(counts, 5, 3)


def test_costs_that_are_no_numbers_are_an_error():
    with pytest.raises(CostError, match="finite number of at least 0"):
        by_cost([1, float("nan")], 1)
    with pytest.raises(CostError, match="'best' is not known; use 'optimal' or 'greedy'"):
        by_cost([1, 1], 1, "best")


def test_first_and_last_stage_can_hold_fewer_layers():
    assert even(62, 32, 1, 1) == [1, *[2] * 30, 1]
    assert even(126, 128, 0, 0) == [0, *[1] * 126, 0]
    assert even(10, 4, first=1) == [1, 3, 3, 3]
    assert even(10, 4, last=1) == [3, 3, 3, 1]
    for wrong in ((10, 4, 9, 0), (3, 4, 1, 1), (4, 1, 2, 2)):
        with pytest.raises(CostError, match="leave"):
            even(*wrong)


@pytest.mark.parametrize("name", ["greedy", "optimal"])
def test_methods_have_a_long_and_a_short_name(name):
    assert method(name) == method(f"by_cost({name})") == name
    assert method([2, 1]) == (2, 1)


@pytest.mark.parametrize("wrong", ["evenly", "by_cost", 3, [], [-1, 2], [1.0], [True]])
def test_what_is_no_partition_is_one_clear_error(wrong):
    with pytest.raises(ConfigError, match=r"is no partition; use one of: even, by_cost\(greedy\), by_cost\(optimal\)"):
        method(wrong)
