"""Leaves what a fuzz run counted in a folder, one file a process, with the commit that was tried."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.fuzz.cases import COUNTS


def pytest_sessionfinish(session: pytest.Session) -> None:
    folder = os.environ.get("PPSIM_FUZZ_RECORD")
    if folder and COUNTS:
        Path(folder).mkdir(parents=True, exist_ok=True)
        head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
        counts = {what: dict(counter) for what, counter in COUNTS.items()}
        document = {"commit": head.stdout.strip(), "cases": counts}
        (Path(folder) / f"{os.getpid()}.json").write_text(json.dumps(document, indent=2))
