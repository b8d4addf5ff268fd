"""The commands of the command line, one module each: read the options, call the library, print."""
