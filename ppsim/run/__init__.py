"""What users hold in their hands: schedules, programs, timelines and batches with all their methods, and simulate()."""
