"""Which device each part of a model goes to: planned, tidied and checked."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn

from accelerate.offload import speaker
from accelerate.offload.budget import HOST, MaxMemory, get_max_memory
from accelerate.offload.sizes import Dtype, compute_module_sizes, parts
from accelerate.offload.tied import device_of_name, find_tied_parameters

__all__ = ["check_device_map", "clean_device_map", "infer_auto_device_map"]

Part = tuple[str, nn.Module | torch.Tensor]
Place = int | str


def infer_auto_device_map(
    model: nn.Module,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | str | None = None,
    dtype: Dtype | None = None,
    special_dtypes: Mapping[str, Dtype] | None = None,
    verbose: bool = False,
    clean_result: bool = True,
    offload_buffers: bool = False,
    fallback_allocation: bool = False,
) -> OrderedDict[str, Place]:
    """A device for every part of a model, filling devices in order: accelerators, main memory, disk.

    A part that does not fit is split, unless its class is in ``no_split_module_classes``; the next device is begun
    where it cannot be. Tied parameters go to one device where it has room for both. If anything is offloaded, the
    first device keeps room for the largest offloaded layer, and for offloaded buffers unless ``offload_buffers``.
    ``fallback_allocation`` lets a device that would stay empty take a later part that fits. ``dtype`` and
    ``special_dtypes`` are as for :func:`compute_module_sizes`. ``verbose`` prints the decisions.
    """
    limits: dict[Place, float] = dict(get_max_memory(max_memory))
    limits.setdefault("disk", math.inf)
    whole = (
        {no_split_module_classes} if isinstance(no_split_module_classes, str) else set(no_split_module_classes or ())
    )
    sizes = compute_module_sizes(model, dtype, special_dtypes)
    buffers = {} if offload_buffers else compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)
    plan = _Plan(model, limits, sizes, buffers, whole, fallback_allocation, verbose)
    plan.run(reserve=False)
    if plan.offloads():
        plan.run(reserve=True)
    if plan.offloads() and not plan.room_for_offloaded():
        speaker.warning(
            f"Offloaded layers pass through device {plan.order[0]!r}, which does not have the memory for the largest "
            "of them. Give it more in max_memory, or expect it to run out of memory."
        )
    return clean_device_map(plan.placed) if clean_result else plan.placed  # type: ignore[return-value]


class _Plan:
    """One run over the parts of a model, from the first to the last, that gives each a device."""

    def __init__(
        self,
        model: nn.Module,
        limits: Mapping[Place, float],
        sizes: Mapping[str, int],
        buffers: Mapping[str, int],
        whole: set[str],
        fallback: bool,
        verbose: bool,
    ) -> None:
        self.model, self.limits, self.sizes, self.buffers = model, limits, sizes, buffers
        self.whole, self.fallback, self.verbose = whole, fallback, verbose
        self.order = list(limits)
        self.tied = [group for group in find_tied_parameters(model) if len(group) > 1]
        self.weight = {id(group): max(sizes.get(name, 0) for name in group) for group in self.tied}
        self.placed: OrderedDict[str, Place] = OrderedDict()
        self.used: dict[Place, int] = {}

    def offloads(self) -> bool:
        """Whether something waits elsewhere than where it is computed."""
        main = self.order[0]
        return any(place in HOST and place != main for place in self.placed.values())

    def room_for_offloaded(self) -> bool:
        """Whether the largest offloaded layer fits beside what stays on the first device."""
        main = self.order[0]
        away = [name for name, place in self.placed.items() if place in HOST and place != main]
        largest = max((self._largest(name) for name in away), default=0)
        kept = sum(self.buffers.get(name, 0) for name in away)
        return self.used[main] + kept + largest <= self.limits[main]

    def _largest(self, name: str) -> int:
        """The bytes that an offloaded part brings to the device at once: those of its largest module."""
        try:
            module = self.model.get_submodule(name)
        except AttributeError:
            return self.sizes.get(name, 0)
        return max((size for _, size in self._layers(name, module)), default=0)

    def _layers(self, name: str, module: nn.Module | torch.Tensor) -> list[tuple[str, int]]:
        if self._splits(module):
            return [layer for child, part in parts(module) for layer in self._layers(_join(name, child), part)]  # type: ignore[arg-type]
        return [(name, self.sizes.get(name, 0))]

    def _splits(self, module: nn.Module | torch.Tensor) -> bool:
        if isinstance(module, torch.Tensor) or type(module).__name__ in self.whole:
            return False
        return any(True for _ in module.children())

    def run(self, reserve: bool) -> None:
        """Places every part. ``reserve`` keeps room on the first device for what passes through it."""
        self.placed = OrderedDict()
        self.used = dict.fromkeys(self.order, 0)
        queue: list[Part] = [("", self.model)] if not self._splits(self.model) else list(parts(self.model))
        self._prepare_reserve(queue if reserve else [])
        queue.reverse()
        places = iter(self.order)
        place = next(places)
        while queue:
            name, module = queue.pop()
            if self._place_with_twin(name, module, place, queue):
                continue
            if self._fits(name, place):
                self._put(name, place)
            elif self._splits(module):
                self._say(f"{name} does not fit on {place}: it is split.")
                queue.extend((_join(name, child), part) for child, part in reversed(list(parts(module))))  # type: ignore[arg-type]
            else:
                queue.append((name, module))
                if self.fallback and self.used[place] == 0:
                    self._put_any(queue, place)
                place = self._next(places, name)
                self._say(f"{name} does not fit: on to device {place}.")

    def _next(self, places: Iterator[Place], name: str) -> Place:
        place = next(places, None)
        if place is None:
            raise ValueError(
                f"The model does not fit: no room for {name!r} and what follows it in max_memory={dict(self.limits)}. "
                "Leave out 'disk', which is unlimited then, or raise the limits."
            )
        return place

    def _prepare_reserve(self, queue: list[Part]) -> None:
        """For each layer, in order, the most that a later layer and all later buffers will need on the first device."""
        layers = [layer for name, module in queue for layer in self._layers(name, module)]
        self._needed = [0] * (len(layers) + 1)
        self._last: dict[str, int] = {}  # the index of the last layer inside of each part
        for index, (name, _) in enumerate(layers):
            while name:
                self._last[name] = index
                name = name.rpartition(".")[0]
        largest = kept = 0
        for index in range(len(layers) - 1, -1, -1):
            name, size = layers[index]
            largest, kept = max(largest, size), kept + self.buffers.get(name, 0)
            self._needed[index] = largest + kept

    def _reserved_after(self, name: str) -> int:
        """Bytes to keep free on the first device when ``name`` is put there."""
        return self._needed[self._last[name] + 1] if name in self._last else 0

    def _cost(self, name: str, place: Place) -> int:
        """The bytes that ``name`` adds to a device: tied weights that are somewhere else already come along."""
        cost = self.sizes.get(name, 0)
        for group in self.tied:
            if _owns(name, group[0]) or not any(_owns(name, twin) for twin in group):
                continue
            homes = {device_of_name(twin, self.placed) for twin in group} - {None}
            if homes and place not in homes:
                cost += self.weight[id(group)]
        return cost

    def _fits(self, name: str, place: Place) -> bool:
        kept = self._reserved_after(name) if place == self.order[0] else 0
        return self.used[place] + self._cost(name, place) + kept <= self.limits[place]

    def _put(self, name: str, place: Place) -> None:
        self.used[place] += self._cost(name, place)
        self.placed[name] = place
        self._say(f"{name} goes to {place} ({self.sizes.get(name, 0)} bytes; {self.used[place]} in use).")

    def _place_with_twin(self, name: str, module: Any, place: Place, queue: list[Part]) -> bool:
        """Puts a part whose tied weight is on an earlier device there too, or splits it so that its twin can go."""
        homes = [
            home
            for group in self.tied
            if any(_owns(name, twin) for twin in group)
            and (home := next((p for twin in group if (p := device_of_name(twin, self.placed)) is not None), None))
            is not None
        ]
        if not homes or place in homes:
            return False
        if self._fits(name, homes[0]):
            self._put(name, homes[0])
            return True
        if self._splits(module):
            queue.extend((_join(name, child), part) for child, part in reversed(list(parts(module))))
            return True
        speaker.warning(
            f"{name!r} is tied to a parameter on device {homes[0]!r}, which has no room for it. The weight will be "
            "stored on two devices."
        )
        return False

    def _put_any(self, queue: list[Part], place: Place) -> None:
        """Puts the first part that fits, largest units first, on a device that would stay empty."""
        level = list(reversed(queue))
        while level:
            for name, _ in level:
                if self.sizes.get(name, 0) and self.used[place] + self._cost(name, place) <= self.limits[place]:
                    self._put(name, place)
                    self._take_out(queue, name)
                    return
            level = [
                (_join(name, child), part)
                for name, module in level
                if self._splits(module)
                for child, part in parts(module)  # type: ignore[arg-type]
            ]

    def _take_out(self, queue: list[Part], name: str) -> None:
        """Removes a part from the queue, splitting those it is inside of."""
        while True:
            index = next(i for i, (other, _) in enumerate(queue) if _owns(other, name))
            other, module = queue.pop(index)
            if other == name:
                return
            queue[index:index] = [(_join(other, child), part) for child, part in reversed(list(parts(module)))]  # type: ignore[arg-type]

    def _say(self, text: str) -> None:
        if self.verbose:
            print(text)  # noqa: T201  # that is what `verbose` asks for


def _join(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent else child


def _owns(module: str, tensor: str) -> bool:
    return module in ("", tensor) or tensor.startswith(f"{module}.")


def clean_device_map(device_map: MutableMapping[str, Any], module_name: str = "") -> MutableMapping[str, Any]:
    """Replaces, in place, the entries below ``module_name`` by one where they all name the same device.

    The map must name everything below a module, or nothing.
    """
    merged: dict[str, Any] = {}
    inside = {name: place for name, place in device_map.items() if _owns(module_name, name)}
    for name, place in device_map.items():
        if name not in inside:
            merged[name] = place
        elif name == next(iter(inside)):
            merged.update(_merged(inside, module_name))
    device_map.clear()
    device_map.update(merged)
    return device_map


def _merged(entries: Mapping[str, Any], module_name: str) -> dict[str, Any]:
    places = list(entries.values())
    if all(place == places[0] for place in places):
        return {module_name: places[0]}
    start = len(module_name) + 1 if module_name else 0
    children: dict[str, dict[str, Any]] = {}
    for name, place in entries.items():
        child = name if name == module_name else _join(module_name, name[start:].partition(".")[0])
        children.setdefault(child, {})[name] = place
    result: dict[str, Any] = {}
    for child, group in children.items():
        result.update(group if child in group else _merged(group, child))
    return result


def check_device_map(model: nn.Module, device_map: Mapping[str, Any]) -> None:
    """Returns when every parameter and saved buffer of the model has a device; warns of entries that name nothing.

    Raises:
        ValueError: some have none; they are listed.
    """
    missing = [name for name in model.state_dict() if device_of_name(name, device_map) is None]
    if missing:
        raise ValueError(f"The device_map gives no device for these parameters: {', '.join(missing)}.")
    names = {name for name, _ in model.named_modules(remove_duplicate=False)}
    names.update(name for name, _ in model.named_parameters(remove_duplicate=False))
    names.update(name for name, _ in model.named_buffers(remove_duplicate=False))
    unknown = [name for name in device_map if name not in names]
    if unknown:
        speaker.warning(f"These entries of the device_map name no part of the model: {', '.join(unknown)}.")
