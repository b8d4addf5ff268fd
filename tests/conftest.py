"""Settings of all tests: no hypothesis deadlines, numeric warnings as errors, and a stderr without compilations."""

import pytest
from hypothesis import settings

from ppsim.base.compiling import can_compile, is_first_compilation

settings.register_profile("ppsim", deadline=None, max_examples=60)
settings.load_profile("ppsim")


def pytest_configure(config: pytest.Config) -> None:
    # A number that overflows, divides by zero or turns into nan is a bug, not a warning.
    config.addinivalue_line("filterwarnings", "error::RuntimeWarning")


def pytest_sessionstart() -> None:
    # Tests compare stderr, and any of them may be the first on a machine to compile.
    if can_compile():
        is_first_compilation()
