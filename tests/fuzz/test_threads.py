"""Studies in several threads of one process give the answers of one, also if a cache of compiled code is damaged."""

import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from command_line import ENVIRONMENT, LLAMA, UNIT_COSTS

import ppsim
from tests.fuzz.cases import COUNTS, EXAMPLES

THREADS = 6


def simulated(schedule, transport, jitter):
    run = ppsim.simulate(
        ppsim.build(schedule, devices=4, microbatches=8), ppsim.Costs(latency=0.25), transport=transport,
        jitter=ppsim.Jitter(actions=jitter) if jitter else None,
    )  # fmt: skip
    return run.end.tobytes(), run.peak_activations.tobytes(), run.summary(), run.to_dict()


def swept(config, key, values, store=None):
    return ppsim.sweep(config, over={key: values}, store=store).to_dict()


def chosen(config, free):
    return ppsim.choose(config, free=free, top=2).rows()


def refused(config):
    try:
        ppsim.load_config(config, overrides={"schedule.microbatches": -1})
    except ppsim.PpsimError as error:
        return str(error)
    return None


def jobs(store):
    """Calls of several sorts, of which any two may run at once; two share a store."""
    names = ["1f1b", "zb-h1", "gpipe", "dualpipe", "interleaved-1f1b"]
    return [
        *((simulated, name, transport, jitter) for name in names for transport, jitter in
          (("async", 0), ("rank", 0.1))),
        *((swept, UNIT_COSTS, "schedule.name", names[:count], kept) for count in (2, 3) for kept in (None, store)),
        *((swept, LLAMA, "layout.recompute", ["none", level], store) for level in ("full", "selective")),
        *((chosen, LLAMA, free) for free in (["layout.recompute"], {"schedule.name": names[:2]})),
        (refused, UNIT_COSTS), (refused, LLAMA),
    ]  # fmt: skip


def test_studies_in_several_threads_give_the_answers_of_one(tmp_path):
    calls, some = jobs(tmp_path / "runs.sqlite"), slice(None, None, 1 if EXAMPLES > 15 else 3)
    alone = {number: call(*arguments) for number, (call, *arguments) in [*enumerate(jobs(None))][some]}
    for round_number in range(max(1, EXAMPLES // 50)):
        order = list(alone)
        random.Random(round_number).shuffle(order)  # noqa: S311 - the order of calls
        with ThreadPoolExecutor(THREADS) as pool:
            found = pool.map(lambda number: calls[number][0](*calls[number][1:]), order)
            for number, result in zip(order, found, strict=True):
                assert result == alone[number], calls[number]
                COUNTS["sweeps, choices and simulations by six threads"]["answers"] += 1


@pytest.mark.slow  # the processes of a thread start anew, each in seconds
def test_worker_processes_are_started_by_several_threads():
    over = {"schedule.microbatches": [4, 8, 12]}
    expected = ppsim.sweep(UNIT_COSTS, over=over).to_dict()
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(lambda _: ppsim.sweep(UNIT_COSTS, over=over, workers=2).to_dict(), range(2)):
            assert found == expected
            COUNTS["sweeps, choices and simulations by six threads"]["answers"] += 1


# One thread simulates with the compiled engine; another one damages its cache of compiled code all the time.
DAMAGE = """
import random, shutil, sys, threading
from contextlib import suppress
from pathlib import Path
import ppsim
folder, generator, stopped = Path(sys.argv[1]), random.Random(int(sys.argv[2])), threading.Event()
def damage():
    while not stopped.wait(generator.random() / 20):
        files = list(folder.rglob("*.nb*"))
        with suppress(OSError):
            way = generator.randrange(7)
            if way == 0:
                shutil.rmtree(folder)
            elif way == 1 and files:
                where = generator.choice(files).parent
                shutil.rmtree(where)
                where.write_text("a file in place of the folder")
            elif files:
                file = generator.choice(files)
                if way == 2:
                    file.unlink()
                elif way == 3:
                    file.write_bytes(file.read_bytes()[: generator.randrange(200)])
                elif way == 4:
                    file.write_bytes(generator.randbytes(50))
                elif way == 5:
                    file.unlink()
                    file.mkdir()
                else:
                    file.chmod(0)
                    file.parent.chmod(0o500)
threading.Thread(target=damage, daemon=True).start()
for transport in sys.argv[3:]:
    schedule = ppsim.build("1f1b", devices=2, microbatches=4)
    print(ppsim.simulate(schedule, ppsim.Costs(latency=0.5), engine="compiled", transport=transport).makespan)
stopped.set()
"""


@pytest.mark.slow  # it compiles: pytest -m slow tests/fuzz/test_threads.py
def test_a_cache_that_is_damaged_while_a_run_goes_on_changes_no_result(tmp_path):
    transports = ["async", "rank", "async", "blocking"]
    schedule = ppsim.build("1f1b", devices=2, microbatches=4)
    expected = [
        ppsim.simulate(schedule, ppsim.Costs(latency=0.5), transport=one, engine="event").makespan for one in transports
    ]
    for number in range(max(1, EXAMPLES // 50)):
        folder = tmp_path / str(number)
        folder.mkdir()
        told = {**ENVIRONMENT, "NUMBA_CACHE_DIR": str(folder)}
        call = [sys.executable, "-c", DAMAGE, folder, str(number), *transports]
        found = subprocess.run(call, env=told, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        assert "Traceback" not in found.stderr
        assert [float(line) for line in found.stdout.split()] == expected
        COUNTS["caches of compiled code, damaged during a run"]["answers"] += 1
