"""What every floor stands on: errors, files, units, tables of text, progress, compiling."""
