"""Data loaders that give each rank its part, know where they are, and can go on from there.

``prepare`` takes a loader apart and puts it together again around one of two ways of sharing: every rank reads its own
part (:mod:`accelerate.data.shard`), or rank 0 reads for all (:mod:`accelerate.data.dispatch`).
"""
