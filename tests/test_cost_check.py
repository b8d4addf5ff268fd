"""The one check of what a cost model gives: shape, numbers and sums of every column, and lengths that overflow."""

import json
from dataclasses import replace

import numpy as np
import pytest

import ppsim

SCHEDULE = ppsim.build("1f1b", devices=2, microbatches=2)
COSTS = ppsim.Costs(forward=1, backward=2, unshard=1, reduce_grad=1, optimizer_step=1)
ENGINES = pytest.mark.parametrize("engine", ["event", "compiled"])


class Given:
    """A cost model that returns one table for every schedule."""

    def __init__(self, **columns):
        self.columns = columns

    def table(self, schedule):
        return replace(COSTS.table(schedule), **self.columns)


def refusal(**columns):
    with pytest.raises(ppsim.CostError) as caught:
        ppsim.simulate(SCHEDULE, Given(**columns))
    return str(caught.value)


def test_a_table_of_the_wrong_shape_is_refused_and_not_misread():
    message = refusal(seconds=COSTS.table(SCHEDULE).seconds[:, :1])
    for part in ("seconds is of shape (4, 1)", "(4, 2)", "np.full((4, 2), 1.0)"):
        assert part in message


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("overlap", (2, 2)), ("latency", (2, 2)), ("seconds_per_byte", (2, 2)), ("transfer_bytes", (2, 2)),
        ("stage_share", (2,)), ("weight_grad_fraction", (2,)), ("activation_bytes", (2,)), ("state_bytes", (3, 2)),
        ("exchange_seconds", (4, 2)), ("recompute_bytes", (2,)), ("unshard_seconds", (2,)), ("reduce_seconds", (2,)),
        ("optimizer_seconds", (2,)), ("overhead", (4, 2)), ("slice_fraction", (1,)), ("seconds", (4, 2)),
    ],
)  # fmt: skip
def test_every_column_is_checked_for_shape_type_and_numbers(name, shape):
    assert f"{name} is of shape (7,)" in refusal(**{name: np.ones(7)})
    assert f"{name} is of shape {shape} and type int64" in refusal(**{name: np.ones(shape, np.int64)})
    assert f"{name} is [1.0]" in refusal(**{name: [1.0]})
    for number in (-1.0, np.nan, np.inf):
        column = np.ones(shape)
        column.flat[-1] = number
        place = [size - 1 for size in shape]
        assert f"{name}{place} is {number:g}, and must be a finite number of at least 0" in refusal(**{name: column})


def test_fractions_lie_from_0_to_1_and_slices_sum_to_1():
    assert "weight_grad_fraction[1] is 1.5" in refusal(weight_grad_fraction=np.array([1.0, 1.5]))
    assert "slice_fraction sums to 0.5" in refusal(slice_fraction=np.array([0.5]))


@pytest.mark.parametrize("name", ["offload_latency", "offload_seconds_per_byte"])
@pytest.mark.parametrize("value", [None, "x", [1.0], np.ones(2), -1.0, np.nan, np.inf])
def test_a_number_of_all_stages_is_a_number(name, value):
    assert f"{name}={value!r} must be a finite number of at least 0" in refusal(**{name: value})


def test_a_workload_is_one_and_holds_numbers():
    assert "workload is 'llama', and must be a ppsim.costs.table.Workload" in refusal(workload="llama")
    workload = ppsim.load_config("configs/llama-3-8b-8xh100.yaml").simulate().table.workload
    assert "workload.gpus=0 must be a finite number above 0" in refusal(workload=replace(workload, gpus=0))


def test_a_model_that_gives_no_table_is_refused():
    class Wrong:
        def table(self, schedule):
            return {"forward": 1.0}

    with pytest.raises(ppsim.CostError, match="CostTable"):
        ppsim.simulate(SCHEDULE, Wrong())


@ENGINES
def test_a_negative_time_is_refused_in_both_engines_and_in_batches(engine):
    negative = COSTS.table(SCHEDULE).seconds.copy()
    negative[0, 1] = -1.0
    with pytest.raises(ppsim.CostError, match=r"seconds\[0, 1\] is -1"):
        ppsim.simulate(SCHEDULE, Given(seconds=negative), engine=engine)
    with pytest.raises(ppsim.CostError, match=r"seconds\[0, 1\] is -1"):
        ppsim.simulate_many(SCHEDULE, [COSTS, Given(seconds=negative)], engine=engine)
    with pytest.raises(ppsim.CostError, match=r"seconds\[0, 1\] is -1"):
        ppsim.build("zb-auto", devices=2, microbatches=2, costs=Given(seconds=negative))


@ENGINES
@pytest.mark.parametrize("optimizer", [None, "sync"])
def test_lengths_that_overflow_are_refused(engine, optimizer):
    huge = np.full((4, 2), 1e308)
    with pytest.raises(ppsim.CostError, match="the actions of schedule '1f1b' take inf s together"):
        ppsim.simulate(SCHEDULE, Given(seconds=huge), engine=engine, optimizer=optimizer)
    with pytest.raises(ppsim.CostError, match="the gradient reductions of schedule '1f1b' take inf s"):
        ppsim.simulate(SCHEDULE, Given(reduce_seconds=huge[0]), engine=engine, optimizer=optimizer)
    with pytest.raises(ppsim.CostError, match="take a finite time"):
        ppsim.simulate(SCHEDULE, Given(latency=np.full((2, 2), 1e308)), engine=engine, optimizer=optimizer)


def test_noise_that_makes_lengths_overflow_is_refused():
    jitter = ppsim.Jitter(slow_devices={0: 1e300})
    long = Given(seconds=np.full((4, 2), 1e10))
    with pytest.raises(ppsim.CostError, match="less jitter"):
        ppsim.simulate(SCHEDULE, long, jitter=jitter)
    with pytest.raises(ppsim.CostError, match="less jitter"):
        ppsim.simulate_many(SCHEDULE, long, jitter=jitter)


@ENGINES
@pytest.mark.parametrize(
    ("times", "what"),
    [
        ({"forward": 1e-300, "backward": 1e-300, "latency": 1e10}, "actions"),
        ({"latency": 1e-101}, "transfers"),
        ({"optimizer_step": 5e-324}, "optimizer steps"),
    ],
)
def test_a_time_too_short_for_finite_ratios_is_refused(engine, times, what):
    costs = ppsim.Costs(**times)
    for call in (ppsim.simulate, ppsim.simulate_many):
        with pytest.raises(ppsim.CostError, match=f"one of the {what} .* a time must be 0 or at least 1e-100 s"):
            call(SCHEDULE, costs, engine=engine, optimizer="sync")


def test_times_of_any_legal_size_give_finite_measures():
    for forward, latency in ((1e-99, 1e100), (1e100, 1e-99), (0.0, 1e-100), (1e-99, 0.0)):
        run = ppsim.simulate(SCHEDULE, ppsim.Costs(forward=forward, backward=forward, latency=latency))
        json.dumps(run.to_dict(), allow_nan=False)
