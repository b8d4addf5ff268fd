"""`ppsim fits`: whether a config fits, what is left, and what would make it fit."""

import json

from command_line import LLAMA, UNIT_COSTS, ppsim

SMALL = "hardware.device={like: H100 SXM, memory: 60 GB}"


def test_a_config_that_fits_says_what_is_left():
    outcome = ppsim("fits", LLAMA)
    assert outcome.status == 0
    assert "memory of a device: 80 GB" in outcome.out
    assert "fits with 10.0 % of the memory kept free: 10.27 GB left on device 0, the fullest" in outcome.out


def test_one_that_does_not_names_a_recompute_level_a_microbatch_count_and_a_schedule():
    outcome = ppsim("fits", LLAMA, "--headroom", "0", "--set", SMALL)
    assert outcome.status == 1
    assert "does not fit with 0.0 % of the memory kept free: device 0 is 1.734 GB over" in outcome.out
    for change in ("layout.recompute=full", "schedule.microbatches=4", "schedule.name="):
        assert f"fits with --set {change}" in outcome.out


def test_the_document_has_units_and_the_changes():
    outcome = ppsim("fits", LLAMA, "--headroom", "0.3", "--set", SMALL, "--json", "-")
    document = json.loads(outcome.out)
    assert outcome.status == 1
    assert (document["schema"], document["fits"], document["headroom"]) == ("ppsim.fits/1", False, 0.3)
    assert document["units"]["spare"] == "bytes per device"
    assert min(document["spare"]) == 60e9 * 0.7 - max(document["memory"]["peak"])
    assert "layout.recompute" in document["fits_with"][0]["changes"]
    assert document["layout_string"] == document["fits_with"][0]["layout_string"] == "Et*4|(t*4|)*6t*4L"


def test_nothing_that_fits_is_said_too():
    outcome = ppsim("fits", LLAMA, "--set", "hardware.device={like: H100 SXM, memory: 1 GB}")
    assert outcome.status == 1
    assert "no recompute level, fewer microbatches or other schedule alone makes it fit" in outcome.out


def test_a_wrong_headroom_and_a_config_without_a_model_are_wrong_calls():
    wrong = ppsim("fits", LLAMA, "--headroom", "110%")
    assert (wrong.status, wrong.out) == (2, "")
    assert "--headroom '110%' must be a part of the memory from 0 to below 1" in wrong.err
    bare = ppsim("fits", UNIT_COSTS)
    assert bare.status == 2
    assert "memory is not known" in bare.err
