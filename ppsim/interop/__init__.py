"""File formats: traces in and out, frames, result documents."""
