"""`python -m ppsim` is the command line."""

from ppsim.cli import main

main()
