"""Models that do not fit: planned over devices, main memory and disk, loaded piece by piece, run by hooks."""
