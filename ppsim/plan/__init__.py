"""A schedule, its costs and a transport resolved to the columns that both engines read."""
