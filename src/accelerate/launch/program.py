"""The program a launch is to run: whether it is there, and what its name was meant to be."""

from __future__ import annotations

import os.path
import sys

from accelerate.errors import LaunchError

__all__ = ["check_program"]


def check_program(program: str, *, module: bool, python: bool) -> None:
    """Returns if there is something to run.

    Raises:
        LaunchError: there is not; the message names what is there and called nearly the same.
    """
    if module:
        _check_module(program)
    elif python:
        _check_script(program)
    else:
        _check_command(program)


def _check_script(path: str) -> None:
    if os.path.exists(path):
        return
    import shutil
    from importlib.machinery import PathFinder

    folder = os.path.dirname(path) or "."
    if path.startswith("-"):
        raise LaunchError(f"There is no flag {path!r} and no script of that name. Flags go before the script's path.")
    if not os.path.isdir(folder):
        raise LaunchError(f"There is no script {path!r}: there is no folder {folder!r}{_near_folder(folder)}.")
    name = os.path.basename(path)
    scripts = [entry for entry in os.listdir(folder) if entry.endswith((".py", ".pyz")) or entry == name + ".py"]
    near = [os.path.join(os.path.dirname(path), match) for match in _near(name, scripts)]
    where = os.path.abspath(folder)
    if not near and shutil.which(path):
        raise LaunchError(f"There is no script {path!r} in {where}. To run the command of that name, add --no_python.")
    if not near and PathFinder.find_spec(name, [os.getcwd(), *sys.path]) and name == path:
        raise LaunchError(f"There is no script {path!r} in {where}. To run the module of that name, add -m.")
    raise LaunchError(f"There is no script {path!r} in {where}.{_mean(near)}")


def _near_folder(folder: str) -> str:
    parent = os.path.dirname(folder) or "."
    if not os.path.isdir(parent):
        return ""
    folders = [entry for entry in os.listdir(parent) if os.path.isdir(os.path.join(parent, entry))]
    near = _near(os.path.basename(folder), folders)
    return f" (there is {os.path.join(os.path.dirname(folder), near[0])!r})" if near else ""


def _check_module(name: str) -> None:
    from importlib.machinery import PathFinder
    from pathlib import Path

    # Only the first part: finding a submodule imports its parents, which is the program's business.
    first = name.partition(".")[0]
    path = [os.getcwd(), *sys.path]
    if name.endswith(".py"):
        raise LaunchError(
            f"-m {name} was given, but -m takes a module's name: -m {name.removesuffix('.py')}, or leave out -m."
        )
    if first in sys.builtin_module_names or PathFinder.find_spec(first, path) is not None:
        return
    here = [entry.stem for entry in Path.cwd().iterdir() if entry.suffix == ".py" or (entry / "__init__.py").is_file()]
    near = _near(first, here)
    raise LaunchError(f"There is no module {first!r} on Python's path.{_mean(near)}")


def _check_command(command: str) -> None:
    import shutil

    if shutil.which(command) is None:
        raise LaunchError(f"There is no command {command!r} on the PATH (--no_python runs commands as they are).")


def _near(name: str, there: list[str]) -> list[str]:
    from difflib import get_close_matches

    return get_close_matches(name, there, n=3, cutoff=0.5)


def _mean(near: list[str]) -> str:
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""
