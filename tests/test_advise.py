"""Advise: every single change simulated, best first, with the cause that it removes."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import CONFIGS, LLAMA, UNIT_COSTS
from command_line import ppsim as run_ppsim

import ppsim


def test_the_head_on_the_last_stage_is_named_and_moving_blocks_away_helps_most_of_one_schedule():
    found = ppsim.advise(LLAMA, headroom=0)  # that partition leaves less than a tenth of the memory free
    assert found.advice[0].changes["schedule.name"] == "vocab-1f1b"  # which cuts the head over the devices
    first = next(one for one in found.advice if "schedule.name" not in one.changes)
    assert first.changes["layout.partition"] == "by_cost(optimal)"
    assert first.removes is not None
    assert first.removes.startswith("imbalance")
    page = " ".join(run_ppsim("advise", LLAMA, "--headroom", "0").out.split())  # the reasons are wrapped
    assert "device 7 computes 44.7 % longer than the mean: it holds 4 blocks (mean 4) and the head" in page
    assert f"layout.partition: {first.layout_string}" in page


@pytest.mark.parametrize("config", [LLAMA, UNIT_COSTS, CONFIGS / "gpt-3-175b-64xa100.yaml"])
def test_a_change_gives_the_step_that_is_promised(config):
    found = ppsim.advise(config)
    for one in found.advice[:3]:
        assert found.config.changed(one.changes).simulate().iteration_time == one.step
        assert one.step - found.run.iteration_time == pytest.approx(one.step_difference)


def test_the_best_come_first_and_what_does_not_fit_last():
    found = ppsim.advise(LLAMA, headroom=0.3)
    keys = [(one.fits is False, one.step) for one in found.advice]
    assert keys == sorted(keys)
    assert {one.fits for one in found.advice} == {True, False}
    assert len(found.to_frame()) == len(found.advice)


def test_a_notebook_shows_numbers_with_their_units():
    table = ppsim.advise(LLAMA)._repr_html_()
    first = ppsim.advise(LLAMA).advice[0]
    assert (round(first.step, 3), round(first.peak / 1e9, 1)) == (3.635, 64.5)
    assert ">3.635 s</td>" in table
    assert ">64.5 GB</td>" in table
    assert "<th>step difference</th>" in table
    assert ">yes</td>" in table
    assert "changes" not in table


def test_the_document_lists_every_change():
    document = json.loads(run_ppsim("advise", LLAMA, "--json", "-").out)
    assert document["schema"] == "ppsim.advise/1"
    assert {"what", "changes", "step", "step_difference", "peak", "fits", "removes"} <= document["advice"][0].keys()


def test_flags_do_instead_of_a_config():
    outcome = run_ppsim("advise", "--schedule", "1f1b", "--devices", "4", "--microbatches", "8")
    assert outcome.status == 0
    assert "schedule interleaved-zb" in outcome.out


def test_an_executor_gives_the_same_advice_and_the_chart_has_a_bar_a_change_that_helps():
    here = ppsim.advise(UNIT_COSTS)
    with ThreadPoolExecutor(2) as threads:
        there = ppsim.advise(UNIT_COSTS, executor=threads)
    assert (here.advice, here.refused) == (there.advice, there.refused)
    axes = here.plot().axes[0]
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == [one.words for one in here.better[: len(names)]]
    assert axes.patches[0].get_width() == pytest.approx(100 * here.better[0].step_difference / here.run.iteration_time)


def test_where_the_config_does_not_fit_what_makes_it_fit_helps():
    found = ppsim.advise(LLAMA, headroom=0.3)  # 61.7 of 56 GB
    assert found.fits is False
    assert found.better == [one for one in found.advice if one.fits]
    assert max(one.step_difference for one in found.better) > 0


def test_the_page_says_that_the_config_does_not_fit():
    said = "peak memory 61.73 GB (device 0) does not fit with 30.0 % of the memory kept free: what makes it fit helps"
    tight, nothing = (" ".join(run_ppsim("advise", LLAMA, "--headroom", part).out.split()) for part in ("30%", "99%"))
    assert said in tight
    assert said.replace("30.0", "99.0") in nothing
    assert "no single change makes it fit" in nothing
    assert "does not fit with" not in run_ppsim("advise", LLAMA).out


@pytest.mark.parametrize("headroom", [1, -0.1, "x", True])
def test_a_headroom_is_a_part_from_0_to_below_1(headroom):
    with pytest.raises(ppsim.ConfigError, match="must be a part of the memory from 0 to below 1, such as 0\\.1"):
        ppsim.advise(LLAMA, headroom)


def test_every_change_says_what_its_stages_hold():
    found = ppsim.advise(LLAMA)
    strings = {one.what: one.layout_string for one in found.advice}
    assert strings["schedule zb-v"] == "Et*2|(t*2|)*14t*2L"
    assert strings["recompute full"] == found.run.layout_string == "Et*4|(t*4|)*6t*4L"


def test_of_a_framework_only_the_schedules_that_it_runs_are_tried():
    found = ppsim.advise(LLAMA, framework="Megatron-LM")
    tried = {one.changes.get("schedule.name") for one in found.advice} | {None}
    assert tried == {None, "interleaved-1f1b"}
    with pytest.raises(ppsim.ConfigError, match="framework='DeepSpeed' is not known; use one of: Megatron-LM"):
        ppsim.advise(LLAMA, framework="DeepSpeed")
