"""What every rank runs: the user's program as ``__main__``, and a record of how it failed.

A launcher starts this file by its path and not as a module, so that a rank pays for nothing but Python until its
program asks for more; the single-process launcher calls :func:`execute` in place. Nothing of the package is imported
unless the program fails.
"""

from __future__ import annotations

import builtins
import os.path
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader, SourcelessFileLoader
from io import TextIOWrapper
from types import CodeType, ModuleType, TracebackType

__all__ = ["execute", "main", "user_traceback"]

_HERE = os.path.dirname(os.path.abspath(__file__))
# What stands between this file and the user's first frame, whatever way the launcher was started.
_OURS = (_HERE, os.path.join(os.path.dirname(_HERE), "cli"), "<frozen importlib", "<frozen runpy", "<frozen zipimport")

Source = tuple[CodeType, str, ModuleSpec | None]


def execute(program: str, arguments: list[str], *, module: bool = False) -> None:
    """Runs a script, a folder or archive with a ``__main__``, or a module, the way ``python`` itself would.

    ``sys.argv``, ``sys.path[0]`` and ``sys.modules["__main__"]`` are the program's from here on and stay so, because
    exit handlers and threads that outlive the script still look there. Whatever the program raises passes through.
    """
    sys.argv = [program, *arguments]
    code, origin, spec = _module(program) if module else _script(program)
    if module:
        sys.argv[0] = origin
    scope = ModuleType("__main__")
    scope.__dict__.update(
        __builtins__=builtins,
        __file__=origin,
        __loader__=spec.loader if spec is not None else SourceFileLoader("__main__", origin),
        __spec__=spec,
        __cached__=spec.cached if spec is not None else None,
        __package__=spec.parent if spec is not None else None,
    )
    _retired.append(sys.modules["__main__"])
    sys.modules["__main__"] = scope
    exec(code, scope.__dict__)


# The module that ran before stays alive: its functions are still on the stack.
_retired: list[ModuleType] = []


def _lead(entry: str, *, always: bool = False) -> None:
    """Puts ``entry`` in the first place of ``sys.path``, where Python put the launcher's. Under ``-P`` it put nothing
    there, and only what is to be run itself (``always``) comes before the rest."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = entry
    elif always:
        sys.path.insert(0, entry)


def _script(path: str) -> Source:
    """The code of a script, its absolute path, and its spec where it is a folder or an archive."""
    path = os.path.abspath(path)
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        _lead(path, always=True)
        return _load(PathFinder.find_spec("__main__", [path]), f"{path} has no __main__ to run")
    _lead(os.path.dirname(os.path.realpath(path)))
    if path.endswith(".pyc"):
        code = SourcelessFileLoader("__main__", path).get_code("__main__")
        if code is not None:
            return code, path, None
    with open(path, "rb") as file:
        return compile(file.read(), path, "exec", dont_inherit=True), path, None


def _module(name: str) -> Source:
    """The same of a module, or of ``name.__main__`` where it is a package. Imports the package around it."""
    from importlib.util import find_spec

    _lead(os.getcwd())
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = find_spec(f"{name}.__main__")
        if spec is None:
            raise ImportError(f"{name} is a package without a __main__, so `-m {name}` has nothing to run", name=name)
    return _load(spec, f"No module named {name}")


def _load(spec: ModuleSpec | None, otherwise: str) -> Source:
    if spec is None:
        raise ModuleNotFoundError(otherwise)
    code = spec.loader.get_code(spec.name) if spec.loader is not None and hasattr(spec.loader, "get_code") else None
    if code is None:
        raise ImportError(f"{spec.name} has no Python code to run", name=spec.name)
    return code, spec.origin or spec.name, spec


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback of ``error`` from the user's first frame on; None where the program did not begin to run."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace


def _write_whole_lines() -> None:
    """Makes each line one write, as soon as it ends: the ranks share a terminal or a pipe, and a block of several lines
    is cut anywhere, while under ``python -u`` a line and its end are written apart."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def main(argv: list[str]) -> int:
    """Runs ``[-m] program arguments…`` as one rank of several and returns its exit code.

    A failure goes to the error file that the launcher named, and the launcher shows it once; without such a file it
    is shown here. ``SystemExit`` passes through, so the program's own exit code is kept.
    """
    module = argv[0] == "-m"
    program, *arguments = argv[1:] if module else argv
    _write_whole_lines()
    try:
        execute(program, arguments, module=module)
    except KeyboardInterrupt:
        return 130
    except SystemExit:
        raise
    except BaseException as error:
        # A script may have put another package of that name first on the path; its own error matters more then.
        try:
            from accelerate.launch.report import fail
        except Exception:
            import traceback

            traceback.print_exception(type(error), error, user_traceback(error))
            return 1
        fail(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
