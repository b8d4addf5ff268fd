"""Profiler traces and Perfetto files damaged in every way: the right answer, another legal one, or one clear error."""

import copy
import gzip
import json
import random
import shutil
import signal
import time

import pytest
from command_line import ROOT, ppsim

import ppsim as library
from tests.fuzz.cases import COUNTS, EXAMPLES

WHOLE = {
    path.name: gzip.decompress(path.read_bytes()) for path in sorted((ROOT / "tests" / "data" / "kineto").glob("*.gz"))
}
LONGEST = 30  # seconds of one trace
NUMBERS = [
    0,
    -1,
    1e308,
    -1e308,
    1e18,
    1e19,
    2**63,
    2**64,
    10**400,
    5e-324,
    0.5,
    "1",
    None,
    True,
    [],
    {},
    "\0",
    "\u202e",
]
ODD_TIMES = [b'"ts": -', b'"ts": NaN, "x": ']


def of_bytes(change):
    """A damage to the text of one file."""
    return lambda generator, content: change(generator, bytearray(content))


def of_events(change):
    """A damage to the document of one file; numbers that JSON lacks are written as Python writes them."""

    def damage(generator, content):
        document = json.loads(content)
        change(generator, document)
        return json.dumps(document).encode()

    return damage


def flip(generator, content):
    for _ in range(generator.choice([1, 1, 8, 64])):
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    return bytes(content)


def overwrite(generator, content):
    place = generator.randrange(len(content))
    content[place : place + 20] = generator.randbytes(generator.randrange(40))
    return bytes(content)


def some_event(generator, document):
    return generator.choice(document["traceEvents"])


def number(generator, document):
    event = some_event(generator, document)
    event[generator.choice(["ts", "dur", "pid", "tid", "ph", "name", "cat", "args"])] = generator.choice(NUMBERS)


def head_number(generator, document):
    keys = [key for key in document if key != "traceEvents"]
    document[generator.choice(keys)] = generator.choice(NUMBERS)


def swap(generator, document):
    event = some_event(generator, document)
    one, other = generator.sample(sorted(event), 2)
    event[one], event[other] = event[other], event[one]


def exchange(generator, document):
    one, other = some_event(generator, document), some_event(generator, document)
    key = generator.choice(["ts", "dur", "name"])
    one[key], other[key] = other.get(key), one.get(key)


def drop(generator, document):
    events = document["traceEvents"]
    for _ in range(generator.choice([1, 4, len(events)])):
        if events:
            del events[generator.randrange(len(events))]


def repeat(generator, document):
    event = copy.deepcopy(some_event(generator, document))
    document["traceEvents"] += generator.choice([1, 50]) * [event]


def reverse(generator, document):
    generator.shuffle(document["traceEvents"])


def rank(generator, document):
    document["distributedInfo"]["rank"] = generator.choice([0, 1, 2, -1, 10**9, 2**70])


def name(generator, document):
    events = [event for event in document["traceEvents"] if str(event.get("name")).startswith("PP:")]
    generator.choice(events)["name"] = generator.choice(
        ["PP:", "PP:0F0", "PP:9F0", "PP:1B1", f"PP:{10**9}F0", f"PP:0F{10**20}", "PP:(0F0;0B0)OVERLAP_F_B", "PP:x"]
    )


def nested(generator, content):
    depth = generator.choice([10, 1000, 100_000])
    opened, closed = generator.choice([(b"[", b"]"), (b'{"a":', b"}")])
    return content[:1] + b'"deep":' + depth * opened + b"1" + depth * closed + b"," + content[1:]


DAMAGES = {
    "bits": of_bytes(flip),
    "bytes": of_bytes(overwrite),
    "cut short": lambda generator, content: content[: generator.randrange(len(content))],
    "cut out": lambda generator, content: content[: generator.randrange(500)] + content[generator.randrange(500) :],
    "doubled": lambda generator, content: content + content,
    "zeros": lambda generator, content: content + bytes(generator.randrange(1, 5000)),
    "other encoding": lambda generator, content: content.decode().encode(generator.choice(["utf-16", "utf-32"])),
    "nested": nested,
    "long number": lambda generator, content: content.replace(b'"dur": ', b'"dur": ' + b"9" * 5000, 1),
    "NaN": lambda generator, content: content.replace(b'"ts": ', generator.choice(ODD_TIMES), 3),
    "doubled key": lambda generator, content: content.replace(b"{", b'{"traceEvents": [], ', 1),
    **{f"event {change.__name__}": of_events(change)
       for change in (number, head_number, swap, exchange, drop, repeat, reverse, rank, name)},
}  # fmt: skip
PACKED = {
    "gz bits": of_bytes(flip),
    "gz bytes": of_bytes(overwrite),
    "gz cut short": lambda generator, content: content[: generator.randrange(len(content))],
    "gz doubled": lambda generator, content: content + content,
    "gz of nothing": lambda generator, content: gzip.compress(b""),
    "gz in gz": lambda generator, content: gzip.compress(content),
    "gz that is none": lambda generator, content: b"{" + content,
    "gz that unpacks to much": lambda generator, content: gzip.compress(b'{"a": "' + bytes(3_000_000)),
}
EVERY = DAMAGES | PACKED


def too_long(*_):
    raise AssertionError(f"no answer within {LONGEST} s")


def write(folder, way, seed):
    """Write the traces of all ranks into a folder, one of them damaged."""
    generator = random.Random(f"{way} {seed}")  # noqa: S311 - damages
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    hurt = generator.choice(sorted(WHOLE))
    for file, content in WHOLE.items():
        packed = way in PACKED or generator.random() < 0.5
        if file == hurt and way in DAMAGES:
            content = DAMAGES[way](generator, content)
        content = gzip.compress(content, 1) if packed else content
        if file == hurt and way in PACKED:
            content = PACKED[way](generator, content)
        (folder / (file if packed else file.removesuffix(".gz"))).write_bytes(content)


@pytest.mark.parametrize("way", EVERY)
def test_damaged_profiler_traces(way, tmp_path):
    """A trace that is read is a valid schedule with finite times, and a chart of it can be drawn."""
    signal.signal(signal.SIGALRM, too_long)
    for seed in range(max(2, EXAMPLES // 5)):
        folder = tmp_path / "traces"
        write(folder, way, seed)
        run, error = None, ""
        signal.alarm(LONGEST)
        try:
            run = library.Timeline.from_trace(folder)
        except library.PpsimError as caught:
            error = str(caught)
        finally:
            signal.alarm(0)
        COUNTS["profiler traces, damaged"]["refusals" if run is None else "answers"] += 1
        if run is None:
            assert str(folder) in error
            assert len(error) < 5000
            assert "Traceback" not in error
            continue
        run.schedule.validate()
        assert 0 <= run.makespan < 1e15
        assert run.to_text()


@pytest.mark.parametrize("way", ["event reverse", "doubled key"])
def test_damages_that_change_no_range_change_no_answer(way, tmp_path):
    """The order of events in a file means nothing, and the last of two equal keys counts."""
    write(tmp_path / "traces", way, 0)
    whole = tmp_path / "whole"
    whole.mkdir()
    for file, content in WHOLE.items():
        (whole / file).write_bytes(gzip.compress(content))
    expected, found = (library.Timeline.from_trace(folder) for folder in (whole, tmp_path / "traces"))
    assert found.schedule == expected.schedule
    assert found.makespan == expected.makespan
    COUNTS["profiler traces, damaged"]["answers"] += 1


def test_commands_name_a_damaged_trace_in_one_error(tmp_path):
    generator = random.Random(0)  # noqa: S311 - damages
    for seed in range(max(2, EXAMPLES // 20)):
        write(tmp_path / "traces", generator.choice(list(EVERY)), seed)
        more = [[], ["-o", tmp_path / "profile.yaml"]][seed % 2]
        outcome = ppsim("calibrate" if more else "explain", tmp_path / "traces", *more)
        assert outcome.status in (0, 1, 2), outcome
        assert "Traceback" not in outcome.err
        assert not set(outcome.err + outcome.out) & set("\x1b\0")
        COUNTS["profiler traces, damaged"]["refusals" if outcome.status == 2 else "answers"] += 1


@pytest.fixture(scope="module")
def perfetto(tmp_path_factory):
    """The bytes of a trace of ours for ui.perfetto.dev, by its ending."""
    folder = tmp_path_factory.mktemp("perfetto")
    run = library.simulate(library.build("zb-h1", devices=2, microbatches=3), library.Costs(latency=0.5))
    for ending in ("json", "pftrace"):
        run.to_perfetto(folder / f"whole.{ending}")
    return {path.suffix: path.read_bytes() for path in folder.iterdir()}


def test_perfetto_files_are_refused_in_one_error_whether_damaged_or_not(tmp_path, perfetto):
    """They are for ui.perfetto.dev: no command reads them back, and none takes them for another file."""
    for seed in range(max(4, EXAMPLES)):
        generator = random.Random(seed)  # noqa: S311 - damages
        ending, content = generator.choice(sorted(perfetto.items()))
        way = generator.choice(["none", "bits", "bytes", "cut short", "doubled", "zeros"])
        path = tmp_path / f"trace{ending}{generator.choice(['', '.gz'])}"
        content = content if way == "none" else DAMAGES[way](generator, content)
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" and generator.random() < 0.7 else content)
        began = time.monotonic()
        with pytest.raises(library.PpsimError) as caught:
            library.Timeline.from_trace(path)
        assert str(path) in str(caught.value)
        assert len(str(caught.value)) < 5000
        assert time.monotonic() - began < LONGEST
        COUNTS["Perfetto files, damaged"]["refusals"] += 1
