"""Leaves what a fuzz run counted in a folder, one file a process."""

import json
import os
from pathlib import Path

import pytest

from tests.fuzz.cases import COUNTS


def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = os.environ.get("PPSIM_FUZZ_RECORD")
    if folder and COUNTS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        name = os.environ.get("PYTEST_XDIST_WORKER", "main")
        counts = {what: dict(counter) for what, counter in COUNTS.items()}
        (Path(folder) / f"{name}.json").write_text(json.dumps(counts, indent=2))
