"""`ppsim fits`: whether a config fits, what is left, and what would make it fit."""

import json

from command_line import LLAMA, UNIT_COSTS, ppsim

from ppsim import advise, load_config

SMALL = "hardware.device={like: H100 SXM, memory: 60 GB}"


def test_a_config_that_fits_says_what_is_left():
    outcome = ppsim("fits", LLAMA)
    assert outcome.status == 0
    assert outcome.out.splitlines()[0] == "YES: device 0, the fullest, needs 62.2 GB of 76.4 GB usable"
    assert "activations 36.5 GB, optimizer state 16.8 GB" in outcome.out
    assert "memory of a device: 84.93 GB" in ppsim("fits", LLAMA, "-v").out


def test_one_that_does_not_names_the_fastest_single_changes_that_fit():
    outcome = ppsim("fits", LLAMA, "--headroom", "0", "--set", SMALL)
    assert outcome.status == 1
    assert outcome.out.startswith("NO: device 0 needs 62.2 GB, 2.17 GB over the 60.0 GB usable\n")
    assert "--set schedule.devices=" in outcome.out
    best = advise(
        load_config(LLAMA, overrides={"hardware.device": {"like": "H100 SXM", "memory": "60 GB"}}), 0.0
    ).better[:4]
    assert [one.words in outcome.out for one in best] == [True] * 4


def test_the_document_has_units_and_the_changes():
    outcome = ppsim("fits", LLAMA, "--headroom", "0.3", "--set", SMALL, "--json", "-")
    document = json.loads(outcome.out)
    assert outcome.status == 1
    assert (document["schema"], document["fits"], document["headroom"]) == ("ppsim.fits/1", False, 0.3)
    assert document["units"]["spare"] == "bytes per device"
    assert min(document["spare"]) == 60e9 * 0.7 - max(document["memory"]["peak"])
    assert document["fits_with"][0]["changes"].keys() >= {"schedule.devices", "layout.tensor"}
    assert document["fits_with"][0]["spare"] >= 0
    assert document["layout_string"] == "Et*4|(t*4|)*6t*4L"


def test_nothing_that_fits_is_said_too():
    outcome = ppsim("fits", LLAMA, "--set", "hardware.device={like: H100 SXM, memory: 1 GB}")
    assert outcome.status == 1
    assert "no single change makes it fit; ppsim choose looks for another layout" in outcome.out


def test_what_is_within_the_headroom_is_tight():
    outcome = ppsim("fits", LLAMA, "--headroom", "0.3")
    assert outcome.status == 1
    assert outcome.out.startswith("NO (tight): device 0 needs 62.2 GB of its 84.9 GB, 2.72 GB over the 59.5 GB")


def test_a_wrong_headroom_and_a_config_without_a_model_are_wrong_calls():
    wrong = ppsim("fits", LLAMA, "--headroom", "110%")
    assert (wrong.status, wrong.out) == (2, "")
    assert "--headroom=1.1 must be a fraction from 0 to below 1" in wrong.err
    bare = ppsim("fits", UNIT_COSTS)
    assert bare.status == 2
    assert "memory is not known" in bare.err
