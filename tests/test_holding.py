"""Amounts that a row adds to its device and frees, by kind, in activations of one microbatch."""

import pytest

import ppsim
from ppsim.plan import ActivationMemory

WHOLE = (["0F0", "0B0"], {})
SPLIT = (["0F0", "0I0", "0W0"], {"weight_grad_fraction_of_activation": 0.25})
RECOMPUTED = (["0F0", "0R0", "0B0"], {"input_fraction_of_activation": 0.125})
UNEQUAL = (["0F0", "0F1", "0B0", "0B1"], {"microbatch_scale": [2.0, 0.5]})


@pytest.mark.parametrize(
    ("case", "adds", "frees", "peak"),
    [
        (WHOLE, [1, 0], [0, 1], 1),
        (SPLIT, [1, 0, 0], [0, 0.75, 0.25], 1),
        (RECOMPUTED, [0.125, 0.875, 0], [0, 0, 1], 1),
        (UNEQUAL, [2, 0.5, 0, 0], [0, 0, 2, 0.5], 2.5),
    ],
)
def test_what_rows_add_and_free_makes_the_peak(case, adds, frees, peak):
    rows, costs = case
    schedule = ppsim.Schedule.from_orders([rows])
    run = ppsim.simulate(schedule, ppsim.Costs(**costs))
    holding = ActivationMemory(schedule, run.table, run.table.stage_share)
    assert [column.tolist() for column in holding.changes()] == [adds, frees]
    assert holding.peaks().tolist() == run.peak_activations.tolist() == [peak]
