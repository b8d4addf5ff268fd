"""The benchmarks: each against something of the same kind, so that a slow machine judges nothing."""
