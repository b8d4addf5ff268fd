"""Facts about frameworks name schedules and policies that exist, and no other module names a framework."""

import ast
from pathlib import Path

import pytest
from command_line import CONFIGS

import ppsim
from ppsim.frameworks import FACTS, LAUNCH_OPTIONS, SCHEDULES, Facts, framework, options_of

PACKAGE = Path(ppsim.__file__).parent
# A file each for what it writes or reads; `grouping` of a family has values that are names, too
MAY_NAME = ("frameworks", "launch", "interop", "families")


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_framework_runs_schedules_that_are_families(name):
    assert set(SCHEDULES[name]) <= set(ppsim.schedules())


@pytest.mark.parametrize("name", FACTS)
def test_a_framework_sets_policies_that_a_layout_can_set_itself(name):
    named = ppsim.Layout(framework=name)
    for policy, value in FACTS[name].policies.items():
        assert named.chosen(policy) == value
        assert ppsim.Layout(**{policy: value}).chosen(policy) == value


def test_no_other_module_names_a_framework():
    names = {*FACTS, "megatron"}
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] in MAY_NAME:
            continue
        texts = [one for one in ast.walk(ast.parse(path.read_text())) if isinstance(one, ast.Constant)]
        found = [(one.lineno, one.value) for one in texts if str(one.value).strip().lower() in names]
        assert not found, f"{path}: {found}"


def test_a_version_has_the_facts_of_the_nearest_known_one():
    host, versions = FACTS["eager"].host, {"25.09": {"fused": False}, "26.02": {"cuda_graphs": True}}
    facts = Facts("x", {"fused": True}, host, "", versions)
    assert facts.nearest("25.11") == "25.09"
    assert facts.nearest("26.02.01") == facts.nearest("27.1") == "26.02"
    assert Facts("x", {}, host, "").nearest("1.0") == ""


def test_a_version_lacks_keys_whose_option_its_parser_does_not_have():
    flags = {
        "sequence_parallel": "sequence-parallel", "overlap_data": "overlap-grad-reduce",
        "expert": "expert-model-parallel-size", "bf16_gradients": "grad-reduce-in-bf16",
        "fused_loss": "cross-entropy-loss-fusion", "fp8_gather": "fp8-param-gather",
        "grouped_experts": "moe-grouped-gemm", "fused_router": "moe-router-fusion", "context": "context-parallel-size",
        "partition": "pipeline-model-parallel-layout", "sharded": "data-parallel-sharding-strategy",
    }  # fmt: skip
    record = LAUNCH_OPTIONS["Megatron-LM"]
    for version in (record["version"], *record["others"]):
        named, options = framework(f"Megatron-LM {version}"), options_of(record, version)
        assert [named.lacks(f"layout.{key}") for key in flags] == [flag not in options for flag in flags.values()]


@pytest.mark.parametrize(
    ("name", "lacking", "known"),
    [
        ("megatron-lm 2.6", [("layout.recompute", "selective"), ("layout.sequence_parallel", True)], []),
        ("megatron-lm core 0.4.0", [("layout.fused_router", True)], [("layout.recompute", "selective")]),
        ("megatron-core 0.12.1", [("schedule.name", "combined-1f1b"), ("layout.partition", "balanced")],
         [("layout.recompute", "norms+activations"), ("layout.partition", "even"), ("layout.sharded", True)]),
        ("megatron-core 0.6", [("layout.recompute", "selective+norms")], [("layout.sharded", False)]),
        ("megatron-bridge 25.11", [("layout.sharded", "fp8 block")], [("layout.sharded", "fp8 tensor")]),
        ("megatron-core 0.14", [("layout.recompute", "norms+graphs")], [("layout.recompute", "norms")]),
        ("megatron-core 0.16", [], [("layout.sharded_gradients", "fp8 block"), ("layout.recompute", "norms+graphs")]),
        ("megatron-deepspeed", [("schedule.name", "interleaved-1f1b")], [("schedule.name", "1f1b")]),
        ("megatron-lm", [], [("layout.fused_router", True)]),
    ],
)  # fmt: skip
def test_versions_lack_what_came_later(name, lacking, known):
    assert all(framework(name).lacks(*one) for one in lacking)
    assert not any(framework(name).lacks(*one) for one in known)


@pytest.mark.parametrize(
    ("name", "rule"),
    [("nanotrn", "did you mean nanotron"), ("", "use one of"), (3, "use one of"), ("torchtitan new", "torchtitan 1.0")],
)
def test_an_unknown_framework_is_refused_with_the_known_ones(name, rule):
    with pytest.raises(ppsim.ConfigError, match=rule):
        ppsim.Layout(framework=name)


def test_names_are_known_in_upper_and_lower_case_and_with_a_version():
    assert framework("Megatron-Bridge 26.04").facts is FACTS["megatron-bridge"]
    assert framework("megatron-bridge 26.04").asked == "26.04"


def test_megatron_bridge_fuses_experts_from_26_06_on_and_routers_before():
    versions = [ppsim.Layout(framework=f"megatron-bridge {one}") for one in ("25.11", "26.02.01", "26.04.01", "26.06")]
    assert [one.chosen("fused_experts") for one in versions] == [False, False, False, True]
    assert all(one.chosen("fused_router") for one in versions)


def test_megatron_scatters_transfers_up_to_version_2_only():
    def scatters(name):
        return ppsim.Layout(tensor=2, framework=name).chosen("scatter_transfers")

    names = ("megatron-lm 2.6", "megatron-lm 2.5", "megatron-lm core 0.4.0", "megatron-lm core 0.20.0")
    assert [scatters(name) for name in names] == [True, True, False, False]


def test_a_framework_without_a_version_is_the_newest_and_the_assumptions_name_it():
    config = ppsim.load_config(CONFIGS / "llama-3-8b-8xh100.yaml")
    named = config.changed({"layout.framework": "megatron-lm"}).costs
    assert not named.layout.chosen("scatter_transfers")
    assert "facts about Megatron-LM are of version core 0.4.0, the newest known one" in named.assumptions
    assert not any("facts about" in sentence for sentence in config.costs.assumptions)
