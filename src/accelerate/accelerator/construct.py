"""Reads the arguments of ``Accelerator(...)`` and what the launch left in the environment into one record."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from accelerate import env
from accelerate.config.conflict import reconcile
from accelerate.config.data import DataLoaderConfiguration
from accelerate.config.enums import PrecisionType, RNGType
from accelerate.config.handlers import (
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ProfileKwargs,
    accumulation_steps,
)
from accelerate.config.project import ProjectConfiguration
from accelerate.errors import ConfigError, MisplacedArgumentError

if TYPE_CHECKING:
    from accelerate.config.compile import TorchDynamoPlugin
    from accelerate.config.precision import AORecipeKwargs, FP8RecipeKwargs, MSAMPRecipeKwargs, TERecipeKwargs

__all__ = [
    "Engines",
    "Handlers",
    "accumulation",
    "dynamo",
    "engines",
    "expect",
    "group_settings",
    "loader_settings",
    "precision",
    "project",
    "refuse_unknown",
    "rng_types",
    "sort_handlers",
    "strategy_name",
]

_MOVED = {
    "dispatch_batches": "DataLoaderConfiguration(dispatch_batches=…), passed as dataloader_config=",
    "even_batches": "DataLoaderConfiguration(even_batches=…), passed as dataloader_config=",
    "use_seedable_sampler": "DataLoaderConfiguration(use_seedable_sampler=…), passed as dataloader_config=",
    "use_stateful_dataloader": "DataLoaderConfiguration(use_stateful_dataloader=…), passed as dataloader_config=",
    "non_blocking": "DataLoaderConfiguration(non_blocking=…), passed as dataloader_config=",
    "data_seed": "DataLoaderConfiguration(data_seed=…), passed as dataloader_config=",
    "logging_dir": "ProjectConfiguration(logging_dir=…), passed as project_config=",
    "total_limit": "ProjectConfiguration(total_limit=…), passed as project_config=",
    "automatic_checkpoint_naming": "ProjectConfiguration(automatic_checkpoint_naming=…), passed as project_config=",
    "fp16": "mixed_precision='fp16'",
    "bf16": "mixed_precision='bf16'",
    "find_unused_parameters": "DistributedDataParallelKwargs(find_unused_parameters=…), in kwargs_handlers=[…]",
    "timeout": "InitProcessGroupKwargs(timeout=…), in kwargs_handlers=[…]",
    "backend": "InitProcessGroupKwargs(backend=…), in kwargs_handlers=[…]",
    "num_steps": "gradient_accumulation_steps=",
    "sync_with_dataloader": "GradientAccumulationPlugin(sync_with_dataloader=…), as gradient_accumulation_plugin=",
    "adjust_scheduler": "GradientAccumulationPlugin(adjust_scheduler=…), as gradient_accumulation_plugin=",
}


def refuse_unknown(unknown: dict[str, Any], known: Iterable[str]) -> None:
    """Raises MisplacedArgumentError for the first keyword that ``Accelerator`` does not take, naming its place."""
    for name, value in unknown.items():
        if name in _MOVED:
            place = f"It belongs to {_MOVED[name]}."
        else:
            close = difflib.get_close_matches(name, [*known, *_MOVED], n=1)
            place = f"Did you mean {close[0]!r}?" if close else "See help(Accelerator) for what it takes."
        raise MisplacedArgumentError(f"Accelerator() got {name}={value!r}, which it does not take. {place}")


def expect(name: str, value: Any, kind: type) -> None:
    """Raises ConfigError where ``value`` is neither None nor a ``kind``: its settings would all be passed over."""
    if value is not None and not isinstance(value, kind):
        raise ConfigError(
            f"{name}={value!r} is a {type(value).__name__}, whose settings cannot be read. It takes an object: "
            f"{name}={kind.__name__}(…)."
        )


@dataclass(slots=True)
class Handlers:
    """The handlers given, one of a kind at the most."""

    ddp: DistributedDataParallelKwargs | None = None
    scaler: GradScalerKwargs | None = None
    init: InitProcessGroupKwargs | None = None
    autocast: AutocastKwargs | None = None
    profile: ProfileKwargs | None = None
    ao: AORecipeKwargs | None = None
    te: TERecipeKwargs | None = None
    msamp: MSAMPRecipeKwargs | None = None
    fp8: FP8RecipeKwargs | None = None
    others: list[Any] = field(default_factory=list)


def _kinds() -> tuple[tuple[type, str], ...]:
    from accelerate.config.precision import AORecipeKwargs, FP8RecipeKwargs, MSAMPRecipeKwargs, TERecipeKwargs

    return (
        (DistributedDataParallelKwargs, "ddp"),
        (GradScalerKwargs, "scaler"),
        (InitProcessGroupKwargs, "init"),
        (AutocastKwargs, "autocast"),
        (ProfileKwargs, "profile"),
        (AORecipeKwargs, "ao"),
        (FP8RecipeKwargs, "fp8"),
        (TERecipeKwargs, "te"),
        (MSAMPRecipeKwargs, "msamp"),
    )


def sort_handlers(given: Iterable[Any] | None) -> Handlers:
    """The handlers of ``kwargs_handlers`` by kind.

    Raises:
        ConfigError: something is not a handler, or two of one kind were given.
    """
    if given is not None and not isinstance(given, Iterable):
        raise ConfigError(f"kwargs_handlers={given!r} is one object; it takes a list: kwargs_handlers=[…].")
    handlers = Handlers()
    kinds = _kinds() if given else ()
    for handler in given or ():
        name = next((name for kind, name in kinds if isinstance(handler, kind)), None)
        if name is None:
            if not hasattr(handler, "to_kwargs"):
                raise ConfigError(
                    f"kwargs_handlers holds {handler!r}, which is not a handler. It takes instances of "
                    f"{', '.join(kind.__name__ for kind, _ in kinds)}."
                )
            handlers.others.append(handler)
            continue
        if getattr(handlers, name) is not None:
            raise ConfigError(
                f"kwargs_handlers holds two {type(handler).__name__}: {getattr(handlers, name)!r} and {handler!r}. "
                "Pass one."
            )
        setattr(handlers, name, handler)
    return handlers


def dynamo(plugin: TorchDynamoPlugin | None, backend: Any) -> TorchDynamoPlugin:
    """The compile plugin: as given, from ``dynamo_backend``, or from the environment."""
    if plugin is not None and backend is not None:
        raise ConfigError(
            f"dynamo_plugin={plugin!r} and dynamo_backend={backend!r} were both given. Pass the plugin alone."
        )
    if plugin is not None:
        return plugin
    from accelerate.config.compile import TorchDynamoPlugin

    return TorchDynamoPlugin(backend=backend) if backend is not None else TorchDynamoPlugin()


@dataclass(slots=True)
class Engines:
    """The plugins that decide the strategy."""

    deepspeed: Any = None
    fsdp: Any = None
    megatron: Any = None
    parallelism: Any = None


def _deepspeed(plugin: Any, plugins: Any) -> Any:
    if plugin is not None and plugins is not None:
        raise ConfigError("deepspeed_plugin and deepspeed_plugins were both given. Pass deepspeed_plugins alone.")
    plugin = plugins if plugins is not None else plugin
    if plugin is None and not env.parse_flag_from_env("ACCELERATE_USE_DEEPSPEED"):
        return None
    from accelerate.config.deepspeed import DeepSpeedPlugin

    if plugin is None:
        return DeepSpeedPlugin()
    if isinstance(plugin, dict):
        if plugin and all(isinstance(value, DeepSpeedPlugin) for value in plugin.values()):
            first = next(iter(plugin.values()))
            if not any(value.selected for value in plugin.values()):
                first.select(_from_accelerator_state=True)
            return plugin
        return DeepSpeedPlugin.from_settings(plugin)
    return plugin


def engines(
    deepspeed_plugin: Any,
    deepspeed_plugins: Any,
    fsdp_plugin: Any,
    megatron_lm_plugin: Any,
    parallelism_config: Any,
) -> Engines:
    """The engine plugins: as given, else as the launch asked for by the environment.

    Only what is asked for is imported: a plain job starts without any of them.
    """
    found = Engines(deepspeed=_deepspeed(deepspeed_plugin, deepspeed_plugins))
    found.fsdp = fsdp_plugin
    if env.parse_flag_from_env("ACCELERATE_USE_FSDP"):
        from accelerate.config.fsdp import FullyShardedDataParallelPlugin

        if isinstance(fsdp_plugin, FullyShardedDataParallelPlugin):
            from accelerate.config.fsdp_agree import agree_with_launch

            agree_with_launch(fsdp_plugin)
        elif fsdp_plugin is None and found.deepspeed is None:
            found.fsdp = FullyShardedDataParallelPlugin()
    found.megatron = megatron_lm_plugin
    if megatron_lm_plugin is None and env.parse_flag_from_env("ACCELERATE_USE_MEGATRON_LM"):
        from accelerate.config.megatron import MegatronLMPlugin

        found.megatron = MegatronLMPlugin()
    found.parallelism = parallelism_config
    if parallelism_config is None and env.parse_flag_from_env("ACCELERATE_USE_PARALLELISM_CONFIG"):
        from accelerate.config.parallelism import ParallelismConfig

        found.parallelism = ParallelismConfig()
    return found


def loader_settings(config: DataLoaderConfiguration | None, split_batches: Any, unset: object) -> Any:
    """The loader configuration; ``split_batches`` given to the Accelerator itself goes into it."""
    expect("dataloader_config", config, DataLoaderConfiguration)
    if split_batches is unset:
        return config if config is not None else DataLoaderConfiguration()
    if config is None:
        return DataLoaderConfiguration(split_batches=bool(split_batches))
    if bool(config.split_batches) != bool(split_batches):
        raise ConfigError(
            f"split_batches={split_batches!r} was given to Accelerator(), and dataloader_config says "
            f"split_batches={config.split_batches!r}. Say it once, in DataLoaderConfiguration."
        )
    return config


def project(config: ProjectConfiguration | None, folder: Any) -> ProjectConfiguration:
    """Where files go; ``project_dir`` fills a configuration that names none."""
    expect("project_config", config, ProjectConfiguration)
    if config is None:
        return ProjectConfiguration(project_dir=None if folder is None else str(folder))
    if folder is not None and config.project_dir is None:
        config.set_directories(str(folder))
    elif folder is not None and str(folder) != str(config.project_dir):
        raise ConfigError(
            f"project_dir={str(folder)!r} was given, and project_config says {config.project_dir!r}. Say it once."
        )
    return config


def strategy_name(given: Any) -> Any:
    """The strategy given in code, else the one the launch named."""
    return given if given is not None else env.get("ACCELERATE_STRATEGY")


def group_settings(handler: InitProcessGroupKwargs | None) -> dict[str, Any]:
    """What goes to ``PartialState`` for the process group; only what was said."""
    if handler is None:
        return {}
    return dict(handler.to_kwargs())


def accumulation(plugin: GradientAccumulationPlugin | None, steps: int, deepspeed: Any) -> GradientAccumulationPlugin:
    """How micro-batches make steps: the plugin, the argument, or what the launch asked for.

    Raises:
        ConfigError: the plugin and the argument say different things.
    """
    steps = accumulation_steps(steps)
    if plugin is not None:
        expect("gradient_accumulation_plugin", plugin, GradientAccumulationPlugin)
        if steps != 1 and plugin.num_steps not in (None, steps):
            raise ConfigError(
                f"gradient_accumulation_steps={steps} was given, and gradient_accumulation_plugin says "
                f"num_steps={plugin.num_steps}. Say it once, in the plugin."
            )
        if plugin.num_steps is None:
            plugin.num_steps = steps
        return plugin
    launched = env.integer("ACCELERATE_GRADIENT_ACCUMULATION_STEPS")
    own = getattr(deepspeed, "gradient_accumulation_steps", None)
    launched = own if launched is None and isinstance(own, int) else launched
    # 1 is what the argument is where it was not given, so the launch may fill it in.
    chosen = reconcile("gradient_accumulation_steps", None if steps == 1 else steps, launched, 1)
    return GradientAccumulationPlugin(num_steps=chosen)


def rng_types(given: Any) -> list[str]:
    """The generators that are kept in step, by name.

    Raises:
        ConfigError: there is no such generator.
    """
    if given is None:
        return ["generator"]
    kinds = [str(kind) for kind in given] if isinstance(given, (list, tuple, set, frozenset)) else None
    if kinds is None or any(kind not in RNGType for kind in kinds):
        raise ConfigError(f"rng_types={given!r}: it takes a list of some of {', '.join(RNGType.list())}.")
    return [str(RNGType(kind)) for kind in kinds]


def precision(given: Any, deepspeed: Any) -> str | None:
    """The precision that code asks for, checked against the launch; None where neither code nor a plugin says one."""
    if given is None:
        first = next(iter(deepspeed.values())) if isinstance(deepspeed, dict) and deepspeed else deepspeed
        own = None if first is None else getattr(first, "configured_precision", lambda: None)()
        return None if env.get("ACCELERATE_MIXED_PRECISION") else own
    mode = str(given).lower()
    if mode not in PrecisionType:
        raise ConfigError(
            f"mixed_precision={given!r} is not a precision. Choose one of {', '.join(PrecisionType.list())}."
        )
    return reconcile("mixed_precision", mode, env.get("ACCELERATE_MIXED_PRECISION"), "no")
