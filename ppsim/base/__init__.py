"""Foundations of all layers: errors, files, units, tables of text, progress, compiling."""
