"""On small random spaces choose finds what simulating every point finds: ranking, ties, front and counts."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from test_choose import NAMES, SMALL

import ppsim
from ppsim.analysis import ScheduleSummary
from ppsim.costs import DerivedCosts, straggler_seconds
from ppsim.search import balanced_within
from ppsim.studies import Candidate
from ppsim.studies.space import search_space

FAMILIES = [name for name, family in ppsim.schedules().items() if "costs" not in family.options]
ASYNCHRONOUS = [name for name in FAMILIES if ppsim.schedules()[name].asynchronous]
TOP = 4
IDEA = ("layout.tensor", "schedule.devices", "schedule.name", "layout.recompute")


@some.composite
def models(draw):
    """A few layers whose embedding, head and prediction modules weigh as much as blocks do."""
    experts = draw(some.sampled_from([{}, {}, {"experts": 4, "experts_per_token": 2}]))
    return {
        "num_layers": draw(some.integers(3, 9)), "hidden": 512, "heads": 4, "sequence": 2048, "ffn": 1024,
        "vocabulary": draw(some.sampled_from([1000, 50000])), "prediction_layers": draw(some.integers(0, 1)),
        "attention": draw(some.sampled_from(["full", "flash"])), **experts,
    }  # fmt: skip


@some.composite
def cases(draw):
    """A config, the values of its free keys, and the part of the memory to keep free."""
    asynchronous = draw(some.booleans())
    names = draw(some.lists(some.sampled_from(FAMILIES), min_size=2, max_size=4, unique=True))
    if asynchronous:
        names.append(draw(some.sampled_from(ASYNCHRONOUS)))
    config = {
        "model": draw(models()),
        "hardware": {
            "device": {"like": "H100 SXM", "memory": draw(some.sampled_from(["1 GB", "2 GB", "80 GB"]))},
            "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 2,
            "gpus": draw(some.sampled_from([2, 4])),
        },
        "batch": draw(some.sampled_from([8, 16])),
        "layout": {"overlap": draw(some.booleans())},
        "transport": draw(some.sampled_from(["async", "directed", "pair", "rank"])),
        "optimizer": None if asynchronous else draw(some.sampled_from(["sync", "post-validated", None])),
    }  # fmt: skip
    slow = draw(some.sampled_from([None, None, {0: 0.5}, {0: 1.5}]))
    if slow is not None:
        config["jitter"] = {"slow_devices": slow}
    free = {
        "schedule.name": names,
        "schedule.devices": draw(some.sampled_from([[2], [1, 2], [2, 4]])),
        "schedule.stages_per_device": [2, 3],
        "layout.tensor": draw(some.sampled_from([[1], [1, 2]])),
        "layout.recompute": draw(
            some.sampled_from([["none"], ["none", "full"], ["selective", "none"], ["full", "selective"]])
        ),
        "layout.sharding": draw(some.sampled_from([["none", "optimizer"], ["none", "weights", "optimizer"]])),
        "layout.partition": draw(some.sampled_from([["even"], ["even", "balanced"], ["by_cost(greedy)", "balanced"]])),
    }
    return {key: part for key, part in config.items() if part is not None}, free, draw(some.sampled_from([0, 0.3, 0.7]))


RUNS = {}  # of points that several cases share


def simulated(config, changes):
    key = repr((config.data, changes))
    if key not in RUNS:
        RUNS[key] = config.changed(changes).simulate()
    return RUNS[key]


def every_point(config, free, headroom, asynchronous, certain):
    """All points that fit, in the order of their steps."""
    space = search_space(config, free, asynchronous=asynchronous)
    costs = space.config.costs
    assert isinstance(costs, DerivedCosts)
    limit = costs.cluster.device.capacity * (1 - headroom)
    fitting = []
    for layout in space.layouts():
        for chosen in space.schedules(layout["schedule.devices"], combined=space.combines(layout)):
            strings = set()
            for partition in space.partitions:
                changes = {**layout, **chosen, "layout.partition": "even" if partition == "balanced" else partition}
                try:
                    case = space.config.changed(changes)
                    if partition == "balanced":
                        assert isinstance(case.costs, DerivedCosts)
                        built = case.build()
                        string = balanced_within(case.costs, ScheduleSummary.of(built), limit)
                        if str(string) in strings:
                            continue  # the even one, which is a point already
                        changes["layout.partition"] = str(string)
                    run = simulated(space.config, changes)
                except ppsim.PpsimError:
                    continue
                if partition == "even":
                    strings.add(run.layout_string)
                assert run.peak_memory is not None
                if run.peak_memory.max() <= limit:
                    measures = {"iteration_time": run.iteration_time, "peak_memory": float(run.peak_memory.max())}
                    sizes = layout["schedule.devices"], layout["schedule.microbatches"]
                    lost = 0.0 if certain else straggler_seconds(run.costs, *sizes)
                    fitting.append(Candidate(changes, measures, stragglers=lost))
    return sorted(fitting, key=lambda one: (one.step, one.memory))


def agree(config, free, headroom, asynchronous, certain=False):
    """Hold what choose finds to every point."""
    every = every_point(config, free, headroom, asynchronous, certain)
    found = ppsim.choose(config, free, headroom=headroom, asynchronous=asynchronous, top=TOP, certain=certain)
    ideas: dict[tuple[str, ...], list[Candidate]] = {}
    for one in sorted(every, key=lambda one: one.rank):
        ideas.setdefault(tuple(str(one.changes.get(key)) for key in IDEA), []).append(one)
    wanted = []
    for variants in [*ideas.values()][:TOP]:
        near = [one for one in variants if one.expected <= variants[0].expected * 1.01]
        simplest = min(near, key=lambda one: one.rank[1:])
        wanted.append((simplest.changes, simplest.step, len(near) - 1))
    ranked = sorted(found.ranked, key=lambda one: wanted.index((one.changes, one.step, one.alike)))
    assert [(one.changes, one.step, one.alike) for one in ranked] == wanted
    front = [one for number, one in enumerate(every) if all(one.memory < other.memory for other in every[:number])]
    assert [(one.step, one.memory) for one in found.front] == [(one.step, one.memory) for one in front]
    assert found.counts["points"] == sum(number for name, number in found.counts.items() if name != "points")
    return every, found


@settings(max_examples=8, deadline=None)
@given(cases())
def test_the_answer_is_that_of_simulating_every_point_of_a_random_space(case):
    agree(*case, asynchronous=True)


@pytest.mark.parametrize(("headroom", "certain"), [(0.0, True), (0.5, False), (0.75, False)])
def test_the_answer_is_that_of_simulating_every_point_and_simulates_fewer(headroom, certain):
    free = {
        "schedule.name": NAMES, "schedule.devices": [1, 2, 4, 8], "layout.tensor": [1, 2, 4],
        "layout.sharding": ["none", "optimizer", "weights"], "schedule.stages_per_device": [2, 3],
        "layout.partition": ["even", "by_cost(greedy)"],
    }  # fmt: skip
    every, found = agree(SMALL, free, headroom, False, certain)
    assert found.counts["simulated"] < len(every)
