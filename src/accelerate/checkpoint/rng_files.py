"""One rank's random generators as a file, with the keys that other readers of the layout know."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import torch

from accelerate.checkpoint.objects import write_object
from accelerate.devices import rng

__all__ = ["capture", "restore"]


def capture(step: int, mark: str = "") -> bytes:
    """The content of this rank's file: its generators, and ``step`` as the reader of such files expects it."""
    states = rng.rng_states()
    python, numpy = states["python"], states["numpy"]
    content = {
        "step": step,
        "random_state": (python["version"], tuple(python["state"].tolist()), python["gauss"]),
        "numpy_random_seed": (
            numpy["kind"],
            numpy["state"].tolist(),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached_gauss"],
        ),
        "torch_manual_seed": states["torch"],
        **{_device_key(kind): state for kind, state in states["devices"].items()},
        "accelerate_seed": states["seed"],
        "accelerate_checkpoint": mark,
    }
    file = io.BytesIO()
    write_object(file, content, "random states")
    return file.getvalue()


def _device_key(kind: str) -> str:
    return "xm_seed" if kind == "xla" else f"torch_{kind}_manual_seed"


def restore(content: Mapping[str, Any]) -> list[str]:
    """Restores what a file holds, ours or another writer's; returns the names of generators that did not match."""
    states: dict[str, Any] = {"devices": {}, "seed": content.get("accelerate_seed")}
    if "random_state" in content:
        version, numbers, gauss = content["random_state"]
        states["python"] = {"version": version, "state": list(numbers), "gauss": gauss}
    if "numpy_random_seed" in content:
        kind, keys, position, has_gauss, cached = content["numpy_random_seed"]
        states["numpy"] = {
            "kind": str(kind),
            "state": [int(key) for key in keys],
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        }
    if "torch_manual_seed" in content:
        states["torch"] = content["torch_manual_seed"]
    for key, value in content.items():
        if key == "xm_seed":
            states["devices"]["xla"] = value
        elif key.startswith("torch_") and key.endswith("_manual_seed") and key != "torch_manual_seed":
            kind = key[len("torch_") : -len("_manual_seed")]
            states["devices"][kind] = value if isinstance(value, (list, tuple, torch.Tensor)) else [value]
    return rng.restore_rng_states(states)
