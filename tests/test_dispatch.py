"""Dispatch "ready": lists as priorities, on both engines, within the memory of the lists, without deadlocks."""

import command_line
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import FAMILIES
from random_schedules import schedules
from timelines import actions

import ppsim
from ppsim.costs import Profile
from ppsim.engines.ready import ReadyModel
from ppsim.plan import make_choices

ENGINES = pytest.mark.parametrize("engine", ["event", "compiled"])
SPLIT = ppsim.Costs(input_grad=1, weight_grad=1)


def ready(schedule, costs=None, **options):
    return ppsim.simulate(schedule, costs, dispatch="ready", **options)


@ENGINES
def test_a_device_starts_what_is_ready_in_place_of_what_it_waits_for(engine):
    late = ppsim.Schedule.from_orders([["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"],
                                       ["1F0", "1F1", "1I1", "1I0", "1W0", "1W1"]])  # fmt: skip
    in_order = ppsim.simulate(late, SPLIT)
    assert actions(in_order)[0] == "0F0 0-1  0F1 1-2  0I0 5-6  0W0 6-7  0I1 7-8  0W1 8-9"
    chosen = ready(late, SPLIT, engine=engine)
    assert actions(chosen) == ["0F0 0-1  0F1 1-2  0I1 4-5  0I0 5-6  0W0 6-7  0W1 7-8",
                               "1F0 1-2  1F1 2-3  1I1 3-4  1I0 4-5  1W0 5-6  1W1 6-7"]  # fmt: skip
    assert chosen.plan.dispatch == "ready"
    assert chosen.engine == engine


@ENGINES
def test_what_takes_no_time_makes_another_round_at_the_same_moment(engine):
    lists = ppsim.Schedule.from_orders([["0F0", "0F1", "0B0", "0B1"], ["1F1", "1B1", "1F0", "1B0"]])
    chosen = ready(lists, ppsim.Costs(forward=[0, 1], backward=[0, 1], per="stage"), engine=engine)
    assert actions(chosen)[1] == "1F1 0-1  1B1 1-2  1F0 2-3  1B0 3-4"


def test_a_device_chooses_only_when_something_has_changed_for_it(monkeypatch):
    asked, first_ready = [], ReadyModel.first_ready
    monkeypatch.setattr(ReadyModel, "first_ready", lambda *arguments: asked.append(1) or first_ready(*arguments))
    schedule = ppsim.build("1f1b", devices=16, microbatches=16)
    ready(schedule, ppsim.Costs(forward=[1 + stage / 100 for stage in range(16)], backward=2.0), engine="event")
    assert len(asked) <= 2 * len(schedule)


@ENGINES
def test_a_limit_of_its_own_lets_forwards_run_ahead(engine):
    schedule = ppsim.build("1f1b", devices=4, microbatches=8)
    costs = ppsim.Costs(forward=1, backward=2, latency=1.5)
    own = ready(schedule, costs, engine=engine)
    assert own == ppsim.simulate(schedule, costs), "1F1B has no action to put first within its own memory"
    more = ready(schedule, costs, engine=engine, memory_limit=[7, 5, 3, 1])
    assert more.makespan < own.makespan
    assert (more.peak_activations <= [7, 5, 3, 1]).all()


@ENGINES
def test_what_has_room_starts_before_what_stands_earlier_and_has_none(engine):
    orders = ["0F0 0F1 2F0 2B0 0B0 0F2 2F1 2B1 0B1 2F2 2B2 0B2", "1F0 1F1 3F0 3B0 1B0 3F1 3B1 1B1 1F2 3F2 3B2 1B2"]
    schedule = ppsim.Schedule.from_orders([order.split() for order in orders])
    first_stage_is_large = Profile(devices=2, seconds={"F": [1.0] * 4, "B": [1.0, 1.0, 1.0, 4.0]}, layers=[3, 1, 1, 1])
    chosen = ready(schedule, first_stage_is_large, engine=engine, memory_limit=1 + 1 + 1 / 3 + 1 / 3)
    assert actions(chosen)[0].startswith(
        "0F0 0-1  0F1 1-2  2F0 2-3  2F1 3-4  2B0 8-9"
    )  # 0F2 would be a third whole one


@pytest.mark.parametrize("name", FAMILIES)
@ENGINES
def test_equal_costs_or_not_the_lists_that_ran_are_a_schedule_within_the_memory_of_the_old_ones(name, engine):
    if name in ("bpipe", "pipedream"):
        return
    schedule = ppsim.build(name, devices=4, microbatches=8)
    before = ppsim.simulate(schedule, SPLIT, jitter=ppsim.Jitter(actions=0.5))
    after = ready(schedule, SPLIT, jitter=ppsim.Jitter(actions=0.5), engine=engine)
    assert (after.peak_activations <= before.peak_activations + 1e-9).all()
    again = ppsim.Schedule.from_orders(after.schedule.orders(), slices=schedule.slices)
    again.validate()
    assert np.isclose(after.device_busy, before.device_busy).all()


@settings(deadline=None)
@given(
    st.one_of(schedules(), schedules(recompute=True)),
    st.lists(st.sampled_from([0.0, 0.5, 1.0, 2.0]), min_size=4, max_size=4),
    st.booleans(), st.sampled_from([0.0, 1.5, np.inf]), st.floats(0, 1), st.integers(0, 5),
)  # fmt: skip
def test_both_engines_choose_alike_and_no_choice_deadlocks(schedule, seconds, fused, more, part, seed):
    forward, inputs, weights, latency = seconds
    costs = ppsim.Costs(
        forward=forward, input_grad=inputs, weight_grad=weights, latency=latency, overlap=1.0 if fused else None,
        weight_grad_fraction_of_activation=part, input_fraction_of_activation=part,
    )  # fmt: skip
    noise = {"jitter": ppsim.Jitter(actions=0.3 * (seed % 2)), "seed": seed}
    try:
        listed = ppsim.simulate(schedule, costs, **noise)
    except ppsim.DeadlockError:
        return
    limit = listed.peak_activations + more
    event, compiled = (ready(schedule, costs, memory_limit=limit, engine=one, **noise) for one in ("event", "compiled"))
    assert event == compiled
    assert (event.peak_activations <= limit + 1e-9).all()


def test_the_times_of_the_run_are_those_of_the_moments_of_choice():
    schedule = ppsim.build("zb-v", devices=4, microbatches=8)
    listed = ppsim.simulate(schedule, SPLIT, jitter=ppsim.Jitter(actions=0.5, transfers=0.5))
    choices = make_choices(listed.plan, listed.table)
    model = ReadyModel(choices)
    order = model.run()
    run = ready(schedule, SPLIT, jitter=ppsim.Jitter(actions=0.5, transfers=0.5))
    assert np.array(model.start)[order].tolist() == run.start.tolist()


def test_samples_of_a_batch_choose_each_for_themselves():
    schedule, jitter = ppsim.build("zb-h1", devices=4, microbatches=16), ppsim.Jitter(actions=0.3)
    batch = ppsim.simulate_many(schedule, SPLIT, jitter=jitter, samples=3, dispatch="ready", memory_limit=6)
    one = ready(schedule, SPLIT, jitter=jitter, memory_limit=6)
    assert batch.makespan[0] == one.makespan
    listed = ppsim.simulate_many(schedule, SPLIT, jitter=jitter, samples=3)
    assert (batch.makespan < listed.makespan).all()


def test_samples_that_choose_other_orders_have_their_own_peaks():
    schedule, jitter = ppsim.build("zb-v", devices=4, microbatches=8), ppsim.Jitter(actions=0.3)
    batch = ppsim.simulate_many(schedule, SPLIT, jitter=jitter, samples=8, dispatch="ready", memory_limit=8)
    assert batch.peak_activations[0] == ready(schedule, SPLIT, jitter=jitter, memory_limit=8).peak_activations.max()
    assert len({*batch.peak_activations.tolist()}) > 1
    assert batch.peak_activations.max() <= 8


def test_reductions_and_optimizer_follow_the_order_that_ran():
    costs = ppsim.Costs(input_grad=1, weight_grad=1, reduce_grad=0.5, optimizer_step=1)
    schedule, jitter = ppsim.build("zb-h1", devices=4, microbatches=8), ppsim.Jitter(actions=0.4)
    runs = [ready(schedule, costs, optimizer="sync", jitter=jitter, engine=one) for one in ("event", "compiled")]
    assert runs[0] == runs[1]
    again = ppsim.simulate(runs[0].schedule, costs, optimizer="sync", jitter=jitter)
    assert again == runs[0]


@pytest.mark.parametrize(
    ("name", "options", "costs", "message"),
    [
        ("1f1b", {"transport": "rank"}, {}, "transport='rank'; use transport='async'"),
        ("bpipe", {}, {}, "evicted"),
        ("pipedream", {}, {}, "without a drain"),
        ("1f1b", {"memory_limit": 3}, {}, "device 0 itself holds 4 activations; give at least 4"),
        ("1f1b", {"memory_limit": [9, 9]}, {}, r"memory_limit=\[9, 9\] is not a limit for"),
        ("1f1b", {"memory_limit": "9"}, {}, "memory_limit='9' is not a limit for"),
        ("1f1b", {"dispatch": "soon"}, {}, "use one of: list, ready"),
        ("1f1b", {"dispatch": "list", "memory_limit": 5}, {}, "needs dispatch='ready'"),
    ],
)
def test_what_cannot_be_is_one_sentence(name, options, costs, message):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    with pytest.raises(ppsim.ConfigError, match=message):
        ppsim.simulate(schedule, ppsim.Costs(**costs), **{"dispatch": "ready", **options})


def test_places_of_unshards_are_places_of_lists():
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=4), sharded=True)
    with pytest.raises(ppsim.ConfigError, match="UNSHARDs"):
        ready(program, ppsim.Costs(unshard=0.1))


def test_the_command_says_what_it_gains_in_one_line_of_compare():
    sizes = ["--devices", "4", "--microbatches", "16", "--set", "jitter.actions=0.3", "--set", "memory_limit=6"]
    listed = command_line.ppsim("compare", *sizes, "--schedules", "zb-h1,zb-h1+ready", "-v").out.splitlines()
    assert [line.split()[1] for line in listed[3:5]] == ["zb-h1+ready", "zb-h1"]
    document = command_line.ppsim("simulate", *sizes, "--schedule", "zb-h1", "--dispatch", "ready", "--json", "-").out
    assert '"dispatch": "ready"' in document


@ENGINES
def test_slots_that_wait_for_each_other_are_a_deadlock(engine):
    # Device 1 needs the F1 of the slot of device 0, which needs the B0 of the slot of device 1.
    lists = ppsim.Schedule.from_orders([["0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"],
                                        ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])  # fmt: skip
    with pytest.raises(ppsim.DeadlockError, match="each waits for the next in a cycle") as caught:
        ready(lists, ppsim.Costs(overlap=2.5), engine=engine)
    assert caught.value.cycle == [
        "device 0 waits at 0B0 for 1B0 of device 1, which comes after 1F1",
        "device 1 waits at 1F1 for 0F1 of device 0, which shares a fused slot with 0B0",
    ]
