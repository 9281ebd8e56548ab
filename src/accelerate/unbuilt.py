"""Promised names whose capability is not there yet: they can be imported, and say so when they are used."""

from __future__ import annotations

from typing import Any, NoReturn

from accelerate.errors import NotBuiltError

__all__ = ["PENDING", "capability_of", "unbuilt"]

_MARK = "__unbuilt__"


def unbuilt(name: str, capability: str, *, kind: str = "function") -> Any:
    """A stand-in called ``name`` that raises NotBuiltError when it is called or, as a class, instantiated.

    A stand-in class can be subclassed, because libraries do so when they are imported, and ``isinstance`` against it
    is False for everything.
    """

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"`{name}` was used, but {capability} is not built yet in this version.")

    made: Any = refuse
    if kind == "class":
        made = type(name, (), {"__init__": refuse})
    made.__name__ = made.__qualname__ = name
    made.__module__ = "accelerate.unbuilt"
    made.__doc__ = f"Not built yet: {capability}."
    setattr(made, _MARK, capability)
    return made


def capability_of(value: Any) -> str | None:
    """What is missing behind a stand-in, or None for anything that is built."""
    found = getattr(value, "__dict__", {}).get(_MARK)
    return found if isinstance(found, str) else None


_FUNCTION, _CLASS = "function", "class"
_MEGATRON, _TE, _BNB, _PIPELINE = (
    "Megatron-LM training",
    "fp8 by Transformer Engine",
    "quantised loading",
    "pipelines",
)

PENDING: dict[str, tuple[str, str]] = {
    "AbstractTrainStep": (_CLASS, _MEGATRON),
    "BertTrainStep": (_CLASS, _MEGATRON),
    "GPTTrainStep": (_CLASS, _MEGATRON),
    "MegatronEngine": (_CLASS, _MEGATRON),
    "MegatronLMDummyDataLoader": (_CLASS, _MEGATRON),
    "MegatronLMDummyScheduler": (_CLASS, _MEGATRON),
    "MegatronLMOptimizerWrapper": (_CLASS, _MEGATRON),
    "MegatronLMSchedulerWrapper": (_CLASS, _MEGATRON),
    "T5TrainStep": (_CLASS, _MEGATRON),
    "apply_fp8_autowrap": (_FUNCTION, _TE),
    "avg_losses_across_data_parallel_group": (_FUNCTION, _MEGATRON),
    "build_pipeline": (_FUNCTION, _PIPELINE),
    "contextual_fp8_autocast": (_FUNCTION, _TE),
    "convert_model": (_FUNCTION, _TE),
    "find_pippy_batch_size": (_FUNCTION, _PIPELINE),
    "gather_across_data_parallel_groups": (_FUNCTION, _MEGATRON),
    "generate_device_map": (_FUNCTION, _PIPELINE),
    "install_xla": (_FUNCTION, "the installer of torch_xla"),
    "load_and_quantize_model": (_FUNCTION, _BNB),
    "pippy_forward": (_FUNCTION, _PIPELINE),
    "prepare_pippy": (_FUNCTION, _PIPELINE),
}


def __getattr__(name: str) -> Any:
    if name not in PENDING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    kind, capability = PENDING[name]
    globals()[name] = value = unbuilt(name, capability, kind=kind)
    return value
