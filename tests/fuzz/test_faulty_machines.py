"""Full disks, damaged caches of compiled code, threads, copies and pickles: the same results, or one sentence."""

import copy
import errno
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from command_line import ENVIRONMENT, ppsim
from test_equality import RESULTS

import ppsim as library
from tests.fuzz.cases import COUNTS, EXAMPLES
from tests.fuzz.test_commands import CALLS, folder  # noqa: F401 - a fixture
from tests.fuzz.test_kills import NAMES, OUTPUTS, SERVES, files_in

NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk:
    """A file that takes some bytes before its disk is full, or fails when it is closed."""

    def __init__(self, file, room):
        self.file, self.room = file, room

    def writelines(self, pieces):
        for piece in pieces:
            self.file.write(piece[: self.room])
            self.room -= len(piece)
            if self.room < 0:
                raise NO_SPACE

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()
        if self.room < 1000:
            raise NO_SPACE


@pytest.mark.parametrize("name", [name for name in NAMES if name != SERVES][:: 1 if EXAMPLES > 15 else 6])
def test_a_full_disk_is_one_sentence_and_leaves_no_file(name, folder, monkeypatch):  # noqa: F811
    generator = random.Random(name)  # noqa: S311 - calls, and the room on a disk
    before = files_in(folder)
    real_open = open
    for outputs in OUTPUTS.get(name, ["--json j.json"])[: max(1, EXAMPLES // 15)]:
        words = outputs.replace("--workers 2", "") if outputs else "-o new.yaml"
        room = generator.randint(0, 900)

        def full_open(file, mode="r", *more, room=room, **options):
            opened = real_open(file, mode, *more, **options)
            return FullDisk(opened, room) if mode == "xb" else opened

        with monkeypatch.context() as patch:
            patch.setattr("ppsim.base.files.open", full_open, raising=False)
            outcome = ppsim(name, *(CALLS[name][0].replace("-o out.yaml", "") + " " + words).split())
        assert outcome.status == 2, (name, words, outcome)
        assert "cannot be written: No space left on device" in outcome.err
        assert "Traceback" not in outcome.err
        left = {file: content for file, content in files_in(folder).items() if not file.startswith("store.sqlite")}
        assert left == before
        COUNTS["outputs on a full disk"]["refusals"] += 1


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


def test_eight_threads_that_build_and_simulate_find_what_one_finds():
    names = sorted(library.schedules())

    def work(name):
        try:
            run = library.simulate(library.build(name, devices=4, microbatches=8), library.Costs(latency=0.25))
        except library.PpsimError as error:
            return str(error)
        return run.end.tobytes(), run.peak_activations.tobytes(), run.makespan

    alone = {name: work(name) for name in names[:: 1 if EXAMPLES > 15 else 4]}
    with ThreadPoolExecutor(8) as pool:
        for name, found in zip(2 * [*alone], pool.map(work, 2 * [*alone]), strict=True):
            assert found == alone[name], name
            COUNTS["schedules built and simulated by eight threads"]["answers"] += 1


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


def test_a_cache_that_is_damaged_between_calls_changes_no_result(tmp_path):
    for number in range(max(1, EXAMPLES // 25)):
        check_cached(tmp_path, number)


def test_a_cache_on_a_full_disk_changes_no_result(tmp_path):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000)); "
    code = f"import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); {limited}" + CACHED
    for _ in range(1 if EXAMPLES <= 15 else 2):
        check_cached(tmp_path, code=code)
