"""A process that is stopped at a random time leaves each file whole, old or new, and nothing else behind."""

import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

import pytest
from command_line import ENVIRONMENT, start

from ppsim.cli import COMMANDS
from tests.fuzz.cases import COUNTS, EXAMPLES
from tests.fuzz.test_commands import CALLS, SERVES, write_inputs

WRITES = """
import itertools, sys
from ppsim.base.files import write_atomically
print("ready", flush=True)
for number in itertools.count():
    write_atomically(sys.argv[1], [b"%d\\n" % number * 20_000 for _ in range(50)])
"""


def test_a_kill_leaves_a_whole_file(tmp_path):
    target = tmp_path / "table.csv"
    generator = random.Random(0)  # noqa: S311 - moments of kills
    for _ in range(max(3, EXAMPLES // 25)):
        process = subprocess.Popen([sys.executable, "-c", WRITES, target], stdout=subprocess.PIPE, env=ENVIRONMENT)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        while not target.exists():
            time.sleep(0.001)
        time.sleep(generator.uniform(0, 0.1))
        process.kill()
        process.wait()
        lines = target.read_bytes().splitlines()
        assert len(lines) == 50 * 20_000
        assert len(set(lines)) == 1
        COUNTS["kills while a file is written"]["answers"] += 1


LONGEST = 60  # seconds from a signal to the end, on a busy machine
CLOSED = "closed pipes"
# Exit status by what stops a call. A negative one is Python's own, before and after the program's handlers are there.
STOPS = {
    signal.SIGINT: (130, -signal.SIGINT),
    signal.SIGTERM: (143, -signal.SIGTERM),
    signal.SIGHUP: (129, -signal.SIGHUP),
    CLOSED: (141,),
}
STORED = "--store store.sqlite --workers 2"
# Files that calls of a command write; each is the same in every run.
OUTPUTS = {
    "simulate": ["--gantt g.svg --trace t.json --csv s.csv", "--gantt g.html --table t.csv", "--gantt g.png"],
    "compare": ["--gantt g.svg --json j.json"],
    "sweep": [f"{STORED} --json j.json", f"{STORED} --table t.csv --front f.svg", "--json j.json"],
    "choose": [f"{STORED} --json j.json", "--csv s.csv"],
    "fill": ["--gantt g.svg --table t.csv --json j.json"],
    "check": ["--junit j.xml --json j.json"],
    "calibrate": [""],
    "import": ["-o job.yaml"],
    "export": ["-o train.sh"],
    "optimum": ["--csv s.csv --json j.json"],
    "evaluate": ["--chart c.svg --csv e.csv"],
    "explain": ["--gantt g.svg --json j.json"],
}
NAMES = sorted(COMMANDS)


def drawn_call(name, generator):
    """A call of a command that ends and writes files; the explorer serves until it is stopped."""
    if name == SERVES:
        return (name, "--no-browser")
    words = f"{generator.choice(CALLS[name])} {generator.choice(OUTPUTS.get(name, ['--json j.json']))}"
    return (name, *words.split())


def begin(call, folder, inputs):
    """A call in a new folder with its inputs, in a session of its own; its temporary files lie in that folder."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(inputs, folder)
    (folder / "temporary").mkdir()
    told = {**ENVIRONMENT, "TMPDIR": str(folder / "temporary")}
    return start(*call, cwd=folder, start_new_session=True, env=told)


def files_in(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def session(leader):
    """The living processes that a call started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, its_session, *_ = stat.read_text().rpartition(")")[2].split()
            if int(its_session) == leader and state != "Z":
                found.append(int(stat.parent.name))
    return found


def said_by_python(err):
    """Whether a traceback ends before the program's first line, which only Python can answer."""
    return "Traceback" in err and "/ppsim/" not in err.replace("/ppsim/__init__.py", "")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    before = Path.cwd()
    os.chdir(folder)
    write_inputs()
    os.chdir(before)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory, inputs):
    """A function that runs a call to its end: its seconds, its exit status and all files."""

    @cache
    def run(call):
        if call[0] == SERVES:
            return 3.0, 0, files_in(inputs)
        folder = tmp_path_factory.mktemp("whole")
        began = time.monotonic()
        process = begin(call, folder, inputs)
        _, err = process.communicate(timeout=4 * LONGEST)
        assert process.returncode in (0, 1), (call, err)
        return time.monotonic() - began, process.returncode, files_in(folder)

    return run


def stop(process, way, group):
    """Stop a call, or all its processes as a terminal does; return its status and what it said on stderr."""
    if way == CLOSED:
        process.stdout.close()
        process.stderr.close()
        return process.wait(timeout=LONGEST), ""
    with suppress(ProcessLookupError):
        (os.killpg if group else os.kill)(process.pid, way)
    _, err = process.communicate(timeout=LONGEST)
    return process.returncode, err


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
def test_a_stopped_call_ends_with_its_status_and_leaves_nothing(inputs, whole, tmp_path):
    seed = int(os.environ.get("PPSIM_FUZZ_SEED", "0"))
    generator = random.Random(seed)  # noqa: S311 - calls, and times of signals
    for number in range(2 * EXAMPLES if EXAMPLES >= 100 else max(3, EXAMPLES // 5)):
        call = drawn_call(NAMES[(seed + number * 7) % len(NAMES)], generator)
        way = generator.choice([one for one in STOPS if one != CLOSED or call[0] != SERVES])
        group, part = generator.random() < 0.5, generator.random()
        seconds, status, expected = whole(call)
        what = call, way, group, round(seconds * part, 2)
        process = begin(call, tmp_path / "call", inputs)
        time.sleep(seconds * part)
        ended, err = stop(process, way, group)
        if not said_by_python(err):
            assert ended in (status, *STOPS[way]), (what, ended, err)
            assert "Traceback" not in err, (what, err)
        patience = time.monotonic() + LONGEST
        while (left := session(process.pid)) and time.monotonic() < patience:
            time.sleep(0.05)
        assert not left, what
        for name, content in files_in(tmp_path / "call").items():
            if name == "store.sqlite":
                with closing(sqlite3.connect(tmp_path / "call" / name)) as store:
                    assert store.execute("PRAGMA integrity_check").fetchall() == [("ok",)], what
                continue
            assert name in expected, (what, name)
            old = inputs / name
            assert content == expected[name] or (old.exists() and content == old.read_bytes()), (what, name)
        COUNTS["signals and closed pipes at random times"]["answers" if ended == status else "refusals"] += 1
