"""Public names that are imported the first time somebody asks for them."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # as typing's, without importing typing: this module is all that ``import accelerate`` loads
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


__all__ = ["attach", "by_name"]


def by_name(homes: Mapping[str, str]) -> dict[str, str]:
    """Turns ``{module: "name name …"}`` into ``{name: module}``."""
    return {name: module for module, names in homes.items() for name in names.split()}


class _Package(ModuleType):
    """A package whose public names are not hidden by a submodule that is called the same."""

    _public: Mapping[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in self._public:
            return  # the import system binds a submodule in its parent once it is loaded
        super().__setattr__(name, value)


def attach(
    package: str, homes: Mapping[str, str], submodules: Iterable[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """``__getattr__``, ``__dir__`` and ``__all__`` for a package whose names live elsewhere.

    ``homes`` says for each name which module holds it; ``submodules`` are imported when asked for as attributes.
    """
    module = sys.modules[package]
    children = frozenset(submodules)
    module.__dict__["_public"] = homes
    module.__class__ = _Package

    def getattribute(name: str) -> Any:
        home = homes.get(name)
        if home is not None:
            value = getattr(import_module(home), name)
            module.__dict__[name] = value
            return value
        if name in children:
            return import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}", name=name, obj=module)

    public = sorted(homes)
    listing = sorted(
        {
            *public,
            *children,
            *(name for name in module.__dict__ if name.startswith("__")),
        }
    )
    return getattribute, lambda: listing, public
