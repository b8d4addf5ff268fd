"""PyTorch profiler traces of its pipeline runtime, one file a rank, are read as a measured trace.

tests/data/kineto was recorded by `torchrun --nproc-per-node 2 validation/profile_pytorch.py --schedule zb-v`.
"""

import gzip
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from command_line import ppsim as command
from pages import texts

import ppsim
from ppsim.interop import events
from ppsim.interop.kineto import read_kineto
from ppsim.studies import calibrate

RECORDED = Path(__file__).parent / "data" / "kineto"
MICROSECOND = 1e-6


def test_a_recorded_run_has_the_order_of_its_schedule_and_keeps_causality():
    trace = read_kineto(RECORDED)
    expected = ppsim.lower(ppsim.build("zb-v", devices=2, microbatches=4), sharded=True)
    assert ppsim.Schedule.of(trace.program).orders() == expected.orders()
    assert trace.start.shape == (2, len(expected.kind))
    compute, start, end = trace.program.compute, trace.start[:, trace.compute], trace.end[:, trace.compute]
    assert np.isfinite(start).all()
    assert np.isfinite(end).all()
    assert (end > start).all()
    needs = np.flatnonzero(compute.source >= 0)
    assert (start[:, needs] >= end[:, compute.source[needs]] - MICROSECOND).all()
    arrivals = trace.transfer_times(0)[1]
    known = np.isfinite(arrivals)
    assert known.any()
    assert (start[0, trace.transfers[0]][known] >= arrivals[known]).all()


def test_it_is_drawn_calibrated_and_says_what_it_does_not_show():
    trace = read_kineto(RECORDED)
    run = ppsim.Timeline.of(trace.timeline())
    assert 0 < run.bubble_fraction < 1
    assert run.to_text()
    assert "ends of transfers are missing; a profiler shows those that an action waited for" in trace.notes[0]
    profile = calibrate([trace])
    assert set(profile.seconds) == {"F", "I", "W"}
    assert all(0 < value < 0.1 for value in profile.seconds["F"])


def ranges(rank, spans, base=0, category="user_annotation", **more):
    events = [
        {"ph": "X", "cat": category, "name": name, "ts": start * 1e3, "dur": (end - start) * 1e3, "pid": 1, "tid": 1}
        for name, start, end in spans
    ]
    head = {"distributedInfo": {"rank": rank}, "baseTimeNanoseconds": base, "host_name": "host"}
    return {**head, **more, "traceEvents": [{"ph": "M", "name": "process_name"}, *events]}


def write(folder, *documents):
    for number, document in enumerate(documents):
        (folder / f"{number}.json").write_text(json.dumps(document))


SENDER = [("PP:0F0", 1, 3), ("PP:0SEND_F0", 3, 4), ("PP:0RECV_B0", 4, 5), ("PP:0B0", 5, 12), ("gloo:recv", 4.5, 10)]
RECEIVER = [("PP:1RECV_F0", 0, 1), ("gloo:recv", 0.5, 4), ("PP:1F0", 1, 6), ("PP:1B0", 6, 9), ("PP:1SEND_B0", 9, 9.5)]


def test_clocks_of_files_with_different_bases_are_aligned_and_waits_are_not_compute(tmp_path):
    later = [(name, start - 2, end - 2) for name, start, end in RECEIVER]
    write(tmp_path, ranges(1, later, base=2_000_000), ranges(0, SENDER))
    trace = read_kineto(tmp_path)
    assert ppsim.Schedule.of(trace.program).orders() == [
        ["0F0", "0SEND_F0", "0RECV_B0", "0B0"],
        ["1RECV_F0", "1F0", "1B0", "1SEND_B0"],
    ]
    run = ppsim.Timeline.of(trace.timeline())
    np.testing.assert_allclose(run.start * 1e3, [1, 10, 4, 6])  # milliseconds from the first range; 1F0 waits until 4
    np.testing.assert_allclose(run.end * 1e3, [3, 12, 6, 9])
    np.testing.assert_allclose(run.transfer_end[[1, 2]] * 1e3, [10, 4])


def test_ranges_on_the_gpu_go_before_those_on_the_host(tmp_path):
    host, gpu = (
        ranges(0, [("PP:0F0", 0, 1), ("PP:0B0", 1, 2)]),
        ranges(0, [("PP:0F0", 5, 7)], category="gpu_user_annotation"),
    )
    host["traceEvents"] += gpu["traceEvents"]
    host["traceEvents"][2]["ts"] = 8e3
    host["deviceProperties"] = [{"name": "a GPU"}]
    write(tmp_path, host)
    trace = read_kineto(tmp_path)
    assert trace.device_name == "a GPU"
    np.testing.assert_allclose(trace.timeline().start * 1e3, [0, 3])
    np.testing.assert_allclose(trace.timeline().end * 1e3, [2, 4])


def test_a_range_on_several_streams_of_a_gpu_is_that_of_the_busiest(tmp_path):
    """0F0 gathers weights on a stream of collectives before it computes; each stream has its own range of it."""
    host = ranges(0, [("PP:0F0", 0, 1), ("PP:0B0", 1, 2), ("PP:0REDUCE_GRAD", 2, 2.1)])
    for stream, spans in (
        (7, [("PP:0F0", 5, 7), ("PP:0B0", 8, 12)]),
        (20, [("PP:0F0", 1, 4), ("PP:0REDUCE_GRAD", 12, 14)]),
    ):
        gpu = ranges(0, spans, category="gpu_user_annotation")["traceEvents"][1:]
        host["traceEvents"] += [{**event, "tid": stream} for event in gpu]
    write(tmp_path, host)
    trace = read_kineto(tmp_path)
    assert trace.start.shape[0] == 1
    np.testing.assert_allclose(trace.start[0] * 1e3, [0, 3, 7])
    np.testing.assert_allclose(trace.end[0] * 1e3, [2, 7, 9])


def test_the_parts_of_a_fused_slot_are_told_apart_by_autograd(tmp_path):
    spans = [("PP:0F0", 0, 1), ("PP:(0F1;0B0)OVERLAP_F_B", 1, 5), ("PP:0B1", 5, 8)]
    engine = [
        ("autograd::engine::evaluate_function: MulBackward0", 2.5, 3),
        ("autograd::engine::evaluate_function", 3, 4),
    ]
    write(tmp_path, ranges(0, spans + engine))
    trace = read_kineto(tmp_path)
    np.testing.assert_allclose(trace.start[0] * 1e3, [0, 1, 2.5, 5])
    np.testing.assert_allclose(trace.end[0] * 1e3, [1, 2.5, 5, 8])
    write(tmp_path, ranges(0, spans))
    assert "2 of 4 actions are missing" in read_kineto(tmp_path).notes[0]


@pytest.mark.parametrize(
    ("documents", "said"),
    [
        ([], "has no profiler trace"),
        (
            [ranges(1, SENDER)],
            "has files of rank 1; one file is needed for each rank from 0 on, and none of these runs stage 1",
        ),
        ([ranges(0, [("aten::mm", 0, 1)])], "no range is named PP:<action>"),
        ([ranges(0, [("PP:0F0", 0, 1), ("PP:0G0", 1, 2)])], "the PP: ranges are no valid program"),
        (
            [ranges(0, [("PP:9999999999F0", 0, 1)])],
            "none of these runs stages 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19 and "
            "9999999979 more",
        ),
        ([ranges(0, [(f"PP:{'1' * 5000}F0", 0, 1)])], "is above the largest allowed"),
        ([ranges(0, [(f"PP:{'1' * 5000}SEND_F0", 0, 1)])], "is above the largest allowed"),
        ([ranges(0, [(f"Forward {'1' * 5000}", 0, 1), ("Backward 0", 1, 2)])], "it must be the microbatch"),
        ([ranges(0, [("backward_step", 0, 1), ("forward_step", 1, 2)])], "the Megatron-LM ranges are no valid program"),
        ([{"traceEvents": []}], "'distributedInfo' is missing"),
        ([{"schema": "ppsim.trace/1", "traceEvents": []}], "a file of the replay harness holds all ranks"),
        ([[1]], "not a profiler trace"),
        ([ranges("x", SENDER)], "not a profiler trace"),
    ],
)
def test_folders_that_hold_no_such_run(tmp_path, documents, said):
    write(tmp_path, *documents)
    outcome = command("calibrate", tmp_path, "-o", tmp_path / "profile.yaml")
    assert outcome.status in (1, 2)
    assert said in outcome.err
    assert outcome.err.startswith(f"ppsim: {tmp_path}")


def test_damaged_archives(tmp_path):
    (tmp_path / "0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [')[:-6])
    with pytest.raises(ppsim.ConfigError, match="not a profiler trace"):
        read_kineto(tmp_path)
    (tmp_path / "0.json.gz").write_bytes(b"no archive")
    with pytest.raises(ppsim.ConfigError, match="not a profiler trace"):
        read_kineto(tmp_path)


def pipeline(name="1f1b", devices=4, microbatches=8, stages=None):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, stages_per_device=stages)
    return ppsim.simulate(schedule, ppsim.Costs(forward=0.01, backward=0.02, latency=0.001))


def named(run, device, name, shift=0.0):
    """The actions of a device as ranges that `name(kind, microbatch)` names, milliseconds."""
    rows = range(*run.schedule.offsets[device : device + 2])
    words = [(run.schedule.kind[row], int(run.schedule.microbatch[row]), row) for row in rows]
    return [
        (name("FB"[int(kind != 0)], number), (run.row_start[row] + shift) * 1e3, (run.row_end[row] + shift) * 1e3)
        for kind, number, row in words
    ]


MEGATRON = "/opt/megatron/core/pipeline_parallel/schedules.py(301): "
PIPELINING = "torch/distributed/pipelining/stage.py(857): "
NAMES = {
    "torchtitan": lambda kind, number: f"{'Forward' if kind == 'F' else 'Backward'} {number}",
    "megatron functions": lambda kind, _: MEGATRON + ("forward_step" if kind == "F" else "backward_step"),
    "PyTorch functions": lambda kind, _: PIPELINING + ("forward" if kind == "F" else "backward") + "_one_chunk",
    "megatron timers": lambda kind, _: "forward-compute" if kind == "F" else "backward-compute",
}


@pytest.mark.parametrize("names", NAMES)
def test_ranges_of_other_frameworks_are_told_by_pattern_order_and_count(tmp_path, names):
    run = pipeline()
    write(tmp_path, *(ranges(device, named(run, device, NAMES[names])) for device in range(4)))
    measured = ppsim.Timeline.from_trace(tmp_path)
    assert measured.schedule == run.schedule
    assert measured.framework == ("Megatron-LM" if names.startswith("megatron") else "PyTorch")
    np.testing.assert_allclose(measured.start, run.start, atol=1e-9)


def test_chunks_and_steps_of_megatron_s_interleaved_schedule_are_found(tmp_path):
    run = pipeline("interleaved-1f1b", stages=2)
    steps = [("ProfilerStep#3", 0.0, 900.0), ("ProfilerStep#4", 1000.0, 1900.0)]
    name = NAMES["megatron functions"]
    inner = [("forward_step", 1.0, 2.0)]  # the user's function within Megatron's is not an action of its own
    spans = [named(run, device, name) + named(run, device, name, shift=1.0) + steps for device in range(4)]
    write(tmp_path, ranges(0, spans[0] + inner), *(ranges(device, spans[device]) for device in range(1, 4)))
    trace = read_kineto(tmp_path)
    assert trace.program == run.schedule
    assert trace.start.shape[0] == 2
    assert ppsim.Timeline.from_trace(tmp_path, 1).makespan == pytest.approx(run.makespan)


def test_a_range_that_begins_with_the_wait_for_its_input_is_the_computation_after_it(tmp_path):
    """PyTorch's GPipe receives within `Forward 0`: the second rank waits from 0 to 2 ms, and the first from 3 to 6."""
    first = [("Forward 0", 0, 1), ("Backward 0", 3, 8), ("gloo:recv", 3, 6), ("gloo:send", 1, 2)]
    second = [("Forward 0", 0, 3), ("gloo:recv", 0.1, 2), ("Backward 0", 3, 5), ("gloo:send", 5, 6)]
    write(tmp_path, ranges(0, first), ranges(1, second))
    run = ppsim.Timeline.from_trace(tmp_path)
    np.testing.assert_allclose(run.start * 1e3, [0, 6, 2, 3])
    np.testing.assert_allclose(run.end * 1e3, [1, 8, 3, 5])


def launched(spans, behind):
    """Two launches within each span on the host, whose kernels run `behind` ms later and share its length."""
    events = []
    for number, (_, start, end) in enumerate(spans):
        for part in range(2):
            launch = {"ph": "X", "name": "cudaLaunchKernel", "ts": (start + 0.01 * part) * 1e3, "dur": 2}
            kernel = {"ph": "X", "name": "gemm", "ts": (start + behind + part * (end - start) / 2) * 1e3}
            correlation = {"correlation": 2 * number + part}
            events.append({**launch, "cat": "cuda_runtime", "args": correlation})
            events.append({**kernel, "cat": "kernel", "dur": (end - start) / 2 * 1e3, "args": correlation})
    waits = {
        "ph": "X",
        "name": "ncclDevKernel_SendRecv",
        "cat": "kernel",
        "ts": 0,
        "dur": 9e9,
        "args": {"correlation": 0},
    }
    return [
        *events,
        waits,
        {**waits, "name": "gemm", "args": {"correlation": 10**400}},
        {**waits, "name": "gemm", "dur": -9e9},
    ]


@pytest.mark.parametrize("names", ["megatron functions", "PyTorch functions"])
def test_functions_of_the_host_last_as_long_as_the_kernels_that_they_launch(tmp_path, names):
    """Every host call returns after a tenth of its kernels' time, and these run 0.3 ms after it began."""
    run = pipeline(devices=2)
    for rank in range(2):
        spans = named(run, rank, NAMES[names])
        calls = [(name, start, start + (end - start) / 10) for name, start, end in spans]
        document = ranges(rank, calls)
        document["traceEvents"] += launched(spans, behind=0.3)
        (tmp_path / f"{rank}.json").write_text(json.dumps(document))
    measured = ppsim.Timeline.from_trace(tmp_path)
    assert measured.schedule == run.schedule
    np.testing.assert_allclose(measured.end - measured.start, run.end - run.start, atol=1e-9)
    np.testing.assert_allclose(measured.start, run.start, atol=1e-9)


def copies(spans, groups):
    """Files of pipelines of two ranks each, side by side: ranks 0 and 2, 1 and 3, the second pipeline 1 ms later."""
    for rank in range(4):
        config = [
            {"pg_desc": "default_pg", "ranks": [0, 1, 2, 3]},
            {"pg_desc": groups, "ranks": [rank % 2, rank % 2 + 2]},
        ]
        later = [(name, start + rank % 2, end + rank % 2) for name, start, end in spans[rank // 2]]
        document = ranges(rank, later)
        document["distributedInfo"] = {"rank": rank, "world_size": 4, "pg_config": config if groups else []}
        yield document


@pytest.mark.parametrize("groups", ["mesh_pp", "PIPELINE_MODEL_PARALLEL_GROUP", ""])
def test_of_pipelines_side_by_side_the_first_whole_one_is_read(tmp_path, groups):
    """`PP:` ranges name stages, which tell the copies apart where the profiler does not name the groups."""
    write(tmp_path, *copies((SENDER, RECEIVER), groups))
    trace = read_kineto(tmp_path)
    assert trace.program.devices == 2
    np.testing.assert_allclose(trace.timeline().start * 1e3, [1, 10, 4, 6])
    assert any("several pipelines; that of ranks 0, 2 is read" in note for note in trace.notes)
    (tmp_path / "0.json").unlink()
    if groups:
        np.testing.assert_allclose(read_kineto(tmp_path).timeline().start * 1e3, [1, 10, 4, 6])
        (tmp_path / "3.json").unlink()
        with pytest.raises(
            ppsim.ConfigError, match=r"files of ranks 1, 2; .* rank 0 runs on ranks 0, 2: add the file of"
        ):
            read_kineto(tmp_path)


def test_all_pipelines_of_a_job_are_on_one_page(tmp_path):
    (tmp_path / "traces").mkdir()
    write(tmp_path / "traces", *copies((SENDER, RECEIVER), "mesh_pp"))
    outcome = command(
        "explain", tmp_path / "traces", "--json", tmp_path / "x.json", "--gantt", tmp_path / "x.html", "-v"
    )
    assert "slowest of 1 other pipeline of the job: ranks 1, 3" in " ".join(outcome.out.split())
    document = json.loads((tmp_path / "x.json").read_text())
    assert [one["ranks"] for one in document["pipelines"]] == [[1, 3]]
    assert document["pipelines"][0]["step"] == pytest.approx(document["measured"]["step"])
    assert "measured, ranks 1, 3" in json.dumps(texts((tmp_path / "x.html").read_text())[2])


def test_two_steps_are_two_steps_and_the_time_between_them_has_a_row(tmp_path):
    twice = [[*spans, *((name, start + 30, end + 34) for name, start, end in spans)] for spans in (SENDER, RECEIVER)]
    write(tmp_path, *(ranges(rank, spans) for rank, spans in enumerate(twice)))
    trace = read_kineto(tmp_path)
    assert len(trace.step_seconds) == 2
    explanation = ppsim.explain(ppsim.Timeline.of(trace.timeline()), trace=trace)
    steps = explanation.steps
    assert steps.median == pytest.approx(trace.step_seconds.mean())
    ends = np.nanmax(trace.end[0]), np.nanmin(trace.start[1])
    assert ends[1] == 0
    assert steps.between == pytest.approx(0.030 - ends[0])
    out = command("explain", tmp_path, "-v").out
    assert "mean of " in out
    assert "between two steps" in out


@pytest.mark.parametrize("missing", [0, 1, 3])
def test_a_missing_rank_is_named_by_the_ranks_that_are_there(tmp_path, missing):
    run = pipeline()
    write(tmp_path, *(ranges(device, named(run, device, NAMES["torchtitan"])) for device in range(4)))
    for path in tmp_path.glob("*.json"):
        document = json.loads(path.read_text())
        document["distributedInfo"]["world_size"] = 4
        path.write_text(json.dumps(document))
    (tmp_path / f"{missing}.json").unlink()
    there = ", ".join(str(rank) for rank in range(4) if rank != missing)
    with pytest.raises(ppsim.ConfigError, match=f"has files of ranks {there} of 4, which are no whole pipeline"):
        read_kineto(tmp_path)


def test_two_files_of_one_rank_are_refused(tmp_path):
    write(tmp_path, ranges(0, SENDER), ranges(1, RECEIVER), ranges(1, RECEIVER))
    with pytest.raises(
        ppsim.ConfigError, match=r"2.json is of rank 1, as .*1.json is; keep the files of one recording"
    ):
        read_kineto(tmp_path)


def test_ranks_that_are_not_one_after_the_other_are_no_pipeline(tmp_path):
    """Two copies of a pipeline of two ranks, which the profiler does not tell apart, are not one of four ranks."""
    run = pipeline(devices=2)
    write(tmp_path, *(ranges(rank, named(run, rank // 2, NAMES["torchtitan"])) for rank in range(4)))
    with pytest.raises(ppsim.ConfigError, match=r"such as 0B7 0\.015 s before the end of 1B7; give the files of one"):
        read_kineto(tmp_path)


@pytest.mark.parametrize("hosts", ["one", "two"])
def test_clocks_that_are_apart_are_set_by_what_passes_between_the_ranks(tmp_path, hosts):
    run = pipeline(devices=2)
    files = [ranges(rank, named(run, rank, NAMES["torchtitan"], shift=-0.025 * rank)) for rank in range(2)]
    files[1]["host_name"] = "host" if hosts == "one" else "other"
    write(tmp_path, *files)
    trace = read_kineto(tmp_path)
    np.testing.assert_allclose(trace.timeline().start, run.start, atol=1e-9)
    assert trace.document["clocks_moved"] == pytest.approx(0.025)
    assert any("2 hosts; their clocks are set by" in note for note in trace.notes) == (hosts == "two")


@pytest.mark.parametrize(("name", "begun"), [("1f1b", 0.3), ("gpipe", 0.6), ("interleaved-1f1b", 0.5), ("zb-v", 0.4)])
def test_a_step_that_had_begun_before_the_recording_is_left_out(tmp_path, name, begun):
    """The recording starts within the first of three steps, so that forwards of its backwards are missing."""
    run = ppsim.simulate(
        ppsim.build(name, devices=4, microbatches=8), ppsim.Costs(forward=0.01, input_grad=0.01, weight_grad=0.01)
    )
    for rank in range(4):
        rows = range(*run.schedule.offsets[rank : rank + 2])
        spans = [
            (f"PP:{run.schedule.label(row)}", start + run.row_start[row], start + run.row_end[row])
            for start in (0.0, run.makespan + 0.05, 2 * run.makespan + 0.1)
            for row in rows
        ]
        inside = [(action, start * 1e3, end * 1e3) for action, start, end in spans if start >= begun * run.makespan]
        (tmp_path / f"{rank}.json").write_text(json.dumps(ranges(rank, inside)))
    trace = read_kineto(tmp_path)
    assert trace.program == run.schedule
    np.testing.assert_allclose(trace.step_seconds, [run.makespan, run.makespan])


@pytest.mark.parametrize("stages", [1, 2])
def test_steps_that_the_profiler_did_not_mark_end_where_the_first_rank_has_nothing_open(tmp_path, stages):
    run = pipeline("1f1b" if stages == 1 else "interleaved-1f1b", stages=stages)
    name, later = NAMES["megatron functions"], run.makespan + 0.1
    write(tmp_path, *(ranges(r, [*named(run, r, name), *named(run, r, name, shift=later)]) for r in range(4)))
    trace = read_kineto(tmp_path)
    assert trace.program == run.schedule
    np.testing.assert_allclose(trace.step_seconds, [run.makespan, run.makespan])


def test_ranges_of_any_name_are_told_by_the_expressions_given(tmp_path):
    run = pipeline(devices=2, microbatches=3)
    write(tmp_path, *(ranges(d, named(run, d, lambda kind, k: f"my {kind} of {k}")) for d in range(2)))
    with pytest.raises(ppsim.ConfigError, match=r"ranges=\(FORWARD, BACKWARD\)"):
        read_kineto(tmp_path)
    measured = ppsim.Timeline.from_trace(tmp_path, ranges=(r"my F of (\d+)", r"my B of (\d+)"))
    assert measured.schedule == run.schedule
    assert command("explain", tmp_path, "--ranges", r"my F of \d+", r"my B of \d+").status == 0
    with pytest.raises(ppsim.ConfigError, match=r"group of a range's name is 'F of 0'; it must be the microbatch"):
        read_kineto(tmp_path, (r"my (F.*)", r"my (B.*)"))
    with pytest.raises(ppsim.ConfigError, match="give two regular expressions"):
        read_kineto(tmp_path, ("(", ")"))


def test_a_file_is_read_piece_by_piece_and_only_what_is_wanted_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(events, "CHUNK", 37)
    other = [("aten::mm " + "x" * 200, 0, 1)] * 50
    write(tmp_path, ranges(0, [("PP:0F0", 0, 1), *other, ("PP:0B0", 1, 3)]))
    assert ppsim.Schedule.of(read_kineto(tmp_path).program).orders() == [["0F0", "0B0"]]
    head, found = events.read_events(tmp_path / "0.json")
    kept = [event for event in found if "PP:" in event["name"]]
    assert head["distributedInfo"] == {"rank": 0}
    assert [event["name"] for event in kept] == ["PP:0F0", "PP:0B0"]


def test_memory_does_not_grow_with_the_file(tmp_path):
    """Of a file of 24 MB no more than eight of the pieces that it is read in are held."""
    spans = [("PP:0F0", 0, 1), ("PP:0B0", 1, 3)]
    document = json.dumps(ranges(0, [*spans, ("aten::mm " + "x" * 2000, 0, 1)]))
    event = document[document.index('{"ph": "X"', document.index("PP:0B0")) : document.rindex("]")]
    path = tmp_path / "0.json"
    with path.open("w") as file:
        file.write(document[: document.rindex("]")])
        file.writelines("," + event for _ in range(24_000_000 // len(event)))
        file.write("]}")
    tracemalloc.start()
    trace = read_kineto(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert path.stat().st_size > 23_000_000
    assert ppsim.Schedule.of(trace.program).orders() == [["0F0", "0B0"]]
    assert peak < 8 * events.CHUNK


@pytest.mark.parametrize("value", [float("inf"), 10**400, None, "x", True])
def test_times_that_are_no_finite_numbers_name_the_range_and_the_field(tmp_path, value):
    document = ranges(0, [("PP:0F0", 0, 1), ("PP:0B0", 1, 3)])
    document["traceEvents"][2]["ts"] = value
    write(tmp_path, document)
    with pytest.raises(ppsim.ConfigError, match=r"0.json: not a profiler trace") as refused:
        read_kineto(tmp_path)
    assert "ts" in str(refused.value)


@pytest.mark.parametrize("base", [10**400, -(2**64)])
def test_a_base_of_times_beyond_any_clock_is_refused_by_its_key(tmp_path, base):
    document = ranges(0, [("PP:0F0", 0, 1), ("PP:0B0", 1, 3)])
    write(tmp_path, {**document, "baseTimeNanoseconds": base})
    with pytest.raises(ppsim.ConfigError, match=r"baseTimeNanoseconds: .* must be a whole number of at most"):
        read_kineto(tmp_path)
