"""Engines: the SimPy event model, which is the reference, and the compiled one, its equal bit for bit."""

from ppsim.engines.running import run_plan
from ppsim.engines.times import Times

__all__ = ["Times", "run_plan"]
