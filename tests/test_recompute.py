"""R, a forward again: its text, its rules, its time in both engines and what devices hold meanwhile."""

import numpy as np
import pytest

import ppsim

TWO_DEVICES = [["0F0", "0F1", "0R0", "0B0", "0R1", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]


def test_lists_with_r_come_back_as_written(tmp_path):
    schedule = ppsim.Schedule.from_orders(TWO_DEVICES)
    schedule.validate()
    schedule.to_csv(tmp_path / "again.csv")
    assert schedule.orders() == ppsim.Schedule.from_csv(tmp_path / "again.csv").orders() == TWO_DEVICES
    assert ppsim.lower(schedule).schedule.orders() == TWO_DEVICES


def test_an_r_runs_while_its_gradient_is_on_its_way_and_is_as_long_as_the_forward():
    run = ppsim.simulate(ppsim.Schedule.from_orders(TWO_DEVICES), ppsim.Costs(forward=1, backward=2, latency=0.5))
    assert run.start.tolist() == [0, 1, 2, 5, 7, 8, 1.5, 2.5, 4.5, 5.5]
    assert run.end.tolist() == [1, 2, 3, 7, 8, 10, 2.5, 4.5, 5.5, 7.5]
    longer = ppsim.simulate(
        ppsim.Schedule.from_orders(TWO_DEVICES), ppsim.Costs(forward=1, backward=2, latency=0.5, recompute=1.75)
    )
    assert longer.end[2] - longer.start[2] == 1.75


def test_between_f_and_r_a_device_holds_the_stored_input_alone():
    def held(**costs):
        run = ppsim.simulate(ppsim.Schedule.from_orders(TWO_DEVICES), ppsim.Costs(forward=1, backward=2, **costs))
        times, levels = run.activations_over_time(0)
        return list(zip(times.tolist(), levels.tolist(), strict=True)), run.peak_activations.tolist()

    assert held() == ([(0, 0), (2, 1), (9, 0)], [1, 1])
    quarter, peaks = held(input_fraction_of_activation=0.25)
    assert quarter[:3] == [(0, 0.25), (1, 0.5), (2, 1.25)]
    assert peaks == [1.25, 1]


def test_memory_in_bytes_follows_the_stored_input():
    costs = ppsim.Costs(activation_bytes=100.0, weight_bytes=1.0, input_fraction_of_activation=0.1)
    run = ppsim.simulate(ppsim.Schedule.from_orders(TWO_DEVICES), costs)
    assert run.peak_memory.tolist() == [1 + 110, 1 + 100]


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        ([["0R0", "0F0", "0B0"]], "R repeats a forward, so it follows it"),
        ([["0F0", "0B0", "0R0"]], "a backward follows the R of its microbatch"),
        ([["0F0", "0I0", "0R0", "0W0"]], "a backward follows the R of its microbatch"),
        ([["0F0", "0R0", "0R0", "0B0"]], "0R0 appears twice"),
        (
            [["0F0", "0B0"], ["0R0", "1F0", "1B0"]],
            "0R0 on device 1: all actions of one stage and microbatch run on one device",
        ),
    ],
)
def test_an_r_stands_once_between_its_forward_and_its_backward(orders, sentence):
    with pytest.raises(ppsim.ScheduleError) as caught:
        ppsim.Schedule.from_orders(orders).validate()
    assert sentence in str(caught.value)


def test_what_pytorch_cannot_run_is_named():
    with pytest.raises(ppsim.ScheduleError, match=r"0R0.*PyTorch's pipeline runtime knows no R"):
        ppsim.Schedule.from_orders(TWO_DEVICES).check(pytorch=True)


def test_a_deadlock_beside_an_r_is_told_as_a_cycle():
    orders = [["0F0", "0R0", "0B0", "0F1", "0B1"], ["1F1", "1R1", "1B1", "1F0", "1B0"]]
    with pytest.raises(ppsim.DeadlockError) as caught:
        ppsim.Schedule.from_orders(orders).validate()
    assert len(caught.value.cycle) == 2


def test_idle_time_beside_r_has_a_cause_and_blames_the_r_of_other_devices():
    orders = [["0F0", "0B0"], ["1F0", "1R0", "1B0"]]
    run = ppsim.simulate(ppsim.Schedule.from_orders(orders), ppsim.Costs(forward=1, backward=2))
    assert np.allclose(run.ledger().total, run.device_idle)
    assert run.ledger()["recompute"].tolist() == [1, 0]
    assert "R" in {kind for _, kind, _ in run.ledger().blame.of(0)}
    assert run.sensitivities().kind["R"] == 1
