"""A schedule as columns: its lists, their text forms, and who waits for whom."""
