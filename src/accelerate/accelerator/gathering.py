"""Values of all ranks brought together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from accelerate.comm import nested, operations

if TYPE_CHECKING:
    from accelerate.accelerator.typing import Facade

__all__ = ["GatherMixin"]


class GatherMixin:
    """Collectives over tensors in any nesting of lists, tuples and mappings."""

    flag_tensor: torch.Tensor | None

    def gather(self, tensor: Any) -> Any:
        """Collective. Every rank's tensors, concatenated along the first dimension; shapes are the same on all ranks.

        A 0-d tensor gives shape ``(num_processes,)``; in one process everything stays as it is.

        Raises:
            CollectiveError: ranks gave different structures, shapes or dtypes; nothing was exchanged.
        """
        return operations.gather(tensor)

    def gather_for_metrics(self: Facade, input_data: Any, use_gather_object: bool = False) -> Any:
        """Collective. As ``gather``, without the samples that were repeated to fill the last batch.

        Args:
            input_data: Tensors in any nesting, or any picklable object: then the result is the flat list of what the
                ranks gave.
            use_gather_object: Treat the input as an object even if it holds tensors only; a tensor is a list of rows.

        In one process no sample is repeated. But what was made as long as a full batch for a last one that is shorter
        (a mean, repeated for each sample) is cut to the length of that one, as it is on several ranks.
        """
        state = self.gradient_state
        if not self.use_distributed:
            return _as_long_as_the_last(state, input_data, use_gather_object)
        loader = state.active_dataloader
        counts = getattr(loader, "real_counts", None)
        own = None if counts is None else counts[self.process_index]
        tensors = not use_gather_object and _only_tensors(input_data)
        if not tensors:
            rows = _rows(input_data)
            data: Any = operations.gather_object(rows if own is None else rows[:own])
        else:
            data = operations.gather_uneven(
                input_data if own is None else nested.recursively_apply(_first(own), input_data)
            )
        last = counts is None and loader is not None and state.end_of_dataloader
        remainder = state.remainder if last else -1
        if remainder <= 0:
            return data
        return nested.recursively_apply(_first(remainder), data) if tensors else data[:remainder]

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Collective. Every rank's tensors reduced by ``reduction`` ("sum", "mean" or "none"), then scaled."""
        return operations.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Collective. Tensors padded with ``pad_index`` along ``dim`` to the longest of all ranks."""
        return operations.pad_across_processes(tensor, dim=dim, pad_index=pad_index, pad_first=pad_first)

    def set_trigger(self: Facade) -> None:
        """Raises a flag on this rank, which :meth:`check_trigger` shows to all."""
        self.flag_tensor = torch.ones((), dtype=torch.int32, device=self.device)

    def check_trigger(self: Facade) -> bool:
        """Collective. Whether some rank raised the flag since the last check that said so; then it is lowered."""
        flag = self.flag_tensor if self.flag_tensor is not None else torch.zeros((), dtype=torch.int32)
        raised = int(operations.reduce(flag.to(self.device), "sum").item()) > 0
        if raised:
            self.flag_tensor = None
        return raised


def _as_long_as_the_last(state: Any, data: Any, as_object: bool) -> Any:
    tensors = not as_object and _only_tensors(data)
    tensors = tensors or isinstance(data, torch.Tensor)
    found = operations.gather_uneven(data) if tensors else operations.gather_object(_rows(data))
    batches = getattr(state.active_dataloader, "batch_sampler", None) if state.end_of_dataloader else None
    full, samples = getattr(batches, "batch_size", None), getattr(batches, "sampler", None)
    if not full or getattr(batches, "drop_last", False) or samples is None or not hasattr(samples, "__len__"):
        return found
    short = len(samples) % full
    if not short:
        return found
    if not tensors:
        return found[:short] if len(found) == full else found
    return nested.recursively_apply(_shortened(short, full), found)


def _rows(data: Any) -> list[Any]:
    if isinstance(data, torch.Tensor) and data.ndim:
        return list(data.detach().cpu())
    return data if isinstance(data, list) else [data]


def _shortened(short: int, full: int) -> Any:
    """Cuts a tensor of ``full`` rows to ``short``, and leaves others."""
    return lambda tensor: tensor[:short] if tensor.ndim and len(tensor) == full else tensor


def _first(count: int) -> Any:
    """Cuts a tensor to its first ``count`` rows; one without dimensions is a row."""
    return lambda tensor: (tensor if tensor.ndim else tensor.view(1))[:count]


def _only_tensors(data: Any) -> bool:
    """Whether ``data`` is tensors in containers, at least one."""
    if isinstance(data, torch.Tensor):
        return True
    if isinstance(data, (list, tuple)):
        return bool(data) and all(_only_tensors(item) for item in data)
    if isinstance(data, dict) or hasattr(data, "keys"):
        return bool(data) and all(_only_tensors(data[key]) for key in data)
    return False
