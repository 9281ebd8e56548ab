"""From a name to a model on the meta device: a name on the Hub, a folder, a ``config.json``, or Python code."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.cli.estimate_sizes import Shape
from accelerate.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

__all__ = ["create_empty_model", "shape_of_model"]


def create_empty_model(
    model_name: str,
    library_name: str | None = None,
    trust_remote_code: bool = False,
    access_token: str | None = None,
) -> nn.Module:
    """The model of a name, a folder, a ``config.json``, ``package.module:Class`` or ``file.py:function``, without
    weights.

    Raises:
        ConfigError: there is no such model, or it is not described where it was looked for.
        MissingPackageError: the library it belongs to is not installed.
    """
    from accelerate.optional import require

    target = _python_path(model_name)
    if target is not None:
        return _built(model_name, target)
    library = library_name or _library(model_name, access_token)
    if library not in ("transformers", "timm"):
        raise ConfigError(
            f"{model_name!r} belongs to {library!r}, whose models cannot be built without weights here. Name the "
            "model's code instead: `package.module:Class` or `file.py:function`."
        )
    require(library, f"the model {model_name!r}")
    if library == "timm":
        return _timm(model_name)
    return _transformers(model_name, trust_remote_code, access_token)


def _python_path(name: str) -> tuple[str, str] | None:
    head, colon, tail = name.rpartition(":")
    # `C:\models` is a folder.
    return (head, tail) if colon and tail.isidentifier() and len(head) > 1 else None


def _built(name: str, target: tuple[str, str]) -> nn.Module:
    import torch

    made = _found(name, target)
    try:
        with torch.device("meta"):
            model = made() if callable(made) and not isinstance(made, torch.nn.Module) else made
    except Exception as error:
        raise ConfigError(
            f"{name!r} was called without arguments to get the model, and raised {type(error).__name__}: {error}. Name "
            "a function without arguments that returns the model."
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ConfigError(f"{name!r} gave a {type(model).__name__}, not a torch module. Have it return the model.")
    return model


def _found(name: str, target: tuple[str, str]) -> Callable[[], Any]:
    head, tail = target
    try:
        if head.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(head).stem, head)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules.setdefault(spec.name, module)
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, str(Path.cwd()))
            try:
                module = importlib.import_module(head)
            finally:
                sys.path.pop(0)
        found: Callable[[], Any] = getattr(module, tail)
    except (ImportError, OSError, AttributeError) as error:
        raise ConfigError(
            f"{name!r} could not be imported: {error}. Write `package.module:Class` or `path/to/file.py:function`."
        ) from error
    return found


def _library(name: str, token: str | None) -> str:
    """Which library a model belongs to: what a folder holds is transformers', and the Hub says it of its own."""
    path = Path(name)
    if path.exists():
        return "transformers"
    if name.startswith((".", "/", "~")) or path.suffix == ".json":
        raise ConfigError(f"{name!r} was asked for, and there is no such file or folder. Check the path.")
    from huggingface_hub import constants, errors, model_info

    if constants.HF_HUB_OFFLINE or _kept(name):
        return "timm" if name.startswith("timm/") else "transformers"
    try:
        told = model_info(name, token=token, timeout=20).library_name
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"{name!r} is gated on the Hub: accept its terms there and log in (`hf auth login`)."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ConfigError(
            f"{name!r} is no model on the Hub that this login may see, and no folder here. Check the name."
        ) from error
    except Exception as error:  # every client library has errors of its own for a network that is not there
        raise ConfigError(_unreachable(name, error)) from error
    if told is None:
        raise ConfigError(f"The Hub does not say which library {name!r} belongs to. Say it with --library_name.")
    return str(told)


def _kept(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(name, "config.json"), str)


def _unreachable(name: str, error: Exception) -> str:
    said = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return (
        f"{name!r} is no folder here, and the Hub could not be reached ({type(error).__name__}: {said}). Without a "
        "network, give a local folder, a config.json, or `package.module:Class`."
    )


def _timm(name: str) -> nn.Module:
    import torch

    timm: Any = importlib.import_module("timm")
    short = name.removeprefix("timm/")
    try:
        with torch.device("meta"):
            model: nn.Module = timm.create_model(short, pretrained=False)
    except RuntimeError as error:
        raise ConfigError(f"timm has no model {short!r}: {error}.") from error
    return model


def _transformers(name: str, trust_remote_code: bool, token: str | None) -> nn.Module:
    import torch
    import transformers

    words: dict[str, Any] = {"trust_remote_code": trust_remote_code, **({"token": token} if token else {})}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **words)
    except OSError as error:
        raise ConfigError(_unreachable(name, error) if not Path(name).exists() else _no_config(name, error)) from error
    except (ValueError, KeyError) as error:
        raise ConfigError(_no_config(name, error)) from error
    build = _builder(transformers, config)
    with torch.device("meta"):
        model: nn.Module = build()
    getattr(model, "tie_weights", lambda: None)()
    return model


def _no_config(name: str, error: Exception) -> str:
    said = str(error).strip().splitlines()[0][:300]
    return (
        f"{name!r} holds no configuration that transformers can read ({said}). It takes a config.json with model_type."
    )


def _builder(transformers: Any, config: Any) -> Callable[[], Any]:
    """What builds the class that the configuration was written by, or else the body of the model."""
    for named in getattr(config, "architectures", None) or ():
        found = getattr(transformers, named, None)
        if found is not None:
            return lambda: found(config)
    remote = getattr(config, "auto_map", None) or {}
    wanted = next((word for word in remote if word.startswith("AutoModel")), "AutoModel")
    trusted = {"trust_remote_code": True} if remote else {}
    return lambda: getattr(transformers, wanted).from_config(config, **trusted)


def shape_of_model(model: nn.Module) -> Shape:
    """The counts of a model that its memory depends on; parameters that share a tensor count once."""
    from accelerate.offload.sizes import compute_module_sizes, get_max_layer_size

    every = list(model.named_parameters(remove_duplicate=False))
    alone = dict(model.named_parameters())
    sizes = {name: parameter.numel() for name, parameter in alone.items()}
    # All in units of one byte: int8 elements.
    counts = _counted(compute_module_sizes(model, "int8"), model)
    whole = getattr(model, "_no_split_modules", None)
    largest, names = get_max_layer_size(list(model.named_children()), counts, list(whole or ()))
    config = getattr(model, "config", None)
    config = getattr(config, "text_config", None) or config
    return Shape(
        parameters=sum(sizes.values()),
        trainable=sum(parameter.numel() for parameter in alone.values() if parameter.requires_grad),
        buffers=sum(buffer.numel() for buffer in model.buffers()),
        largest=largest or max(sizes.values(), default=0),
        largest_name=names[0] if names else max(sizes, key=lambda name: sizes[name], default=""),
        tied=tuple(name for name, _ in every if name not in alone),
        blocks=tuple(sorted(whole or ())),
        hidden=_number(config, "hidden_size", "n_embd", "d_model", "dim"),
        layers=_number(config, "num_hidden_layers", "n_layer", "num_layers", "n_layers"),
        heads=_number(config, "num_attention_heads", "n_head", "num_heads", "n_heads"),
    )


def _counted(sizes: dict[str, int], model: nn.Module) -> dict[str, int]:
    """Sizes in elements: integer buffers were counted in bytes."""
    for name, buffer in model.named_buffers():
        spare = buffer.numel() * (buffer.element_size() - 1) if not buffer.is_floating_point() else 0
        while spare:
            sizes[name] -= spare
            if not name:
                break
            name = name.rpartition(".")[0]
    return sizes


def _number(config: Any, *names: str) -> int:
    for name in names:
        found = getattr(config, name, None)
        if isinstance(found, int):
            return found
    return 0
