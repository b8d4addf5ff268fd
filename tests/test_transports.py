"""Transports: whole timelines of small cases, computed by hand from the queueing rules."""

from itertools import pairwise

import pytest
from timelines import actions, transfers

import ppsim
from ppsim.actions import Kind

QUEUED = ("directed", "directions", "pair", "rank", "blocking")
SLOW = ppsim.Costs(forward=1, backward=2, latency=3, per="stage")


def simulate(orders, transport, costs=SLOW):
    return ppsim.simulate(ppsim.Schedule.from_orders(orders), costs, transport=transport, engine="event")


GPIPE = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]


def test_async_transfers_start_when_their_producer_ends():
    run = simulate(GPIPE, "async")
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 11-13  0B1 13-15", "1F0 4-5  1F1 5-6  1B0 6-8  1B1 8-10"]
    assert transfers(run) == {"1F0": (1, 4), "1F1": (2, 5), "0B0": (8, 11), "0B1": (10, 13)}


@pytest.mark.parametrize("transport", ["directed", "pair", "rank"])
def test_a_queued_transfer_waits_for_its_recv_and_for_the_one_before_it(transport):
    # The RECV of 1F1 stands behind 1F0, which ends at 5; that of 0B1 behind 0B0, which ends at 16.
    run = simulate(GPIPE, transport)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 14-16  0B1 19-21", "1F0 4-5  1F1 8-9  1B0 9-11  1B1 11-13"]
    assert transfers(run) == {"1F0": (1, 4), "1F1": (5, 8), "0B0": (11, 14), "0B1": (16, 19)}


def test_a_blocking_send_holds_up_the_senders_next_action():
    run = simulate(GPIPE, "blocking")
    assert actions(run) == ["0F0 0-1  0F1 4-5  0B0 14-16  0B1 19-21", "1F0 4-5  1F1 8-9  1B0 9-11  1B1 14-16"]
    assert transfers(run) == {"1F0": (1, 4), "1F1": (5, 8), "0B0": (11, 14), "0B1": (16, 19)}


RECEIVED_AT_ONCE = [
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0RECV_B1", "0B0", "0B1"],
    ["1RECV_F0", "1RECV_F1", "1F0", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"],
]


def test_transfers_of_one_direction_stand_in_line():
    # Both RECV are posted at 0: the second transfer starts when the first ends.
    run = simulate(RECEIVED_AT_ONCE, "directed")
    assert transfers(run) == {"1F0": (1, 4), "1F1": (4, 7), "0B0": (10, 13), "0B1": (13, 16)}
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 13-15  0B1 16-18", "1F0 4-5  1F1 7-8  1B0 8-10  1B1 10-12"]


EXCHANGE = [
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
    ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
]


def test_sends_that_cross_on_one_queue_wait_for_each_other():
    with pytest.raises(ppsim.DeadlockError):
        simulate(EXCHANGE, "rank")


def test_latency_and_bytes_over_bandwidth_add_up():
    costs = ppsim.Costs(forward=1, backward=2, latency=0.5, transfer_bytes=100, bandwidth=200, per="stage")
    assert transfers(simulate([["0F0", "0B0"], ["1F0", "1B0"]], "directed", costs)) == {"1F0": (1, 2), "0B0": (5, 6)}


TWO_WAYS = [  # stage 0 and 2 on device 0, stage 1 on device 1: 1F1 and 2F0 cross on the pair
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "2RECV_F0", "2F0", "2RECV_F1", "2B0", "2SEND_B0", "0RECV_B0", "2F1", "2B1",
     "2SEND_B1", "0B0", "0RECV_B1", "0B1"],
    ["1RECV_F0", "1F0", "1RECV_F1", "1SEND_F0", "1F1", "1SEND_F1", "1RECV_B0", "1B0", "1SEND_B0", "1RECV_B1", "1B1",
     "1SEND_B1"],
]  # fmt: skip


def test_two_directions_of_a_pair_run_at_once_under_directed_and_in_line_under_pair():
    directed, pair = (transfers(simulate(TWO_WAYS, transport)) for transport in ("directed", "pair"))
    assert directed["1F0"] == pair["1F0"] == (1, 4)
    assert directed["1F1"] == pair["1F1"] == (5, 8)
    assert directed["2F0"] == (5, 8)
    assert pair["2F0"] == (8, 11)


THREE_DEVICES = [  # device 1 asks for 1F1's input before it sends 1F0's result on
    ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
    ["1RECV_F0", "1RECV_F1", "1F0", "1SEND_F0", "1F1", "1SEND_F1", "1RECV_B0", "1B0", "1SEND_B0", "1RECV_B1", "1B1",
     "1SEND_B1"],
    ["2RECV_F0", "2F0", "2RECV_F1", "2B0", "2SEND_B0", "2F1", "2B1", "2SEND_B1"],
]  # fmt: skip


def test_under_rank_a_send_waits_behind_a_receive_from_another_device():
    pair, rank = (simulate(THREE_DEVICES, transport) for transport in ("pair", "rank"))
    assert transfers(pair)["1F1"] == transfers(rank)["1F1"] == (4, 7)
    assert transfers(pair)["2F0"] == (5, 8)
    assert transfers(rank)["2F0"] == (7, 10)


def test_under_directions_only_transfers_of_the_same_direction_of_travel_wait_for_each_other():
    # 1F1's input and 1F0's result are activations, so that device 1 moves them one after the other, as under `rank`.
    directions, rank = (transfers(simulate(THREE_DEVICES, transport)) for transport in ("directions", "rank"))
    assert directions["1F1"] == rank["1F1"] == (4, 7)
    assert directions["2F0"] == rank["2F0"] == (7, 10)
    # The gradient for 1B0 leaves device 2 at 13. Under `rank` it waits until 1SEND_F1, posted before it, ends at 14.
    assert (directions["2F1"], rank["2F1"]) == ((11, 14), (11, 14))
    assert directions["1B0"] == (13, 16)
    assert rank["1B0"] == (14, 17)


def test_a_direction_of_travel_is_the_kind_of_a_transfer_and_not_the_order_of_its_devices():
    # In a V the second half's activations go to lower devices: they share a queue with the first half's.
    run = simulate(ppsim.build("zb-v", devices=3, microbatches=4).orders(), "directions")
    schedule, source = run.schedule, run.schedule.source
    forward = schedule.kind == Kind.F
    remote = run.plan.remote
    for device in range(3):
        at = remote & ((schedule.device == device) | (schedule.device[source] == device))
        for kind in (forward, ~forward):
            spans = sorted(zip(run.transfer_start[at & kind], run.transfer_end[at & kind], strict=True))
            assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    down = forward & remote & (schedule.device < schedule.device[source])
    assert down.any()


def test_under_rank_nothing_of_a_device_overlaps():
    run = simulate(ppsim.build("1f1b", devices=4, microbatches=6).orders(), "rank")
    schedule, source = run.schedule, run.schedule.source
    for device in range(4):
        spans = sorted(
            (run.transfer_start[row], run.transfer_end[row])
            for row in range(len(schedule.kind))
            if run.plan.remote[row] and device in (schedule.device[row], schedule.device[source[row]])
        )
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_a_post_waits_for_the_compute_before_it():
    late = [["0F0", "0F1", "0SEND_F0", "0SEND_F1", *RECEIVED_AT_ONCE[0][4:]], RECEIVED_AT_ONCE[1]]
    assert transfers(simulate(late, "directed"))["1F0"] == (2, 5)


def test_a_receive_posted_late_holds_up_its_transfer():
    # 1RECV_F1 is posted after 1B0, which ends at 7.
    late = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0", "1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    assert transfers(simulate(late, "directed"))["1F1"] == (7, 10)


@pytest.mark.parametrize("transport", ["async", *QUEUED])
def test_neighbours_on_one_device_pay_nothing(transport):
    run = simulate([["0F0", "1F0", "1B0", "0B0"]], transport)
    assert actions(run) == ["0F0 0-1  1F0 1-2  1B0 2-4  0B0 4-6"]
    assert transfers(run) == {}


@pytest.mark.parametrize("transport", ["async", *QUEUED])
def test_the_same_stage_on_two_devices_runs_by_microbatch(transport):
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    run = simulate(both_ways, transport)
    if transport in ("async", "directed"):
        # Both directions of the pair at once: all transfers of a wave run side by side.
        assert actions(run) == ["0F0 0-1  1F1 4-5  1B1 5-7  0B0 10-12", "0F1 0-1  1F0 4-5  1B0 5-7  0B1 10-12"]
    elif transport in ("pair", "rank"):
        # In the order of the walk: 0F0's result, 0F1's, then the gradients of microbatch 1 and 0.
        assert actions(run) == ["0F0 0-1  1F1 7-8  1B1 8-10  0B0 16-18", "0F1 0-1  1F0 4-5  1B0 5-7  0B1 13-15"]


FUSED = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]


@pytest.mark.parametrize("transport", ["async", *QUEUED])
def test_a_timed_fused_slot_starts_when_both_parts_may_and_ends_both_at_once(transport):
    costs = ppsim.Costs(forward=1, backward=2, overlap=2.5, latency=3, per="stage")
    run = simulate(FUSED, transport, costs)
    slot = {"async": "1F1 5-7.5  1B0 5-7.5", "blocking": "1F1 8-10.5  1B0 8-10.5"}
    slot |= dict.fromkeys(("directed", "directions", "pair", "rank"), slot["blocking"])
    assert slot[transport] in actions(run)[1]
    assert run.device_busy.tolist() == [6, 5.5]


def test_without_overlap_the_parts_of_a_slot_run_one_after_the_other_each_waiting_for_its_own_input():
    backward_first = [FUSED[0], ["1F0", "(1B0;1F1)OVERLAP_F_B", "1B1"]]
    # 1B0 needs no transfer and starts at 5 while 1F1's is on its way; both results leave after the slot.
    run = simulate(backward_first, "directed")
    assert actions(run)[1] == "1F0 4-5  1B0 5-7  1F1 8-9  1B1 9-11"
    assert transfers(run)["0B0"] == (9, 12)
    assert transfers(simulate(backward_first, "async"))["0B0"] == (7, 10)


def test_a_timed_slot_whose_backward_needs_its_own_forward_is_a_deadlock():
    costs = ppsim.Costs(forward=1, backward=2, overlap=2.5)
    with pytest.raises(ppsim.DeadlockError, match="0B0 and 0F0 share one fused slot"):
        simulate([["(0F0;0B0)OVERLAP_F_B"]], "async", costs)


@pytest.mark.parametrize("transport", ["async", *QUEUED])
def test_sharding_actions_cost_no_time(transport):
    schedule = ppsim.build("looped-bfs", devices=2, microbatches=3, stages_per_device=4)
    program = ppsim.lower(schedule)
    sharded = [  # the same order of posts, with every stage gathered first and dropped last
        [f"{stage}UNSHARD" for stage in range(device, 8, 2)]
        + row
        + [f"{stage}{kind}" for kind in ("REDUCE_GRAD", "RESHARD") for stage in range(device, 8, 2)]
        for device, row in enumerate(program.orders())
    ]
    plain = ppsim.simulate(program, SLOW, transport=transport, engine="event")
    assert actions(simulate(sharded, transport)) == actions(plain)
    assert ppsim.simulate(ppsim.lower(schedule, sharded=True), SLOW, transport=transport).schedule == schedule


@pytest.mark.parametrize("engine", ["event", "compiled"])
def test_the_very_first_post_of_a_program_holds_up_the_next_one_to_another_device(engine):
    program = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0B0", "0RECV_B1", "0B1"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0"],
        ["1RECV_F1", "1F1", "1B1", "1SEND_B1"],
    ]
    costs = ppsim.Costs(forward=1.0, backward=1.0, latency=10.0, per="stage")
    run = ppsim.simulate(ppsim.Program.from_orders(program), costs, transport="rank", engine=engine)
    assert run.start.tolist() == [0.0, 1.0, 31.0, 42.0, 11.0, 12.0, 21.0, 22.0]
