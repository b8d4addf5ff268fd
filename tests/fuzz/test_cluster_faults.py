"""Dask and Slurm that fail in any way: the answers of this machine, points that are left out by name, or one error.

The short run uses an executor whose futures fail as theirs do; `pytest -m slow tests/fuzz/test_cluster_faults.py` runs
real clusters on this machine.
"""

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress

import pytest
from command_line import ENVIRONMENT, ROOT, UNIT_COSTS

import ppsim
from ppsim.studies import JobRunner, SlurmJobs, dask_executor, run_points
from tests.fuzz.cases import COUNTS, EXAMPLES

POINTS = [{"schedule.microbatches": m} for m in range(4, 14)]
LONGEST = 150  # seconds of one call
WORKERS = {**ENVIRONMENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}  # they import this file


@pytest.fixture(scope="module")
def expected():
    """The answers of this process."""
    return list(run_points(UNIT_COSTS, POINTS))


class KilledWorker(Exception):  # noqa: N818 - the name of Dask's error
    """Dask's error for a worker that died several times."""


class UncompletedJobError(RuntimeError):
    """Submitit's error for a job that was killed or ran out of time."""


FAULTS = {
    "worker killed": KilledWorker("attempted to run task on 4 workers\nbut all died"),
    "job killed": UncompletedJobError("Job 7 (task: 0) with path x.pkl\nhas not produced any output (state: TIMEOUT)"),
    "out of memory": MemoryError(),
    "connection lost": OSError("Timed out during handshake"),
    "cancelled": CancelledError(),
    "not unpickled": ModuleNotFoundError("No module named 'ppsim'"),
    "job raised": RuntimeError("Job failed with trace:\n----\nTraceback\nKeyError: 'x'\n----\nsee the logs"),
}
DEATHS = ("worker killed", "job killed")


def is_left_out(refused):
    return str(refused).startswith("left out: its worker died ")


class Failing(Executor):
    """An executor whose calls end in a fault with some probability, at once, later or at their submission."""

    workers = 2

    def __init__(self, seed, fault, part):
        self.random, self.fault, self.part = random.Random(seed), fault, part  # noqa: S311 - faults

    def submit(self, fn, /, *args, **kwargs):
        future, how = Future(), self.random.random()
        if how > self.part:
            future.set_result(fn(*args, **kwargs))
        elif self.fault == "cancelled" and how < self.part / 2:
            future.cancel()
        elif how < self.part / 4:
            raise FAULTS[self.fault]
        elif how < self.part / 2:
            future.set_running_or_notify_cancel()
            threading.Timer(0.05, future.set_exception, [FAULTS[self.fault]]).start()
        else:
            future.set_exception(FAULTS[self.fault])
        return future


def check(found, expected, error, what):
    """Each point has its answer or is left out with a cause; or there is one error on one line."""
    COUNTS[what]["refusals" if error else "answers"] += 1
    if error:
        assert "\n" not in str(error)
        assert "Traceback" not in str(error)
        return
    for one, other in zip(found, expected, strict=True):
        assert one == other or (is_left_out(one.refused) and "\n" not in one.refused)


def attempt(run, expected, what):
    """Run points to the end, and check what comes of it."""
    found, error = [], None
    try:
        found = list(run())
    except ppsim.PpsimError as caught:
        error = caught
    check(found, expected, error, what)
    return error


@pytest.mark.parametrize("fault", FAULTS)
def test_an_executor_that_fails_loses_no_other_point(fault, tmp_path, monkeypatch, expected):
    monkeypatch.setattr("ppsim.studies.worker_pool._POLL_SECONDS", 0.01)
    for seed in range(max(2, EXAMPLES // 20)):
        part = random.Random(seed).choice([0.1, 0.5, 1.0])  # noqa: S311 - probabilities
        store = tmp_path / f"{seed}.sqlite"
        error = attempt(
            lambda seed=seed, part=part, store=store: run_points(
                UNIT_COSTS, POINTS, executor=Failing(seed, fault, part), store=store
            ),
            expected,
            f"executors that fail: {fault}",
        )
        assert not (error and fault in DEATHS), error
        assert list(run_points(UNIT_COSTS, POINTS, store=store)) == expected  # the store keeps what was done


# Real clusters


def wait_for_port(port):
    deadline = time.monotonic() + LONGEST
    while time.monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError("no scheduler")


@pytest.fixture
def dask():
    """Address and processes of a Dask scheduler and two workers, none of which comes back when it dies."""
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    calls = [["scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]]
    calls += 2 * [["worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard"]]
    processes = []
    for call in calls:
        program = [sys.executable, "-m", f"distributed.cli.dask_{call[0]}", *call[1:]]
        processes.append(subprocess.Popen(program, env=WORKERS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_for_port(port)
    yield address, processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("victims", [(1,), (0,), (0, 1, 2)], ids=["a worker", "the scheduler", "all"])
def test_dask_processes_that_are_killed(victims, dask, expected):
    address, processes = dask
    points = 8 * POINTS
    killer = threading.Timer(2.0, lambda: [processes[number].kill() for number in victims])
    with dask_executor(address) as executor:
        killer.start()
        error = attempt(lambda: run_points(UNIT_COSTS, points, executor=executor), 8 * expected, "Dask under faults")
    assert not error or "the Dask scheduler is gone" in str(error)


def out_of_memory(item):
    raise MemoryError(f"no memory\nfor item {item}")


def killed(item):
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"item": item}


def too_long(item):
    time.sleep(LONGEST)
    return {"item": item}


class Unpicklable:
    def __reduce__(self):
        raise TypeError("cannot be pickled")


def unpicklable(item):
    return {"item": Unpicklable()}


@pytest.mark.slow
def test_dask_workers_that_raise_are_one_error(dask):
    said = "the executor ClientExecutor failed: MemoryError: no memory"
    with dask_executor(dask[0]) as executor, pytest.raises(ppsim.ConfigError, match=said) as caught:
        list(JobRunner(out_of_memory, [1, 2], executor).in_order())
    assert "\n" not in str(caught.value)
    COUNTS["Dask under faults"]["refusals"] += 1


@pytest.fixture
def jobs_import_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", WORKERS["PYTHONPATH"])


def slurm(folder, work, items=(1, 2), **parameters):
    """The outcomes of items by jobs of submitit on this machine."""
    executor = SlurmJobs({"timeout_min": 2, **parameters}, folder=str(folder), cluster="local")
    try:
        return list(JobRunner(work, list(items), executor).in_order())
    finally:
        executor.shutdown()


@pytest.mark.slow
def test_slurm_jobs_that_raise_are_one_error(tmp_path, jobs_import_tests):
    with pytest.raises(ppsim.ConfigError, match=r"the executor SlurmJobs failed: .*MemoryError: no memory") as caught:
        slurm(tmp_path, out_of_memory)
    assert "\n" not in str(caught.value)
    COUNTS["Slurm under faults"]["refusals"] += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "cause"),
    [(killed, "UncompletedJobError"), (unpicklable, "cannot be pickled"), (too_long, "timed-out")],
)
def test_slurm_jobs_without_a_result_are_left_out_by_name(work, cause, tmp_path, monkeypatch, jobs_import_tests):
    """They were killed, ran for longer than their minute, or gave what cannot be stored."""
    monkeypatch.setattr("ppsim.studies.worker_pool.DEATHS", 1)
    [lost] = slurm(tmp_path, work, items=[2], timeout_min=1)
    assert is_left_out(lost["refused"])
    assert cause in lost["refused"]
    assert "\n" not in lost["refused"]
    COUNTS["Slurm under faults"]["answers"] += 1


@pytest.mark.slow
def test_a_folder_that_is_removed_meanwhile_is_one_error(tmp_path, jobs_import_tests):
    threading.Timer(1.0, shutil.rmtree, [tmp_path / "jobs", True]).start()
    with pytest.raises(ppsim.ConfigError, match="executor SlurmJobs failed"):
        slurm(tmp_path / "jobs", too_long, items=[1])
    COUNTS["Slurm under faults"]["refusals"] += 1


@pytest.mark.parametrize("folder", ["file", "file/jobs", "/proc/jobs", "a\0b"])
def test_a_folder_that_cannot_be_written_is_one_error(folder, tmp_path):
    pytest.importorskip("submitit")
    (tmp_path / "file").write_text("")
    with pytest.raises(ppsim.ConfigError, match="--slurm: "):
        slurm(tmp_path / folder, killed)
    COUNTS["Slurm under faults"]["refusals"] += 1


@pytest.mark.parametrize("parameters", [{"timeout_min": "x"}, {"timeout_min": 0.5}, {"none": 1}, {"slurm_x": []}])
def test_parameters_that_submitit_refuses_are_one_error(parameters, tmp_path):
    pytest.importorskip("submitit")
    with pytest.raises(ppsim.ConfigError, match="--slurm: "):
        slurm(tmp_path, killed, **parameters)
    COUNTS["Slurm under faults"]["refusals"] += 1
