"""Lowering: where SEND, RECV and the sharding actions stand in a program."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import schedules

import ppsim
from ppsim.actions import Kind
from ppsim.lowering import RECEIVES

TRANSPORTS = ("async", "directed", "directions", "pair", "rank", "blocking")


def lowered(orders, **options):
    return [" ".join(row) for row in ppsim.lower(ppsim.Schedule.from_orders(orders), **options).orders()]


def test_send_follows_its_producer_and_recv_is_posted_at_the_same_moment():
    assert lowered(ppsim.build("gpipe", devices=2, microbatches=2).orders()) == [
        "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F0 1F0 1RECV_F1 1F1 1B0 1SEND_B0 1B1 1SEND_B1",
    ]


def test_neighbouring_stages_of_one_device_exchange_no_transfers():
    v_shape = [["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]
    assert lowered(v_shape) == [
        "0F0 0SEND_F0 3RECV_F0 3F0 3B0 3SEND_B0 0RECV_B0 0B0",
        "1RECV_F0 1F0 2F0 2SEND_F0 2RECV_B0 2B0 1B0 1SEND_B0",
    ]


def test_a_pipeline_in_which_one_device_at_a_time_takes_a_turn_is_lowered_like_any_other():
    program = ppsim.lower(ppsim.build("gpipe", devices=300, microbatches=1))
    for device in (1, 150, 298):
        words = ["RECV_F", "F", "SEND_F", "RECV_B", "B", "SEND_B"]
        assert program.orders()[device] == [f"{device}{word}0" for word in words]


def test_the_input_gradient_is_sent_before_the_weight_gradient_runs():
    assert lowered([["0F0", "0B0"], ["1F0", "1I0", "1W0"]])[1] == "1RECV_F0 1F0 1I0 1SEND_B0 1W0"


def test_a_fused_slot_sends_the_results_of_both_parts_behind_it():
    orders = [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"],
        ["2F0", "2B0", "2F1", "2B1"],
    ]
    assert lowered(orders)[1] == (
        "1RECV_F0 1F0 1SEND_F0 1RECV_F1 1RECV_B0 (1F1;1B0)OVERLAP_F_B 1SEND_F1 1SEND_B0 1RECV_B1 1B1 1SEND_B1"
    )


def test_a_bidirectional_schedule_is_lowered_by_stage_and_microbatch():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    assert lowered(both_ways) == [
        "0F0 0SEND_F0 1RECV_F1 1F1 1B1 1SEND_B1 0RECV_B0 0B0",
        "1RECV_F0 0F1 0SEND_F1 1F0 0RECV_B1 1B0 1SEND_B0 0B1",
    ]


def test_fused_slots_that_wait_for_each_other_are_shown_as_a_cycle():
    orders = [["0F1", "(0F0;0B1)OVERLAP_F_B", "0B0"], ["1F0", "1F1", "1B0", "1B1"]]
    with pytest.raises(ppsim.DeadlockError) as error:
        ppsim.lower(ppsim.Schedule.from_orders(orders))
    assert error.value.cycle == [
        "device 0 waits at 0B1 for 1B1 of device 1, which comes after 1F0",
        "device 1 waits at 1F0 for 0F0 of device 0, which shares a fused slot with 0B1",
    ]


def test_one_stage_is_gathered_once_and_its_gradient_reduced_after_the_last_backward():
    assert lowered([["0F0", "0F1", "0B0", "0B1"]], sharded=True) == [
        "0UNSHARD 0F0 0F1 0B0 0B1 0REDUCE_GRAD 0RESHARD",
    ]


def test_the_next_three_stages_are_gathered_ahead_and_others_dropped():
    forward = [f"{stage}F0" for stage in range(4)]
    backward = [f"{stage}B0" for stage in reversed(range(4))]
    assert lowered([forward + backward], sharded=True) == [
        "0UNSHARD 1UNSHARD 2UNSHARD 0F0 0RESHARD 3UNSHARD 1F0 2F0 3F0 3B0 3REDUCE_GRAD 3RESHARD 0UNSHARD 2B0 "
        "2REDUCE_GRAD 2RESHARD 1B0 1REDUCE_GRAD 1RESHARD 0B0 0REDUCE_GRAD 0RESHARD"
    ]


def test_a_fused_slot_may_bring_in_a_fourth_stage():
    before, slot = ["0F0", "1F0", "2F0", "3F0", "0F1", "1F1"], "(2F1;3B0)OVERLAP_F_B"
    after = ["3F1", "2B0", "1B0", "0B0", "3B1", "2B1", "1B1", "0B1"]
    assert lowered([[*before, slot, *after]], sharded=True) == [
        "0UNSHARD 1UNSHARD 2UNSHARD 0F0 0RESHARD 3UNSHARD 1F0 1RESHARD 0UNSHARD 2F0 2RESHARD 1UNSHARD 3F0 2UNSHARD 0F1 "
        "0RESHARD 1F1 (2F1;3B0)OVERLAP_F_B 3F1 3RESHARD 0UNSHARD 2B0 2RESHARD 3UNSHARD 1B0 1RESHARD 2UNSHARD 0B0 "
        "0RESHARD 1UNSHARD 3B1 3REDUCE_GRAD 3RESHARD 0UNSHARD 2B1 2REDUCE_GRAD 2RESHARD 1B1 1REDUCE_GRAD 1RESHARD 0B1 "
        "0REDUCE_GRAD 0RESHARD"
    ]


def test_split_backwards_reduce_after_the_last_weight_gradient():
    assert lowered([["0F0", "0F1", "0I0", "0I1", "0W0", "0W1"]], sharded=True) == [
        "0UNSHARD 0F0 0F1 0I0 0I1 0W0 0W1 0REDUCE_GRAD 0RESHARD",
    ]


def test_a_sharding_action_takes_a_turn_of_the_walk():
    plain, sharded = (lowered([["0F0", "0B0"], ["1F0", "1B0"]], sharded=sharded) for sharded in (False, True))
    assert plain == ["0F0 0SEND_F0 0RECV_B0 0B0", "1RECV_F0 1F0 1B0 1SEND_B0"]
    assert sharded == [
        "0UNSHARD 0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD 0RESHARD",
        "1UNSHARD 1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD 1RESHARD",
    ]


def test_a_stage_held_twice_is_reduced_on_both_devices():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    program = ppsim.lower(ppsim.Schedule.from_orders(both_ways), sharded=True).orders()
    for row in program:
        assert [action for action in row if "REDUCE" in action] == ["1REDUCE_GRAD", "0REDUCE_GRAD"]


def test_a_just_in_time_receive_stands_before_its_consumer():
    schedule = ppsim.build("1f1b", devices=3, microbatches=3)
    for row in ppsim.lower(schedule, receive="just-in-time").orders()[2:]:
        for position, action in enumerate(row):
            if "RECV" in action:
                assert row[position + 1] == action.replace("RECV_", "")


def test_the_lower_device_of_a_pair_still_receives_before_it_sends():
    orders = [["0F0", "0F1", "0F2", "0B0", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    early, late = (lowered(orders, receive=receive) for receive in RECEIVES)
    assert early[0] == "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0F2 0SEND_F2 0B0 0RECV_B1 0B1 0RECV_B2 0B2"
    assert late[0] == "0F0 0SEND_F0 0F1 0SEND_F1 0F2 0RECV_B0 0SEND_F2 0B0 0RECV_B1 0B1 0RECV_B2 0B2"


def test_just_in_time_receives_of_a_pair_keep_the_order_of_their_sends():
    schedule = ppsim.build("zb-v", devices=2, microbatches=4)
    for receive in RECEIVES:
        ppsim.lower(schedule, sharded=True, receive=receive).check("directed", pytorch=True)


@pytest.mark.parametrize("receive", RECEIVES)
def test_a_program_keeps_what_the_lists_of_its_schedule_do_not_say(receive):
    for name in ("bpipe", "pipedream", "seq1f1b"):
        schedule = ppsim.build(name, devices=4, microbatches=8)
        program = ppsim.lower(schedule, receive=receive)
        assert repr(program.traits) == repr(schedule.traits)
        assert ppsim.simulate(program).iteration_time == ppsim.simulate(schedule).iteration_time


def test_a_program_is_lowered_from_its_compute_actions_again():
    schedule = ppsim.build("1f1b", devices=4, microbatches=6)
    sharded = ppsim.lower(schedule, sharded=True, receive="just-in-time")
    assert ppsim.lower(sharded) == ppsim.lower(schedule)
    assert sharded.schedule == schedule


@pytest.mark.parametrize("name", [name for name in ppsim.schedules() if name not in ("zb-auto", "zb-1p", "zb-2p")])
def test_every_family_is_lowered_to_a_valid_program(name):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    program = ppsim.lower(schedule, sharded=True)
    assert program.schedule == schedule.compute  # pipe-offload's lists hold copies too
    ppsim.Program.from_orders(program.orders(), slices=program.slices).validate()


def test_an_unknown_receive_is_refused():
    with pytest.raises(ppsim.ConfigError, match="receive='late' is not known; use one of: early, just-in-time"):
        ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2), receive="late")


def test_only_schedules_are_lowered():
    with pytest.raises(ppsim.ConfigError, match="lower takes a Schedule or a Program, not list"):
        ppsim.lower([["0F0", "0B0"]])


@settings(deadline=None, max_examples=60)
@given(schedule=schedules())
def test_lowering_keeps_the_compute_actions_and_pairs_every_send_with_a_recv(schedule):
    for sharded in (False, True):
        for receive in RECEIVES:
            try:
                program = ppsim.lower(schedule, sharded=sharded, receive=receive)
            except ppsim.DeadlockError:
                assert schedule.joined.any()
                continue
            assert program.schedule == schedule
            assert (program.kind == Kind.SEND_F).sum() == (program.kind == Kind.RECV_F).sum()
            assert (program.kind == Kind.SEND_B).sum() == (program.kind == Kind.RECV_B).sum()
            ppsim.Program.from_orders(program.orders()).validate()


@settings(deadline=None, max_examples=60)
@given(schedule=schedules(fused=False))
def test_early_receives_deadlock_under_no_transport(schedule):
    for transport in TRANSPORTS:
        ppsim.lower(schedule, sharded=True).check(transport)


FOUR_STAGES = [[f"{stage}F0" for stage in range(4)] + [f"{stage}B0" for stage in reversed(range(4))]]


def test_with_four_active_stages_each_of_four_is_gathered_once():
    # The case of pytorch/pytorch pull request 193972: four stages on a rank, and no repeated gather.
    [row] = ppsim.lower(ppsim.Schedule.from_orders(FOUR_STAGES), sharded=True, max_active_stages=4).orders()
    assert row[:5] == ["0UNSHARD", "1UNSHARD", "2UNSHARD", "3UNSHARD", "0F0"]
    assert sum("UNSHARD" in action for action in row) == 4


def test_a_shorter_look_ahead_gathers_later_and_reshards_at_the_same_places():
    schedule = ppsim.Schedule.from_orders(FOUR_STAGES)
    [row] = ppsim.lower(schedule, sharded=True, max_active_stages=4, look_ahead=2).orders()
    assert " ".join(row) == (
        "0UNSHARD 1UNSHARD 0F0 2UNSHARD 1F0 3UNSHARD 2F0 3F0 3B0 3REDUCE_GRAD 3RESHARD 2B0 2REDUCE_GRAD 2RESHARD 1B0 "
        "1REDUCE_GRAD 1RESHARD 0B0 0REDUCE_GRAD 0RESHARD"
    )


def test_auto_looks_two_stages_ahead_on_the_first_device_and_one_more_on_each_next_one():
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=8, stages_per_device=4)
    rows = ppsim.lower(schedule, sharded=True, max_active_stages=4, look_ahead="auto").orders()
    before_use = [sum("UNSHARD" in action for action in row[: row.index(f"{at}F0")]) for at, row in enumerate(rows)]
    assert before_use == [2, 3, 4, 4]
    assert rows == ppsim.lower(schedule, sharded=True, max_active_stages=4, look_ahead=[2, 3, 4, 4]).orders()


@settings(deadline=None, max_examples=60)
@given(schedule=schedules(), limit=st.integers(1, 5), data=st.data())
def test_a_look_ahead_moves_unshards_and_nothing_else(schedule, limit, data):
    distance = data.draw(st.integers(1, limit))
    try:
        full, short = (
            ppsim.lower(schedule, sharded=True, max_active_stages=limit, look_ahead=one) for one in ("full", distance)
        )
    except ppsim.DeadlockError:
        return
    short.check()
    for one, other in zip(full.orders(), short.orders(), strict=True):
        assert sorted(one) == sorted(other)
        kept = [[text for text in row if "UNSHARD" not in text and "_" not in text] for row in (one, other)]
        assert kept[0] == kept[1]


@pytest.mark.parametrize("distance", ["full", 1])
def test_two_stages_of_a_fused_slot_are_resharded_in_one_order_for_every_look_ahead(distance):
    # PyTorch evicts in the order of a set. Stages 0 and 8 collide in it, so that its order depends on what it held.
    first, second = ([f"{stage}F{microbatch}" for stage in range(9)] for microbatch in range(2))
    backwards = [f"{stage}B{microbatch}" for microbatch in range(2) for stage in reversed(range(9))]
    row = [*first, "(0F1;8B0)OVERLAP_F_B", *second[1:], *backwards[1:]]
    [lowered] = ppsim.lower(ppsim.Schedule.from_orders([row]), sharded=True, look_ahead=distance).orders()
    after = lowered[lowered.index("(0F1;8B0)OVERLAP_F_B") + 1 :]
    assert after[:2] == ["0RESHARD", "8RESHARD"]


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"max_active_stages": 0}, "max_active_stages=0 must be a whole number of at least 1"),
        ({"look_ahead": "half"}, "use full, auto, a number of stages, or a list of one number per device"),
        ({"look_ahead": 4}, "look_ahead=4 is above max_active_stages=3"),
        ({"look_ahead": [1, 2, 3]}, "must have one number per device, 2 in all"),
        ({"look_ahead": [1, True]}, "look_ahead=True"),
    ],
)
def test_an_invalid_window_is_one_clear_error(window, said):
    with pytest.raises(ppsim.ConfigError) as error:
        ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2), sharded=True, **window)
    assert said in str(error.value)


def test_a_window_without_sharding_is_refused():
    with pytest.raises(ppsim.ConfigError, match="give sharded=True too"):
        ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2), look_ahead="auto")
