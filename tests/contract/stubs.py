"""What type checkers read of the lazy packages. ``python tests/contract/stubs.py`` writes the files anew."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

PACKAGES = ("accelerate", "accelerate.utils")


def path_of(package: str) -> Path:
    """The stub beside a package's ``__init__.py``."""
    return Path(str(import_module(package).__file__)).with_suffix(".pyi")


def stub(package: str) -> str:
    """The text of a package's stub: one import of each public name from where it lives."""
    module = import_module(package)
    public = {name for names in module.HOMES.values() for name in names.split()}
    lines = ["# ruff: noqa: I001", f'"""{(module.__doc__ or "").splitlines()[0]}"""', ""]
    lines += [f"from {package} import {name} as {name}" for name in sorted({*module._SUBMODULES.split()} - public)]
    for home, names in sorted(module.HOMES.items()):
        lines += [_import(home, name) for name in sorted(names.split())]
    if package == "accelerate":
        lines.append("from accelerate._version import __version__ as __version__")
    lines += ["", "__all__: list[str]", ""]
    return "\n".join(lines)


def _import(home: str, name: str) -> str:
    line = f"from {home} import {name} as {name}"
    return line if len(line) <= 120 else f"from {home} import (\n    {name} as {name},\n)"


if __name__ == "__main__":
    for each in PACKAGES:
        path_of(each).write_text(stub(each))
