"""Zero bubble by search: never above its limit, never behind the forms it generalises, graceful below p activations."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim

UNIT = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
CLOSED_FORMS = ("1f1b", "eager-1f1b", "gpipe", "zb-h1", "zb-h2")


def searched(p, m, memory_limit=None, costs=UNIT, **options):
    schedule = ppsim.build("zb-auto", devices=p, microbatches=m, memory_limit=memory_limit, costs=costs, **options)
    return ppsim.simulate(schedule, costs)


@st.composite
def stage_costs(draw, p):
    """Costs of a pipeline with even or uneven stages, transfers and activations that I frees in part."""
    length = st.floats(0.25, 2)
    uneven = draw(st.booleans())
    times = {
        part: draw(st.lists(length, min_size=p, max_size=p) if uneven else length)
        for part in ("forward", "input_grad", "weight_grad")
    }
    kept = draw(st.sampled_from([1.0, 0.5, 0.0]))
    return ppsim.Costs(**times, latency=draw(st.sampled_from([0, 0.1, 1])), weight_grad_fraction_of_activation=kept)


def test_a_device_alone_never_waits():
    assert searched(1, 2).schedule.orders() == [["0F0", "0I0", "0W0", "0F1", "0I1", "0W1"]]


def test_every_small_size_is_valid_and_within_its_limit():
    for p in (1, 2, 3, 5):
        for m in (1, 3, 8):
            for name, limit in (("zb-1p", p), ("zb-2p", 2 * p)):
                schedule = ppsim.build(name, devices=p, microbatches=m)
                schedule.validate()
                assert ppsim.simulate(schedule, UNIT).peak_activations.max() <= limit


@settings(deadline=None, max_examples=15)
@given(st.data())
def test_limits_hold_and_no_fitting_closed_form_has_a_shorter_span(data):
    p = data.draw(st.integers(1, 7))
    m = data.draw(st.integers(1, 3 * p + 2))
    limit = data.draw(st.one_of(st.sampled_from([1, p, 2 * p - 1, 2 * p, m]), st.floats(1, 2.5 * p)))
    costs = data.draw(stage_costs(p))
    run = searched(p, m, limit, costs)
    assert run.peak_activations.max() <= limit * (1 + 1e-9)
    for name in CLOSED_FORMS:
        if name == "zb-h2" and m < 2 * p - 1:
            continue
        form = ppsim.simulate(ppsim.build(name, devices=p, microbatches=m), costs)
        if form.peak_activations.max() <= limit:
            assert run.span <= form.span * (1 + 1e-8)


@settings(deadline=None, max_examples=10)
@given(st.data())
def test_each_device_may_have_its_own_limit(data):
    p, m = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 12))
    limits = data.draw(st.lists(st.floats(1, 2 * p), min_size=p, max_size=p))
    run = searched(p, m, limits)
    assert all(peak <= limit * (1 + 1e-9) for peak, limit in zip(run.peak_activations, limits, strict=True))


def test_between_p_and_2p_minus_1_each_activation_saves_a_slot_of_span():
    for p in (1, 2, 3, 6):
        for limit in range(p, 2 * p):
            run = searched(p, 3 * p, limit)
            assert run.span == 9 * p + 2 * p - 1 - limit
            assert run.makespan == 9 * p + p - 1


def test_zb_1p_has_zb_h1s_bubble_and_zb_2p_none_where_all_parts_are_equal():
    for p in (1, 2, 3, 4, 7):
        m = 2 * p + 1
        one, two = (ppsim.simulate(ppsim.build(name, devices=p, microbatches=m), UNIT) for name in ("zb-1p", "zb-2p"))
        assert one.bubble_fraction == pytest.approx((p - 1) / (3 * m + p - 1))
        assert two.span_bubble_fraction == 0


@pytest.mark.parametrize(("part_of_p", "most_idle"), [(0.75, 0.20), (0.5, 0.39)])
def test_idle_grows_slowly_below_p_activations(part_of_p, most_idle):
    run = searched(8, 24, part_of_p * 8)
    assert run.bubble_fraction <= most_idle
    assert run.peak_activations.max() <= part_of_p * 8


def test_small_cases_are_within_a_slot_of_the_shortest_makespan():
    """Shortest makespans proven by OR-Tools CP-SAT 9.15: unit times, no overlap on a device, the memory limit."""
    optimum = {(4, 8, 1): 72, (4, 8, 2): 41, (4, 8, 3): 31, (6, 9, 2): 65, (6, 9, 3): 46, (6, 9, 4): 39}
    for (p, m, limit), shortest in optimum.items():
        assert shortest <= searched(p, m, limit, objective="makespan").makespan <= shortest + 1


@pytest.mark.parametrize("limit", [2, 3])
def test_true_stage_times_beat_their_medians(limit):
    true = ppsim.Costs(forward=[1, 1, 1, 2], input_grad=[1, 1, 1, 3], weight_grad=1, latency=0.2)
    medians = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.2)
    of_medians = ppsim.build("zb-auto", devices=4, microbatches=12, memory_limit=limit, costs=medians)
    assert searched(4, 12, limit, true).makespan < 0.95 * ppsim.simulate(of_medians, true).makespan


def test_objective_chooses_between_span_and_makespan():
    costs = ppsim.Costs(forward=[1, 2, 0.5, 1], input_grad=[1.5, 1, 1, 2], weight_grad=[0.5, 2, 1, 1], latency=0.3)
    span = searched(4, 8, 8, costs, objective="span")
    makespan = searched(4, 8, 8, costs, objective="makespan")
    assert span.span <= makespan.span
    assert makespan.makespan <= span.makespan


def test_the_same_call_builds_the_same_schedule():
    first, second = (ppsim.build("zb-auto", devices=6, microbatches=20, memory_limit=4.5) for _ in range(2))
    assert first == second


def test_an_unlimited_memory_is_a_limit_too():
    assert searched(4, 7, math.inf).span_bubble_fraction == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory_limit": 0.5}, r"memory_limit=0.5 on device 0: one microbatch alone needs 1 .*; use at least 1"),
        ({"memory_limit": [4, 4, 0.9, 4]}, r"memory_limit=0.9 on device 2: .*use at least 1"),
        ({"memory_limit": 0}, r"memory_limit=0 is not a limit for 4 devices; use a number of activations above 0"),
        ({"memory_limit": math.nan}, r"memory_limit=nan is not a limit"),
        ({"memory_limit": "much"}, r"memory_limit='much' is not a limit"),
        ({"memory_limit": True}, r"memory_limit=True is not a limit"),
        ({"memory_limit": [4, 4]}, r"memory_limit=\[4, 4\] is not a limit for 4 devices; .*a list of 4 such numbers"),
        ({"memory_limit": [[4], 4, 4, 4]}, r"is not a limit for 4 devices"),
        ({"costs": 3}, r"costs=3 does not price a schedule; use ppsim.Costs"),
        ({"objective": "time"}, r"objective='time' is not known; use one of: span, makespan"),
        ({"stages_per_device": 2}, r"stages_per_device=2 is not allowed; .* use stages_per_device=1"),
    ],
)
def test_a_refused_option_names_the_rule_and_a_legal_value(options, words):
    with pytest.raises(ppsim.BuildError, match=words):
        ppsim.build("zb-auto", devices=4, microbatches=8, **options)


def test_the_limits_of_zb_1p_and_zb_2p_are_their_names():
    for name in ("zb-1p", "zb-2p"):
        with pytest.raises(ppsim.BuildError, match=r"unknown option 'memory_limit'; .* are: costs, objective"):
            ppsim.build(name, devices=4, microbatches=8, memory_limit=3)


def test_costs_of_another_number_of_stages_are_refused():
    with pytest.raises(ppsim.CostError, match=r"forward lists 3 values, but the schedule has 4 stages"):
        ppsim.build("zb-auto", devices=4, microbatches=8, costs=ppsim.Costs(forward=[1, 2, 3]))


def test_a_form_that_fits_because_microbatches_are_few_is_not_beaten():
    costs = ppsim.Costs(forward=[1, 1, 1, 2], input_grad=[1, 3, 2, 1], weight_grad=[3, 2, 2, 1], latency=1, per="stage")
    form = ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=2), costs)
    assert form.peak_activations.max() == 2
    assert searched(4, 2, 2, costs).makespan <= form.makespan
