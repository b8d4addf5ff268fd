"""PipeOffload's grouped interleaved schedule by slots: its authors' lists, idle slots and activations."""

import pytest

import ppsim

UNIT = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, per="stage")


def build(p, m, v, g):
    return ppsim.build("gis", devices=p, microbatches=m, stages_per_device=v, group_size=g)


def simulate(p, m, v, g, **options):
    return ppsim.simulate(build(p, m, v, g), UNIT, **options)


def test_groups_of_one_on_two_devices():
    assert [" ".join(order) for order in build(2, 3, 2, 1).orders()] == [
        "0F0 2F0 0F1 2I0 2W0 2F1 0I0 0W0 0F2 2I1 2W1 2F2 0I1 0W1 2I2 2W2 0I2 0W2",
        "1F0 3F0 3I0 3W0 1F1 1I0 1W0 3F1 3I1 3W1 1F2 1I1 1W1 3F2 3I2 3W2 1I2 1W2",
    ]


@pytest.mark.parametrize(
    ("m", "v", "g", "idle", "peaks"),
    [(16, 2, 4, 18, (12, 5)), (16, 2, 8, 14, (16, 9)), (16, 2, 1, 23, (13, 6)), (32, 5, 4, 30, (24, 17)),
     (32, 5, 8, 14, (40, 33))],
)  # fmt: skip
def test_eight_devices_idle_and_hold_what_the_makers_lists_do(m, v, g, idle, peaks):
    run = simulate(8, m, v, g)
    assert run.makespan - run.device_busy.max() == idle
    assert run.peak_activations * v == pytest.approx(range(peaks[0], peaks[1] - 1, -1))


def test_the_default_group_is_one_microbatch_a_device():
    assert ppsim.build("gis", devices=4, microbatches=8) == build(4, 8, 2, 4)


def test_a_group_larger_than_the_pipeline_is_refused_with_the_nearest_size():
    with pytest.raises(ppsim.BuildError, match=r"gis: group_size=6 with devices=5.* from 1 to devices; use 5"):
        build(5, 10, 2, 6)
