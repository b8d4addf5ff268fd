"""The explorer's server: what it answers, and what it refuses."""

import base64
import hashlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import anyio
import pytest
from command_line import ROOT, UNIT_COSTS
from command_line import ppsim as call
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pages import texts
from starlette.testclient import TestClient

import ppsim
from ppsim.explorer.server import (
    MAX_FILE_BYTES,
    RefusedError,
    RequestWorkers,
    answer_to,
    is_loopback,
    make_app,
)

CASE = {
    "schedule": "zb-h1", "devices": 4, "microbatches": 8, "forward": 1, "input_grad": 1, "weight_grad": 1,
    "latency": 0.1, "transport": "async",
}  # fmt: skip
MODEL = "configs/llama-3-8b-8xh100.yaml"
REQUEST = "simulate", {}, json.dumps(CASE).encode()
HOME, TOKEN = "http://127.0.0.1", "open-sesame"


WHOLE = "schedule: {name: zb-h1, devices: 4, microbatches: 8}\ncosts: {forward: 1, backward: 2}\n"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    whole = tmp_path_factory.mktemp("configs") / "whole.yaml"
    whole.write_text(WHOLE)
    configs = {"llama": MODEL, "unit": str(UNIT_COSTS), "whole": str(whole)}
    with TestClient(make_app(configs), base_url=HOME) as client:
        yield client


def said(response):
    """The sentences of a refusal, which hold nothing of the server's insides."""
    assert 400 <= response.status_code < 500, response.text
    assert "Traceback" not in response.text
    assert ".py" not in response.text
    faults = response.json()["faults"]
    assert faults
    return "\n".join(fault["text"] for fault in faults)


def test_a_case_is_answered_with_what_the_library_says(client):
    found = client.post("/api/simulate", json=CASE).json()
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    run = ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=8), costs)
    measures = {measure["name"]: measure for measure in found["measures"]}
    assert found["makespan"] == run.makespan
    assert measures["bubble_fraction"]["number"] == run.bubble_fraction
    assert measures["bubble_fraction"]["meaning"].startswith("1 - sum(busy)")
    assert found["lower_bound"]["seconds"] == run.lower_bound().seconds
    assert found["chart"]["ledger"]["dependency"] == pytest.approx(run.ledger()["dependency"].tolist())
    assert found["memory"] == ""  # not known
    assert found["chart"]["makespan"] == run.makespan
    assert ["length", 64 + 32, 4, False] in found["chart"]["columns"]


def test_a_case_is_copied_as_command_config_and_python_that_run_the_same(client, tmp_path):
    found = client.post("/api/simulate", json=CASE).json()
    path = tmp_path / "copied.yaml"
    path.write_text(found["copies"]["config"])
    assert ppsim.load_config(path).simulate().makespan == found["makespan"]
    names = {}
    exec(found["copies"]["python"], names)  # noqa: S102 - what a user would run
    assert names["run"].makespan == found["makespan"]
    assert found["copies"]["command"] == (
        "ppsim simulate --schedule zb-h1 --devices 4 --microbatches 8 --forward 1 --input-grad 1 --weight-grad 1 "
        "--latency 0.1 --transport async"
    )


def test_copied_python_and_config_have_changed_keys_that_are_no_costs(client, tmp_path):
    changes = {"optimizer": "sync", "costs.optimizer_step": 2}
    copies, names = client.post("/api/simulate", json={**CASE, "changes": changes}).json()["copies"], {}
    (tmp_path / "copied.yaml").write_text(copies["config"])
    exec(copies["python"], names)  # noqa: S102 - what a user would run
    assert names["run"].makespan == ppsim.load_config(tmp_path / "copied.yaml").simulate().makespan


def test_a_named_config_is_simulated_with_changes_and_its_memory(client):
    case = {"config": "llama", "microbatches": 16, "changes": {"layout.recompute": "full"}}
    found = client.post("/api/simulate", json=case).json()
    changes = {"schedule.microbatches": 16, "layout.recompute": "full"}
    run = ppsim.load_config(MODEL, overrides=changes).simulate()
    assert found["makespan"] == run.makespan
    assert found["memory"] == run.memory().summary()


def test_a_config_runs_another_family_than_its_own(client):
    found = client.post("/api/simulate", json={"config": "llama", "schedule": "gpipe"}).json()
    assert found["name"] == "gpipe"


def test_the_parts_of_a_backward_take_the_place_of_a_configs_whole_one(client):
    assert client.get("/api/families").json()["configs"]["whole"]["costs"] == {"forward": 1, "backward": 2}
    found = client.post("/api/simulate", json={"config": "whole", "input_grad": 2, "weight_grad": 1}).json()
    costs = ppsim.Costs(forward=1, input_grad=2, weight_grad=1)
    assert found["makespan"] == ppsim.simulate(ppsim.build("zb-h1", devices=4, microbatches=8), costs).makespan


def test_the_choices_are_the_registry_and_the_named_configs(client):
    found = client.get("/api/families").json()
    assert [family["name"] for family in found["families"]] == list(ppsim.schedules())
    assert list(found["configs"]) == ["llama", "unit", "whole"]
    keys = {row["key"]: row["value"] for row in found["configs"]["llama"]["keys"]}
    assert keys["layout.tensor"] == 1
    assert keys["layout.recompute"] == "none"
    assert keys["model.hidden"] == 4096
    assert keys["hardware.device"] == "H100 SXM"
    rows = {row["key"]: row for row in found["configs"]["llama"]["keys"]}
    assert all(row["meaning"] for row in rows.values())
    assert not [row["name"] for row in rows.values() if "_" in row["name"]]
    assert rows["layout.scatter_transfers"]["name"] == "scatter transfers"
    assert rows["layout.scatter_transfers"]["legal"] == [True, False]
    assert (rows["model.sequence"]["name"], rows["model.sequence"]["unit"]) == ("sequence length", "tokens")
    assert "H200 SXM" in rows["hardware.device"]["known"]
    assert rows["layout.overlap"]["known"] == [True, False, "two-stream"]
    assert rows["layout.context_exchange"]["legal"] == ["gather", "ring", "all-to-all"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("layout.tensor", 2), ("model.sequence", 4096), ("hardware.device", "A100"), ("optimizer", "sync")],
)
def test_a_configs_keys_can_be_changed(client, key, value):
    found = client.post("/api/simulate", json={"config": "llama", "changes": {key: value}}).json()
    assert found["makespan"] == ppsim.load_config(MODEL, overrides={key: value}).simulate().makespan


@pytest.mark.parametrize("text", ["3: 1.5", "{3:1.5}"])
def test_a_device_of_a_config_is_slower_by_a_factor(client, text):
    changes = {"jitter.slow_devices": text}
    found = client.post("/api/simulate", json={"config": "llama", "changes": changes}).json()
    slow = ppsim.load_config(MODEL, overrides={"jitter.slow_devices": {3: 1.5}}).simulate()
    assert found["makespan"] == slow.makespan
    keys = client.get("/api/families").json()["configs"]["llama"]["keys"]
    assert [one["name"] for one in keys if one["key"] in changes] == ["slower devices"]


@pytest.mark.parametrize("text", ["banana", "1=1.5", "1: 1.5, banana", "9: 1.5", "1: x"])
def test_a_wrong_slower_device_is_a_fault_of_its_field(client, text):
    changes = {"jitter.slow_devices": text}
    (fault,) = client.post("/api/simulate", json={"config": "llama", "changes": changes}).json()["faults"]
    assert fault["text"].startswith("slower devices")
    assert fault["keys"] == [*changes]


@pytest.mark.parametrize(
    ("changes", "text", "use"),
    [
        ({"layout.tensor": 3}, "tensor parallelism 3 does not divide the 32 attention heads; use 2 or 4",
         [("Use tensor parallelism 2", 2), ("Use tensor parallelism 4", 4)]),
        ({"hardware.gpus": 4}, "4 GPUs, but 8 pipeline devices of 1 GPU make 8", [("Use 8 GPUs", 8)]),
        ({"hardware.device": "h10"}, "device: unknown device 'h10'; did you mean H100 SXM or H20?",
         [("Use device H100 SXM", "H100 SXM"), ("Use device H20", "H20")]),
    ],
)  # fmt: skip
def test_a_fault_of_a_config_names_its_field_and_legal_values(client, changes, text, use):
    (fault,) = client.post("/api/simulate", json={"config": "llama", "changes": changes}).json()["faults"]
    assert (fault["text"], fault["keys"]) == (text, [*changes])
    assert [(one["text"], one["value"]) for one in fault["use"]] == use


def test_a_device_that_is_slower_in_one_cost_alone_is_set_right_by_one_factor(client):
    case = {**CASE, "schedule": "dualpipe", "by_device": [{"devices": "2", "forward": 2}, {"devices": "0"}]}
    (fault,) = client.post("/api/simulate", json=case).json()["faults"]
    ((key, rows),) = [(one["key"], one["value"]) for one in fault["use"]]
    assert rows[0] == {"devices": "2", "forward": "x2", "input_grad": "x2", "weight_grad": "x2"}
    assert client.post("/api/simulate", json={**case, key: rows}).status_code == 200


def test_a_cost_by_device_is_a_factor_or_seconds(client):
    rows = [[{"devices": "3", "forward": cost, "input_grad": cost}] for cost in ("x1.5", "× 1.5", 1.5)]
    found = [client.post("/api/simulate", json={**CASE, "by_device": row}).json()["makespan"] for row in rows]
    assert found[0] == found[1] == found[2]


def test_a_dropped_file_is_drawn_and_said_to_be_valid(client):
    text = ppsim.build("1f1b", devices=2, microbatches=3).to_text()
    csv = client.post("/api/file/csv", json={"schedule": "1f1b", "devices": 2, "microbatches": 3}).text
    assert text
    assert client.post("/api/validate", json={"csv": csv}).json() == {"actions": 12}
    found = client.post("/api/simulate", json={"csv": csv, "forward": 1, "backward": 2}).json()
    assert found["makespan"] == 12
    assert client.post("/api/simulate", json={"csv": csv, "config": "llama"}).json()["name"] == "dropped.csv"


def test_a_wrong_file_is_answered_with_the_validators_sentences(client, tmp_path):
    text = "0F0,0X0\n1F0,1B0\n"
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(ppsim.ScheduleError) as error:
        ppsim.Schedule.from_csv(path)
    sentences = [fault.replace(str(path), "dropped.csv") for fault in error.value.faults]
    assert client.post("/api/validate", json={"csv": text}).json()["faults"] == [
        {"text": sentence, "keys": [], "use": []} for sentence in sentences
    ]
    unfinished = said(client.post("/api/simulate", json={"csv": "0F0\n1F0,1B0\n"}))
    assert "0B0" in unfinished
    assert str(tmp_path.anchor) + "tmp" not in unfinished


@pytest.mark.parametrize(
    ("ending", "start"), [("html", b"<!doctype html>"), ("csv", b"0F0"), ("svg", b"<?xml"), ("png", b"\x89PNG")]
)
def test_a_case_is_saved_as_a_file(client, ending, start):
    response = client.post(f"/api/file/{ending}", json=CASE)
    assert response.status_code == 200
    assert response.content.startswith(start)


@pytest.mark.parametrize(("ending", "start"), [("html", b"<!doctype html>"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_several_cases_are_saved_as_one_file(client, ending, start):
    cases = [CASE, {**CASE, "schedule": "1f1b", "latency": 0.2}]
    response = client.post(f"/api/file/{ending}", json={"cases": cases})
    assert response.status_code == 200
    assert response.content.startswith(start)
    if ending == "html":
        charts = texts(response.text)[2][0]
        assert [chart["title"].split(",")[0] for chart in charts] == ["zb-h1", "1f1b"]


@pytest.mark.parametrize("cases", [[], [CASE] * 5, {}, [1], "x", [{**CASE, "devices": 0}]])
def test_wrong_lists_of_cases_are_refused(client, cases):
    assert said(client.post("/api/file/html", json={"cases": cases}))


@pytest.mark.parametrize(
    ("case", "word"),
    [
        ({**CASE, "devices": 0}, "devices 0: must be"),
        ({**CASE, "devices": 2**70}, "is too large; use at most 16,384"),
        ({**CASE, "devices": 1000, "microbatches": 10**6}, "actions"),
        ({**CASE, "schedule": "zb-h7"}, "zb-h7"),
        ({**CASE, "forward": "-1 s"}, "cost F"),
        ({**CASE, "forward": [[1]]}, "cost F"),
        ({**CASE, "forward": "9" * 5000}, "characters"),
        ({**CASE, "transport": None}, "transport"),
        ({**CASE, "options": {"a.b": 1}}, "options"),
        ({**CASE, "options": {"nope": 1}}, "nope"),
        ({**CASE, "options": 3}, "options"),
        ({"schedule": "seq1f1b", "devices": 8, "microbatches": 8, "options": {"slices": 10**9}}, "actions"),
        ({**CASE, "nonsense": 1}, "nonsense"),
        ({"config": "/etc/passwd"}, "has no config"),
        ({"config": ["llama"]}, "this server has no config"),
        ({"config": "llama", "changes": {"costs.profile": "/etc/passwd"}}, "cannot be changed"),
        ({"config": "llama", "changes": {"model.huggingface": "/etc/passwd"}}, "cannot be changed"),
        ({"config": "llama", "changes": {"hardware.device.operators": "/etc/passwd"}}, "cannot be changed"),
        (
            {"config": "llama", "changes": {"hardware.device": "{like: A100, operators: /etc/passwd}"}},
            "cannot be changed",
        ),
        ({"config": "llama", "changes": {"schedule.csv": "/etc/passwd"}}, "cannot be changed"),
        ({"config": "llama", "changes": {"schedule": "{csv: /etc/passwd}"}}, "cannot be changed"),
        ({"config": "llama", "csv": "0F0,0B0", "changes": {"costs.profile": "/etc/passwd"}}, "cannot be changed"),
        ({**CASE, "changes": {"costs.profile": "/etc/passwd"}}, "cannot be changed"),
        ({"schedule": "/etc/passwd.csv", "devices": 2, "microbatches": 2}, "passwd"),
        ({"csv": 3}, "csv"),
        ({"csv": "\x00"}, "dropped.csv"),
        ({}, "schedule: is missing"),
    ],
)
def test_a_wrong_case_is_refused_with_its_place(client, case, word):
    assert word in said(client.post("/api/simulate", json=case))


@pytest.mark.parametrize("text", ["[1,", "1, 2x", "{a", "'x", "%", "@", "!x 1", "a: b: c", "#5", "2024-13-45", "\x00"])
def test_a_cost_that_is_still_being_typed_is_answered_in_the_words_of_costs(client, text):
    fault = said(client.post("/api/simulate", json={**CASE, "forward": text}))
    legal = "must be seconds of at least 0, such as 1.6 or 12 ms"
    assert fault == f"cost F {text!r}: {legal}"
    other = said(client.post("/api/simulate", json={"config": "llama", "changes": {"layout.partition": "[1,"}}))
    assert other.startswith("partition: '[1,' is not a value; ")


@pytest.mark.parametrize("text", ["1, 1, 1, 1.6", "[1, 1, 1, 1.6]", "1 s, 1000 ms,1, 1.6"])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-v", "interleaved-1f1b"])
def test_a_list_of_costs_by_device_goes_with_any_number_of_stages(client, schedule, text):
    found = client.post("/api/simulate", json={**CASE, "schedule": schedule, "forward": text}).json()
    costs = ppsim.Costs(forward=[1, 1, 1, 1.6], input_grad=1, weight_grad=1, latency=0.1)
    run = ppsim.simulate(ppsim.build(schedule, devices=4, microbatches=8), costs)
    assert found["makespan"] == run.makespan
    assert run.device_busy.tolist() == pytest.approx([24, 24, 24, 28.8])


def test_rows_of_costs_name_devices_and_what_differs(client):
    rows = [
        {"devices": "last", "forward": 1.6, "weight_grad": "1200 ms", "latency": 0.3},
        {"devices": "0, 1\u20132", "forward": 1.5},
    ]
    found = client.post("/api/simulate", json={**CASE, "schedule": "zb-v", "by_device": rows}).json()
    slow = {"weight_grad": [1, 1, 1, 1.2], "latency": [0.1, 0.1, 0.1, 0.3]}
    costs = ppsim.Costs(forward=[1.5, 1.5, 1.5, 1.6], input_grad=1, **slow)
    assert found["makespan"] == ppsim.simulate(ppsim.build("zb-v", devices=4, microbatches=8), costs).makespan
    names = {}
    exec(found["copies"]["python"], names)  # noqa: S102 - what a user would run
    assert names["run"].makespan == found["makespan"]
    assert call(*shlex.split(found["copies"]["command"])[1:]).status == 0


@pytest.mark.parametrize("devices", ["9", "3-1", "", "x"])
def test_a_row_of_costs_without_its_devices_is_refused(client, devices):
    fault = said(client.post("/api/simulate", json={**CASE, "by_device": [{"devices": devices, "forward": 2}]}))
    assert fault == f"cost by device {devices!r}: must name devices from 0 to 3, such as 0, 0-3 or last"


def test_a_memory_limit_is_the_charts_capacity_and_the_limit_of_a_search(client):
    found = client.post("/api/simulate", json={**CASE, "memory_limit": 5}).json()
    assert found["chart"]["memory"]["capacity"] == 5
    searched = {**CASE, "schedule": "auto", "microbatches": 4, "memory_limit": 2, "options": {"rounds": 1}}
    half = client.post("/api/simulate", json=searched).json()
    assert max(half["chart"]["memory"]["peaks"]) <= 2
    assert "must be a number above 0, such as 8" in said(
        client.post("/api/simulate", json={**CASE, "memory_limit": "x"})
    )
    of_model = client.post("/api/simulate", json={"config": "llama", "memory_limit": 60}).json()
    assert of_model["chart"]["memory"]["capacity"] == 60e9  # where bytes are known
    assert of_model["cause"][0] == "imbalance"


@pytest.mark.parametrize(
    ("changes", "use"),
    [
        ({"schedule": "zb-h2", "microbatches": 2}, [("microbatches", 7)]),
        ({"schedule": "dualpipe", "devices": 64, "microbatches": 100}, [("microbatches", 128)]),
        ({"schedule": "dualpipe", "devices": 3}, [("devices", 2), ("devices", 4)]),
        (
            {"schedule": "interleaved-1f1b", "devices": 8, "microbatches": 30},
            [("microbatches", 24), ("microbatches", 32)],
        ),
        ({"devices": 512, "microbatches": 2048}, [("microbatches", 1953)]),  # as many as are drawn
        ({"forward": "x"}, []),
        ({"devices": "x"}, []),
    ],
)
def test_a_refused_size_comes_with_legal_ones(client, changes, use):
    answer = client.post("/api/simulate", json={**CASE, **changes})
    assert answer.status_code == 422
    assert [(one["key"], one["value"]) for fault in answer.json()["faults"] for one in fault["use"]] == use


def test_faster_schedules_are_ranked_at_equal_work(client):
    found = client.post("/api/better", json=CASE).json()["found"]
    steps = {one["schedule"]: one["step"] for one in found}
    assert list(steps.values()) == sorted(steps.values())
    assert steps["zb-v"] < steps["zb-h1"] < steps["1f1b"]
    assert not {"auto", "pipedream"} & steps.keys()
    runs = {one["schedule"]: one["runs"] for one in found}
    assert (runs["zb-v"], runs["seq1f1b-zb"]) == (True, False)


def test_the_page_knows_the_comparison_of_its_first_visit(client):
    stored = client.get("/api/families").json()["first"]  # written by scripts/make_first_answers.py
    answer = client.post("/api/better", json={**CASE, "latency": 0}).json()
    assert (answer["found"], answer["left"]) == (stored, 0)


def test_a_comparison_ends_after_its_seconds_and_counts_what_is_left(monkeypatch):
    monkeypatch.setattr("ppsim.explorer.answers.LONGEST_SEARCH", 0)
    status, body = answer_to("better", {}, json.dumps(CASE).encode())
    assert (status, json.loads(body)["found"]) == (200, [])
    assert json.loads(body)["left"] > 20


def test_a_comparison_goes_on_with_what_is_left_also_at_a_large_size(client):
    case = {**CASE, "devices": 256, "microbatches": 512}
    every = client.post("/api/better", json={**CASE, "seconds": 20}).json()["known"]
    first = client.post("/api/better", json={**case, "seconds": 1, "known": every[1:]}).json()
    assert [one["schedule"] for one in first["found"]] == every[:1]
    assert (len(first["known"]), first["left"]) == (len(every), 0)


def test_a_search_finds_an_order_within_the_same_memory(client):
    own = client.post("/api/simulate", json={**CASE, "schedule": "zb-v"}).json()
    found = client.post("/api/search", json={**CASE, "schedule": "zb-v", "seconds": 20}).json()
    assert found["step"] < own["makespan"]
    assert found["peak"] <= max(own["chart"]["memory"]["peaks"])
    assert 0 < found["seconds"] < 60
    again = client.post("/api/simulate", json={**CASE, "csv": found["csv"]}).json()
    assert again["makespan"] == pytest.approx(found["step"])
    assert "seconds" in said(client.post("/api/search", json={**CASE, "seconds": 10**6}))


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"forward": NaN}', b'{"devices": ' + b"9" * 5000 + b"}"],
)
@pytest.mark.parametrize("path", ["/api/simulate", "/api/validate", "/api/better", "/api/file/html"])
def test_a_body_that_is_no_case_is_refused(client, body, path):
    said(client.post(path, content=body, headers={"content-type": "application/json"}))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=st.dictionaries(
        st.sampled_from([*CASE, "options", "changes", "config", "csv", "stages_per_device", "overlap", "?"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-3, 12) | st.floats(allow_nan=False) | st.text(max_size=12),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_any_json_is_answered_or_refused_with_sentences(client, case):
    response = client.post("/api/simulate", content=json.dumps(case), headers={"content-type": "application/json"})
    if response.status_code != 200:
        said(response)


def test_requests_of_the_wrong_kind_are_refused(client):
    assert client.get("/api/simulate").status_code == 405
    assert client.post("/").status_code == 405
    assert client.get("/../pyproject.toml").status_code == 404
    assert said(client.post("/api/file/exe", json=CASE))
    assert client.post("/api/simulate", content=json.dumps(CASE)).status_code == 415
    large = b'{"csv": "' + b"x" * MAX_FILE_BYTES + b'"}'
    headers = {"content-type": "application/json"}
    assert client.post("/api/validate", content=large, headers=headers).status_code == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"host": ""},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/", "/api/families", "/api/simulate"])
def test_another_host_or_origin_is_refused(client, headers, path):
    response = client.request("POST" if path.endswith("simulate") else "GET", path, headers=headers)
    assert response.status_code == 403
    assert said(response).startswith(next(iter(headers)).title())


def test_loopbacks_names_and_the_own_origin_pass(client):
    for host in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000"):
        assert client.get("/", headers={"host": host, "origin": f"http://{host}"}).status_code == 200


def test_off_loopback_a_token_is_needed():
    client = TestClient(make_app(host=None, token=TOKEN), base_url="http://cluster:8000")
    assert "token" in said(client.get("/"))
    assert "token" in said(client.get("/?token=wrong"))
    assert client.get(f"/?token={TOKEN}").status_code == 200
    assert client.get("/api/families", headers={"x-ppsim-token": TOKEN}).status_code == 200
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "cluster")] == [  # noqa: S104
        True, True, True, False, False,
    ]  # fmt: skip


def test_the_policy_allows_the_scripts_of_the_page_and_no_others(client):
    page = client.get("/")
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    for tag in ("script", "style"):
        contents = re.findall(rf"<{tag}>(.*?)</{tag}>", page.text, re.DOTALL)
        assert len(contents) == 1
        digest = base64.b64encode(hashlib.sha256(contents[0].encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.count("sha256") == 2
    assert not re.search(r"""\son\w+=["']|\sstyle=["']|<script src|<link|https?://""", page.text)


def children():
    """The worker processes that this process has started."""
    mine = str(os.getpid())
    listed = subprocess.run(["ps", "-Aww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listed.splitlines()]
    others = "resource_tracker", "ps -Aww"
    return {int(pid) for pid, parent, words in rows if parent == mine and not any(one in words for one in others)}


@pytest.mark.parametrize(("kills", "status"), [(1, 200), (math.inf, 503)])
def test_a_request_is_tried_twice_if_its_worker_is_killed(kills, status):
    others = children()
    with TestClient(make_app(), base_url=HOME) as client, ThreadPoolExecutor() as pool:
        response = pool.submit(client.post, "/api/simulate", json={**CASE, "devices": 64, "microbatches": 500})
        while kills > 0 and not response.done():
            time.sleep(0.05)
            for worker in children() - others:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
            kills -= 1
        assert response.result().status_code == status
        assert status == 200 or response.result().json()["faults"][0]["text"].startswith(
            "the process of this work ended twice"
        )
        assert client.post("/api/simulate", json=CASE).status_code == 200


def test_no_process_starts_after_the_workers_have_ended():
    """Neither for a request that arrives later, nor for one that the end meets while it asks for its client."""

    async def run():
        workers = RequestWorkers(1, 60.0, 1)

        async def ends_meanwhile():
            if not asked:
                workers.end()
            asked.append(True)
            return False

        asked = []
        for _ in range(2):
            with pytest.raises(RefusedError, match="ends"):
                await workers.answer(REQUEST, ends_meanwhile)

    others = children()
    anyio.run(run)
    assert children() == others


def test_an_interrupt_of_a_starting_worker_says_nothing(capfd):
    async def run():
        workers = RequestWorkers(1, 60.0, 1)
        for worker in children() - others:
            os.kill(worker, signal.SIGINT)  # Python itself answers it until it has read the program
        status, _ = await workers.answer(REQUEST, stays)
        workers.end()
        return status

    async def stays():
        return False

    others = children()
    assert (anyio.run(run), capfd.readouterr().err) == (200, "")


@pytest.mark.parametrize("text", ["\ufeff0F0,0B0\r\n", "0F0,0B0\r", '"0F0","0B0"'])
def test_a_dropped_file_is_read_like_a_file_on_disk(client, tmp_path, text):
    path = tmp_path / "same.csv"
    path.write_text(text, encoding="utf-8", newline="")
    actions = len(ppsim.Schedule.from_csv(path))
    assert client.post("/api/validate", json={"csv": text}).json()["actions"] == actions == 2


def test_a_dropped_file_takes_the_place_of_a_configs_schedule_in_all_texts_to_copy(client, tmp_path, monkeypatch):
    case = {"csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "config": "unit"}
    found = client.post("/api/simulate", json=case).json()
    folder = tmp_path / "configs"
    folder.mkdir()
    (folder / "dropped.csv").write_text(case["csv"])
    config = folder / "unit-costs.yaml"
    config.write_text(UNIT_COSTS.read_text())
    names = {}
    exec(found["copies"]["python"].replace(str(UNIT_COSTS), str(config)), names)  # noqa: S102 - what a user would run
    assert names["run"].makespan == found["makespan"]
    words = shlex.split(found["copies"]["command"].replace(str(UNIT_COSTS), str(config)))
    monkeypatch.chdir(folder)
    assert call(*words[1:]).status == 0


def test_work_that_takes_too_long_is_ended_and_the_next_is_answered():
    with TestClient(make_app(seconds=0.0), base_url=HOME) as client:
        for _ in range(2):
            response = client.post("/api/simulate", json={"schedule": "1f1b", "devices": 8, "microbatches": 8})
            assert response.status_code == 503
            assert "longer" in response.json()["faults"][0]["text"]


def test_a_missing_extra_is_said_with_the_pip_line_that_adds_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    done = call("explore", "--no-browser")
    assert done.status == 2
    assert "pip install 'pipeline-ppsim[explore]'" in done.err


def test_a_config_or_an_address_that_cannot_be_had_is_said():
    assert "no-such.yaml" in call("explore", "no-such.yaml", "--no-browser").err
    assert "--host 203.0.113.7" in call("explore", "--host", "203.0.113.7", "--no-browser").err


@pytest.mark.parametrize(
    "host", ["a" * 64, "a" * 300, f"{'a' * 64}.example", ".", "..", "a..b", "\ud800", "", " ", "::1::", "%"]
)
def test_text_that_is_no_address_is_refused(host):
    done = call("explore", "--host", host, "--no-browser")
    assert done.status == 2
    assert done.err.startswith("ppsim: --host ")
    assert "cannot be served on: " in done.err


def test_a_slow_device_is_slow_also_where_each_stage_is_on_two_devices(client):
    row = {"devices": "2", "forward": 1.5, "input_grad": 1.5, "weight_grad": 1.5}
    case = {**CASE, "schedule": "dualpipe", "by_device": [row]}
    slow = ppsim.Jitter(slow_devices={2: 1.5})
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    expected = ppsim.simulate(ppsim.build("dualpipe", devices=4, microbatches=8), costs, jitter=slow).makespan
    found = client.post("/api/simulate", json=case).json()
    assert found["makespan"] == expected
    assert "'slow_devices': {2: 1.5}" in found["copies"]["python"]
    fault = said(client.post("/api/simulate", json={**case, "by_device": [{"devices": "2", "forward": 1.5}]}))
    assert "each stage of this schedule is on two devices" in fault


def test_a_list_by_stage_and_a_row_by_device_do_not_mix(client):
    case = {**CASE, "schedule": "zb-v", "devices": 4, "forward": "1, 1, 1, 1, 1, 1, 1, 2"}
    fault = said(client.post("/api/simulate", json={**case, "by_device": [{"devices": "3", "forward": 3}]}))
    assert "cost F: lists 8 values; with rows by device it must have 4, one per device" in fault


def test_no_function_and_no_class_of_the_pages_is_unused():
    folders = [ROOT / "ppsim" / "plots" / "page", ROOT / "ppsim" / "explorer" / "page", ROOT / "docs" / "live"]

    def read(ending):
        return "".join(path.read_text(encoding="utf-8") for folder in folders for path in folder.glob(f"*{ending}"))

    script, rules = read(".js"), re.sub(r"/\*.*?\*/|\{[^{}]*\}", " ", read(".css"))
    defined, times = re.findall(r"(?:function\*?|const|let) (\w+)", script), Counter(re.findall(r"\w+", script))
    assert {name for name in defined if times[name] == 1} == set()
    python = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "ppsim").rglob("*.py"))
    strings = " ".join(re.findall(r'"[^"\n]*"|`[^`\n]*`', script)) + read(".html") + python
    assert set(re.findall(r"\.([a-zA-Z][\w-]*)", rules)) - set(re.findall(r"[\w-]+", strings)) == set()
