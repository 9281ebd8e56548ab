"""Everything that is not a plain table of tensors: written so that ``torch.load(weights_only=True)`` reads it."""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch

from accelerate.checkpoint.tensors import ByteSink
from accelerate.errors import CheckpointError, PickleRefusedError

__all__ = ["numpy_allowed", "portable", "read_object", "refuse_code", "restored", "write_object"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_NUMBERS = {int, float, bool, str}
_ARRAY = "__accelerate_array__"
_PICKLES = (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# torch keeps whether zip entries get a checksum of their own in a process-wide switch.
_crc_switch = threading.Lock()


def portable(value: Any, where: str) -> Any:
    """``value`` made of nothing but plain values, tensors, lists, tuples and dictionaries; tensors are not copied.

    NumPy arrays become marked tensors (see :func:`restored`), NumPy scalars plain numbers, subclasses of dictionaries,
    lists and tuples plain ones. ``where`` names the place in messages.

    Raises:
        CheckpointError: something in it could only be pickled.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value if kind is torch.Tensor else value.detach()
    if isinstance(value, np.ndarray):
        return _array(value, where)
    if isinstance(value, np.generic):
        return portable(value.item(), where)
    if isinstance(value, Mapping):
        made = ((portable(key, where), portable(item, f"{where}[{key!r}]")) for key, item in value.items())
        return kind(dict(made)) if kind in (OrderedDict, Counter) else dict(made)
    if isinstance(value, (list, tuple)):
        if kind in (list, tuple) and set(map(type, value)) <= _NUMBERS:
            return kind(value)  # the state of a random generator is a thousand of them
        items = [portable(item, f"{where}[{index}]") for index, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    if kind in (set, frozenset):
        return {portable(item, where) for item in value}
    for base in (int, float, str):
        if isinstance(value, base):
            return base(value.value if isinstance(value, Enum) else value)
    raise CheckpointError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, which could only be saved by pickling it, and nothing is "
        "unpickled when a checkpoint is loaded. Let state_dict() return numbers, strings, tensors, arrays, lists and "
        "dictionaries of them."
    )


def _array(value: np.ndarray[Any, Any], where: str) -> dict[str, Any]:
    if value.dtype.hasobject or value.dtype.names is not None:
        raise CheckpointError(f"{where} is an array of {value.dtype}, which could only be saved by pickling it.")
    data = torch.frombuffer(bytearray(value.tobytes()), dtype=torch.uint8) if value.size else torch.empty(0)
    return {_ARRAY: value.dtype.str, "shape": list(value.shape), "data": data}


def restored(value: Any) -> Any:
    """What :func:`portable` was given, marked arrays being arrays again."""
    if isinstance(value, dict):
        if _ARRAY in value:
            data = value["data"].numpy().tobytes() if value["data"].numel() else b""
            return np.frombuffer(data, dtype=value[_ARRAY]).reshape(value["shape"]).copy()
        made = {key: restored(item) for key, item in value.items()}
        return type(value)(made) if type(value) in (OrderedDict, Counter) else made
    if type(value) in (list, tuple) and not set(map(type, value)) <= _NUMBERS:
        return type(value)(restored(item) for item in value)
    return value


def write_object(sink: ByteSink, value: Any, where: str) -> None:
    """Writes ``value`` in torch's zip format, without its checksums: the manifest has better ones.

    Raises:
        CheckpointError: it holds something that could only be pickled; ``where`` says what of.
    """
    plain = portable(value, where)
    options = torch.serialization
    with _crc_switch:
        before = options.get_crc32_options()
        options.set_crc32_options(False)
        try:
            torch.save(plain, sink)  # type: ignore[arg-type]  # it needs `write` and `flush`, no more
        finally:
            options.set_crc32_options(before)


def read_object(path: Path, *, allow_pickle: bool = False, mapped: bool = True) -> Any:
    """What a file holds, tensors on the CPU. ``mapped`` tensors are views of the file, read when they are used.

    Nothing is unpickled but plain values, tensors and NumPy arrays, unless ``allow_pickle``.

    Raises:
        PickleRefusedError: the file holds something else.
        CheckpointError: the file cannot be read at all.
    """
    try:
        return restored(_load(path, mapped, weights_only=True))
    except UnpicklingError as error:
        first = error
    except (RuntimeError, EOFError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    try:
        with numpy_allowed():
            return restored(_load(path, mapped, weights_only=True))
    except UnpicklingError:
        pass
    if _head(path) not in _PICKLES:
        raise CheckpointError(
            f"{path} is neither a zip of torch's nor a pickle: it holds something else or is damaged."
        )
    if not allow_pickle:
        raise PickleRefusedError(
            f"{path} holds objects ({_named_globals(path)}) that can only be had by unpickling, which runs whatever "
            "code the file says. If you trust where it comes from, pass allow_pickle=True."
        ) from first
    return _load(path, mapped, weights_only=False)


def _load(path: Path, mapped: bool, *, weights_only: bool) -> Any:
    with warnings.catch_warnings():
        # Whether the protocol can be read shows when it is read.
        warnings.filterwarnings("ignore", message="Detected pickle protocol")
        return _load_loud(path, mapped, weights_only)


def _load_loud(path: Path, mapped: bool, weights_only: bool) -> Any:
    if mapped:
        try:
            return torch.load(path, map_location="cpu", weights_only=weights_only, mmap=True)
        except RuntimeError as error:
            if "mmap" not in str(error):  # a file of the time before torch wrote zips cannot be mapped
                raise
    return torch.load(path, map_location="cpu", weights_only=weights_only)


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(2)


def numpy_allowed() -> AbstractContextManager[Any]:
    """A context in which ``torch.load(weights_only=True)`` also reads NumPy arrays and numbers."""
    return torch.serialization.safe_globals(_numpy_globals())


def _numpy_globals() -> list[Any]:
    reconstruct, scalar = np.ndarray.__reduce__(np.empty(0))[0], np.generic.__reduce__(np.float64(0))[0]
    dtypes = {type(np.dtype(code)) for code in "?bhilqBHILQefdFDSU"}
    old = [(reconstruct, "numpy.core.multiarray._reconstruct"), (scalar, "numpy.core.multiarray.scalar")]
    return [reconstruct, scalar, np.ndarray, np.dtype, *dtypes, *old]


def refuse_code(path: Path, known: Collection[str]) -> None:
    """Returns if all that unpickling ``path`` can call is what builds tensors, plain values and ``known`` classes.

    Raises:
        PickleRefusedError: the file asks for something else.
    """
    if _head(path) not in _PICKLES:
        return
    try:
        strange = sorted(set(torch.serialization.get_unsafe_globals_in_checkpoint(path)) - set(known))
    except (RuntimeError, UnpicklingError, ValueError, EOFError):
        strange = ["of unknown classes"]
    if strange:
        raise PickleRefusedError(
            f"{path} holds objects ({', '.join(strange)}) that its engine does not write, and unpickling them runs "
            "whatever code the file says. If you trust where it comes from, pass allow_pickle=True."
        )


def _named_globals(path: Path) -> str:
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    except (RuntimeError, UnpicklingError, ValueError):
        return "of unknown classes"
    return ", ".join(sorted(names)) or "of unknown classes"
