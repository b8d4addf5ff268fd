"""Disks that are full, or take no more of a file: each command that writes says so in one sentence.

A limit on the size of files (RLIMIT_FSIZE) and a small file system in memory, where one can be mounted, are real:
writes fail where the system says so, also in libraries.
"""

import json
import random
import resource
import subprocess
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from command_line import UNIT_COSTS, ppsim

import ppsim as library
from ppsim.studies import run_points
from tests.fuzz.cases import COUNTS, EXAMPLES
from tests.fuzz.test_commands import CALLS, folder  # noqa: F401 - a fixture
from tests.fuzz.test_kills import NAMES, OUTPUTS, SERVES, files_in

PAGE, PAGES = 4096, 1024
REASONS = ("File too large", "No space left on device")
POINTS = [{"schedule.microbatches": m} for m in range(4, 16)]


@contextmanager
def files_of_at_most(size):
    """Let no file of this process grow beyond a size; Python ignores the signal, so that the write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 4 MiB, in the folder `out` of the test's folder."""
    target = tmp_path / "out"
    target.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={PAGE * PAGES}", "tmpfs", str(target)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield target
    subprocess.run(["umount", "-l", str(target)], check=False)


@contextmanager
def pages_free(disk, pages):
    """Fill a disk but for some pages."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        size = 0
        with suppress(OSError):
            while size < 2 * PAGE * PAGES:
                size += file.write(bytes(PAGE))
        file.truncate(max(size // PAGE - pages, 0) * PAGE)
    try:
        yield
    finally:
        filler.unlink()


def words_of(name, outputs):
    """A call of a command with its outputs in the folder `out`."""
    inputs = CALLS[name][0].replace("-o out.yaml", "")
    words = (outputs.replace("--workers 2", "") or "-o new.yaml").split()
    return [*inputs.split(), *(word if word.startswith("-") else f"out/{word}" for word in words)]


def calls(first):
    """Commands that write files with their outputs; a short run takes two, from the `first` on."""
    every = [(name, out) for name in NAMES if name != SERVES for out in OUTPUTS.get(name, ["--json j.json"])]
    return every if EXAMPLES > 15 else every[first::10]


def old_outputs(name, words):
    """Write an old file in the place of each output but a store, which would be another program's."""
    old = {word: b"old\n" for word in words if word.startswith("out/") and not word.endswith(".sqlite")}
    for path, content in old.items():
        Path(path).write_bytes(content)
    return old


def check(name, words, outcome, old, expected):
    """The call did all, or ends with status 2 and one sentence; each file is the old one or the whole new one."""
    what = (name, words, outcome)
    assert "Traceback" not in outcome.err, what
    for path, content in files_in(Path("out")).items():
        if not path.startswith(("store.sqlite", "filler")):
            assert content in (old.get(f"out/{path}"), expected.get(path)), (what, path)
    if outcome.status != 2:
        COUNTS["commands on a full disk"]["answers"] += 1
        return
    *before, said = outcome.err.splitlines()
    assert all(line.startswith("wrote ") for line in before), what
    assert any(reason in said for reason in REASONS) or "cannot be used as a store" in said, what
    COUNTS["commands on a full disk"]["refusals"] += 1


def clear():
    for path in Path("out").iterdir():
        path.unlink()


def try_all(limited, first):
    """Run each call without a limit for its files, then within limits."""
    generator = random.Random(0)  # noqa: S311 - room on a disk
    refused = 0
    for name, outputs in calls(first):
        words = words_of(name, outputs)
        whole = ppsim(name, *words)
        assert whole.status in (0, 1), (name, words, whole)
        expected = files_in(Path("out"))
        largest = max(map(len, expected.values()))
        for _ in range(max(1, EXAMPLES // 50)):
            clear()
            old = old_outputs(name, words)
            with limited(generator.choice([0, 1, 100, generator.randrange(largest)])):
                outcome = ppsim(name, *words)
            check(name, words, outcome, old, expected)
            refused += outcome.status == 2
        clear()
    assert refused


def test_files_that_may_not_grow_are_one_sentence(folder):  # noqa: F811
    Path("out").mkdir()
    try_all(files_of_at_most, 0)


def test_a_small_disk_that_is_full_is_one_sentence(folder, small_disk):  # noqa: F811
    try_all(lambda size: pages_free(small_disk, size // PAGE), 2)


@pytest.mark.parametrize("way", ["limit", "disk"])
def test_a_store_on_a_full_disk_keeps_what_it_has(way, tmp_path, request):
    disk = request.getfixturevalue("small_disk") if way == "disk" else tmp_path
    expected = list(run_points(UNIT_COSTS, POINTS))
    generator = random.Random(way)  # noqa: S311 - room on a disk
    for number in range(max(2, EXAMPLES // 10)):
        store = disk / f"{number}.sqlite"
        room = generator.randrange(20) * PAGE
        found, said = expected, ""
        try:
            with pages_free(disk, room // PAGE) if way == "disk" else files_of_at_most(room):
                found = list(run_points(UNIT_COSTS, POINTS, store=store))
        except library.PpsimError as error:
            said = str(error)
        COUNTS["stores on a full disk"]["refusals" if said else "answers"] += 1
        assert found == expected
        assert not said or (str(store) in said and "\n" not in said)
        if store.exists():
            assert list(run_points(UNIT_COSTS, POINTS, store=store)) == expected
        for file in disk.glob(f"{number}.sqlite*"):
            file.unlink()


def test_a_chart_and_a_trace_of_a_full_disk_leave_the_old_files(tmp_path):
    run = library.simulate(library.build("1f1b", devices=2, microbatches=4))
    writes = {"a.json": run.to_perfetto, "a.pftrace": run.to_perfetto, "a.svg": run.save, "a.html": run.save,
              "a.csv": run.schedule.to_csv}  # fmt: skip
    for name, write in writes.items():
        path = tmp_path / name
        path.write_text(json.dumps(name))
        with files_of_at_most(50), pytest.raises(library.ConfigError, match="cannot be written: File too large"):
            write(path)
        assert path.read_text() == json.dumps(name)
        COUNTS["commands on a full disk"]["refusals"] += 1
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writes)
