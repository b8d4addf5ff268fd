"""`ppsim explain`: where a real step's time goes is said in seconds by cause, exactly where the cause is known."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import UNIT_COSTS
from command_line import ppsim as command
from matplotlib.text import Text
from pages import texts
from primus_dumps import recorded, write_dump
from synthetic_traces import read_document, trace_document

import ppsim
from ppsim.engines import Times, run_plan
from ppsim.frameworks import SCHEDULES
from ppsim.interop.kineto import read_any_trace
from ppsim.plan import make_plan
from ppsim.studies import calibrate

SLOW_STEP = Path(__file__).resolve().parents[1] / "validation" / "data" / "cpu" / "slow-step"
COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)


def measured(name="1f1b", costs=COSTS, slow=(), slow_link=None, devices=4, microbatches=8, **options):
    """A run that stands for a real one: `slow` lists (row, factor) of actions that took longer.

    Transfers of `slow_link` (sender, receiver) take 0.5 s.
    """
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    table = costs.table(schedule)
    plan = make_plan(schedule, table, "async")
    seconds = plan.seconds.copy()
    for row, factor in slow:
        seconds[row] *= factor
    transfers = plan.transfer_seconds.copy()
    if slow_link:
        sender, receiver = slow_link
        transfers[(schedule.device[schedule.source] == sender) & (schedule.device == receiver) & plan.remote] = 0.5
    plan = replace(plan, row_lengths=seconds, transfer_lengths=transfers)
    _, times = run_plan(plan, "event")
    return ppsim.Timeline.of(ppsim.Timeline(plan, table, costs, times, engine="measured"))


def test_a_simulation_explained_by_itself_differs_in_nothing():
    run = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), COSTS)
    explanation = ppsim.explain(run, run)
    assert all(value == pytest.approx(0.0, abs=1e-9) for value in explanation.difference.values())
    assert explanation.slow == []


@pytest.mark.parametrize(
    ("costs", "cause"),
    [
        (ppsim.Costs(forward=1.5, backward=2.0, latency=0.1), "F"),
        (ppsim.Costs(forward=1.0, backward=2.5, latency=0.1), "B"),
        (ppsim.Costs(forward=1.0, backward=2.0, latency=0.4), "transfers"),
    ],
)
def test_a_difference_of_one_cause_is_found_whole_under_it(costs, cause):
    real = measured(costs=costs)
    simulated = ppsim.simulate(real.schedule, COSTS)
    difference = ppsim.explain(real, simulated).difference
    assert difference[cause] == pytest.approx(real.makespan - simulated.makespan)
    assert sum(difference.values()) == pytest.approx(real.makespan - simulated.makespan)


def test_another_schedule_is_a_cause_of_its_own():
    real = measured("gpipe")
    simulated = ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=8), COSTS)
    difference = ppsim.explain(real, simulated).difference
    assert difference["schedule"] == pytest.approx(real.makespan - simulated.makespan)


def test_a_straggler_is_noise_and_is_named():
    real = measured(slow=[(3, 4.0)])
    explanation = ppsim.explain(real, ppsim.simulate(real.schedule, COSTS))
    assert explanation.difference["noise"] == pytest.approx(sum(explanation.difference.values()))
    assert explanation.variants["no stragglers"] == pytest.approx(ppsim.simulate(real.schedule, COSTS).makespan)
    worst = explanation.slow[0]
    assert (worst.where, worst.seconds, worst.expected) == (real.schedule.label(3), 4.0, 1.0)
    assert any(one.what == "microbatch" and one.where == "microbatch 3" for one in explanation.slow)


def test_devices_before_a_straggler_stall_by_the_time_that_it_takes_longer():
    row = [label for order in ppsim.build("1f1b", devices=4, microbatches=8).orders() for label in order].index("3B3")
    stalls = ppsim.explain(measured(slow=[(row, 4.0)])).stalls  # 8 s instead of 2 s
    assert [one.where for one in stalls] == ["0B3", "1B3", "2B3"]
    assert [one.excess for one in stalls] == pytest.approx([6.0] * 3)
    assert [one.seconds for one in stalls] == pytest.approx([6.2, 6.2, 6.0])  # 2B3 hides both transfers otherwise
    assert ppsim.explain(measured()).stalls == []


def test_overhead_on_the_way_to_a_late_input_ends_where_the_device_was_busy():
    # Device 1 waits from 2 to 5.1: 0F1 takes 1 s and starts 0.1 s after 0B0, which began at 2.
    orders = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    start, end = [[0, 2, 4.1, 6], [1, 1.5, 5.1, 5.5]], [[1, 4, 5.1, 7], [1.5, 2, 5.5, 6]]
    document = {"schema": "ppsim.trace/1", "orders": orders, "steps": [{"issue": start, "start": start, "end": end}]}
    idle = ppsim.Timeline.of(read_document(document).timeline()).ledger()
    assert idle["overhead"].tolist() == pytest.approx([0.1, 0.1])
    found = sum(idle[cause][1] for cause in ("dependency", "imbalance", "jitter", "transfer"))
    assert found == pytest.approx(3.0)


def test_a_slow_stage_is_named_and_equal_stages_would_take_the_mean():
    forward = [1.0, 1.0, 1.0, 1.4]
    real = measured(costs=ppsim.Costs(forward=forward, backward=2.0, latency=0.1))
    explanation = ppsim.explain(real)
    assert [(one.what, one.where) for one in explanation.slow] == [("stage", "3F")]
    assert explanation.slow[0].excess == pytest.approx(8 * 0.4)
    even = ppsim.simulate(real.schedule, ppsim.Costs(forward=1.1, backward=2.0, latency=0.1))
    assert explanation.variants["equal stages"] == pytest.approx(even.makespan)


def test_a_slow_link_is_named_and_free_links_are_the_run_without_latency():
    real = measured(slow_link=(1, 2))
    explanation = ppsim.explain(real)
    assert [(one.what, one.where) for one in explanation.slow] == [("link", "1-2")]
    free = ppsim.simulate(real.schedule, ppsim.Costs(forward=1.0, backward=2.0))
    assert explanation.variants["free links"] == pytest.approx(free.makespan)


def test_the_better_schedule_is_faster_within_the_same_peak_and_weights():
    real = measured("gpipe", costs=ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0))
    better = ppsim.explain(real).better
    assert better is not None
    run = ppsim.simulate(
        ppsim.build(better.schedule, devices=4, microbatches=8, stages_per_device=better.stages_per_device), real.costs
    )
    assert run.makespan == pytest.approx(better.step)
    assert run.makespan < real.makespan
    assert run.peak_activations.max() <= real.peak_activations.max()
    assert run.schedule.weight_copies.max() <= real.schedule.weight_copies.max()


@pytest.mark.parametrize("framework", ["Megatron-LM", "Primus", "PyTorch", ""])
def test_the_better_schedule_is_one_that_the_framework_runs(framework):
    """With activations of all microbatches allowed, asynchronous and sliced families would be shorter."""
    real = measured("gpipe", costs=ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0))
    explanation = ppsim.explain(real, framework=framework)
    run_by = [SCHEDULES[framework]] if framework else SCHEDULES.values()
    names = [name for name in ppsim.schedules() if any(name in some for some in run_by)]
    assert explanation.better is not None
    assert explanation.better.schedule in names
    assert not {"pipedream", "pipedream-2bw", "slimpipe", "seq1f1b", "terapipe"} & {*names}
    assert any(", ".join(names) in note for note in explanation.notes)


def test_megatron_lm_has_nothing_better_than_interleaving_and_interleaving_takes_more_memory():
    real = measured("1f1b")
    assert ppsim.explain(real, framework="Megatron-LM").better is None
    assert ppsim.explain(real, framework="PyTorch").better is not None
    with pytest.raises(ppsim.ConfigError, match="framework='megatron' is not known; did you mean Megatron-LM"):
        ppsim.explain(real, framework="megatron")


def test_shorter_chunks_pay_the_overhead_of_an_action_and_the_head_whole():
    """Actions of 10 and 20 ms, 1 ms apart, and a head of 4 ms: interleaving takes the parts apart, not these."""
    costs = ppsim.Costs(forward=[0.01, 0.01, 0.01, 0.014], backward=0.02)
    trace = read_document(trace_document("gpipe", costs, overhead=0.001), "made")
    real = ppsim.Timeline.of(trace.timeline())
    better = ppsim.explain(real, framework="Megatron-LM").better
    assert better.schedule == "interleaved-1f1b"
    chunks = ppsim.simulate(
        ppsim.build("interleaved-1f1b", devices=4, microbatches=8, stages_per_device=2),
        ppsim.Costs(forward=[0.006] * 7 + [0.010], backward=[0.011] * 8, per="stage"),
    )
    assert better.step == pytest.approx(chunks.makespan)


def test_a_better_schedule_is_certain_where_the_intervals_do_not_meet(tmp_path):
    folder, _ = dump(tmp_path)
    trace = read_any_trace(folder)
    better = ppsim.explain(ppsim.Timeline.from_trace(folder), profile=calibrate([trace])).better
    assert better.interval[0] < better.step < better.interval[1]
    assert better.certain == (better.interval[1] < better.step_now * math.exp(-1.645 * 0.02))


def test_a_step_that_waits_for_what_no_trace_shows_is_said_to_be_taken_apart_roughly():
    """One action starts a whole microbatch late, which no action and no transfer explains."""
    run = measured("1f1b", devices=2, microbatches=4)
    late = np.where(run.row_start >= 6.0, 3.0, 0.0)
    times = Times(run.row_start + late, run.row_end + late, run.transfer_start, run.transfer_end)
    waiting = ppsim.Timeline.of(ppsim.Timeline(run.plan, run.table, run.costs, times, engine="measured"))
    assert not any("rough" in note for note in ppsim.explain(run).notes)
    assert any("rough" in note for note in ppsim.explain(waiting).notes)


def test_a_trace_says_which_framework_it_is_of(tmp_path):
    assert ppsim.Timeline.from_trace(dump(tmp_path)[0]).framework == "Primus"
    assert ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2)).framework == ""


def test_sizes_that_do_not_match_are_refused_with_what_to_set():
    real = measured()
    other = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=8), COSTS)
    with pytest.raises(ppsim.ConfigError, match=r"\(4, 8\).*\(2, 8\).*--set schedule.devices=4"):
        ppsim.explain(real, other)
    with pytest.raises(ppsim.ConfigError, match=r"measured=.* must be a Timeline"):
        ppsim.explain("trace.json")  # type: ignore[arg-type]


def dump(folder):
    run = ppsim.simulate(
        ppsim.build("1f1b", devices=4, microbatches=8), ppsim.Costs(forward=[1, 1, 1, 1.3], backward=2.0, latency=0.1)
    )
    return write_dump(folder, run), run


@pytest.mark.parametrize("ending", ["png", "svg", "html"])
def test_the_command_prints_tables_and_writes_picture_json_and_costs(tmp_path, ending):
    folder, run = dump(tmp_path / "run")
    picture, costs = tmp_path / f"x.{ending}", tmp_path / "costs.yaml"
    outcome = command("explain", folder, UNIT_COSTS, "--gantt", picture, "--profile", costs, "-v")
    assert outcome.status == 0
    for words in (
        "step",
        "simulated",
        "idle by cause",
        "equal stages",
        "3F",
        "no larger activation peak",
        "one that Primus can run",
        "exposed",
        "step 1 of 0-2 (the median one) is explained",
    ):
        assert words in " ".join(outcome.out.split())
    assert "begin and end of single transfers are not recorded" in outcome.err
    assert picture.stat().st_size > 5000
    if ending == "html":
        steps = texts(picture.read_text(encoding="utf-8"))[2][1]
        assert (steps["numbers"], steps["shown"], sorted(steps["charts"])) == ([0, 1, 2], 1, ["0", "2"])
        assert "<p><span>zb-v would take 21.4 % less time</span></p>" in picture.read_text(encoding="utf-8")
    again = command("simulate", "--schedule", "1f1b", "--devices", 4, "--microbatches", 8, "--json", "-")
    assert again.status == 0
    config = tmp_path / "again.yaml"
    config.write_text("schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {profile: costs.yaml}\n")
    assert ppsim.load_config(config).simulate().makespan == pytest.approx(run.makespan, rel=0.01)


def test_the_answer_is_the_step_its_idle_time_and_what_would_shorten_it(tmp_path):
    folder, _ = dump(tmp_path / "run")
    outcome = command("explain", folder, UNIT_COSTS)
    lines = outcome.out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    assert [line.split()[0] for line in lines if line[:1].strip()] == [
        "step",
        "simulated",
        "bubble",
        "family",
        "steps",
        "gain",
        "trust",
    ]
    text = " ".join(outcome.out.split())
    for words in (
        "step 1 of 0-2 (the median one) is explained",
        "equal stages: F of stage 3",
        "no larger activation peak",
        "replayed from",
    ):
        assert words in text


def test_the_json_document_holds_all_of_it(tmp_path):
    folder, run = dump(tmp_path / "run")
    document = json.loads(command("explain", folder, UNIT_COSTS, "--json", "-").out)
    assert document["schema"] == "ppsim.explain/1"
    assert document["measured"]["step"] == pytest.approx(run.makespan)
    gap = document["measured"]["step"] - document["simulated"]["step"]
    assert sum(document["difference"].values()) == pytest.approx(gap)
    assert {"no overhead", "no stragglers", "equal stages", "free links", "all of these"} == set(document["variants"])
    assert document["slow"][0]["where"] == "3F"
    assert document["communication"]["exposed"] > 0
    assert "waits for a transfer" in document["definitions"]["communication exposed"]


def test_wrong_calls_get_one_message(tmp_path):
    folder, _ = dump(tmp_path / "run")
    for arguments, said in (
        ((folder, "--gantt", "x.gif"), ".html"),
        ((tmp_path / "nowhere",), "cannot be read"),
        ((folder, "--step", 99), "step 99 was not recorded"),
        ((folder, UNIT_COSTS, "--set", "schedule.microbatches=4"), "simulate the same sizes"),
        ((folder, "--set", "schedule.name=zb-h1"), "--set schedule.name=zb-h1 changes a config; give one after"),
        ((next(folder.glob("pp_rank_*.json")),), "a folder with one file per rank"),
    ):
        outcome = command("explain", *arguments)
        assert outcome.status == 2
        assert said in outcome.err
        assert outcome.err.strip().splitlines()[-1].startswith("ppsim: ")


@pytest.mark.parametrize("run", ["made", *map(str, recorded("pp8")), *map(str, recorded("pp8_vpp2"))])
def test_runs_with_a_head_have_a_slow_last_stage_and_their_differences_sum_up(tmp_path, run):
    real = ppsim.Timeline.from_trace(dump(tmp_path)[0] if run == "made" else run)
    simulated = ppsim.simulate(real.schedule, ppsim.Costs(forward=0.06, backward=0.07))
    explanation = ppsim.explain(real, simulated)
    assert sum(explanation.difference.values()) == pytest.approx(real.makespan - simulated.makespan)
    last = real.schedule.num_stages - 1
    assert f"{last}F" in {one.where for one in explanation.slow}
    assert explanation.variants["all of these"] < explanation.variants["equal stages"] < real.makespan


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "zb-v"])
def test_the_family_of_a_measured_order_is_recognized(name):
    found = ppsim.explain(measured(name)).recognized
    assert (found.family, found.moved) == (name, 0)


def test_how_far_an_order_is_from_its_family_is_the_fewest_actions_to_move():
    orders = ppsim.build("1f1b", devices=4, microbatches=8).orders()
    moved = orders[1].index("1B0")
    orders[1].insert(moved + 2, orders[1].pop(moved))  # device 1 runs one forward and one backward before 1B0
    schedule = ppsim.Schedule.from_orders([["0F0", *orders[0][1:]], *orders[1:]])
    run = ppsim.simulate(schedule, COSTS)
    found = ppsim.explain(run).recognized
    assert (found.family, found.moved, found.actions) == ("1f1b", 1, 64)


def test_an_order_of_other_actions_than_any_family_has_is_recognized_as_none():
    run = ppsim.simulate(ppsim.Schedule.from_orders([["0F0", "1F0", "2F0", "2B0", "1I0", "0B0", "1W0"]]), COSTS)
    assert ppsim.explain(run).recognized is None


def test_a_picture_marks_the_straggler_and_a_notebook_shows_what_the_step_would_be():
    recording = read_any_trace(SLOW_STEP)
    found = ppsim.explain(ppsim.Timeline.of(recording.timeline(3)))
    texts = [text.get_text() for text in found.plot().findobj(Text)]
    assert any(text.startswith("B of microbatch 4, stage 1, takes 141 ms, usually 20.6 ms; ") for text in texts)
    assert {"measured", "simulated"} <= {*texts}
    page = found._repr_html_()
    assert [name for name in found.variants if f">{name}</td>" not in page] == []
    assert ">base</td>" in page
    assert "why longer than simulated" not in page
    costs = ppsim.Costs(forward=0.01, backward=0.02)
    simulated = ppsim.explain(found.measured, ppsim.simulate(found.measured.schedule, costs))
    assert "why longer than simulated" in simulated._repr_html_()
