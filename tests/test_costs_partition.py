"""Layers cut into stages: even, greedy and optimal."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim import ConfigError, CostError
from ppsim.costs import DEVICES, LINKS, by_cost, even
from ppsim.costs.partition import explicit, read_partition

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
    assert even(8, 2, 5, 3) == [5, 3]
    for wrong in ((10, 4, 9, 0), (3, 4, 1, 1), (4, 1, 2, 2), (8, 2, 5, 2)):
        with pytest.raises(CostError, match="leave"):
            even(*wrong)


@pytest.mark.parametrize("name", ["greedy", "optimal"])
def test_methods_have_a_long_and_a_short_name(name):
    assert read_partition(name) == read_partition(f"by_cost({name})") == name
    assert read_partition([2, 1]) == (2, 1)


@pytest.mark.parametrize("wrong", ["evenly", "by_cost", 3, [], [-1, 2], [1.0], [True]])
def test_what_is_no_partition_is_one_clear_error(wrong):
    with pytest.raises(
        ConfigError, match=r"is not a partition; use one of: even, by_cost\(greedy\), by_cost\(optimal\)"
    ):
        read_partition(wrong)


LLAMA_3_70B = ppsim.Model(
    num_layers=80, hidden=8192, heads=64, key_value_heads=8, ffn=28672, gated=True, norm="rmsnorm",
    vocabulary=128256, sequence=8192,
)  # fmt: skip


def llama_on_h100(partition, **layout):
    cluster = ppsim.Cluster(DEVICES["H100 SXM"], LINKS["NVLink 4"], LINKS["InfiniBand NDR"])
    return ppsim.DerivedCosts(LLAMA_3_70B, cluster, ppsim.Layout(tensor=8, partition=partition, **layout))


@pytest.mark.parametrize("family", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("transport", ["async", "directed"])
@pytest.mark.parametrize(("devices", "microbatches"), [(7, 32), (7, 8), (6, 12)])
def test_no_partition_is_faster_than_the_optimal_one(family, transport, devices, microbatches):
    schedule = ppsim.build(family, devices=devices, microbatches=microbatches)
    step = {
        partition: ppsim.simulate(schedule, llama_on_h100(partition, recompute="full"), transport=transport).makespan
        for partition in ("even", "greedy", "optimal")
    }
    assert step["optimal"] <= min(step["even"], step["greedy"]) * (1 + 1e-12)  # equal steps differ by rounding


def test_with_few_microbatches_a_costlier_costliest_stage_may_make_the_shorter_step():
    many, few = (ppsim.build("1f1b", devices=7, microbatches=count) for count in (64, 8))
    costs = llama_on_h100("optimal", recompute="full")  # all that is tried fits
    balanced = ppsim.simulate(few, ppsim.simulate(many, costs).costs)
    chosen = ppsim.simulate(few, costs)
    assert chosen.makespan < balanced.makespan
    assert chosen.table.seconds[:2].sum(axis=0).max() > balanced.table.seconds[:2].sum(axis=0).max()


def test_the_optimal_partition_is_settled_for_the_step_and_is_the_same_each_time():
    schedule = ppsim.build("1f1b", devices=7, microbatches=32)
    costs = llama_on_h100("optimal")
    run = ppsim.simulate(schedule, costs)
    assert run.costs == ppsim.simulate(schedule, costs).costs
    assert sum(run.costs.layers_of_stages) == 82
    assert ppsim.simulate(schedule, run.costs).makespan == run.makespan
    assert ppsim.simulate_many(schedule, costs, progress=False).makespan.tolist() == [run.makespan]


def test_summary_and_json_say_what_each_stage_got():
    schedule = ppsim.build("1f1b", devices=4, microbatches=4)
    run = ppsim.simulate(schedule, llama_on_h100([19, 21, 22, 18]))
    assert "stages: embedding + 19 blocks | 21 blocks | 22 blocks | 18 blocks + head" in run.summary(
        verbose=True, costs=True
    )
    document = run.to_dict()
    assert document["stages"][0] == {"embedding": 1, "block": 19}
    assert document["megatron_layout"] == "Et*19|t*21|t*22|t*18L"
    assert "stages" not in ppsim.simulate(schedule).to_dict()
