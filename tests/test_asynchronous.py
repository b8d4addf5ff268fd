"""PipeDream and PipeDream-2BW: no drain between iterations, paid for with versions of the weights."""

import pytest
from hypothesis import strategies as st

import ppsim

seconds = st.floats(0.1, 10)


def build(name, p, m, **options):
    return ppsim.build(name, devices=p, microbatches=m, **options)


def test_numbering_runs_on_over_the_iterations():
    schedule = build("pipedream", 2, 2, iterations=3)
    assert [" ".join(order) for order in schedule.orders()] == [
        "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0F4 0B3 0F5 0B4 0B5",
        "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3 1F4 1B4 1F5 1B5",
    ]
    assert schedule.iterations == 3


def test_the_slowest_stage_sets_the_pace_and_the_others_idle():
    costs = ppsim.Costs(forward=[1, 1, 2, 1], backward=[2, 2, 4, 2])
    run = ppsim.simulate(build("pipedream-2bw", 4, 8, iterations=20), costs)
    assert run.iteration_time == pytest.approx(8 * 6, rel=0.02)
    assert run.steady_bubble_fraction == pytest.approx(3 * 3 / (4 * 6), rel=0.02)


def test_a_schedule_that_drains_is_as_steady_as_its_iteration():
    run = ppsim.simulate(build("1f1b", 4, 8))
    assert (run.steady_bubble_fraction, run.iteration_time) == (run.bubble_fraction, run.makespan)


def test_weight_copies_of_schedules():
    assert build("pipedream", 4, 4).weight_copies.tolist() == [4, 3, 2, 1]
    assert build("pipedream-2bw", 4, 4).weight_copies.tolist() == [2] * 4
    assert build("dualpipe", 4, 8).weight_copies.tolist() == [2] * 4
    for name in ("1f1b", "dualpipe-v", "hanayo", "interleaved-1f1b", "bpipe"):
        assert build(name, 4, 8).weight_copies.tolist() == [1] * 4


def test_versions_multiply_the_weights_and_nothing_else():
    costs = ppsim.Costs(weight_bytes=2, gradient_bytes=4, optimizer_bytes=12)
    run = ppsim.simulate(build("pipedream", 3, 3), costs)
    assert run.static_memory.tolist() == [[6, 4, 2], [4, 4, 4], [12, 12, 12]]
    program = ppsim.simulate(ppsim.lower(build("pipedream", 3, 3)), costs, transport="directed")
    assert program.static_memory.tolist() == run.static_memory.tolist()


def test_by_default_there_are_as_many_iterations_as_show_a_steady_part():
    assert build("pipedream", 8, 2).iterations == 5
    assert build("pipedream", 4, 6).iterations == 3


@pytest.mark.parametrize(
    ("name", "p", "m", "iterations", "sentence"),
    [
        ("pipedream", 4, 8, 2, "iterations=2 with devices=4, microbatches=8.*use 3"),
        ("pipedream", 8, 1, 5, "iterations=5 with devices=8, microbatches=1.*use 10"),
        ("pipedream-2bw", 4, 3, None, "microbatches=3 with devices=4.*use at least 4 microbatches, or pipedream"),
        ("pipedream-2bw", 4, 4, 0, "iterations=0 must be a whole number of at least 1"),
        ("pipedream", 4, 4, 10**8, "iterations=100000000 makes more than"),
    ],
)
def test_refused_sizes_name_the_rule_and_the_nearest_legal_values(name, p, m, iterations, sentence):
    with pytest.raises(ppsim.BuildError, match=sentence):
        build(name, p, m, iterations=iterations)


def pace(name, reduce_grad, **options):
    costs = ppsim.Costs(forward=1, backward=2, reduce_grad=reduce_grad)
    return ppsim.simulate(build(name, 4, 8, **options), costs)


def test_each_iteration_reduces_the_gradients_of_each_stage():
    run = pace("pipedream", 5)
    after = run.plan.reductions.before - 1
    assert [run.schedule.label(row) for row in after[:3]] == ["0B7", "0B15", "0B23"]
    assert len(run.reductions) == 4 * 3
    assert run.reduce_start.tolist() == run.row_end[after].tolist()


def test_two_versions_hide_a_reduction_that_is_shorter_than_an_iteration():
    assert pace("pipedream-2bw", 5).iteration_time == 24


def test_an_iteration_is_no_shorter_than_its_reductions():
    run = pace("pipedream-2bw", 100)
    assert run.iteration_time == 100
    assert run.steady_bubble_fraction == 1 - 24 / 100


def test_a_reduction_before_the_next_use_of_the_only_version_is_never_hidden():
    # The last device has one version: its 8 (F + B), then the reduction, then the next iteration.
    assert pace("pipedream", 5).iteration_time == 24 + 5
    assert pace("pipedream", 100).iteration_time == 24 + 100


def test_two_versions_last_from_the_first_use_to_the_end_of_the_reduction():
    # Device 0 uses a version from its first forward to its last backward, (m + p - 1)(F + B) = 33 s.
    assert pace("pipedream-2bw", 20).iteration_time == (33 + 20) / 2
    assert pace("pipedream-2bw", 14).iteration_time == 24


def test_gathers_set_the_pace_where_they_take_longer_than_computing():
    program = ppsim.lower(build("pipedream-2bw", 4, 8), sharded=True)
    run = ppsim.simulate(program, ppsim.Costs(forward=1, backward=2, unshard=1000))
    assert run.iteration_time >= run.plan.gathers.seconds[run.plan.gathers.device == 0].sum() / 3
