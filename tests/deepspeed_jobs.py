"""What tests of DeepSpeed share."""

from __future__ import annotations

import warnings
from importlib import import_module


def warm() -> None:
    """Imports, once in the parent of forked ranks, what DeepSpeed imports and compiles when an engine is made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (
            "torch._dynamo",
            "deepspeed",
            "deepspeed.runtime.zero.muon.muon_optimizer",
            "deepspeed.checkpoint.ds_to_universal",
            "deepspeed.ops.adam",
            "transformers.integrations.deepspeed",
        ):
            import_module(name)
        import_module("deepspeed.ops").__compatible_ops__["deepspeed_shm_comm"] = False
