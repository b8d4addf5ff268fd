"""Which engine runs a plan."""

from __future__ import annotations

from ppsim.base.compiling import ROWS_WORTH_COMPILING, can_compile
from ppsim.base.errors import ConfigError
from ppsim.engines.times import Times
from ppsim.plan.resolve import Plan

ENGINES = ("auto", "event", "compiled")


def run_plan(plan: Plan, engine: str) -> tuple[str, Times]:
    """Run a plan on the engine asked for: the name of the one that ran, and the times of all that the plan holds."""
    if engine == "auto":
        worth_it = len(plan.seconds) >= ROWS_WORTH_COMPILING
        engine = "compiled" if worth_it and can_compile() else "event"
    if engine == "compiled":
        if not can_compile():
            raise ConfigError("engine='compiled' needs Numba, which cannot be imported; use 'event' or 'auto'")
        from ppsim.engines.compiled import CompiledModel as Model
    else:
        from ppsim.engines.event import EventModel as Model
    return engine, Model(plan).run()
