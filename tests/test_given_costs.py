"""Given costs: what follows from what, equal work, origins, and the refusal of anything that is no cost."""

import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import positive_seconds, seconds, things

import ppsim
from ppsim import CostError, Costs, build

NAMES = [
    "forward", "backward", "input_grad", "weight_grad", "overlap", "latency", "transfer_bytes", "bandwidth", "per",
    "weight_grad_fraction_of_activation", "slice_costs", "activation_bytes", "weight_bytes", "gradient_bytes",
    "optimizer_bytes", "provenance",
]  # fmt: skip
ONE_F_ONE_B = build("1f1b", devices=2, microbatches=2)


def times(costs):
    return costs.forward, costs.backward, costs.input_grad, costs.weight_grad


def test_missing_times_follow_from_those_given():
    assert times(Costs()) == (1, 2, 1, 1)
    assert times(Costs(forward=3)) == (3, 2, 1, 1)
    assert times(Costs(backward=5)) == (1, 5, 2.5, 2.5)
    assert times(Costs(input_grad=2, weight_grad=3)) == (1, 5, 2, 3)
    assert times(Costs(backward=5, input_grad=2)) == (1, 5, 2, 3)
    assert times(Costs(backward=5, weight_grad=2)) == (1, 5, 3, 2)


def test_a_full_backward_may_differ_from_the_sum_of_its_parts():
    assert times(Costs(backward=4, input_grad=2, weight_grad=3)) == (1, 4, 2, 3)


def test_lists_and_numbers_mix():
    assert times(Costs(backward=[4, 6], input_grad=1)) == (1, [4, 6], 1, [3, 5])
    assert times(Costs(input_grad=[1, 2], weight_grad=[3, 4])) == (1, [4, 6], [1, 2], [3, 4])
    assert times(Costs(forward=np.array([1, 2]), backward=(3, 4))) == ([1, 2], [3, 4], [1.5, 2], [1.5, 2])


@given(seconds, seconds)
def test_a_backward_is_input_grad_and_weight_grad_and_each_follows_from_the_others(I, W):  # noqa: E741
    whole = Costs(input_grad=I, weight_grad=W)
    assert whole.backward == I + W
    assert Costs(backward=I + W, input_grad=I).weight_grad == pytest.approx(W, abs=1e-12 * (I + W))
    assert Costs(backward=I + W, weight_grad=W).input_grad == pytest.approx(I, abs=1e-12 * (I + W))


def test_rounding_makes_no_part_longer_than_its_whole():
    assert Costs(backward=0.3, input_grad=0.1 + 0.2).weight_grad == 0


def test_a_table_holds_the_seconds_of_each_kind_and_stage():
    table = Costs(forward=[1, 2], input_grad=3, weight_grad=[4, 5]).table(ONE_F_ONE_B)
    assert table.seconds.tolist() == [[1, 2], [7, 8], [3, 3], [4, 5]]
    assert table.overlap is None
    assert table.stage_share.tolist() == [1, 1]
    assert table.activation_bytes is None
    assert table.state_bytes is None


@given(st.integers(1, 6), st.integers(1, 4), positive_seconds, positive_seconds)
def test_schedules_with_more_stages_do_the_same_work(p, v, F, B):
    schedule = build("looped-bfs", devices=p, microbatches=3, stages_per_device=v)
    costs = Costs(forward=F, backward=B)
    assert costs.table(schedule).seconds.sum(axis=1) == pytest.approx([p * F, p * B, p * B / 2, p * B / 2], rel=1e-9)
    assert ppsim.simulate(schedule, costs).device_busy == pytest.approx([3 * (F + B)] * p, rel=1e-9)


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_a_list_of_latencies_is_by_sending_device(engine):
    schedule = build("1f1b", devices=2, microbatches=1)
    run = ppsim.simulate(schedule, Costs(forward=1, backward=2, latency=[0.5, 0.25]), engine=engine)
    assert run.start.tolist() == [0, 1 + 0.5 + 1 + 2 + 0.25, 1.5, 2.5]
    assert run.makespan == 6.75
    with pytest.raises(CostError, match="latency lists 3 values, but the schedule has 2 devices; list 2"):
        ppsim.simulate(schedule, Costs(latency=[1, 2, 3]), engine=engine)


def test_per_stage_costs_are_not_scaled_and_bytes_never_are():
    schedule = build("looped-bfs", devices=2, microbatches=1, stages_per_device=2)
    given = {"forward": 1, "backward": 2, "overlap": 2.5, "latency": 3, "transfer_bytes": 5, "bandwidth": 8}
    held = {"activation_bytes": 7, "weight_bytes": 11, "optimizer_bytes": [1, 2, 3, 4]}
    scaled = Costs(**given, **held).table(schedule)
    plain = Costs(**given, **held, per="stage").table(schedule)
    assert scaled.seconds.tolist() == [[0.5] * 4, [1] * 4, [0.5] * 4, [0.5] * 4]
    assert plain.seconds.tolist() == [[1] * 4, [2] * 4, [1] * 4, [1] * 4]
    assert (scaled.overlap[0, 0], plain.overlap[0, 0]) == (1.25, 2.5)
    for table in (scaled, plain):
        assert np.all(table.latency == 3)
        assert np.all(table.seconds_per_byte == 1 / 8)
        assert table.transfer_bytes.tolist() == [[5] * 4] * 2
        assert table.stage_share.tolist() == [0.5] * 4
        assert table.activation_bytes.tolist() == [7] * 4
        assert table.state_bytes.tolist() == [[11] * 4, [0] * 4, [1, 2, 3, 4]]


def test_an_overlap_is_a_number_a_list_or_a_matrix_of_stages():
    assert Costs(overlap=3).table(ONE_F_ONE_B).overlap.tolist() == [[3, 3], [3, 3]]
    assert Costs(overlap=[2, 4]).table(ONE_F_ONE_B).overlap.tolist() == [[2, 3], [3, 4]]
    assert Costs(overlap=[[1, 2], [3, 4]]).table(ONE_F_ONE_B).overlap.tolist() == [[1, 2], [3, 4]]


def test_slices_share_a_microbatch_equally_unless_said_otherwise():
    sliced = ppsim.Schedule.from_orders([["0F0", "0F1", "0B1", "0B0"]], slices=2)
    assert Costs().table(sliced).slice_fraction.tolist() == [0.5, 0.5]
    assert Costs(slice_costs=[1, 3]).table(sliced).slice_fraction.tolist() == [0.25, 0.75]
    run = ppsim.simulate(sliced, Costs(forward=4, backward=8, slice_costs=[1, 3]))
    assert run.end.tolist() == [1, 4, 10, 12]


def test_later_changes_to_a_list_do_not_change_the_costs():
    forward = [1.0, 2.0]
    costs = Costs(forward=forward)
    forward[0] = 9.0
    assert costs.forward == [1, 2]


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ({"forward": [1, 2, 3]}, "forward lists 3 values, but the schedule has 2 stages; list 2, or give one number"),
        ({"transfer_bytes": [1]}, "transfer_bytes lists 1 values, but the schedule has 2 stages"),
        ({"overlap": [1, 2, 3]}, "overlap lists 3 values, but the schedule has 2 stages"),
        ({"overlap": [[1, 2, 3]]}, "overlap is a matrix of 1 x 3, but the schedule has 2 stages; give 2 x 2 values"),
        ({"slice_costs": [1, 1]}, "slice_costs lists 2 values, but the schedule has 1 slices"),
        ({"weight_bytes": [1, 2, 3]}, "weight_bytes lists 3 values, but the schedule has 2 stages"),
        ({"activation_bytes": [1]}, "activation_bytes lists 1 values, but the schedule has 2 stages"),
        ({"weight_grad_fraction_of_activation": [1]}, "weight_grad_fraction_of_activation lists 1 values"),
    ],
    ids=range(8),
)
def test_a_list_has_one_value_a_stage_of_the_schedule(costs, sentence):
    with pytest.raises(CostError) as caught:
        Costs(**costs).table(ONE_F_ONE_B)
    assert sentence in str(caught.value)


def test_every_cost_says_where_it_comes_from():
    assert set(Costs().provenance.values()) == {"default"}
    origins = Costs(backward=2, latency=1, activation_bytes=3).provenance
    assert (origins["forward"], origins["backward"], origins["input_grad"]) == ("default", "given", "derived")
    assert (origins["latency"], origins["transfer_bytes"], origins["bandwidth"]) == ("given", "default", "default")
    assert origins["activation_bytes"] == "given"
    assert "weight_bytes" not in origins
    measured = Costs(forward=1, provenance={"forward": "measured", "input_grad": "derived"}).provenance
    assert (measured["forward"], measured["input_grad"], measured["backward"]) == ("measured", "derived", "default")


LEGAL_TIME = "must be a finite number of seconds from 0 to 1e+100, or a list of such numbers, one per stage"


@pytest.mark.parametrize(
    ("costs", "sentence"),
    [
        ({"forward": -1}, f"forward=-1 {LEGAL_TIME}"),
        ({"forward": math.nan}, f"forward=nan {LEGAL_TIME}"),
        ({"forward": math.inf}, f"forward=inf {LEGAL_TIME}"),
        ({"forward": [1, -2.5]}, f"forward=[1, -2.5] holds -2.5; it {LEGAL_TIME}"),
        ({"forward": 10**400}, LEGAL_TIME),
        ({"forward": 1e300}, f"forward=1e+300 {LEGAL_TIME}"),
        ({"forward": "1"}, f"forward='1' {LEGAL_TIME}"),
        ({"forward": True}, f"forward=True {LEGAL_TIME}"),
        ({"forward": []}, f"forward=[] {LEGAL_TIME}"),
        ({"forward": [[1, 2]]}, f"forward=[[1, 2]] {LEGAL_TIME}"),
        ({"forward": [1, None]}, f"forward=[1, None] {LEGAL_TIME}"),
        ({"forward": [[1], [2, 3]]}, f"forward=[[1], [2, 3]] {LEGAL_TIME}"),
        ({"forward": 1j}, f"forward=1j {LEGAL_TIME}"),
        ({"input_grad": 1}, "input_grad is given without weight_grad; give weight_grad or backward too"),
        ({"weight_grad": 1}, "weight_grad is given without input_grad; give input_grad or backward too"),
        ({"backward": 1, "input_grad": 2}, "input_grad is longer than backward (2.0 > 1.0); it is a part of it"),
        ({"backward": [1, 2], "weight_grad": 1.5}, "weight_grad is longer than backward (1.5 > [1.0, 2.0])"),
        (
            {"backward": [1, 2], "weight_grad": [1, 1, 1]},
            "backward, weight_grad are lists of 2 and 3 values; both",
        ),
        ({"overlap": [[[1]]]}, f"overlap=[[[1]]] {LEGAL_TIME}"),
        (
            {"latency": [[1, 2]]},
            "latency=[[1, 2]] must be a finite number of seconds from 0 to 1e+100, or a list of such numbers, one per "
            "sending device",
        ),
        ({"latency": None}, "latency=None must be a finite number of seconds"),
        ({"transfer_bytes": -1}, "transfer_bytes=-1 must be a finite number of bytes from 0"),
        ({"transfer_bytes": None}, "transfer_bytes=None must be a finite number of bytes"),
        ({"bandwidth": 0}, "bandwidth=0 must be a number of bytes per second above 0"),
        ({"bandwidth": "1e9"}, "bandwidth='1e9' must be a number of bytes per second above 0"),
        ({"bandwidth": math.nan}, "bandwidth=nan must be a number of bytes per second above 0"),
        ({"bandwidth": 1e-320}, "bandwidth=1e-320 must be a number of bytes per second above 0"),
        ({"per": "microbatch"}, "per='microbatch' is not known; use one of: device, stage"),
        ({"weight_grad_fraction_of_activation": 1.5}, "weight_grad_fraction_of_activation=1.5 must lie from 0 to 1"),
        ({"slice_costs": 1}, "slice_costs=1 must be a list with a positive sum, one value per slice"),
        ({"slice_costs": [0, 0]}, "slice_costs=[0, 0] must be a list with a positive sum"),
        ({"activation_bytes": "80 GB"}, "activation_bytes='80 GB' must be a finite number of bytes from 0"),
        (
            {"provenance": {"speed": "given"}},
            "provenance names 'speed', which is not a cost; use one of: forward,",
        ),
        (
            {"provenance": {"forward": "guessed"}},
            "provenance of forward is 'guessed'; use one of: given, derived,",
        ),
        ({"provenance": ["forward"]}, "provenance=['forward'] must map names of costs to where they come from"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
def test_what_is_no_cost_is_refused_with_its_value_and_what_is_legal(costs, sentence):
    with pytest.raises(CostError) as caught:
        Costs(**costs)
    assert sentence in str(caught.value)


def test_an_endless_bandwidth_costs_nothing():
    for bandwidth in (math.inf, 10**5000):
        assert np.all(Costs(bandwidth=bandwidth).table(ONE_F_ONE_B).seconds_per_byte == 0)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(NAMES), things, max_size=5))
def test_only_ppsim_errors_leave_costs_and_simulate(given):
    with suppress(ppsim.PpsimError):
        run = ppsim.simulate(ONE_F_ONE_B, Costs(**given), engine="event")
        assert math.isfinite(run.makespan)
        assert run.makespan >= 0
        assert 0 <= run.bubble_fraction <= 1


def test_the_largest_costs_overflow_nothing():
    costs = Costs(forward=1e100, backward=1e100, latency=1e100, transfer_bytes=1e100, bandwidth=1e-100)
    run = ppsim.simulate(build("1f1b", devices=4, microbatches=8), costs)
    assert math.isfinite(run.makespan)
    assert 0 < run.bubble_fraction <= 1
