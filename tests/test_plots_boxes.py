"""The boxes that all charts draw: one an action, with what it waited for."""

import numpy as np
import pytest
from charts import block_names, common_title, legend_entries, local_stage, make_boxes, sizes_text

import ppsim
from ppsim.actions import Kind

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
    assert [timed.number(row) for row in (timed.row[5], timed.row[5] + 1)] == ["1", "0"]
    assert timed.length[5] == 2.5
    untimed = make_boxes(ppsim.simulate(schedule))
    assert names(untimed)[4:] == ["1F0", "1F1", "1B0", "1B1"]
    assert untimed.action.tolist()[4:] == [4, 5, 5, 6]


@pytest.mark.parametrize(
    ("name", "options", "stages", "marks"),
    [
        ("1f1b", {}, 1, []),
        ("interleaved-1f1b", {"stages_per_device": 3}, 3, ["later stage: longer line"]),
        ("zb-v", {}, 2, ["second stage of the device"]),
        ("dualpipe", {}, 1, ["enters at the other end"]),
        ("pipedream", {"iterations": 3}, 1, ["start of an iteration"]),
    ],
)
def test_marks_show_local_stages_directions_and_steps(name, options, stages, marks):
    boxes = make_boxes(run(name, **options))
    assert boxes.locals == stages
    schedule = boxes.timeline.schedule
    local, reverse = local_stage(schedule)
    for device in range(4):
        rows = (schedule.device == device) & ~reverse
        assert sorted(set(local[rows].tolist())) == list(range(stages))
        for number in range(stages):
            assert len(set(schedule.stage[rows & (local == number)].tolist())) == 1
    seen = {"stage": stages > 1, "longer": stages > 2, "reverse": boxes.reverse.any()}
    marked = {sort: Kind.F for sort, is_seen in seen.items() if is_seen}
    entries = legend_entries([boxes], marked)
    assert [entry.text for entry in entries if entry.sort in ("stage", "reverse", "steps")] == marks
    assert {entry.kind for entry in entries if entry.sort in marked} <= {Kind.F}


def test_the_second_half_of_dualpipes_microbatches_enters_at_the_other_end():
    schedule = ppsim.build("dualpipe", devices=4, microbatches=8)
    local, reverse = local_stage(schedule)
    assert np.array_equal(reverse, schedule.microbatch >= 4)
    assert not local.any()


def test_each_device_begins_each_further_step_once():
    boxes = make_boxes(run("pipedream", iterations=3))
    begins = boxes.step_begins
    assert sorted(boxes.device[begins].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sorted(set((boxes.microbatch[begins] // 8).tolist())) == [1, 2]


def test_a_comparison_is_named_by_what_its_timelines_have_in_common():
    runs = [run("1f1b"), run("zb-h1")]
    assert common_title(runs) == "4 devices, 8 microbatches"
    assert block_names(runs) == ["1f1b", "zb-h1"]
    assert common_title([run(), run(microbatches=16)]) == "2 timelines"
    assert block_names([run(), run(microbatches=16)]) == [
        "1f1b, 4 devices, 8 microbatches", "1f1b, 4 devices, 16 microbatches"
    ]  # fmt: skip
    assert block_names([run().named("a"), run().named("b")]) == ["a: 1f1b", "b: 1f1b"]


def test_sizes_name_what_differs_from_one_stage_a_device():
    assert sizes_text(ppsim.build("1f1b", devices=1, microbatches=1)) == "1f1b, 1 device, 1 microbatch"
    interleaved = ppsim.build("interleaved-1f1b", devices=2, microbatches=4, stages_per_device=2)
    assert sizes_text(interleaved) == "interleaved-1f1b, 2 devices, 4 stages, 4 microbatches"
    assert sizes_text(ppsim.build("seq1f1b", devices=2, microbatches=4, slices=2)).endswith(
        "4 microbatches, 2 slices each"
    )
