"""The explorer as a process: it answers whatever happens to its workers, reads no other files, and ends at a signal."""

import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from command_line import ENVIRONMENT, LLAMA, ROOT, UNIT_COSTS, hear_signals

import ppsim
from tests.fuzz.cases import COUNTS, EXAMPLES

SMALL = {"schedule": "1f1b", "devices": 4, "microbatches": 8, "forward": 1, "backward": 2}
LONG = SMALL | {"devices": 64, "microbatches": 1000}
CSV = {"csv": "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "forward": 1}
SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL
SECONDS = 30  # for an answer or an end that takes less than 2 on an idle machine


class Explorer:
    """A server in a process group of its own; its processes carry a mark in their environment."""

    def __init__(self, temporary, hears=hear_signals):
        self.mark = f"PPSIM_LIFECYCLE={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ppsim", "explore", UNIT_COSTS, LLAMA, "--no-browser"],
            stderr=subprocess.PIPE,
            env=ENVIRONMENT | {"TMPDIR": str(temporary), name: value},
            cwd=ROOT,
            text=True,
            start_new_session=True,
            preexec_fn=hears,
        )
        self.port, self.aborted = 0, []
        self.client = httpx.Client(timeout=SECONDS)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.processes():
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        self.client.close()
        with self.process:  # waits, and closes its pipe
            pass

    def wait_for_address(self):
        assert self.process.stderr is not None
        self.port = int(re.findall(r"http://127\.0\.0\.1:(\d+)/", self.process.stderr.readline())[0])

    def processes(self):
        """The ids of all running processes of the server, with those that it left behind."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
        return found

    def workers(self):
        return [one for one in self.processes() if one != self.process.pid]

    def post(self, case, path="simulate"):
        return self.client.post(f"http://127.0.0.1:{self.port}/api/{path}", json=case)

    def abort(self, case, part=1.0, then_close=True):
        """Send a part of a request; then leave, or stay without reading."""
        body = json.dumps(case).encode()
        head = f"POST /api/simulate HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        content = head.encode() + body
        connection = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        connection.sendall(content[: int(part * len(content))])
        if then_close:
            connection.close()
        else:
            self.aborted.append(connection)


def answered(explorer, generator):
    case, path = generator.choice([
        (SMALL, "simulate"), (CSV, "simulate"), (CSV, "validate"), (SMALL, "file/csv"), (SMALL, "file/svg"),
        ({"csv": "0X0"}, "simulate"), (SMALL | {"forward": "[1,"}, "simulate"), ({"config": "unit-costs"}, "simulate"),
    ])  # fmt: skip
    response = explorer.post(case, path)
    assert response.status_code == (422 if case not in (SMALL, CSV, {"config": "unit-costs"}) else 200), response.text


def aborted(explorer, generator):
    explorer.abort(
        generator.choice([SMALL, LONG, CSV]), generator.choice([1, 1, generator.random()]), generator.random() < 0.7
    )


def killed(explorer, generator):
    if generator.random() < 0.5:
        explorer.abort(LONG, then_close=False)  # a worker is busy
        time.sleep(generator.uniform(0, 0.3))
    workers = explorer.workers()
    for worker in generator.sample(workers, generator.randint(0, len(workers))):
        with suppress(ProcessLookupError):
            os.kill(worker, generator.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT]))


def ended(explorer, generator):
    """Send one signal; nothing is left of the server soon after it."""
    number, to_group = generator.choice(SIGNALS), generator.random() < 0.5
    (os.killpg if to_group else os.kill)(explorer.process.pid, number)
    begun = time.monotonic()
    _, said = explorer.process.communicate(timeout=SECONDS)
    while (left := explorer.processes()) and time.monotonic() < begun + SECONDS:
        time.sleep(0.02)
    assert not left
    with socket.socket() as probe:
        assert not explorer.port or probe.connect_ex(("127.0.0.1", explorer.port)) != 0
    return said, number


@pytest.fixture
def no_hangup():
    """Let this process ignore SIGHUP, and thereby all that it starts, as under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_an_explorer_under_nohup_outlives_a_hangup_and_ends_at_another_signal(tmp_path, no_hangup):
    with Explorer(tmp_path, hears=None) as explorer:
        explorer.wait_for_address()
        os.killpg(explorer.process.pid, signal.SIGHUP)
        assert explorer.post(SMALL).status_code == 200
        os.killpg(explorer.process.pid, signal.SIGTERM)
        explorer.process.communicate(timeout=SECONDS)
        assert explorer.process.returncode == 128 + signal.SIGTERM


@pytest.mark.usefixtures("no_hangup")  # nohup must not decide whether a test ends
def test_the_explorer_answers_until_a_signal_ends_it_and_leaves_nothing_behind(tmp_path):
    for seed in range(max(3, EXAMPLES // 10)):
        generator = random.Random(seed)  # noqa: S311 - a sequence of events
        with Explorer(tmp_path) as explorer:
            if seed % 3 == 2:
                time.sleep(generator.uniform(0, 1))  # while it starts
                ended(explorer, generator)
            else:
                explorer.wait_for_address()
                for _ in range(generator.randint(1, 3 if EXAMPLES < 100 else 6)):
                    generator.choice([answered, aborted, aborted, killed])(explorer, generator)
                answered(explorer, generator)
                if generator.random() < 0.5:
                    aborted(explorer, generator)
                time.sleep(generator.choice([0, generator.random()]))
                said, number = ended(explorer, generator)
                assert "Traceback" not in said, (seed, number)
        assert list(tmp_path.iterdir()) == [], seed
        COUNTS["explorer lifecycles"]["answers"] += 1


FILE_KEYS = ["schedule.csv", "model.huggingface", "costs.profile", "hardware.device.operators", "calibration"]
OTHER_KEYS = [
    "schedule",
    "model",
    "costs",
    "hardware",
    "hardware.device",
    "hardware.link",
    "jitter",
    "batch",
    "name",
    "x.y",
    "",
]
BASES = [{"config": LLAMA.stem}, SMALL, {"config": LLAMA.stem, "csv": "0F0,0B0"}]


def nested(key, value):
    """The value under a dotted key, as YAML text."""
    for name in reversed(key.split(".")):
        value = f"{{{name}: {value}}}"
    return value


def texts_that_name(file):
    """Texts that could make a config name the file, as a value or within a section."""
    names = [key.rpartition(".")[2] for key in FILE_KEYS]
    sections = [f"{{like: H100 SXM, {name}: {file}}}" for name in names]
    others = [f"'{file}'", f"[{file}]", f"!!str {file}", f"? {file}"]
    return [
        file,
        *others,
        *sections,
        *(nested(key, file) for key in FILE_KEYS),
        *(nested(name, file) for name in names),
    ]


def test_a_page_is_answered_alike_whether_a_file_exists_or_not(tmp_path):
    there, missing = tmp_path / "there.csv", tmp_path / "other.csv"
    ppsim.build("1f1b", devices=2, microbatches=2).to_csv(there)
    pairs = list(zip(texts_that_name(str(there)), texts_that_name(str(missing)), strict=True))
    generator = random.Random(0)  # noqa: S311 - which cases a run tries
    with Explorer(tmp_path) as explorer:
        explorer.wait_for_address()
        offered = explorer.client.get(f"http://127.0.0.1:{explorer.port}/api/families").json()["configs"][LLAMA.stem][
            "keys"
        ]
        keys = [*FILE_KEYS, *OTHER_KEYS, *(row["key"] for row in offered)]
        others = generator.sample(list(itertools.product(BASES, keys, pairs)), k=EXAMPLES)
        for base, key, pair in [*itertools.product(BASES, FILE_KEYS, pairs[:1]), *others]:
            for change in ({"changes": {key: "FILE"}}, {key.rpartition(".")[2]: "FILE"}):
                cases = [json.dumps(base | change).replace('"FILE"', json.dumps(text)) for text in pair]
                said = [explorer.post(json.loads(case)).text.replace(there.name, missing.name) for case in cases]
                assert said[0] == said[1], cases[0]
                COUNTS["files that a page names"]["refusals" if "faults" in json.loads(said[0]) else "answers"] += 1
