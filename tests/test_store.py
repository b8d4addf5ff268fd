"""The store: results follow from keys and files, failures of the machine are not kept, locks are waited for."""

import hashlib
import json
import os
import signal
import sqlite3
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from command_line import UNIT_COSTS, ppsim, start
from published_models import CONFIGS

import ppsim as library
from ppsim import ConfigError
from ppsim.studies import Store, run_points, store_key

HEADS = CONFIGS["meta-llama/Meta-Llama-3-8B"][0]
NAMES = ("1f1b", "zb-h1", "dualpipe:3")
POINTS = [{"schedule.name": name, "schedule.microbatches": m} for name in NAMES for m in (8, 16)]


def kept(path):
    """The number of results in a store."""
    with closing(sqlite3.connect(path, timeout=60)) as base:
        return base.execute("SELECT count(*) FROM results").fetchone()[0]


def step_of(config, store):
    (point,) = run_points(config, [{}], store=store)
    return point.refused or point.numbers["iteration_time"]


def write(path, content):
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)


def model_file(folder, layers):
    write(folder / "hf" / "config.json", json.dumps({**HEADS, "num_hidden_layers": layers}))


def operators_file(folder, products):
    measured = folder / "measured.json"
    write(measured, json.dumps(measurements(products)))
    done = ppsim("calibrate", "--operators", measured, "-o", folder / "law.yaml")
    assert done.status == 0, done.err


def measurements(speed, peak=1e12, bandwidth=1e10, launch=1e-6):
    sizes = (64, 256, 1024, 4096)
    return {
        "schema": "ppsim.measured-operators/1", "device": "ours", "data_type": "bfloat16", "value_bytes": 2,
        "products": [
            {"rows": n, "columns": n, "depth": n, "seconds": launch + 2 * n**3 / (peak * speed)} for n in sizes
        ],
        "attention": [
            {"batch": 1, "heads": 1, "width": 64, "tokens": n, "causal": False,
             "seconds": 2 * launch + 3.5 * 4 * 64 * n * n / (peak * speed / 2)} for n in (512, 2048, 8192)
        ],
        "streams": [{"bytes": 10**9, "seconds": 10**9 / bandwidth}],
    }  # fmt: skip


def csv_file(folder, microbatches):
    library.build("zb-h1", devices=4, microbatches=microbatches).to_csv(folder / "mine.csv")


MODEL = {"num_layers": 8, "hidden": 1024, "heads": 8, "vocabulary": 1000, "sequence": 512}
SCHEDULE = {"name": "1f1b", "devices": 4, "microbatches": 8}
DEVICE = {"peak": "2 TFLOP/s", "memory": "80 GB"}
# A key that names a file: how the file is written from a number, two numbers, and a config with the key.
NAMED = {
    "model.huggingface of a folder": (model_file, 32, 64, {
        "model": {"huggingface": "hf"}, "hardware": {"device": "H100 SXM", "link": "NVLink 4"}, "schedule": SCHEDULE,
    }),
    "model.huggingface of a file": (model_file, 32, 64, {
        "model": {"huggingface": "hf/config.json"}, "hardware": {"device": "H100", "link": "NVLink 4"},
        "schedule": SCHEDULE,
    }),
    "hardware.device.operators": (operators_file, 1.0, 0.5, {
        "model": MODEL, "hardware": {"device": {**DEVICE, "operators": "law.yaml"}, "link": "NVLink 4"},
        "schedule": SCHEDULE,
    }),
    "schedule.csv": (csv_file, 8, 16, {"schedule": {"csv": "mine.csv"}}),
}  # fmt: skip


@pytest.mark.parametrize("named", NAMED)
def test_a_changed_file_is_another_result_and_the_file_as_it_was_the_stored_one(named, tmp_path, monkeypatch):
    make, one, other, config = NAMED[named]
    place, store = tmp_path / "c.yaml", tmp_path / "runs.sqlite"
    place.write_text(json.dumps(config))
    steps = []
    for number in (one, other, one):
        make(tmp_path, number)
        steps.append(step_of(place, store))
        fresh = library.load_config(place).simulate().iteration_time
        assert steps[-1] == fresh
    assert steps[0] == steps[2] != steps[1]
    assert kept(store) == 2
    monkeypatch.setattr("ppsim.studies.points.measure_point", lambda *_, **__: pytest.fail("simulated again"))
    assert step_of(place, store) == steps[0]


def test_configs_of_equal_text_in_two_folders_have_their_own_results(tmp_path):
    steps = []
    for folder, layers in (("a", 32), ("b", 64), ("a", 32)):
        (tmp_path / folder).mkdir(exist_ok=True)
        model_file(tmp_path / folder, layers)
        place = tmp_path / folder / "c.yaml"
        place.write_text(json.dumps(NAMED["model.huggingface of a folder"][3]))
        steps.append(step_of(place, tmp_path / "runs.sqlite"))
    assert steps[0] == steps[2] != steps[1]
    assert kept(tmp_path / "runs.sqlite") == 2


def test_layouts_that_choose_opens_follow_from_the_files_too(tmp_path):
    config = {
        "model": {"huggingface": "hf"}, "hardware": {"device": "H100 SXM", "link": "NVLink 4", "gpus": 8}, "batch": 8,
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    answers = []
    for layers in (32, 16, 32):
        model_file(tmp_path, layers)
        only = {"schedule.name": ["1f1b", "gpipe"], "schedule.devices": [2], "layout.microbatch_size": [1]}
        stored = library.choose(tmp_path / "c.yaml", only=only, store=tmp_path / "runs.sqlite", workers=1)
        assert stored.rows() == library.choose(tmp_path / "c.yaml", only=only, workers=1).rows()
        answers.append(stored.rows()[0]["iteration_time"])
    assert answers[0] == answers[2] != answers[1]


def test_a_big_file_is_hashed_once_in_a_sweep_and_again_when_it_changes(tmp_path, monkeypatch):
    csv_file(tmp_path, 8)
    past = time.time() - 100
    hashed = []
    digest = hashlib.file_digest
    monkeypatch.setattr("hashlib.file_digest", lambda *given: hashed.append(1) or digest(*given))
    monkeypatch.setattr("time.time_ns", lambda: 2 * 10**18)
    config = {"schedule": {"csv": str(tmp_path / "mine.csv")}}
    points = [{"costs.forward": 1 + n / 8} for n in range(20)]
    list(run_points(config, points, store=tmp_path / "runs.sqlite"))
    list(run_points(config, points, store=tmp_path / "runs.sqlite"))
    assert len(hashed) == 1
    csv_file(tmp_path, 16)
    os.utime(tmp_path / "mine.csv", (past, past))
    assert (
        step_of(config, tmp_path / "runs.sqlite")
        == library.simulate(library.build("zb-h1", devices=4, microbatches=16)).makespan
    )
    assert len(hashed) == 2


def test_values_that_differ_have_other_keys():
    many = np.arange(5000.0)
    changed = many.copy()
    changed[2500] += 1
    values = [
        3, "3", {"a": 3}, {3: "a"}, {"3": "a"}, [1, 2], "[1, 2]", None, "null", True, 1.5, float("nan"), 10**5000,
        10**5000 + 1, many, changed, {3: 1, "b": 2}, {"x": {"y": 1}}, {"x.y": 1},
    ]  # fmt: skip
    assert len({store_key({"costs": value}) for value in values}) == len(values)
    assert store_key({"a": 1, "b": 2}) == store_key({"b": 2, "a": 1, "name": "x", "published": {"mfu": 1}})
    assert store_key({"costs": [1, 2]}) == store_key({"costs": (1, 2)}) == store_key({"costs": np.array([1, 2])})


def fails_by_memory(*_, **__):
    raise MemoryError


def without_numba(monkeypatch):
    monkeypatch.setattr("ppsim.engines.running.can_compile", lambda: False)
    return {"engine": "compiled"}, "needs Numba"


def without_memory(monkeypatch):
    monkeypatch.setattr("ppsim.families.registry.memory_bytes", lambda: 1000)
    return {}, "this machine has"


def without_more_memory(monkeypatch):
    monkeypatch.setattr(library.Config, "simulate", fails_by_memory)
    return {}, "not enough memory"


def without_a_file(monkeypatch):
    return {"schedule": {"csv": "there-is-none.csv"}}, "cannot be read"


def without_descriptors(monkeypatch):
    def opened(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("pathlib.Path.open", opened)
    return {"schedule": {"csv": str(UNIT_COSTS)}}, "Too many open files"


@pytest.mark.parametrize(
    "without", [without_numba, without_memory, without_more_memory, without_a_file, without_descriptors]
)
def test_a_failure_of_the_machine_is_an_answer_now_and_not_a_stored_result(without, tmp_path, monkeypatch):
    store = tmp_path / "runs.sqlite"
    with monkeypatch.context() as patch:
        changes, why = without(patch)
        config = {"schedule": SCHEDULE, **changes}
        (point,) = run_points(config, [{}], store=store)
        assert why in point.refused
        assert kept(store) == 0
    assert kept(store) == 0
    refused = step_of({"schedule": {**SCHEDULE, "devices": 3, "name": "dualpipe"}}, store)
    assert "odd" in refused
    assert kept(store) == 1  # a rule of ppsim is a result


def test_half_a_search_is_not_a_stored_result(tmp_path, monkeypatch):
    costs = {"forward": 1, "input_grad": 1, "weight_grad": 1, "latency": 0.4}
    config = {"schedule": {**SCHEDULE, "name": "auto", "options": {"rounds": 1, "memory_limit": 3}}, "costs": costs}

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("ppsim.search.auto.track", interrupted)
        step_of(config, tmp_path / "runs.sqlite")
    assert kept(tmp_path / "runs.sqlite") == 0
    step_of(config, tmp_path / "runs.sqlite")
    assert kept(tmp_path / "runs.sqlite") == 1


def test_a_file_that_changes_while_it_is_read_gives_no_stored_result(tmp_path, monkeypatch):
    csv_file(tmp_path, 8)
    simulate = library.Config.simulate

    def changing(config):
        run = simulate(config)
        csv_file(tmp_path, 16)
        return run

    monkeypatch.setattr(library.Config, "simulate", changing)
    step_of({"schedule": {"csv": str(tmp_path / "mine.csv")}}, tmp_path / "runs.sqlite")
    assert kept(tmp_path / "runs.sqlite") == 0


def locked(path):
    base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    base.execute("BEGIN EXCLUSIVE")
    return base


def test_a_locked_store_is_waited_for_and_loses_nothing(tmp_path, capsys):
    store = tmp_path / "runs.sqlite"
    Store(store).close()
    other = locked(store)
    threading.Timer(1.5, other.close).start()
    found = list(run_points(UNIT_COSTS, POINTS, store=store))
    assert found == list(run_points(UNIT_COSTS, POINTS))
    assert kept(store) == len(POINTS)
    said = capsys.readouterr().err
    assert said.count("another process locks it; waiting") == 1


def test_an_interrupt_ends_the_wait_for_a_locked_store(tmp_path):
    store = tmp_path / "runs.sqlite"
    Store(store).close()
    other = locked(store)
    run = start("sweep", UNIT_COSTS, "--over", "schedule.microbatches=8,16", "--store", store)
    assert "another process locks it; waiting" in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=60)
    assert (run.returncode, out) == (130, "")
    assert "stopped; results so far are in" in err
    other.close()
    assert kept(store) == 0


def test_a_damaged_row_is_recomputed_and_one_message_says_so(tmp_path, capsys):
    store = tmp_path / "runs.sqlite"
    expected = list(run_points(UNIT_COSTS, POINTS, store=store))
    with closing(sqlite3.connect(store)) as base, base:
        base.execute("UPDATE results SET result = replace(result, '33.0', '34.0')")
        base.execute("UPDATE results SET result = 'null' WHERE result LIKE '%refused%'")
    capsys.readouterr()
    assert list(run_points(UNIT_COSTS, POINTS, store=store)) == expected
    assert capsys.readouterr().err == f"ppsim: {store}: damaged rows: 3; their results were recomputed\n"
    assert list(run_points(UNIT_COSTS, POINTS, store=store)) == expected
    assert capsys.readouterr().err == ""


def test_a_file_of_another_program_is_left_as_it_is(tmp_path):
    store = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(store)) as base, base:
        base.execute("CREATE TABLE results (id INTEGER, url TEXT)")
    before = store.read_bytes()
    with pytest.raises(ConfigError, match="not a store of ppsim"):
        list(run_points(UNIT_COSTS, POINTS, store=store))
    assert store.read_bytes() == before
