"""1F1B with fused F and B slots against its closed forms."""

import pytest

import ppsim


def test_1f1b_overlap_on_two_devices():
    assert ppsim.build("1f1b-overlap", devices=2, microbatches=5).orders() == [
        ["0F0", "0F1", "0F2", "(0F3;0B0)OVERLAP_F_B", "(0F4;0B1)OVERLAP_F_B", "0B2", "0B3", "0B4"],
        ["1F0", *(f"(1F{k + 1};1B{k})OVERLAP_F_B" for k in range(4)), "1B4"],
    ]


def test_interleaved_overlap_runs_either_part_first():
    forward_first, backward_first = (
        ppsim.build("interleaved-overlap", devices=1, microbatches=2, order=order).orders() for order in ("f_b", "b_f")
    )
    assert forward_first == [["0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", "(1F1;0B0)OVERLAP_F_B", "1B1", "0B1"]]
    assert backward_first == [["0F0", "1F0", "(1B0;0F1)OVERLAP_F_B", "(0B0;1F1)OVERLAP_F_B", "1B1", "0B1"]]


def test_a_fused_slot_costs_what_its_own_stages_cost():
    schedule = ppsim.build("1f1b-overlap", devices=2, microbatches=4)
    overlap = [[2.5, 9], [9, 3.5]]
    run = ppsim.simulate(schedule, ppsim.Costs(forward=1, backward=2, overlap=overlap, per="stage"))
    lengths = run.end - run.start
    assert lengths.tolist() == [1, 1, 1, 2.5, 2, 2, 2, 1, 3.5, 3.5, 3.5, 2]


def test_without_a_fused_kernel_the_parts_run_in_the_order_written():
    costs = ppsim.Costs(forward=1, backward=2)
    for order, starts in (("f_b", [[2, 3], [5, 6]]), ("b_f", [[4, 2], [7, 5]])):
        run = ppsim.simulate(ppsim.build("interleaved-overlap", devices=1, microbatches=2, order=order), costs)
        rows = [run.schedule.label(row) for row in range(len(run.row_start))]
        at = dict(zip(rows, (2 * run.row_start).tolist(), strict=True))
        assert [[at["0F1"], at["1B0"]], [at["1F1"], at["0B0"]]] == starts


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"order": "backward"}, "order='backward' is not known; use one of: f_b, b_f"),
        ({"microbatches": 3}, "microbatches=3 with devices=4.*use 4 microbatches"),
        ({"microbatches": 9}, "microbatches=9 with group_size=4.*use 8 or 12 microbatches"),
        ({"group_size": 2}, "group_size=2 with devices=4, microbatches=8.*use 4"),
    ],
)
def test_refused_sizes_name_the_rule_and_the_nearest_legal_values(options, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        ppsim.build("interleaved-overlap", **{"devices": 4, "microbatches": 8, **options})
