"""Tensors as safetensors, everything else in a form that nothing has to be unpickled from."""

from __future__ import annotations

import datetime
import enum
import io
import pickle
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from safetensors.torch import load_file, load_model

from accelerate.checkpoint.objects import portable, read_object, restored, write_object
from accelerate.checkpoint.streams import HashingWriter, digest_of
from accelerate.checkpoint.tensors import bytes_of, read_header, read_tensors, write_tensors
from accelerate.errors import CheckpointError, PickleRefusedError


def put(path: Path, value: Any) -> Path:
    with HashingWriter(path, durable=False) as file:
        write_object(file, value, "state")
    return path


def test_the_hash_while_writing_is_that_of_the_file(tmp_path: Path) -> None:
    with HashingWriter(tmp_path / "f") as file:
        for size in (0, 1, 1 << 20, (1 << 21) + 7):
            assert file.write(b"x" * size) == size
        told = (file.size, file.digest())
    assert digest_of(tmp_path / "f") == told
    (tmp_path / "empty").touch()
    assert digest_of(tmp_path / "empty")[0] == 0


def test_large_files_are_hashed_by_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.checkpoint.streams.CHUNK", 1 << 16)
    whole = bytes(range(256)) * 700
    for cuts in ([len(whole)], [1, 65535, 65536, 3], [65536, 65536]):
        with HashingWriter(tmp_path / "f", durable=False) as file:
            start = 0
            for cut in [*cuts, len(whole)]:
                file.write(whole[start : start + cut])
                start += cut
            told = (file.size, file.digest())
        parts = [xxhash.xxh3_128_digest(whole[i : i + (1 << 16)]) for i in range(0, len(whole), 1 << 16)]
        assert told == (len(whole), xxhash.xxh3_128_hexdigest(b"".join(parts))) == digest_of(tmp_path / "f")
    # A file of one part has the digest that the xxhsum program shows.
    (tmp_path / "g").write_bytes(whole[: 1 << 16])
    assert digest_of(tmp_path / "g")[1] == xxhash.xxh3_128_hexdigest(whole[: 1 << 16])


def test_a_writer_that_is_left_by_an_error_tells_nobody(tmp_path: Path) -> None:
    told: list[HashingWriter] = []
    with pytest.raises(KeyError), HashingWriter(tmp_path / "f", closed=told.append):
        raise KeyError
    assert not told


TENSORS = {
    "f32": torch.randn(3, 4),
    "f64": torch.randn(2, dtype=torch.float64),
    "f16": torch.randn(5).half(),
    "bf16": torch.randn(5).bfloat16(),
    "i64": torch.arange(3),
    "i8": torch.arange(3, dtype=torch.int8),
    "u16": torch.tensor([1, 2, 65535], dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "c64": torch.randn(2, dtype=torch.complex64),
    "f8": torch.randn(4).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(2.5),
    "empty": torch.empty(0, 3),
    "turned": torch.randn(3, 4).t(),
    "part": torch.randn(4, 4)[1:3, ::2],
    "conj": torch.randn(2, dtype=torch.complex64).conj(),
    "parameter": torch.nn.Parameter(torch.randn(2)),
}


def test_other_readers_read_what_is_written(tmp_path: Path) -> None:
    with HashingWriter(tmp_path / "m.safetensors") as file:
        write_tensors(file, TENSORS, {"note": "x"})
    for found in (load_file(tmp_path / "m.safetensors"), dict(read_tensors(tmp_path / "m.safetensors"))):
        assert found.keys() == TENSORS.keys()
        for name, tensor in TENSORS.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].shape == tensor.shape
            assert bytes_of(found[name]) == bytes_of(tensor), name
    shapes, metadata = read_header(tmp_path / "m.safetensors")
    assert metadata == {"format": "pt", "note": "x"}
    assert shapes["turned"] == (4, 3)


def test_nothing_is_copied_to_write_a_contiguous_tensor() -> None:
    tensor = torch.zeros(8)
    view = bytes_of(tensor)
    tensor[0] = 1.0
    assert bytes(view[:4]) == torch.tensor(1.0).numpy().tobytes()


def test_tied_names_load_by_safetensors_own_loader(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Linear(2, 2, bias=False)
            self.b = torch.nn.Linear(2, 2, bias=False)
            self.b.weight = self.a.weight

    model, other = Tied(), Tied()
    with HashingWriter(tmp_path / "m.safetensors") as file:
        write_tensors(file, {"a.weight": model.a.weight}, {"b.weight": "a.weight"})
    load_model(other, tmp_path / "m.safetensors")
    assert torch.equal(other.b.weight, model.a.weight)


@pytest.mark.parametrize(
    "tensor", [torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(2, dtype=torch.complex128)]
)
def test_what_the_format_cannot_hold_is_named(tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match="'odd'"):
        write_tensors(io.BytesIO(), {"odd": tensor}, {})


@pytest.mark.parametrize("data", [b"", b"\x05\0\0\0\0\0\0\0hello", b"\xff" * 20])
def test_a_file_that_is_none_is_an_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.safetensors").write_bytes(data)
    for read in (read_header, lambda path: list(read_tensors(path))):
        with pytest.raises(CheckpointError, match=r"m\.safetensors"):
            read(tmp_path / "m.safetensors")


class Colour(str, enum.Enum):
    RED = "red"


VALUE = {
    "plain": [1, 2.5, None, True, "x", b"y", 1 + 2j, (1, (2,)), {3, 4}],
    "torch": [torch.ones(2), torch.float16, torch.device("cpu"), torch.Size([1, 2])],
    "array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "strings": np.array(["a", "bc"]),
    "nothing": np.empty((0, 2)),
    "scalar": np.float64(1.5),
    "flag": np.bool_(True),
    "ordered": OrderedDict(b=1, a=2),
    "counts": Counter("aab"),
    "default": defaultdict(int, {1: 2}),
    "colour": Colour.RED,
    7: "a key that is a number",
}


def test_values_come_back(tmp_path: Path) -> None:
    found = read_object(put(tmp_path / "o.bin", VALUE))
    assert found["plain"] == VALUE["plain"]
    assert torch.equal(found["torch"][0], torch.ones(2))
    assert found["torch"][1:] == VALUE["torch"][1:]  # type: ignore[index]
    for name in ("array", "strings", "nothing"):
        assert isinstance(found[name], np.ndarray)
        assert found[name].dtype == VALUE[name].dtype  # type: ignore[union-attr]
        assert np.array_equal(found[name], VALUE[name])  # type: ignore[arg-type]
    assert found["scalar"] == 1.5
    assert type(found["scalar"]) is float
    assert found["flag"] is True
    assert type(found["ordered"]) is OrderedDict
    assert list(found["ordered"]) == ["b", "a"]
    assert found["counts"] == Counter("aab")
    assert found["default"] == {1: 2}
    assert found["colour"] == "red"
    assert found[7] == "a key that is a number"


def test_torch_reads_the_file_with_weights_only(tmp_path: Path) -> None:
    found = torch.load(put(tmp_path / "o.bin", VALUE), weights_only=True)
    assert found["plain"] == VALUE["plain"]


def test_the_switch_for_zip_checksums_is_put_back(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    put(tmp_path / "o.bin", [torch.ones(3)])
    assert torch.serialization.get_crc32_options() == before


@pytest.mark.parametrize("odd", [datetime.date(2020, 1, 1), Path("x"), object(), np.array([object()]), len])
def test_what_could_only_be_pickled_is_named_when_it_is_saved(odd: Any) -> None:
    with pytest.raises(CheckpointError, match=r"state\['deep'\]\[1\]"):
        portable({"deep": [1, odd]}, "state")


def test_tensors_are_not_copied_on_the_way() -> None:
    tensor = torch.ones(3)
    assert portable({"a": [tensor]}, "x")["a"][0] is tensor
    assert restored({"a": [tensor]})["a"][0] is tensor


def test_nothing_is_unpickled_unasked(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "sprung",))

    for name, write in (("zip", torch.save), ("pickle", lambda value, path: path.write_bytes(pickle.dumps(value)))):
        path = tmp_path / name
        write({"x": Trap()}, path)
        with pytest.raises(PickleRefusedError, match="allow_pickle"):
            read_object(path)
        assert not (tmp_path / "sprung").exists()
    read_object(tmp_path / "zip", allow_pickle=True)
    assert (tmp_path / "sprung").exists()


def test_the_classes_that_would_be_needed_are_named(tmp_path: Path) -> None:
    torch.save({"x": datetime.date(2020, 1, 1)}, tmp_path / "o.bin")
    with pytest.raises(PickleRefusedError, match=r"datetime\.date"):
        read_object(tmp_path / "o.bin")
    assert read_object(tmp_path / "o.bin", allow_pickle=True)["x"].year == 2020


def test_arrays_as_numpy_pickles_them_are_read(tmp_path: Path) -> None:
    torch.save({"state": ("MT19937", np.arange(5, dtype=np.uint32), 1, 0, 0.0)}, tmp_path / "o.bin")
    assert read_object(tmp_path / "o.bin")["state"][1].tolist() == [0, 1, 2, 3, 4]


def test_files_of_torch_before_it_wrote_zips_are_read(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(2)}, tmp_path / "o.bin", _use_new_zipfile_serialization=False)
    assert torch.equal(read_object(tmp_path / "o.bin")["x"], torch.ones(2))


@pytest.mark.parametrize("data", [b"", b"no such thing", b"PK\x03\x04broken"])
def test_a_damaged_object_is_an_error_that_names_it(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "o.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"o\.bin"):
        read_object(tmp_path / "o.bin")
