"""Checkpoints into models, a tensor at a time: to devices, main memory or disk."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accelerate.errors import CheckpointError, CheckpointMismatchError, NotBuiltError
from accelerate.modules import model_has_dtensor
from accelerate.offload import speaker
from accelerate.offload.budget import MaxMemory, get_balanced_memory, get_max_memory
from accelerate.offload.device_map import check_device_map, infer_auto_device_map
from accelerate.offload.disk import Index, PathLike, load_offloaded_weight, offload_weight, save_offload_index
from accelerate.offload.dispatch import dispatch_model, public
from accelerate.offload.sizes import Dtype, proper_dtype
from accelerate.offload.tensors import Device, set_module_tensor_to_device
from accelerate.offload.tied import (
    check_tied_parameters_on_same_device,
    device_of_name,
    find_tied_parameters,
    retie_parameters,
)

__all__ = [
    "load_checkpoint_and_dispatch",
    "load_checkpoint_in_model",
    "load_offloaded_weights",
    "load_state_dict",
]

# In order of preference, as libraries name the checkpoints of a model.
_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_AUTOMATIC = ("auto", "balanced", "balanced_low_0", "sequential")


def load_state_dict(
    checkpoint_file: PathLike, device_map: Mapping[str, Device] | None = None
) -> dict[str, torch.Tensor]:
    """The tensors of a ``.safetensors`` or ``.bin`` file, on the CPU or where ``device_map`` says ("disk": the CPU).

    Nothing but tensors is unpickled from a ``.bin`` file.
    """
    with _opened(Path(checkpoint_file)) as (names, read):
        return {name: read(name, _host(device_of_name(name, device_map or {}))) for name in names}


def _host(place: Any) -> Any:
    return "cpu" if place in (None, "disk") else place


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Any]]:
    """The names in a checkpoint file, and a function that reads one of them to a device.

    It copies: a tensor that is still mapped dies with a file that is written again at the same place.
    """
    if path.suffix == ".safetensors":
        from safetensors import safe_open

        with safe_open(str(path), framework="pt") as file:
            yield list(file.keys()), lambda name, device: file.get_tensor(name).to(device, copy=True)
        return
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # files of torch before 1.6 cannot be mapped
        state = torch.load(path, map_location="cpu", weights_only=True)
    if not isinstance(state, Mapping) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise CheckpointError(f"{str(path)!r} does not hold a state dict: a mapping of names to tensors.")
    yield list(state), lambda name, device: state[name].to(device, copy=True)


def _files(checkpoint: Path) -> list[Path]:
    """The files of a checkpoint given as a file, an index, or a folder with either.

    Raises:
        ValueError: nothing there can be loaded; what is there is listed.
    """
    if checkpoint.is_file():
        return _indexed(checkpoint) if checkpoint.suffix == ".json" else [checkpoint]
    if not checkpoint.is_dir():
        raise ValueError(f"checkpoint={str(checkpoint)!r} is neither a file nor a folder.")
    for whole, index in zip(_WHOLE, _INDEXES, strict=True):
        if (checkpoint / whole).is_file():
            return [checkpoint / whole]
        if (checkpoint / index).is_file():
            return _indexed(checkpoint / index)
    others = sorted(checkpoint.glob("*.index.json"))
    if len(others) == 1:
        return _indexed(others[0])
    single = sorted(checkpoint.glob("*.safetensors")) or sorted(checkpoint.glob("*.bin"))
    if len(single) == 1:
        return single
    found = ", ".join(sorted(path.name for path in checkpoint.iterdir())) or "nothing"
    raise ValueError(
        f"checkpoint={str(checkpoint)!r} has none of {', '.join((*_WHOLE, *_INDEXES))}. It has: {found}. "
        "Pass the file or the index itself."
    )


def _indexed(index: Path) -> list[Path]:
    content = json.loads(index.read_text())
    weight_map = content.get("weight_map", content)
    return [index.parent / name for name in sorted(set(weight_map.values()))]


def load_offloaded_weights(model: nn.Module, index: Mapping[str, Any] | None, offload_folder: PathLike) -> None:
    """Brings the weights that ``index`` lists from a folder into the model, in main memory."""
    for name, entry in (index or {}).items():
        value = load_offloaded_weight(Path(offload_folder) / f"{name}.dat", entry)
        set_module_tensor_to_device(model, name, "cpu", value=value)


@dataclass(slots=True, kw_only=True)
class _Loading:
    """One load: the model's tensors by name, what was found, and what went to disk."""

    model: nn.Module
    device_map: Mapping[str, Any] | None
    folder: PathLike | None
    dtype: Dtype | None
    buffers_to_disk: bool
    in_float32: tuple[str, ...]
    own: dict[str, torch.Tensor]
    all_buffers: set[str]
    loaded: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)
    index: Index = field(default_factory=dict)

    def take(self, path: Path) -> None:
        """Puts every tensor of a file where it belongs."""
        with _opened(path) as (names, read):
            for name in names:
                if name in self.own:
                    self._put(name, path, read)
                    self.loaded.add(name)
                elif name not in self.all_buffers:  # a buffer that is no longer saved is not a surprise
                    self.unexpected.append(name)

    def _put(self, name: str, path: Path, read: Any) -> None:
        dtype = self._dtype(name)
        place = self._place(name)
        if place != "disk":
            value = read(name, _host(place))
            set_module_tensor_to_device(self.model, name, _host(place), value=value, dtype=dtype, clear_cache=False)
            return
        assert self.folder is not None
        if path.suffix == ".safetensors":  # already a file that a single tensor can be read from
            wanted = str(proper_dtype(dtype) if dtype is not None else self.own[name].dtype).removeprefix("torch.")
            self.index[name] = {"safetensors_file": str(path.resolve()), "weight_name": name, "dtype": wanted}
        else:
            value = read(name, "cpu")
            offload_weight(value.to(proper_dtype(dtype)) if dtype else value, name, self.folder, self.index)
        set_module_tensor_to_device(self.model, name, "meta")

    def _dtype(self, name: str) -> Dtype | None:
        if not self.own[name].is_floating_point():
            return None
        if self.in_float32 and any(part in self.in_float32 for part in name.split(".")):
            return torch.float32
        return self.dtype

    def _place(self, name: str) -> Any:
        if self.device_map is None:
            device = self.own[name].device
            return "cpu" if device.type == "meta" else device
        place = device_of_name(name, self.device_map)
        if place == "disk" and name in self.all_buffers and not self.buffers_to_disk:
            return "cpu"
        return place

    def missing(self, tied: Iterable[Sequence[str]]) -> list[str]:
        """The model's tensors that no file had, under any of their names."""
        filled = {name for group in tied if any(twin in self.loaded for twin in group) for name in group}
        return [name for name in self.own if name not in self.loaded and name not in filled]


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: PathLike,
    device_map: Mapping[str, Device] | None = None,
    offload_folder: PathLike | None = None,
    dtype: Dtype | None = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: Sequence[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> None:
    """Loads a checkpoint (file, index or folder) into a model, which may be on the meta device, a tensor at a time.

    ``device_map`` places tensors; those on "disk" are listed in the index of ``offload_folder``, safetensors files
    staying where they are. ``dtype`` casts floating point tensors, except in ``keep_in_fp32_modules``. Tensors that the
    checkpoint lacks or the model does not have are warned about, with ``strict`` refused. ``offload_state_dict`` asks
    for nothing that this does not do anyway. A model of sharded tensors is loaded collectively: ``full_state_dict``
    says whether files hold whole tensors, ``broadcast_from_rank0`` that only rank 0 has them.

    Raises:
        CheckpointMismatchError: ``strict`` and names differ. ValueError: a shape differs, or no folder for "disk".
    """
    if offload_8bit_bnb:
        raise NotBuiltError("offload_8bit_bnb=True was asked for, but quantised loading is not built yet.")
    if model_has_dtensor(model) or broadcast_from_rank0 or not full_state_dict:
        _load_sharded(model, Path(checkpoint), strict, full_state_dict, broadcast_from_rank0)
        return
    if device_map is not None:
        check_device_map(model, device_map)
        if offload_folder is None and "disk" in device_map.values():
            raise ValueError("device_map puts modules on disk, and there is no folder for them. Pass offload_folder.")
    files = _files(Path(checkpoint))
    tied = find_tied_parameters(model)
    if device_map is not None:
        check_tied_parameters_on_same_device(tied, device_map)
    loading = _Loading(
        model=model,
        device_map=device_map,
        folder=offload_folder,
        dtype=dtype,
        buffers_to_disk=offload_buffers,
        in_float32=tuple(keep_in_fp32_modules or ()),
        own=model.state_dict(),
        all_buffers={name for name, _ in model.named_buffers(remove_duplicate=False)},
    )
    for file in files:
        loading.take(file)
    if offload_folder is not None:
        save_offload_index(loading.index, offload_folder)
    retie_parameters(model, tied)
    _report(str(checkpoint), loading.missing(tied), loading.unexpected, strict)


def _report(checkpoint: str, missing: list[str], unexpected: list[str], strict: bool) -> None:
    if not missing and not unexpected:
        return
    text = f"Checkpoint {checkpoint!r} and the model differ."
    if missing:
        text += f" Missing in the checkpoint: {', '.join(missing)}."
    if unexpected:
        text += f" Not in the model: {', '.join(unexpected)}."
    if strict:
        raise CheckpointMismatchError(f"{text} Pass strict=False to load what fits.")
    speaker.warning(text)


def _load_sharded(
    model: nn.Module, checkpoint: Path, strict: bool, full_state_dict: bool, broadcast_from_rank0: bool
) -> None:
    from torch import distributed
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    state: dict[str, Any] = {}
    if not broadcast_from_rank0 or distributed.get_rank() == 0:
        for file in _files(checkpoint):
            state.update(load_state_dict(file))
    options = StateDictOptions(
        full_state_dict=full_state_dict, broadcast_from_rank0=broadcast_from_rank0, strict=strict
    )
    set_model_state_dict(model, state, options=options)


def load_checkpoint_and_dispatch(
    model: nn.Module,
    checkpoint: PathLike,
    device_map: str | Mapping[str, Device] | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    offload_folder: PathLike | None = None,
    offload_buffers: bool = False,
    dtype: Dtype | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | list[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    strict: bool = True,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
) -> nn.Module:
    """Loads a checkpoint into a model (usually on the meta device) and places and hooks its parts.

    ``device_map`` is a map, or "auto", "balanced", "balanced_low_0" or "sequential" for one that is planned from
    ``max_memory`` and ``no_split_module_classes`` (default: the model's own). None loads and hooks nothing. Other
    arguments are as for :func:`load_checkpoint_in_model` and :func:`dispatch_model`.

    Raises:
        CheckpointMismatchError: the checkpoint lacks tensors or has others; they are listed. Not with ``strict=False``.
    """
    if isinstance(device_map, str):
        device_map = _planned(model, device_map, max_memory, no_split_module_classes, dtype, offload_buffers)
    load_checkpoint_in_model(
        model,
        checkpoint,
        device_map=device_map,
        offload_folder=offload_folder,
        dtype=dtype,
        offload_buffers=offload_buffers,
        strict=strict,
        full_state_dict=full_state_dict,
        broadcast_from_rank0=broadcast_from_rank0,
    )
    if device_map is None:
        return model
    return public("dispatch_model", dispatch_model)(  # type: ignore[no-any-return]
        model,
        device_map=device_map,
        offload_dir=offload_folder,
        offload_buffers=offload_buffers,
        skip_keys=skip_keys,
        preload_module_classes=preload_module_classes,
        force_hooks=force_hooks,
    )


def _planned(
    model: nn.Module,
    kind: str,
    max_memory: MaxMemory | None,
    no_split: Sequence[str] | str | None,
    dtype: Dtype | None,
    offload_buffers: bool,
) -> Mapping[str, Device]:
    if kind not in _AUTOMATIC:
        raise ValueError(f"device_map={kind!r} is not known. Use a map, or one of {', '.join(_AUTOMATIC)}.")
    classes = no_split if no_split is not None else getattr(model, "_no_split_modules", None)
    if kind == "sequential":
        limits: MaxMemory = get_max_memory(max_memory)
    else:
        limits = get_balanced_memory(model, max_memory, classes, dtype=dtype, low_zero=kind == "balanced_low_0")
    return infer_auto_device_map(model, limits, classes, dtype=dtype, offload_buffers=offload_buffers)
