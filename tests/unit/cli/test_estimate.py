"""``accelerate estimate-memory``: counts of real models, the arithmetic by hand, and where a model is looked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accelerate.cli.estimate import estimate_command_parser, gather_data, main
from accelerate.cli.estimate_model import create_empty_model, shape_of_model
from accelerate.cli.estimate_sizes import STRATEGIES, Shape, Workload, activations, inference, readable, training
from accelerate.errors import ConfigError

MODEL = """
from torch import nn

def tied():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10, bias=False), nn.BatchNorm1d(10))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    return model

def broken():
    raise RuntimeError("no such luck")

def number():
    return 3
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MODEL)
    return str(tmp_path / "mine.py")


def test_tied_parameters_count_once(code: str) -> None:
    model = create_empty_model(f"{code}:tied")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    shape = shape_of_model(model)
    assert (shape.parameters, shape.trainable, shape.buffers) == (60, 50, 21)
    assert (shape.tied, shape.largest, shape.largest_name) == (("1.weight",), 41, "2")


def test_a_configuration_of_transformers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 100, "n_positions": 16}
    (tmp_path / "config.json").write_text(json.dumps({**config, "n_embd": 8, "n_layer": 2, "n_head": 2}))
    # embeddings, per layer: two norms, attention in and out, feed forward up and down; the last norm; a tied head
    wanted = 100 * 8 + 16 * 8 + 2 * (4 * 8 + 8 * 24 + 24 + 8 * 8 + 8 + 8 * 32 + 32 + 32 * 8 + 8) + 16
    for name in (tmp_path, tmp_path / "config.json"):
        assert main([str(name), "--json", "--devices", "4"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["parameters"] == wanted
        assert found["tied"] == ["lm_head.weight"]
        assert found["inference"]["int4"]["total"] == (wanted + found["buffers"]) // 2
        rows = {row["strategy"]: row for row in found["training"]["float32"]}
        assert list(rows) == list(STRATEGIES)
        assert rows["ZeRO-1"]["optimizer"] == -(-8 * wanted // 4)
        assert rows["DDP"]["gradients"] == 4 * wanted
    assert main([str(tmp_path)]) == 0
    assert f"{wanted:,} parameters" in capsys.readouterr().out


def test_states_by_strategy() -> None:
    shape = Shape(parameters=1000, trainable=800, buffers=10, largest=100)
    rows = {row.strategy: row for row in training(shape, Workload(devices=8), "float16")}
    parts = {name: (row.parameters, row.gradients, row.optimizer) for name, row in rows.items()}
    assert parts == {
        "DDP": (2020, 1600, 3200),
        "ZeRO-1": (2020, 1600, 400),
        "ZeRO-2": (2020, 200, 400),
        "ZeRO-3": (270, 200, 400),
        "FSDP": (270, 200, 400),
        "TP": (270, 200, 400),
    }
    assert rows["DDP"].bucket == 1600 and rows["FSDP"].bucket == 0
    assert rows["FSDP"].gathered == 400
    assert rows["FSDP"].total == 270 + 200 + 400 + 400
    assert inference(shape, "int4") == 505


def test_activations_are_the_formula() -> None:
    shape = Shape(parameters=1, trainable=1, hidden=64, layers=3, heads=4)
    work = Workload(batch=2, seq=16)
    sbh = 16 * 2 * 64
    assert activations(shape, work, "float16") == 3 * sbh * 34
    assert activations(shape, work, "float32") == 2 * 3 * sbh * 34
    assert activations(shape, work, "float16", tensor_parallel=4) == 3 * sbh * 16
    scores = Workload(batch=2, seq=16, fused_attention=False)
    assert activations(shape, scores, "float16") == 3 * sbh * (34 + 5 * 4 * 16 // 64)
    again = Workload(batch=2, seq=16, recompute=True)
    assert activations(shape, again, "float16") == 3 * 2 * sbh + sbh * 34
    assert activations(Shape(parameters=1, trainable=1), work, "float16") is None


def test_the_rows_of_gather_data(code: str) -> None:
    args = estimate_command_parser().parse_args([f"{code}:tied", "--dtypes", "float32", "int8"])
    assert gather_data(args) == [
        ["float32", 164, 324, {"float32": 4 * 81 + 4 * 50 + 8 * 50}],
        ["int8", 41, 81, {"int8": None}],
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nowhere", "no such file or folder"),
        ("{code}:broken", "RuntimeError: no such luck"),
        ("{code}:number", "gave a int, not a torch module"),
        ("{code}:absent", "could not be imported"),
        ("no_such_package:Model", "could not be imported"),
    ],
)
def test_what_is_no_model(code: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        create_empty_model(name.format(code=code))


def test_a_folder_without_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration that transformers can read"):
        create_empty_model(str(tmp_path))


def test_a_hub_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(*args: object, **words: object) -> None:
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "model_info", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ConfigError, match=r"Hub could not be reached \(OSError: Name or service.*local folder"):
        create_empty_model("somebody/some-model")


def test_sizes_for_people() -> None:
    assert [readable(size) for size in (None, 7, 1536, 3 * 2**20, 5 * 2**30)] == [
        "?",
        "7 B",
        "1.50 KiB",
        "3.00 MiB",
        "5.00 GiB",
    ]
