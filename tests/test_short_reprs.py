"""Everything a user holds is shown in one short line by `repr`; `print` gives the rows of a result."""

import functools

import numpy as np
import pytest

import ppsim
from ppsim.interop.kineto import read_any_trace
from ppsim.studies import calibrate, evaluate

CONFIG = "configs/llama-3-8b-8xh100.yaml"
UNIT = "configs/unit-costs.yaml"
RECORDED = "validation/data/cpu/sleep/1f1b.json"
LONGEST = 200  # characters


@functools.cache
def held():
    """An object of each class that the public functions take or return, by name."""
    schedule = ppsim.build("1f1b", devices=4, microbatches=8)
    run = ppsim.simulate(schedule)
    config = ppsim.load_config(CONFIG)
    large = config.simulate()
    slow = dict.fromkeys(range(100), 1.2)
    sweep = ppsim.sweep(UNIT, over={"schedule.microbatches": [8, 16], "schedule.name": ["1f1b", "zb-h1"]}, workers=1)
    advice = ppsim.advise(UNIT)
    choice = ppsim.choose(CONFIG, free=["schedule.name"], only={"schedule.name": ["1f1b", "zb-h1"]}, workers=1)
    trace = read_any_trace(RECORDED)
    measured = ppsim.Timeline.from_trace(RECORDED)
    profile = calibrate([trace])
    explanation = ppsim.explain(measured)
    objects = [
        schedule, ppsim.lower(schedule), ppsim.schedules(), *ppsim.schedules().values(),
        run, large, measured, ppsim.simulate_many(schedule, samples=1), ppsim.Jitter(slow_devices=slow),
        run.ledger(), run.bubbles(), run.lower_bound(), large.lower_bound(), run.sensitivities(), large.memory(),
        run.fill(ppsim.FillItem(0.5)), ppsim.FillItem(0.5, name="encoder"),
        run.plan, run.table, run.costs, ppsim.Costs(forward=list(np.linspace(1.0, 2.0, 1024)), backward=2.0),
        config, config.costs, config.costs.model, config.costs.cluster, config.costs.cluster.device,
        config.costs.cluster.link, config.costs.layout, ppsim.Layout(recompute=["full"] * 100),
        ppsim.compare(UNIT, ["1f1b", "zb-h1"]), sweep, *sweep.points, advice, *advice.advice,
        choice, choice.best, *choice.ranked, *ppsim.what_fits(config), explanation, explanation.better,
        *explanation.slow, trace, profile, evaluate([trace], profile),
    ]  # fmt: skip
    return {f"{type(one).__name__}-{number}": one for number, one in enumerate(objects)}


def test_repr_and_str_of_all_objects_are_one_short_line_but_tables_print_their_rows():
    for name, one in held().items():
        assert len(repr(one)) <= LONGEST, name
        assert "\n" not in repr(one), name
        assert str(one) == repr(one) or hasattr(one, "to_latex"), name


def test_results_with_rows_print_them():
    points = ppsim.sweep(UNIT, over={"schedule.microbatches": [8, 16]}, workers=1)
    assert str(points).splitlines()[0].startswith("microbatches  iteration time (s)")
    assert [line.split()[0] for line in str(points).splitlines()[1:]] == ["8", "16"]
    assert str(ppsim.sweep(UNIT, over={"schedule.microbatches": range(8, 68)}, workers=1)).endswith("and 10 more")
    assert str(ppsim.compare(UNIT, ["1f1b", "zb-h1"])).splitlines()[-1].split() == ["1f1b", "33", "base", "27.3", "4"]
    assert str(ppsim.compare(UNIT, ["zb-h2:3"])) == "no schedule ran"
    assert str(ppsim.advise(UNIT)).splitlines()[1].split()[:3] == ["none", "33.0", "base"]


def test_every_public_class_is_among_them():
    classes = [getattr(ppsim, name) for name in ppsim.__all__ if isinstance(getattr(ppsim, name), type)]
    missing = [
        kind.__name__
        for kind in classes
        if not issubclass(kind, ppsim.PpsimError) and not any(type(one) is kind for one in held().values())
    ]
    assert missing == []


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (ppsim.Layout(tensor=2), "Layout(tensor=2)"),
        (ppsim.Costs(forward=[1.0] * 100, backward=2.0), "forward=[100 items], backward=2.0"),
        (ppsim.schedules()["1f1b"], "<Family 1f1b: 1F1B (PipeDream-Flush, DAPPLE)>"),
        (ppsim.Layout(recompute=["selective"] * 20), "Layout(recompute=[20 items])"),
    ],
)
def test_long_values_are_given_by_their_size(shown, text):
    assert text in repr(shown)


def test_a_summary_still_gives_the_page():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8))
    assert run.ledger().table().count("\n") > 5
    assert run.summary().count("\n") > 5
    assert ppsim.load_config(CONFIG).simulate().memory().summary().count("\n") == 11
