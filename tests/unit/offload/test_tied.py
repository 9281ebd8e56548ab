"""Parameters with several names."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from accelerate.offload.tied import (
    check_tied_parameters_in_config,
    check_tied_parameters_on_same_device,
    device_of_name,
    find_tied_parameters,
    retie_parameters,
)
from unit.offload.models import language, net


def test_groups_are_found() -> None:
    assert find_tied_parameters(language()) == [["embed.weight", "head.weight"]]
    assert find_tied_parameters(net()) == []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    model[1].bias = model[0].bias
    assert find_tied_parameters(model) == [["0.weight", "2.weight"], ["0.bias", "1.bias"]]


def test_equal_values_are_not_tied() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].load_state_dict(model[0].state_dict())
    assert find_tied_parameters(model) == []


def test_retie_takes_the_name_that_holds_data() -> None:
    model = language()
    held = model.head.weight
    model.embed.weight = nn.Parameter(torch.empty(100, 10, device="meta"))
    retie_parameters(model, [["embed.weight", "head.weight"]])
    assert model.embed.weight is model.head.weight is held


def test_retie_without_data_still_ties() -> None:
    model = language().to("meta")
    model.head.weight = nn.Parameter(torch.empty(100, 10, device="meta"))
    retie_parameters(model, [["embed.weight", "head.weight"]])
    assert model.embed.weight is model.head.weight


def test_device_of_a_name_is_the_closest() -> None:
    device_map = {"blocks": 0, "blocks.1": "cpu", "blocks.1.up.weight": 2}
    names = ("blocks.0.up", "blocks.1.down.weight", "blocks.1.up.weight", "blocksmith", "head")
    assert [device_of_name(name, device_map) for name in names] == [0, "cpu", 2, None, None]
    assert device_of_name("anything", {"": 3}) == 3


def test_spread_groups_are_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_tied_parameters_on_same_device([["embed.weight", "head.weight"]], {"embed": 0, "head": 0})
        assert caplog.text == ""
        check_tied_parameters_on_same_device([["embed.weight", "head.weight"]], {"embed": 0, "head": 1})
    assert "'embed.weight': 0, 'head.weight': 1" in caplog.text


def test_configuration_of_transformers() -> None:
    class Model(nn.Module):
        def __init__(self, **config: object) -> None:
            super().__init__()
            self.head = nn.Linear(1, 1)
            self.config = SimpleNamespace(**config)

        def get_output_embeddings(self) -> nn.Module:
            return self.head

    assert check_tied_parameters_in_config(Model(tie_word_embeddings=True))
    assert not check_tied_parameters_in_config(Model(tie_word_embeddings=False))
    assert check_tied_parameters_in_config(Model(is_encoder_decoder=True, tie_encoder_decoder=True))
    assert not check_tied_parameters_in_config(net())
