"""Schedules found by simulation: auto, ZB-1p and its relatives, V-Half, V-Min, where R goes, the exact optimum.

Importing this package completes the registry of families: code above this layer looks families up here.
"""

# The import order continues the order of the registry.
from ppsim.search import v_memory, zero_bubble_search, memory_actions, auto  # noqa: F401, I001
from ppsim.families.registry import families, find_family, split_stages
from ppsim.search.partitions import balanced_within, pieces_of
from ppsim.search.problem import Problem

__all__ = ["Problem", "balanced_within", "families", "find_family", "pieces_of", "split_stages"]
