"""Costs: from given numbers, a model and a device sheet, or measurements, to one table that engines read."""

from ppsim.costs.combined_slot import LayerPieces, combined_costs, combined_slot
from ppsim.costs.composed import Module, SharedPorts, module_chain
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.given import Costs
from ppsim.costs.layout import Layout
from ppsim.costs.microbatches import causal_slice_costs
from ppsim.costs.model import Model
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.sheets import DEVICES, LINKS, Cluster, DeviceSheet, LinkSheet
from ppsim.costs.table import CostModel, CostTable

__all__ = [
    "DEVICES",
    "LINKS",
    "Cluster",
    "CostModel",
    "CostTable",
    "Costs",
    "DerivedCosts",
    "DeviceSheet",
    "LayerPieces",
    "Layout",
    "LinkSheet",
    "Model",
    "Module",
    "OperatorLaw",
    "SharedPorts",
    "causal_slice_costs",
    "combined_costs",
    "combined_slot",
    "module_chain",
]
