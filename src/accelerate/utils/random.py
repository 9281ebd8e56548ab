"""Compatibility path of seeding and of keeping generators in step."""

from accelerate.comm.rng import synchronize_rng_state, synchronize_rng_states
from accelerate.config.enums import RNGType
from accelerate.devices.rng import set_seed

__all__ = ["RNGType", "set_seed", "synchronize_rng_state", "synchronize_rng_states"]
