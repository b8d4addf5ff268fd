"""The program checker: faults that PyTorch does not look for, and deadlocks as readable waiting cycles."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import random_orders

import ppsim
from ppsim.lowering import TRANSPORTS

GOOD = [
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
    ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"],
]


def changed(old, *new, orders=GOOD):
    """The lists with the action `old` replaced by `new`."""
    return [[made for action in row for made in (new if action == old else (action,))] for row in orders]


def faults(orders, **options):
    with pytest.raises(ppsim.ScheduleError) as error:
        ppsim.Schedule.from_orders(orders).check(**options)
    return error.value.faults


def test_a_good_program_passes_under_every_transport_and_for_pytorch():
    program = ppsim.Schedule.from_orders(GOOD)
    for transport in (None, *TRANSPORTS):
        program.check(transport)
    ppsim.lower(program, sharded=True).check("rank", pytorch=True)


def test_a_schedule_is_lowered_before_it_is_checked():
    ppsim.build("1f1b", devices=4, microbatches=6).check("rank", pytorch=True)


def test_a_missing_send_and_a_missing_recv_are_named_with_their_device():
    assert faults(changed("0SEND_F1")) == [
        "0SEND_F1 is missing on device 0: 0F1 makes what is needed by 1F1 of device 1"
    ]
    assert faults(changed("1RECV_F1")) == ["1RECV_F1 is missing on device 1: 1F1 needs what is made by 0F1 of device 0"]


def test_a_doubled_transfer_is_named():
    assert faults(changed("0SEND_F1", "0SEND_F1", "0SEND_F1")) == [
        "0SEND_F1 (row 1, column 5) appears twice; each transfer is sent and received once"
    ]


def test_a_send_before_its_producer_and_a_recv_after_its_consumer_are_misplaced():
    early = [["0SEND_F0", *(action for action in GOOD[0] if action != "0SEND_F0")], GOOD[1]]
    assert faults(early) == ["0SEND_F0 (row 1, column 1) comes before 0F0, whose result it sends"]
    late = changed("1F1", "1F1", "1RECV_F1", orders=changed("1RECV_F1"))
    assert faults(late) == ["1RECV_F1 (row 2, column 4) comes after 1F1, which needs what it receives"]


def test_a_transfer_on_the_wrong_device_is_told():
    moved = changed("0SEND_F0", "0SEND_F0", "1RECV_F0", orders=changed("1RECV_F0"))
    assert faults(moved) == ["1RECV_F0 (row 1, column 3) is on the wrong device: 1F0 runs on device 1"]


@pytest.mark.parametrize("pointless", ["0RECV_F0", "0SEND_B0", "1SEND_F0", "7SEND_F0", "0SEND_F9", "2147483646RECV_B9"])
def test_a_transfer_that_no_action_needs_is_pointless(pointless):
    orders = [[*GOOD[0], pointless], GOOD[1]]
    rule = "needs" if "SEND" in pointless else "sends"
    assert faults(orders) == [f"{pointless} (row 1, column 9) carries nothing: no action {rule} it"]


def test_a_transfer_between_neighbours_of_one_device_is_pointless():
    orders = [["0F0", "0SEND_F0", "1RECV_F0", "1F0", "1B0", "0B0"]]
    assert faults(orders)[0] == "0SEND_F0 (row 1, column 2) carries nothing: 0F0 and 1F0 both run on device 0"


def test_crossed_receives_are_told_because_pytorch_runs_them_to_wrong_gradients():
    crossed = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F1", "1RECV_F0", "1F0", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"],
    ]
    assert faults(crossed) == [
        "0SEND_F0 (row 1, column 2) meets 1RECV_F1 (row 2, column 1): transfers between two devices are "
        "received in the order in which they are sent, and PyTorch would hand over the wrong tensor without an error"
    ]
    assert len(faults(crossed, transport="directed")) == 2
    ppsim.simulate(ppsim.Schedule.from_orders(crossed), transport="async")


def test_forward_and_backward_transfers_of_one_pair_keep_one_order():
    # 1F and 1B results both go from device 1 to device 0: 1SEND_F0 (to stage 2) and 1SEND_B0 (to stage 0).
    orders = [
        ["0F0", "0SEND_F0", "2RECV_F0", "2F0", "2B0", "2SEND_B0", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1SEND_F0", "1RECV_B0", "1B0", "1SEND_B0"],
    ]
    ppsim.Schedule.from_orders(orders).check("rank")
    crossed = [["0F0", "0SEND_F0", "0RECV_B0", "2RECV_F0", "2F0", "2B0", "2SEND_B0", "0B0"], orders[1]]
    assert "1SEND_F0 (row 2, column 3) meets 0RECV_B0 (row 1, column 3)" in faults(crossed)[0]


SHARDED = ["0UNSHARD", "0F0", "0B0", "0REDUCE_GRAD", "0RESHARD"]


@pytest.mark.parametrize(
    ("device", "fault"),
    [
        ("0F0 0UNSHARD 0B0 0RESHARD", "0F0 (row 1, column 1) runs while the weights of its stage are sharded; put "
         "an UNSHARD of the stage before it"),
        ("0UNSHARD 0F0 0RESHARD 0B0", "0B0 (row 1, column 4) runs while"),
        ("0RESHARD 0UNSHARD 0F0 0B0 0RESHARD", "0RESHARD (row 1, column 1) has no UNSHARD"),
        ("0UNSHARD 0F0 0UNSHARD 0B0 0RESHARD", "0UNSHARD (row 1, column 3) gathers weights that are gathered "
         "already"),
        ("0UNSHARD 0RESHARD 0UNSHARD 0F0 0B0 0RESHARD", "0RESHARD (row 1, column 2) drops weights that were "
         "gathered and not used"),
        ("0UNSHARD 0F0 0B0", "0B0 (row 1, column 3) is the last of its stage on the device; put a RESHARD"),
        ("0UNSHARD 0F0 0B0 0RESHARD 5UNSHARD", "5UNSHARD (row 1, column 5) is the last of its stage"),
        ("0F0 0REDUCE_GRAD 0B0", "0REDUCE_GRAD (row 1, column 2) comes before 0B0, which adds to the gradients"),
        ("0F0 0B0 0REDUCE_GRAD 0REDUCE_GRAD", "0REDUCE_GRAD (row 1, column 4) appears twice"),
        ("0F0 0B0 3REDUCE_GRAD", "3REDUCE_GRAD (row 1, column 3) has no gradients to reduce"),
    ],
)  # fmt: skip
def test_sharding_actions_bracket_the_use_of_their_stage(device, fault):
    assert any(fault in found for found in faults([device.split()]))


def test_a_program_with_sharding_actions_and_without_transfers_is_not_lowered_yet():
    orders = [["0UNSHARD", "0F0", "0B0", "0RESHARD"], ["1UNSHARD", "1F0", "1B0", "1RESHARD"]]
    program = ppsim.Schedule.from_orders(orders)
    assert ppsim.simulate(program, transport="rank").makespan == ppsim.simulate(program).makespan == 6


def test_pytorch_needs_the_last_stage_forward_in_microbatch_order():
    swapped = ppsim.Schedule.from_orders([["0F1", "0F0", "0B0", "0B1"], ["1F1", "1F0", "1B0", "1B1"]])
    swapped.check("rank")
    with pytest.raises(ppsim.ScheduleError, match=r"1F1 is forward number 0 of the last stage.*number k as the loss"):
        swapped.check(pytorch=True)


def test_pytorch_runs_each_stage_on_one_device():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    ppsim.Schedule.from_orders(both_ways).check("rank")
    found = faults(both_ways, pytorch=True)
    assert found[0] == "stage 0 runs on devices 0, 1: PyTorch runs each stage on one device"


def test_the_devices_of_a_stage_are_its_own():
    first_stage_twice = [["0F0", "0B0"], ["0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    found = faults(first_stage_twice, pytorch=True)
    assert found[0] == "stage 0 runs on devices 0, 1: PyTorch runs each stage on one device"


def test_gradients_of_nothing_are_reduced_nowhere():
    assert faults([["0F0", "0REDUCE_GRAD"]]) == ["the backward of 0F0 is missing: add 0B0, or 0I0 and 0W0"]


def test_pytorch_divides_gradients_only_where_they_are_reduced():
    assert faults(GOOD, pytorch=True) == [
        f"{stage}REDUCE_GRAD is missing on device {stage}: there PyTorch reduces the stage's gradients and divides "
        f"them by the number of microbatches; lower with sharded=True"
        for stage in (0, 1)
    ]


def cycle(orders, transport):
    with pytest.raises(ppsim.DeadlockError) as error:
        ppsim.simulate(ppsim.Schedule.from_orders(orders), transport=transport, engine="event")
    assert "each waits for the next in a cycle" in str(error.value)
    return error.value.cycle


BOTH_SEND_FIRST = [  # V placement: each device sends to the other before it receives
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "3RECV_F0", "3F0", "3RECV_F1", "3F1", "3B0", "3SEND_B0", "3B1", "3SEND_B1",
     "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
    ["1RECV_F0", "1F0", "2F0", "2SEND_F0", "1RECV_F1", "1F1", "2F1", "2SEND_F1", "2RECV_B0", "2B0", "1B0", "1SEND_B0",
     "2RECV_B1", "2B1", "1B1", "1SEND_B1"],
]  # fmt: skip


def test_opposite_orders_on_a_pair_deadlock_where_they_share_a_queue():
    for transport in ("async", "directed"):
        ppsim.Schedule.from_orders(BOTH_SEND_FIRST).check(transport)
    for transport in ("directions", "pair", "rank"):
        assert cycle(BOTH_SEND_FIRST, transport) == [
            "2SEND_F0 (device 1 to 0) waits in a queue of device 0 behind 0SEND_F1 (device 0 to 1)",
            "0SEND_F1 (device 0 to 1) waits in a queue of device 1 behind 2SEND_F0 (device 1 to 0)",
        ]


def test_blocking_sends_deadlock_where_both_receives_stand_behind_compute():
    def device(own, other):
        sends = [text for k in own for text in (f"0F{k}", f"0SEND_F{k}")]
        turns = [text for k in other for text in (f"1RECV_F{k}", f"1F{k}")]
        back = [text for k in other for text in (f"1B{k}", f"1SEND_B{k}")]
        return [*sends, *turns, *back, *(text for k in own for text in (f"0RECV_B{k}", f"0B{k}"))]

    both_ways = [device((0, 2), (1, 3)), device((1, 3), (0, 2))]
    ppsim.Schedule.from_orders(both_ways).check("directed")
    assert cycle(both_ways, "blocking") == [
        "device 0 waits before 0F2 for its blocking 0SEND_F0 (device 0 to 1)",
        "0SEND_F0 (device 0 to 1) waits for its RECV, which device 1 posts only after 0F3",
        "device 1 waits before 0F3 for its blocking 0SEND_F1 (device 1 to 0)",
        "0SEND_F1 (device 1 to 0) waits for its RECV, which device 0 posts only after 0F2",
    ]


def test_crossed_receives_deadlock_under_directed():
    crossed = changed("1RECV_F0", "1RECV_F1", "1RECV_F0", orders=[GOOD[0], [a for a in GOOD[1] if a != "1RECV_F1"]])
    assert cycle(crossed, "directed") == [
        "0SEND_F0 (device 0 to 1) waits in a queue of device 1 behind 0SEND_F1 (device 0 to 1)",
        "0SEND_F1 (device 0 to 1) waits in a queue of device 0 behind 0SEND_F0 (device 0 to 1)",
    ]


def test_a_receive_posted_behind_the_action_that_waits_for_its_sender_is_a_cycle():
    orders = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B1", "0B1", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    assert cycle(orders, "directed") == [
        "device 0 waits at 0B1 for 1SEND_B1 (device 1 to 0)",
        "1SEND_B1 (device 1 to 0) waits in a queue of device 1 behind 1SEND_B0 (device 1 to 0)",
        "1SEND_B0 (device 1 to 0) waits for its RECV, which device 0 posts only after 0B1",
    ]


def test_a_device_that_has_finished_may_hold_sends_in_a_deadlock():
    orders = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B1", "0RECV_B0", "0B0", "0B1"],
        ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"],
    ]
    assert cycle(orders, "directed") == [
        "1SEND_B0 (device 1 to 0) waits in a queue of device 0 behind 1SEND_B1 (device 1 to 0)",
        "1SEND_B1 (device 1 to 0) waits in a queue of device 1 behind 1SEND_B0 (device 1 to 0)",
    ]


def test_a_deadlock_without_queues_names_the_devices():
    waiting = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    assert cycle(waiting, "async") == [
        "device 0 waits at 0B0 for 1B0 of device 1, which comes after 1F1",
        "device 1 waits at 1F1 for 0F1 of device 0, which comes after 0B0",
    ]


def test_a_long_chain_of_waits_is_told_without_recursion():
    p = 2000
    orders = [[f"{s}F0", f"{s}B0", f"{s}F1", f"{s}B1"] for s in range(p - 1)]
    orders.append([f"{p - 1}F0", f"{p - 1}F1", f"{p - 1}B0", f"{p - 1}B1"])
    with pytest.raises(ppsim.DeadlockError) as error:
        ppsim.Schedule.from_orders(orders).validate()
    assert len(error.value.cycle) <= p


@settings(deadline=None, max_examples=80)
@given(random=st.randoms(use_true_random=False), transport=st.sampled_from(TRANSPORTS[1:]))
def test_a_damaged_program_is_simulated_or_refused_in_words(random, transport):
    try:
        orders = ppsim.lower(ppsim.Schedule.from_orders(random_orders(random)), sharded=random.random() < 0.3).orders()
    except ppsim.DeadlockError:
        return
    for _ in range(random.randint(1, 4)):
        row = random.choice(orders)
        at = random.randrange(len(row)) if row else 0
        damage = random.choice(["drop", "double", "move", "swap device"])
        taken = row.pop(at) if row else "0F0"
        if damage == "double":
            row.insert(at, taken)
        if damage in ("double", "move"):
            row.insert(random.randint(0, len(row)), taken)
        if damage == "swap device":
            other = random.choice(orders)
            other.insert(random.randint(0, len(other)), taken)
    with suppress(ppsim.PpsimError):
        program = ppsim.Schedule.from_orders(orders)
        program.check(transport, pytorch=random.random() < 0.3)
        ppsim.simulate(program, transport=transport)


@pytest.mark.parametrize("transport", ["", "fifo", 3])
def test_an_unknown_transport_is_answered_with_the_known(transport):
    with pytest.raises(ppsim.ConfigError, match="async, directed, directions, pair, rank, blocking"):
        ppsim.Schedule.from_orders(GOOD).check(transport)


@settings(deadline=None, max_examples=150)
@given(random=st.randoms(use_true_random=False), transport=st.sampled_from(TRANSPORTS[1:]))
def test_a_check_and_both_engines_find_the_same_deadlock(random, transport):
    orders = ppsim.lower(ppsim.Schedule.from_orders(random_orders(random, fused=False))).orders()
    for _ in range(random.randint(0, 3)):
        row = random.choice(orders)
        moved = [at for at, action in enumerate(row) if "SEND" in action or "RECV" in action]
        if moved:
            action = row.pop(random.choice(moved))
            row.insert(random.randint(0, len(row)), action)
    program = ppsim.Schedule.from_orders(orders)
    with suppress(ppsim.ScheduleError):
        program.validate()
        event, compiled = (
            deadlock(lambda engine=engine: ppsim.simulate(program, transport=transport, engine=engine))
            for engine in ("event", "compiled")
        )
        assert event == compiled
        others = faults_or_none(program)
        found = faults_or_none(program, transport=transport)
        assert found[: len(others)] == others
        assert [fault.partition("\n")[2] for fault in found[len(others) :]] == (
            [event.partition("\n")[2]] if event else []
        )


def faults_or_none(program, **options):
    """The faults that a check finds; none if it finds none."""
    try:
        program.check(**options)
    except ppsim.ScheduleError as error:
        return error.faults
    return []


def deadlock(run):
    """The message of the deadlock that a call ends in, or None."""
    try:
        run()
    except ppsim.DeadlockError as error:
        return str(error)


def test_of_many_faults_of_one_kind_the_first_are_told():
    program = ppsim.lower(ppsim.build("1f1b", devices=8, microbatches=4000))
    found = faults([[action for action in row if "SEND" not in action] for row in program.orders()])
    assert len(found) == 51
    assert found[-1].startswith("55950 more faults like: ")
