"""Compatibility path: the commands, under the names that others import them by."""
