"""What all tests share: hypothesis without deadlines, and numeric warnings as errors."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from ppsim.analysis.measures import MEASURES

settings.register_profile("ppsim", deadline=None, max_examples=60)
settings.load_profile("ppsim")


# What the tests of whole pages show; those of a single measure, and of the registry, look at all there are.
MEASURES_OF_PAGES = frozenset(
    ("stages_per_device", "iterations", "makespan", "iteration_time", "lower_bound", "span", "bubble_fraction",
     "bubble_ratio", "span_bubble_fraction", "steady_bubble_fraction", "device_busy", "device_idle",
     "exposed_communication", "peak_activations", "peak_memory", "tokens_per_second", "mfu", "transfers",
     "weight_copies")
)  # fmt: skip


PAGES = frozenset(("test_plots_summary.py", "test_gate.py", "test_check_command.py", "test_batches.py"))


@pytest.fixture(autouse=True)
def measures_of_pages(request: pytest.FixtureRequest) -> Iterator[None]:
    """The registry without measures that came later, so that a whole page stays as it is written in a test."""
    every = dict(MEASURES)
    for name in every.keys() - MEASURES_OF_PAGES if request.path.name in PAGES else ():
        del MEASURES[name]
    yield
    if len(MEASURES) < len(every):  # whole, and in its order
        MEASURES.clear()
        MEASURES.update(every)


def pytest_configure(config: pytest.Config) -> None:
    # A number that overflows, divides by zero or turns into nan is a bug, not a warning.
    config.addinivalue_line("filterwarnings", "error::RuntimeWarning")
