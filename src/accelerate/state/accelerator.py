"""What an Accelerator decided for this process, shared by every instance: precision, plugins and strategy."""

from __future__ import annotations

import functools
from typing import Any

from accelerate import env, runtime
from accelerate.config.enums import DistributedType, PrecisionType
from accelerate.errors import StateError
from accelerate.state.partial import PartialState
from accelerate.state.shared import SharedDict

__all__ = ["AcceleratorState"]

_PLUGINS = ("dynamo_plugin", "fsdp_plugin", "torch_tp_plugin", "megatron_lm_plugin", "parallelism_config")


def _of_process(name: str) -> Any:
    """The method ``name`` of PartialState, for a class that has its attributes too."""
    original = getattr(PartialState, name)

    @functools.wraps(original)
    def forward(self: AcceleratorState, *args: Any, **kwargs: Any) -> Any:
        return getattr(PartialState(), name)(*args, **kwargs)

    return forward


class AcceleratorState:
    """The state that every Accelerator and AcceleratorState of this process shares.

    The first construction decides; later ones read. A later one that asks for something else raises. Constructing it
    with several processes is collective, as it sets up the strategy.

    Raises:
        ValueError: a later construction asks for another ``mixed_precision``, ``cpu`` or plugin; the message names it.
    """

    _shared_state = SharedDict("accelerator")
    _known_attrs = (*PartialState._known_attrs, "deepspeed_plugins", "use_ipex", "device_mesh", *_PLUGINS)

    def __init__(
        self,
        mixed_precision: str | None = None,
        cpu: bool = False,
        dynamo_plugin: Any = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        parallelism_config: Any = None,
        _from_accelerator: bool = False,
        **kwargs: Any,
    ) -> None:
        self.__dict__ = self._shared_state
        asked = {
            "dynamo_plugin": dynamo_plugin,
            "fsdp_plugin": fsdp_plugin,
            "torch_tp_plugin": torch_tp_plugin,
            "megatron_lm_plugin": megatron_lm_plugin,
            "parallelism_config": parallelism_config,
        }
        mixed_precision = None if mixed_precision is None else str(mixed_precision).lower()
        if self.initialized:
            self._check_same(mixed_precision, cpu, deepspeed_plugin, asked)
            return
        strategy = kwargs.pop("strategy", None)
        settings = kwargs.pop("settings", {})
        PartialState(cpu, **kwargs)
        mode = mixed_precision or (env.get("ACCELERATE_MIXED_PRECISION") or "no").lower()
        if mode not in PrecisionType:
            known = ", ".join(PrecisionType.list())
            raise ValueError(f"mixed_precision={mode!r} is not a precision. Choose one of {known}.")
        self.__dict__.update(asked)
        self._mixed_precision = mode
        self._deepspeed_plugins = _named(deepspeed_plugin)
        self.device_mesh = None
        self.use_ipex = False
        try:
            self._set_up(strategy, settings)
        except BaseException:
            self.__dict__.clear()
            raise

    def _set_up(self, strategy: Any, settings: dict[str, Any]) -> None:
        from accelerate.strategies.registry import Selection, choose

        held = runtime.current()
        chosen = choose(
            Selection(
                topology=held.topology,
                device=held.device,
                strategy=strategy,
                fsdp=self.fsdp_plugin,
                deepspeed=self.deepspeed_plugin,
                megatron=self.megatron_lm_plugin,
                parallelism=self.parallelism_config,
                tensor_parallel=self.torch_tp_plugin,
            )
        )
        # A strategy that needs the mesh builds it from this; the public state shows what it built.
        held.parallelism = self.parallelism_config
        chosen.setup(held)
        held.strategy = chosen
        held.precision = chosen.precision_for(self._mixed_precision, settings)
        self.device_mesh = held.mesh
        self.distributed_type = chosen.legacy_type(held.device.type)
        self._published = _publish(self)

    @property
    def initialized(self) -> bool:
        """Whether some Accelerator or AcceleratorState was constructed in this process."""
        return "_mixed_precision" in self.__dict__

    def _check_initialized(self, mixed_precision: str | None = None, cpu: bool | None = None) -> None:
        """Raises ValueError where the state in use differs from what is asked for."""
        self._check_same(mixed_precision, bool(cpu), None, {})

    def _check_same(self, mixed_precision: str | None, cpu: bool, deepspeed: Any, asked: dict[str, Any]) -> None:
        how = "Construct one Accelerator with this setting first, or call AcceleratorState._reset_state(True) before."
        if mixed_precision is not None and mixed_precision != self._mixed_precision:
            raise _Differs(
                f"mixed_precision={mixed_precision!r} was asked for, but this process trains with "
                f"{self._mixed_precision!r} already. {how}"
            )
        held = runtime.current()
        if cpu and held.device.type != "cpu":
            raise _Differs(f"cpu=True was asked for, but this process uses {held.device} already. {how}")
        if deepspeed is not None and self._deepspeed_plugins is None:
            raise _Differs(f"deepspeed_plugin was given, but this process does not use DeepSpeed. {how}")
        for name, plugin in asked.items():
            if plugin is not None and self.__dict__.get(name) is None and name != "dynamo_plugin":
                raise _Differs(
                    f"{name}={plugin!r} was given, but an Accelerator without it was constructed in this process "
                    f"before. {how}"
                )

    @property
    def mixed_precision(self) -> str:
        """The precision in use: "no", "fp16", "bf16" or "fp8"."""
        plugin = self.__dict__.get("_deepspeed_plugins")
        if plugin and self.__dict__.get("distributed_type") == DistributedType.DEEPSPEED:
            return _engine_precision(self.deepspeed_plugin, self._mixed_precision)
        return str(self._mixed_precision)

    @property
    def deepspeed_plugin(self) -> Any:
        """The DeepSpeed plugin in use, or None."""
        plugins = self.__dict__.get("_deepspeed_plugins")
        if not plugins:
            return None
        for plugin in plugins.values():
            if getattr(plugin, "selected", True):
                return plugin
        return next(iter(plugins.values()))

    @deepspeed_plugin.setter
    def deepspeed_plugin(self, plugin: Any) -> None:
        self.__dict__["_deepspeed_plugins"] = _named(plugin)

    @property
    def deepspeed_plugins(self) -> Any:
        """Every DeepSpeed plugin by name, or None."""
        return self.__dict__.get("_deepspeed_plugins")

    def get_deepspeed_plugin(self, name: str) -> Any:
        """The DeepSpeed plugin registered under ``name``.

        Raises:
            KeyError: there is none; the message lists those there are.
        """
        plugins = self.__dict__.get("_deepspeed_plugins") or {}
        if name not in plugins:
            raise KeyError(f"No DeepSpeed plugin is named {name!r}. Named plugins: {sorted(plugins)}.")
        return plugins[name]

    def select_deepspeed_plugin(self, name: str | None = None) -> None:
        """Makes the plugin named ``name`` the one that the next ``prepare`` uses."""
        if name is None:
            raise ValueError("select_deepspeed_plugin() needs the name of a plugin.")
        chosen = self.get_deepspeed_plugin(name)
        for plugin in (self._deepspeed_plugins or {}).values():
            plugin._unselect()
        chosen.select(_from_accelerator_state=True)

    @property
    def is_fsdp2(self) -> bool:
        """Whether the strategy in use is FSDP version 2."""
        plugin = self.__dict__.get("fsdp_plugin")
        return self.__dict__.get("distributed_type") == DistributedType.FSDP and getattr(plugin, "fsdp_version", 1) == 2

    @property
    def fork_launched(self) -> bool:
        """Whether this process was forked by a notebook or debug launcher."""
        return bool(PartialState().fork_launched)

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process."""
        return bool(PartialState().use_distributed)

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0 of the job."""
        return bool(PartialState().is_main_process)

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is rank 0 of its machine."""
        return bool(PartialState().is_local_main_process)

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank of the job."""
        return bool(PartialState().is_last_process)

    wait_for_everyone = _of_process("wait_for_everyone")
    main_process_first = _of_process("main_process_first")
    local_main_process_first = _of_process("local_main_process_first")
    split_between_processes = _of_process("split_between_processes")
    print = _of_process("print")
    destroy_process_group = _of_process("destroy_process_group")

    def __getattr__(self, name: str) -> Any:
        shared = type(self)._shared_state
        if name.startswith("__"):
            raise AttributeError(name)
        partial = PartialState._shared_state
        if name in partial:
            return partial[name]
        if not shared:
            raise AttributeError(
                f"`AcceleratorState` has no attribute {name!r} yet: construct `Accelerator()` first. A state that was "
                "reset has to be constructed again."
            )
        if partial and hasattr(PartialState, name):
            return getattr(PartialState(), name)
        raise AttributeError(f"`AcceleratorState` has no attribute {name!r}.")

    def __repr__(self) -> str:
        lines = [repr(PartialState()).rstrip("\n"), f"Mixed precision type: {self.mixed_precision}"]
        if self.deepspeed_plugin is not None:
            lines.append(f"ds_config: {self.deepspeed_plugin.deepspeed_config}")
        return "\n".join(lines) + "\n"

    @staticmethod
    def _reset_state(reset_partial_state: bool = False) -> None:
        """Forgets what was decided; with ``reset_partial_state`` also the process's place in its job."""
        for name in runtime.slots().accelerator.get("_published", ()):
            env.drop(name)
        runtime.slots().accelerator.clear()
        held = runtime.find()
        if held is not None:
            if held.strategy is not None:
                held.strategy.teardown()
            held.strategy, held.precision, held.mesh = None, None, None
        if reset_partial_state:
            PartialState._reset_state()


class _Differs(StateError, ValueError):
    """A later construction asks for something else than what is in use."""


_Differs.__name__ = "StateError"


def _publish(state: Any) -> list[str]:
    """Writes the variables by which other libraries learn how this process trains; returns those that are new, which
    a reset takes back."""
    values: dict[str, str] = {}
    if state.fsdp_plugin is not None:
        values["ACCELERATE_USE_FSDP"] = "true"
        values["FSDP_CPU_RAM_EFFICIENT_LOADING"] = str(bool(state.fsdp_plugin.cpu_ram_efficient_loading)).lower()
    if state.deepspeed_plugin is not None:
        values["ACCELERATE_USE_DEEPSPEED"] = "true"
    new = [name for name in values if env.get(name) is None]
    for name, value in values.items():
        env.put(name, value)
    return new


def _named(plugin: Any) -> dict[str, Any] | None:
    if plugin is None:
        return None
    return plugin if isinstance(plugin, dict) else {"default": plugin}


def _engine_precision(plugin: Any, mode: str) -> str:
    config = getattr(plugin, "deepspeed_config", None) or {}
    for name, section in (("fp16", "fp16"), ("bf16", "bf16")):
        enabled = config.get(section, {}).get("enabled", False)
        if enabled is True or enabled == "true":
            return name
    return mode
