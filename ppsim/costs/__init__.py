"""Costs: from given numbers, a model and a device sheet, or measurements, to one table that engines read."""

from ppsim.costs.given import Costs
from ppsim.costs.table import CostModel, CostTable

__all__ = ["CostModel", "CostTable", "Costs"]
