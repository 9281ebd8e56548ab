"""Which strategy a job uses. The one place, beside the state classes, where kinds of distribution are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

from accelerate.errors import ConfigError, NotBuiltError
from accelerate.strategies.base import Strategy

if TYPE_CHECKING:
    import torch

    from accelerate.topology import Topology

__all__ = ["ENTRY_POINTS", "Selection", "choose", "names", "register"]

ENTRY_POINTS = "accelerate.strategies"


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What was asked for. ``strategy`` is a name, a Strategy class or a Strategy; plugins are None where unused."""

    topology: Topology
    device: torch.device
    strategy: Any = None
    fsdp: Any = None
    deepspeed: Any = None
    megatron: Any = None
    parallelism: Any = None
    tensor_parallel: Any = None
    evaluation: bool = False


Factory = Callable[[Selection], Strategy[Any]]


def _single(selection: Selection) -> Strategy[Any]:
    from accelerate.strategies.single import SingleStrategy

    return SingleStrategy(None)


def _ddp(selection: Selection) -> Strategy[Any]:
    from accelerate.strategies.ddp import DdpStrategy

    return DdpStrategy(None)


def _fsdp(selection: Selection) -> Strategy[Any]:
    if int(getattr(selection.fsdp, "fsdp_version", 1) or 1) == 2:
        return _table["fsdp2"](selection)
    return _table["fsdp1"](selection)


def _fsdp1(selection: Selection) -> Strategy[Any]:
    from accelerate.strategies.fsdp1 import Fsdp1Strategy

    return Fsdp1Strategy(selection.fsdp)


def _fsdp2(selection: Selection) -> Strategy[Any]:
    from accelerate.strategies.fsdp2 import Fsdp2Strategy

    return Fsdp2Strategy(selection.fsdp)


def _deepspeed(selection: Selection) -> Strategy[Any]:
    from accelerate.config.deepspeed import DeepSpeedPlugin
    from accelerate.strategies.deepspeed import DeepSpeedStrategy

    return DeepSpeedStrategy(selection.deepspeed or DeepSpeedPlugin())


def _not_built(capability: str) -> Factory:
    def refuse(selection: Selection) -> Strategy[Any]:
        raise NotBuiltError(
            f"{capability} was asked for, and is not built yet in this release. Train with DDP or FSDP, or leave the "
            "setting out."
        )

    return refuse


_table: dict[str, Factory] = {
    "single": _single,
    "ddp": _ddp,
    "fsdp": _fsdp,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "deepspeed": _deepspeed,
    "megatron": _not_built("Megatron-LM"),
    "xla": _not_built("Training on XLA devices"),
}


def register(name: str, factory: type[Strategy[Any]] | Factory) -> None:
    """Makes a strategy of your own known by ``name``.

    A class is constructed with the Selection's ``fsdp`` … plugins left out: its ``options`` is None. A function gets
    the Selection and returns a Strategy.
    """
    _table[name] = _factory(factory)


def _factory(entry: Any) -> Factory:
    if isinstance(entry, type) and issubclass(entry, Strategy):
        return lambda selection: entry(None)
    return entry  # type: ignore[no-any-return]


def names() -> list[str]:
    """Every name that :func:`choose` knows: built in, registered, and from installed packages' entry points."""
    return sorted({*_table, *(point.name for point in metadata.entry_points(group=ENTRY_POINTS))})


def _by_name(name: str, selection: Selection) -> Strategy[Any]:
    if name in _table:
        return _table[name](selection)
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return _factory(point.load())(selection)
    raise ConfigError(
        f"strategy={name!r} is not known. Known strategies: {', '.join(names())}. Install the package that brings it, "
        f"register it with accelerate.strategies.registry.register(), or declare it in the entry-point group "
        f"{ENTRY_POINTS!r}."
    )


def choose(selection: Selection) -> Strategy[Any]:
    """The strategy for what was asked; the first of: given by name, class or object; DeepSpeed; Megatron; FSDP; XLA;
    DDP for several processes; single.

    Raises:
        ConfigError: the name is not known, or two engines were asked for at once.
        NotBuiltError: the strategy is promised but not there yet.
    """
    asked = selection.strategy
    if isinstance(asked, Strategy):
        return asked
    if isinstance(asked, type) and issubclass(asked, Strategy):
        return asked(None)
    if asked is not None:
        return _by_name(str(asked), selection)
    engines = {"deepspeed": selection.deepspeed, "megatron": selection.megatron, "fsdp": selection.fsdp}
    wanted = [name for name, plugin in engines.items() if plugin is not None]
    if len(wanted) > 1:
        raise ConfigError(
            f"{' and '.join(wanted)} were asked for at once, and one job has one of them. Leave out the plugin or the "
            "ACCELERATE_USE_… variable of the others."
        )
    if wanted:
        return _table[wanted[0]](selection)
    if selection.device.type == "xla":
        return _table["xla"](selection)
    sizes = selection.parallelism
    if sizes is not None and getattr(sizes, "total_size", 1) > 1:
        return _parallel(selection)
    return _table["ddp" if selection.topology.world_size > 1 else "single"](selection)


def _parallel(selection: Selection) -> Strategy[Any]:
    """Degrees without a plugin: replication alone is DDP; anything else needs the strategy that shards."""
    sizes = selection.parallelism
    if sizes.total_size == (sizes.dp_replicate_size or 1):
        return _table["ddp"](selection)
    if (sizes.dp_shard_size or 1) > 1 and sizes.total_size == sizes.data_parallel_size:
        from accelerate.config.fsdp import FullyShardedDataParallelPlugin

        plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
        from accelerate.strategies.fsdp2 import Fsdp2Strategy

        return Fsdp2Strategy(plugin)
    raise NotBuiltError(
        f"A parallelism configuration with {sizes.active_mesh_dims} was asked for; tensor, context and sequence "
        "parallelism are not built yet in this release. Use dp_replicate_size and dp_shard_size."
    )
