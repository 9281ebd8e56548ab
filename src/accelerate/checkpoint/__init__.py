"""What is saved, where, and how it is found again: never half of it, and nothing that has to be unpickled."""
