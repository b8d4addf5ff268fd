"""The boxes that all charts draw: one an action, with what it waited for."""

import numpy as np
import pytest
from random_runs import rerun
from timelines import stepped

import ppsim
from ppsim.plots.boxes import local_stage, make_boxes, second_cue, sizes_text
from ppsim.plots.shares import busy_shares, kind_shares, share_codes, share_colours, share_edges

FORWARD, BACKWARD, IDLE, LANE_GROUND = "#2853a3", "#ffd426", "#b2bab1", "#f7f7f7"
FUSED = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]


def run(name="1f1b", devices=4, microbatches=8, costs=None, transport="async", **options):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    return ppsim.simulate(schedule, costs, transport=transport)


def names(boxes):
    return [boxes.name(box) for box in range(len(boxes))]


def test_every_action_is_one_box_in_list_order():
    timeline = run("zb-h1")
    boxes = make_boxes(timeline)
    assert names(boxes) == [action for order in timeline.schedule.orders() for action in order]
    assert np.array_equal(boxes.start, timeline.start)
    assert np.array_equal(boxes.action, np.arange(len(timeline.start)))


def test_a_timed_fused_slot_is_one_box_and_an_untimed_one_two():
    schedule = ppsim.Schedule.from_orders(FUSED)
    timed = make_boxes(ppsim.simulate(schedule, ppsim.Costs(overlap=2.5)))
    assert names(timed)[4:] == ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]
    assert timed.short_label(5) == "1/0"
    assert timed.length[5] == 2.5
    untimed = make_boxes(ppsim.simulate(schedule))
    assert names(untimed)[4:] == ["1F0", "1F1", "1B0", "1B1"]
    assert untimed.action.tolist()[4:] == [4, 5, 5, 6]


def test_a_box_knows_whether_it_waited_for_its_device_or_its_input():
    boxes = make_boxes(run(devices=2, microbatches=2, costs=ppsim.Costs(latency=0.5)))
    waits = {boxes.name(box): boxes.waited_text(box) for box in range(len(boxes))}
    assert waits == {
        "0F0": "nothing, the first of its device",
        "0F1": "the device, busy with 0F0",
        "0B0": "its input from 1B0 on device 1",
        "0B1": "its input from 1B1 on device 1",
        "1F0": "its input from 0F0 on device 0",
        "1B0": "the device, busy with 1F0",
        "1F1": "the device, busy with 1B0",
        "1B1": "the device, busy with 1F1",
    }


def test_a_blocking_send_is_named_as_what_held_the_next_action_up():
    boxes = make_boxes(run(devices=2, microbatches=2, costs=ppsim.Costs(latency=0.5), transport="blocking"))
    assert boxes.waited_text(1) == "the SENDs of its own device"


def test_a_slot_waits_for_the_later_of_its_two_inputs():
    schedule = ppsim.Schedule.from_orders(
        [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"], ["2F0", "2B0", "2F1", "2B1"]]
    )
    boxes = make_boxes(ppsim.simulate(schedule, ppsim.Costs(overlap=3.0)))
    assert boxes.waited_text(5) == "its input from 2B0 on device 2"


@pytest.mark.parametrize(
    ("name", "options", "shades", "cue"),
    [
        ("1f1b", {}, 1, ""),
        ("interleaved-1f1b", {"stages_per_device": 3}, 3, "paler: later stage of the same device"),
        ("zb-v", {}, 2, "paler: later stage of the same device"),
        ("dualpipe", {}, 2, "paler: microbatches that enter at the other end"),
    ],
)
def test_shades_follow_local_stages_and_directions(name, options, shades, cue):
    schedule = ppsim.build(name, devices=4, microbatches=8, **options)
    shade = local_stage(schedule)
    for device in range(4):
        rows = schedule.device == device
        assert sorted(set(shade[rows].tolist())) == list(range(shades))
        for number in range(shades):
            assert len(set(schedule.stage[rows & (shade == number)].tolist())) == 1
    assert second_cue(schedule) == cue


def test_all_stages_of_a_direction_share_a_shade_in_dualpipe():
    schedule = ppsim.build("dualpipe", devices=4, microbatches=8)
    assert set(zip((schedule.microbatch >= 4).tolist(), local_stage(schedule).tolist(), strict=True)) == {
        (0, 0),
        (1, 1),
    }


def test_shares_add_up_to_each_devices_busy_time():
    timeline = run("zb-h1", costs=ppsim.Costs(forward=1.1, input_grad=0.7, weight_grad=0.4, latency=0.03))
    boxes = make_boxes(timeline)
    edges = np.linspace(0, timeline.makespan, 38)
    seconds = kind_shares(boxes, edges).sum(axis=2) @ np.diff(edges)
    assert seconds == pytest.approx(timeline.device_busy)


@pytest.mark.parametrize("each", [1, 3, 4, 9])
def test_rows_of_neighbours_show_their_mean_share(each):
    boxes = make_boxes(run("1f1b", devices=4, microbatches=6))
    edges = np.linspace(0, 27, 28)
    alone = kind_shares(boxes, edges).sum(axis=2)
    together = [alone[first : first + each].mean(axis=0) for first in range(0, 4, each)]
    np.testing.assert_allclose(busy_shares(boxes, edges, each), together)


def test_the_mix_of_the_steady_part_is_even_in_the_overview():
    boxes = make_boxes(run(devices=4, microbatches=512))
    shares = kind_shares(boxes, share_edges(boxes))
    steady = shares[:, 10:-10]
    assert steady[..., 0] == pytest.approx(1 / 3)
    assert steady[..., 1] == pytest.approx(2 / 3)


def test_sizes_name_what_differs_from_one_stage_a_device():
    assert sizes_text(ppsim.build("1f1b", devices=1, microbatches=1)) == "1f1b, 1 device, 1 microbatch"
    interleaved = ppsim.build("interleaved-1f1b", devices=2, microbatches=4, stages_per_device=2)
    assert sizes_text(interleaved) == "interleaved-1f1b, 2 devices, 4 stages, 4 microbatches"
    assert sizes_text(ppsim.build("seq1f1b", devices=2, microbatches=4, slices=2)).endswith(
        "4 microbatches, 2 slices each"
    )


def test_a_timeline_too_short_to_draw_is_an_error():
    long = run()
    timeline = rerun(long, seconds=long.plan.row_lengths * 1e-250)
    with pytest.raises(ppsim.ConfigError, match="too short to draw"):
        make_boxes(timeline)


def test_the_picture_of_the_shares_stacks_kinds_from_the_bottom_with_idle_time_on_top():
    boxes = make_boxes(run(devices=1, microbatches=3, costs=ppsim.Costs(forward=1, backward=2)))
    picture = share_codes(boxes, np.array([0.0, 9.0]), lines=6)
    assert [share_colours(boxes)[code] for code in picture[:, 0]] == [BACKWARD] * 4 + [FORWARD] * 2


def test_the_picture_of_the_shares_leaves_room_for_lanes():
    boxes = make_boxes(stepped())
    picture = share_codes(boxes, np.array([0.0, 3.6, 7.2]), lines=6)
    colours = [share_colours(boxes)[code] for code in picture[: len(picture) // 2, 1]]
    assert colours[0] == colours[-1] == LANE_GROUND
    assert set(colours[colours.index(IDLE) :]) == {IDLE, BACKWARD, LANE_GROUND}
