"""What all tests share: hypothesis without deadlines, and numeric warnings as errors."""

import pytest
from hypothesis import settings

settings.register_profile("ppsim", deadline=None, max_examples=60)
settings.load_profile("ppsim")


def pytest_configure(config: pytest.Config) -> None:
    # A number that overflows, divides by zero or turns into nan is a bug, not a warning.
    config.addinivalue_line("filterwarnings", "error::RuntimeWarning")
