"""Points on clusters: Dask with a worker that is killed on the way, and Slurm's executor run on this machine."""

import os
import signal
import threading
import time

import pytest
from command_line import UNIT_COSTS

from ppsim.studies import SlurmJobs, dask_executor, run_points

# Fewer than this process hands to others.
POINTS = [{"schedule.microbatches": m, "costs.latency": n / 10} for m in range(8, 28) for n in range(3)]


@pytest.fixture
def cluster():
    """Two Dask workers, each a process of its own, and their scheduler."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


def kill_one_worker_when_work_has_begun(cluster):
    """Kill the first worker's process while it loads the library or works."""
    victim = next(iter(cluster.workers.values()))
    time.sleep(0.5)
    os.kill(victim.process.pid, signal.SIGKILL)


def test_two_dask_workers_one_killed_on_the_way_give_the_same_answer(cluster):
    expected = list(run_points(UNIT_COSTS, POINTS))
    killer = threading.Thread(target=kill_one_worker_when_work_has_begun, args=[cluster])
    killer.start()
    with dask_executor(cluster.scheduler_address) as executor:
        assert list(run_points(UNIT_COSTS, POINTS, executor=executor)) == expected
    killer.join()


def test_jobs_of_submitit_give_the_same_answer(tmp_path):
    pytest.importorskip("submitit")
    points = POINTS[:2]
    executor = SlurmJobs({"timeout_min": 2}, folder=str(tmp_path), cluster="local")
    try:
        found = list(run_points(UNIT_COSTS, points, executor=executor))
    finally:
        executor.shutdown()
    assert found == list(run_points(UNIT_COSTS, points))
