"""The tests: one file a concept; the other files are what several of them share."""
