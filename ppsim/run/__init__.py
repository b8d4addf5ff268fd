"""User-facing classes with all their methods (Schedule, Program, Timeline, Batch), `build` and `simulate`."""
