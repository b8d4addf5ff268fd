"""A timeline as a pandas table: one row an action, in the words of the schedule."""

import numpy as np

import ppsim


def test_a_row_is_an_action_with_its_start_and_end():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=1), engine="event")
    assert run.to_frame().values.tolist() == [
        [0, "0F0", "F", 0, 0, 0.0, 1.0],
        [0, "0B0", "B", 0, 0, 4.0, 6.0],
        [1, "1F0", "F", 1, 0, 1.0, 2.0],
        [1, "1B0", "B", 1, 0, 2.0, 4.0],
    ]


def test_a_fused_slot_is_one_row():
    run = ppsim.simulate(ppsim.build("dualpipe", devices=4, microbatches=8), ppsim.Costs(overlap=2.5))
    frame = run.to_frame()
    assert len(frame) == len(run.schedule) == len(run.start)
    fused = frame[frame.kind == "OVERLAP_F_B"]
    assert len(fused) == np.count_nonzero(run.schedule.joined) > 0
    assert np.allclose(fused.end - fused.start, 2.5)
    assert set(fused.stage) == set(fused.microbatch) == {-1}
    assert fused.action.str.fullmatch(r"\(\d[FB]\d;\d[FB]\d\)OVERLAP_F_B").all()


def test_busy_time_is_the_sum_of_the_rows_of_a_device():
    run = ppsim.simulate(ppsim.build("zb-v", devices=4, microbatches=8), ppsim.Costs(forward=1.5, latency=0.1))
    rows = run.to_frame()
    assert np.allclose((rows.end - rows.start).groupby(rows.device).sum(), run.device_busy)
