"""Weights in a folder: one raw file a tensor beside an index, or entries that point into safetensors files.

The index (``index.json``) maps a weight's name to ``{"dtype", "shape"}``, whose bytes are in ``<name>.dat``, or to
``{"safetensors_file", "weight_name", "dtype"}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "INDEX_NAME",
    "OffloadedWeightsLoader",
    "PrefixedDataset",
    "extract_submodules_state_dict",
    "load_offloaded_weight",
    "offload_state_dict",
    "offload_weight",
    "save_offload_index",
]

INDEX_NAME = "index.json"
PathLike = str | os.PathLike[str]
Index = MutableMapping[str, Any]


def offload_weight(
    weight: torch.Tensor, weight_name: str, offload_folder: PathLike, index: Index | None = None
) -> Index | None:
    """Writes a tensor's bytes to ``<offload_folder>/<weight_name>.dat`` and its entry into ``index``, which it returns.

    Raises:
        ValueError: the tensor is on the meta device and has no bytes.
    """
    if weight.device.type == "meta":
        raise ValueError(f"{weight_name!r} is on the meta device and holds no data that could be written to disk.")
    folder = Path(offload_folder)
    folder.mkdir(parents=True, exist_ok=True)
    flat = weight.detach().cpu().contiguous().reshape(-1)
    flat.view(torch.uint8).numpy().tofile(folder / f"{weight_name}.dat")
    if index is not None:
        index[weight_name] = {"dtype": str(weight.dtype).removeprefix("torch."), "shape": list(weight.shape)}
    return index


def load_offloaded_weight(weight_file: PathLike, weight_info: Mapping[str, Any]) -> torch.Tensor:
    """The tensor in a ``.dat`` file, mapped into memory: pages are read when they are used and never written back."""
    dtype = getattr(torch, weight_info["dtype"])
    shape = tuple(weight_info["shape"])
    count = torch.Size(shape).numel()
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    return torch.from_file(str(weight_file), shared=False, size=count, dtype=dtype).reshape(shape)


def save_offload_index(index: Mapping[str, Any] | None, offload_folder: PathLike) -> None:
    """Adds the entries of ``index`` to the folder's index file."""
    if not index:
        return
    path = Path(offload_folder) / INDEX_NAME
    known = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps({**known, **index}, indent=2))


def offload_state_dict(save_dir: PathLike, state_dict: Mapping[str, torch.Tensor]) -> None:
    """Writes every tensor of a state dict, and the index, into a folder."""
    Path(save_dir).mkdir(parents=True, exist_ok=True)
    index: Index = {}
    for name, tensor in state_dict.items():
        offload_weight(tensor, name, save_dir, index)
    save_offload_index(index, save_dir)


class PrefixedDataset(Mapping[str, Any]):
    """The entries of a mapping that start with a prefix, under their names without it."""

    def __init__(self, dataset: Mapping[str, Any], prefix: str) -> None:
        self.dataset = dataset
        self.prefix = prefix

    def __getitem__(self, key: str) -> Any:
        return self.dataset[f"{self.prefix}{key}"]

    def __contains__(self, key: object) -> bool:
        return f"{self.prefix}{key}" in self.dataset

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(self.prefix) for name in self.dataset if name.startswith(self.prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class OffloadedWeightsLoader(Mapping[str, torch.Tensor]):
    """Weights by name, from memory where ``state_dict`` has them, else from the files that ``index`` describes.

    Without an ``index``, that of ``save_folder`` is read. ``device`` is where tensors of safetensors files go.

    Raises:
        ValueError: neither a state dict, nor a folder, nor an index was given.
    """

    def __init__(
        self,
        state_dict: Mapping[str, torch.Tensor] | None = None,
        save_folder: PathLike | None = None,
        index: Mapping[str, Any] | None = None,
        device: Any = None,
    ) -> None:
        if state_dict is None and save_folder is None and index is None:
            raise ValueError("OffloadedWeightsLoader needs a `state_dict`, a `save_folder` or an `index`.")
        if index is None and save_folder is not None:
            index = json.loads((Path(save_folder) / INDEX_NAME).read_text())
        self.state_dict: Mapping[str, torch.Tensor] = {} if state_dict is None else state_dict
        self.save_folder = save_folder
        self.index: Mapping[str, Any] = {} if index is None else index
        self.all_keys = [*self.state_dict, *(name for name in self.index if name not in self.state_dict)]
        self.device = device
        self._files: dict[str, Any] = {}

    def __getitem__(self, key: str) -> torch.Tensor:
        if key in self.state_dict:
            return self.state_dict[key]
        entry = self.index[key]
        if entry.get("safetensors_file") is not None:
            return self._from_safetensors(key, entry)
        if self.save_folder is None:
            raise ValueError(f"The index entry of {key!r} has no file and no `save_folder` was given: {entry}.")
        return load_offloaded_weight(Path(self.save_folder) / f"{key}.dat", entry)

    def _from_safetensors(self, key: str, entry: Mapping[str, Any]) -> torch.Tensor:
        path = str(entry["safetensors_file"])
        file = self._files.get(path)
        if file is None:
            from safetensors import safe_open

            device = "cpu" if self.device is None else self.device
            file = self._files[path] = safe_open(path, framework="pt", device=device)
        tensor: torch.Tensor = file.get_tensor(entry.get("weight_name", key))
        dtype = entry.get("dtype")
        return tensor if dtype is None else tensor.to(getattr(torch, dtype.removeprefix("torch.")))

    def __contains__(self, key: object) -> bool:
        return key in self.state_dict or key in self.index

    def __iter__(self) -> Iterator[str]:
        return iter(self.all_keys)

    def __len__(self) -> int:
        return len(self.all_keys)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": {}}


def extract_submodules_state_dict(
    state_dict: Mapping[str, torch.Tensor], submodule_names: Iterable[str]
) -> dict[str, torch.Tensor]:
    """The entries of a state dict that belong to the named modules or are the named tensors."""
    names = tuple(submodule_names)
    return {
        key: value
        for key, value in state_dict.items()
        if any(key == name or key.startswith(f"{name}.") for name in names)
    }
