"""The interval of a derived step, and the table and page that it comes from."""

import json
import re
from dataclasses import replace

import accuracy_runs
import make_accuracy_docs
import pytest
from command_line import LLAMA, ppsim
from matplotlib.text import Text
from published import published_runs, refused_runs
from published_memory import published_peaks

import ppsim as library
from ppsim.base.units import seconds_text
from ppsim.costs import DEVICES, order_error
from ppsim.costs.spread import DENSE, PER_DOUBLING, TABLE, class_of, doublings_beyond, scales, spread_of

CLASSES = json.loads(TABLE.read_text(encoding="utf-8"))["classes"]


@pytest.fixture(scope="module")
def llama():
    return library.load_config(LLAMA)


def ends_of(run):
    return " to ".join(f"{end:.3g} s" for end in run.interval)


def test_a_derived_step_lies_between_the_ends_of_its_class(llama):
    run = llama.simulate()
    row = CLASSES["dense on H100"]
    wider = PER_DOUBLING ** doublings_beyond(scales(llama.costs, 8), row["measured"])
    assert run.interval == pytest.approx((run.makespan * row["low"] / wider, run.makespan * row["high"] * wider))
    document = run.to_dict()
    assert document["interval"] == list(run.interval)
    assert [document["quantiles"][name] for name in ("P5", "P95")] == document["interval"]
    assert document["quantiles"]["P50"] == pytest.approx(run.makespan * row["middle"])
    spread = f"spread of {row['runs']} published runs of its class, dense on H100"
    words = " ".join(run.summary(verbose=True, costs=True).split())
    assert f"90 % interval of the step: {ends_of(run)} (derived costs: {spread}" in words


def texts_of(figure):
    return {text.get_text() for text in figure.findobj(Text)}


def test_given_costs_have_no_interval(llama):
    schedule = library.build("1f1b", devices=4, microbatches=8)
    run = library.simulate(schedule)
    assert run.interval is None
    assert run.to_dict()["interval"] is run.to_dict()["quantiles"] is None
    assert not any("90 %" in text for text in texts_of(run.plot()))
    assert "90 % interval" not in run.summary(verbose=True, costs=True)
    assert library.simulate(schedule, replace(llama.costs, given={"forward": 0.1})).interval is None
    assert library.simulate(schedule, replace(llama.costs, given={"latency": 1e-6})).interval is not None


def test_charts_say_the_interval_beside_the_makespan(llama, tmp_path):
    run = llama.simulate()
    words = "90 % of real steps: " + " to ".join(seconds_text(bound, 2) for bound in run.interval)
    assert any(words in text for text in texts_of(run.plot()))
    chart = tmp_path / "run.svg"
    assert ppsim("simulate", LLAMA, "--gantt", chart).status == 0
    assert words in " ".join(re.sub("<[^>]*>", " ", chart.read_text(encoding="utf-8")).split())


def test_an_order_is_certain_where_steps_lie_further_apart_than_published_pairs_lie_from_their_prediction(llama):
    _, apart, pairs = order_error("schedules")
    assert 1 < apart < 1.2
    assert pairs > 15
    found = library.compare(llama, ["zb-h1", "1f1b", "gpipe"])
    steps = [run.makespan for run in found.timelines]
    near = [run.schedule.name for run in found.timelines[1:] if run.makespan < steps[0] * apart]
    assert found.as_fast() == near
    assert found.slower() == [["1f1b", "gpipe"], [], []]
    said = " ".join(ppsim("compare", LLAMA, "--schedules", "zb-h1,1f1b,gpipe", "-v").out.split())
    assert "certain: all others are slower than the first" in said


def test_the_factor_of_an_order_is_of_pairs_of_schedules_within_a_sweep():
    runs = [
        replace(priced(ratio, "one"), sweep=sweep, schedule=name)
        for ratio, sweep, name in ((1.0, "a", "x"), (1.1, "a", "y"), (1.0, "b", "x"), (3.0, "b", "x"), (9.0, "c", "y"))
    ]
    assert accuracy_runs.order_of_schedules(runs) == {"middle": 1.1, "apart": 1.1, "pairs": 1}


def test_the_command_prints_the_interval():
    low, high = json.loads(ppsim("simulate", LLAMA, "--json", "-").out)["interval"]
    assert 0 < low < high
    assert f"90 % interval {low:.2g} s to {high:.2g} s; " in ppsim("simulate", LLAMA).out


def test_a_run_belongs_to_the_first_class_that_fits(llama):
    costs = llama.costs
    sharded = replace(costs, layout=replace(costs.layout, sharded=True, data=8))
    experts = replace(costs.model, experts=8, experts_per_token=2)
    assert class_of(costs, 8) == class_of(sharded, 8) == "dense on H100"
    assert class_of(sharded, 1) == "FSDP without pipeline"
    assert class_of(replace(sharded, model=replace(costs.model, hidden=2048)), 1) == "small (hidden up to 2048)"
    assert class_of(replace(sharded, model=experts), 1) == "mixture of experts"
    for name, group in {"A100 SXM": 0, "H200 SXM": 1, "MI300X": 1, "B200 SXM": 2}.items():
        other = replace(costs, cluster=replace(costs.cluster, device=DEVICES[name]))
        assert class_of(other, 8) == list(DENSE)[group]


def test_each_doubling_beyond_what_was_measured_widens_both_ends(llama):
    row = CLASSES["dense on H100"]
    most, layout = row["measured"]["gpus"][1], replace(llama.costs.layout, context=2)
    inside, outside = (
        spread_of(replace(llama.costs, layout=replace(layout, data=int(times * most / 16))), 8) for times in (1, 4)
    )
    assert (inside.low, inside.high, inside.doublings) == (row["low"], row["high"], 0)
    assert outside.source.endswith("published runs of its class, dense on H100")
    assert outside.doublings == pytest.approx(2)
    assert outside.low == pytest.approx(row["low"] / PER_DOUBLING**2)
    assert outside.high == pytest.approx(row["high"] * PER_DOUBLING**2)


def test_a_run_is_compared_by_its_work_on_one_gpu(llama):
    layout = replace(llama.costs.layout, tensor=2, data=4, microbatch_size=3)
    block = llama.costs.model.layers[1]
    assert scales(replace(llama.costs, layout=layout), 8) == {
        "hidden": 4096, "block_flops": block.forward * 3 / 2, "gpus": 64, "peak": 989e12,
    }  # fmt: skip


def priced(ratio, source, group="a"):
    return accuracy_runs.Priced("", source, ratio, 1.0, group, dict.fromkeys(accuracy_runs.DIMENSIONS, 1.0))


def test_each_source_of_a_class_weighs_the_same():
    many = [priced(1.0, "many")] * 97 + [priced(4.0, "few")] * 3
    low, _, high = accuracy_runs.percentiles(many)["a"]
    assert (low, high) == pytest.approx((1.0, 4.0))


def test_a_class_of_few_sources_lies_nearer_to_the_average_class():
    runs = [
        priced(scale * (1 + step / 50), f"{step}", group) for group, scale in (("a", 1), ("b", 2)) for step in range(9)
    ]
    middles = accuracy_runs.percentiles([*runs, priced(2.1, "one", "c")], [0.5])
    assert middles["a"] < middles["c"] < middles["b"]


def test_a_class_whose_sources_lie_further_apart_has_a_wider_interval():
    runs = [priced(ratio, str(ratio)) for ratio in (0.5, 1.0, 2.0)]
    runs += [priced(ratio, str(ratio), "b") for ratio in (0.9, 1.0, 1 / 0.9)]
    wide, narrow = (accuracy_runs.percentiles(runs)[group] for group in "ab")
    assert wide[0] < narrow[0] < 1 < narrow[2] < wide[2]


def test_a_left_out_source_is_inside_the_interval_of_the_others_if_it_is_like_them():
    runs = [priced(1 + number / 100, str(number)) for number in range(-5, 6)]
    far = [*runs, priced(9.0, "far"), priced(1.0, "far")]
    inside = accuracy_runs.left_out(far, (0.5, 1.0))
    assert inside["a", "0"] == pytest.approx([1, 1])
    assert inside["a", "far"] == pytest.approx([0.5, 0.5])


def test_an_interval_is_wider_beyond_the_runs_and_for_another_framework():
    known = [priced(ratio, str(ratio)) for ratio in (0.9, 1.0, 1.1)]
    edge = float(accuracy_runs.percentiles(known)["a"][-1])
    further = replace(priced(edge * 1.05, "new"), scales=dict.fromkeys(accuracy_runs.DIMENSIONS, 2.0))
    for new in (further, replace(priced(edge * 1.05, "new"), framework="other")):
        assert accuracy_runs.contained(known, [new]) == {("a", "new"): [True]}
    assert accuracy_runs.contained(known, [priced(edge * 1.05, "new")]) == {("a", "new"): [False]}


def test_the_page_has_every_tenth_run_as_it_is_priced():
    left_out = accuracy_runs.left_out_constants()
    page = [*make_accuracy_docs.PAGES][-1].read_text(encoding="utf-8")
    for run in published_runs()[::10]:
        made = accuracy_runs.priced(run, left_out)
        assert (
            f"| {run.name} | {made.group} | {seconds_text(made.measured, 3)} | {seconds_text(made.predicted, 3)} | "
            in page
        )


@pytest.mark.slow
def test_pages_and_table_are_what_the_script_writes():
    runs, refused = accuracy_runs.priced_runs(), refused_runs()
    table = accuracy_runs.spread_table([*accuracy_runs.out_of_view_runs(last=False), *accuracy_runs.out_of_view_runs()])
    order = accuracy_runs.orders(runs)
    assert TABLE.read_text(encoding="utf-8") == accuracy_runs.table_text(table, order)
    for path, page in make_accuracy_docs.pages(runs, refused, table, published_peaks()).items():
        assert path.read_text(encoding="utf-8") == page
