"""A schedule as columns: its lists, their text forms, and the waits between rows."""
