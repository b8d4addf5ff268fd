"""Each key of layout, hardware and costs changes the result, is an error, or is said to change nothing."""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import ppsim
from ppsim.config import as_config, value_at
from tests.fuzz.cases import COUNTS, EXAMPLES

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
# A dense model with tensor parallelism, one with experts in fp8, small FSDP without pipeline, and given costs.
NAMES = ("llama-3-70b-64xh100", "deepseek-v3-2048xh800", "llama-3-8b-8xh100", "unit-costs")
CATALOGUE = [CONFIGS / f"{name}.yaml" for name in NAMES]
NAMED = ("partition", "framework")  # shown by their stages and policies
FACTS = ("device", "link", "name")
VALUES = {
    "layout.recompute": ["selective", "full", "norms+activations"],
    "layout.overlap": ["two-stream", "true"],
    "layout.fp8": ["tensor", "block"],
    "layout.context_exchange": ["ring", "all-to-all"],
    "layout.loss_bytes": ["0", "12"],
    "hardware.network": ["Ethernet 100G", "InfiniBand HDR"],
}


def keys():
    for section, kind in (("layout", ppsim.Layout), ("hardware", ppsim.Cluster), ("costs", ppsim.Costs)):
        for item in (item for item in fields(kind) if "example" in item.metadata):
            name = item.name
            if name in (*NAMED, *FACTS, "per"):
                continue
            key = f"{section}.{name}"
            examples = [item.metadata["example"]]
            if item.metadata["check"] is not None and examples[0] in ("true", "false"):
                examples = ["true", "false"]
            for value in VALUES.get(key, examples):
                yield key, value


KEYS = sorted(set(keys()))


def numbers(document):
    """All measures of a run's document, its interval, and the memory of each device."""
    names = [*document["units"], "interval", "peak_memory"]
    return json.dumps({name: document.get(name) for name in names})


@cache
def outcome(path, key, value):
    """The numbers and assumptions of a config with one key at a value (None: without it), or its error."""
    if value is None and key != "name" and value_at(as_config(path).data, key) is None:
        return outcome(path, "name", None)
    try:
        few = {"batch": None, "engine": "compiled", "schedule.microbatches": 32}
        run = ppsim.load_config(path, overrides={**few, key: value}).simulate()
    except ppsim.PpsimError as error:
        return str(error), ()
    document = run.to_dict()
    return numbers(document), tuple(document["assumptions"])


def is_the_default(path, key, value):
    """Whether leaving the key out gives the same layout or cluster: its value is the default, or the framework's."""
    section, name = key.split(".")
    given = ppsim.load_config(path, overrides={"batch": None, key: value}).costs
    if section == "layout":
        layout = given.layout
        left_out = ppsim.load_config(path, overrides={"batch": None, key: None}).costs.layout
        policy = getattr(left_out, name) is None and name != "expert_nodes"
        try:
            return layout == left_out or (policy and layout.chosen(name) == left_out.chosen(name))
        except KeyError:
            return False
    if section == "hardware":
        return given.cluster == ppsim.load_config(path, overrides={"batch": None, key: None}).costs.cluster
    return False


@pytest.mark.parametrize("number", range(len(CATALOGUE)), ids=NAMES)
def test_each_key_changes_the_result_or_is_an_error_or_is_said_to_change_nothing(number):
    """A long run tries every key on every config, a short one some keys on each."""
    silent, said, path = [], 0, CATALOGUE[number]
    for key, value in KEYS if EXAMPLES >= 100 else KEYS[number :: 2 * len(CATALOGUE)]:
        if path.stem == "unit-costs" and not key.startswith("costs."):
            continue
        (with_key, assumed), (without, _) = outcome(path, key, value), outcome(path, key, None)
        COUNTS["keys that are toggled"]["answers" if with_key.startswith("{") else "refusals"] += 1
        if not without.startswith("{"):
            continue  # the others need the key
        if with_key != without or is_the_default(path, key, value):
            continue
        said += any(one.startswith(f"{key}: ") and "changes nothing here" in one for one in assumed)
        if not any(one.startswith(f"{key}: ") for one in assumed):
            silent.append((key, value))
    assert not silent
    assert said
