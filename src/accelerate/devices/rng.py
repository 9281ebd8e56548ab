"""Random generators: seeding them, letting ranks part, and their state for a checkpoint.

``set_seed`` gives every rank the same generators, so that models are built alike and the data is shuffled alike. When a
model has been prepared for training, :func:`diverge` gives each data-parallel rank generators of its own, a function of
the seed and the rank, so that dropout differs between ranks. Rank 0 goes on with its generators as they are: a job of
one process and rank 0 of any job draw alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from accelerate import runtime
from accelerate.devices.registry import kinds
from accelerate.topology import Topology

__all__ = ["diverge", "restore_rng_states", "rng_states", "set_seed"]


@dataclass(slots=True)
class _Seed:
    """The last seed set, and whether the ranks have parted since (``parted``: as which rank)."""

    value: int
    parted: int | None = None


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seeds the generators of Python, NumPy, torch and every device with ``seed``, or with ``seed`` + rank where
    ``device_specific``. ``deterministic`` also makes torch raise where an operation is not deterministic."""
    if device_specific:
        seed += _rank()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    _seed_torch(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)
    runtime.slots().seed = _Seed(seed, parted=0 if device_specific else None)


def diverge(rank: int) -> bool:
    """Gives data-parallel rank ``rank`` torch generators of its own; Python's and NumPy's stay, as data order may
    depend on them. Happens once after a ``set_seed``; without one the generators are the user's business and stay.

    Returns whether the ranks part here (False for a call that changes nothing on any rank).
    """
    seed: _Seed | None = runtime.slots().seed
    if seed is None or seed.parted is not None:
        return False
    seed.parted = rank
    if rank != 0:
        # A simple sum would give rank 1 of seed 1 what rank 0 of seed 2 has.
        mixed = np.random.SeedSequence([seed.value % 2**64, rank]).generate_state(1, np.uint64)[0]
        _seed_torch(int(mixed) >> 1)
    return True


def rng_states() -> dict[str, Any]:
    """The state of every generator of this process as numbers, strings, lists and CPU tensors: no pickle is needed."""
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    seed: _Seed | None = runtime.slots().seed
    return {
        "python": {"version": version, "state": torch.tensor(numbers, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "kind": str(kind),
            "state": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached_gauss": float(cached),
        },
        "torch": torch.get_rng_state(),
        "devices": {backend.type: backend.rng.get_state() for backend in kinds() if _has_generators(backend)},
        "seed": None if seed is None else {"value": seed.value, "parted": seed.parted},
    }


def restore_rng_states(states: dict[str, Any]) -> list[str]:
    """Restores what :func:`rng_states` returned; parts that are missing are passed over. Returns the names of what this
    machine has and the states have not, or the other way round."""
    unmatched = [name for name in ("python", "numpy", "torch") if name not in states]
    if "python" in states:
        python = states["python"]
        random.setstate((python["version"], tuple(_numbers(python["state"])), python["gauss"]))
    if "numpy" in states:
        numpy = states["numpy"]
        keys = np.array(_numbers(numpy["state"]), dtype=np.uint32)
        np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached_gauss"]))
    if "torch" in states:
        torch.set_rng_state(states["torch"].cpu())
    saved = states.get("devices", {})
    here = {backend.type: backend for backend in kinds() if _has_generators(backend)}
    for name in sorted({*saved, *here}):
        if name in saved and name in here:
            here[name].rng.set_state(saved[name])
        else:
            unmatched.append(name)
    seed = states.get("seed")
    runtime.slots().seed = None if seed is None else _Seed(seed["value"], seed["parted"])
    return unmatched


def _numbers(state: Any) -> list[int]:
    return state.tolist() if isinstance(state, torch.Tensor) else [int(number) for number in state]


def _has_generators(backend: Any) -> bool:
    return backend.type != "cpu" and bool(backend.is_available())


def _seed_torch(seed: int) -> None:
    torch.manual_seed(seed)
    for backend in kinds():
        if _has_generators(backend):
            backend.rng.seed(seed)


def _rank() -> int:
    held = runtime.find()
    topology = held.topology if held is not None else runtime.slots().topology
    return (topology or Topology.detect()).rank
