"""Critical path and slack: what a little more of one action does to the step."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import lengthened, runs

import ppsim


@settings(max_examples=80)
@given(runs(streams=True), st.data())
def test_lengthening_an_action_on_the_critical_path_lengthens_the_step_by_as_much(run, data):
    path = run.critical_path()
    action = data.draw(st.sampled_from(path.tolist()))
    row = np.flatnonzero(~run.schedule.joined)[action]
    untimed_slot = run.schedule.joined[row + 1 : row + 2].any() and not run.plan.fused[row + 1]
    if not untimed_slot:  # of two parts that run one after the other only one may be on the path
        d = data.draw(st.floats(1e-6, 2.0))
        assert lengthened(run, action, d).makespan - run.makespan == pytest.approx(d, rel=1e-9, abs=1e-12)


@settings(max_examples=80)
@given(runs(streams=True), st.data())
def test_an_action_can_grow_by_its_slack_and_no_more(run, data):
    slack = run.slack()
    action = data.draw(st.integers(0, len(slack) - 1))
    within = data.draw(st.floats(0.0, 0.999)) * slack[action]
    tolerance = 1e-9 * max(run.makespan, 1e-3)
    assert lengthened(run, action, within).makespan == pytest.approx(run.makespan, abs=tolerance)
    row = np.flatnonzero(~run.schedule.joined)[action]
    if not run.schedule.joined[row + 1 : row + 2].any():
        assert lengthened(run, action, slack[action] + 0.5).makespan - run.makespan == pytest.approx(0.5, abs=tolerance)


@settings(max_examples=60)
@given(runs())
def test_the_path_has_no_slack_and_its_actions_follow_each_other_from_first_to_last(run):
    path = run.critical_path()
    tolerance = 1e-9 * max(run.makespan, 1e-300)
    assert run.slack()[path].max() <= tolerance
    assert run.end[path[-1]] == run.device_end.max()
    assert run.start[path[0]] == run.device_start.min()
    if np.array_equal(run.plan.fused, run.schedule.joined):  # else the path may run through one part of a slot only
        assert (run.start[path[1:]] >= run.end[path[:-1]] - tolerance).all()


def test_of_1f1b_it_goes_down_once_stays_on_the_last_device_and_comes_up_once():
    run = ppsim.simulate(ppsim.build("1f1b", devices=3, microbatches=3))
    actions = [action for order in run.schedule.orders() for action in order]
    path = [actions[index] for index in run.critical_path()]
    assert path == ["0F0", "1F0", "2F0", "2B0", "2F1", "2B1", "2F2", "2B2", "1B2", "0B2"]


def test_slack_of_a_small_1f1b():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2))
    # device 0: F0 F1 . . B0 . B1; its second forward and its first backward may take longer.
    assert run.schedule.orders()[0] == ["0F0", "0F1", "0B0", "0B1"]
    assert run.slack().tolist() == [0, 2, 1, 0, 0, 0, 0, 0]


def test_the_path_runs_through_the_link_where_that_is_what_is_slow():
    costs = ppsim.Costs(forward=0.1, backward=0.1, latency=5.0)
    run = ppsim.simulate(ppsim.build("gpipe", devices=2, microbatches=4), costs, transport="directed")
    assert run.sensitivities().kind["transfer"] == 4 + 4  # four queue on the way down, then four on the way up


def test_a_chain_of_ten_thousand_actions_is_walked_without_recursion():
    run = ppsim.simulate(ppsim.build("1f1b", devices=1, microbatches=5_000))
    assert len(run.critical_path()) == 10_000
    assert run.slack().max() == 0.0


@pytest.mark.parametrize(("name", "step"), [("bpipe", 21.0), ("vocab-1f1b", 21.0), ("pipe-offload", 15.0)])
def test_the_path_of_a_schedule_with_moves_or_joint_work_fills_the_step(name, step):
    """(p - 1) * (F + B) before and after m * (F + B) on one device, or (p - 1) * F where B starts on device 0."""
    run = ppsim.simulate(ppsim.build(name, devices=4, microbatches=4), ppsim.Costs(forward=1, backward=2))
    path = run.critical_path()
    assert run.makespan == (run.end - run.start)[path].sum() == step
