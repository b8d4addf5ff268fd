"""Questions that take many runs, or a run and a document: compare, what-if, gate, fits, optimum, calibration."""
