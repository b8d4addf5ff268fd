"""The registry: every family by name, what it says about itself, and how it refuses sizes and options."""

import itertools
import re
from contextlib import suppress

import make_schedule_docs
import numpy as np
import pytest
from command_line import UNIT_COSTS
from command_line import ppsim as command
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import SLOW_TO_BUILD
from strategies import things
from test_closed_forms import OPTIONS, check_with_simulations

import ppsim
from ppsim import BuildError, ConfigError, ScheduleError
from ppsim.families import registry
from ppsim.schedule import backward_run, concatenate, forward_run
from ppsim.studies.space import search_space

FAMILIES = list(ppsim.schedules())
SEARCHED = ("zb-1p", "zb-2p", "zb-auto", "auto")  # built by search, slower and with costs of their own
QUEUED = ((1, 2), (2, 3), (2, 4), (3, 6), (4, 2), (4, 8), (5, 10), (6, 12))  # devices, microbatches
names = st.sampled_from([name for name in FAMILIES if name not in SEARCHED])


def test_the_classic_families_come_first_and_in_the_order_of_their_history():
    assert FAMILIES[:8] == [
        "naive", "gpipe", "looped-bfs", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2",
    ]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_tells_what_it_is_where_it_holds_and_who_says_so(name):
    family = ppsim.schedules()[name]
    assert family.name == name
    assert list(family.describe()) == [
        "name", "title", "idea", "constraints", "makespan", "peak_activations", "source",
    ]  # fmt: skip
    assert all(len(text) > 1 for text in family.describe().values())
    assert family.idea.endswith(".")
    assert family.description == f"{family.title}. {family.idea}"
    assert family.makespan in family.formula
    assert family.peak_activations in family.formula
    assert re.search(r"\d{4}|\w+/\w+\.py", family.source), "a source has a year, an arXiv number or a file"
    assert name in family._repr_html_()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SEARCHED])
def test_every_family_builds_a_valid_schedule_of_its_name(name):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    assert schedule.name == name
    assert schedule.devices == 4
    ppsim.Schedule.from_orders(schedule.orders(), slices=schedule.slices).validate()


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in SLOW_TO_BUILD])
def test_every_family_runs_under_queued_transfers_with_any_option(name):
    family, run = ppsim.schedules()[name], 0
    for sizes, options in itertools.product(
        QUEUED, [{}, *({key: OPTIONS[key][-1]} for key in family.options if key in OPTIONS)]
    ):
        with suppress(BuildError):
            ppsim.simulate(family.build(*sizes, **options), ppsim.Costs(latency=0.1, overlap=2.5), transport="directed")
            run += 1
    assert run


@pytest.fixture
def families_for_now(monkeypatch):
    monkeypatch.setattr(registry, "_FAMILIES", registry.families())


FORGETFUL = {
    "a backward": (lambda p, m: [forward_run(0, np.arange(m)), forward_run(1, np.arange(m))], "the backward of 0F0"),
    "a device": (lambda p, m: [concatenate(forward_run(0, 0), backward_run(0, 0)), forward_run(0, [])], "device 1"),
    "an order": (lambda p, m: [concatenate(backward_run(0, 0), forward_run(0, 0))], "comes before 0F0"),
    "its inputs": (
        lambda p, m: [concatenate(forward_run([1, 0], 0), backward_run([1, 0], 0))],
        "waits at 1F0 for 0F0",
    ),
    "where numbers begin": (
        lambda p, m: [concatenate(forward_run(0, [-1, 0]), backward_run(0, [-1, 0]))],
        "names microbatch -1",
    ),
}


@pytest.mark.parametrize("microbatches", [1, 30_000])
@pytest.mark.parametrize("forgotten", FORGETFUL)
def test_what_a_family_makes_is_validated(forgotten, microbatches, families_for_now):
    make, fault = FORGETFUL[forgotten]
    registry.family("forgetful", title="", idea="", makespan="", peak_activations="", source="")(
        lambda devices, microbatches, stages_per_device: make(devices, microbatches)
    )
    with pytest.raises(ScheduleError, match=fault):
        ppsim.build("forgetful", devices=2, microbatches=microbatches)


def turns(devices, microbatches):
    numbers = np.arange(microbatches)
    return [concatenate(forward_run(r, numbers), backward_run(r, numbers)) for r in range(devices)]


@pytest.mark.parametrize(
    ("make", "fault"),
    [
        (
            lambda p, m: turns(p + 1, m),
            "made a schedule of 3 devices and 4 microbatches; devices=2, microbatches=4 were",
        ),
        (
            lambda p, m: turns(p, m - 1),
            "made a schedule of 2 devices and 3 microbatches; devices=2, microbatches=4 were",
        ),
        (lambda p, m: None, "gave None; it must give one Block a device"),
        (lambda p, m: [["0F0", "0B0"]], r"gave \['0F0', '0B0'\]; it must give one Block a device"),
    ],
)
def test_a_family_makes_what_was_asked_for(make, fault, families_for_now):
    registry.family("other", title="", idea="", makespan="", peak_activations="", source="")(lambda p, m, v: make(p, m))
    with pytest.raises(ScheduleError, match=f"^other: the generator {fault}"):
        ppsim.build("other", devices=2, microbatches=4)


@pytest.fixture
def two_by_two(families_for_now):
    @registry.family(
        "two-by-two", title="Two by two", idea="Two F, then their B.", makespan="= (m/2)(p+1)(F+B) for m mod 2 = 0",
        peak_activations="= min(m, 2)", source="This test, 2026",
    )  # fmt: skip
    def pairs(p, m, v):
        for r in range(p):
            turns = (np.arange(first, min(first + 2, m)) for first in range(0, m, 2))
            yield concatenate(*(run(r, turn) for turn in turns for run in (forward_run, backward_run)))

    return pairs


def test_a_family_added_to_the_registry_is_seen_everywhere(two_by_two):
    lists = ppsim.build("two-by-two", devices=1, microbatches=4).orders()
    assert " ".join(lists[0]) == "0F0 0F1 0B0 0B1 0F2 0F3 0B2 0B3"
    assert "two-by-two" in command("list").out
    assert "This test, 2026" in command("list", "two-by-two").out
    assert "step         60.0 s" in command("simulate", UNIT_COSTS, "--schedule", "two-by-two").out
    runs = ppsim.compare({"schedule": {"name": "1f1b", "devices": 2, "microbatches": 4}}).timelines
    assert "two-by-two" in [run.schedule.name for run in runs]
    steps = [one.step for one in ppsim.advise(UNIT_COSTS, research=True).advice if one.what == "two-by-two"]
    assert steps == [60.0]
    assert "two-by-two" in search_space(UNIT_COSTS, ["schedule.name"], research=True).values["schedule.name"]
    family = ppsim.schedules()["two-by-two"]
    assert "= (m/2)(p+1)(F+B)" in make_schedule_docs.section(family, make_schedule_docs.simulated(family))
    check_with_simulations(family)


def test_whole_numbers_of_any_type_are_sizes():
    same = ppsim.build("1f1b", devices=np.int64(4), microbatches=np.uint8(8), stages_per_device=np.int32(1))
    assert same == ppsim.build("1f1b", devices=4, microbatches=8)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"devices": 0}, "devices=0 must be a whole number of at least 1"),
        ({"devices": -4}, "devices=-4 must be a whole number of at least 1"),
        ({"devices": 2.0}, "devices=2.0 must be a whole number of at least 1"),
        ({"devices": "4"}, "devices='4' must be a whole number of at least"),
        ({"devices": None}, "devices=None must be a whole number of at least"),
        ({"devices": True}, "devices=True must be a whole number of at least"),
        ({"devices": int}, "devices=<class 'int'> must be a whole number of at least"),
        ({"devices": 10**30}, "is too large; use at most 16384"),
        ({"microbatches": 0}, "microbatches=0 must be a whole number of at least 1"),
        ({"microbatches": float("nan")}, "microbatches=nan must be a whole number of at least"),
        ({"microbatches": 10**12}, f"microbatches=1000000000000 is too large; use at most {registry.MAX_NUMBERED}"),
        ({"microbatches": 10**5000}, f"is too large; use at most {registry.MAX_NUMBERED}"),
        (
            {"microbatches": 10**8},
            f"devices=4 x microbatches=100000000 x stages_per_device=1 makes more than {registry.max_actions()} "
            "actions: 800000000 need about 51.2 GB to build and simulate, and this machine has",
        ),
        ({"stages_per_device": 0}, "stages_per_device=0 must be a whole number of at least 1"),
        ({"stages_per_device": 2}, "1f1b: stages_per_device=2 is not allowed; each device runs 1 stage of this"),
        ({"colour": "red"}, "1f1b: unknown option 'colour'; the options of this schedule are: none"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_refused_size_is_told_with_its_rule_and_a_legal_value(sizes, sentence):
    with pytest.raises(BuildError) as caught:
        ppsim.build("1f1b", **{"devices": 4, "microbatches": 8, **sizes})
    assert sentence in str(caught.value)


def test_the_most_actions_are_those_that_memory_holds(monkeypatch):
    monkeypatch.setattr(registry, "memory_bytes", lambda: 64 * registry.BYTES_AN_ACTION)
    assert len(ppsim.build("1f1b", devices=4, microbatches=8)) == 64
    with pytest.raises(BuildError, match=r"72 need about 4\.608 kB to build .*has 4\.096 kB"):
        ppsim.build("1f1b", devices=4, microbatches=9)


def test_with_memory_enough_the_most_actions_are_those_that_columns_number(monkeypatch):
    monkeypatch.setattr(registry, "memory_bytes", lambda: 2**50)
    with pytest.raises(BuildError, match=r"makes more than 536870912 actions: no schedule can number as many"):
        ppsim.build("1f1b", devices=4, microbatches=2**27)


def test_a_refusal_is_both_a_schedule_error_and_a_wrong_call():
    assert issubclass(BuildError, ScheduleError)
    assert issubclass(BuildError, ConfigError)


@pytest.mark.parametrize(
    ("name", "near"), [("1f1", "1f1b"), ("zbh1", "zb-h1"), ("GPipe", "gpipe"), ("interleaved", "interleaved-1f1b")]
)
def test_an_unknown_name_is_answered_with_the_nearest(name, near):
    with pytest.raises(BuildError, match=f"^unknown schedule '{name}'; did you mean .*{near}"):
        ppsim.build(name, devices=2, microbatches=2)


def test_a_name_near_to_none_is_answered_with_all():
    names = re.escape(", ".join(FAMILIES))
    with pytest.raises(BuildError, match=r"a file of lists is given as schedule.csv, such as schedule.csv=mine.csv$"):
        ppsim.build("mine.csv", devices=2, microbatches=2)
    with pytest.raises(BuildError, match=rf"^unknown schedule 'nope'; the names are: {names}; `ppsim list`"):
        ppsim.build("nope", devices=2, microbatches=2)


def test_an_unknown_option_is_answered_with_the_known():
    with pytest.raises(
        BuildError, match="unknown option 'group'; the options of this schedule are: grouping, group_size"
    ):
        ppsim.build("interleaved-1f1b", devices=2, microbatches=2, group=1)
    with pytest.raises(BuildError, match="grouping='rows' is not known; use one of: megatron, torch, spread"):
        ppsim.build("interleaved-1f1b", devices=2, microbatches=2, grouping="rows")
    with pytest.raises(BuildError, match="backward_order='up' is not known; use one of: fifo, lifo"):
        ppsim.build("gpipe", devices=2, microbatches=2, backward_order="up")
    with pytest.raises(BuildError, match="slices=None must be a whole number of at least 1"):
        ppsim.build("seq1f1b", devices=2, microbatches=2, slices=None)
    with pytest.raises(BuildError, match="search='no' must be true or false"):
        ppsim.build("v-half", devices=2, microbatches=2, search="no")


@given(names | things, things, things, st.none() | things)
def test_only_ppsim_errors_leave_build_whatever_the_sizes(name, devices, microbatches, stages_per_device):
    with suppress(ppsim.PpsimError):
        # Small numbers are legal; only what is odd matters here.
        ppsim.build(name, devices=devices, microbatches=microbatches, stages_per_device=stages_per_device)


@settings(max_examples=150)
@given(st.data())
def test_only_ppsim_errors_leave_build_whatever_the_options(data):
    family = ppsim.schedules()[data.draw(names)]
    options = {name: data.draw(things) for name in data.draw(st.sets(st.sampled_from([*family.options, "other"])))}
    with suppress(ppsim.PpsimError):
        ppsim.build(family.name, devices=2, microbatches=4, **options)


@given(names, st.integers(1, 9), st.integers(1, 20))
def test_a_size_is_built_whole_or_refused_with_a_legal_value(name, p, m):
    refusal = ""
    try:
        schedule = ppsim.build(name, devices=p, microbatches=m)
    except BuildError as error:
        refusal = str(error)
    if refusal:
        assert "use " in refusal
        return
    assert schedule.devices == p
    assert schedule.microbatches == m * schedule.slices * schedule.iterations
    ppsim.Schedule.from_orders(schedule.orders(), slices=schedule.slices).validate()


@pytest.mark.parametrize(
    ("name", "p", "m", "sentence"),
    [
        ("chimera", 5, 10, "devices=5 is odd.*use 4 or 6 devices"),
        ("chimera", 1, 1, "devices=1 is odd.*use 2 devices"),
        ("chimera", 4, 10, "microbatches=10 with devices=4.*multiple of 4: 8 or 12"),
        ("chimera", 4, 3, "microbatches=3 with devices=4.*multiple of 4: 4"),
        ("dualpipe", 3, 8, "devices=3 is odd.*use 2 or 4 devices, or dualpipe-v"),
        ("dualpipe", 1, 8, "devices=1 is odd.*use 2 devices, or dualpipe-v"),
        ("dualpipe", 4, 6, "microbatches=6 with devices=4.*use at least 8"),
        ("dualpipe", 4, 9, "microbatches=9 is odd.*use 8 or 10 microbatches"),
        ("dualpipe-v", 3, 5, "microbatches=5 with devices=3.*use at least 6"),
    ],
)
def test_refused_sizes_name_the_rule_and_the_nearest_legal_values(name, p, m, sentence):
    with pytest.raises(BuildError, match=sentence):
        ppsim.build(name, devices=p, microbatches=m)
