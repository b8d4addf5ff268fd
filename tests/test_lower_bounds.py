"""Lower bounds: below every makespan, and reached by the schedules that are known to be best."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import runs

import ppsim
from ppsim.search import find_family
from ppsim.studies.optimum import optimum


@settings(max_examples=60)
@given(runs(streams=True))
def test_every_bound_is_at_most_the_makespan(run):
    bound = run.lower_bound()
    assert all(seconds <= run.makespan for seconds in bound.bounds.values()), bound
    assert bound.seconds == max(bound.bounds.values()) == bound.bounds[bound.which]
    assert bound.gap >= 0


@pytest.mark.parametrize("family", sorted(ppsim.schedules()))
@pytest.mark.parametrize("transport", ["async", "rank"])
def test_every_family_stays_above_its_bounds_and_its_idle_time_has_causes_where_stages_are_uneven(family, transport):
    kwargs: dict[str, Any] = {"costs": ppsim.Costs()} if "costs" in find_family(family).options else {}
    schedule = ppsim.build(family, devices=4, microbatches=8, **kwargs)
    stages = schedule.num_stages
    costs = ppsim.Costs(
        forward=np.linspace(1.0, 2.0, stages),
        input_grad=np.linspace(2.0, 0.5, stages),
        weight_grad=1.0,
        latency=0.13,
        weight_grad_fraction_of_activation=0.4,
        vocabulary_forward=0.5,
        vocabulary_reduce=0.3,
    )
    try:
        run = ppsim.simulate(schedule, costs, transport=transport)
    except ppsim.DeadlockError:
        return
    assert max(run.lower_bound().bounds.values()) <= run.makespan
    assert np.allclose(run.ledger().total, run.device_idle)
    assert np.allclose(run.ledger()["overhead"], 0)


@pytest.mark.parametrize(
    ("family", "which"),
    [
        ("naive", "memory"),
        ("gpipe", "fill + work + drain"),
        ("1f1b", "fill + work + drain"),
        ("zb-h1", "fill + work + drain"),
    ],
)
def test_schedules_that_are_best_of_their_kind_reach_their_bound(family, which):
    run = ppsim.simulate(ppsim.build(family, devices=4, microbatches=8), ppsim.Costs(forward=1.0, backward=2.0))
    bound = run.lower_bound()
    assert (bound.which, bound.gap) == (which, 0.0)
    assert bound.seconds == run.makespan


def test_the_bounds_of_1f1b_by_hand():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), ppsim.Costs(forward=1.0, backward=2.0))
    assert run.lower_bound().bounds == {
        "busiest device": 8 * 3.0,
        "fill + work + drain": 3 * 1.0 + 8 * 3.0 + 3 * 2.0,
        "memory": 8 * (4 * 3.0) / 4 + 9.0,  # device 3: holds one at a time for F + B, after 3 F and before 3 B
        "dataflow": 4 * 3.0,
        "counting": 3 * 1.0 + 8 * 3.0 + 3 * 2.0,
    }


def test_a_tiny_action_before_long_ones_adds_no_second_wait():
    """1F takes 1.15e-7 s, W 2 s: the work left for the time before the last W is as small as a rounding error."""
    orders = [["0F0", "1F0", "1I0", "1W0", "0I0", "0W0"], ["2F0", "2I0", "2W0"]]
    costs = ppsim.Costs(
        forward=[0, 1.15e-7, 0],
        input_grad=0,
        weight_grad=[0, 2, 0],
        per="stage",
        latency=0.1,
        weight_grad_fraction_of_activation=0,
    )
    run = ppsim.simulate(ppsim.Schedule.from_orders(orders), costs)
    assert max(run.lower_bound().bounds.values()) <= run.makespan


def test_evicted_activations_are_not_held_in_between():
    run = ppsim.simulate(ppsim.build("bpipe", devices=4, microbatches=8))
    assert run.lower_bound().bounds["memory"] <= run.makespan


def test_the_gap_is_how_far_the_makespan_is_above():
    run = ppsim.simulate(ppsim.build("chimera", devices=4, microbatches=8))
    bound = run.lower_bound()
    assert bound.gap == pytest.approx(run.makespan / bound.seconds - 1)
    assert bound.gap > 0


def test_work_that_takes_no_time_has_no_gap():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2), ppsim.Costs(forward=0.0, backward=0.0))
    assert (run.lower_bound().seconds, run.lower_bound().gap) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("placement", "p", "m", "limit", "least"),
    [
        ("one", 4, 8, 1, 72),
        ("one", 6, 9, 2, 65),
        ("one", 6, 9, 4, 39),
        ("v", 4, 8, 2, 59),
        ("v", 4, 8, 3, 53),
        ("v", 4, 8, 4, 51),
        ("v", 8, 32, 5, 209),
        ("v", 9, 36, 4, 245),
        ("v", 12, 12, 12, 445),
    ],
)
def test_counting_reaches_the_optimum_where_memory_is_short(placement, p, m, limit, least):
    """Optima by OR-Tools CP-SAT 9.15 at p = 4 and 6; the authors' own V-Half, V-Min and ZB-V at p = 8, 9 and 12."""
    v = 1 if placement == "one" else 2
    unit = ppsim.Costs(forward=v, input_grad=v, weight_grad=v)
    costs = ppsim.Costs(forward=10, input_grad=14, weight_grad=6) if p == 12 else unit
    schedule = ppsim.build(
        "auto", devices=p, microbatches=m, placement=placement, stages_per_device=v, costs=costs, memory_limit=limit
    )
    run = ppsim.simulate(schedule, costs)
    assert (run.makespan, run.lower_bound().gap) == (least, 0)


def test_the_device_at_the_turn_of_a_v_idles_until_its_first_activation_is_back():
    """Devices 4, microbatches 8, half a share a stage, at most 3: device 3 works for 48 s and idles for 5 s at least.

    Its first F can start after 3 s. It holds six, those of stages 3 and 4 counted together, so that by 9 s it has no
    room; the first 4I starts after F of 8 stages and I of 3, at 11 s.
    """
    costs = ppsim.Costs(forward=2, input_grad=2, weight_grad=2)
    run = ppsim.simulate(ppsim.build("v-half", devices=4, microbatches=8, costs=costs), costs)
    assert run.peak_activations.max() == 3
    assert run.lower_bound().bounds["counting"] == 48 + 3 + (11 - 9)


@pytest.mark.parametrize("scale", [0.3, [0.5, 0.25, 0.5, 1, 1, 2, 0.2, 3]])
@pytest.mark.parametrize("family", ["1f1b", "zb-h1", "zb-v", "seq1f1b", "chimera"])
def test_small_microbatches_hold_less_of_what_a_device_may_hold(family, scale):
    costs = ppsim.Costs(latency=0.1, microbatch_scale=[scale] * 8 if scale == 0.3 else scale)
    run = ppsim.simulate(ppsim.build(family, devices=4, microbatches=8), costs)
    assert run.lower_bound().bounds["counting"] <= run.makespan * (1 + 1e-9)


def test_an_activation_that_rounding_hides_from_the_peak_is_hidden_from_the_bound_too():
    """On the last device F and B take 3 s at 1e99 s, which no time of the run shows."""
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2, offload="all"), ppsim.Costs(latency=1e99))
    assert run.peak_activations.tolist() == [2, 0]
    assert max(run.lower_bound().bounds.values()) <= run.makespan == 2e99


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_schedule_of_a_solver_is_below_the_bound_under_its_own_peak(data):
    """What CP-SAT finds on tiny cases is the hardest test: any placement, uneven stages, transfers, a limit."""
    p, v = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    placement = data.draw(st.permutations([stage % p for stage in range(p * v)]))
    seconds = st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=p * v, max_size=p * v)
    costs = ppsim.Costs(
        forward=data.draw(seconds.filter(any)), input_grad=data.draw(seconds), weight_grad=data.draw(seconds),
        latency=data.draw(st.sampled_from([0.0, 0.5])),
        weight_grad_fraction_of_activation=data.draw(st.sampled_from([1.0, 0.5, 0.3, 0.0])),
    )  # fmt: skip
    best = optimum(
        p, data.draw(st.integers(1, 4)), costs, placement=placement, stages_per_device=v, time_limit=5.0,
        memory_limit=data.draw(st.integers(v, v * (p + 1))) / v, split=data.draw(st.booleans()),
    )  # fmt: skip
    assert best.run.lower_bound().seconds <= best.makespan


@pytest.mark.parametrize("family", ["chimera", "seq1f1b", "terapipe", "seq1f1b-zb", "hanayo", "bitpipe"])
def test_bidirectional_and_sliced_schedules_have_a_counting_bound(family):
    run = ppsim.simulate(ppsim.build(family, devices=4, microbatches=8), ppsim.Costs(latency=0.1))
    bounds = run.lower_bound().bounds
    assert bounds["busiest device"] < bounds["counting"] <= run.makespan
