"""Charts of schedules and timelines: text, matplotlib, interactive HTML and notebooks. Each module loads when used."""
