"""OFFLOAD and RELOAD: their text, their rules, the copy engines in both engines, and memory while they are away."""

from contextlib import suppress

import numpy as np
import pytest
from random_runs import SLOW_TO_BUILD
from test_compiled_engine import assert_equal_bits

import ppsim

LISTS = [
    ["0F0", "0OFFLOAD0", "0F1", "0OFFLOAD1", "0RELOAD0", "0B0", "0RELOAD1", "0B1"],
    ["1F0", "1B0", "1F1", "1B1"],
]


def run_of(orders, transport="async", engine="event", **costs):
    costs = ppsim.Costs(forward=1, backward=2, **costs)
    return ppsim.simulate(ppsim.Schedule.from_orders(orders), costs, transport=transport, engine=engine)


def test_lists_with_copies_come_back_as_written_and_are_kept_by_lowering(tmp_path):
    program = ppsim.Schedule.from_orders(LISTS)
    program.to_csv(tmp_path / "copies.csv")
    assert program.orders() == ppsim.Schedule.from_csv(tmp_path / "copies.csv").orders() == LISTS
    for sharded in (False, True):
        lowered = ppsim.lower(program, sharded=sharded).orders()
        assert [text for text in lowered[0] if text in LISTS[0]] == LISTS[0]


def test_a_copy_engine_takes_one_copy_at_a_time_and_a_reload_waits_for_its_offload():
    run = run_of(LISTS, offload_latency=1.5)
    # OFFLOAD 0 from the end of F0, OFFLOAD 1 behind it; RELOAD 0 behind its OFFLOAD, RELOAD 1 behind B0 alone.
    assert list(zip(run.offloads.start, run.offloads.end, strict=True)) == [(1, 2.5), (2.5, 4)]
    assert list(zip(run.reloads.start, run.reloads.end, strict=True)) == [(2.5, 4), (6, 7.5)]
    assert run.start[:4].tolist() == [0, 1, 4, 7.5]
    assert run.makespan == 9.5


def test_bytes_over_bandwidth_are_added_to_the_latency():
    run = run_of(LISTS, offload_latency=0.5, offload_bandwidth=10.0, activation_bytes=10.0)
    assert (run.offloads.end - run.offloads.start).tolist() == [1.5, 1.5]
    run = run_of(LISTS, offload_latency=0.5, offload_bandwidth=10.0, activation_bytes=10.0, offload_bytes=5.0)
    assert (run.offloads.end - run.offloads.start).tolist() == [1, 1]


def test_neighbours_that_share_a_switch_go_one_after_the_other_in_each_way():
    orders = [[f"0F{k}", f"0OFFLOAD{k}", f"0RELOAD{k}", f"0B{k}"] for k in range(2)]
    for engine in ("event", "compiled"):
        run = run_of(orders, engine=engine, per="stage", offload_latency=1.5, offload_switch=2)
        # Both could leave at 1 s: the lower device goes first. The RELOAD of device 0 passes the OFFLOAD of device 1.
        assert list(zip(run.offloads.start, run.offloads.end, strict=True)) == [(1, 2.5), (2.5, 4)]
        assert list(zip(run.reloads.start, run.reloads.end, strict=True)) == [(2.5, 4), (4, 5.5)]
        assert run.end.tolist() == [1, 6, 1, 7.5]
        apart = [orders[0], ["0F2", "0B2"], orders[1]]
        apart = run_of(apart, engine=engine, per="stage", offload_latency=1.5, offload_switch=2)
        assert apart.offloads.start.tolist() == [1, 1]


@pytest.mark.parametrize("switch", [1, 0, 2.0, "two", True])
def test_a_switch_is_shared_by_a_whole_number_of_devices(switch):
    with pytest.raises(ppsim.CostError, match=r"offload_switch=.*whole number of at least 2"):
        ppsim.Costs(offload_switch=switch)


def test_an_activation_is_counted_until_its_copy_out_ends_and_from_the_start_of_its_copy_in():
    run = run_of(LISTS, offload_latency=0.25, activation_bytes=10.0, weight_bytes=1.0)
    times, levels = run.activations_over_time(0)
    found = list(zip(times.tolist(), levels.tolist(), strict=True))
    assert found == [(0, 1), (1, 2), (1.25, 1), (2, 2), (2.25, 1), (9, 0)]
    assert run.peak_activations.tolist() == [2, 1]
    assert run.peak_memory.tolist() == [1 + 10 * held for held in run.peak_activations]


def test_what_is_not_moved_stays():
    run = run_of(LISTS, offload_latency=0.25, activation_bytes=10.0, offload_bytes=4.0, weight_bytes=1.0)
    away = np.searchsorted(run.activations_over_time(0)[0], 1.5, "right") - 1
    assert run.activations_over_time(0)[1][away] == pytest.approx(1 + 0.6)


def test_waiting_for_a_reload_is_a_cause_of_its_own():
    run = run_of(LISTS, offload_latency=1.5)
    assert run.ledger()["reload"].tolist() == [0.5, 0]
    assert np.allclose(run.ledger().total, run.device_idle)
    assert run.sensitivities().kind["RELOAD"] >= 1


def test_bounds_count_the_copies():
    run = run_of(LISTS, offload_latency=1.5)
    # The way of a microbatch: F, out and back, B. The engine: F, two copies, the last one back, B.
    assert run.lower_bound().bounds["dataflow"] == 1 + 1.5 + 1.5 + 2
    assert run.lower_bound().bounds["copies"] == 1 + 2 * 1.5 + 1.5 + 2
    slow = run_of(LISTS, offload_latency=8.0)
    assert slow.lower_bound().which == "copies"
    assert slow.lower_bound().seconds == 1 + 2 * 8 + 8 + 2 < slow.makespan


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ([["0OFFLOAD0", "0F0", "0RELOAD0", "0B0"]], "an activation leaves after its forward"),
        ([["0F0", "0RELOAD0", "0OFFLOAD0", "0B0"]], "an activation comes back after it has left"),
        ([["0F0", "0OFFLOAD0", "0B0", "0RELOAD0"]], "a backward needs its activation back"),
        ([["0F0", "0OFFLOAD0", "0R0", "0RELOAD0", "0B0"]], "R needs the stored input back"),
        ([["0F0", "0OFFLOAD0", "0B0"]], "has no 0RELOAD0"),
        ([["0F0", "0RELOAD0", "0B0"]], "has no 0OFFLOAD0"),
        ([["0F0", "0OFFLOAD0", "0OFFLOAD0", "0RELOAD0", "0B0"]], "appears twice"),
        ([["0F0", "0B0"], ["0OFFLOAD0", "0RELOAD0", "1F0", "1B0"]], "has nothing to copy"),
        ([["0F0", "0OFFLOAD7", "0RELOAD7", "0B0"]], "has nothing to copy"),
    ],
)
def test_a_misplaced_copy_is_named(orders, sentence):
    with pytest.raises(ppsim.ScheduleError) as caught:
        ppsim.Schedule.from_orders(orders).validate()
    assert sentence in str(caught.value)


def test_an_activation_that_shares_a_fused_slot_with_the_backward_before_its_own_leaves_before_it_comes_back():
    program = ppsim.build("1f1b-overlap", devices=2, microbatches=3, offload="all")
    assert program.orders()[1] == [
        "1F0", "1OFFLOAD0", "1RELOAD0", "(1F1;1B0)OVERLAP_F_B", "1OFFLOAD1", "1RELOAD1",
        "(1F2;1B1)OVERLAP_F_B", "1OFFLOAD2", "1RELOAD2", "1B2",
    ]  # fmt: skip
    assert_equal_bits(program, ppsim.Costs(overlap=2.5, offload_latency=0.5), "async")


def test_a_backward_in_one_slot_with_its_own_forward_gets_neither_copies_nor_an_r():
    schedule = ppsim.Schedule.from_orders([["(0F0;0B0)OVERLAP_F_B", "0F1", "0F2", "0B2", "0B1"]])
    assert ppsim.with_offload(schedule).orders()[0][0] == "(0F0;0B0)OVERLAP_F_B"
    assert ppsim.with_recompute(schedule).orders()[0][0] == "(0F0;0B0)OVERLAP_F_B"
    assert ppsim.with_recompute(schedule, "needed", memory_limit=1).orders()[0][:2] == ["(0F0;0B0)OVERLAP_F_B", "0F1"]


@pytest.mark.parametrize("family", [name for name in ppsim.schedules() if name not in SLOW_TO_BUILD])
def test_every_list_that_is_built_passes_the_check_of_lists_that_are_read(family):
    for sizes in ((1, 2), (2, 4), (4, 8), (3, 7)):
        try:
            built = ppsim.build(family, devices=sizes[0], microbatches=sizes[1])
        except ppsim.BuildError:
            continue
        made = [built, *_with_memory_actions(built)]
        for schedule in [*made, *(ppsim.lower(one, sharded=True, receive="just-in-time") for one in made)]:
            ppsim.Schedule.from_orders(schedule.orders(), slices=schedule.slices).validate()


def _with_memory_actions(schedule):
    for add in (ppsim.with_offload, ppsim.with_recompute):
        with suppress(ppsim.BuildError):
            yield add(schedule)


def test_what_pytorch_cannot_run_is_named():
    with pytest.raises(ppsim.ScheduleError) as caught:
        ppsim.Schedule.from_orders(LISTS).check(pytorch=True)
    assert "knows no OFFLOAD" in str(caught.value)
    assert "knows no RELOAD" in str(caught.value)
