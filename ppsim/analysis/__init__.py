"""Analyses: pure views of a timeline, columns in and columns out."""
