"""Whatever a page sends, the explorer reads no file that its configs do not name."""

import itertools
import json
import random

import pytest
from command_line import LLAMA
from starlette.testclient import TestClient

import ppsim
from ppsim.explorer.server import make_app
from tests.fuzz.cases import COUNTS, EXAMPLES

FILE_KEYS = ["schedule.csv", "model.huggingface", "costs.profile", "hardware.device.operators"]
SECTIONS = [
    "schedule",
    "model",
    "costs",
    "hardware",
    "hardware.device",
    "hardware.link",
    "layout",
    "jitter",
    "published",
]


def nested(key, value):
    """The dotted key and its value as YAML text."""
    for name in reversed(key.split(".")):
        value = f"{{{name}: {value}}}"
    return value


@pytest.fixture(scope="module")
def client():
    with TestClient(make_app({"llama": str(LLAMA)}), base_url="http://127.0.0.1") as client:
        yield client


def values(file):
    """Texts that could make a config name the file, as a value or within a section."""
    names = [key.rpartition(".")[2] for key in FILE_KEYS]
    whole = [nested(key, file) for key in FILE_KEYS]
    parts = [f"{{like: H100 SXM, {name}: {file}}}" for name in names]
    return [
        file,
        f"'{file}'",
        f"[{file}]",
        f"!!str {file}",
        f"? {file}",
        *whole,
        *parts,
        *(nested(name, file) for name in names),
    ]


def test_a_request_is_answered_alike_whether_a_file_exists_or_not(client, tmp_path):
    there, missing = tmp_path / "there.csv", tmp_path / "other.csv"
    ppsim.build("1f1b", devices=2, microbatches=2).to_csv(there)
    offered = [row["key"] for row in client.get("/api/families").json()["configs"]["llama"]["keys"]]
    keys = [
        *FILE_KEYS,
        *SECTIONS,
        *offered,
        "name",
        "schedule.name",
        "layout.partition",
        "costs",
        "batch",
        "x.y",
        "..",
        "",
    ]
    bases = [
        {"config": "llama"},
        {"schedule": "1f1b", "devices": 2, "microbatches": 2},
        {"config": "llama", "csv": "0F0,0B0"},
    ]
    cases = list(itertools.product(bases, keys, range(len(values("")))))
    random.Random(0).shuffle(cases)  # noqa: S311 - which cases a short run tries
    surely = [(base, key, 0) for base in bases for key in FILE_KEYS]
    for base, key, form in [*surely, *cases[: EXAMPLES * 5]]:
        bodies = [
            json.dumps({**base, **change(key, values(str(file))[form])})
            for change in (
                lambda key, value: {"changes": {key: value}},
                lambda key, value: {key.rpartition(".")[2]: value},
            )
            for file in (there, missing)
        ]
        said = [
            client.post("/api/simulate", content=body, headers={"content-type": "application/json"}) for body in bodies
        ]
        texts = [response.text.replace(there.name, missing.name) for response in said]
        assert texts[0] == texts[1], bodies[0]
        assert texts[2] == texts[3], bodies[2]
        assert all(response.status_code == 422 for response in said[: 2 * (key in FILE_KEYS)])
        COUNTS["files that a page names"]["refusals" if said[0].status_code == 422 else "answers"] += 1
