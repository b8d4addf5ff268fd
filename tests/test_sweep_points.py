"""Many points: measures of each or its refusal, in order, whoever works; a store that outlives the run."""

import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from multiprocessing import get_context

import pytest
from command_line import ENVIRONMENT, LLAMA, UNIT_COSTS

import ppsim as library
from ppsim import ConfigError
from ppsim.studies import points as study
from ppsim.studies import run_points

POINTS = [
    {"schedule.name": name, "schedule.microbatches": m}
    for m in (8, 16, 4)
    for name in ("1f1b", "zb-h1", "interleaved-1f1b:2", "dualpipe:3", "gpipe")
]


def test_points_come_in_order_with_the_measures_of_their_timelines():
    found = list(run_points(UNIT_COSTS, POINTS))
    assert [dict(point.changes) for point in found] == POINTS
    run = library.simulate(library.build("interleaved-1f1b:2", devices=4, microbatches=16))
    assert found[7].measures["makespan"] == run.makespan
    assert found[7].measures["stages_per_device"] == 2
    assert "stages_per_device=3 is not allowed" in found[3].refused
    assert found[3].measures is None


@pytest.mark.parametrize("make", [partial(ProcessPoolExecutor, mp_context=get_context("spawn")), ThreadPoolExecutor])
def test_every_executor_gives_the_same_answer(make):
    with make(2) as executor:
        assert list(run_points(UNIT_COSTS, POINTS, executor=executor)) == list(run_points(UNIT_COSTS, POINTS))


def test_a_config_may_be_a_path_a_dict_or_a_config():
    config = library.load_config(UNIT_COSTS)
    answers = [list(run_points(one, POINTS[:2])) for one in (UNIT_COSTS, config, dict(config.data))]
    assert answers[0] == answers[1] == answers[2]


def test_another_schedule_leaves_the_options_and_stages_of_the_configs_own_behind():
    base = {"schedule": {"name": "interleaved-1f1b:2", "devices": 4, "microbatches": 8, "options": {"group_size": 4}}}
    found = run_points(base, [{"schedule.name": "1f1b"}, {"schedule.name": "interleaved-1f1b:4"}])
    assert [point.measures["stages_per_device"] for point in found] == [1, 4]


def test_what_a_store_holds_is_not_simulated_again(tmp_path, monkeypatch):
    first = list(run_points(UNIT_COSTS, POINTS, store=tmp_path / "runs.sqlite"))
    monkeypatch.setattr(study, "measure_point", lambda *_, **__: pytest.fail("simulated again"))
    assert list(run_points(UNIT_COSTS, POINTS, store=tmp_path / "runs.sqlite")) == first


def test_a_changed_config_or_file_that_it_names_has_other_keys(tmp_path):
    store, file = tmp_path / "runs.sqlite", tmp_path / "mine.csv"
    base = {"schedule": {"csv": str(file)}}
    makespans = []
    for name in ("1f1b", "zb-h1"):
        library.build(name, devices=4, microbatches=8).to_csv(file)
        makespans += [point.measures["makespan"] for point in run_points(base, [{}], store=store)]
    assert makespans == [33, 27]


def test_what_is_no_store_is_refused(tmp_path):
    (tmp_path / "text").write_text("not a database, but long enough to be read as one by mistake")
    with pytest.raises(ConfigError, match="cannot be used as a store"):
        list(run_points(UNIT_COSTS, POINTS, store=tmp_path / "text"))


def test_other_measures_are_another_result(tmp_path):
    store = tmp_path / "runs.sqlite"
    (few,) = run_points(UNIT_COSTS, POINTS[:1], store=store, measures=["makespan"])
    (every,) = run_points(UNIT_COSTS, POINTS[:1], store=store)
    assert few.measures == {"makespan": every.measures["makespan"]}
    assert few != every


LONG = """
import sys
from ppsim.studies import run_points
points = [{"schedule.microbatches": m, "costs.latency": n / 100} for n in range(6) for m in range(8, 28)]
found = list(run_points(sys.argv[1], points, store=sys.argv[2], workers=2))
print(sum(point.measures["makespan"] for point in found))
"""


def long_run(store):
    return subprocess.Popen(
        [sys.executable, "-c", LONG, str(UNIT_COSTS), str(store)], stdout=subprocess.PIPE, env=ENVIRONMENT, text=True
    )


def kept(store):
    if not store.exists():
        return 0
    with closing(sqlite3.connect(store, timeout=60)) as base, suppress(sqlite3.OperationalError):  # no table yet
        return base.execute("SELECT count(*) FROM results").fetchone()[0]
    return 0


def test_a_run_that_was_killed_goes_on_and_two_runs_share_a_store(tmp_path):
    whole, store = tmp_path / "whole.sqlite", tmp_path / "runs.sqlite"
    expected, _ = long_run(whole).communicate(timeout=120)
    killed = long_run(store)
    while kept(store) < 20 and killed.poll() is None:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert kept(store) >= 20
    both = [long_run(store), long_run(store)]
    assert [run.communicate(timeout=120)[0] for run in both] == [expected, expected]
    assert kept(store) == 120


def test_derived_costs_say_tokens_per_second_and_memory():
    (point,) = run_points(LLAMA, [{"schedule.microbatches": 8}])
    run = library.load_config(LLAMA, overrides={"schedule.microbatches": 8}).simulate()
    assert point.measures["tokens_per_second"] == run.tokens_per_second
    assert point.measures["peak_memory"] == run.peak_memory.max()
