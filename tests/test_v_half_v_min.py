"""V-Half and V-Min: exact activations, and a bubble that is half and two thirds of 1F1B's."""

from functools import cache

import pytest

import ppsim

UNIT = ppsim.Costs(forward=2, input_grad=2, weight_grad=2)  # a stage, half a device share, takes 1 s
ACTIVATIONS = {"v-half": lambda p: -(-(p + 1) // 2), "v-min": lambda p: -(-(p + 2) // 3)}
families = pytest.mark.parametrize("name", ACTIVATIONS)


both = pytest.mark.parametrize("search", [True, False])
SIZES = (1, 2, 3, 4, 5, 8)  # devices


def stage_costs(forward, input_grad, weight_grad, latency=0):
    return ppsim.Costs(forward=forward, input_grad=input_grad, weight_grad=weight_grad, latency=latency, per="stage")


@cache
def simulate(name, p, m, search=True):
    return ppsim.simulate(ppsim.build(name, devices=p, microbatches=m, search=search), UNIT)


def bubble(name, p, m, search=True):
    """Idle slots of the longest device, from the first action of the pipeline to the last."""
    return simulate(name, p, m, search).makespan - 6 * m


def test_v_half_on_two_devices():
    assert [" ".join(order) for order in ppsim.build("v-half", devices=2, microbatches=3, search=False).orders()] == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 0I0 0W0 3W1 3F2 3I2 0I1 0W1 0I2 3W2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1I0 1W0 1F2 2F2 2I1 1I1 2I2 1I2 2W1 1W1 2W2 1W2",
    ]


def test_v_min_repeats_its_block_once_it_is_full():
    order = ppsim.build("v-min", devices=3, microbatches=12, search=False).orders()[1]
    steady = [(action[:2], int(action[2:])) for action in order]
    block = steady[30:36]
    assert [(name, microbatch + 1) for name, microbatch in block] == steady[36:42]
    assert sorted(name for name, _ in block) == ["1F", "1I", "1W", "4F", "4I", "4W"]


@families
@both
def test_activations_are_exact_once_the_pipeline_is_full(name, search):
    for p in (*SIZES, *([] if search else [11])):
        run = simulate(name, p, 2 * p + 1, search)
        run.schedule.validate()
        assert run.peak_activations.max() == ACTIVATIONS[name](p)


@families
@both
def test_every_size_is_valid_and_never_above_the_limit(name, search):
    for p in range(1, 6):
        for m in {1, p // 2 + 1, p, p + 1}:
            run = simulate(name, p, m, search)
            run.schedule.validate()
            assert run.peak_activations.max() <= ACTIVATIONS[name](p)


def test_v_half_bubble_is_at_most_half_of_1f1bs():
    for p in SIZES:
        for m in (p, 2 * p + 1):
            assert bubble("v-half", p, m) <= bubble("v-half", p, m, search=False) <= (6 * (p - 1)) / 2


def test_v_min_bubble_is_at_most_two_thirds_of_1f1bs_and_a_slot():
    for p in SIZES[1:]:
        for m in (p, 2 * p + 1):
            assert bubble("v-min", p, m) <= bubble("v-min", p, m, search=False) <= (6 * (p - 1)) * 2 / 3 + 1


@families
@both
def test_idle_stays_below_the_papers_rate(name, search):
    """The paper: about p/2m (V-Half) and 2p/3m (V-Min) of the ideal time, longest device."""
    rate = {"v-half": 1 / 2, "v-min": 2 / 3}[name]
    for p, times in ((4, 4), (8, 1)):
        for m in (p, 2 * p + 1, times * p):
            assert simulate(name, p, m, search).span / (6 * m) - 1 <= rate * p / m


@pytest.mark.parametrize(
    ("name", "p", "m", "costs", "published"),
    [
        ("v-half", 12, 48, stage_costs(10, 14, 6), 3440),
        ("v-half", 4, 8, stage_costs(20, 32, 12, 2), 1372),
        ("v-half", 5, 10, stage_costs(1, 1, 1), 71),
        ("v-min", 6, 24, stage_costs(10, 14, 6, 1), 2330),
        ("v-half", 16, 64, ppsim.Costs(forward=200, input_grad=210, weight_grad=150, latency=10), 41565),
        ("v-half", 4, 8, UNIT, 53),
        ("v-half", 8, 32, UNIT, 209),
        ("v-half", 4, 16, ppsim.Costs(forward=200, input_grad=210, weight_grad=150, latency=10), 9825),
        ("v-min", 9, 36, UNIT, 245),
    ],
)
def test_it_is_as_short_as_the_authors_own_search_under_the_same_costs(name, p, m, costs, published):
    """sail-sg/zero-bubble-pipeline-parallelism at the same peak; the block alone already is, the search goes on."""
    for search in (False, True):
        run = ppsim.simulate(ppsim.build(name, devices=p, microbatches=m, costs=costs, search=search), costs)
        assert run.makespan <= published
        assert run.peak_activations.max() == ACTIVATIONS[name](p)
