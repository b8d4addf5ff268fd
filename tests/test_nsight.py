"""Nsight Systems' SQLite exports and Megatron-LM's OpenTelemetry spans: files made to their published schemas."""

import json
import sqlite3
from contextlib import closing

import numpy as np
import pytest
from command_line import ppsim as command

import ppsim

MILLI = 1_000_000  # nanoseconds
# Begin and end in ms of each range of a device: 1F1B of two devices and two microbatches, with transfers of 1 ms.
RANGES = (
    [("0F0", 0, 2), ("0F1", 2, 4), ("0B0", 10, 14), ("0B1", 16, 20)],
    [("1F0", 3, 5), ("1B0", 5, 9), ("1F1", 9, 11), ("1B1", 11, 15)],
)
SCHEMA = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT, text TEXT, textId INT, globalTid INT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, streamId INT, correlationId INT,
        globalPid INT, demangledName INT, shortName INT);
    CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, utcTime TEXT, localTime TEXT);
    CREATE TABLE TARGET_INFO_GPU (id INT, name TEXT);
    INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'ncclDevKernel_SendRecv');
    INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000, '', '');
    INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H100');
"""


def export(path, devices, behind=0):
    """An export of one process per device; kernels run `behind` ms after the ranges that launch them, on a GPU."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(SCHEMA)
        for number, device in enumerate(devices):
            process = (100 + number) << 24
            for correlation, (action, begin, end) in enumerate(RANGES[device]):
                launched = (begin + 0.0, begin + 0.4) if behind else (begin, end)
                begin_ns, end_ns = (int(one * MILLI) for one in launched)
                name = f"PP:{action}, op_id = {correlation}"
                if correlation % 2:
                    database.execute(
                        "INSERT OR IGNORE INTO StringIds VALUES (?, ?)", (10 * number + correlation + 10, name)
                    )
                    text, identifier = None, 10 * number + correlation + 10
                else:
                    text, identifier = name, None
                row = (begin_ns, end_ns, 59, text, identifier, process + 7)
                database.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)", row)
                if behind:
                    row = (begin_ns + 1, begin_ns + 2, process + 7, correlation, 1)
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", row)
                    ran = (int((begin + behind) * MILLI), int((end + behind) * MILLI))
                    row = (*ran, 0, 7, correlation, process, 1, 1)
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
                    late = (ran[1], ran[1] + 50 * MILLI, 0, 8, correlation, process, 2, 2)  # waits for another rank
                    database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?, ?)", late)
        database.commit()


def check(measured):
    assert measured.schedule == ppsim.build("1f1b", devices=2, microbatches=2)
    expected = np.array([time for device in RANGES for time in device], dtype=object)
    np.testing.assert_allclose(measured.start * 1e3, expected[:, 1].astype(float), atol=1e-6)
    np.testing.assert_allclose(measured.end * 1e3, expected[:, 2].astype(float), atol=1e-6)


@pytest.mark.parametrize("behind", [0, 0.5])
def test_an_export_of_all_ranks_gives_ranges_on_the_gpu(tmp_path, behind):
    export(tmp_path / "job.sqlite", (0, 1), behind)
    measured = ppsim.Timeline.from_trace(tmp_path / "job.sqlite")
    check(measured)
    assert measured.costs.source == "NVIDIA H100"


def test_an_export_per_rank_is_read_in_the_order_of_the_numbers_in_the_names(tmp_path):
    export(tmp_path / "rank10.sqlite", (1,))
    export(tmp_path / "rank9.sqlite", (0,))
    check(ppsim.Timeline.from_trace(tmp_path))


def test_explain_takes_an_export_without_another_argument(tmp_path):
    export(tmp_path / "job.sqlite", (0, 1), 0.5)
    outcome = command("explain", tmp_path / "job.sqlite")
    assert outcome.status == 0
    assert "1f1b" in outcome.out


@pytest.mark.parametrize("content", [b"no database at all, but some text", b""])
def test_another_file_is_refused_with_the_command(tmp_path, content):
    (tmp_path / "job.sqlite").write_bytes(content)
    with pytest.raises(ppsim.ConfigError, match=r"not an SQLite export .* `nsys export --type sqlite`"):
        ppsim.Timeline.from_trace(tmp_path / "job.sqlite")


def test_a_damaged_export_is_refused_with_the_command(tmp_path):
    export(tmp_path / "job.sqlite", (0, 1), 0.5)
    with closing(sqlite3.connect(tmp_path / "job.sqlite")) as database:
        page = database.execute("PRAGMA page_size").fetchone()[0]
    whole = (tmp_path / "job.sqlite").read_bytes()
    (tmp_path / "job.sqlite").write_bytes(whole[: 2 * page])
    with pytest.raises(ppsim.ConfigError, match=r"damaged one \(.*\); write it with `nsys export --type sqlite`"):
        ppsim.Timeline.from_trace(tmp_path / "job.sqlite")


@pytest.mark.parametrize(
    "command_of_sql",
    [
        "DROP TABLE NVTX_EVENTS",  # recorded without -t nvtx
        "UPDATE NVTX_EVENTS SET end = NULL, eventType = 76",  # names of categories only, as nvtx 0.2.17 leaves
    ],
)
def test_an_export_without_ranges_holds_no_pipeline(tmp_path, command_of_sql):
    export(tmp_path / "job.sqlite", (0, 1), 0.5)
    with closing(sqlite3.connect(tmp_path / "job.sqlite")) as database:
        database.execute(command_of_sql)
        database.commit()
    outcome = command("explain", tmp_path / "job.sqlite")
    assert outcome.status == 2
    assert "no pipeline in these traces: the export has no NVTX ranges" in outcome.err


def test_ranges_of_other_programs_hold_no_pipeline(tmp_path):
    export(tmp_path / "job.sqlite", (0, 1), 0.5)
    with closing(sqlite3.connect(tmp_path / "job.sqlite")) as database:
        database.execute("UPDATE NVTX_EVENTS SET text = 'aten::view, op_id = 314290', textId = NULL")
        database.commit()
    outcome = command("explain", tmp_path / "job.sqlite")
    assert outcome.status == 2
    assert "no pipeline in these traces: no range is named PP:<action>" in outcome.err


NAMES = {"F": "megatron.microbatch.forward", "B": "megatron.microbatch.backward"}


def of_process(**attributes):
    return [
        {"key": f"dl.{name.replace('__', '.')}", "value": {"intValue": str(value)}}
        for name, value in attributes.items()
    ]


def spans(device, rank=None):
    """OTLP JSON of a rank: its microbatches, and a transfer that is left out."""
    attributes = of_process(rank=device) if rank is None else rank
    found = [
        {
            "name": NAMES[action[1]],
            "startTimeUnixNano": str(10**18 + begin * MILLI),
            "endTimeUnixNano": str(10**18 + end * MILLI),
        }
        for action, begin, end in RANGES[device]
    ]
    found.append({**found[0], "name": "megatron.p2p.send_forward"})
    return {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [{"spans": found}]}]}


@pytest.mark.parametrize("one_file", [True, False])
def test_megatron_s_spans_name_their_rank(tmp_path, one_file):
    lines = [json.dumps(spans(device)) for device in (1, 0)]
    files = {"all.jsonl": "\n".join(lines)} if one_file else {"a.otlp.json": lines[0], "b.otlp.json": lines[1]}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    measured = ppsim.Timeline.from_trace(tmp_path)
    check(measured)
    assert measured.framework == "Megatron-LM"


def test_spans_of_two_pipelines_are_told_apart_by_the_stages_of_a_pipeline(tmp_path):
    for rank in range(4):  # Megatron-LM: ranks 0 and 2 are one pipeline of two stages, ranks 1 and 3 the other
        attributes = of_process(rank=rank, world_size=4, pipeline_parallel__size=2)
        (tmp_path / f"{rank}.jsonl").write_text(json.dumps(spans(rank // 2, attributes)))
    check(ppsim.Timeline.from_trace(tmp_path))
    assert "other pipeline of the job: ranks 1, 3" in command("explain", tmp_path).out


def test_spans_of_one_rank_name_the_ranks_that_are_missing(tmp_path):
    attributes = of_process(rank=1, world_size=2, pipeline_parallel__size=2)
    (tmp_path / "last.jsonl").write_text(json.dumps(spans(1, attributes)))  # Megatron-LM's default: the last rank only
    with pytest.raises(ppsim.ConfigError, match="runs on ranks 0, 1: add the file of rank 0"):
        ppsim.Timeline.from_trace(tmp_path)


def test_spans_without_microbatches_name_the_flag_that_writes_them(tmp_path):
    text = json.dumps(spans(0)).replace(NAMES["F"], "megatron.train_step").replace(NAMES["B"], "megatron.train_step")
    (tmp_path / "steps.jsonl").write_text(text)
    outcome = command("explain", tmp_path)
    assert outcome.status == 2
    assert "no pipeline in these traces" in outcome.err
    assert "--otel-span-groups step,microbatch" in outcome.err


@pytest.mark.parametrize("stages", [0, 3, 10**15])
def test_an_impossible_number_of_stages_is_left_out(tmp_path, stages):
    for rank in range(2):
        attributes = of_process(rank=rank, world_size=2, pipeline_parallel__size=stages)
        (tmp_path / f"{rank}.jsonl").write_text(json.dumps(spans(rank, attributes)))
    check(ppsim.Timeline.from_trace(tmp_path))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "use the collector's file exporter"),
        ("{}", "'resourceSpans' is missing"),
        (json.dumps(spans(0, rank=[])), "a span has no dl.rank"),
        (json.dumps(spans(0)).replace("startTimeUnixNano", "start"), "a span is damaged"),
        (json.dumps({"resourceSpans": [3]}), "a span is damaged"),
    ],
)
def test_damaged_spans_are_one_clear_error(tmp_path, text, said):
    (tmp_path / "all.jsonl").write_text(text)
    outcome = command("explain", tmp_path)
    assert outcome.status in (1, 2)
    assert said in outcome.err
