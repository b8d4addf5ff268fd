"""The measures of a timeline, each on a case computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import schedules
from strategies import seconds

import ppsim
from ppsim import CostError, Costs, Schedule, ScheduleError, Timeline, build

# Device 0: 0F0 0-1, 0B0 6-8. Device 1: 1F0 1-4, 1B0 4-6. Busy 3 and 5 of 8 seconds; spans 8 and 5.
TWO = [["0F0", "0B0"], ["1F0", "1B0"]]
UNEVEN = Costs(forward=[1, 3], backward=[2, 2])


def simulate(orders, costs=None, **options):
    schedule = orders if isinstance(orders, Schedule) else Schedule.from_orders(orders)
    return ppsim.simulate(schedule, costs, **options)


def curve(steps):
    return list(zip(*(column.tolist() for column in steps), strict=True))


def test_times_are_those_of_each_action_device_by_device_in_list_order():
    run = simulate(TWO, UNEVEN)
    assert run.start.tolist() == [0, 6, 1, 4]
    assert run.end.tolist() == [1, 8, 4, 6]
    assert run.start.dtype == run.end.dtype == np.float64


def test_measures_of_time():
    run = simulate(TWO, UNEVEN)
    assert run.device_start.tolist() == [0, 1]
    assert run.device_end.tolist() == [8, 6]
    assert run.device_busy.tolist() == [3, 5]
    assert run.device_idle.tolist() == [5, 3]
    assert run.makespan == 8
    assert run.span == 8
    assert run.bubble_fraction == 1 - 8 / 16
    assert run.bubble_ratio == 8 / 8
    assert run.span_bubble_fraction == 1 - 5 / 8


def test_span_is_of_one_device_and_makespan_of_all():
    run = simulate(build("zb-h2", devices=3, microbatches=5), Costs(forward=1, input_grad=1, weight_grad=1))
    assert (run.makespan, run.span) == (17, 15)
    assert run.bubble_fraction == pytest.approx(2 / 17)
    assert run.bubble_ratio == pytest.approx(2 / 15)
    assert run.span_bubble_fraction == 0


def test_makespan_counts_from_the_first_start():
    run = simulate(TWO, UNEVEN)
    later = run.times._replace(row_start=run.row_start + 100, row_end=run.row_end + 100)
    run = Timeline(run.plan, run.table, run.costs, later, engine=run.engine)
    assert (run.makespan, run.span) == (8, 8)


def test_a_timed_slot_is_busy_for_its_own_length_once():
    slot = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]
    run = simulate(slot, Costs(forward=1, backward=2, overlap=2.5))
    assert run.device_busy.tolist() == [6, 5.5]
    assert len(run.start) == len(run.end) == 7
    assert simulate(slot, Costs(forward=1, backward=2)).device_busy.tolist() == [6, 6]


def test_one_device_has_no_bubble():
    run = simulate(build("1f1b", devices=1, microbatches=5))
    assert (run.makespan, run.span) == (15, 15)
    assert (run.bubble_fraction, run.bubble_ratio, run.span_bubble_fraction) == (0, 0, 0)
    assert run.peak_activations.tolist() == [1]


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_a_device_that_never_waits_is_busy_to_the_last_bit(engine):
    run = simulate(build("1f1b", devices=1, microbatches=1000), Costs(forward=0.1, backward=0.7), engine=engine)
    assert run.device_busy.tolist() == [run.makespan]


@given(schedules(), seconds, seconds, seconds)
def test_both_engines_find_the_same_busy_time(schedule, F, B, c):
    costs = Costs(forward=F, backward=B, latency=c)
    event, compiled = (simulate(schedule, costs, engine=engine).device_busy for engine in ("event", "compiled"))
    assert event.tobytes() == compiled.tobytes()


def test_without_any_work_there_is_no_bubble():
    run = simulate(build("gpipe", devices=3, microbatches=2), Costs(forward=0, backward=0))
    assert (run.makespan, run.span, run.bubble_fraction, run.bubble_ratio, run.span_bubble_fraction) == (0, 0, 0, 0, 0)
    waiting = simulate(build("gpipe", devices=3, microbatches=2), Costs(forward=0, backward=0, latency=1))
    assert waiting.makespan == 4
    assert (waiting.bubble_fraction, waiting.bubble_ratio, waiting.span_bubble_fraction) == (1, 0, 1)


@given(schedules(), seconds, seconds, seconds, st.none() | seconds)
def test_measures_keep_their_definitions_for_any_schedule(schedule, F, B, c, overlap):
    try:
        run = simulate(schedule, Costs(forward=F, backward=B, latency=c, overlap=overlap))
    except ppsim.DeadlockError:
        return
    p, busy = schedule.devices, run.device_busy.sum()
    assert run.device_idle == pytest.approx(run.makespan - run.device_busy, rel=1e-9, abs=1e-9 * run.makespan)
    assert 0 <= run.span <= run.makespan
    assert 0 <= run.bubble_fraction <= 1
    assert 0 <= run.span_bubble_fraction <= 1
    if busy > 0:
        assert run.bubble_fraction == pytest.approx(1 - busy / (p * run.makespan), abs=1e-9)
        assert run.bubble_ratio == pytest.approx(run.device_idle.sum() / busy, rel=1e-9, abs=1e-9)
        assert run.span_bubble_fraction == pytest.approx(1 - run.device_busy.max() / run.span, abs=1e-9)
        assert run.bubble_ratio == pytest.approx(run.bubble_fraction / (1 - run.bubble_fraction), rel=1e-6, abs=1e-9)


def test_a_forward_takes_an_activation_at_its_start_and_a_backward_frees_it_at_its_end():
    run = simulate([["0F0", "0F1", "0B0", "0B1"]], Costs(forward=1, backward=2))
    assert curve(run.activations_over_time(0)) == [(0, 1), (1, 2), (4, 1), (6, 0)]
    assert run.peak_activations.tolist() == [2]


def test_a_weight_gradient_frees_all_unless_it_needs_a_part_only():
    order = [["0F0", "0I0", "0F1", "0I1", "0W0", "0W1"]]
    times = {"forward": 1, "input_grad": 1, "weight_grad": 1}
    run = simulate(order, Costs(**times))
    assert curve(run.activations_over_time(0)) == [(0, 1), (2, 2), (5, 1), (6, 0)]
    assert run.peak_activations.tolist() == [2]
    run = simulate(order, Costs(**times, weight_grad_fraction_of_activation=0.25))
    # At time 2 the first I ends (-0.75) and the second F starts (+1): 1.25.
    assert curve(run.activations_over_time(0)) == [(0, 1), (2, 1.25), (4, 0.5), (5, 0.25), (6, 0)]
    assert run.peak_activations.tolist() == [1.25]
    run = simulate(order, Costs(**times, weight_grad_fraction_of_activation=0))
    assert curve(run.activations_over_time(0)) == [(0, 1), (4, 0)]
    assert run.peak_activations.tolist() == [1]


def test_the_part_that_w_needs_may_differ_by_stage():
    orders = [["0F0", "0I0", "0F1", "0I1", "0W0", "0W1"], ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]]
    run = simulate(orders, Costs(forward=1, backward=2, weight_grad_fraction_of_activation=[0.5, 0]))
    assert run.peak_activations.tolist() == [1.5, 1]


def test_activations_count_in_device_shares_of_the_model():
    run = simulate([["0F0", "2F0", "2B0", "0B0"], ["1F0", "3F0", "3B0", "1B0"]])
    assert run.peak_activations.tolist() == [1, 1]  # two stages, each half of a device share
    run = simulate([["0F0", "1F0", "1B0", "0B0"], ["2F0", "2B0"]])
    assert run.peak_activations == pytest.approx([4 / 3, 2 / 3])  # three stages on two devices


def test_a_slot_holds_both_of_its_activations_until_it_ends():
    slot = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]
    run = simulate(slot, Costs(forward=1, backward=2, overlap=2.5))
    assert curve(run.activations_over_time(1)) == [(1, 1), (2, 2), (4.5, 1), (6.5, 0)]
    assert run.peak_activations.tolist() == [2, 2]
    backward_first = [slot[0], ["1F0", "(1B0;1F1)OVERLAP_F_B", "1B1"]]
    run = simulate(backward_first, Costs(forward=1, backward=2, overlap=2.5))
    assert curve(run.activations_over_time(1)) == [(1, 1), (2, 2), (4.5, 1), (6.5, 0)]
    run = simulate(
        backward_first, Costs(forward=1, backward=2)
    )  # untimed: the backward is over when the forward starts
    assert curve(run.activations_over_time(1)) == [(1, 1), (7, 0)]
    assert run.peak_activations.tolist() == [2, 1]


def test_slices_hold_their_part_of_an_activation():
    sliced = Schedule.from_orders([["0F0", "0F1", "0B1", "0B0"]], slices=2)
    run = simulate(sliced, Costs(forward=2, backward=4))
    assert run.peak_activations.tolist() == [1]
    assert curve(run.activations_over_time(0)) == [(0, 0.5), (1, 1), (4, 0.5), (6, 0)]


@given(schedules(fused=False), st.floats(0, 1))
def test_the_step_curve_rises_to_the_peak_and_ends_at_nothing(schedule, kept):
    run = simulate(schedule, Costs(forward=1, backward=2, weight_grad_fraction_of_activation=kept))
    for device, peak in enumerate(run.peak_activations):
        times, levels = run.activations_over_time(device)
        assert np.all(np.diff(times) > 0)
        assert np.all(np.diff(levels) != 0)
        assert levels.max() == pytest.approx(peak, rel=1e-9)
        assert levels[-1] == pytest.approx(0, abs=1e-9)
        assert times[0] == run.device_start[device]


HELD = Costs(
    forward=1, backward=2, latency=1, transfer_bytes=10, bandwidth=10,  # a transfer takes 2 s and holds 10 bytes
    activation_bytes=[100, 200], weight_bytes=1000, gradient_bytes=[2000, 3000], optimizer_bytes=4000,
)  # fmt: skip


def test_memory_is_state_and_activations_and_the_buffers_of_transfers():
    # 0F0 0-1, sent 1-3, 1F0 3-4, 1B0 4-6, sent 6-8, 0B0 8-10.
    run = simulate(TWO, HELD)
    assert curve(run.memory_over_time(0)) == [
        (0, 7100),   # 0F0 takes its activation
        (1, 7110),   # its result is being sent
        (3, 7100),
        (6, 7110),   # the gradient is being received
        (10, 7000),  # 0B0 frees the activation and the buffer
    ]  # fmt: skip
    assert curve(run.memory_over_time(1)) == [(1, 8010), (3, 8210), (4, 8200), (6, 8010), (8, 8000)]
    assert run.peak_memory.tolist() == [7110, 8210]
    assert run.static_memory.tolist() == [[1000, 1000], [2000, 3000], [4000, 4000]]


def test_memory_of_split_backwards_falls_in_two_steps():
    held = {"activation_bytes": 100, "weight_bytes": 1, "weight_grad_fraction_of_activation": 0.3}
    run = simulate([["0F0", "0I0", "0W0"]], Costs(forward=1, input_grad=1, weight_grad=1, **held))
    assert curve(run.memory_over_time(0)) == [(0, 101), (2, 31), (3, 1)]


def test_at_equal_times_memory_is_freed_before_it_is_taken():
    run = simulate([["0F0", "0B0", "0F1", "0B1"]], Costs(activation_bytes=100, weight_bytes=0))
    assert run.peak_memory.tolist() == [100]


def test_neighbours_on_one_device_need_no_buffers():
    run = simulate([["0F0", "1F0", "1B0", "0B0"]], Costs(transfer_bytes=10, activation_bytes=100, weight_bytes=1))
    assert run.peak_memory.tolist() == [202]


def test_a_stage_held_by_two_devices_has_its_state_on_both():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    run = simulate(both_ways, Costs(activation_bytes=0, weight_bytes=[3, 5]))
    assert run.static_memory.sum(axis=0).tolist() == [8, 8]
    assert run.peak_memory.tolist() == [8, 8]


def test_a_slice_holds_its_part_of_bytes():
    sliced = Schedule.from_orders([["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]], slices=2)
    run = simulate(sliced, Costs(forward=2, backward=2, transfer_bytes=20, activation_bytes=100, weight_bytes=0))
    assert run.peak_memory.tolist() == [110, 110]
    assert curve(run.memory_over_time(1))[0] == (1, 60)


def test_memory_is_unknown_where_the_costs_do_not_say_what_is_held():
    for costs in (None, Costs(activation_bytes=1), Costs(weight_bytes=1)):
        run = simulate(TWO, costs)
        assert run.peak_memory is None
        with pytest.raises(CostError, match="memory is not known: give a model and hardware, or the costs activation"):
            run.memory_over_time(0)
    assert simulate(TWO).static_memory is None


@given(schedules(), st.sampled_from(["async", "directed", "rank"]))
def test_memory_returns_to_the_state_and_never_falls_below_it(schedule, transport):
    costs = Costs(latency=0.5, transfer_bytes=3, bandwidth=7, activation_bytes=11, weight_bytes=100)
    try:
        run = simulate(schedule, costs, transport=transport)
    except ppsim.DeadlockError:
        return
    for device in range(schedule.devices):
        static = run.static_memory[:, device].sum()
        times, levels = run.memory_over_time(device)
        assert np.all(np.diff(times) > 0)
        assert levels[-1] == pytest.approx(static)
        assert levels.min() >= static - 1e-9
        assert run.peak_memory[device] == levels.max()


@pytest.mark.parametrize("device", [-1, 2, None, 1.0, 10**30])
def test_a_device_that_does_not_exist_is_named(device):
    run = simulate(TWO, HELD)
    for measure in (run.activations_over_time, run.memory_over_time):
        with pytest.raises(ScheduleError, match="does not exist; the devices are 0 to 1"):
            measure(device)


def test_a_timeline_says_what_it_is():
    run = simulate(TWO, UNEVEN, engine="event")
    assert repr(run) == "<Timeline custom: 2 devices, makespan 8 s, bubble fraction 0.5000, engine event>"
    assert (run.engine, run.transport) == ("event", "async")
