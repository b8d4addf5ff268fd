"""Lowering: a schedule becomes a program, with transfers and sharding actions in its lists."""
