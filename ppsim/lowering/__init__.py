"""Lowering: a schedule becomes a program, with transfers and sharding actions in its lists."""

from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.program import POOLS, RECEIVES
from ppsim.lowering.rows import transfer_ends

__all__ = ["POOLS", "RECEIVES", "TRANSPORTS", "transfer_ends"]
