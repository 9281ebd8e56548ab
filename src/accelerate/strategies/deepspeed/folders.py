"""The folders that DeepSpeed's engine writes: what is one, and what may be unpickled from it."""

from __future__ import annotations

from pathlib import Path

from accelerate.checkpoint.objects import refuse_code

__all__ = ["ENGINE_CLASSES", "holds_engine", "refuse_strange"]

# All that an engine's files hold beside tensors and plain values.
ENGINE_CLASSES = frozenset(
    {
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
    }
)


def holds_engine(path: Path) -> bool:
    """Whether ``path`` is an engine's folder, or a checkpoint with one."""
    return any(any(path.glob(pattern)) for pattern in ("*_optim_states.pt", "*/*_optim_states.pt"))


def refuse_strange(folder: Path) -> None:
    """Raises PickleRefusedError where a file below ``folder`` asks for code that the engine does not write."""
    for path in sorted(folder.rglob("*.pt")):
        refuse_code(path, ENGINE_CLASSES)
