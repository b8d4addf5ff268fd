"""Pytest plugin: a fixture that checks configs against a baseline and limits, as `ppsim check` does."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from glob import glob
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ppsim_check(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Return a function that fails the test with a table of the measures that are worse or above a limit.

    `ppsim_check("configs/*.yaml", "own/b.yaml", baseline="configs/baseline.json", max_bubble=0.15)`; paths and patterns
    are relative to pytest's root directory. Keywords: baseline; max_bubble, max_memory, max_step_time; tolerance_abs (a
    mapping of measure -> amount), tolerance_rel, and force for a tolerance above 100 %; overrides (a mapping of dotted
    config key -> value). Numbers may be text with a unit, such as "80 GB". A broken baseline or config fails the test.
    """

    def check(
        *configs: str | os.PathLike[str],
        baseline: str | os.PathLike[str] | None = None,
        max_bubble: float | str | None = None,
        max_memory: float | str | None = None,
        max_step_time: float | str | None = None,
        tolerance_abs: Mapping[str, float | str] | None = None,
        tolerance_rel: float | str = 0.0,
        force: bool = False,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        # Imported here, so that tests without the fixture do not start slower.
        from ppsim.base.errors import ConfigError, PpsimError, shown
        from ppsim.studies.gate import Tolerance, check_configs, findings_text, parse_limits

        __tracebackhide__ = True
        root = pytestconfig.rootpath
        try:
            if wrong := [config for config in configs if not isinstance(config, str | os.PathLike)]:
                raise ConfigError(f"{shown(wrong[0])} must be the path of a config, or a pattern, such as 'a/*.yaml'")
            paths = [root / path for config in configs for path in sorted(glob(str(config), root_dir=root)) or [config]]
            findings = check_configs(
                paths,
                baseline=None if baseline is None else root / baseline,
                limits=parse_limits(max_bubble, max_memory, max_step_time),
                tolerance=Tolerance.parse(tolerance_abs, tolerance_rel, force=force),
                overrides=overrides,
            )
        except PpsimError as error:
            raise pytest.fail.Exception(f"ppsim check\n{error}", pytrace=False) from None
        if any(finding.failed for finding in findings):
            pytest.fail(f"ppsim check\n{findings_text(findings)}", pytrace=False)

    return check
