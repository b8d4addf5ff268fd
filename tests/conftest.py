"""Settings of all tests: no hypothesis deadlines, numeric warnings as errors, and a stderr without compilations."""

import gc
from pathlib import Path

import pytest
from hypothesis import settings

from ppsim.base.compiling import can_compile, is_first_compilation

settings.register_profile("ppsim", deadline=None, max_examples=60)
settings.load_profile("ppsim")


def pytest_configure(config: pytest.Config) -> None:
    # A number that overflows, divides by zero or turns into nan is a bug, not a warning.
    config.addinivalue_line("filterwarnings", "error::RuntimeWarning")
    gc.disable()  # nothing that collecting tests makes is garbage, and looking for some takes a third of its time


def pytest_sessionstart() -> None:
    # Tests compare stderr, and any of them may be the first on a machine to compile.
    if can_compile():
        is_first_compilation()


# Files of few tests that take long. They begin first, so that no worker has one left when the other has no more files.
LONG = (
    "test_compiled_engine", "test_synthesis", "test_v_half_v_min", "test_harness_ends", "test_explorer",
    "test_notebooks", "test_explorer_page", "test_explorer_states", "test_viewer", "test_live_page", "test_commands",
    "test_unused_keys", "test_types_outside", "test_release", "test_same_bytes", "test_worker_deaths",
    "test_served_explorer", "test_programs", "test_readme", "test_kills", "test_clusters", "test_pytorch_runtime",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(Path(item.path).stem, len(LONG)))


def pytest_collection_finish() -> None:
    # What is loaded by now stays, so that looking through it again is time lost.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    gc.enable()
