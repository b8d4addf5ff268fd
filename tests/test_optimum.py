"""The exact optimum: what the solver proves, and that nothing of ours claims to beat it."""

import json

import pytest
from command_line import UNIT_COSTS, ppsim
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim as library
from ppsim.studies.optimum import optimum

UNITS = library.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
FAMILIES = ("gpipe", "1f1b", "eager-1f1b", "zb-h1", "zb-h2", "zb-auto")


@pytest.mark.parametrize(
    ("placement", "cap", "slots"),
    [("one", 2, 41), ("one", 3, 31), ("one", 4, 27), ("v", 2, 59), ("v", 3, 53), ("v", 4, 51)],
)
def test_four_devices_and_eight_microbatches_have_a_proven_optimum_under_every_cap(placement, cap, slots):
    """Slots of one stage. On a V the bound by counting proves all three; with one stage the solver does."""
    slot = 1 if placement == "one" else 2
    costs = library.Costs(forward=slot, input_grad=slot, weight_grad=slot)
    best = optimum(4, 8, costs, placement=placement, memory_limit=cap)
    assert (best.makespan, best.bound, best.proven, best.exact) == (slots, slots, True, True)
    assert best.run.peak_activations.max() <= cap


def test_a_placement_may_be_a_list_of_devices():
    best = optimum(2, 3, UNITS, placement=[0, 1, 0, 1], stages_per_device=2, memory_limit=1)
    assert best.proven
    assert best.run.schedule.num_stages == 4
    with pytest.raises(library.BuildError, match="placement='v' with stages_per_device=3"):
        optimum(2, 3, placement="v", stages_per_device=3)


def test_the_whole_backward_cannot_beat_1f1b():
    best = optimum(3, 5, library.Costs(forward=1.0, backward=2.0), memory_limit=3, split=False)
    assert best.proven
    assert best.makespan == (5 + 3 - 1) * 3.0


def test_a_cap_of_one_runs_the_microbatches_of_the_first_device_one_after_the_other():
    # A microbatch is held from its F on device 0 until its W there: down, back up, and the W.
    assert optimum(3, 3, memory_limit=1).makespan == 3 * (3 + 3 + 1)


def test_latency_is_paid_on_the_way_down_and_up():
    best = optimum(3, 1, library.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.25))
    assert best.makespan == 3 + 3 + 4 * 0.25 + 1


@pytest.mark.parametrize(("devices", "microbatches"), [(2, 4), (3, 2)])
@pytest.mark.parametrize(
    "costs",
    [
        UNITS,
        library.Costs(forward=[1.0, 1.7, 0.9], input_grad=[1.1, 2.0, 1.0], weight_grad=0.6, latency=0.13),
        library.Costs(forward=1 / 3, input_grad=0.41, weight_grad=0.2, weight_grad_fraction_of_activation=0.3),
    ],
    ids=["unit", "uneven", "fractions"],
)
def test_no_schedule_claims_less_than_the_proven_bound_under_its_own_peak(devices, microbatches, costs):
    if costs.latency:
        costs = library.Costs(
            forward=costs.forward[:devices], input_grad=costs.input_grad[:devices], weight_grad=0.6, latency=0.13
        )
    for family in FAMILIES:
        try:
            schedule = library.build(family, devices=devices, microbatches=microbatches)
        except library.PpsimError:
            continue  # the family does not exist at this size
        run = library.simulate(schedule, costs)
        split = "W" in "".join(map("".join, schedule.orders()))
        best = optimum(devices, microbatches, costs, memory_limit=float(run.peak_activations.max()), split=split)
        assert best.proven
        assert run.makespan >= best.bound * (1 - 1e-9)
        assert run.lower_bound().seconds <= run.makespan


@settings(max_examples=15)
@given(
    st.lists(st.floats(0.01, 3.0), min_size=3, max_size=3),
    st.lists(st.just(0.0) | st.floats(1e-9, 3.0), min_size=3, max_size=3),
    st.just(0.0) | st.floats(1e-9, 1.0),
    st.just(0.0) | st.floats(1e-9, 1.0),
)
def test_the_bound_is_never_above_what_the_schedule_found_takes_and_the_cap_holds(forward, weight, latency, fraction):
    costs = library.Costs(
        forward=forward, input_grad=forward[::-1], weight_grad=weight, latency=latency,
        weight_grad_fraction_of_activation=fraction,
    )  # fmt: skip
    best = optimum(3, 3, costs, memory_limit=2)
    best.run.schedule.validate()
    assert best.bound <= best.makespan
    assert best.makespan <= best.bound * (1 + 1e-3)
    assert best.run.peak_activations.max() <= 2 + 1e-5


def test_the_schedule_found_round_trips_through_csv(tmp_path):
    best = optimum(3, 4, memory_limit=2)
    best.run.schedule.to_csv(tmp_path / "best.csv")
    assert library.simulate(library.Schedule.from_csv(tmp_path / "best.csv"), UNITS).makespan == best.makespan


def test_time_that_ends_before_the_solvers_first_schedule_leaves_the_best_that_is_known():
    best = optimum(8, 24, memory_limit=5, time_limit=1e-6)
    best.run.schedule.validate()
    assert 3 * 24 <= best.bound <= best.makespan <= 1.1 * best.bound
    assert best.run.peak_activations.max() <= 5


def test_a_time_limit_keeps_the_best_so_far_with_its_bound():
    best = optimum(8, 24, memory_limit=5, time_limit=0.5)
    best.run.schedule.validate()
    assert best.bound <= best.makespan
    assert best.run.peak_activations.max() <= 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory_limit": 0.5}, "memory_limit=0.5 on device 0: .* use at least 1"),
        ({"memory_limit": float("nan")}, "memory_limit=nan must be a finite number above 0"),
        ({"time_limit": -1}, "time_limit=-1 must be a finite number above 0"),
        ({"time_limit": 10**400}, "time_limit=1000.* must be a finite number above 0"),
        ({"costs": library.Costs(forward=0.0, backward=0.0)}, "all times are 0"),
        ({"microbatches": 200}, "too many to solve exactly"),
        ({"microbatches": 0}, "microbatches"),
    ],
)
def test_what_cannot_be_solved_is_one_clear_error(options, message):
    arguments = {"devices": 4, "microbatches": 8} | options
    with pytest.raises(library.PpsimError, match=message):
        optimum(**arguments)


def test_the_command_proves_writes_and_prints(tmp_path):
    outcome = ppsim("optimum", UNIT_COSTS, "--memory-limit", 4, "--csv", tmp_path / "best.csv")
    assert outcome.status == 0
    assert outcome.out == (
        "27 s, proven shortest with 1 stage per device, at most 4 live activations per device; bubble 11.1 %\n"
        "zb-h1 reaches it; 1f1b takes 33 s\n"
    )
    document = json.loads(ppsim("optimum", UNIT_COSTS, "--memory-limit", 4, "--json", "-").out)
    assert (document["makespan"], document["bound"], document["proven"]) == (27.0, 27.0, True)
    run = library.simulate(library.Schedule.from_csv(tmp_path / "best.csv"), UNITS)
    assert run.makespan == 27.0


def test_the_command_needs_sizes_and_not_an_order(tmp_path):
    assert ppsim("optimum", "--devices", 2).status == 2
    assert "No such option: --dispatch" in ppsim("optimum", "--dispatch", "ready").err
    library.build("1f1b", devices=2, microbatches=2).to_csv(tmp_path / "order.csv")
    (tmp_path / "order.yaml").write_text("schedule:\n  csv: order.csv\n")
    outcome = ppsim("optimum", tmp_path / "order.yaml")
    assert outcome.status == 2
    assert "the optimum needs devices and microbatches" in outcome.err
