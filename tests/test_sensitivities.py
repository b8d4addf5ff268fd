"""Sensitivities: equal to what a run gains when a kind, stage, device or link takes a little longer."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from random_runs import ROUND_SECONDS, rerun, runs

import ppsim
from ppsim.actions import Kind
from ppsim.schedule import spans_devices

STEP = 1e-5


def gained(run, rows, column="seconds"):
    longer = getattr(run.plan, column) + STEP * rows
    return (rerun(run, **{column: longer}).makespan - run.makespan) / STEP


def gained_of_transfers(run):
    """Of all transfers and collectives; what one device does alone stays at 0."""
    plan, columns = run.plan, {"transfer_seconds": run.plan.transfer_seconds + STEP * run.plan.remote}
    if plan.barriers is not None:
        longer = plan.barriers.seconds + STEP * spans_devices(run.schedule, plan.barriers)
        columns["barriers"] = dataclasses.replace(plan.barriers, seconds=longer)
    return (rerun(run, **columns).makespan - run.makespan) / STEP


def gained_of_copies(run, kind):
    copies = run.plan.copies
    longer = copies.seconds + STEP * (copies.direction == (kind == "RELOAD"))
    return (rerun(run, copies=dataclasses.replace(copies, seconds=longer)).makespan - run.makespan) / STEP


@settings(max_examples=50)
@given(runs(ROUND_SECONDS))
def test_they_are_finite_differences_also_where_chains_are_equally_long(run):
    found, plan, schedule = run.sensitivities(), run.plan, run.schedule
    first = ~plan.fused
    slot = np.append(plan.fused[1:], False)
    for kind, value in found.kind.items():
        if kind == "transfer":
            difference = gained_of_transfers(run)
        elif kind in ("OFFLOAD", "RELOAD"):
            difference = gained_of_copies(run, kind)
        else:
            rows = slot if kind == "OVERLAP_F_B" else first & ~slot & (schedule.kind == Kind[kind])
            difference = gained(run, rows)
        assert difference == pytest.approx(value, abs=1e-4), kind
    for stage, value in enumerate(found.stage):
        mine = schedule.stage == stage
        rows = first & (mine | (slot & np.append(mine[1:], False)))
        assert gained(run, rows) == pytest.approx(value, abs=1e-4), stage
    for device, value in enumerate(found.device):
        assert gained(run, first & (schedule.device == device)) == pytest.approx(value, abs=1e-4), device
    for (sender, receiver), value in found.link.items():
        rows = plan.remote & (schedule.device[plan.source] == sender) & (schedule.device == receiver)
        assert gained(run, rows, "transfer_seconds") == pytest.approx(value, abs=1e-4), (sender, receiver)


def test_1f1b_pays_each_kind_m_plus_p_minus_1_times():
    found = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8)).sensitivities()
    assert found.kind == {"F": 11.0, "B": 11.0, "transfer": 2 * np.floor(3 * (8 + 4 - 1) / 4)}


def test_the_slow_stage_is_the_one_that_counts():
    costs = ppsim.Costs(forward=[1.0, 3.0, 1.0], backward=[2.0, 6.0, 2.0])
    found = ppsim.simulate(ppsim.build("1f1b", devices=3, microbatches=16), costs).sensitivities()
    assert found.stage.argmax() == found.device.argmax() == 1
    assert found.stage[1] == 2 * 16
    assert found.link.keys() == {(0, 1), (1, 2), (2, 1), (1, 0)}
