"""Parameters that are one and the same under several names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from accelerate.offload import speaker

__all__ = [
    "check_tied_parameters_in_config",
    "check_tied_parameters_on_same_device",
    "device_of_name",
    "find_tied_parameters",
    "retie_parameters",
]


def find_tied_parameters(model: nn.Module, **kwargs: Any) -> list[list[str]]:
    """The groups of names under which the model holds the same parameter object, each sorted, in order of definition.

    Keywords are accepted for the sake of older callers and change nothing.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [sorted(group) for group in names.values() if len(group) > 1]


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path), last


def retie_parameters(model: nn.Module, tied_params: Iterable[Sequence[str]]) -> None:
    """Makes every group of names one parameter again: the first of them that holds data.

    Loading and moving replace parameters name by name; this is called afterwards. A group that is all on the meta
    device is tied to its first name.
    """
    for group in tied_params:
        places = [_owner(model, name) for name in group]
        held = [module._parameters.get(last) for module, last in places]
        there = [parameter for parameter in held if parameter is not None]
        if not there:
            continue
        chosen = next((parameter for parameter in there if parameter.device.type != "meta"), there[0])
        for module, last in places:
            module._parameters[last] = chosen


def device_of_name(name: str, device_map: Mapping[str, Any]) -> Any:
    """The entry of a device map for a tensor or module: its own, else its closest parent's, else None."""
    while True:
        if name in device_map:
            return device_map[name]
        if not name:
            return None
        name = name.rpartition(".")[0]


def check_tied_parameters_on_same_device(tied_params: Iterable[Sequence[str]], device_map: Mapping[str, Any]) -> None:
    """Warns about every group of tied parameters that a device map spreads over several devices."""
    for group in tied_params:
        places = {name: device_of_name(name, device_map) for name in group}
        if len(set(map(str, places.values()))) > 1:
            speaker.warning(
                f"Tied parameters are on different devices: {places}. They stay equal but are stored once a device."
            )


def check_tied_parameters_in_config(model: nn.Module) -> bool:
    """Whether a transformers configuration on the model asks for tied weights. False for other models."""
    config = getattr(model, "config", None)
    outputs_of: Any = getattr(model, "get_output_embeddings", None)
    if config is None or not callable(outputs_of):
        return False
    text = config.get_text_config() if callable(getattr(config, "get_text_config", None)) else config
    outputs = outputs_of()
    words = bool(getattr(text, "tie_word_embeddings", False)) and isinstance(outputs, nn.Module)
    both = bool(getattr(config, "is_encoder_decoder", False)) and bool(getattr(config, "tie_encoder_decoder", False))
    return words or both
