"""Choose finds what simulating every point finds, and says what became of each point."""

import itertools
import json
import os
import re
import select
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from command_line import ENVIRONMENT, LLAMA, UNIT_COSTS, start
from command_line import ppsim as run_ppsim

import ppsim
from ppsim.analysis import (
    ScheduleSummary,
    layout_memory_bound,
    layout_step_bound,
    memory_bound,
    step_bound,
)
from ppsim.config import config_yaml
from ppsim.frameworks import SCHEDULES, frameworks_running
from ppsim.launch import flags_in
from ppsim.studies import Candidate
from ppsim.studies.points import placed, rank
from ppsim.studies.space import keeps_activations, schedules_run_by, search_space

SMALL = {
    "model": {
        "num_layers": 12, "hidden": 1024, "heads": 16, "vocabulary": 32000, "sequence": 2048, "ffn": 4096,
    },
    "hardware": {
        "device": {"like": "H100 SXM", "memory": "12 GB"}, "link": "NVLink 4", "network": "InfiniBand NDR",
        "gpus_per_node": 4, "gpus": 8,
    },
    "layout": {"microbatch_size": 1, "recompute": "none"},
    "batch": 32,
    "transport": "directed",
    "optimizer": "sync",
}  # fmt: skip
NAMES = ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "bpipe", "dualpipe"]

SPLIT = {"layout.overlap_data": False, "layout.overlap_tensor": False}  # what a split backward needs


def _candidate(step, **changes):
    changes = {"schedule.name": "1f1b", "schedule.devices": 4, "schedule.stages_per_device": None} | {
        f"{'schedule' if key in ('name', 'devices', 'stages_per_device') else 'layout'}.{key}": value
        for key, value in changes.items()
    }
    return Candidate(changes, {"iteration_time": step, "peak_memory": 1.0})


def test_a_free_schedule_has_any_number_of_stages_and_is_no_slower_than_the_advice():
    # interleaved 1F1B with two stages per device does not fit, with four it does
    choice, advice = ppsim.choose(LLAMA, free=["schedule.name"]), ppsim.advise(LLAMA)
    best = choice.best.config.schedule
    assert (best["name"], best["stages_per_device"]) == ("interleaved-1f1b", 4)
    assert choice.ranked[0].step <= min(one.step for one in advice.better if one.kind == "schedules")
    two = ppsim.choose(LLAMA, free=["schedule.name"], only={"schedule.stages_per_device": [2]})
    assert two.best.config.schedule["name"] == "1f1b"


def test_the_page_names_the_sizes_that_a_whole_config_leaves_fixed(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(config_yaml(ppsim.load_config(LLAMA, overrides={"layout.tensor": 1})))
    page = " ".join(run_ppsim("choose", job).out.split())
    keys = "layout.partition, schedule.devices, schedule.name, schedule.stages_per_device; --free all chooses these too"
    assert f"the config fixes layout.tensor, layout.microbatch_size, {keys}" in page
    assert "the config fixes layout.microbatch_size, layout.partition" in " ".join(
        run_ppsim("choose", LLAMA).out.split()
    )
    found = run_ppsim(
        "choose", job, "--free", "all", "--only", "layout.sharding=optimizer", "--only", "layout.tensor=1"
    )
    assert found.status == 0
    assert "the config fixes" not in found.out
    assert (
        "the config fixes schedule.name; --free schedule.name chooses it too\n" in run_ppsim("choose", UNIT_COSTS).out
    )
    free = search_space({**ppsim.load_config(job).data}, ["all"]).values
    whole = {key: part for key, part in ppsim.load_config(job).data.items() if key not in ("layout", "schedule")}
    assert free == search_space({**whole, "hardware": {**whole["hardware"], "gpus": 8}, "batch": 32}).values


def test_one_idea_is_one_row_the_simplest_variant_within_a_per_cent_of_its_fastest():
    variants = [
        _candidate(1.996, name="interleaved-1f1b", stages_per_device=2, data=2),
        _candidate(1.99, name="interleaved-1f1b", stages_per_device=4, data=2),
        _candidate(1.994, name="interleaved-1f1b", stages_per_device=3, data=2, distributed_optimizer=True),
        _candidate(2.02, name="interleaved-1f1b", stages_per_device=2, data=2, partition="E|t|t|L"),
    ]
    others = [_candidate(1.9, devices=8), _candidate(2.1, data=4), _candidate(2.2, data=8)]
    for turn in range(len(variants)):
        ranked = rank([*others, *variants[turn:], *variants[:turn]], top=3)
        assert [(one.step, one.alike) for one in ranked] == [(1.9, 0), (1.996, 2), (2.1, 0)]


def test_ideas_that_published_pairs_cannot_tell_apart_share_a_place_the_simplest_first():
    ranked = [
        _candidate(2.00, devices=8, name="zb-v"),
        _candidate(2.03, devices=8),  # another schedule in the same groups
        _candidate(2.08, devices=4, data=2),  # other groups
        _candidate(2.09, devices=4, data=2, recompute="full"),
        _candidate(2.10, devices=8, name="interleaved-1f1b", stages_per_device=2),
    ]
    found = placed(reversed(ranked), {"schedules": 1.022, "layouts": 1.059})
    assert [one.place for one in found] == ["1", "1=", "1=", "1=", "5"]
    assert [one.step for one in found] == [2.08, 2.03, 2.00, 2.09, 2.10]  # 2.09 recomputes more than the faster ones
    # no tie that is slower than the config itself comes first
    assert placed(ranked, {"schedules": 1.022, "layouts": 1.059}, own=2.05)[0].step == 2.03
    assert [(one.place, one.step) for one in placed(ranked, None)] == [
        (str(1 + index), one.step) for index, one in enumerate(ranked)
    ]


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_no_row_that_is_slower_than_a_whole_config_comes_first(monkeypatch, name):
    monkeypatch.setattr("ppsim.studies.points._error", lambda *_: 2.0)  # all are ties
    whole = ppsim.load_config(UNIT_COSTS, overrides={"schedule.name": name})
    found = ppsim.choose(whole, {"schedule.name": ["1f1b", "zb-h1"]}, research=True)
    assert found.ranked[0].changes["schedule.name"] == name  # 1f1b is simpler, zb-h1 faster


def test_on_one_device_1f1b_stands_for_every_schedule():
    space = search_space(SMALL)
    assert list(space.schedules(1)) == [{"schedule.name": "1f1b", "schedule.stages_per_device": None}]
    named = search_space(SMALL, {"schedule.name": ["gpipe", "zb-h1"]})
    assert [one["schedule.name"] for one in named.schedules(1)] == ["gpipe", "zb-h1"]


def test_only_limits_a_key_and_leaves_the_others_open():
    names = ["1f1b", "interleaved-1f1b"]
    limited, free = search_space(SMALL, only={"schedule.name": names}), search_space(SMALL)
    assert limited.values == {**free.values, "schedule.name": names}
    outcome = run_ppsim("choose", LLAMA, "--only", "schedule.name")
    assert outcome.status == 2
    assert "--only 'schedule.name': write KEY=VALUES, such as schedule.name=1f1b,zb-v" in outcome.err


def test_what_the_config_says_of_copies_and_microbatches_stays_unless_keys_are_named():
    layout = {**SMALL["layout"], "data": 2}
    held = search_space({**SMALL, "layout": layout})
    assert {point["layout.data"] for point in held.layouts()} == {2}
    both = search_space({**SMALL, "layout": layout, "schedule": {"microbatches": 16}})
    assert {(point["layout.data"], point["schedule.microbatches"]) for point in both.layouts()} == {(2, 16)}
    named = search_space({**SMALL, "layout": layout}, ["layout.tensor"])
    assert {point["layout.data"] for point in named.layouts()} == {1, 2, 4, 8}


def test_a_schedule_may_be_named_with_its_stages():
    space = search_space(SMALL, {"schedule.name": ["interleaved-1f1b:3", "1f1b"]})
    stages = [(one["schedule.name"], one["schedule.stages_per_device"]) for one in space.schedules(4)]
    assert stages == [("interleaved-1f1b", 3), ("1f1b", None)]
    found = ppsim.choose(LLAMA, {"schedule.name": ["interleaved-1f1b:2", "interleaved-1f1b:4"]}, headroom=0)
    assert [one.changes["schedule.stages_per_device"] for one in found.ranked] == [4]  # one row for both variants


def test_jitter_that_is_drawn_leaves_no_bound_on_the_step():
    quiet = ppsim.choose(SMALL, {"schedule.name": NAMES})
    noisy = ppsim.choose({**SMALL, "jitter": {"actions": 0.05, "seed": 1}}, {"schedule.name": NAMES})
    assert quiet.counts["step"] > 0 == noisy.counts["step"]


def test_a_balanced_partition_that_is_the_even_one_is_no_point_of_its_own():
    free = {"schedule.name": ["1f1b"], "schedule.devices": [1]}
    one, both = (ppsim.choose(SMALL, {**free, "layout.partition": cut}) for cut in (["even"], ["even", "balanced"]))
    assert one.counts == both.counts


LAYOUTS = {}, {"sharded": True}, {"recompute": "full"}, {"distributed_optimizer": True}


@pytest.mark.parametrize("number", range(len(LAYOUTS)))
@pytest.mark.parametrize(("devices", "tensor"), [(4, 1), (2, 4)])
def test_no_simulated_step_or_peak_is_below_its_bound(number, devices, tensor):
    """Every two of layout, devices, overlap and optimizer meet."""
    layout = LAYOUTS[number]
    optimizers = ["sync", "post-validated"][:: 1 if (number + devices // 2) % 2 else -1]
    for name, (overlap, optimizer) in itertools.product(ppsim.schedules(), enumerate(optimizers)):
        if "costs" in ppsim.schedules()[name].options:
            continue
        data = {
            **SMALL, "schedule": {"name": name, "devices": devices, "microbatches": 8}, "optimizer": optimizer,
            "layout": {"tensor": tensor, "data": 8 // devices // tensor, "overlap": bool(overlap), **layout},
        }  # fmt: skip
        data.pop("batch")
        config = ppsim.load_config(UNIT_COSTS).changed({"costs": None, **data})
        if ppsim.schedules()[name].asynchronous:
            config = config.changed({"optimizer": None})
        try:
            run = config.simulate()
        except ppsim.BuildError:
            continue
        schedule, sharded = ppsim.build(**config.schedule), config.sharded  # with its copies to host memory
        assert step_bound(ScheduleSummary.of(schedule), run.table, config.optimizer, sharded) <= run.iteration_time, (
            name
        )
        held = memory_bound(ScheduleSummary.of(schedule), run.table)
        assert held is not None
        assert run.peak_memory is not None
        assert (held <= run.peak_memory).all(), name


@pytest.mark.parametrize("change", [ppsim.with_recompute, ppsim.with_offload])
@pytest.mark.parametrize("stages", ["all", "first:1"])
@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-v", "chimera", "pipe-offload"])
def test_the_bounds_hold_where_activations_are_made_again_or_move(name, stages, change):
    data = {**SMALL, "schedule": {"name": name, "devices": 4, "microbatches": 8}, "layout": {"data": 2}}
    config = ppsim.load_config(UNIT_COSTS).changed({"costs": None, **data, "batch": None})
    made = config.build()
    made = made if name == "pipe-offload" else change(made, stages)
    run = config.simulate(made)
    held = memory_bound(ScheduleSummary.of(made), run.table)
    assert held is not None
    assert run.peak_memory is not None
    assert step_bound(ScheduleSummary.of(made), run.table, config.optimizer) <= run.iteration_time
    assert (held <= run.peak_memory).all()
    assert layout_step_bound(config.costs, 4, 8, config.optimizer) <= run.iteration_time
    assert layout_memory_bound(config.costs, 4, keeps=False) <= run.peak_memory.max()


def test_families_that_move_activations_or_make_them_again_are_told_by_their_lists():
    kept = {name for name in ppsim.schedules() if keeps_activations(name)}
    assert {"1f1b", "zb-v", "chimera", "bpipe", "slimpipe", "pipedream"} <= kept
    assert not {"pipe-offload", "ripipe", "mario", "auto"} & kept


def test_the_bound_of_1f1b_with_equal_stages_is_its_step():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), ppsim.Costs(forward=1.0, backward=2.0))
    assert np.isclose(step_bound(ScheduleSummary.of(run.schedule), run.table), run.makespan)


def test_combined_1f1b_is_offered_as_megatron_runs_it():
    """Without a pipeline it has no virtual stages; it repeats no whole block, and goes with no FSDP."""
    data = dict(ppsim.load_config(Path(LLAMA).with_name("mixtral-8x7b-64xh100.yaml")).data)
    free = ["layout.overlap", "layout.recompute", "layout.sharding", "schedule.devices", "schedule.stages_per_device"]
    space = search_space({**data, "schedule": {}, "batch": 512}, free, framework="Megatron-LM")
    combined = [one for one in space.layouts() if space.combines(one)]
    assert {one["layout.sharded"] or one["layout.sharded_gradients"] for one in combined} == {False}
    assert {one["layout.recompute"] for one in combined} == {*space.values["layout.recompute"]} - {"full"} != set()
    assert [one["schedule.stages_per_device"] for one in space.schedules(1, combined=True)] == [1]
    given = {**data, "schedule": {}, "batch": 512, "layout": {**data["layout"], "overlap": "two-stream"}}
    own = search_space(given, free[1:], framework="Megatron-LM")  # overlap of the config
    assert {one["layout.recompute"] for one in own.layouts() if own.combines(one) is False} == {"full"}


@pytest.mark.parametrize(
    ("framework", "named", "values"),
    [
        ("Megatron-LM", None, [True]), ("PyTorch", None, None), (None, None, [True]), (None, "torchtitan", None),
        ("Megatron-LM", "megatron-core 0.14.0", [True]), ("Megatron-LM", "megatron-lm core 0.4.0", None),
    ],
)  # fmt: skip
def test_routers_are_fused_where_a_flag_of_the_framework_decides(framework, named, values):
    data = dict(ppsim.load_config(Path(LLAMA).with_name("mixtral-8x7b-64xh100.yaml")).data)
    layout = {"framework": named} if named else {}
    space = search_space({**data, "layout": layout, "schedule": {}, "batch": 512}, framework=framework)
    assert space.values.get("layout.fused_router") == values


@pytest.mark.parametrize(("framework", "others"), [("Megatron-LM", True), ("PyTorch", False)])
def test_torchtitan_has_no_other_exchange_and_no_split_experts(framework, others):
    data = dict(ppsim.load_config(Path(LLAMA).with_name("mixtral-8x7b-64xh100.yaml")).data)
    space = search_space({**data, "layout": {}, "schedule": {}, "batch": 512}, framework=framework)
    assert ("hierarchical" in space.values["layout.expert_exchange"]) == others
    assert (None in space.values["layout.expert_tensor"]) == others


@pytest.mark.parametrize("framework", ["Megatron-LM", None])
def test_flags_of_an_answer_read_back_to_its_step(framework):
    """Without a framework the answer is priced as today's Megatron-Core, not as the Megatron-LM of the papers."""
    only = {"schedule.name": ["1f1b", "interleaved-1f1b"]}
    found = ppsim.choose(SMALL, ["layout.tensor", "schedule.stages_per_device"], only=only, framework=framework)
    flags = flags_in("Megatron-LM", found.best.config)
    assert isinstance(flags, list)
    back = ppsim.from_launch("Megatron-LM", " ".join(["pretrain_gpt.py", *flags]), gpus=8, hardware=SMALL["hardware"])
    assert back.simulate().iteration_time == found.best.run.iteration_time


@pytest.mark.parametrize(
    ("name", "framework", "changes", "flag"),
    [
        ("mixtral-8x7b-64xh100", "Megatron-LM", {"layout.recompute": "full"}, "--recompute-num-layers 1"),
        ("qwen3-235b-256xgb200", "Megatron-LM", {}, "--moe-flex-dispatcher-backend hybridep"),
        (
            "mixtral-8x7b-64xh100",
            "Megatron-LM",
            {
                "layout.tensor": 2,
                "layout.sequence_parallel": True,
                "layout.data": 8,
                "layout.expert_tensor": 1,
                "schedule.microbatches": 64,
            },
            "--expert-tensor-parallel-size 1",
        ),
        ("llama-3-8b-8xh100", "Primus", {"schedule.name": "zb-v", **SPLIT}, 'pp_algorithm: "zbv-formatted"'),
        ("mixtral-8x7b-64xh100", "Primus", {}, "enable_primus_turbo: true"),
        ("llama-3-8b-8xh100", "PyTorch", {"layout.framework": "torchtitan"}, "--compile.enable"),
    ],
)
def test_the_page_prints_every_flag_that_the_layout_changes(name, framework, changes, flag, tmp_path):
    page, best = chosen(tmp_path, name, changes, "--framework", framework)
    printed = " ".join(page.partition("\nrun")[2].split())
    launcher = "torchtitan" if framework == "PyTorch" else framework
    schedule, gpus = {"name": "1f1b", "devices": 1, "microbatches": 1}, best.costs.gpus(best.schedule["devices"])
    of_model = flags_in(launcher, best.changed({"schedule": schedule, "layout": {"data": gpus, "recompute": "none"}}))
    assert flag in printed
    of_layout = [one for one in flags_in(launcher, best) if one not in of_model and len(one) < 90]
    assert [one for one in of_layout if one not in printed] == []
    assert not re.search("hidden.size", printed)  # of the model


def test_the_page_says_how_many_blocks_of_a_stage_recompute(tmp_path):
    changes = {"layout.recompute": "full", "layout.recompute_blocks": 2}
    answer, _, row = chosen(tmp_path, "llama-3-8b-8xh100", changes)[0].partition("\n#")
    assert "recompute 2 blocks per stage" in " ".join(answer.split())
    assert "  2 blocks  " in row


def chosen(folder, name, changes, *options):
    """Return what `ppsim choose` prints for a config of the catalogue with changes, and the config of its answer."""
    config = ppsim.load_config(Path(LLAMA).with_name(f"{name}.yaml")).changed(changes)
    (folder / "job.yaml").write_text(config_yaml(config))
    only = ["--only", "layout.partition=balanced", "--headroom", "0", "-o", folder / "best.yaml"]
    return run_ppsim("choose", folder / "job.yaml", *only, *options).out, ppsim.load_config(folder / "best.yaml")


def test_old_versions_are_searched_for_what_they_have():
    data = dict(ppsim.load_config(LLAMA).data)
    data = {
        **data, "layout": {"framework": "megatron-lm 2.6"}, "schedule": {}, "batch": 64,
        "hardware": {**data["hardware"], "gpus": 8},
    }  # fmt: skip
    space = search_space(data, framework="Megatron-LM")
    assert space.values["schedule.name"] == ["1f1b", "interleaved-1f1b"]
    assert space.values["layout.recompute"] == ["none", "full"]
    assert space.values["layout.partition"] == ["even"]
    missing = {"layout.sharding", "layout.overlap_tensor", "layout.sequence_parallel", "layout.optimizer_bytes"}
    assert space.values["layout.optimizer_bytes"] == [None]
    assert space.values.keys() & missing == {"layout.optimizer_bytes"}


@pytest.mark.parametrize(("recipe", "version", "sharded"), [
    ("block", "0.15", {False}), ("block", "0.16", {False, True}), ("tensor", "0.15", {False, True}),
])  # fmt: skip
def test_megatrons_fsdp_gathers_fp8_by_blocks_from_core_0_16_on(recipe, version, sharded):
    data = dict(ppsim.load_config(LLAMA).data)
    layout = {"framework": f"megatron-core {version}", "fp8": recipe, "fp8_gather": True}
    data |= {"layout": layout, "schedule": {}, "batch": 64, "hardware": {**data["hardware"], "gpus": 8}}
    space = search_space(data, framework="Megatron-LM")
    assert {bool(one["layout.sharded"]) for one in space.layouts()} == sharded


@pytest.mark.parametrize(("version", "graphs", "recomputes"), [
    ("0.14", True, False), ("0.14", None, True), ("0.15", True, True),
])  # fmt: skip
def test_megatron_core_before_0_15_recomputes_nothing_with_cuda_graphs(version, graphs, recomputes):
    data = dict(ppsim.load_config(LLAMA).data)
    layout = {"framework": f"megatron-core {version}", "cuda_graphs": graphs}
    data |= {"layout": layout, "schedule": {}, "batch": 64, "hardware": {**data["hardware"], "gpus": 8}}
    space = search_space(data, framework="Megatron-LM")
    assert (len(space.values["layout.recompute"]) > 1) == recomputes


@pytest.mark.parametrize(("only", "beside"), [(None, False), ({"layout.sharding": ["weights"]}, True)])
def test_megatrons_fsdp_is_tried_beside_a_pipeline_only_if_it_is_named(only, beside):
    data = dict(ppsim.load_config(LLAMA).data)
    data |= {"layout": {}, "schedule": {}, "batch": 64, "hardware": {**data["hardware"], "gpus": 8}}
    space = search_space(data, only=only, framework="Megatron-LM")
    piped = {one["schedule.devices"] > 1 for one in space.layouts() if one["layout.sharded"]}
    assert piped == ({False, True} if beside else {False})


def test_the_winner_is_a_config_that_gives_the_same_step():
    found = ppsim.choose(LLAMA, {"schedule.name": ["1f1b", "interleaved-1f1b", "zb-h1"], "layout.partition": []})
    best = found.best
    assert best.run.iteration_time == found.ranked[0].step
    assert best.layout_string == best.config.data["layout"]["partition"]
    assert list(found.to_frame()["iteration_time"]) == [one.step for one in found.ranked]
    assert found.plot().axes[0].get_ylabel() == "step time (s), not from zero"


def test_given_costs_are_chosen_by_the_step():
    found = ppsim.choose(UNIT_COSTS, ["schedule.name"])
    assert found.ranked[0].step < ppsim.load_config(UNIT_COSTS).simulate().makespan
    assert found.best.layout_string is None


def test_the_answer_has_the_interval_of_a_derived_step_to_two_digits_and_none_of_a_given_one():
    found = ppsim.choose(LLAMA, {"schedule.name": ["1f1b"]})
    second = [
        run_ppsim("choose", config, "--free", "schedule.name=1f1b").out.splitlines()[1]
        for config in (LLAMA, UNIT_COSTS)
    ]
    bounds = re.fullmatch(r"[\d.]+ s \(90 %: ([\d.]+) to ([\d.]+) s\), .*", second[0])
    assert bounds is not None
    assert found.best.run.interval is not None
    assert [float(one) for one in bounds.groups()] == [float(f"{one:.2g}") for one in found.best.run.interval]
    assert "(" not in second[1]


def test_the_page_answers_first_and_fits_a_terminal(tmp_path):
    free = ["--free", "schedule.name=1f1b,interleaved-1f1b", "--free", "layout.partition", "--store", tmp_path / "runs"]
    outcome = run_ppsim("choose", LLAMA, *free, "-o", tmp_path / "best.yaml")
    assert outcome.status == 0
    assert outcome.err.splitlines() == [f"wrote {tmp_path / 'best.yaml'}"]  # no terminal, no progress
    lines = outcome.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert lines[0].startswith("TP 1 · CP 1 · PP 8 · DP 1, interleaved-1f1b x")
    assert " of 76.4 GB usable, " in lines[1]
    assert lines[3].split() == "# schedule TP CP PP DP recompute step vs 1 memory runs in".split()  # noqa: SIM905
    assert "why  idle " in outcome.out
    assert "--pipeline-model-parallel-layout 'Et" in outcome.out
    best = ppsim.load_config(tmp_path / "best.yaml").simulate()
    assert f"{best.iteration_time:.2f} s (" in lines[1]
    more = run_ppsim("choose", LLAMA, *free, "--verbose").out
    for part in ("points: ", "--num-layers 32", "torchtitan, 0.3.0:", "config:"):
        assert part in more


def test_flags_of_another_framework_than_the_config_s_are_priced_as_theirs(tmp_path):
    path = tmp_path / "job.yaml"
    overrides = {"layout.tensor": 2, "layout.framework": "megatron-deepspeed"}
    path.write_text(config_yaml(ppsim.load_config(LLAMA, overrides=overrides)))
    pages = [run_ppsim("choose", path, "--free", "schedule.name=1f1b", *more).out for more in ([], ["-v"])]
    names = {"Megatron-LM": ("megatron-core", pages[0]), "torchtitan": ("torchtitan", pages[1])}
    for name, (policies, page) in names.items():
        run = ppsim.from_launch(name, ppsim.to_launch(path, name)).changed({"layout.framework": policies}).simulate()
        words = f"with the policies of {name} the step takes {run.iteration_time:.2f} s:"
        assert f"; ppsim writes no flags of Megatron-DeepSpeed; {words}" in " ".join(page.split())
    path.write_text(path.read_text().replace("megatron-deepspeed", "megatron-core"))
    assert "(-v prints all):" in run_ppsim("choose", path, "--free", "schedule.name=1f1b").out


def test_only_the_document_searches_the_front(monkeypatch):
    choice = import_module("ppsim.studies.choose").Choice
    monkeypatch.setattr(choice, "front", property(lambda _: pytest.fail("it takes a search")))
    assert run_ppsim("choose", LLAMA, "--free", "schedule.name=1f1b").status == 0


def test_the_document_ends_in_a_config_that_can_be_read(tmp_path):
    outcome = run_ppsim("choose", LLAMA, "--free", "schedule.name=1f1b,zb-h1", "--json", "-")
    document = json.loads(outcome.out)
    assert (document["schema"], document["fits"]) == ("ppsim.choose/1", True)
    (tmp_path / "best.yaml").write_text(document["best"]["config"])
    assert ppsim.load_config(tmp_path / "best.yaml").simulate().makespan == document["ranked"][0]["iteration_time"]


def test_a_batch_is_held_against_microbatches_and_copies():
    config = ppsim.load_config(LLAMA, overrides={"batch": 64})
    with pytest.raises(ppsim.ConfigError, match="batch is 64, but 32 microbatches of 1 sequences in 1 copies make 32"):
        config.simulate()
    assert config.changed({"batch": 32}).simulate().makespan > 0


def test_where_nothing_fits_the_status_is_1():
    outcome = run_ppsim("choose", LLAMA, "--free", "schedule.name=1f1b", "--headroom", "99%")
    assert outcome.status == 1
    lines = outcome.out.splitlines()
    assert re.fullmatch(r"nothing fits with 99 % .*; the nearest is 6[0-9.]+ GB over 0.849 GB usable:", lines[0]), lines
    assert re.fullmatch(r"TP 1 · CP 1 · PP 8 · DP 1, 1f1b, .*: 6[0-9.]+ GB", lines[1])
    document = json.loads(
        run_ppsim("choose", LLAMA, "--free", "schedule.name=1f1b", "--headroom", "99%", "--json", "-").out
    )
    peak = ppsim.load_config(LLAMA).simulate().peak_memory
    assert peak is not None
    assert document["nearest"]["peak_memory"] == peak.max()
    assert document["nearest"]["over"] == pytest.approx(peak.max() - 0.849e9, rel=1e-2)


def test_a_batch_that_no_layout_divides_names_the_nearest_that_some_divide():
    job = {**SMALL, "batch": 250, "hardware": {**SMALL["hardware"], "gpus": 8}, "layout": {"data": 8}}
    found = ppsim.choose(job)
    assert found.nothing_fits == "no layout of 8 GPUs divides a batch of 250; the nearest that some divide: 248, 256"
    with pytest.raises(ppsim.ConfigError, match="nearest that some divide: 248, 256; use more GPUs"):
        _ = found.best


@pytest.mark.parametrize("levels", [["none"], ["none", "norms"], ["norms", "full"]])
def test_if_nothing_fits_the_nearest_has_the_smallest_peak_of_all_points(levels):
    free = {
        "schedule.name": ["1f1b", "gpipe"], "schedule.devices": [2, 4], "layout.tensor": [1, 2],
        "layout.recompute": levels,
    }  # fmt: skip
    fitting = ppsim.choose(SMALL, free, top=100)
    found = ppsim.choose(SMALL, free, headroom=0.99)
    assert not found.ranked
    assert found.nearest is not None
    assert fitting.smallest is not None
    assert found.nearest.memory == fitting.smallest.memory == fitting.front[-1].memory


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo terminal")
def test_a_large_search_shows_progress_before_it_has_counted_its_points(tmp_path):
    kept, given = os.openpty()
    large = {**SMALL, "hardware": {**SMALL["hardware"], "gpus": 1024}, "batch": 4096}
    (tmp_path / "large.yaml").write_text(json.dumps({key: part for key, part in large.items() if key != "layout"}))
    with start("choose", tmp_path / "large.yaml", stderr=given, env={**ENVIRONMENT, "TERM": "xterm"}) as process:
        try:
            shown = ""
            while "/?" not in shown and select.select([kept], [], [], 60)[0]:
                shown += os.read(kept, 4096).decode(errors="replace")
        finally:
            process.kill()
    os.close(kept)
    os.close(given)
    assert "choosing" in shown


@pytest.mark.parametrize(
    ("data", "free", "fault"),
    [
        ({**SMALL, "batch": None}, None, "batch is missing"),
        ({**SMALL, "hardware": {**SMALL["hardware"], "gpus": None}}, None, "hardware.gpus is missing"),
        (SMALL, ["layout.data"], "'layout.data' cannot be free; use some of: layout.tensor"),
        ({**SMALL, "batch": None, "bach": 8}, None, "such as batch: 1024 in place of bach"),
        (SMALL, ["tensr"], "free: 'tensr' cannot be free; did you mean layout.tensor"),
        (SMALL, [5], "free: 5 cannot be free; use some of: layout.tensor"),
        (SMALL, {"layout.tensor": ["abc"]}, "layout.tensor='abc' must be a whole number of at least 1"),
        (SMALL, {"schedule.devices": [0]}, "schedule.devices=0 must be a whole number"),
        (
            SMALL,
            {"layout.sharding": ["some"]},
            "'some' is not known; use one of: none, optimizer, gradients, weights, hybrid",
        ),
        (SMALL, {"layout.partition": ["odd"]}, "'odd' is not a partition; use one of: even"),
        (SMALL, {"layout.recompute": ["half"]}, "recompute='half'"),
        (SMALL, {"schedule.name": ["1f1c"]}, "unknown schedule '1f1c'; did you mean"),
        (UNIT_COSTS, ["layout.tensor"], "layout.tensor cannot be chosen if costs are given"),
        (UNIT_COSTS, np.array(["layout.tensor"]), "layout.tensor cannot be chosen if costs are given"),
        (UNIT_COSTS, ["schedule.devices"], "schedule.devices cannot be chosen if costs are given"),
    ],
)
def test_what_is_missing_is_named(data, free, fault):
    with pytest.raises(ppsim.PpsimError, match=fault):
        ppsim.choose(data, free)


@pytest.mark.parametrize("name", ["free", "only"])
@pytest.mark.parametrize("values", [1, "1f1b", None])
def test_values_of_a_free_key_that_are_no_list_are_named(name, values):
    with pytest.raises(ppsim.ConfigError, match=re.escape(f"{name}: 'schedule.name': {values!r} must be a list")):
        ppsim.choose(SMALL, **{name: {"schedule.name": values}})


def test_of_a_framework_only_the_schedules_that_it_runs_are_tried():
    free = ["layout.tensor", "layout.recompute", "schedule.stages_per_device"]
    found = ppsim.choose(SMALL, free, framework="Megatron-LM", headroom=0)
    assert {one.changes["schedule.name"] for one in found.front} == {"1f1b", "interleaved-1f1b"}
    named = {**SMALL, "layout": {**SMALL["layout"], "framework": "megatron-core"}}
    same = ppsim.choose(named, free, only={"schedule.name": ["1f1b", "interleaved-1f1b"]}, headroom=0)
    assert (found.ranked, found.counts) == (same.ranked, same.counts)


@pytest.mark.parametrize(
    ("framework", "free", "sentence"),
    [
        (
            "megatron",
            None,
            "framework='megatron' is not known; did you mean Megatron-LM? use one of: Megatron-LM, Primus, PyTorch",
        ),
        ("", None, "framework='' is not known"),
        ("PyTorch", {"schedule.name": ["zb-h1"]}, "schedule.name: PyTorch runs none of zb-h1; use some of: gpipe, "),
    ],
)
def test_a_framework_that_is_not_known_or_runs_none_of_the_names_is_refused(framework, free, sentence):
    with pytest.raises(ppsim.ConfigError, match=re.escape(sentence)):
        ppsim.choose(SMALL, free, framework=framework)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "1f1b"}, "config: schedule: '1f1b' must be a section of keys"),
        ({"layout": [1]}, "config: layout: [1] must be a section of keys"),
        ({"batch": "x"}, "config: batch: 'x' must be a whole number of at least 1"),
        ({"batch": [1]}, "config: batch: [1] must be a whole number of at least 1"),
        ({"batch": 10**400}, "is too large; use at most"),
        ({"hardware": {"device": "H100 SXM", "gpus": "8"}}, "config: hardware.gpus: '8' must be a whole number"),
        ({"batch": None, "schedule": {"microbatches": 4}, "layout": {"data": "x"}}, "config: layout.data: 'x' must be"),
    ],
)
def test_what_is_read_before_a_config_is_whole_is_refused_by_its_key(change, said):
    sizes = {"num_layers": 8, "hidden": 512, "heads": 8, "vocabulary": 1000, "sequence": 128}
    config = {"model": sizes, "hardware": {"device": "H100 SXM", "gpus": 8}, "batch": 8}
    with pytest.raises(ppsim.ConfigError) as refused:
        ppsim.choose({**config, **change})
    assert said in str(refused.value)


# What is searched

MOE = {**SMALL, "model": {**SMALL["model"], "experts": 8, "experts_per_token": 2}}


def names(config=SMALL, **options):
    return search_space(config, **options).values["schedule.name"]


def test_only_schedules_that_a_framework_launches_in_the_layout_are_offered():
    assert set(names()) == {*SCHEDULES["Megatron-LM"], *SCHEDULES["Primus"]}
    torchtitan = {**SMALL, "layout": {**SMALL["layout"], "framework": "torchtitan"}}
    assert set(names(torchtitan)) == {*SCHEDULES["PyTorch"]}
    assert "combined-1f1b" in names(MOE)
    assert "combined-1f1b" not in names()


@pytest.mark.parametrize("fixed", [{"expert": 8}, {"expert": 4, "expert_tensor": 2}, {"expert": 4, "replicas": 8}])
def test_groups_of_a_config_without_copies_are_those_of_every_layout(fixed):
    space = search_space({**MOE, "layout": fixed})
    layouts = [*space.layouts()]
    assert {layout["layout.tensor"] for layout in layouts} == {1, 2, 4}
    legal = [costs.layout for layout in layouts if (costs := space.costs(layout)) is not None]
    assert {(layout.expert, layout.expert_gpus % layout.expert) for layout in legal} == {(fixed["expert"], 0)}


MTP = {**MOE, "model": {**MOE["model"], "prediction_layers": 1}}
HYBRID = {**SMALL, "model": {**SMALL["model"], "pattern": "*-" * 6}}


@pytest.mark.parametrize(
    ("config", "framework", "reason"), [(MTP, "PyTorch", "no prediction modules"), (HYBRID, "Primus", "hybrid models")]
)
def test_a_framework_that_launches_no_layout_of_a_model_is_an_error_with_the_reason(config, framework, reason):
    with pytest.raises(ppsim.ConfigError, match=reason):
        ppsim.choose(config, framework=framework)
    assert framework not in search_space(config).launched


def test_a_framework_that_launches_other_layouts_than_the_placeholder_has_its_rule():
    config = {**SMALL, "layout": {"context": 2}}  # torchtitan needs weights sharded beside it, which is free
    assert search_space(config, framework="PyTorch").launched == ("PyTorch",)


def test_experts_are_not_sharded_where_one_gpu_alone_holds_each_and_the_framework_adds_them_up_wrongly():
    config = {**MOE, "layout": {"data": 8}, "schedule": {"name": "1f1b", "devices": 1}}
    free = {"layout.expert": [4, 8], "layout.sharding": ["weights"]}
    for framework, refused in (("Megatron-LM", 1), ("PyTorch", 0)):
        assert ppsim.choose(config, free=free, framework=framework).counts["refused"] == refused


def test_research_adds_all_other_synchronous_schedules():
    added = {*names(research=True)} - {*names()}
    assert {"slimpipe", "vocab-1f1b", "chimera"} <= added
    assert added >= {name for name in ppsim.schedules() if not frameworks_running(name)} & {*names(research=True)}
    assert not any(ppsim.schedules()[name].asynchronous for name in added)
    assert {*names(asynchronous=True)} - {*names()} == {"pipedream", "pipedream-2bw"}


def test_schedules_that_are_named_are_tried_even_if_no_framework_runs_them():
    assert names(only={"schedule.name": ["slimpipe", "1f1b"]}) == ["slimpipe", "1f1b"]


def test_names_narrow_what_a_framework_runs():
    assert names(framework="PyTorch", only={"schedule.name": ["zb-h1", "zb-v:2", "1f1b"]}) == ["zb-v:2", "1f1b"]
    named = {**SMALL, "schedule": {"name": "slimpipe"}}
    assert names(named, framework="Megatron-LM") == ["1f1b", "interleaved-1f1b"] == schedules_run_by("Megatron-LM")


def test_a_framework_frees_the_schedule_and_its_stages_as_the_key_does():
    fixed = {**SMALL, "schedule": {"name": "1f1b", "devices": 2}}
    space = search_space(fixed, framework="Megatron-LM")
    assert space.values["schedule.stages_per_device"]
    assert space.values == search_space(fixed, ["schedule.name"], framework="Megatron-LM").values | {
        key: values for key, values in space.values.items() if key.startswith("layout.")
    }
    given = {**fixed, "schedule": {**fixed["schedule"], "stages_per_device": 2}}
    assert "schedule.stages_per_device" not in search_space(given, framework="Megatron-LM").values


@pytest.mark.parametrize("flag", [False, True])
def test_sequence_parallelism_of_the_config_stays(flag):
    config = {**SMALL, "layout": {**SMALL["layout"], "sequence_parallel": flag}}
    assert not any("layout.sequence_parallel" in point for point in search_space(config).layouts())
    free = {(point["layout.tensor"], point["layout.sequence_parallel"]) for point in search_space(SMALL).layouts()}
    assert free == {(1, False), (2, True), (4, True)}
    named = search_space(config, ["layout.tensor", "layout.sequence_parallel"]).layouts()
    both = free | ({(2, False), (4, False)} if not flag else set())  # the config's own value is tried, too
    assert {(point["layout.tensor"], point["layout.sequence_parallel"]) for point in named} == both


def test_an_optimizer_state_with_equal_numbers_is_tried_and_a_smaller_one_only_if_it_is_named():
    """Megatron-LM's FSDP holds its own fp32 weights, and products in fp8 need all 4 bytes of them."""
    assert search_space(SMALL).values["layout.optimizer_bytes"] == [None, 10]
    given = {**SMALL, "layout": {**SMALL["layout"], "optimizer_bytes": 6, "distributed_optimizer": True}}
    assert "layout.optimizer_bytes" not in search_space(given).values
    assert search_space(given, ["layout.optimizer_bytes"]).values["layout.optimizer_bytes"] == [None, 10, 6]
    assert "layout.optimizer_bytes" not in search_space(SMALL, framework="PyTorch").values
    eight = search_space({**SMALL, "layout": {"fp8": "tensor"}})
    assert "layout.optimizer_bytes" not in eight.values
    keys = {"schedule.devices": [4], "schedule.name": ["1f1b"], "layout.sharding": ["optimizer"]}
    chosen = {
        size: ppsim.choose(SMALL, {**keys, "layout.optimizer_bytes": [size]}, framework="Megatron-LM").best
        for size in (12, 10, 6)
    }
    peaks = [float(one.run.peak_memory.max()) for one in chosen.values()]
    assert peaks == sorted(peaks, reverse=True)
    types = {
        size: [one for one in flags_in("Megatron-LM", best.config) if "exp-avg" in one] for size, best in chosen.items()
    }
    assert types == {
        12: [], 10: ["--exp-avg-dtype fp32", "--exp-avg-sq-dtype fp32"],
        6: ["--exp-avg-dtype bf16", "--exp-avg-sq-dtype bf16"],
    }  # fmt: skip
    either = ppsim.choose(SMALL, {**keys, "layout.optimizer_bytes": [None, 10]}, framework="Megatron-LM")
    assert either.ranked[0].changes["layout.optimizer_bytes"] is None  # the usual state, as both are as fast


def test_no_sharding_means_whole_states_on_every_replica_if_it_is_asked_for():
    def kinds(**options):
        return {
            (one["layout.data"] > 1, one["layout.distributed_optimizer"], one["layout.sharded"])
            for one in search_space(SMALL, **options).layouts()
            if one["layout.context"] == 1
        }

    assert kinds(only={"layout.sharding": ["none"]}) == {(True, False, False), (False, False, False)}
    assert (True, False, False) not in kinds()
    assert (False, False, False) in kinds()
    free = search_space(SMALL, only={"layout.sharding": ["none", "optimizer"]})
    points = [tuple(sorted(one.items())) for one in free.layouts()]
    assert len(points) == len({*points})  # one replica has nothing to shard: one point, not one per kind


def test_a_balanced_partition_can_be_set_in_a_config():
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml").changed({"layout.partition": "balanced"})
    run = config.simulate()
    even = config.changed({"layout.partition": "even"}).simulate()
    assert run.iteration_time < even.iteration_time
    assert run.layout_string == config.changed({"layout.partition": run.layout_string}).simulate().layout_string
    chosen = ppsim.choose(config, {"layout.partition": ["balanced"]})
    assert chosen.ranked[0].layout_string == run.layout_string


@pytest.mark.parametrize("framework", ["Megatron-LM", "PyTorch"])
def test_the_written_config_runs_as_the_table_says(framework, tmp_path):
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps({**SMALL, "layout": None}))
    few = [f"layout.{one}" for one in ("recompute=none", "microbatch_size=1", "context=1", "tensor=1")]
    few += ["schedule.devices=2", "schedule.name=1f1b,interleaved-1f1b,zb-v"]
    options = ["--framework", framework, *(word for one in few for word in ("--only", one))]
    outcome = run_ppsim("choose", path, *options, "-o", tmp_path / "best.yaml", "--json", "-")
    first = json.loads(outcome.out)["ranked"][0]
    run = json.loads(run_ppsim("simulate", tmp_path / "best.yaml", "--json", "-").out)
    assert run["iteration_time"] == first["iteration_time"]
    assert max(run["peak_memory"]) == first["peak_memory"]


@pytest.mark.parametrize(("typed", "name"), [("torchtitan", "PyTorch"), ("megatron", "Megatron-LM"), ("foo", "foo")])
def test_a_framework_may_be_typed_as_for_import(typed, name):
    outcome = run_ppsim("choose", LLAMA, "--framework", typed, "--only", "schedule.name=zb-h1")
    assert outcome.status == 2
    assert f"framework='{name}' is not known" in outcome.err or f"schedule.name: {name} runs none of" in outcome.err
