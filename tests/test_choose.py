"""Choose finds what simulating every point finds, and says what became of each point."""

import itertools
import json
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from command_line import LLAMA, UNIT_COSTS
from command_line import ppsim as run_ppsim

import ppsim
from ppsim.analysis import ScheduleSummary, layout_bounds, memory_bound, step_bound
from ppsim.studies import Candidate
from ppsim.studies.points import rank
from ppsim.studies.space import keeps_activations, search_space

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


def _candidate(step, **changes):
    changes = {"schedule.name": "1f1b", "schedule.devices": 4, "schedule.stages_per_device": None} | {
        f"{'schedule' if key in ('name', 'devices', 'stages_per_device') else 'layout'}.{key}": value
        for key, value in changes.items()
    }
    return Candidate(changes, {"iteration_time": step, "peak_memory": 1.0})


def test_of_equal_steps_the_simplest_is_ranked_and_the_others_are_counted():
    simplest_first = [
        _candidate(2.000003, devices=2, name="zb-v", recompute="full"),
        _candidate(2.000002),
        _candidate(2.000001, partition="E|t|t|L"),
        _candidate(2.0, recompute="full"),
        _candidate(1.999999, name="gpipe"),
        _candidate(1.999998, name="zb-h1"),
        _candidate(1.999997, name="interleaved-1f1b", stages_per_device=2),
    ]
    faster, slower = _candidate(1.9, devices=8), _candidate(2.1)
    for turn in range(len(simplest_first)):
        rest = simplest_first[turn:]
        ranked = rank([slower, *reversed(rest), faster], top=2)
        assert [(one.changes, one.alike) for one in ranked] == [(faster.changes, 0), (rest[0].changes, len(rest) - 1)]


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
    assert {one.changes["schedule.stages_per_device"] for one in found.ranked} == {2, 4}


def test_jitter_that_is_drawn_leaves_no_bound_on_the_step():
    quiet = ppsim.choose(SMALL, {"schedule.name": NAMES})
    noisy = ppsim.choose({**SMALL, "jitter": {"actions": 0.05, "seed": 1}}, {"schedule.name": NAMES})
    assert quiet.counts["step"] > 0 == noisy.counts["step"]


def test_a_balanced_partition_that_is_the_even_one_is_no_point_of_its_own():
    free = {"schedule.name": ["1f1b"], "schedule.devices": [1]}
    one, both = (ppsim.choose(SMALL, {**free, "layout.partition": cut}) for cut in (["even"], ["even", "balanced"]))
    assert one.counts == both.counts


def test_an_executor_gives_the_same_answer():
    free = {"schedule.name": NAMES, "schedule.devices": [2, 4], "layout.tensor": [1, 2]}
    here = ppsim.choose(SMALL, free)
    with ThreadPoolExecutor(2) as threads:
        there = ppsim.choose(SMALL, free, executor=threads)
    assert (here.ranked, here.front) == (there.ranked, there.front)


@pytest.mark.parametrize("layout", [{}, {"sharded": True}, {"recompute": "full"}, {"distributed_optimizer": True}])
@pytest.mark.parametrize(("devices", "tensor"), [(4, 1), (2, 4)])
def test_no_simulated_step_or_peak_is_below_its_bound(layout, devices, tensor):
    for name, overlap, optimizer in itertools.product(ppsim.schedules(), [False, True], ["sync", "post-validated"]):
        if "costs" in ppsim.schedules()[name].options:
            continue
        data = {
            **SMALL, "schedule": {"name": name, "devices": devices, "microbatches": 8}, "optimizer": optimizer,
            "layout": {"tensor": tensor, "data": 8 // devices // tensor, "overlap": overlap, **layout},
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
    seconds, size = layout_bounds(config.costs, 4, 8, config.optimizer, keeps=False)
    assert seconds <= run.iteration_time
    assert size <= run.peak_memory.max()


def test_families_that_move_activations_or_make_them_again_are_told_by_their_lists():
    kept = {name for name in ppsim.schedules() if keeps_activations(name)}
    assert {"1f1b", "zb-v", "chimera", "bpipe", "slimpipe", "pipedream"} <= kept
    assert not {"pipe-offload", "ripipe", "mario", "auto"} & kept


def test_the_bound_of_1f1b_with_equal_stages_is_its_step():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), ppsim.Costs(forward=1.0, backward=2.0))
    assert np.isclose(step_bound(ScheduleSummary.of(run.schedule), run.table), run.makespan)


def test_the_winner_is_a_config_that_gives_the_same_step():
    found = ppsim.choose(LLAMA, ["schedule.name", "layout.partition"])
    best = found.best
    assert best.run.iteration_time == found.ranked[0].step
    assert best.layout_string == best.config.data["layout"]["partition"]
    assert list(found.to_frame()["iteration_time"]) == [one.step for one in found.ranked]
    assert found.plot().axes[0].get_ylabel() == "step (s)"


def test_given_costs_are_chosen_by_the_step():
    found = ppsim.choose(UNIT_COSTS, ["schedule.name"])
    assert found.ranked[0].step < ppsim.load_config(UNIT_COSTS).simulate().makespan
    assert found.best.layout_string is None


def test_the_page_has_counts_reasons_and_what_it_takes_to_run_it():
    outcome = run_ppsim("choose", LLAMA, "--free", "schedule.name=1f1b,interleaved-1f1b", "--free", "layout.partition")
    assert outcome.status == 0
    for part in (
        "points: ",
        "why: ",
        "what the winner gains most on the mean device: ",
        "layout string: Et",
        "--pipeline-model-parallel-layout 'Et",
        "torchtitan, 0.3.0:",
    ):
        assert part in " ".join(outcome.out.split())  # lines are wrapped


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
    assert "nothing fits with 99.0 % of the memory kept free" in outcome.out


@pytest.mark.parametrize(
    ("data", "free", "fault"),
    [
        ({**SMALL, "batch": None}, None, "batch is missing"),
        ({**SMALL, "hardware": {**SMALL["hardware"], "gpus": None}}, None, "hardware.gpus is missing"),
        (SMALL, ["layout.data"], "'layout.data' cannot be free; use some of: layout.tensor"),
        (SMALL, {"layout.tensor": ["abc"]}, "layout.tensor: 'abc' must be a whole number of at least 1, such as 2"),
        (SMALL, {"schedule.devices": [0]}, "schedule.devices: 0 must be a whole number"),
        (SMALL, {"layout.sharding": ["some"]}, "'some' is not known; use some of: none, optimizer, weights"),
        (SMALL, {"layout.partition": ["odd"]}, "'odd' is no partition; use one of: even"),
        (SMALL, {"layout.recompute": ["half"]}, "recompute='half'"),
        (SMALL, {"schedule.name": ["1f1c"]}, "unknown schedule '1f1c'; did you mean"),
        (UNIT_COSTS, ["layout.tensor"], "layout.tensor cannot be chosen where costs are given"),
        (UNIT_COSTS, ["schedule.devices"], "schedule.devices cannot be chosen where costs are given"),
    ],
)
def test_what_is_missing_is_named(data, free, fault):
    with pytest.raises(ppsim.PpsimError, match=fault):
        ppsim.choose(data, free)


def test_of_a_framework_only_the_schedules_that_it_runs_are_tried():
    found = ppsim.choose(SMALL, framework="Megatron-LM", headroom=0)
    assert {one.changes["schedule.name"] for one in found.front} == {"1f1b", "interleaved-1f1b"}
    by_block = {**SMALL, "layout": {**SMALL["layout"], "sharded_by": "block"}}  # as Megatron FSDP shards
    same = ppsim.choose(by_block, only={"schedule.name": ["1f1b", "interleaved-1f1b"]}, headroom=0)
    assert (found.ranked, found.front, found.counts) == (same.ranked, same.front, same.counts)


@pytest.mark.parametrize(
    ("framework", "free", "sentence"),
    [
        ("megatron", None, "framework='megatron' is not known; use one of: Megatron-LM, Primus, PyTorch"),
        ("", None, "framework='' is not known"),
        ("PyTorch", {"schedule.name": ["zb-v"]}, "framework=PyTorch and schedule.name both say which schedules to try"),
    ],
)
def test_a_framework_that_is_not_known_or_beside_names_is_refused(framework, free, sentence):
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
