"""Engines: the SimPy event model, which is the reference, and the compiled one, its equal bit for bit."""
