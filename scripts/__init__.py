"""The programs that make pages, pictures and the demo."""
