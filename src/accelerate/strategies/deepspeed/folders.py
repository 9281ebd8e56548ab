"""The folders that DeepSpeed's engine writes: what is one, and what may be unpickled from it."""

from __future__ import annotations

from pathlib import Path

from accelerate.checkpoint.objects import refuse_code

__all__ = ["ENGINE_CLASSES", "engine_at", "refuse_strange"]

# All that an engine's files hold beside tensors and plain values.
ENGINE_CLASSES = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)


def engine_at(path: Path) -> tuple[Path, str | None] | None:
    """The checkpoint that ``path`` is or is in, and the engine's name where it is the engine's folder; None where there
    is no engine."""
    if any(path.glob("*_optim_states.pt")):
        return path.parent, path.name
    return (path, None) if any(path.glob("*/*_optim_states.pt")) else None


def refuse_strange(folder: Path) -> None:
    """Raises PickleRefusedError where a file below ``folder`` asks for code that the engine does not write."""
    for path in sorted(folder.rglob("*.pt")):
        refuse_code(path, ENGINE_CLASSES)
