"""Folders of ``torch.distributed.checkpoint``: every rank writes its own parts, every rank reads what it needs.

Writing has three phases, so that the second can run in the background: plan (collective, sends sizes only), write
(alone), finish (the first rank, with what the others' writes returned). Reading needs no other rank. Nothing is
unpickled that could run code: the index may name a few known classes, and values are read with ``weights_only``.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from accelerate.comm.base import Collectives
from accelerate.errors import CheckpointDamagedError, PickleRefusedError

__all__ = ["FolderWriter", "is_folder", "read", "read_metadata", "shapes", "staged", "write"]

METADATA = ".metadata"
_SUFFIX = ".distcp"
_SAFE = {
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath"},
    "collections": {"OrderedDict"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
}

# (path, what the index says of it) → the tensor to read into, or None to leave it out.
Template = Callable[[tuple[str | int, ...], TensorStorageMetadata], torch.Tensor | None]


def is_folder(path: Path) -> bool:
    """Whether ``path`` is a folder of this format."""
    return (path / METADATA).is_file()


# Writing


def staged(value: Any) -> Any:
    """A nested state with this rank's parts copied to host memory, so that training may go on while it is written."""
    if isinstance(value, DTensor):
        local = value.to_local().detach().to("cpu", copy=True)
        return DTensor.from_local(
            local,
            value.device_mesh,
            value.placements,
            run_check=False,
            shape=value.shape,
            stride=value.stride(),
        )
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: staged(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(staged(item) for item in value)
    return value


class FolderWriter:
    """Writes one nested state to a new folder. Collective to construct; see the module for the phases.

    ``durable`` syncs files to the disk as they are written.
    """

    def __init__(
        self, folder: Path, state: Mapping[str, Any], collectives: Collectives, *, durable: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        first = collectives.rank == 0
        self._planner = DefaultSavePlanner()
        self._writer = FileSystemWriter(folder, sync_files=durable, overwrite=True)
        self._planner.set_up_planner(dict(state), self._writer.storage_meta(), first)
        self._writer.set_up_storage_writer(first)
        own = self._writer.prepare_local_plan(self._planner.create_local_plan())
        plans = collectives.all_gather_object(own)
        whole, self._metadata = self._planner.create_global_plan(plans)
        self._plan = self._writer.prepare_global_plan(whole)[collectives.rank]

    def write(self) -> bytes:
        """Writes this rank's parts; a receipt for :meth:`finish`. No other rank is needed."""
        plan = self._planner.finish_plan(self._plan)
        return pickle.dumps(self._writer.write_data(plan, self._planner).wait())

    def finish(self, receipts: Sequence[bytes]) -> None:
        """Writes the index; on the first rank, once every rank has written. ``receipts`` are rank by rank."""
        self._writer.finish(self._metadata, [pickle.loads(receipt) for receipt in receipts])


def write(folder: Path, state: Mapping[str, Any], collectives: Collectives, *, durable: bool = True) -> None:
    """Collective. Writes one nested state to a new folder, all phases at once."""
    writer = FolderWriter(folder, state, collectives, durable=durable)
    receipts = collectives.all_gather_object(writer.write())
    if collectives.rank == 0:
        writer.finish(receipts)
    collectives.barrier()


# Reading


class _Unpickler(pickle.Unpickler):
    """Knows the classes that an index consists of, and no others."""

    def __init__(self, data: bytes, where: Path) -> None:
        super().__init__(io.BytesIO(data))
        self._where = where

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(getattr(torch, name, None), (torch.dtype, torch.layout)):
            return getattr(torch, name)
        if name in _SAFE.get(module, ()):
            return super().find_class(module, name)
        raise PickleRefusedError(
            f"{self._where} would have to unpickle {module}.{name}, which no checkpoint written by "
            "torch.distributed.checkpoint needs. Nothing was loaded; do not use this file."
        )


def read_metadata(folder: Path) -> Metadata:
    """The index of a folder.

    Raises:
        CheckpointDamagedError: it is missing or cannot be read, or a file that it names is missing.
        PickleRefusedError: it names a class that it should not.
    """
    path = folder / METADATA
    try:
        found = _Unpickler(path.read_bytes(), path).load()
    except PickleRefusedError:
        raise
    except Exception as error:
        raise CheckpointDamagedError(
            f"{path} cannot be read ({type(error).__name__}: {error}), so nothing in {folder} can be found. Take "
            "another checkpoint."
        ) from error
    if not isinstance(found, Metadata):
        raise CheckpointDamagedError(f"{path} holds a {type(found).__name__}, not an index. Take another checkpoint.")
    for info in (found.storage_data or {}).values():
        file = getattr(info, "relative_path", "")
        if not isinstance(info, _StorageInfo) or Path(file).name != file or not (folder / file).is_file():
            raise CheckpointDamagedError(f"{path} names the file {file!r}, which is not in {folder}. Take another one.")
    return found


def shapes(folder: Path, key: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors below the top-level ``key``, by the rest of their path."""
    return {
        ".".join(map(str, path[1:])): tuple(entry.size)
        for path, entry in _entries(read_metadata(folder)).items()
        if path[0] == key and isinstance(entry, TensorStorageMetadata)
    }


def _entries(metadata: Metadata) -> dict[tuple[str | int, ...], TensorStorageMetadata | BytesStorageMetadata]:
    paths = metadata.planner_data or {}
    return {tuple(paths.get(flat, (flat,))): entry for flat, entry in metadata.state_dict_metadata.items()}


class _Reader(FileSystemReader):
    """Reads with an index that was read already."""

    def __init__(self, folder: Path, metadata: Metadata) -> None:
        super().__init__(folder)
        self._metadata = metadata

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        return self._metadata


class _Planner(DefaultLoadPlanner):
    """Reads values that are no tensors without unpickling."""

    def __init__(self, folder: Path) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._folder = folder

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        try:
            self.state_dict[name] = torch.load(value, weights_only=True)
        except pickle.UnpicklingError as error:
            raise PickleRefusedError(
                f"{name!r} in {self._folder} could only be read by unpickling it. Only plain values and tensors are "
                "read; save the state again with this version of the library."
            ) from error


def read(folder: Path, template: Template | None = None) -> dict[str, Any]:
    """The nested state in a folder. Every rank reads for itself, and only the parts that it needs.

    ``template(path, entry)`` gives the tensor to read into: a DTensor takes this rank's part of it. Without one, every
    tensor is read whole into host memory.

    Raises:
        CheckpointDamagedError, PickleRefusedError: as :func:`read_metadata`.
    """
    metadata = read_metadata(folder)
    paths = metadata.planner_data or {}
    table: dict[str, Any] = {}
    for flat, entry in metadata.state_dict_metadata.items():
        path = tuple(paths.get(flat, (flat,)))
        if isinstance(entry, BytesStorageMetadata):
            table[flat] = None
            continue
        target = template(path, entry) if template is not None else _whole(entry)
        if target is not None:
            table[flat] = target
    _load(folder, metadata, table)
    nested: dict[str, Any] = {}
    for flat, value in table.items():
        _put(nested, tuple(paths.get(flat, (flat,))), value)
    return {key: _with_lists(item) for key, item in nested.items()}


def _whole(entry: TensorStorageMetadata) -> torch.Tensor:
    return torch.empty(entry.size, dtype=entry.properties.dtype)


def _load(folder: Path, metadata: Metadata, table: dict[str, Any]) -> None:
    planner, reader = _Planner(folder), _Reader(folder, metadata)
    planner.set_up_planner(table, metadata, True)
    reader.set_up_storage_reader(metadata, True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner).wait()


def _put(nested: dict[Any, Any], path: tuple[str | int, ...], value: Any) -> None:
    for key in path[:-1]:
        nested = nested.setdefault(key, {})
    nested[path[-1]] = value


def _with_lists(value: Any) -> Any:
    """Dictionaries whose keys are 0, 1, 2, … as the lists that they were."""
    if not isinstance(value, dict):
        return value
    made = {key: _with_lists(item) for key, item in value.items()}
    if made and all(isinstance(key, int) for key in made) and sorted(made) == list(range(len(made))):
        return [made[index] for index in range(len(made))]
    return made
