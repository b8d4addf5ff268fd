"""Advise: every single change simulated, best first, with the cause that it removes."""

import functools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import CONFIGS, LLAMA, UNIT_COSTS
from command_line import ppsim as run_ppsim

import ppsim
from ppsim.config import as_config, value_at
from ppsim.costs import order_error
from ppsim.studies import failed_device_losses, slow_device_losses

GPT_3 = ppsim.load_config(CONFIGS / "gpt-3-175b-64xa100.yaml", overrides={"schedule.microbatches": 16}).data


@functools.cache
def advice(*headroom, config=LLAMA):
    return ppsim.advise(config, *headroom)


@functools.cache
def page():
    return run_ppsim("advise", LLAMA).out.splitlines()


def test_the_head_on_the_last_stage_is_named_and_moving_blocks_away_helps_most_of_one_schedule():
    found = ppsim.advise(LLAMA, headroom=0, research=True)  # that partition leaves less than a tenth of the memory free
    schedule = next(
        one for one in found.advice if one.kind == "schedules" and "schedule.stages_per_device" not in one.changes
    )
    assert schedule.changes["schedule.name"] == "vocab-1f1b"  # which cuts the head over the devices
    first = next(one for one in found.advice if one.idea == "layers")
    assert first.removes is not None
    assert first.removes.startswith("imbalance")
    words = " ".join(run_ppsim("advise", LLAMA, "--headroom", "0").out.split())  # the reasons are wrapped
    assert "device 7 computes 46 % longer than the average device" in words
    assert "layers fastest by simulation" in words


@pytest.mark.parametrize("config", [LLAMA, UNIT_COSTS, GPT_3], ids=["derived", "given", "nodes"])
def test_a_change_gives_the_step_that_is_promised(config):
    found = ppsim.advise(config) if config is GPT_3 else advice(config=config)
    for one in found.advice[:3]:
        assert found.config.changed(one.changes).simulate().iteration_time == one.step
        assert one.step - found.run.iteration_time == pytest.approx(one.step_difference)


def test_the_best_come_first_and_what_does_not_fit_last():
    found = advice(0.3)
    keys = [(one.kind == "hardware", one.fits is False, one.step) for one in found.advice]
    assert keys == sorted(keys)
    assert {one.fits for one in found.advice} == {True, False}
    assert len(found.to_frame()) == len(found.advice)


def test_a_notebook_shows_the_changes_that_help_with_units():
    found = advice()
    table, first = found._repr_html_(), found.better[0]
    assert (round(first.step, 3), round(first.memory / 1e9, 2)) == (3.673, 73.15)
    assert re.findall("<th[^>]*>([^<]*)</th>", table) == ["change", "step (s)", "vs now (%)", "peak (GB)", "removes"]
    assert re.findall("<td[^>]*>([^<]*)</td>", table)[2] == "base"
    assert ">3.67</td>" in table
    assert ">73.1</td>" in table
    assert table.count("<tr>") == 2 + len(found.better)


def test_the_document_lists_every_change():
    document = json.loads(run_ppsim("advise", LLAMA, "--json", "-").out)
    assert document["schema"] == "ppsim.advise/1"
    assert {"what", "changes", "step", "step_difference", "peak", "fits", "removes"} <= document["advice"][0].keys()


def test_flags_do_instead_of_a_config():
    outcome = run_ppsim("advise", "--schedule", "1f1b", "--devices", "4", "--microbatches", "8")
    assert outcome.status == 0
    assert outcome.out.startswith("interleaved-zb x4: 33.0 s -> 24.8 s (-25 %)")


def test_an_executor_gives_the_same_advice_and_the_chart_has_a_bar_a_change_that_helps():
    here = advice(config=UNIT_COSTS)
    with ThreadPoolExecutor(2) as threads:
        there = ppsim.advise(UNIT_COSTS, executor=threads)
    assert (here.advice, here.refused) == (there.advice, there.refused)
    axes = here.plot().axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [one.words for one in here.better[: len(names)]]
    assert axes.patches[0].get_width() == pytest.approx(100 * here.better[0].step_difference / here.run.iteration_time)


def test_advice_offers_schedules_that_a_framework_launches_in_the_layout():
    """zb-v comes without the overlaps that Primus rejects, and not with fewer microbatches than its lists need."""
    few = ppsim.load_config(LLAMA).changed({"schedule.microbatches": 14})
    for config, names in ((LLAMA, {"interleaved-1f1b", "zb-h1", "zb-v"}), (few, {"interleaved-1f1b", "zb-h1"})):
        found = ppsim.advise(config)
        offered = [one for one in found.advice if one.kind == "schedules"]
        assert {one.changes.get("schedule.name") for one in offered} == names
        for one in offered:
            runner = "Primus" if one.changes["schedule.name"].startswith("zb") else "Megatron-LM"
            assert ppsim.to_launch(found.config.changed(one.changes), runner)


def test_advice_begins_with_what_the_framework_of_the_config_runs():
    case = ["advise", LLAMA, "--set", "schedule.microbatches=16", "--set", "layout.framework=megatron-core"]
    lines = run_ppsim(*case, "--set", "model.vocabulary=32000").out.splitlines()
    rows = [line for line in lines if line.endswith((" P", " P *", "T   *"))]
    others = [line.endswith("*") for line in rows]
    assert others == sorted(others), "schedules of other frameworks come below"
    assert True in others
    assert any(line.startswith("* Megatron-LM does not run it") for line in lines)


def test_only_a_verbose_page_has_flags_longer_than_a_line():
    """torchtitan names every layer of uneven stages."""
    titan = ["--set=layout.framework=torchtitan", "--set=layout.partition=[1,3,5,5,5,5,5,3]"]
    short, whole = (run_ppsim("advise", LLAMA, *titan, *more).out for more in ([], ["-v"]))
    assert max(map(len, short.splitlines())) <= 100
    assert max(map(len, whole.splitlines())) > 100
    assert "--parallelism.module_fqns_per_model_part ..." in short


def test_where_the_config_does_not_fit_what_makes_it_fit_helps():
    found = advice(0.3)  # 62.2 of 56 GB
    assert found.fits is False
    fitting = [one for one in found.advice if one.fits and one.kind != "hardware"]
    first = {one.idea: one for one in reversed(fitting)}
    assert sorted(found.better, key=lambda one: one.what) == sorted(first.values(), key=lambda one: one.what)
    assert max(one.step_difference for one in found.better) > 0


def test_what_fits_keeps_a_schedule_that_the_framework_does_not_run_and_takes_no_more_than_twice_as_long():
    own = {"schedule.name": "dualpipe", "layout.framework": "megatron-core"}
    found = ppsim.advise(ppsim.load_config(LLAMA, overrides=own))
    assert found.fits is False
    assert not any(found.needs_other(one) for one in found.better if "schedule.name" not in one.changes)
    steps = [one.step for one in found.better]
    assert max(steps) <= 2 * min(steps)


def test_the_page_says_that_the_config_does_not_fit():
    tight, nothing = (run_ppsim("advise", LLAMA, "--headroom", part).out.splitlines() for part in ("30%", "99%"))
    assert tight[0] == "does not fit: 62.2 GB of 59.5 GB usable (tight)"
    assert "fits: 5.14 s -> " in tight[1]
    assert nothing[0] == "does not fit: 5.14 s, 62.2 GB of 0.849 GB usable (tight); no single change makes it fit"
    assert "does not fit" not in page()[0]


@pytest.mark.parametrize("headroom", [1, -0.1, "x", True])
def test_a_headroom_is_a_part_from_0_to_below_1(headroom):
    with pytest.raises(ppsim.ConfigError, match="must be a fraction from 0 to below 1, such as 0\\.1"):
        ppsim.advise(LLAMA, headroom)


def test_every_change_says_what_its_stages_hold():
    found = advice()
    strings = {one.what: one.layout_string for one in found.advice}
    assert strings["zb-v"] == "Et*2|(t*2|)*14t*2L"
    assert strings["recompute full"] == found.run.layout_string == "Et*4|(t*4|)*6t*4L"


def test_of_a_framework_only_the_schedules_that_it_runs_are_tried():
    found = ppsim.advise(LLAMA, framework="Megatron-LM")
    tried = {one.changes.get("schedule.name") for one in found.advice} | {None}
    assert tried == {None, "interleaved-1f1b"}
    with pytest.raises(ppsim.ConfigError, match="framework='DeepSpeed' is not known; use one of: Megatron-LM"):
        ppsim.advise(LLAMA, framework="DeepSpeed")


def test_of_all_schedules_those_that_a_framework_runs_are_tried_unless_research_is_asked_for():
    names, more = (
        {one.changes.get("schedule.name") for one in ppsim.advise(UNIT_COSTS, research=wanted).advice}
        for wanted in (False, True)
    )
    assert "zb-v" in names
    assert "vocab-1f1b" not in names
    assert more >= names | {"vocab-1f1b", "chimera"}


def gpus_and_batch(config):
    layout, schedule = config.costs.layout, config.schedule
    return layout.gpus_per_device * schedule["devices"], schedule["microbatches"] * layout.microbatch_size * layout.data


def test_lists_of_ones_own_are_compared_with_families_of_their_size(tmp_path):
    ppsim.build("zb-h1", devices=4, microbatches=8).to_csv(tmp_path / "mine.csv")
    job = tmp_path / "job.yaml"
    job.write_text("schedule: {csv: mine.csv}\ncosts: {forward: 1.0, backward: 2.0}\n")
    faster = next(one for one in ppsim.advise(job).advice if one.what == "zb-v")
    # ZB-H1 takes m(F+B) + (p-1)F, ZB-V half of that fill
    assert (faster.step, faster.step_difference) == (25.5, -1.5)
    assert ppsim.load_config(job).changed(faster.changes).simulate().makespan == 25.5
    for command in ("simulate", "what-if"):
        assert run_ppsim(command, job, "--schedule", "zb-v").status == 0
    outcome = run_ppsim("simulate", job, "--schedule", "zb-v", "--set", "schedule.microbatches=16", "--json", "-")
    assert json.loads(outcome.out)["makespan"] == 49.5
    assert "schedule.csv fixes the schedule" in run_ppsim("choose", job).err


def test_each_change_keeps_the_gpus_and_the_batch():
    config = as_config(GPT_3)
    kinds, job = set(), gpus_and_batch(config)
    for change in ppsim.advise(config, framework="Megatron-LM").advice:
        assert gpus_and_batch(config.changed(change.changes)) == job, change
        assert all(value != value_at(config.data, key) for key, value in change.changes.items())
        kinds.add(change.kind)
    assert kinds == {"schedules", "layouts", "options", "hardware"}


def test_modules_that_the_model_lacks_are_not_recomputed():
    names = {one.what for one in advice().advice}
    assert {"recompute norms", "recompute norms+mlp"} <= names
    assert not names & {"recompute latent", "recompute selective"}


@pytest.mark.parametrize(("framework", "offered"), [("megatron-core", True), ("torchtitan", False)])
def test_a_router_is_fused_where_the_framework_has_a_flag(framework, offered):
    layout = {"framework": framework, "expert": 2, "data": 2}
    model = {**GPT_3["model"], "num_layers": 4, "experts": 8, "experts_per_token": 2}
    data = {**GPT_3, "model": model, "layout": layout, "schedule": {"name": "1f1b", "devices": 2, "microbatches": 4}}
    data["hardware"] = {key: value for key, value in GPT_3["hardware"].items() if key != "gpus"}
    found = {one.what: one for one in ppsim.advise(data).advice}
    assert ("router fused" in found) is offered
    assert "recompute norms+mlp" not in found  # a model whose blocks all have experts has no other MLP
    assert not offered or found["router fused"].changes == {"layout.fused_router": True}


def test_a_gain_that_published_pairs_leave_uncertain_is_no_advice():
    found = advice()
    step = found.run.iteration_time
    for one in found.advice:
        if one.kind != "hardware":
            assert found.is_certain(one) == (one.step * order_error(one.kind).middle < step)
    assert all(found.is_certain(one) for one in found.better)
    assert len({one.idea for one in found.better}) == len(found.better)
    given = advice(config=UNIT_COSTS)  # given costs are no prediction
    assert all(given.is_certain(one) == (one.step_difference < 0) for one in given.advice)


def test_the_page_fits_a_terminal_and_verbose_shows_every_change_with_its_keys():
    assert len(page()) <= 24
    assert max(map(len, page())) <= 100
    assert page()[:2] == [
        "PP 8 -> 2, DP 1 -> 4: 5.14 s -> 3.67 s (-29 %)",
        "  memory 62.2 GB -> 73.1 GB of 76.4 GB usable",
    ]
    more = run_ppsim("advise", LLAMA, "-v").out
    assert "--set layout.recompute=full" in more
    assert len(more.splitlines()) > 40


@pytest.mark.parametrize(("partition", "letters"), [("Ett|ttmL", "M P"), ("Ett|ttmLL", "")])
def test_frameworks_are_offered_for_the_losses_and_modules_that_their_parsers_take(partition, letters, tmp_path):
    config = {
        "model": {"num_layers": 4, "hidden": 256, "heads": 4, "vocabulary": 1024, "sequence": 256,
                  "prediction_layers": 1},
        "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
        "layout": {"framework": "megatron-core", "partition": partition},
        "schedule": {"name": "1f1b", "devices": 2, "microbatches": 4},
    }  # fmt: skip
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(config))
    lines = run_ppsim("choose", path, "--free", "layout.recompute=none").out.splitlines()
    row = next(line for line in lines if line.startswith("1 "))
    assert [word for word in row.split() if word in ("M", "T", "P")] == letters.split()
    if "M" in letters:
        assert "--pipeline-model-parallel-layout" in ppsim.to_launch(config, "Megatron-LM")
    else:
        with pytest.raises(ppsim.ConfigError, match="its parser takes one L"):
            ppsim.to_launch(config, "Megatron-LM")


def test_other_stages_than_the_bars_of_a_pattern_give_are_tried_with_balanced_layers():
    config = as_config({
        "model": {"num_layers": 16, "hidden": 1024, "heads": 16, "vocabulary": 1000, "sequence": 512,
                  "pattern": "M-M-|M-*-|M-M-|*-M-", "state_heads": 32, "state_head_size": 64, "state_size": 128},
        "hardware": {"device": "H100 SXM", "link": "NVLink 4"},
        "layout": {"data": 2},
        "schedule": {"name": "1f1b", "devices": 4, "microbatches": 8},
    })  # fmt: skip
    with pytest.raises(ppsim.CostError, match=r"bars of model\.pattern make 4 stages, but the schedule has 2; make 2"):
        config.changed({"schedule.devices": 2}).simulate()
    changes = [one.changes for one in ppsim.advise(config).advice]
    assert {"schedule.devices": 2, "layout.tensor": 2, "layout.sequence_parallel": True,
            "layout.partition": "balanced"} in changes  # fmt: skip
    assert any(one.get("schedule.name") == "interleaved-1f1b" for one in changes)


@pytest.mark.parametrize("partition", ["even", [4] * 6 + [3] * 2])
def test_stages_that_do_not_divide_the_layers_come_with_the_best_partition_of_them(partition):
    config = ppsim.load_config(LLAMA).changed({"model.num_layers": 30, "layout.partition": partition})
    found = {one.what: one for one in ppsim.advise(config, headroom=0).advice}
    steps = {
        name: [
            config.changed({**found[name].changes, "layout.partition": cut}).simulate().iteration_time
            for cut in ("even", "balanced")
        ]
        for name in ("zb-v", "interleaved-1f1b x2", "interleaved-1f1b x3")
    }
    for name in ("zb-v", "interleaved-1f1b x2"):  # the best of their ideas have the fastest stages
        assert found[name].step < min(steps[name])
        assert found[name].changes["layout.partition"] == found[name].layout_string
    assert found["interleaved-1f1b x3"].step == min(steps["interleaved-1f1b x3"])
    assert "layout.partition" not in found["zb-h1"].changes  # as many stages as before


def test_a_limit_on_activations_holds_in_every_ranking(tmp_path):
    path = tmp_path / "limited.yaml"
    path.write_text(
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {forward: 1.0, backward: 2.0}\nmemory_limit: 4\n"
    )
    advised = [one.memory for one in ppsim.advise(path).better]
    assert advised
    assert max(advised) <= 4
    chosen = ppsim.choose(path, free=["schedule.name"])
    assert max(one.memory for one in chosen.ranked) <= 4
    swept = run_ppsim("sweep", path, "--over", "schedule.name=1f1b,gpipe").out
    assert "8 activations  !" in swept
    assert "4 activations  !" not in swept
    found = slow_device_losses(ppsim.load_config(path), {2: 1.2}, ["1f1b", "gpipe"])
    assert [(row.schedule, row.fit) for row in found.rows] == [("1f1b", "fits"), ("gpipe", "over")]
    path.write_text(path.read_text().replace("memory_limit: 4", "memory_limit: 0.5"))
    assert ppsim.choose(path, free=["schedule.name"]).nothing_fits == "nothing fits the memory_limit of 0.5 activations"


@pytest.mark.parametrize(("limits", "fit"), [([4, 3, 2, 1], "fits"), ([4, 2, 4, 4], "over")])  # the peaks of 1F1B
def test_each_device_is_within_its_own_limit_in_every_study(tmp_path, limits, fit):
    path = tmp_path / "limited.yaml"
    path.write_text(
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {forward: 1.0, backward: 2.0}\n"
        f"memory_limit: {limits}\n"
    )
    fits, over = fit == "fits", {"schedule.name": ["1f1b", "gpipe"]}
    swept = ppsim.sweep(path, over, workers=1)
    assert [(point.fit, point.fits) for point in swept.points] == [(fit, fits), ("over", False)]
    chosen = ppsim.choose(path, only=over)
    assert [one.changes["schedule.name"] for one in chosen.ranked] == ["1f1b"] * fits
    assert fits or chosen.nothing_fits == "nothing fits the memory_limit of 4, 2, 4, 4 activations"
    (refused,) = ppsim.compare(path, ["gpipe"], headroom=0).refused.values()
    device, peak, limit = (3, 8, 1) if fits else (1, 8, 2)
    assert refused == f"does not fit: {peak} activations on device {device}, with a limit of {limit}"
    assert (ppsim.advise(path).fits, ppsim.compare(path, ["1f1b"]).rows()[0]["fits"]) == (fits, fits)
    (slow,) = slow_device_losses(ppsim.load_config(path), {2: 1.2}, ["1f1b"]).rows
    case = ppsim.load_config(path).changed({"memory_limit": [9, 9 if fits else 2, 9, 9]})
    (failed,) = failed_device_losses(case, 0, 3, ["1f1b"]).rows  # by the limits of all copies
    assert (slow.fit, failed.fit) == (fit, fit)
    ranked = run_ppsim("sweep", path, "--over", "schedule.name=1f1b,gpipe").out
    assert ("best that fits: 1f1b" if fits else "no combination fits in memory") in ranked
    raised = run_ppsim("what-if", path, "--set", f"memory_limit={[9, 2, 9, 9]}").out
    assert raised.endswith("nothing changes, but it does not fit: 3 activations on device 1, with a limit of 2\n")
    lowered = run_ppsim("what-if", path, "--set", f"memory_limit={[4, 3, 4, 4]}").out
    assert ("and it fits now: 4 activations on device 0, with a limit of 4" in lowered) == (not fits)
    assert (run_ppsim("choose", path, "--only", "schedule.name=1f1b").status == 0) == fits


def test_given_bytes_are_shown_as_bytes(tmp_path):
    path = tmp_path / "bytes.yaml"
    path.write_text(
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\n"
        "costs: {forward: 1.0, backward: 2.0, activation_bytes: 1e9, weight_bytes: 2e9}\n"
    )
    shown = run_ppsim("advise", path).out
    assert "memory 6.00 GB -> " in shown
    assert "activations" not in shown
