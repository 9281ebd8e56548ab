"""The public functions that save and load one divided model or optimizer, outside a checkpoint of everything.

Files: ``pytorch_model_fsdp.bin``, ``optimizer.bin`` (full); ``pytorch_model_fsdp_0/``, ``optimizer_0/`` (sharded);
``pytorch_model_fsdp_rank0.bin`` (local, one for each rank). A second model has ``_1`` before the suffix.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from accelerate import runtime
from accelerate.checkpoint import dcp
from accelerate.checkpoint.adapter import LoadReport, ModelState
from accelerate.checkpoint.objects import read_object, write_object
from accelerate.checkpoint.streams import HashingWriter
from accelerate.errors import CheckpointError, CheckpointMismatchError
from accelerate.modules import is_peft_model
from accelerate.strategies.sharded import folders
from accelerate.strategies.sharded.adapters import adapter_names
from accelerate.strategies.sharded.layout import gather_whole
from accelerate.strategies.sharded.state import ShardedStateAdapter

__all__ = [
    "MODEL_NAME",
    "OPTIMIZER_NAME",
    "adapter_for",
    "load_fsdp_model",
    "load_fsdp_optimizer",
    "save_fsdp_model",
    "save_fsdp_optimizer",
]

MODEL_NAME, OPTIMIZER_NAME = "pytorch_model_fsdp", "optimizer"


def adapter_for(fsdp_plugin: Any) -> ShardedStateAdapter:
    """The state adapter of the version that a plugin asks for."""
    if int(fsdp_plugin.fsdp_version) == 2:
        from accelerate.strategies.fsdp2.state import Fsdp2StateAdapter

        return Fsdp2StateAdapter()
    from accelerate.strategies.fsdp1.state import Fsdp1StateAdapter

    return Fsdp1StateAdapter()


def _kind(fsdp_plugin: Any) -> str:
    kind = fsdp_plugin.state_dict_type
    return str(getattr(kind, "name", kind)).upper()


def _file(name: str, index: int, rank: int | None = None) -> str:
    middle = f"_{index}" if index else ""
    return f"{name}{middle}.bin" if rank is None else f"{name}{middle}_rank{rank}.bin"


def _bare(optimizer: Any) -> torch.optim.Optimizer:
    inner = getattr(optimizer, "optimizer", None)
    return inner if isinstance(inner, torch.optim.Optimizer) else optimizer


def _write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = HashingWriter(path)
    try:
        write_object(writer, value, path.name)
    finally:
        writer.close()


def _chosen(bare: torch.nn.Module, state: ModelState, adapter_only: bool) -> dict[str, Any]:
    """The tensors to save under the names to save them: all, or those of a PEFT model's active adapter."""
    if not adapter_only or not is_peft_model(bare):
        return dict(state.tensors)
    names = adapter_names(bare, state.tensors)
    return {saved: state.tensors[own] for saved, own in names.items()}


def save_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: torch.nn.Module,
    output_dir: str,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> None:
    """Collective. Saves a prepared model below ``output_dir`` in the plugin's ``state_dict_type``.

    Args:
        fsdp_plugin: Says the version and the type.
        accelerator: The Accelerator that prepared the model.
        model: The prepared model.
        output_dir: A folder, which is made where it is not there.
        model_index: Which model of several this is.
        adapter_only: Of a PEFT model, the active adapter alone.
        use_dcp: Taken for compatibility; sharded state is always written by ``torch.distributed.checkpoint``.
    """
    held, kind, root = runtime.current(), _kind(fsdp_plugin), Path(output_dir)
    adapter = adapter_for(fsdp_plugin)
    state = adapter.model_state(model)
    tensors = _chosen(adapter.bare(model), state, adapter_only)
    aliases = {name: kept for name, kept in state.aliases.items() if kept in tensors}
    if kind == "FULL_STATE_DICT":
        whole = {name: _whole(value) for name, value in tensors.items()}
        if held.topology.rank == 0:
            whole.update((name, whole[kept]) for name, kept in aliases.items())
            _write(root / _file(MODEL_NAME, model_index), whole)
    elif kind == "LOCAL_STATE_DICT":
        _write(root / _file(MODEL_NAME, model_index, held.topology.rank), _local(tensors, held.topology.world_size))
    else:
        kept_state = ModelState(tensors=tensors, aliases=aliases)
        folders.save_model_folder(kept_state, root / f"{MODEL_NAME}_{model_index}", held.collectives)
    held.collectives.barrier()


def _whole(value: Any) -> Any:
    host = torch.device("cpu")
    if hasattr(value, "placements"):
        return gather_whole(value, host)
    return value.detach().to(host) if isinstance(value, torch.Tensor) else value


def _local(tensors: Mapping[str, Any], size: int) -> dict[str, Any]:
    parts = {name: getattr(t, "to_local", lambda t=t: t)().detach().cpu() for name, t in tensors.items()}
    return {"world_size": size, "model": parts}


def load_fsdp_model(
    fsdp_plugin: Any,
    accelerator: Any,
    model: torch.nn.Module,
    input_dir: str,
    model_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> LoadReport:
    """Collective. Loads what :func:`save_fsdp_model` wrote, of any type and from any number of ranks.

    Each rank reads only its own parts. The arguments are those of :func:`save_fsdp_model`.

    Raises:
        CheckpointError: there is nothing to load; the places looked at are named.
        CheckpointMismatchError: names or shapes differ; nothing was changed.
    """
    held, root = runtime.current(), Path(input_dir)
    adapter = adapter_for(fsdp_plugin)
    partial = adapter_only and is_peft_model(adapter.bare(model))
    names = adapter_names(adapter.bare(model), adapter.model_state(model).tensors) if partial else None
    folder, file = root / f"{MODEL_NAME}_{model_index}", root / _file(MODEL_NAME, model_index)
    local = root / _file(MODEL_NAME, model_index, held.topology.rank)
    folder = folder if dcp.is_folder(folder) or not dcp.is_folder(root) else root
    if dcp.is_folder(folder):
        if names is None:
            return folders.load_model_folder(adapter, model, folder)
        own = adapter.tensors(model)
        found: Mapping[str, Any] = folders.read_model(folder, {saved: own[name] for saved, name in names.items()})
    elif file.is_file():
        found = read_object(file, allow_pickle=False)
    elif local.is_file():
        return _load_local(adapter, model, local, held.topology.world_size)
    else:
        raise CheckpointError(
            f"There is no model {model_index} in {root}: neither {folder.name}/ nor {file.name} nor {local.name}. Give "
            "the folder that save_fsdp_model or save_state wrote."
        )
    if names is not None:
        found = {names.get(name, name): value for name, value in found.items()}
        _check_adapter(names, found, root)
    return adapter.load_model_state(model, found, strict=names is None)


def _check_adapter(names: Mapping[str, str], found: Mapping[str, Any], root: Path) -> None:
    missing = [saved for saved, own in names.items() if own not in found]
    if missing:
        raise CheckpointMismatchError(
            f"The adapter in {root} lacks {len(missing)} of the model's {len(names)} adapter tensors ({missing[0]} …); "
            "nothing was changed. Load it into a model with the same adapter configuration."
        )


def _load_local(adapter: ShardedStateAdapter, model: torch.nn.Module, path: Path, size: int) -> LoadReport:
    saved = read_object(path, allow_pickle=False)
    if not isinstance(saved, Mapping) or saved.get("world_size") != size:
        was = saved.get("world_size") if isinstance(saved, Mapping) else None
        raise CheckpointMismatchError(
            f"{path} is local state of {was} ranks, and this job has {size}: local state cannot be divided anew. Save "
            "with state_dict_type='SHARDED_STATE_DICT' to load at another number of ranks."
        )
    own = adapter.tensors(model)
    expected = {n: t for n, t in own.items() if isinstance(t, torch.Tensor)}
    values = {}
    for name, part in saved["model"].items():
        target = expected.get(name)
        here = target.to_local() if target is not None and hasattr(target, "to_local") else target
        if here is None or here.shape != part.shape:
            raise CheckpointMismatchError(
                f"{path} has {name} of shape {tuple(part.shape)} on this rank, and the model "
                f"{None if here is None else tuple(here.shape)}. It was divided in another way; nothing was changed."
            )
        values[name] = part
    with torch.no_grad():
        for name, part in values.items():
            target = expected[name]
            (target.to_local() if hasattr(target, "to_local") else target).copy_(part)
    adapter.assign(model, {}, expected)
    return LoadReport(restored=tuple(values))


def save_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    output_dir: str,
    optimizer_index: int = 0,
    use_dcp: bool = True,
) -> None:
    """Collective. Saves the optimizer of a prepared model below ``output_dir``, by parameter name.

    Args:
        fsdp_plugin: Says the version and the type: one file where it is full, a folder otherwise.
        accelerator: The Accelerator that prepared the model.
        optimizer: The optimizer, prepared or bare.
        model: The prepared model whose parameters it steps.
        output_dir: A folder, which is made where it is not there.
        optimizer_index: Which optimizer of several this is.
        use_dcp: Taken for compatibility; sharded state is always written by ``torch.distributed.checkpoint``.
    """
    held, root = runtime.current(), Path(output_dir)
    state = adapter_for(fsdp_plugin).optimizer_state(_bare(optimizer), [model])
    if _kind(fsdp_plugin) == "FULL_STATE_DICT":
        whole = folders.gathered_optimizer(state)
        if whole is not None:
            table = folders.optimizer_table(whole)[folders.OPTIMIZER]
            _write(root / _file(OPTIMIZER_NAME, optimizer_index), table)
    else:
        folders.save_optimizer_folder(state, root / f"{OPTIMIZER_NAME}_{optimizer_index}", held.collectives)
    held.collectives.barrier()


def load_fsdp_optimizer(
    fsdp_plugin: Any,
    accelerator: Any,
    optimizer: Any,
    model: torch.nn.Module,
    input_dir: str,
    optimizer_index: int = 0,
    adapter_only: bool = False,
    use_dcp: bool = True,
) -> LoadReport:
    """Collective. Loads what :func:`save_fsdp_optimizer` wrote, of any type and from any number of ranks.

    The arguments are those of :func:`save_fsdp_optimizer`; ``adapter_only`` changes nothing, since an optimizer holds
    state of what it trains only.

    Raises:
        CheckpointError: there is nothing to load; the places looked at are named.
        CheckpointMismatchError: parameters or groups differ; nothing was changed.
    """
    adapter, bare, root = adapter_for(fsdp_plugin), _bare(optimizer), Path(input_dir)
    folder, file = root / f"{OPTIMIZER_NAME}_{optimizer_index}", root / _file(OPTIMIZER_NAME, optimizer_index)
    folder = folder if dcp.is_folder(folder) or not dcp.is_folder(root) else root
    if dcp.is_folder(folder):
        return folders.load_optimizer_folder(adapter, bare, [model], folder)
    if not file.is_file():
        raise CheckpointError(
            f"There is no optimizer {optimizer_index} in {root}: neither {folder.name}/ nor {file.name}. Give the "
            "folder that save_fsdp_optimizer or save_state wrote."
        )
    state = folders.optimizer_from(read_object(file, allow_pickle=False))
    return adapter.load_optimizer_state(bare, [model], state)
