"""Facts about frameworks name schedules and policies that exist."""

import pytest

import ppsim
from ppsim.frameworks import POLICIES, SCHEDULES


@pytest.mark.parametrize("framework", SCHEDULES)
def test_a_framework_runs_schedules_that_are_families(framework):
    assert set(SCHEDULES[framework]) <= set(ppsim.schedules())


@pytest.mark.parametrize("framework", POLICIES)
def test_a_framework_sets_policies_that_a_layout_can_set_itself(framework):
    named = ppsim.Layout(framework=framework)
    for policy, value in POLICIES[framework].items():
        assert named.chosen(policy) == value
        assert ppsim.Layout(**{policy: value}).chosen(policy) == value
