"""Scripts that the command line starts."""
