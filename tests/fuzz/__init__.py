"""Damaged files and random programs. `make test` runs a short part of it, `make fuzz` minutes."""
