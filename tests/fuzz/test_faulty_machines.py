"""Damaged caches of compiled code, threads that compile, copies and pickles: the same results."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from command_line import ENVIRONMENT
from test_equality import RESULTS

import ppsim as library
from tests.fuzz.cases import COUNTS, EXAMPLES
from tests.fuzz.test_commands import CALLS, folder  # noqa: F401 - a fixture


def arrays_of(value, seen):
    """Every array that a value holds, at any depth."""
    if id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from arrays_of(inner, seen)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from arrays_of(inner, seen)
    elif type(value).__module__.startswith("ppsim"):
        yield from arrays_of(getattr(value, "__dict__", {}), seen)


WAYS = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),  # noqa: S301 - our own bytes
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", RESULTS)
def test_copies_and_pickles_are_equal_and_as_closed_as_the_original(name, way):
    made = RESULTS[name](latency=0.5)
    other = WAYS[way](made)
    assert type(other) is type(made)
    assert other == made
    if not any(array.flags.writeable for array in arrays_of(made, {})):
        assert not any(array.flags.writeable for array in arrays_of(other, {}))
    assert WAYS[way](other) == made
    COUNTS["copies and pickles of results"]["answers"] += 1


THREADS = """
import sys
from concurrent.futures import ThreadPoolExecutor
import ppsim
def work(number):
    schedule = ppsim.build("zb-h1", devices=4, microbatches=8)
    run = ppsim.simulate(schedule, ppsim.Costs(latency=0.25), engine="compiled",
                         transport=("async", "rank")[number % 2])
    return number % 2, run.makespan, run.end.tobytes()
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(work, range(16)))
assert len(set(found)) == 2, found
print(sorted({(kind, makespan) for kind, makespan, _ in found}))
"""


def test_eight_threads_that_compile_at_once_find_the_same(tmp_path):
    for number in range(max(1, EXAMPLES // 100)):
        told = {**ENVIRONMENT, "NUMBA_CACHE_DIR": str(tmp_path / str(number))}
        found = subprocess.run([sys.executable, "-c", THREADS], env=told, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr
        COUNTS["first compilations by eight threads"]["answers"] += 1


CACHED = """
import random, sys
from pathlib import Path
import ppsim
generator = random.Random(int(sys.argv[2]))
schedule = ppsim.build("1f1b", devices=2, microbatches=4)
for transport in sys.argv[3:]:
    for file in Path(sys.argv[1]).rglob("*.nb*"):
        damage = generator.randrange(5)
        if damage == 0:
            file.unlink()
        elif damage == 1:
            file.write_bytes(file.read_bytes()[: generator.randrange(200)])
        elif damage == 2:
            file.write_bytes(generator.randbytes(50))
    print(ppsim.simulate(schedule, ppsim.Costs(latency=0.5), engine="compiled", transport=transport).makespan)
"""


# Each transport has a kernel of its own; a kernel that is called again comes from the damaged cache.
TRANSPORTS = ("async", "rank", "async", "blocking") if EXAMPLES > 15 else ("async", "async")


def check_cached(cache, number=0, code=CACHED):
    """Simulations of a process whose cache of compiled code is damaged give the results of the other engine."""
    call = [sys.executable, "-c", code, cache, str(number), *TRANSPORTS]
    told = {**ENVIRONMENT, "NUMBA_CACHE_DIR": str(cache)}
    found = subprocess.run(call, env=told, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert "Traceback" not in found.stderr
    costs, schedule = library.Costs(latency=0.5), library.build("1f1b", devices=2, microbatches=4)
    expected = [library.simulate(schedule, costs, transport=one, engine="event").makespan for one in TRANSPORTS]
    assert [float(line) for line in found.stdout.split()] == expected
    COUNTS["damaged caches of compiled code"]["answers"] += 1


def test_a_cache_on_a_full_disk_changes_no_result(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {limited}" + CACHED
    for _ in range(1 if EXAMPLES <= 15 else 2):
        check_cached(tmp_path, code=code)
