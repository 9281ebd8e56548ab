"""Where a model's first weights come from: every rank's own copy, the first rank's, or no rank yet."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from accelerate.checkpoint.naming import strip_markers
from accelerate.errors import PrepareError
from accelerate.logging import get_logger
from accelerate.strategies.sharded.agreement import broadcast, differing, reduce_max

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["Findings", "Source", "examine", "give_data", "is_first", "share_buffers", "share_parameters"]

log = get_logger(__name__)


class Source(Enum):
    """Who holds the weights that training begins with."""

    EVERY_RANK = "every rank"
    FIRST_RANK = "first rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What one look over the ranks told.

    ``differing`` names tensors that are not the same everywhere; ``deferred`` says that some have no data on any rank.
    """

    source: Source
    differing: frozenset[str] = frozenset()
    deferred: bool = False


def is_first(mesh: DeviceMesh) -> bool:
    """Whether this rank is the mesh's first."""
    return all(mesh.get_local_rank(axis) == 0 for axis in range(mesh.ndim))


def _own_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name; those that another stage has divided already are their owner's affair."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {strip_markers(name): tensor for name, tensor in tensors.items() if not isinstance(tensor, DTensor)}


def examine(model: torch.nn.Module, mesh: DeviceMesh, *, expected: bool, private: Iterable[str] = ()) -> Findings:
    """Collective over ``mesh``. Compares the ranks' weights and says whose count.

    ``expected``: only the first rank was told to load, so differences need no notice. ``private`` names tensors that
    each rank may have its own values of, unless differences are expected.

    Raises:
        PrepareError: the first rank has no data where another has, or ranks hold models of other parameters.
    """
    _check_same_names(model, mesh)
    _share_as_first(model, mesh)
    tensors = _own_tensors(model)
    empty = torch.tensor([int(t.is_meta) for t in tensors.values()], dtype=torch.int64)
    first = empty if is_first(mesh) else torch.zeros_like(empty)
    anywhere, everywhere, at_first = reduce_max(torch.stack([empty, -empty, first]), mesh)
    names = list(tensors)
    lost = [name for name, a, b in zip(names, at_first.tolist(), (-everywhere).tolist(), strict=True) if a and not b]
    if lost:
        raise PrepareError(
            f"prepare() got a model whose {lost[0]!r} (and {len(lost) - 1} more) is on the 'meta' device on the first "
            "rank but has data on another. The first rank's weights are the ones that are used: load them there."
        )
    different = differing(tensors, mesh)
    deferred = bool(at_first.any())
    own = set() if expected else {name for name in private if not tensors[name].is_meta}
    shared = [name for name in different if name not in own]
    if not shared:
        return Findings(source=Source.EVERY_RANK, differing=frozenset(different), deferred=deferred)
    if not expected and not bool(anywhere.any()):
        log.warning_once(
            f"The ranks began with different weights in {len(shared)} tensors ({shared[0]!r} …); those of the "
            "first rank are used on all. Call set_seed() before the model is built, or load it on every rank, to begin "
            "alike."
        )
    return Findings(source=Source.FIRST_RANK, differing=frozenset(different), deferred=deferred)


def _check_same_names(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    names = [*_names_of_shared(model), *(name for name, _ in model.named_buffers())]
    own = torch.tensor([len(names), sum(zlib.crc32(strip_markers(n).encode()) for n in names)], dtype=torch.int64)
    largest, smallest = reduce_max(torch.stack([own, -own]), mesh)
    if not torch.equal(largest, -smallest):
        raise PrepareError(
            f"prepare() got models of different structure: {int(largest[0])} parameters and buffers on one rank, "
            f"{-int(smallest[0])} on another, or of other names. Build the same model on every rank."
        )


def _names_of_shared(model: torch.nn.Module) -> dict[str, str]:
    """Every name of every parameter → the first name of the same parameter."""
    first: dict[int, str] = {}
    return {
        name: first.setdefault(id(parameter), name)
        for name, parameter in model.named_parameters(remove_duplicate=False)
    }


def _share_as_first(model: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Collective. Shares parameters where the first rank's model shares them: moving a model to "meta" parts them."""
    firsts = _names_of_shared(model)
    own = torch.tensor([zlib.crc32(repr(sorted(firsts.items())).encode())], dtype=torch.int64)
    largest, smallest = reduce_max(torch.stack([own, -own]), mesh)
    if torch.equal(largest, -smallest):
        return
    held = [firsts]
    for axis in range(mesh.ndim):
        group = mesh.get_group(axis)
        if all(mesh.get_local_rank(later) == 0 for later in range(axis + 1, mesh.ndim)):
            dist.broadcast_object_list(held, src=dist.get_global_rank(group, 0), group=group)
    for name, first in held[0].items():
        if name != first and firsts[name] != first:
            owner, _, leaf = name.rpartition(".")
            model.get_submodule(owner)._parameters[leaf] = model.get_parameter(first)


def give_data(model: torch.nn.Module, parameters: set[torch.nn.Parameter], device: torch.device) -> None:
    """Replaces those of ``parameters`` that are on "meta" by uninitialised ones; shared ones stay shared."""
    fresh: dict[torch.nn.Parameter, torch.nn.Parameter] = {}
    for module in model.modules():
        for leaf, parameter in module._parameters.items():
            if parameter is not None and parameter.is_meta and parameter in parameters:
                if parameter not in fresh:
                    data = torch.empty_like(parameter.data, device=device)
                    fresh[parameter] = torch.nn.Parameter(data, requires_grad=parameter.requires_grad)
                module._parameters[leaf] = fresh[parameter]


def share_buffers(model: torch.nn.Module, mesh: DeviceMesh, names: Iterable[str], device: torch.device) -> None:
    """Collective over ``mesh``. Gives every rank the first rank's buffers of these names."""
    wanted = set(names)
    for name, buffer in list(model.named_buffers()):
        if strip_markers(name) not in wanted or isinstance(buffer, DTensor):
            continue
        if buffer.is_meta:
            owner, _, leaf = name.rpartition(".")
            buffer = torch.empty_like(buffer, device=device)
            model.get_submodule(owner)._buffers[leaf] = buffer
        broadcast(buffer, mesh)


def share_parameters(parameters: Iterable[torch.nn.Parameter], mesh: DeviceMesh) -> None:
    """Collective over ``mesh``. Overwrites whole parameters in place with the first rank's values."""
    for parameter in parameters:
        broadcast(parameter.data, mesh)
