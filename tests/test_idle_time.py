"""R where memory needs it, and ahead of its backward in time that would be idle: RiPipe, Mario, any schedule."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim.actions import Kind

FAMILIES = ("1f1b", "eager-1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "gis", "chimera")


def build(name, p=4, m=8, **options):
    return ppsim.build(name, devices=p, microbatches=m, **options)


def recomputes(schedule):
    return int(np.count_nonzero(schedule.kind == Kind.R))


# The second device is fast and far away: gradients of the three microbatches reach the first at 8, 9 and 10 s.
FAR = {"forward": [1, 0.5], "backward": [2, 0.5], "latency": 3}
SECOND = ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]


@pytest.mark.parametrize(
    ("limit", "first", "makespan"),
    [
        (3, ["0R0", "0R1", "0R2", "0B0", "0B1", "0B2"], 14),  # it waits from 3 to 8 s, in which all three R fit
        (2, ["0R0", "0R1", "0B0", "0B1", "0R2", "0B2"], 15),
        (1, ["0R0", "0B0", "0R1", "0B1", "0R2", "0B2"], 16),
    ],
)
def test_a_waiting_device_makes_activations_again_as_far_as_the_limit_holds_them(limit, first, makespan):
    schedule, costs = (
        ppsim.Schedule.from_orders([["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], SECOND]),
        ppsim.Costs(**FAR),
    )
    moved = ppsim.with_recompute(schedule, placing="idle", costs=costs, memory_limit=limit)
    assert moved.orders() == [["0F0", "0F1", "0F2", *first], SECOND]
    assert ppsim.simulate(moved, costs).makespan == makespan


def test_a_forward_is_pulled_into_idle_time_where_asked():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "0B0", "0F2", "0B1", "0B2"], SECOND])
    costs = ppsim.Costs(**FAR, input_fraction_of_activation=0.25)
    apart, pulled = (
        ppsim.with_recompute(schedule, placing=placing, costs=costs, memory_limit=2.0)
        for placing in ("idle", "idle+forwards")
    )
    # F of microbatch 2 at 3 s instead of 10 s: its gradient is there at 11 s instead of 18 s.
    assert pulled.orders()[0][:5] == ["0F0", "0F1", "0R0", "0F2", "0B0"]
    assert [ppsim.simulate(one, costs).makespan for one in (apart, pulled)] == [20, 16]


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(FAMILIES), st.integers(1, 2), st.floats(0.1, 3), st.floats(0.1, 3),
    st.just(0.0) | st.floats(1e-9, 1), st.floats(0, 0.3), st.sampled_from(["all", "needed"]),
    st.sampled_from(["idle", "idle+forwards"]),
)  # fmt: skip
def test_moved_ahead_a_step_is_no_longer_and_no_device_holds_more(
    name, rounds, forward, part, latency, stored, stages, placing
):
    schedule = build(name, m=8 * rounds)
    given = {"forward": forward, "input_grad": part, "weight_grad": part, "latency": latency}
    costs = ppsim.Costs(**given, input_fraction_of_activation=stored)
    plain = ppsim.simulate(schedule, costs)
    limit = np.maximum(plain.peak_activations * 0.75, 1 + stored * rounds * 8)
    options = {"memory_limit": limit} if stages == "needed" else {}
    try:
        there = ppsim.with_recompute(schedule, stages, costs=costs, **options)
    except ppsim.BuildError:  # what waits for its W cannot be made again
        assert stages == "needed"
        assert Kind.W in schedule.kind
        return
    moved = ppsim.with_recompute(schedule, stages, placing=placing, costs=costs, **options)
    moved.validate()
    at_once, ahead = (ppsim.simulate(one, costs) for one in (there, moved))
    assert ahead.makespan <= at_once.makespan * (1 + 1e-9)
    most = limit if stages == "needed" else np.maximum(plain.peak_activations, at_once.peak_activations)
    assert np.all(ahead.peak_activations <= most + 1e-6)
    assert ahead.lower_bound().seconds <= ahead.makespan * (1 + 1e-9)


@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_no_more_is_made_again_than_the_limit_asks_for(limit):
    schedule = build("1f1b", 4, 8)
    fitted = ppsim.with_recompute(schedule, "needed", memory_limit=limit)
    assert ppsim.simulate(fitted).peak_activations.tolist() == [min(limit, 4 - r) for r in range(4)]
    assert recomputes(fitted) == {1: 3 * 7, 2: 4 + 3, 3: 2, 4: 0}[limit]


def test_a_limit_below_one_activation_is_refused_with_the_least_legal_one():
    with pytest.raises(ppsim.BuildError, match=r"memory_limit=0.5 on device 0.*use at least 1"):
        build("1f1b", recompute="needed", memory_limit=0.5)
    with pytest.raises(ppsim.BuildError, match="give memory_limit="):
        build("1f1b", recompute="needed")
    with pytest.raises(ppsim.BuildError, match="use one of: backward, idle, idle"):
        build("1f1b", recompute="all", recompute_placing="early")
    with pytest.raises(ppsim.BuildError, match="not torn apart"):
        build("1f1b-overlap", recompute="all", recompute_placing="idle")
    with pytest.raises(ppsim.BuildError, match="give recompute='all' too"):
        build("1f1b", recompute_placing="idle")


@pytest.mark.parametrize(("p", "m", "v"), [(4, 8, 2), (8, 16, 2), (4, 12, 3), (2, 6, 2)])
def test_ripipe_keeps_at_most_p_v_stages_alive(p, m, v):
    costs = ppsim.Costs(forward=1, backward=2)
    size = {"p": p, "m": m, "stages_per_device": v}
    plain = ppsim.simulate(build("interleaved-1f1b", **size), costs)
    for way in ("in-bubble", "in-advance"):
        run = ppsim.simulate(build("ripipe", mode=way, costs=costs, **size), costs)
        assert run.peak_activations.max() * v <= p * v + 1e-9
        assert run.makespan >= plain.makespan
    bubble, advance = (build("ripipe", mode=way, **size) for way in ("in-bubble", "in-advance"))
    assert recomputes(bubble) < recomputes(advance)


def test_ripipe_takes_no_time_where_the_bubble_holds_what_is_made_again():
    costs = ppsim.Costs(forward=1, backward=2)
    for p, m in ((4, 8), (8, 16)):
        plain = ppsim.simulate(build("interleaved-1f1b", p, m, stages_per_device=2), costs)
        run = ppsim.simulate(build("ripipe", p, m, costs=costs), costs)
        assert run.makespan == plain.makespan
        assert run.peak_activations.max() == p < plain.peak_activations.max()


def test_mario_holds_no_more_than_1f1b_and_beats_recomputing_in_place_by_what_is_idle():
    for latency in (0.0, 0.4):
        costs = ppsim.Costs(forward=1, backward=2, latency=latency, input_fraction_of_activation=0.1)
        run = ppsim.simulate(build("mario", 4, 8, costs=costs), costs)
        there = ppsim.simulate(build("1f1b", 4, 8, recompute="all"), costs)
        assert np.all(run.peak_activations <= [4, 3, 2, 1])
        assert run.makespan < there.makespan


def test_a_search_within_a_limit_takes_r_where_that_is_shorter():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    sizes = {"devices": 4, "microbatches": 8, "rounds": 2, "costs": costs}
    for limit in (1, 2, 4):
        without = ppsim.simulate(ppsim.build("auto", memory_limit=limit, **sizes), costs)
        schedule = ppsim.build("auto", memory_limit=limit, recompute="needed", recompute_placing="idle", **sizes)
        run = ppsim.simulate(schedule, costs)
        assert run.peak_activations.max() <= limit + 1e-9
        assert run.makespan <= without.makespan
        assert (recomputes(schedule) > 0) == (run.makespan < without.makespan)
    # One activation a device: without R one microbatch is in flight, with R the stored inputs of the others are.
    assert recomputes(ppsim.build("auto", memory_limit=1, recompute="needed", **sizes)) > 0


def test_a_search_that_knows_of_r_keeps_more_in_flight_than_one_that_is_made_to_fit():
    """One activation and a half, inputs a tenth of it: beside what an R makes five inputs fit, so six are in flight."""
    costs = ppsim.Costs(forward=0.5, input_grad=1, weight_grad=1, latency=0.05, input_fraction_of_activation=0.1)
    sizes = {"devices": 4, "microbatches": 8, "costs": costs, "memory_limit": 1.5, "recompute_placing": "idle"}
    run = ppsim.simulate(ppsim.build("auto", recompute="needed", **sizes), costs)
    assert run.peak_activations.max() <= 1.5 + 1e-9
    one_at_a_time = 8 * (4 * 0.5 + 4 * 1 + 1 + 6 * 0.05)
    assert run.makespan <= one_at_a_time / 2
    quick = ppsim.build("auto", recompute="needed", seconds=0.1, **sizes)
    assert ppsim.simulate(quick, costs).peak_activations.max() <= 1.5 + 1e-9
