"""A schedule, its costs and a transport resolved to the columns that both engines read."""

from ppsim.plan.dispatch import make_choices
from ppsim.plan.holding import ActivationMemory
from ppsim.plan.jitter import Jitter, JitteredPlan
from ppsim.plan.resolve import Plan, make_plan

__all__ = ["ActivationMemory", "Jitter", "JitteredPlan", "Plan", "make_choices", "make_plan"]
